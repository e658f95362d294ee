//! MCP servers that work and some that do not, with each of the real agents. They are configured
//! where the agent's user configures them.

#![allow(clippy::unwrap_used)]

use muleteer_tests::acp::Agent;
use muleteer_tests::cli::MCP_SERVER;
use muleteer_tests::model_server::Step;
use muleteer_tests::{Repo, Scene, World, codex};
use serde_json::json;

fn mcp_server(world: &World, repo: &Repo) -> (String, Vec<String>) {
    let script = world.path().join("mcp.sh");
    std::fs::write(&script, MCP_SERVER).unwrap();
    let effects = repo.path.join("effects").display().to_string();
    ("/bin/sh".into(), vec![script.display().to_string(), effects])
}

#[test]
fn claude_calls_an_mcp_server_and_reports_broken_ones() {
    let test = "claude_calls_an_mcp_server_and_reports_broken_ones";
    let steps = [Step::tool("mcp__sup__ping", json!({})), Step::success("ponged")];
    let Some(scene) = Scene::claude(test, steps) else { return };
    let (command, args) = mcp_server(&scene.world, &scene.repo);
    let file = scene.world.path().join("mcp.json");
    let broken = json!({"command": "/no/such/program", "args": []});
    let crashes = json!({"command": "/bin/sh", "args": ["-c", "exit 3"]});
    let servers = json!({"mcpServers": {"sup": {"command": command, "args": args}, "gone": broken,
        "dies": crashes}});
    std::fs::write(&file, servers.to_string()).unwrap();
    let file = file.display();
    scene.world.configure(&format!(
        "backends:\n  claude_code:\n    args: [--strict-mcp-config, --mcp-config, {file}]\n"
    ));
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    let id = run.stdout.trim();
    assert_eq!(scene.repo.effects("effects"), ["pinged"]);
    let notices: Vec<_> =
        scene.world.events_of(id, "agent_notice").iter().map(|e| e["text"].to_string()).collect();
    for server in ["gone", "dies"] {
        assert!(notices.iter().any(|text| text.contains(server)), "{server}: {notices:?}");
    }
    assert!(!notices.iter().any(|text| text.contains("`sup`")), "{notices:?}");
    let journal = scene.world.muleteer(&["journal", id]).ok();
    assert!(
        journal.contains("MCP server `gone`") || journal.contains("MCP server gone"),
        "{journal}"
    );
    scene.world.finish(Some(daemon));
}

#[test]
fn codex_calls_an_mcp_server_and_works_without_a_broken_one() {
    let test = "codex_calls_an_mcp_server_and_works_without_a_broken_one";
    let steps = [Step::tool("mcp__sup__ping", json!({})), Step::success("done").times(2)];
    let Some(scene) = Scene::codex(test, steps) else { return };
    configure_codex(&scene);
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    let id = run.stdout.trim();
    assert_eq!(scene.repo.effects("effects"), ["pinged"]);
    let called = scene.world.events_of(id, "tool_called");
    assert!(called.iter().any(|event| event["tool"].to_string().contains("ping")), "{called:?}");
    let notices: Vec<_> =
        scene.world.events_of(id, "agent_notice").iter().map(|e| e["text"].to_string()).collect();
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("MCP server `gone` does not work"), "{notices:?}");
    let journal = scene.world.muleteer(&["journal", id]).ok();
    assert!(
        journal.contains("MCP server `gone`") || journal.contains("MCP server gone"),
        "{journal}"
    );
    scene.world.finish(Some(daemon));
}

fn configure_codex(scene: &Scene) {
    let (command, args) = mcp_server(&scene.world, &scene.repo);
    let file = codex::home(&scene.world).join("config.toml");
    let mut configuration = std::fs::read_to_string(&file).unwrap();
    configuration += &format!("\n[mcp_servers.sup]\ncommand = {command:?}\nargs = {args:?}\n");
    configuration += "\n[mcp_servers.gone]\ncommand = \"/no/such/program\"\n";
    std::fs::write(&file, configuration).unwrap();
}

/// An ACP agent does not report a broken server, and works without it.
fn acp_calls_one(test: &str, agent: Agent) {
    let steps = [Step::tool("mcp__sup__ping", json!({})), Step::success("ponged").times(2)];
    let Some(scene) = Scene::acp(test, agent, steps) else { return };
    if agent == Agent::Codex {
        configure_codex(&scene);
    } else {
        let (command, args) = mcp_server(&scene.world, &scene.repo);
        let broken = json!({"type": "stdio", "command": "/no/such/program", "args": []});
        let sup = json!({"type": "stdio", "command": command, "args": args});
        let configuration = json!({"mcpServers": {"sup": sup, "gone": broken}});
        std::fs::write(scene.world.home().join(".claude.json"), configuration.to_string()).unwrap();
    }
    let daemon = scene.world.daemon();
    let run = scene.spawn(&["--wait"]).run();
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(scene.repo.effects("effects"), ["pinged"]);
    let called = scene.world.events_of(run.stdout.trim(), "tool_called");
    assert!(
        called.iter().any(|event| event["tool"] == "mcp__sup__ping"),
        "as rules name it: {called:?}"
    );
    scene.world.finish(Some(daemon));
}

#[test]
fn acp_claude_calls_an_mcp_server_and_works_without_a_broken_one() {
    acp_calls_one("acp_claude_calls_an_mcp_server_and_works_without_a_broken_one", Agent::Claude);
}

#[test]
fn acp_codex_calls_an_mcp_server_and_works_without_a_broken_one() {
    acp_calls_one("acp_codex_calls_an_mcp_server_and_works_without_a_broken_one", Agent::Codex);
}
