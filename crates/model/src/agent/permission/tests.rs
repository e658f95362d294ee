use crate::agent::permission::pattern::wild;
use crate::agent::permission::*;
use serde_json::{Value, json};

fn rules(texts: &[&str]) -> Vec<Rule> {
    texts.iter().map(|text| Rule::try_from((*text).to_string()).unwrap()).collect()
}

fn policy(mode: Mode, allow: &[&str], ask: &[&str], deny: &[&str]) -> Policy {
    Policy { mode, allow: rules(allow), ask: rules(ask), deny: rules(deny), ..Policy::default() }
}

fn bash(command: &str) -> Ask {
    Ask::tool("Bash", json!({ "command": command }))
}

fn file(tool: &str, path: &str) -> Ask {
    Ask::tool(tool, json!({"file_path": path, "content": "x"}))
}

/// Returns whether a rule alone allows the request (in mode `ask`), and denies it (in mode
/// `allow`).
fn word(rule: &str, ask: &Ask) -> (bool, bool) {
    let says = |policy: Policy, verdict| {
        policy.decide(ask, "/repo").is_some_and(|said| said.verdict == verdict)
    };
    (
        says(policy(Mode::Ask, &[rule], &[], &[]), Verdict::Allow),
        says(policy(Mode::Allow, &[], &[], &[rule]), Verdict::Deny),
    )
}

#[test]
fn commands() {
    let both = (true, true);
    let neither = (false, false);
    let only_denied = (false, true);
    for (rule, command, expected) in [
        ("Bash", "anything; at all", both),
        ("Bash(*)", "anything; at all", both),
        ("*", "anything", both),
        ("Read", "cat x", neither),
        ("Bash(git status)", "git status", both),
        ("Bash(git status)", "git status -s", neither),
        ("Bash(git *)", "git status -s", both),
        ("Bash(git:*)", "git status -s", both),
        ("Bash(git *)", "git", both),
        ("Bash(git *)", "gitk", neither),
        ("Bash(* --version)", "cargo --version", both),
        ("Bash(npm run *)", "npm install", neither),
        // Each part must be allowed; one denied part is enough for a denial.
        ("Bash(git *)", "git add . && git commit -m x", both),
        ("Bash(git *)", "git status && rm -rf /", only_denied),
        ("Bash(git *)", "git status\nrm -rf /", only_denied),
        ("Bash(rm *)", "ls; (rm -rf x)", only_denied),
        ("Bash(rm *)", "rm\t-rf build", only_denied),
        ("Bash(git push *)", "git  push origin", only_denied),
        ("Bash(git push *)", "git \\\n push origin", only_denied),
        ("Bash(rm *)", "ls | xargs rm", neither),
        // A command that runs something unseen or writes a file is not allowed by its prefix.
        ("Bash(git *)", "git log $(rm -rf /)", only_denied),
        ("Bash(git *)", "git log `rm -rf /`", only_denied),
        ("Bash(git *)", "git log > /etc/passwd", only_denied),
        ("Bash(git *)", "git log $HOME", only_denied),
        ("Bash(echo *)", "cat <(x)", neither),
        ("Bash(rm *)", "git log $(rm -rf /)", only_denied),
        ("Bash(rm *)", "X=1 sudo rm -rf /", only_denied),
        ("Bash(rm *)", "a --b=c rm", neither),
        ("Bash(rm *)", "for f in *; do { rm x; }; done", only_denied),
        ("Bash(git log > out)", "git log > out", both),
    ] {
        assert_eq!(word(rule, &bash(command)), expected, "{rule} on {command}");
    }
}

#[test]
fn files() {
    let both = (true, true);
    let neither = (false, false);
    for (rule, tool, path, expected) in [
        ("Edit", "Write", "/etc/passwd", both),
        ("Edit", "Read", "/etc/passwd", neither),
        ("Write", "Edit", "/repo/a", neither),
        ("Read", "Grep", "/repo/a", both),
        ("Edit(src/**)", "Write", "/repo/src/a/b.rs", both),
        ("Edit(src/**)", "Edit", "src/a.rs", both),
        ("Edit(./src/**)", "Edit", "/repo/src/a.rs", both),
        ("Edit(/src/**)", "Edit", "/repo/src/a.rs", both),
        ("Edit(src/**)", "Edit", "/repo/src/../Cargo.toml", neither),
        ("Edit(src/**)", "Edit", "/other/src/a.rs", neither),
        ("Edit(src)", "Edit", "/repo/src/a.rs", both),
        ("Read(//etc/**)", "Read", "/etc/passwd", both),
        ("Read(//etc/**)", "Read", "/repo/../etc/passwd", both),
        ("Read(.env)", "Read", "/repo/a/b/.env", both),
        ("Read(*.pem)", "Read", "/repo/keys/a.pem", both),
        ("Read(*.pem)", "Read", "/repo/keys/a.pem.txt", neither),
        ("Edit(**/*.rs)", "Edit", "/repo/a.rs", both),
        ("Edit(src/*.rs)", "Edit", "/repo/src/a/b.rs", neither),
        ("Read(src/**)", "Read", "/../../x", (false, true)),
    ] {
        assert_eq!(word(rule, &file(tool, path)), expected, "{rule} on {tool} {path}");
    }
}

#[test]
fn the_rest() {
    let fetch = |url: &str| Ask::tool("WebFetch", json!({ "url": url }));
    let mcp = |tool: &str| Ask::tool(tool, json!({"x": 1}));
    for (rule, ask, expected) in [
        ("WebFetch(domain:example.com)", fetch("https://example.com/a"), (true, true)),
        ("WebFetch(domain:example.com)", fetch("https://docs.example.com:8080"), (true, true)),
        (
            "WebFetch(domain:example.com)",
            fetch("https://badexample.com/example.com"),
            (false, false),
        ),
        ("WebFetch(domain:example.com)", fetch("https://example.com@evil.org/"), (false, true)),
        ("mcp__sup", mcp("mcp__sup__ping"), (true, true)),
        ("mcp__sup", mcp("mcp__supper__ping"), (false, false)),
        ("mcp__sup__*", mcp("mcp__sup__ping"), (true, true)),
        ("mcp__*", mcp("mcp__sup__ping"), (true, true)),
        ("mcp__sup__ping", mcp("mcp__sup__pong"), (false, false)),
        // Agents that join the names of the server and its tool.
        ("mcp__sup__ping", mcp("sup-ping"), (true, true)),
        ("mcp__sup__ping", mcp("sup_ping"), (true, true)),
        ("mcp__sup__ping", mcp("sup__ping"), (true, true)),
        ("mcp__sup__ping", mcp("mcp_sup_ping"), (true, true)),
        ("mcp__sup", mcp("sup_get_item"), (true, true)),
        ("mcp__sup__*", mcp("sup-ping"), (true, true)),
        ("mcp__my-docs__find", mcp("my-docs-find"), (true, true)),
        ("mcp__my.docs__find", mcp("my_docs_find"), (true, true)),
        ("mcp__sup__ping", mcp("sup_pong"), (false, false)),
        ("mcp__sup", mcp("supper_ping"), (false, false)),
        // The tool may be the agent's own, which such a rule must not allow.
        ("mcp__*", mcp("sup-ping"), (false, true)),
        ("mcp__*", mcp("Bash"), (false, false)),
        ("Task(review*)", Ask::tool("Task", json!({"description": "review it"})), (true, true)),
        // Without a subject there is nothing to judge.
        ("Task(review*)", Ask::tool("Task", Value::Null), (false, true)),
        (
            "Bash(git *)",
            Ask::tool("Bash", json!({"command": "git ".repeat(30_000)})),
            (false, true),
        ),
    ] {
        assert_eq!(word(rule, &ask), expected, "{rule} on {} {}", ask.tool, ask.target);
    }
}

#[test]
fn deny_precedes_ask_precedes_allow_precedes_mode() {
    let says = |policy: &Policy, ask: &Ask| {
        policy.decide(ask, "/repo").map(|said| (said.verdict, said.rule))
    };
    let strict = policy(
        Mode::Ask,
        &["Bash(git *)", "Read"],
        &["Bash(git push *)"],
        &["Bash(git push --force *)"],
    );
    for (command, expected) in [
        ("git log", Some((Verdict::Allow, "Bash(git *)"))),
        ("git push origin", None),
        ("git push --force origin", Some((Verdict::Deny, "Bash(git push --force *)"))),
        ("make", None),
    ] {
        let expected = expected.map(|(verdict, rule)| (verdict, rule.to_string()));
        assert_eq!(says(&strict, &bash(command)), expected, "{command}");
    }
    let open = Policy::default();
    assert!(open.is_open() && !strict.is_open());
    assert_eq!(says(&open, &bash("x")), Some((Verdict::Allow, "mode allow".into())));
    let closed = policy(Mode::Deny, &["Read"], &["WebSearch"], &[]);
    assert_eq!(says(&closed, &bash("x")), Some((Verdict::Deny, "mode deny".into())));
    assert_eq!(says(&closed, &file("Read", "/x")), Some((Verdict::Allow, "Read".into())));
    assert_eq!(says(&closed, &Ask::tool("WebSearch", json!({"query": "x"}))), None);
}

#[test]
fn question_goes_to_a_person_unless_unattended() {
    let question =
        Ask { kind: AskKind::Question, ..Ask::tool("AskUserQuestion", json!({"questions": []})) };
    assert_eq!(Policy::default().decide(&question, "/"), None);
    assert_eq!(policy(Mode::Ask, &["*"], &[], &[]).decide(&question, "/"), None);
    let denied = |policy: Policy| policy.decide(&question, "/").unwrap().verdict == Verdict::Deny;
    assert!(denied(policy(Mode::Deny, &[], &[], &[])));
    assert!(denied(policy(Mode::Allow, &[], &[], &["AskUserQuestion"])));
}

#[test]
fn rules_round_trip() {
    for text in ["Bash", "Bash(git *)", "mcp__a__b", "Read(~/.ssh/**)", "*", "Bash(echo (a))"] {
        let policy: Policy =
            serde_json::from_value(json!({"mode": "ask", "allow": [text]})).unwrap();
        assert_eq!(serde_json::to_value(&policy).unwrap(), json!({"mode": "ask", "allow": [text]}));
    }
    for text in ["", "Bash(", "Bash()", "(x)", "Ba sh(x)", "Bash(x) y", "ä"] {
        assert!(Rule::try_from(text.to_string()).is_err(), "{text}");
    }
    let mut policy = policy(Mode::Allow, &[], &[], &["Read(~/.ssh/**)"]);
    policy.at_home("/home/me/");
    assert_eq!(
        policy.decide(&file("Read", "/home/me/.ssh/id"), "/repo").unwrap().verdict,
        Verdict::Deny
    );
}

#[test]
fn the_rules_of_all_layers_count_and_the_strongest_mode() {
    let layer =
        |mode, deny: &[&str]| Permissions { mode, deny: rules(deny), ..Permissions::default() };
    let role = layer(None, &["Bash(rm *)"]);
    let category = layer(Some(Mode::Ask), &["Bash(rm *)", "WebFetch"]);
    let config = layer(Some(Mode::Deny), &[]);
    let policy = Policy::of(&[&role, &category, &config], Mode::Allow);
    assert_eq!(
        policy,
        Policy { mode: Mode::Ask, deny: rules(&["Bash(rm *)", "WebFetch"]), ..Policy::default() }
    );
    assert_eq!(Policy::of(&[&Permissions::default()], Mode::Ask).mode, Mode::Ask);
}

/// For each pair of policies, and requests on which they differ: the stricter verdict counts.
#[test]
fn stricter_policy_of_parent_and_child_applies() {
    let some = [
        policy(Mode::Allow, &[], &[], &[]),
        policy(Mode::Allow, &["Bash(git *)"], &["Bash(git push *)"], &["Bash(rm *)"]),
        policy(Mode::Ask, &["Bash(git *)", "Read"], &[], &["Bash(rm *)"]),
        policy(Mode::Ask, &["Bash(git push *)"], &["Read(.env)"], &["WebFetch"]),
        policy(Mode::Deny, &["Bash(git *)", "Read(src/**)"], &["Bash(ls)"], &[]),
        policy(Mode::Deny, &["*"], &["Bash(rm *)"], &["Read(.env)"]),
    ];
    let asks = ["git push x", "git status", "ls", "rm x", "make"].map(bash).into_iter();
    let asks = asks.chain([".env", "src/a", "b"].map(|path| file("Read", path)));
    let question = Ask { kind: AskKind::Question, ..Ask::tool("AskUserQuestion", json!({})) };
    let asks: Vec<_> =
        asks.chain([Ask::tool("WebFetch", json!({"url": "https://x"})), question]).collect();
    let rank = |word: Option<Decision>| match word.map(|word| word.verdict) {
        Some(Verdict::Allow) => 2,
        None => 1,
        Some(_) => 0,
    };
    for above in &some {
        for own in &some {
            let mut held = own.clone();
            held.hold_within(above.clone());
            for ask in &asks {
                let words = [own, above, &held].map(|policy| rank(policy.decide(ask, "/repo")));
                assert_eq!(words[2], words[0].min(words[1]), "{ask:?}: {own:?} within {above:?}");
                let given = ask.kind == AskKind::Question || words[1] == 2;
                assert_eq!(held.is_given_above(ask, "/repo"), given, "{ask:?} within {above:?}");
            }
            assert_eq!(
                (held.is_held(), held.is_open()),
                (!above.is_open(), own.is_open() && above.is_open())
            );
            let denies: Vec<_> = held.denies().collect();
            assert!(
                own.deny.iter().chain(&above.deny).all(|rule| denies.contains(&rule)),
                "a CLI is told of all"
            );
            let text = serde_json::to_string(&held).unwrap();
            assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), held, "{text}");
            let mut twice = held.clone();
            twice.hold_within(above.clone());
            assert_eq!(twice, held);
        }
    }
}

/// The restrictions of a role's front matter count beside its permissions, and the stricter one
/// wins.
#[test]
fn role_tools_and_mode_restrict_its_policy() {
    let restricted =
        |base: &Policy, tools: &[&str], disallowed: &[&str], mode: Option<PermissionMode>| {
            let [tools, disallowed] = [tools, disallowed]
                .map(|list| list.iter().map(|tool| (*tool).to_string()).collect::<Vec<_>>());
            let mut policy = base.clone();
            policy.restrict(Some(&tools[..]).filter(|tools| !tools.is_empty()), &disallowed, mode);
            policy
        };
    let rank =
        |policy: &Policy, ask: &Ask| match policy.decide(ask, "/repo").map(|said| said.verdict) {
            Some(Verdict::Allow) => 2,
            None => 1,
            Some(_) => 0,
        };
    let asks =
        || [file("Read", "/repo/a"), file("Write", "/repo/a"), bash("git status"), bash("make")];
    let words = |policy: &Policy| asks().map(|ask| rank(policy, &ask));
    let open = Policy::default();
    let asking = policy(Mode::Ask, &["Bash(git *)"], &[], &[]);
    assert_eq!(words(&restricted(&open, &["Read", "Bash(git *)"], &[], None)), [2, 0, 2, 0]);
    assert_eq!(words(&restricted(&open, &["*"], &["Bash"], None)), [2, 2, 0, 0]);
    assert_eq!(
        words(&restricted(&asking, &["Read", "Bash"], &["Bash(git *)"], None)),
        [1, 0, 0, 1]
    );
    for (mode, expected, stricter) in [
        (PermissionMode::Default, [1, 1, 1, 1], [1, 1, 2, 1]),
        (PermissionMode::AcceptEdits, [1, 2, 1, 1], [1, 1, 2, 1]),
        (PermissionMode::Plan, [2, 0, 0, 0], [1, 0, 0, 0]),
        (PermissionMode::DontAsk, [0, 0, 0, 0], [0, 0, 2, 0]),
        (PermissionMode::BypassPermissions, [2, 2, 2, 2], [1, 1, 2, 1]),
    ] {
        assert_eq!(words(&restricted(&open, &[], &[], Some(mode))), expected, "{mode:?}");
        assert_eq!(
            words(&restricted(&asking, &[], &[], Some(mode))),
            stricter,
            "{mode:?} under a policy that asks"
        );
        assert_eq!(PermissionMode::parse(mode.as_str()), Some(mode));
    }
    let question = Ask { kind: AskKind::Question, ..Ask::tool("AskUserQuestion", json!({})) };
    for mode in [PermissionMode::Plan, PermissionMode::DontAsk] {
        let held = restricted(&open, &["Read"], &[], Some(mode));
        assert_eq!(held.decide(&question, "/"), None, "a person can be asked all the same");
        assert!(!held.is_open());
        let text = serde_json::to_string(&held).unwrap();
        assert_eq!(serde_json::from_str::<Policy>(&text).unwrap(), held, "{text}");
        let mut child = Policy::default();
        child.hold_within(held);
        assert_eq!(rank(&child, &bash("make")), 0, "it holds whom its agent dispatches");
    }
}

#[test]
fn empty_tools_refuse_every_tool() {
    let mut policy = Policy::default();
    policy.restrict(Some(&[]), &[], None);
    let calls =
        [file("Read", "/repo/a"), bash("git status"), Ask::tool("mcp__docs__find", json!({}))];
    for ask in &calls {
        let said = policy.decide(ask, "/repo");
        assert_eq!(said.map(|said| said.verdict), Some(Verdict::Deny), "{ask:?}");
        assert!(
            policy.names_call(ask, "/repo").is_some(),
            "{ask:?}: a call that was not asked for is stopped"
        );
    }
    assert!(policy.has_no_tools() && !policy.is_open() && !policy.is_open_but_for_plan());
    // The restriction survives serialization, an anchored directory, and a child dispatch.
    let text = serde_json::to_string(&policy).unwrap();
    policy = serde_json::from_str(&text).unwrap();
    policy.allow_in("/repo");
    policy.at_home("/home/ann");
    let mut child = Policy::default();
    child.hold_within(policy.clone());
    for policy in [policy, child] {
        assert_eq!(
            policy.decide(&calls[0], "/repo").map(|said| said.verdict),
            Some(Verdict::Deny),
            "{text}"
        );
    }
    let mut every = Policy::default();
    every.restrict(Some(&["*".to_string()]), &[], None);
    assert!(every.is_open() && !every.has_no_tools());
}

#[test]
fn a_pattern_costs_no_more_than_its_length() {
    let pattern = "*a".repeat(500);
    assert!(!wild(&pattern, &"b".repeat(10_000)));
    assert!(
        wild("a*b*c", "axxbyyc")
            && !wild("a*b*c", "axxbyyd")
            && wild("a*", "a")
            && !wild("ab*ba", "aba")
    );
    // The length of a rule and the depth of a path bound the cost of many `**`.
    let deep = "/x".repeat(60);
    assert_eq!(path(&"**/y/".repeat(4), &deep, "/"), Some(false));
}
