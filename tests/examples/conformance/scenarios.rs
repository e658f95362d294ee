//! The scenarios. Each plays one situation, and answers one or several probes.

use crate::report::{Outcome, Report};
use muleteer_tests::cli::{Cli, MCP_SERVER};
use muleteer_tests::model_server::{ModelServer, Step};
use muleteer_tests::play::Play;
use muleteer_tests::{Daemon, Scene, processes, wait_until};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use xtask::agents::Agents;

/// The time limit for one state. The slowest agent opens a session in 22 s on a loaded machine.
const LONG: Duration = Duration::from_secs(100);
/// The first prompt of every scenario ([`Scene::spawn`]).
const FIRST: &str = "Write hello.txt";
const WAITS: &str =
    "echo up >> effects; while [ ! -e go ]; do sleep 0.05; done; echo late >> effects";

/// A situation with the probes that it answers.
pub struct Scenario {
    pub name: &'static str,
    pub probes: &'static [&'static str],
    pub run: fn(&Context, &mut Report),
}

pub static SCENARIOS: [Scenario; 11] = [
    Scenario {
        name: "work",
        probes: &["prompt", "edit", "commit", "tokens", "cost", "follow-up"],
        run: work,
    },
    Scenario { name: "interrupt", probes: &["interrupt", "late tool"], run: interrupt },
    Scenario { name: "daemon killed", probes: &["daemon killed in a tool"], run: daemon_killed },
    Scenario { name: "agent killed", probes: &["agent killed and resumed"], run: agent_killed },
    Scenario { name: "ask", probes: &["ask", "deny", "answer"], run: ask },
    Scenario { name: "model", probes: &["model change"], run: model },
    Scenario { name: "wrong key", probes: &["wrong key"], run: wrong_key },
    Scenario { name: "rate limit", probes: &["429 that ends", "429 without end"], run: rate_limit },
    Scenario { name: "hang", probes: &["hang"], run: hang },
    Scenario { name: "loop", probes: &["loop"], run: circle },
    Scenario { name: "mcp", probes: &["MCP"], run: mcp },
];

pub struct Context {
    pub cli: Cli,
    pub agents: Agents,
}

impl Context {
    fn scene(&self, server: ModelServer) -> Scene {
        Scene::conformance(self.cli, &self.agents, server)
    }
}

/// Waits until the dispatch has ended for the `nth` time, and returns its entry.
fn ended(scene: &Scene, id: &str, nth: usize) -> Value {
    ended_within(LONG, scene, id, nth)
}

fn ended_within(limit: Duration, scene: &Scene, id: &str, nth: usize) -> Value {
    let begun = Instant::now();
    while scene.world.events_of(id, "dispatch_finished").len() < nth {
        if begun.elapsed() > limit {
            tell(scene, id);
            panic!("it did not end within {limit:?}: {}", scene.world.dispatch(id));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    scene.world.dispatch(id)
}

fn in_state(scene: &Scene, id: &str, states: &[&str]) -> Value {
    wait_until(&format!("{id} to be {states:?}"), LONG, || {
        let entry = scene.world.dispatch(id);
        states.iter().any(|state| entry["state"] == *state).then_some(entry)
    })
}

/// Waits until the scripted tool has written its first line.
fn tool_runs(scene: &Scene) {
    wait_until("the tool to run", LONG, || {
        (!scene.repo.effects("effects").is_empty()).then_some(())
    });
}

/// Ends a scenario.
fn end(scene: Scene, daemon: Daemon, id: &str, report: &Report) {
    if report.failed() {
        tell(&scene, id);
    }
    scene.world.finish(Some(daemon));
}

/// Prints what a person would look at.
fn tell(scene: &Scene, id: &str) {
    const LINES: usize = 60;
    for command in [&["journal", id][..], &["logs", id, "--raw"], &["logs", id, "-v"]] {
        let output = scene.world.muleteer(command).run();
        let lines: Vec<&str> = output.stdout.lines().collect();
        eprintln!("--- muleteer {}", command.join(" "));
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            eprintln!("{}", line.chars().take(2000).collect::<String>());
        }
    }
    for request in scene.server.main_requests() {
        eprintln!("--- asked {} {}", request.path, request.body);
    }
}

fn go(scene: &Scene) {
    std::fs::write(scene.repo.path.join("go"), "").expect("the file that ends the tool");
}

fn ends_in_success(entry: &Value, summary: &str) -> bool {
    entry["state"] == "success" && entry["result"]["summary"] == summary
}

/// Plays any scenario of an agent that no new dispatch may name.
pub fn refused(context: &Context, instead: &str, report: &mut Report) {
    let scene = context.scene(Play::new().start());
    let daemon = scene.world.daemon();
    let run = scene.spawn(&[]).run();
    let hint = format!("use `--backend {instead}`");
    assert!(run.code != Some(0) && run.stderr.contains(&hint), "it was not refused: {run:?}");
    report.refused();
    scene.world.finish(Some(daemon));
}

fn work(context: &Context, report: &mut Report) {
    let first = [
        Step::bash("echo hello > hello.txt").and_text("I write the file."),
        Step::bash("git add hello.txt && git commit --quiet -m 'Add hello' && echo committed"),
        Step::success("hello.txt is there"),
    ];
    let second = [Step::bash("echo two >> effects"), Step::success("two")];
    let play = Play::new().on(FIRST, first).on("And now two", second);
    let scene = context.scene(play.start());
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene, &id, 1);
    report.holds("prompt", ends_in_success(&entry, "hello.txt is there"), &entry);
    let called = scene.world.events_of(&id, "tool_called");
    let commands = called.iter().filter(|call| call["tool"] == "Bash").count();
    let written = scene.repo.path.join("hello.txt").exists();
    report.holds("edit", written && commands == 2, json!({"calls": called}));
    let commits = scene.repo.git(&["rev-list", "--count", "HEAD"]);
    report.holds("commit", commits == "2", format!("{commits} commits"));
    let features = context.cli.capabilities().features();
    // Three requests of 100 and 20 tokens.
    let tokens = [&entry["tokens"]["input"], &entry["tokens"]["output"]].map(Value::as_u64);
    let whole = tokens[0] >= Some(300) && tokens[1] >= Some(60);
    told(report, "tokens", features.tells_tokens, whole, &entry["tokens"]);
    let costs = entry["cost_usd"].as_f64() > Some(0.0);
    // The provider of the script has no prices, so an agent that reports a cost reports zero.
    let priced = matches!(context.cli, Cli::ClaudeCode | Cli::ClaudeAcp);
    told(report, "cost", features.tells_cost && priced, costs, &entry["cost_usd"]);

    let session = entry["session_id"].clone();
    scene.world.muleteer(&["send", &id, "And now two"]).ok();
    let entry = ended(&scene, &id, 2);
    let called = scene.world.events_of(&id, "tool_called");
    let called = called.iter().filter(|call| call["tool"] == "Bash").count();
    let once = scene.repo.effects("effects") == ["two"] && called == 3;
    let same = entry["session_id"] == session;
    report.holds(
        "follow-up",
        once && same && ends_in_success(&entry, "two"),
        format!("{called} commands, the session was {session}: {entry}"),
    );
    end(scene, daemon, &id, report);
}

/// Records a figure that the agent reports, if the capability table says that it reports it.
fn told(report: &mut Report, probe: &'static str, tells: bool, holds: bool, found: &Value) {
    if tells || holds {
        report.holds(probe, holds, found);
    } else {
        report.record(probe, Outcome::Absent);
    }
}

fn interrupt(context: &Context, report: &mut Report) {
    let play = Play::new()
        .on(FIRST, [Step::bash(WAITS), Step::success("not interrupted")])
        .on("Leave it then", [Step::success("left")]);
    let scene = context.scene(play.start());
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    tool_runs(&scene);
    wait_until("the turn to be known", LONG, || {
        (scene.world.dispatch(&id)["turns"] == 1).then_some(())
    });
    scene.world.muleteer(&["interrupt", &id]).ok();
    // An agent with a process for each turn has ended.
    let session = in_state(&scene, &id, &["waiting", "partial"])["session_id"].clone();
    // The command is gone before the state says so; if it were not, it would end here.
    go(&scene);
    let left = || {
        let all = scene.world.processes();
        all.into_iter().filter(|one| one.command.contains("echo late")).count()
    };
    wait_until("the command's end", LONG, || (left() == 0).then_some(()));
    let effects = scene.repo.effects("effects");
    report.holds("late tool", effects == ["up"], format!("{effects:?}"));
    let before = scene.world.events_of(&id, "dispatch_finished").len();
    scene.world.muleteer(&["send", &id, "Leave it then"]).ok();
    let entry = ended(&scene, &id, before + 1);
    report.holds(
        "interrupt",
        ends_in_success(&entry, "left") && entry["session_id"] == session,
        &entry,
    );
    end(scene, daemon, &id, report);
}

fn daemon_killed(context: &Context, report: &mut Report) {
    let play = Play::new().on(FIRST, [Step::bash(WAITS), Step::success("went on")]);
    let scene = context.scene(play.start());
    let mut daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    tool_runs(&scene);
    daemon.kill_9();
    let daemon = scene.world.daemon();
    let adopted = in_state(&scene, &id, &["running"]);
    go(&scene);
    let entry = ended(&scene, &id, 1);
    let effects = scene.repo.effects("effects");
    let once = effects == ["up", "late"] && adopted["attempts"] == 1 && entry["attempts"] == 1;
    report.holds(
        "daemon killed in a tool",
        once && ends_in_success(&entry, "went on"),
        format!("{effects:?}: {entry}"),
    );
    end(scene, daemon, &id, report);
}

fn agent_killed(context: &Context, report: &mut Report) {
    let killed = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&killed);
    let server = ModelServer::playing(move |_| {
        if seen.load(Ordering::Acquire) { Step::success("went on") } else { Step::bash(WAITS) }
    });
    let scene = context.scene(server);
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    tool_runs(&scene);
    let session = wait_until("a session", LONG, || {
        let entry = scene.world.dispatch(&id);
        (entry["session_id"].is_string() && entry["turns"] == 1)
            .then(|| entry["session_id"].clone())
    });
    killed.store(true, Ordering::Release);
    let all = scene.world.processes();
    scene.world.kill_9(processes::shims(&all).first().expect("a shim").pid);
    let entry = ended(&scene, &id, 1);
    let effects = scene.repo.effects("effects");
    let knows = scene
        .server
        .main_requests()
        .last()
        .is_some_and(|request| request.body.to_string().contains(FIRST));
    let resumed = entry["session_id"] == session && knows && effects.len() == 1;
    report.holds(
        "agent killed and resumed",
        resumed && ends_in_success(&entry, "went on"),
        format!("{effects:?}, the session was {session}: {entry}"),
    );
    end(scene, daemon, &id, report);
}

fn ask(context: &Context, report: &mut Report) {
    let touch = |file: &str| match context.cli {
        // Codex asks if its model says that the sandbox would prevent the action.
        Cli::CodexAcp => Step::tool(
            "exec_command",
            json!({"cmd": format!("touch {file}"), "sandbox_permissions": "require_escalated",
                "justification": "it writes a file"}),
        ),
        _ => Step::bash(&format!("touch {file}")),
    };
    let play = Play::new()
        .on(FIRST, [touch("one"), touch("two"), Step::success("as told")])
        .on("The other one, then", [touch("two"), Step::success("as told")]);
    let scene = context.scene(play.start());
    scene.world.configure("permissions:\n  mode: ask\n");
    let daemon = scene.world.daemon();
    let run = scene.spawn(&[]).run();
    if !context.cli.capabilities().asks() {
        let refused = run.code != Some(0) && !run.stderr.is_empty();
        assert!(refused, "it never asks, and was started: {run:?}");
        report.refused();
        return scene.world.finish(Some(daemon));
    }
    let id = run.expect_code(0).stdout.trim().to_string();
    let open = |entry: &Value| entry["waiting_for"].as_array().cloned().unwrap_or_default();
    let asked = || in_state(&scene, &id, &["waiting", "success", "partial", "failed"]);
    let answer = |entry: &Value, text: &str| {
        let ask = open(entry)[0]["request_id"].as_str().expect("a request").to_string();
        let answered = || scene.world.events_of(&id, "permission_answered").len();
        let before = answered();
        scene.world.muleteer(&["answer", &id, text, "--request", &ask]).ok();
        wait_until("the answer", LONG, || (answered() > before).then_some(()));
    };
    let has = |file: &str| scene.repo.path.join(file).exists();
    let entry = asked();
    let says = open(&entry).len() == 1 && entry["waiting_for"].to_string().contains("touch one");
    report.holds("ask", says && !has("one"), &entry);
    answer(&entry, "deny");
    let mut entry = asked();
    report.holds("deny", !has("one"), &entry);
    if open(&entry).is_empty() {
        // Some take a denial as an order to stop; a further message makes them continue.
        scene.world.muleteer(&["send", &id, "The other one, then"]).ok();
        entry = wait_until("the second question", LONG, || {
            let entry = scene.world.dispatch(&id);
            (!open(&entry).is_empty()).then_some(entry)
        });
    }
    answer(&entry, "allow");
    let entry = in_state(&scene, &id, &["success", "partial", "failed"]);
    let as_told = entry["state"] == "success" && has("two") && !has("one");
    report.holds("answer", as_told, &entry);
    end(scene, daemon, &id, report);
}

fn model(context: &Context, report: &mut Report) {
    let play = Play::new()
        .on(FIRST, [Step::bash(WAITS), Step::success("one")])
        .on("And two", [Step::success("two")]);
    let scene = context.scene(play.start());
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    tool_runs(&scene);
    let [model, asked_for] = context.cli.other_model();
    let changed = scene.world.muleteer(&["model", &id, model]).run();
    if !context.cli.capabilities().changes_model {
        assert!(changed.code != Some(0), "the table says that it cannot: {changed:?}");
        report.refused();
        go(&scene);
        ended(&scene, &id, 1);
        return scene.world.finish(Some(daemon));
    }
    changed.expect_code(0);
    go(&scene);
    ended(&scene, &id, 1);
    scene.world.muleteer(&["send", &id, "And two"]).ok();
    let entry = ended(&scene, &id, 2);
    // Codex offers its newer models their tools in a form that the scripted one does not know.
    let requests = scene.server.requests();
    let second: Vec<String> = requests
        .iter()
        .filter(|request| request.body.to_string().contains("And two"))
        .map(|request| format!("{} {}", request.path, request.body["model"]))
        .collect();
    let took = second.iter().any(|asked| asked.contains(asked_for));
    let shown = entry["model"].as_str().is_some_and(|shown| shown.contains(asked_for));
    report.holds("model change", took && shown, format!("asked {second:?}: {entry}"));
    end(scene, daemon, &id, report);
}

fn wrong_key(context: &Context, report: &mut Report) {
    let scene = context.scene(ModelServer::playing(|_| Step::status(401)));
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene, &id, 1);
    let said = entry["reason"].as_str().unwrap_or_default().contains("refused the key");
    let once = entry["state"] == "failed" && entry["attempts"] == 1;
    report.holds("wrong key", said && once, &entry);
    end(scene, daemon, &id, report);
}

fn rate_limit(context: &Context, report: &mut Report) {
    let refused = Arc::new(AtomicUsize::new(0));
    let server = ModelServer::playing(move |_| {
        let so_far = refused.fetch_add(1, Ordering::AcqRel);
        if so_far < 3 { Step::status(429) } else { Step::success("after the limit") }
    });
    let scene = context.scene(server);
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene, &id, 1);
    let counted = scene.world.events_of(&id, "attempt_finished");
    let counted = counted.iter().filter(|event| event["counted"] == true).count();
    report.holds(
        "429 that ends",
        counted == 0 && ends_in_success(&entry, "after the limit"),
        format!("{counted} failures counted: {entry}"),
    );
    end(scene, daemon, &id, report);

    let scene = context.scene(ModelServer::playing(|_| Step::status(429)));
    scene.world.configure("categories:\n  coding:\n    api_patience: 10s\n");
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    // gemini repeats a call for four minutes before it reports it, in each of its two processes.
    let entry = ended_within(6 * LONG, &scene, &id, 1);
    let said = entry["reason"].as_str().unwrap_or_default().contains("rate limited");
    report.holds("429 without end", said && entry["state"] == "failed", &entry);
    end(scene, daemon, &id, report);
}

fn hang(context: &Context, report: &mut Report) {
    let silence = Step::hang(Duration::from_secs(3600));
    let scene = context.scene(ModelServer::start([silence]));
    scene.world.configure("categories:\n  coding:\n    inactivity_timeout: 12s\n");
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene, &id, 1);
    // An agent that prints nothing before the model's first answer shows no sign of life.
    let reason = entry["reason"].as_str().unwrap_or_default();
    let said = reason.contains("did not answer") || reason.contains("no sign of life");
    report.holds("hang", said && entry["state"] == "stalled", &entry);
    end(scene, daemon, &id, report);
}

fn circle(context: &Context, report: &mut Report) {
    let scene = context.scene(ModelServer::playing(|_| Step::bash("ls no-such-folder && date")));
    scene.world.configure("categories:\n  coding:\n    monitors: {loop: stop}\n");
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene, &id, 1);
    let spoke = scene.world.events_of(&id, "monitor_spoke");
    let stopped = spoke.iter().any(|event| event["monitor"] == "loop" && event["action"] == "stop");
    // Gemini has a monitor of its own, which may be faster.
    let by_itself = entry["state"] == "partial";
    report.holds("loop", by_itself || (stopped && entry["state"] == "stalled"), &entry);
    end(scene, daemon, &id, report);
}

fn mcp(context: &Context, report: &mut Report) {
    // No model is as fast as a script, and some agents connect to their servers meanwhile.
    let ping = Step::tool("mcp__sup__ping", json!({})).pre_delay(Duration::from_secs(2));
    let play = Play::new().on(FIRST, [ping, Step::success("ponged")]);
    let scene = context.scene(play.start());
    if !context.cli.capabilities().mcp {
        report.absent();
        return;
    }
    let script = scene.world.path().join("mcp.sh");
    std::fs::write(&script, MCP_SERVER).expect("the server's script");
    let args =
        [script.display().to_string(), scene.repo.path.join("effects").display().to_string()];
    context.cli.add_mcp_server(&scene.world, &scene.repo, ("/bin/sh", &args));
    let daemon = scene.world.daemon();
    let id = scene.spawn(&[]).ok();
    let entry = ended(&scene, &id, 1);
    let called = scene.world.events_of(&id, "tool_called");
    let pinged = scene.repo.effects("effects") == ["pinged"];
    let named = called.iter().any(|call| {
        call["tool"].as_str().is_some_and(|tool| tool.contains("sup") && tool.ends_with("ping"))
    });
    report.holds(
        "MCP",
        pinged && named && ends_in_success(&entry, "ponged"),
        format!("{called:?}: {entry}"),
    );
    end(scene, daemon, &id, report);
}
