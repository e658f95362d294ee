use crate::config::trust::*;
use crate::config::{Config, Source, load, schema};
use std::collections::BTreeSet;

fn of(user: &str, project: &str, trust: Trust) -> Config {
    let sources = [
        Source::new(Layer::User, "/home/ann/config.yaml", user),
        Source::new(Layer::Project, "/shop/.muleteer/config.yaml", project).trusted(trust),
    ];
    load(&sources, &[]).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn ignored(user: &str, project: &str) -> Vec<String> {
    of(user, project, Trust::Untrusted).ignored().iter().map(|one| one.key.clone()).collect()
}

/// Collects the paths of all keys of the schema, with `*` for any name.
fn keys(schema: &Value, node: &Value, path: &str, all: &mut BTreeSet<String>) {
    let below =
        |part: &str| if path.is_empty() { part.to_string() } else { format!("{path}.{part}") };
    let target =
        node["$ref"].as_str().map(|name| &schema["$defs"][name.trim_start_matches("#/$defs/")]);
    let node = target.unwrap_or(node);
    let mut leaf = true;
    for (name, node) in node["properties"].as_object().into_iter().flatten() {
        leaf = false;
        keys(schema, node, &below(name), all);
    }
    if node["additionalProperties"].is_object() {
        leaf = false;
        keys(schema, &node["additionalProperties"], &below("*"), all);
    }
    for one in node["anyOf"].as_array().into_iter().flatten().filter(|one| one["$ref"].is_string())
    {
        keys(schema, one, path, all);
    }
    if leaf {
        all.insert(path.to_string());
    }
}

#[test]
fn every_key_of_the_schema_is_classified() {
    let schema = schema();
    let mut all = BTreeSet::new();
    keys(&schema, &schema, "", &mut all);
    assert!(
        all.len() > 60 && all.contains("backends.codex.command") && all.contains("sandbox.write"),
        "{all:?}"
    );
    let fits = |pattern: &str, key: &str| {
        let (pattern, key): (Vec<_>, Vec<_>) =
            (pattern.split('.').collect(), key.split('.').collect());
        pattern.len() <= key.len()
            && pattern.iter().zip(&key).all(|(want, part)| *want == "*" || want == part)
    };
    let missing: Vec<_> =
        all.iter().filter(|key| !KEYS.iter().any(|(pattern, _)| fits(pattern, key))).collect();
    assert!(missing.is_empty(), "config/trust.rs classifies none of {missing:?}");
    let gone: Vec<_> =
        KEYS.iter().filter(|(pattern, _)| !all.iter().any(|key| fits(pattern, key))).collect();
    assert!(gone.is_empty(), "config/trust.rs classifies what the schema does not have: {gone:?}");
}

#[test]
fn unknown_key_is_treated_as_a_program_setting() {
    assert_eq!((effect(&["hooks", "stop"]), effect(&["backends"])), (Runs, Runs));
    assert_eq!(effect(&["backends", "codex", "env", "PATH"]), Runs);
    assert_eq!(effect(&["backends", "acp", "agent"]), Safe);
}

/// The user's configuration, the project's, and the project's key that is ignored.
const LOOSENED: &[(&str, &str, &str)] = &[
    ("", "backends: {codex: {command: ./codex}}", "backends.codex.command"),
    ("", "backends: {claude-code: {command: [./a, b]}}", "backends.claude_code.command"),
    (
        "backends: {codex: {command: mine}}",
        "backends: {codex: {command: null}}",
        "backends.codex.command",
    ),
    ("", "backends: {acp: {args: [--yolo]}}", "backends.acp.args"),
    ("", "backends: {codex: {env: {LD_PRELOAD: /x.so}}}", "backends.codex.env.LD_PRELOAD"),
    ("", "run: {agent: {command: ./agent}}", "run.agent.command"),
    ("", "run: {beads: {store: tbd, command: ./tbd}}", "run.beads.command"),
    ("", "sandbox: off", "sandbox"),
    ("", "sandbox: {write: [/]}", "sandbox.write"),
    ("sandbox: on", "sandbox: {show: [~/.ssh]}", "sandbox.show"),
    ("", "sandbox: {home: shared}", "sandbox.home"),
    ("", "env: {pass: [AWS_*]}", "env.pass"),
    ("permissions: {mode: ask}", "permissions: {mode: allow}", "permissions.mode"),
    ("permissions: {mode: deny}", "permissions: {mode: ask}", "permissions.mode"),
    ("permissions: {mode: deny}", "permissions: {mode: null}", "permissions.mode"),
    ("", "permissions: {allow: [Bash]}", "permissions.allow"),
    ("permissions: {deny: [Bash]}", "permissions: {deny: []}", "permissions.deny"),
    ("permissions: {ask: [Bash]}", "permissions: {ask: []}", "permissions.ask"),
    (
        "permissions: {mode: deny}",
        "categories: {coding: {permissions: {mode: ask}}}",
        "categories.coding.permissions.mode",
    ),
    ("", "categories: {mine: {permissions: {allow: [Bash]}}}", "categories.mine.permissions.allow"),
    ("", "categories: {coding: {budget_usd: null}}", "categories.coding.budget_usd"),
    ("", "categories: {mine: {maxTurns: 101}}", "categories.mine.max_turns"),
    (
        "",
        "categories: {coding: {inactivity_timeout: 301s}}",
        "categories.coding.inactivity_timeout",
    ),
    (
        "",
        "categories: {research: {monitors: {spiral: ignore}}}",
        "categories.research.monitors.spiral",
    ),
    (
        "models: {prices: {m: {input: 9}}}",
        "models: {prices: {m: {cache_read: 0}}}",
        "models.prices.m.cache_read",
    ),
    ("", "models: {default: m, prices: {m: {input: 0}}}", "models.prices.m.input"),
    ("models: {prices: {m: {input: 9}}, default: m}", "models: {default: q}", "models.default"),
    ("models: {prices: {m: {input: 9}}, default: m}", "models: {default: null}", "models.default"),
    (
        "models: {prices: {m: {input: 9}}, default: m}",
        "models: {overrides: {coding: q}}",
        "models.overrides.coding",
    ),
    (
        "models: {prices: {m: {input: 9}}, default: m}",
        "run: {phases: {judge: {model: q}}}",
        "run.phases.judge.model",
    ),
    (
        "models: {prices: {m: {input: 9}}, overrides: {coding: m}}",
        "run: {acceptance: {model: q}}",
        "run.acceptance.model",
    ),
    (
        "models: {prices: {m: {input: 9}}}\nrun: {acceptance: {model: m}}",
        "run: {acceptance: {model: null}}",
        "run.acceptance.model",
    ),
    ("", "run: {spec: /etc/passwd}", "run.spec"),
    ("", "run: {spec: ../notes.md}", "run.spec"),
    ("", "run: {spec: docs/../../notes.md}", "run.spec"),
    ("", "run: {acceptance: {path: /etc}}", "run.acceptance.path"),
    ("", "run: {acceptance: {path: criteria/..}}", "run.acceptance.path"),
    ("run: {acceptance: {path: mine}}", "run: {acceptance: {path: theirs}}", "run.acceptance.path"),
    ("run: {acceptance: {path: mine}}", "run: {acceptance: {path: null}}", "run.acceptance.path"),
    ("", "run: {acceptance: {generate: false}}", "run.acceptance.generate"),
    ("", "run: {phases: {judge: {enabled: false}}}", "run.phases.judge.enabled"),
    ("", "run: {phases: {judge: {spec_drift: false}}}", "run.phases.judge.spec_drift"),
    ("", "run: {phases: {judge: {acceptance: false}}}", "run.phases.judge.acceptance"),
    ("run: {review_spec: true}", "run: {review_spec: false}", "run.review_spec"),
    ("", "run: {target_branch: main}", "run.target_branch"),
    ("run: {target_branch: next}", "run: {target_branch: main}", "run.target_branch"),
    ("", "run: {worktree: {strategy: shared}}", "run.worktree.strategy"),
    ("projects: {shop: /shop}", "projects: {shop: {path: /elsewhere}}", "projects.shop.path"),
    (
        "run: {phases: {decompose: {human_review: true}}}",
        "run: {phases: {decompose: {human_review: false}}}",
        "run.phases.decompose.human_review",
    ),
    ("", "adapters: {x: {program: ./x}}", "adapters.x.program"),
    ("", "telemetry: {endpoint: 'http://evil.example:4318'}", "telemetry.endpoint"),
];

#[test]
fn untrusted_repository_runs_and_loosens_nothing() {
    for (user, project, key) in LOOSENED.iter().copied() {
        assert_eq!(ignored(user, project), [key], "{user} / {project}");
        let without = of(user, "", Trust::Untrusted).to_json();
        let with = of(user, project, Trust::Untrusted).to_json();
        let of_key =
            |config: &Value| key.split('.').fold(config.clone(), |at, part| at[part].clone());
        // New categories and projects are added; ignored values are unchanged.
        if !key.contains("mine") {
            assert_eq!(of_key(&with), of_key(&without), "{user} / {project}");
        }
        assert!(of(user, project, Trust::Trusted).ignored().is_empty(), "{project}");
    }
}

#[test]
fn untrusted_repository_may_tighten() {
    for (user, project) in [
        (
            "",
            "categories: {coding: {budget_usd: 1, max_turns: 5, inactivity_timeout: 2m, timeout: \
             1h}}",
        ),
        ("", "categories: {mine: {max_restarts: 0, on_crash: ask, monitors: {drift: stop}}}"),
        ("", "permissions: {mode: ask, allow: [], deny: ['Bash(rm *)']}"),
        (
            "permissions: {mode: ask, allow: [Read, Grep]}",
            "permissions: {mode: deny, allow: [Read]}",
        ),
        ("permissions: {deny: [Bash]}", "permissions: {deny: [WebFetch, Bash]}"),
        ("permissions: {mode: ask}", "categories: {coding: {permissions: {mode: deny}}}"),
        ("env: {pass: [A, B]}", "env: {pass: [B]}"),
        ("sandbox: {write: [/a]}", "sandbox: on"),
        ("sandbox: off", "sandbox: {write: []}"),
        ("sandbox: off", "sandbox: {}"),
        ("sandbox: {home: shared}", "sandbox: {home: private}"),
        ("", "sandbox: {write: [], show: []}"),
        ("", "pool: {max_depth: 1, max_agents: 900}"),
        ("", "models: {default: opus, overrides: {coding: haiku}}"),
        ("models: {prices: {m: {input: 1}, q: {input: 2}}, default: m}", "models: {default: q}"),
        ("", "projects: {web: ../web}"),
        ("", "run: {spec: plan.md, phases: {maintain: {n: 2}, judge: {on_complete: none}}}"),
        (
            "run: {target_branch: main, worktree: {strategy: shared}}",
            "run: {target_branch: auto, worktree: {strategy: per-agent}}",
        ),
        ("run: {phases: {judge: {enabled: false}}}", "run: {phases: {judge: {enabled: true}}}"),
        ("", "run: {spec: ./docs/plan.md, acceptance: {path: docs/criteria}}"),
        ("backends: {codex: {command: mine}}", "backends: {codex: {command: mine, env: {}}}"),
        ("", "backend: codex\nbackends: {acp: {agent: codex-acp, call_timeout: 1m}}"),
        (
            "models: {prices: {m: {input: 9}, q: {input: 1}}, default: m}",
            "run: {phases: {judge: {model: q}}, acceptance: {model: q}}",
        ),
        ("", "run: {phases: {judge: {model: q}}, acceptance: {model: q}}"),
    ] {
        assert_eq!(ignored(user, project), Vec::<String>::new(), "{user} / {project}");
        let [untrusted, trusted] =
            [Trust::Untrusted, Trust::Trusted].map(|trust| of(user, project, trust).to_json());
        assert_eq!(untrusted, trusted, "{user} / {project}");
    }
}

#[test]
fn untrusted_deny_rules_are_added_to_the_users() {
    let config = of(
        "permissions: {deny: [Bash]}\ncategories: {coding: {permissions: {deny: [Write]}}}",
        "permissions: {deny: [WebFetch]}\ncategories: {coding: {permissions: {deny: [Edit, \
         Write]}}}",
        Trust::Untrusted,
    );
    let json = config.to_json();
    assert_eq!(json["permissions"]["deny"], serde_json::json!(["Bash", "WebFetch"]));
    assert_eq!(
        json["categories"]["coding"]["permissions"]["deny"],
        serde_json::json!(["Edit", "Write"])
    );
    // In a trusted repository, the list would replace the user's.
    let [one] = config.ignored() else { panic!("{:?}", config.ignored()) };
    assert_eq!(
        (one.key.as_str(), &one.value),
        ("permissions.deny", &serde_json::json!(["WebFetch"]))
    );
    assert!(one.to_string().contains("`permissions.deny` removes no rule"), "{one}");
}

#[test]
fn trust_that_runs_nothing_lets_the_rest_count() {
    let project = "sandbox: off\nbackends:\n  codex: {command: ./codex}\n";
    let config = of("", project, Trust::RunsNothing);
    let [one] = config.ignored() else { panic!("{:?}", config.ignored()) };
    assert_eq!(
        (one.key.as_str(), one.effect, one.line),
        ("backends.codex.command", "runs", Some(3))
    );
    assert_eq!(config.sandbox.exceptions(), None);
    assert_eq!(
        one.to_string(),
        "/shop/.muleteer/config.yaml:3: `backends.codex.command` is ignored: you have not trusted \
         the configuration of this repository"
    );
}

#[test]
fn stronger_layers_override_an_untrusted_repository() {
    let sources = [
        Source::new(Layer::Project, "p", "sandbox: off"),
        Source::new(Layer::File, "ci.yaml", "backends: {codex: {command: ./mine}}"),
    ];
    let config = load(&sources, &[("MULETEER_CONFIG__ENV__PASS".into(), "[A]".into())]).unwrap();
    assert!(config.backends.codex.command.is_some() && config.env.pass == ["A"]);
    assert_eq!(
        config.ignored().iter().map(|one| one.key.as_str()).collect::<Vec<_>>(),
        ["sandbox"]
    );
}
