use super::*;
use crate::config::{Config, ConfigError, Layer, Source, Trust, load};

fn loaded(text: &str) -> Result<Config, Vec<ConfigError>> {
    load(&[Source::new(Layer::User, "/home/ann/config.yaml", text)], &[])
}

fn people(text: &str) -> People {
    loaded(text).unwrap_or_else(|errors| panic!("{errors:?}")).people.clone()
}

fn fault(text: &str) -> (String, Option<u32>, Option<String>) {
    let errors = loaded(text).unwrap_err();
    assert_eq!(errors.len(), 1, "{errors:?}");
    let error = errors.into_iter().next().unwrap();
    (error.message, error.line, error.hint)
}

const TEAM: &str = "
projects: {shop: /srv/shop, web: /srv/web}
people:
  anna: {slack: [U0123ABCD, U0999], web: true, may: [talk, answer, spawn, kill, set]}
  ben: {slack: U0456, may: [talk, 'spawn:project=shop', 'kill: role=reviewer', \
'set:project=web,role=tester']}
  cleo: {slack: [U0777]}
  dan: {telegram: 12345, web: false, may: []}
";

fn allowed(user: (&str, &str), right: Right, projects: &[&str], role: Option<&str>) -> bool {
    let (adapter, user) = user;
    check(&people(TEAM), Action { adapter, user, right, projects, role }).is_ok()
}

#[test]
fn listed_people_get_their_rights_and_nobody_else_any() {
    let anna = ("slack", "U0999");
    for right in Right::ALL {
        assert!(allowed(anna, right, &[], None), "{right}");
        assert!(allowed(("web", "anna"), right, &["shop"], Some("tester")), "{right}");
        assert!(allowed((LOCAL, "operator"), right, &[], None), "{right}");
        for stranger in [("slack", "anna"), ("web", "U0999"), ("web", "dan"), ("tracker", "")] {
            assert!(!allowed(stranger, right, &["shop"], None), "{stranger:?} {right}");
        }
        assert!(!allowed(("telegram", "12345"), right, &[], None), "{right}");
    }
    let default = Right::ALL.map(|right| allowed(("slack", "U0777"), right, &[], None));
    assert_eq!(default, [true, true, false, false, false]);
}

#[test]
fn rules_with_a_scope_hold_there_only() {
    let ben = ("slack", "U0456");
    assert!(allowed(ben, Right::Spawn, &["shop"], Some("developer")));
    assert!(!allowed(ben, Right::Spawn, &["web"], Some("developer")));
    assert!(!allowed(ben, Right::Spawn, &[], None));
    assert!(allowed(ben, Right::Kill, &[], Some("reviewer")));
    assert!(!allowed(ben, Right::Kill, &[], Some("tester")));
    assert!(!allowed(ben, Right::Kill, &["shop"], None));
    assert!(allowed(ben, Right::Set, &["web"], Some("tester")));
    assert!(!allowed(ben, Right::Set, &["web"], Some("reviewer")));
    assert!(!allowed(ben, Right::Set, &["shop"], Some("tester")));
}

#[test]
fn refusal_says_which_rule_or_line_to_add() {
    let action = Action {
        adapter: "slack",
        user: "U0777",
        right: Right::Spawn,
        projects: &["shop"],
        role: Some("developer"),
    };
    let refused = check(&people(TEAM), action).unwrap_err();
    assert_eq!(
        refused.reply(),
        "I cannot do this: cleo has no right to spawn in project `shop` with role `developer`. \
         Hint: add `spawn:project=shop` (or `spawn`) to `people.cleo.may` in config.yaml."
    );
    let stranger = check(&people(TEAM), Action { user: "U0888", ..action }).unwrap_err();
    assert!(stranger.unlisted);
    assert_eq!(
        stranger.reply(),
        "I cannot do this: the slack user `U0888` is not listed in `people`. The owner of this \
         Muleteer can add the line `  NAME: {slack: [U0888]}` below `people:` in config.yaml."
    );
    let hostile = unlisted("slack", &format!("]}}\u{1b}[31m\n{}", "x".repeat(500)));
    assert!(!hostile.message.contains(['\n', '\u{1b}']) && hostile.message.len() < 200);
    // The line that the reply gives makes the person known.
    let line = hostile.hint.split('`').nth(1).unwrap().replace("NAME", "eve");
    assert_eq!(people(&format!("people:\n{line}\n")).len(), 1);
}

#[test]
fn faulty_entries_are_reported_with_place_and_hint() {
    let cases = [
        ("people:\n  a:\n    may: [talk, spwan]\n", "`people.a.may[1]`: `spwan` is not one of", 3),
        ("people:\n  a: {may: ['spawn:projekt=x']}\n", "`people.a.may[0]`: `projekt` is not", 2),
        ("people:\n  a: {may: ['spawn:shop']}\n", "`people.a.may[0]`: `shop` is no scope", 2),
        ("people:\n  a: {may: ['spawn:project=']}\n", "`people.a.may[0]`: `project` needs", 2),
        ("people:\n  a: {my: [talk]}\n", "unknown key `my` in `people.a`", 2),
        ("people:\n  a: {slack: {id: U1}}\n", "`people.a.slack`: expected `true`, an id", 2),
        ("people:\n  a: {slack: ['']}\n", "`people.a.slack`: an id is empty", 2),
        ("people:\n  a: 5\n", "`people.a`: expected a mapping", 2),
    ];
    for (text, wanted, line) in cases {
        let (message, at, _) = fault(text);
        assert!(message.starts_with(wanted), "{text}: {message}");
        assert_eq!(at, Some(line), "{text}: {message}");
    }
    let (message, line, hint) = fault("people:\n  a: {slack: [U1]}\n  b: {slack: [U2, U1]}\n");
    assert_eq!(message, "`people.b.slack`: the id `U1` belongs to `a` already");
    assert_eq!(
        (line, hint.as_deref()),
        (Some(3), Some("give each id of an adapter to one person"))
    );
    let (message, line, hint) =
        fault("projects: {shop: /s}\npeople:\n  a: {may: ['kill:project=shpo']}\n");
    assert_eq!(message, "`people.a.may`: no project `shpo`");
    assert_eq!((line, hint.as_deref()), (Some(3), Some("did you mean `shop`?")));
    let (_, _, hint) = fault("people:\n  a:\n    may: [spwan]\n");
    assert_eq!(hint.as_deref(), Some("did you mean `spawn`?"));
}

#[test]
fn repository_lists_nobody() {
    let project =
        Source::new(Layer::Project, "/r/.muleteer/config.yaml", "people: {eve: {web: true}}");
    let config = load(std::slice::from_ref(&project), &[]).unwrap();
    assert!(config.people.is_empty() && config.ignored().len() == 1);
    let trusted = load(&[project.trusted(Trust::Trusted)], &[]).unwrap();
    assert!(trusted.origin("people.eve.web").unwrap().is_in_vain());
}

#[test]
fn rules_and_people_are_written_as_they_are_read() {
    let config = loaded(TEAM).unwrap();
    let json = serde_json::to_value(&config.people).unwrap();
    assert_eq!(json["ben"]["may"][3], "set:project=web,role=tester");
    assert_eq!(json["anna"]["web"], true);
    assert_eq!(serde_json::from_value::<People>(json).unwrap(), config.people);
}
