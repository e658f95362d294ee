//! Tests `agents`, and that its table in the documentation is the one in the code.

mod support;

use muleteer_model::agent::capability::{AGENTS, Agent};
use serde_json::Value;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use support::{Said, User, said};

const BEGIN: &str =
    "<!-- The test `docs_have_the_table_of_agents` writes this with UPDATE_DOCS=1. -->\n";
const BEGIN_TRIED: &str =
    "<!-- The test `docs_have_the_results_of_the_suite` writes this with UPDATE_DOCS=1. -->\n";
const END: &str = "<!-- End of the generated part. -->\n";

/// The probes of the suite (`tests/examples/conformance`), in the order of its scenarios.
const PROBES: [&str; 20] = [
    "prompt",
    "edit",
    "commit",
    "tokens",
    "cost",
    "follow-up",
    "interrupt",
    "late tool",
    "daemon killed in a tool",
    "agent killed and resumed",
    "ask",
    "deny",
    "answer",
    "model change",
    "wrong key",
    "429 that ends",
    "429 without end",
    "hang",
    "loop",
    "MCP",
];

/// Runs `agents` with only the user's own programs on PATH.
fn agents(user: &User, args: &[&str]) -> Said {
    let args: Vec<_> = ["agents"].iter().chain(args).copied().collect();
    said(user.command(&args).env("PATH", user.path("bin")).output().expect("run"))
}

#[test]
fn agents_json_has_the_capabilities_and_the_path_of_each() {
    let user = User::new();
    let program = user.path("bin").join("gemini");
    user.write("bin/gemini", "#!/bin/sh\n");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("mode");
    let said = agents(&user, &["--json"]);
    assert_eq!(said.code, 0, "{said:?}");
    let document = said.json();
    let all = document["agents"].as_array().expect("agents");
    let names: Vec<_> = all.iter().map(|agent| agent["name"].as_str().expect("name")).collect();
    assert_eq!(names, AGENTS.map(|agent| agent.name));
    let of = |name: &str| all.iter().find(|agent| agent["name"] == name).expect("agent").clone();
    let gemini = of("gemini");
    assert_eq!(gemini["path"], program.to_str().expect("path"));
    assert_eq!(gemini["backend"], "acp:gemini");
    for (name, key, value) in [
        ("claude-code", "asks", true),
        ("claude-code", "tells_cost", true),
        ("codex", "asks", false),
        ("codex", "sandbox", true),
        ("gemini", "exits_at_end_of_input", false),
        ("qwen", "tells_tokens", true),
        ("qwen", "tells_cost", false),
        ("copilot", "changes_model", false),
        ("pi", "asks", false),
        ("cline", "tells_tokens", false),
        ("subprocess", "resumes", false),
        ("rehearsal", "resumes", true),
    ] {
        assert_eq!(of(name)[key], value, "{name} {key}");
    }
    assert_eq!((&of("qwen")["path"], &of("subprocess")["program"]), (&Value::Null, &Value::Null));
    // A script that selects agents by what they can do selects no refused one.
    let by = |backend: &str| all.iter().find(|agent| agent["backend"] == backend).expect("agent");
    let (refused, other) = (by("acp:pi"), by("pi"));
    assert_eq!((&refused["resumes"], &other["resumes"]), (&Value::from(false), &Value::from(true)));
    let why = refused["refused"].as_str().expect("a reason");
    assert!(why.ends_with("use --backend pi") && other["refused"].is_null(), "{why}");
}

#[test]
fn agents_shows_one_agent_by_its_name_or_program() {
    let user = User::new();
    for name in ["pi", "pi-acp", "acp:pi"] {
        let said = agents(&user, &[name]);
        assert!(said.stdout.contains("npm install -g pi-acp"), "{said:?}");
    }
    let said = agents(&user, &["opencode", "--json"]).json();
    let backends: Vec<_> = said["agents"].as_array().into_iter().flatten().collect();
    assert_eq!(backends.len(), 2, "{said}");
    assert_eq!(backends[0]["backend"], "opencode", "the one of that backend comes first");
    let said = agents(&user, &["nobody", "--json"]);
    assert_eq!(
        (said.code, &said.json()["error"]["code"]),
        (2, &Value::from("E_USAGE")),
        "{said:?}"
    );
}

#[test]
fn docs_have_the_table_of_agents() {
    check_page(BEGIN, &tables());
}

#[test]
fn docs_have_the_results_of_the_suite() {
    check_page(BEGIN_TRIED, &tried(&results()));
}

/// A capability of the table is one that the suite found, and the other way round.
#[test]
fn results_of_the_conformance_suite_agree_with_the_table() {
    let results = results();
    for agent in AGENTS.iter().filter(|agent| results.contains_key(agent.backend)) {
        let found = &results[agent.backend]["results"];
        let features = agent.features();
        for (probe, has) in [
            ("ask", features.asks),
            ("agent killed and resumed", features.resumes),
            ("interrupt", features.interrupts),
            ("model change", features.changes_model),
            ("MCP", features.mcp),
            ("tokens", features.tells_tokens),
        ] {
            // A probe that fails is a fault, which the page shows.
            if found[probe] != "no" {
                let holds = found[probe] == "yes";
                assert_eq!(holds, has, "{}, {probe}: {}", agent.backend, found[probe]);
            }
        }
    }
}

/// Compares a generated part of the page, or writes it.
fn check_page(begin: &str, wanted: &str) {
    // Two tests write this page.
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/agents.md");
    let page = std::fs::read_to_string(&path).expect("page");
    let (before, rest) = page.split_once(begin).expect("the generated part begins");
    let (_, after) = rest.split_once(END).expect("the generated part ends");
    let wanted = format!("{before}{begin}\n{wanted}\n{END}{after}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &wanted).expect("write");
    } else {
        assert_eq!(page, wanted, "docs/guides/agents.md is old: run this test with UPDATE_DOCS=1");
    }
}

/// Returns the results of the last accepted run (`cargo xtask agents --update`), by agent.
fn results() -> serde_json::Map<String, Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance.json");
    let text = std::fs::read_to_string(path).expect("tests/conformance.json");
    let document: Value = serde_json::from_str(&text).expect("JSON");
    document["agents"].as_object().expect("agents").clone()
}

fn tried(results: &serde_json::Map<String, Value>) -> String {
    let agents = || AGENTS.iter().filter(|agent| results.contains_key(agent.backend));
    let mut text = String::from("| probe |");
    for agent in agents() {
        let version = results[agent.backend]["version"].as_str().unwrap_or_default();
        let _ = write!(text, " `{}` {version} |", agent.backend);
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(agents().count()));
    for probe in PROBES {
        let _ = write!(text, "| {probe} |");
        for agent in agents() {
            let outcome = results[agent.backend]["results"][probe].as_str().unwrap_or("not tried");
            let _ = write!(text, " {} |", if outcome == "absent" { "–" } else { outcome });
        }
        text.push('\n');
    }
    text
}

fn tables() -> String {
    let heads = AGENTS[0].features().named().map(|(name, _)| name);
    let mut text = format!("| agent | `--backend` | {} |\n", heads.join(" | "));
    let _ = writeln!(text, "|---|---|{}", "---|".repeat(heads.len()));
    for agent in &AGENTS {
        let marks = agent.features().named().map(|(_, has)| if has { "yes" } else { "–" });
        let _ = writeln!(text, "| {} | `{}` | {} |", agent.name, agent.backend, marks.join(" | "));
    }
    text.push_str("\n| agent | program | install | log in |\n|---|---|---|---|\n");
    let code = |text: &str| match text {
        "" => "–".to_string(),
        text => format!("`{text}`"),
    };
    for Agent { name, program, install, login, .. } in &AGENTS {
        let (program, install) = (code(program), code(install));
        let _ = writeln!(text, "| {name} | {program} | {install} | {login} |");
    }
    text
}
