use crate::agent::ask::{Ask, AskKind, Verdict};
use crate::agent::permission::Policy;
use crate::agent::role::trust::*;
use crate::config::{Layer, Source, load};
use proptest::prelude::*;
use serde_json::json;

fn source(layer: RoleLayer, text: &str) -> RoleSource {
    let trust = if layer <= RoleLayer::User { Trust::Trusted } else { Trust::Untrusted };
    RoleSource { layer, file: format!("{}/a.md", layer.as_str()), text: Ok(text.into()), trust }
}

fn held(config: &str, user: &str, project: &str) -> (Role, Vec<String>) {
    let config = load(&[Source::new(Layer::User, "config.yaml", config)], &[]).unwrap();
    let mut sources = vec![source(RoleLayer::Project, project)];
    if !user.is_empty() {
        sources.push(source(RoleLayer::User, user));
    }
    let found = Catalog::new(&sources).in_force("a", &config, &sources).unwrap();
    let lines =
        found.ignored.iter().map(|one| format!("{}:{}", one.key, one.line.unwrap_or_default()));
    (found.role, lines.collect())
}

#[test]
fn untrusted_role_loosens_nothing() {
    let asks = "permissions: {mode: ask}";
    for (config, user, project, keys) in [
        (asks, "", "---\npermissions: {mode: allow}\n---\n", &["permissions.mode:2"][..]),
        ("", "", "---\nname: a\npermissions: {allow: [Bash]}\n---\n", &["permissions.allow:3"]),
        (
            "permissions: {mode: deny}",
            "",
            "---\npermissions: {ask: [Bash]}\n---\n",
            &["permissions.ask:2"],
        ),
        (
            "",
            "---\npermissions: {mode: deny}\n---\n",
            "---\npermissions: {mode: ask}\n---\n",
            &["permissions.mode:2"],
        ),
        ("", "", "---\ncategory: conversational\n---\n", &["category:2"]),
        ("", "---\ntools: [Read]\n---\n", "---\ntools: [Read, Bash]\n---\n", &["tools:2"]),
        ("", "---\ntools: [Read]\n---\n", "You are.\n", &["tools:0"]),
    ] {
        let (role, ignored) = held(config, user, project);
        assert_eq!(ignored, keys, "{project}");
        assert!(role.permissions.allow.is_empty() && role.category == "coding", "{role:?}");
        assert!(role.permissions.mode.is_none_or(|mode| mode == Mode::Deny), "{role:?}");
    }
}

#[test]
fn untrusted_role_may_only_tighten_permissions() {
    let project = "---\ntools: [Read]\nmodel: opus\npermissions: {mode: ask, ask: [Read], deny: \
        [Bash]}\n---\nYou are.\n";
    let (role, ignored) = held("", "", project);
    assert_eq!(
        (ignored.len(), role.permissions.mode, role.permissions.deny.len()),
        (0, Some(Mode::Ask), 1)
    );
    assert_eq!(
        (role.tools, role.model.as_deref(), role.body.as_str()),
        (Some(vec!["Read".to_string()]), Some("opus"), "You are.")
    );
    // Calls that the user's own role of that name forbids stay forbidden.
    let (role, ignored) =
        held("", "---\npermissions: {mode: deny, deny: [Bash]}\n---\n", "You are.\n");
    assert_eq!(
        ignored,
        ["permissions.mode:0", "permissions.deny:0"],
        "trusted, the file would leave them out"
    );
    assert_eq!((role.permissions.mode, role.permissions.deny.len()), (Some(Mode::Deny), 1));
    let (role, ignored) =
        held("", "---\ncategory: conversational\n---\n", "---\ncategory: conversational\n---\n");
    assert_eq!((ignored.len(), role.category.as_str()), (0, "conversational"));
}

#[test]
fn trusted_role_counts_as_it_is() {
    let mut sources = vec![source(RoleLayer::Project, "---\npermissions: {allow: [Bash]}\n---\n")];
    sources[0].trust = Trust::Trusted;
    let found =
        Catalog::new(&sources).in_force("a", &Config::defaults().unwrap(), &sources).unwrap();
    assert_eq!((found.ignored.len(), found.role.permissions.allow.len()), (0, 1));
}

#[test]
fn untrusted_role_inherits_the_users_role() {
    let user = "---\ntools: [Read, \"Bash(git *)\"]\ndisallowedTools: [WebFetch]\npermissionMode: \
        default\n\
                scope: [src/**]\npermissions: {ask: [Bash], deny: [Write]}\n---\n";
    for project in [
        "You are.\n",
        "---\npermissionMode: plan\ndisallowedTools: [Edit]\nscope: [docs/**]\n---\n",
    ] {
        let (role, ignored) = held("", user, project);
        let keys: Vec<_> = ignored.iter().map(|one| one.split(':').next().unwrap()).collect();
        let expected = [
            "permissions.ask",
            "permissions.deny",
            "tools",
            "disallowedTools",
            "permissionMode",
            "scope",
        ];
        assert_eq!(keys, expected, "{project}");
        assert!(role.disallowed_tools.contains(&"WebFetch".to_string()), "{role:?}");
        assert_eq!(role.permission_mode, Some(PermissionMode::Default));
        assert_eq!(role.scope, ["src/**"]);
        assert_eq!((role.permissions.ask.len(), role.permissions.deny.len()), (1, 1));
    }
    // The file may be stricter.
    let (role, ignored) = held(
        "",
        user,
        "---\ntools: [\"Bash(git *)\"]\ndisallowedTools: [WebFetch, Edit]\npermissionMode: \
         dontAsk\n\
         scope: [src/**]\npermissions: {ask: [Bash], deny: [Write, Bash]}\n---\n",
    );
    assert_eq!(ignored, Vec::<String>::new());
    assert_eq!(
        (role.disallowed_tools.len(), role.permission_mode),
        (2, Some(PermissionMode::DontAsk))
    );
    let (role, ignored) = held("", "---\ntools: []\n---\n", "---\ntools: [Read]\n---\n");
    assert_eq!((role.tools, ignored.len()), (Some(vec![]), 1));
}

#[test]
fn untrusted_role_stays_in_a_category_that_is_stricter() {
    for config in [
        "categories: {coding: {permissions: {deny: [WebFetch]}}}",
        "categories: {coding: {permissions: {ask: [Bash]}}}",
        "categories: {coding: {permissions: {mode: ask}}}",
        "categories: {research: {permissions: {allow: [Bash]}}}",
        "categories: {coding: {monitors: {drift: stop}}}",
        "categories: {coding: {on_crash: ask}}",
        "categories: {coding: {max_restarts: 0}}",
        "categories: {coding: {api_patience: 1m}}",
        "models: {prices: {m: {input: 1, output: 2}}, default: m, overrides: {research: q}}",
    ] {
        for (user, line) in [("", 2), ("---\ncategory: coding\n---\n", 2)] {
            let (role, ignored) = held(config, user, "---\ncategory: research\n---\n");
            assert_eq!(
                (role.category.as_str(), ignored),
                ("coding", vec![format!("category:{line}")]),
                "{config}"
            );
        }
    }
    let (role, ignored) = held("", "---\ncategory: research\n---\n", "You are.\n");
    assert_eq!(
        (role.category.as_str(), ignored.len()),
        ("coding", 0),
        "as strict as research by default"
    );
    let (role, _) = held("", "", "---\ncategory: research\n---\n");
    assert_eq!(role.category, "research");
    let config = "categories: {research: {permissions: {deny: [Bash]}}}";
    let (role, ignored) = held(config, "---\ncategory: research\n---\n", "You are.\n");
    assert_eq!((role.category.as_str(), ignored), ("research", vec!["category:0".to_string()]));
}

#[test]
fn untrusted_role_cannot_choose_a_model_without_a_price() {
    let config =
        "models: {prices: {m: {input: 1, output: 2}, o: {input: 1, output: 2}}, default: m}";
    let (role, ignored) = held(config, "", "---\nmodel: q\n---\n");
    assert_eq!((role.model, ignored), (None, vec!["model:2".to_string()]));
    let (role, ignored) = held(config, "", "---\nmodel: o\n---\n");
    assert_eq!((role.model.as_deref(), ignored.len()), (Some("o"), 0));
    let (role, ignored) = held("", "---\nmodel: q\n---\n", "---\nmodel: p\n---\n");
    assert_eq!((role.model.as_deref(), ignored.len()), (Some("p"), 0));
}

#[test]
fn untrusted_scope_stays_in_the_directory() {
    let (role, ignored) = held("", "", "---\nscope: [src/**, //etc/**]\n---\n");
    assert_eq!((role.scope.len(), ignored), (0, vec!["scope:2".to_string()]));
    let (role, ignored) = held("", "", "---\nscope: [src/**]\n---\n");
    assert_eq!((role.scope.len(), ignored.len()), (1, 0));
}

#[test]
fn untrusted_role_is_held_by_a_trusted_one_that_it_hides() {
    let config = Config::defaults().unwrap();
    let trusted = RoleSource {
        trust: Trust::Trusted,
        ..source(RoleLayer::ClaudeAgents, "---\nname: a\ntools: Read\n---\nYou look.\n")
    };
    let sources = [trusted, source(RoleLayer::Project, "You are.\n")];
    let found = Catalog::new(&sources).in_force("a", &config, &sources).unwrap();
    assert_eq!(
        (found.role.layer, found.role.tools),
        (RoleLayer::Project, Some(vec!["Read".to_string()]))
    );
}

#[test]
fn untrusted_role_over_a_faulty_one_of_the_user_is_refused() {
    let config = Config::defaults().unwrap();
    let sources =
        [source(RoleLayer::User, "---\nfoo: 1\n---\n"), source(RoleLayer::Project, "You are.\n")];
    let Err(RoleError::Invalid(error)) = Catalog::new(&sources).in_force("a", &config, &sources)
    else {
        panic!("what the user's own role forbids is not known")
    };
    assert_eq!(error.file.as_deref(), Some("user/a.md"));
}

const RULES: [&str; 9] = [
    "Bash",
    "Bash(git *)",
    "Bash(rm *)",
    "Read",
    "Read(src/**)",
    "Edit",
    "WebFetch",
    "mcp__docs",
    "*",
];

fn rules() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::collection::vec(proptest::sample::select(&RULES[..]), 0..3)
}

fn permissions() -> impl Strategy<Value = Value> {
    let mode = proptest::option::of(proptest::sample::select(&["allow", "ask", "deny"][..]));
    (mode, rules(), rules(), rules()).prop_map(
        |(mode, allow, ask, deny)| json!({"mode": mode, "allow": allow, "ask": ask, "deny": deny}),
    )
}

fn role() -> impl Strategy<Value = String> {
    let modes = &["default", "acceptEdits", "plan", "dontAsk", "auto", "bypassPermissions"][..];
    let category = proptest::option::of(proptest::sample::select(
        &["coding", "research", "conversational", "mine"][..],
    ));
    let mode = proptest::option::of(proptest::sample::select(modes));
    (category, mode, proptest::option::of(rules()), rules(), permissions()).prop_map(
        |(category, mode, tools, disallowed, permissions)| {
            let front = json!({"category": category, "permissionMode": mode, "tools": tools,
                "disallowedTools": disallowed, "permissions": permissions});
            format!("---\n{front}\n---\nYou are.\n")
        },
    )
}

fn config() -> impl Strategy<Value = String> {
    let category = || {
        let usd = proptest::option::of(1..9_u32);
        let responses = proptest::sample::select(&["ignore", "note", "warn", "stop"][..]);
        let on_crash = proptest::sample::select(&["resume", "ask"][..]);
        (usd, responses, on_crash, permissions()).prop_map(|(usd, drift, on_crash, permissions)| {
            json!({
                "budget_usd": usd, "monitors": {"drift": drift}, "on_crash": on_crash,
                "permissions": permissions
            })
        })
    };
    (permissions(), category(), category(), category()).prop_map(
        |(permissions, coding, research, mine)| {
            let categories = json!({"coding": coding, "research": research, "mine": mine});
            json!({"permissions": permissions, "categories": categories}).to_string()
        },
    )
}

/// Returns the policy as a dispatch of the role gets it.
fn policy(role: &Role, config: &Config) -> Policy {
    let category = config.category(&role.category).unwrap();
    let mut policy =
        Policy::of(&[&role.permissions, &category.permissions, &config.permissions], Mode::Allow);
    policy.restrict(role.tools.as_deref(), &role.disallowed_tools, role.permission_mode);
    policy
}

fn asks() -> Vec<Ask> {
    let mut asks: Vec<_> = ["git status", "rm -rf x", "make", "git status && rm x"]
        .iter()
        .map(|command| Ask::tool("Bash", json!({"command": command})))
        .collect();
    for tool in ["Read", "Grep", "Edit", "Write"] {
        for path in ["src/a.rs", "/etc/passwd"] {
            asks.push(Ask::tool(tool, json!({"file_path": path})));
        }
    }
    asks.push(Ask::tool("WebFetch", json!({"url": "https://example.com/"})));
    asks.push(Ask::tool("WebSearch", json!({})));
    asks.push(Ask::tool("mcp__docs__find", json!({})));
    asks.push(Ask { kind: AskKind::Question, ..Ask::tool("AskUserQuestion", json!({})) });
    asks
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn untrusted_role_allows_nothing_that_was_not_allowed(
        config in config(),
        user in proptest::option::of(role()),
        project in role(),
    ) {
        let config = load(&[Source::new(Layer::User, "config.yaml", config)], &[]).unwrap();
        let own = source(RoleLayer::User, user.as_deref().unwrap_or("You are.\n"));
        let before = Catalog::new(std::slice::from_ref(&own)).resolve("a").unwrap().clone();
        let sources: Vec<_> = user
            .is_some()
            .then_some(own)
            .into_iter()
            .chain([source(RoleLayer::Project, &project)])
            .collect();
        let role = Catalog::new(&sources).in_force("a", &config, &sources).unwrap().role;
        let rank = |role: &Role, ask: &Ask| match policy(role, &config)
            .decide(ask, "/repo")
            .map(|said| said.verdict)
        {
            Some(Verdict::Allow) => 2,
            None => 1,
            Some(_) => 0,
        };
        for ask in asks() {
            prop_assert!(rank(&role, &ask) <= rank(&before, &ask), "{ask:?}\n{before:?}\n{role:?}");
        }
        let [one, than] = [&role, &before].map(|role| config.category(&role.category).unwrap());
        prop_assert!(one.budget_usd.unwrap_or(1e9) <= than.budget_usd.unwrap_or(1e9));
        prop_assert!(one.monitors.drift >= than.monitors.drift);
        prop_assert!(one.on_crash == OnCrash::Ask || than.on_crash == OnCrash::Resume);
    }
}
