//! Configurations that people write, and the errors for faulty ones.

use crate::config::*;
use crate::monitor::Response;
use serde_json::json;
use std::time::{Duration, Instant};

fn user(text: &str) -> Source {
    Source::new(Layer::User, "/home/ann/.config/muleteer/config.yaml", text)
}

fn project(text: &str) -> Source {
    Source::new(Layer::Project, "/work/shop/.muleteer/config.yaml", text).trusted(Trust::Trusted)
}

fn ok(sources: &[Source]) -> Config {
    load(sources, &[]).unwrap_or_else(|errors| panic!("{}", shown(&errors)))
}

fn shown(errors: &[ConfigError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n\n")
}

fn fails(text: &str) -> Vec<ConfigError> {
    load(&[user(text)], &[]).expect_err(text)
}

fn vars(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect()
}

#[test]
fn the_defaults_are_the_references() {
    let config = Config::defaults().unwrap_or_else(|errors| panic!("{}", shown(&errors)));
    for (name, silence, budget, turns) in [
        ("coding", 300, Some(10.0), Some(100)),
        ("conversational", 180, None, None),
        ("research", 420, Some(10.0), Some(100)),
    ] {
        let limits = config.category(name).unwrap().limits();
        assert_eq!(
            (limits.inactivity_timeout_s, limits.budget_usd, limits.max_turns),
            (silence, budget, turns),
            "{name}"
        );
    }
    assert_eq!(
        (config.pool.max_agents, config.pool.max_depth, config.backend),
        (8, 3, BackendChoice::Auto)
    );
    assert_eq!(config.run.agent.timeout_per_bead.as_secs(), 900);
}

/// Otherwise Rust's `Default`, usually zero, would reach a user.
#[test]
fn every_key_has_its_value_in_the_default_file() {
    fn leaves(value: &Value, path: &str, out: &mut Vec<String>) {
        match value {
            Value::Object(map) if !map.is_empty() => {
                map.iter().for_each(|(key, value)| leaves(value, &format!("{path}.{key}"), out));
            }
            _ => out.push(path.trim_start_matches('.').to_string()),
        }
    }
    let config = Config::defaults().unwrap();
    let mut keys = vec![];
    leaves(&config.to_json(), "", &mut keys);
    for key in keys {
        assert!(config.origin(&key).is_some(), "{key} is not in default.yaml");
    }
    assert!(
        config
            .origins()
            .iter()
            .all(|origin| origin.layer == Layer::Default && origin.line.is_some())
    );
}

#[test]
fn links_are_followed_only_in_trusted_configuration() {
    let text = "run: {spec: plan.md, acceptance: {path: criteria}}";
    let untrusted = || project(text).trusted(Trust::Untrusted);
    let flag = || vec![Source::flag("run.spec", "x.md"), Source::flag("run.acceptance.path", "x")];
    let sources = [
        (vec![], false),
        (vec![user(text)], false),
        (vec![untrusted()], false),
        (vec![project(text)], true),
        (vec![Source::new(Layer::File, "extra.yaml", text)], true),
        ([vec![untrusted()], flag()].concat(), true),
    ];
    for (sources, wanted) in sources {
        let config = load(&sources, &[]).unwrap();
        for key in ["run.spec", "run.acceptance.path"] {
            assert_eq!(config.follows_links(key), wanted, "{key}: {sources:?}");
        }
    }
}

#[test]
fn layers_merge_by_key_and_every_value_knows_its_line() {
    let config = load(
        &[
            project("pool: {max_agents: 2}\ncategories:\n  coding:\n    inactivityTimeout: 15m\n"),
            user(
                "pool:\n  maxAgents: 4\n  max_depth: 1\ncategories:\n  coding: {budget_usd: null}\
                 \n",
            ),
            Source::new(Layer::File, "extra.yaml", "env: {pass: [CI]}\n"),
            Source::flag("pool.max_agents", "7"),
        ],
        &vars(&[
            ("MULETEER_CONFIG__POOL__MAX_AGENTS", "3"),
            ("MULETEER_CONFIG__MODELS__DEFAULT", "opus"),
            ("PATH", "/bin"),
        ]),
    )
    .unwrap();
    let coding = config.category("coding").unwrap();
    assert_eq!(
        (coding.inactivity_timeout.as_secs(), coding.budget_usd, coding.max_turns),
        (900, None, Some(100))
    );
    assert_eq!((config.pool.max_agents, config.pool.max_depth), (7, 1));

    let from = |key: &str| {
        let origin = config.origin(key).unwrap();
        (origin.layer, origin.file.as_deref(), origin.line, origin.column)
    };
    let (ann, shop) =
        (Some("/home/ann/.config/muleteer/config.yaml"), Some("/work/shop/.muleteer/config.yaml"));
    assert_eq!(from("pool.max_agents"), (Layer::Flag, Some("flag pool.max_agents"), None, None));
    assert_eq!(from("pool.max_depth"), (Layer::User, ann, Some(3), Some(14)));
    assert_eq!(
        from("categories.coding.inactivity_timeout"),
        (Layer::Project, shop, Some(4), Some(24))
    );
    assert_eq!(from("categories.coding.budget_usd"), (Layer::User, ann, Some(5), Some(24)));
    assert_eq!(from("env.pass"), (Layer::File, Some("extra.yaml"), Some(1), Some(13)));
    assert_eq!(
        from("models.default"),
        (Layer::Env, Some("MULETEER_CONFIG__MODELS__DEFAULT"), None, None)
    );
    assert_eq!(from("categories.coding.max_turns").0, Layer::Default);
    assert_eq!(config.origin("categories.coding.inactivity_timeout").unwrap().value, json!("15m"));
    assert_eq!(config.to_json()["categories"]["coding"]["inactivity_timeout"], json!(900));
}

/// Lists are merged as decoded, not as written: an item that was decoded as text stays text.
#[test]
fn a_number_among_texts_is_a_text() {
    let text = "env: {pass: [A, 3]}\nbackends:\
                \n  subprocess: {command: [sh, 8080], args: [--port, 8080]}\n";
    let config = ok(&[user(text)]);
    assert_eq!(config.env.pass, ["A", "3"]);
    assert_eq!(config.backends.subprocess.args, ["--port", "8080"]);
    assert_eq!(
        config.backends.subprocess.command,
        Some(Command::Argv(vec!["sh".into(), "8080".into()]))
    );
    assert_eq!(config.origin("env.pass").unwrap().value, json!(["A", "3"]));
    let vars = vars(&[("MULETEER_CONFIG__ENV__PASS", "[1, B]")]);
    assert_eq!(load(&[], &vars).unwrap().env.pass, ["1", "B"]);
}

#[test]
fn wrong_value_names_the_expected_one() {
    for (text, said) in [
        ("pool: {max_depth: 4294967296}\n", "expected a number from 0 to 100, not 4294967296"),
        ("pool: {max_agents: four}\n", "`pool.max_agents`: expected a number from 1 to 1000"),
        ("pool: {max_agents: 0}\n", "`pool.max_agents`: expected a number from 1 to 1000"),
        ("backend: cluade-code\n", "`cluade-code` is not one of `auto`, "),
        ("pool: {max_depth: -1}\n", "expected a number from 0 to 100, not -1"),
        ("backend: null\n", "`backend`: expected one of `auto`, "),
        ("backend: [codex]\n", ", not a list"),
        ("env: {pass: [[A]]}\n", "`env.pass[0]`: expected text, not a list"),
    ] {
        let told = shown(&fails(text));
        assert!(told.contains(said) && told.contains("config.yaml:1:"), "{text}: {told}");
    }
}

#[test]
fn variables_reach_every_key() {
    let config = load(
        &[],
        &vars(&[
            ("MULETEER_CONFIG__ENV__PASS", "[A, B]"),
            ("MULETEER_CONFIG__BACKENDS__CLAUDE_CODE__ENV__NO_COLOR", "1"),
            ("MULETEER_CONFIG__BACKENDS__SUBPROCESS__COMMAND", "[python3, agent.py]"),
            ("MULETEER_CONFIG__PROJECTS__SHOP", "/work/shop"),
            ("MULETEER_CONFIG__CATEGORIES__CODING__INACTIVITY_TIMEOUT", "1h30m"),
        ]),
    )
    .unwrap();
    assert_eq!(config.env.pass, ["A", "B"]);
    assert_eq!(config.backends.claude_code.env["NO_COLOR"], "1");
    assert_eq!(
        config.backends.subprocess.command,
        Some(Command::Argv(vec!["python3".into(), "agent.py".into()]))
    );
    assert_eq!(config.project_path("shop", None), Some("/work/shop".into()));
    assert_eq!(config.category("coding").unwrap().inactivity_timeout.as_secs(), 5400);

    let errors = load(&[], &vars(&[("MULETEER_CONFIG__POOL__MAX_AGENT", "4")])).unwrap_err();
    insta::assert_snapshot!("a_wrong_variable", shown(&errors));
}

#[test]
fn a_category_of_ones_own_has_codings_limits() {
    let config = ok(&[user("categories:\n  ops: {max_turns: 5}\n  docs:\n")]);
    let ops = config.category("ops").unwrap();
    assert_eq!(
        (ops.max_turns, ops.budget_usd, ops.inactivity_timeout.as_secs()),
        (Some(5), Some(10.0), 300)
    );
    assert_eq!(config.category("docs").unwrap(), config.category("coding").unwrap());
    let config =
        ok(&[user("categories:\n  ops: {monitors: {drift: ignore}}\n  docs: {monitors: {}}\n")]);
    let (ops, docs) =
        (config.category("ops").unwrap().monitors, config.category("docs").unwrap().monitors);
    assert_eq!(
        (ops.loops, ops.drift, docs),
        (Response::Warn, Response::Ignore, config.category("coding").unwrap().monitors)
    );
    let unknown = config.category("codng").unwrap_err();
    assert_eq!(
        (unknown.to_string(), unknown.hint),
        ("no category `codng`".into(), "did you mean `coding`?".into())
    );
}

/// A monitor may be wrong about a healthy agent, so only the user may enable termination.
#[test]
fn monitors_without_configuration_stop_no_agent() {
    let config = Config::defaults().unwrap();
    for name in ["coding", "conversational", "research"] {
        let monitors = config.category(name).unwrap().monitors;
        assert_eq!((monitors.loops, monitors.spiral), (Response::Warn, Response::Warn), "{name}");
        assert_eq!((monitors.drift, monitors.budget), (Response::Warn, Response::Warn), "{name}");
    }
}

#[test]
fn a_project_is_a_path_or_a_mapping() {
    let layers = [
        user("projects:\n  shop: ~/shop\n  tools: src/tools\n  My-App: {path: /srv/app}\n"),
        project("projects: {web: ../web, shop: {path: here}}\n"),
    ];
    let config = ok(&layers);
    let path = |name: &str| {
        config.project_path(name, Some(Path::new("/home/ann"))).unwrap().display().to_string()
    };
    assert_eq!(path("My-App"), "/srv/app");
    assert_eq!(path("tools"), "/home/ann/.config/muleteer/src/tools");
    assert_eq!(path("web"), "/work/shop/../web");
    assert_eq!(path("shop"), "/work/shop/here");
    assert_eq!(
        ok(&layers[..1]).project_path("shop", Some(Path::new("/home/ann"))),
        Some("/home/ann/shop".into())
    );
}

#[test]
fn spellings_of_the_references_are_read() {
    let config = ok(&[user(
        "backend: claude_code\nbackends: {claude-code: {command: /opt/claude}}\n\
         run: {agent: {maxConcurrency: 2, timeoutPerBead: 60}, phases: {judge: {on_complete: \
         none}}}\n\
         pool:\nadapters: {slack: {botName: Mule}, web: {}}\
         \ntelemetry: {endpoint: 'http://localhost:4318'}\n",
    )]);
    assert_eq!(config.backend, BackendChoice::ClaudeCode);
    assert_eq!(config.backends.claude_code.command, Some(Command::Text("/opt/claude".into())));
    assert_eq!(config.run.phases.judge.on_complete, OnComplete::None);
    assert_eq!(config.pool.max_agents, 8, "an empty section changes nothing");
    assert_eq!(config.adapters["slack"], json!({"botName": "Mule"}));
    assert_eq!(config.adapters["web"], json!({}));
    assert_eq!(config.telemetry.endpoint.as_deref(), Some("http://localhost:4318"));
    assert_eq!(config.retention.output_bytes(), 64 << 20);
}

#[test]
fn the_most_specific_model_wins() {
    let config = ok(&[user("models:\n  default: base\n  overrides: {coding: strong}\n")]);
    let model = |flag, role, category| {
        let (model, source) = resolve_model(flag, role, category, &config);
        format!("{} ({})", model.unwrap_or_default(), source.as_str())
    };
    assert_eq!(model(Some("mine"), Some("its"), "coding"), "mine (flag)");
    assert_eq!(model(None, Some("its"), "coding"), "its (role)");
    assert_eq!(model(None, None, "coding"), "strong (category)");
    assert_eq!(model(None, None, "research"), "base (default)");
    assert_eq!(
        resolve_model(None, None, "coding", &Config::defaults().unwrap()),
        (None, ModelSource::Default)
    );
}

#[test]
fn a_model_has_a_name() {
    for name in ["haiku", "claude-opus-4-6[1m]", "openrouter/some model:free"] {
        assert!(is_model_name(name), "{name}");
    }
    for name in ["", "  ", "a\nb", &"x".repeat(201)] {
        assert!(!is_model_name(name), "{name:?}");
    }
}

#[test]
fn error_has_a_place_and_a_hint() {
    let text = "\
pool:
  max_agnets: 4
  max_depth: four
categories:
  coding:
    inactivity_timeout: 5 minutes
    budget_usd: -1
    result: maybe
backend: claud-code
projects:
  shop: {pth: /x}
env:
  pass: [A, [B]]
models:
  default: 3.5
";
    insta::assert_snapshot!("every_fault_of_a_file", shown(&fails(text)));
    insta::assert_snapshot!(
        "a_value_out_of_range",
        shown(&fails(
            "pool: {max_agents: 0}\nmodels: {overrides: {codng: x}}\
             \ntelemetry: {endpoint: collector}\nretention: {output_mib: 257}\n"
        ))
    );
    let text = "\
models:
  prices:
    free: {input: 0, output: 0}
    paid: {input: 1.5, output: -2, cache_read: -0.1}
projects: {a: '', b: {path: ' '}}
backends:
  claude-code:
    env: {'A=B': x, C: 'y'}
";
    insta::assert_snapshot!("values_that_cannot_be_meant", shown(&fails(text)));
}

#[test]
fn a_star_in_a_name_is_its_ending() {
    for name in ["A*B", "*_TOKEN", "A**"] {
        let faults = fails(&format!("env:\n  pass: [CI, '{name}']\n"));
        let message = format!("`env.pass`: `{name}`: `*` may only be the last character");
        assert_eq!((faults.len(), &faults[0].message, faults[0].line), (1, &message, Some(2)));
    }
    let text = "env: {pass: ['AWS_*', '*', CI]}\n";
    assert!(load(&[Source::new(Layer::File, "extra.yaml", text)], &[]).is_ok());
}

#[test]
fn broken_yaml_is_located() {
    for (name, text) in [
        ("unclosed", "pool: {max_agents: 4\n"),
        ("tab", "pool:\n\tmax_agents: 4\n"),
        ("twice", "pool: {max_agents: 4}\npool: {max_agents: 5}\n"),
        ("no_mapping", "- a\n- b\n"),
        ("two_documents", "pool: {max_agents: 4}\n---\npool: {max_agents: 5}\n"),
        ("two_spellings", "pool: {max_agents: 4, maxAgents: 5}\n"),
    ] {
        insta::assert_snapshot!(format!("broken_{name}"), shown(&fails(text)));
    }
}

#[test]
fn empty_file_sets_nothing() {
    for text in ["", "\n", "# pool: {max_agents: 1}\n", "---\n", "{}\n", "~\n"] {
        assert_eq!(ok(&[user(text)]).to_json(), Config::defaults().unwrap().to_json(), "{text:?}");
    }
}

#[test]
fn a_file_from_another_editor_is_read() {
    let config = ok(&[user("\u{feff}pool:\r\n  max_agents: 2\r\n")]);
    let origin = config.origin("pool.max_agents").unwrap();
    assert_eq!((config.pool.max_agents, origin.line, origin.column), (2, Some(2), Some(15)));
}

/// Positions are those of an editor, which does not count a lone carriage return as a line end.
#[test]
fn lines_are_counted_as_the_file_has_them() {
    let errors = fails("# a\r\r\rb\npool:\r\r\n  max_agents: 0\r\n");
    assert_eq!((errors[0].line, errors[0].column), (Some(3), Some(15)), "{}", shown(&errors));
}

#[test]
fn an_alias_bomb_is_refused_at_once() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let before = format!("*a{}, ", level - 1).repeat(10);
        bomb.push_str(&format!("a{level}: &a{level} [{}]\n", before.trim_end_matches(", ")));
    }
    // Usually a tenth of a second; without the budget it would not end.
    let began = Instant::now();
    let errors = fails(&bomb);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(errors[0].message.contains("not valid YAML"), "{}", shown(&errors));
}

#[test]
fn huge_and_deep_files_are_refused_at_once() {
    let began = Instant::now();
    let long =
        format!("projects:\n{}", (0..200_000).map(|n| format!("  p{n}: /p\n")).collect::<String>());
    assert!(shown(&fails(&long)).contains("the limit is"), "too long");
    let many = format!(
        "projects: {{{}}}\n",
        (0..20_000).map(|n| format!("p{n}: /p, ")).collect::<String>()
    );
    assert!(shown(&fails(&many)).contains("not valid YAML"), "too many");
    let some = format!(
        "projects: {{{}}}\n",
        (0..8_000).map(|n| format!("p{n}: /p, ")).collect::<String>()
    );
    assert_eq!(ok(&[user(&some)]).projects.len(), 8_000, "a long list is a long list");
    let deep = format!("adapters: {}{}\n", "[".repeat(5_000), "]".repeat(5_000));
    assert!(shown(&fails(&deep)).contains("not valid YAML"), "too deep");
    let wide = format!("backend: {}\n", "x".repeat(500_000));
    assert!(shown(&fails(&wide)).len() < 2_000, "an error is short whatever the file holds");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn aliases_and_merge_keys_work_in_measure() {
    let config = ok(&[user(
        "categories:\n  a: &a {max_turns: 5, budget_usd: 1}\n  b: {<<: *a, max_turns: 6}\n  c: *a\
         \n",
    )]);
    let b = config.category("b").unwrap();
    assert_eq!((b.max_turns, b.budget_usd), (Some(6), Some(1.0)));
    assert_eq!(config.category("c").unwrap().max_turns, Some(5));
}

#[test]
fn the_generated_schema_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/schema.json");
    let mut now = serde_json::to_string_pretty(&schema()).unwrap();
    now.push('\n');
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(path, &now).unwrap();
    }
    let checked_in = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        checked_in == now,
        "run `UPDATE_SCHEMA=1 cargo test -p muleteer-model schema` and commit config/schema.json"
    );
}

proptest::proptest! {
    /// No text causes a panic, and no error is without a message.
    #[test]
    fn no_text_panics(
        text in "([a-z_]{1,8}|[:\\-{}\\[\\],&*!|>'\"#%@`~ \n\t]|pool|max_agents|[0-9.]{1,4}|null)\
                 {0,40}"
    ) {
        if let Err(errors) = load(&[user(&text)], &[]) {
            proptest::prop_assert!(!errors.is_empty()
                && errors.iter().all(|error| !error.message.is_empty()));
        }
    }
}
