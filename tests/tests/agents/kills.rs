//! The kill campaign of the real agents: it kills daemon, shim or agent at each moment of a
//! prompt's way. Invariants in every cell: the work is done once, the prompt is in the model's
//! conversation once, the model is asked no more often than necessary, and the events have the
//! transcript's answer.
//!
//! | moment | how the test ensures it |
//! |---|---|
//! | before sent | the daemon stops itself after `prompt_sent` is durable |
//! | half written | the agent is stopped and its stdin full, the prompt being longer |
//! | queued | the agent is stopped and the whole prompt in its stdin |
//! | recorded | the model was asked, the prompt is in the transcript, no answer comes |
//! | mid tool | the tool has had its effect and still runs |
//! | unheard | the same, and the shim was stopped before it had read any output of the agent |
//! | after the result | the daemon is stopped, and the spool has the turn's end |
//!
//! `MULETEER_KILL_CELL=codex/queued/shim` picks one.

#![allow(clippy::unwrap_used)]

use muleteer_tests::model_server::{ModelServer, Step};
use muleteer_tests::{Daemon, Repo, World, claude, codex, processes, segments, wait_until};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit of an agent that is killed on a loaded machine, and of its successor.
const LONG: Duration = Duration::from_secs(90);
const TASK: &str = "Write hello.txt";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cli {
    Claude,
    Codex,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    BeforeSent,
    HalfWritten,
    Queued,
    Recorded,
    MidTool,
    Unheard,
    AfterResult,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Daemon,
    Shim,
    Agent,
}

struct Scene {
    cli: Cli,
    world: World,
    repo: Repo,
    server: ModelServer,
}

/// The processes of the one dispatch.
struct Cast {
    shim: u32,
    agent: u32,
}

impl Scene {
    /// Makes a scene. Returns `None` after a report that the test is skipped.
    fn new(cli: Cli, test: &str, steps: impl IntoIterator<Item = Step>) -> Option<Self> {
        let world = World::new();
        let server = ModelServer::start(steps);
        match cli {
            Cli::Claude => claude::link(&world, &claude::binary(test)?),
            Cli::Codex => codex::install(&world, &codex::binary(test)?, &server),
        }
        let repo = world.repo("repo");
        Some(Self { cli, world, repo, server })
    }

    fn spawn(&self, prompt: &str) -> String {
        let mut args = vec!["spawn", "developer", self.repo.to_str()];
        let options = match self.cli {
            Cli::Claude => claude::env_options(&self.server),
            Cli::Codex => codex::env_options(&self.world),
        };
        args.extend(match self.cli {
            Cli::Claude => ["--backend", "claude-code", "--model", "opus"],
            Cli::Codex => ["--backend", "codex", "--model", "gpt-5.5"],
        });
        args.extend(options.iter().map(String::as_str));
        self.world.muleteer(&args).stdin(prompt).deadline(LONG).ok()
    }

    fn cast(&self) -> Cast {
        wait_until("the agent to run", LONG, || {
            let all = self.world.processes();
            let shim = processes::shims(&all).first()?.pid;
            let name = if self.cli == Cli::Claude { "claude" } else { "codex" };
            let is_agent =
                |one: &&processes::Process| one.parent == shim && one.command.contains(name);
            Some(Cast { shim, agent: all.iter().find(is_agent)?.pid })
        })
    }

    fn signal(&self, pid: u32, signal: Signal) {
        processes::signal(self.world.path(), pid, signal);
    }

    fn wait_for_effect(&self) {
        wait_until("the tool to run", LONG, || {
            (!self.repo.effects("effects").is_empty()).then_some(())
        });
        if self.cli == Cli::Claude {
            // The agent writes a call to its transcript a moment after it makes it. If it is killed
            // in between, the transcript has no call.
            wait_until("the call to be recorded", LONG, || {
                files(&self.transcripts())
                    .iter()
                    .any(|file| text(file).contains("\"type\":\"tool_use\""))
                    .then_some(())
            });
        }
    }

    fn transcripts(&self) -> PathBuf {
        match self.cli {
            Cli::Claude => self.world.home().join(".claude/projects"),
            Cli::Codex => codex::home(&self.world).join("sessions"),
        }
    }

    fn wait_for_record(&self) {
        let sign = if self.cli == Cli::Claude { "\"type\":\"user\"" } else { "[muleteer:prompt:" };
        wait_until("the prompt to be recorded", LONG, || {
            let asked = self.server.main_requests().len() == 1;
            let recorded = files(&self.transcripts()).iter().any(|file| text(file).contains(sign));
            (asked && recorded).then_some(())
        });
    }

    fn wait_for_the_spooled_end(&self, id: &str) {
        let sign = if self.cli == Cli::Claude {
            "\"type\":\"result\""
        } else {
            "\"type\":\"turn.completed\""
        };
        let spool = self.world.state().join("agents").join(id);
        wait_until("the turn's end in the spool", LONG, || {
            segments(&spool).iter().any(|file| text(file).contains(sign)).then_some(())
        });
    }

    fn standings(&self, id: &str) -> Vec<Value> {
        self.world
            .events_of(id, "prompt_probed")
            .iter()
            .map(|event| event["standing"].clone())
            .collect()
    }

    fn end(&self, id: &str) -> Value {
        wait_until("the dispatch to end", LONG, || {
            let entry = self.world.dispatch(id);
            let over = ["success", "partial", "failed", "blocked", "killed", "stalled"];
            over.contains(&entry["state"].as_str()?).then_some(entry)
        })
    }
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

fn wait_for_the_stop(pid: u32) {
    wait_until("the daemon to stop itself", LONG, || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')).then_some(())
    });
}

/// Returns how many bytes in its stdin the agent has not read.
fn unread(agent: u32) -> u64 {
    let stdin = std::fs::OpenOptions::new().read(true).open(format!("/proc/{agent}/fd/0"));
    stdin.ok().and_then(|pipe| rustix::io::ioctl_fionread(pipe).ok()).unwrap_or_default()
}

fn steps(moment: Moment, victim: Victim) -> Vec<Step> {
    let effect = || Step::bash("echo up >> effects");
    let waiting = Step::bash("echo up >> effects; while [ ! -e go ]; do sleep 0.05; done");
    let done = Step::success("it is written");
    match (moment, victim) {
        (Moment::Recorded, Victim::Daemon) => vec![effect().held(), done],
        // Nobody receives the first answer.
        (Moment::Recorded, _) => vec![effect().held(), effect(), done],
        (Moment::MidTool | Moment::Unheard | Moment::AfterResult, _) => vec![waiting, done],
        _ => vec![effect(), done],
    }
}

fn cell(cli: Cli, moment: Moment, victim: Victim, test: &str) {
    let Some(scene) = Scene::new(cli, test, steps(moment, victim)) else { return };
    let early = matches!(
        moment,
        Moment::BeforeSent | Moment::HalfWritten | Moment::Queued | Moment::Unheard
    );
    let fault: &[(&str, &str)] =
        if early { &[("MULETEER_FAULT", "link.before_prompt=stop")] } else { &[] };
    let daemon = scene.world.daemon_with(fault);
    let padding =
        if moment == Moment::HalfWritten { "word ".repeat(60_000) } else { String::new() };
    let id = scene.spawn(&format!("{TASK}\n{padding}"));

    if early {
        wait_for_the_stop(daemon.pid());
    }
    let cast = scene.cast();
    reach(&scene, moment, &daemon, &cast, &id);
    let daemon = strike(&scene, moment, victim, &cast, daemon);

    scene.server.release();
    scene.repo.write("go", "");
    let entry = scene.end(&id);
    assert_eq!(
        (&entry["state"], &entry["result"]["summary"]),
        (&json!("success"), &json!("it is written")),
        "{entry}"
    );
    assert_eq!(scene.repo.effects("effects"), ["up"], "the work is done once");
    check_requests(&scene, steps(moment, victim).len());
    let wanted: &[&str] = match (victim, moment) {
        (Victim::Daemon, _) | (_, Moment::AfterResult) => &[],
        (_, Moment::BeforeSent | Moment::HalfWritten | Moment::Queued) => &["not_taken"],
        (_, Moment::Recorded) => &["unanswered"],
        (_, Moment::MidTool | Moment::Unheard) => &["mid_tool"],
    };
    assert_eq!(scene.standings(&id), wanted, "the transcript's word");
    // Each answer of the model costs the same. If nobody received an answer, its cost is unknown.
    // Codex records the use of an answer when its tools are done, so before that its cost is
    // unknown too.
    let unknown = match moment {
        Moment::Recorded => true,
        Moment::MidTool | Moment::Unheard => cli == Cli::Codex,
        _ => false,
    };
    let unanswered = usize::from(unknown && victim != Victim::Daemon);
    let answers = (steps(moment, victim).len() - unanswered) as u64;
    let used = (&entry["tokens"]["input"], &entry["tokens"]["output"]);
    assert_eq!(used, (&json!(answers * 100), &json!(answers * 20)), "what was used, once: {entry}");
    scene.world.finish(Some(daemon));
}

fn reach(scene: &Scene, moment: Moment, daemon: &Daemon, cast: &Cast, id: &str) {
    match moment {
        Moment::BeforeSent => {}
        Moment::HalfWritten | Moment::Queued | Moment::Unheard => {
            scene.signal(cast.agent, Signal::STOP);
            scene.signal(daemon.pid(), Signal::CONT);
            wait_until("the prompt to come to its stdin", LONG, || {
                (unread(cast.agent) > 0).then_some(())
            });
            if moment == Moment::Unheard {
                scene.signal(cast.shim, Signal::STOP);
                scene.signal(cast.agent, Signal::CONT);
                scene.wait_for_effect();
            }
        }
        Moment::Recorded => scene.wait_for_record(),
        Moment::MidTool => scene.wait_for_effect(),
        Moment::AfterResult => {
            scene.wait_for_effect();
            scene.signal(daemon.pid(), Signal::STOP);
            scene.repo.write("go", "");
            scene.wait_for_the_spooled_end(id);
        }
    }
}

/// Kills the victim, and returns the daemon that lives afterwards.
fn strike(
    scene: &Scene,
    moment: Moment,
    victim: Victim,
    cast: &Cast,
    mut daemon: Daemon,
) -> Daemon {
    match victim {
        Victim::Daemon => {
            daemon.kill_9();
            scene.signal(cast.agent, Signal::CONT);
            scene.signal(cast.shim, Signal::CONT);
            return scene.world.daemon();
        }
        Victim::Shim => scene.world.kill_9(cast.shim),
        Victim::Agent => scene.world.kill_9(cast.agent),
    }
    scene.signal(cast.shim, Signal::CONT);
    if matches!(moment, Moment::BeforeSent | Moment::AfterResult) {
        scene.signal(daemon.pid(), Signal::CONT);
    }
    // The release below must not reach the dead agent.
    wait_until("the agent to be dead", LONG, || (!processes::is_alive(cast.agent)).then_some(()));
    daemon
}

/// Checks the number of requests to the model, and that each conversation has the task once.
fn check_requests(scene: &Scene, count: usize) {
    let requests = scene.server.main_requests();
    for request in &requests {
        let conversation =
            &request.body[if scene.cli == Cli::Claude { "messages" } else { "input" }];
        assert_eq!(
            conversation.to_string().matches(TASK).count(),
            1,
            "the prompt was sent again: {conversation}"
        );
    }
    assert_eq!(requests.len(), count, "requests to the model");
}

fn cells(cli: Cli, moment: Moment) {
    let mut broken = vec![];
    for victim in [Victim::Daemon, Victim::Shim, Victim::Agent] {
        let name = format!("{cli:?}/{moment:?}/{victim:?}").to_lowercase();
        let wanted = std::env::var("MULETEER_KILL_CELL").unwrap_or_default();
        if !wanted.is_empty() && wanted != name {
            continue;
        }
        eprintln!("cell {name}");
        if catch_unwind(AssertUnwindSafe(|| cell(cli, moment, victim, &name))).is_err() {
            broken.push(name);
        }
    }
    assert!(broken.is_empty(), "broken: {broken:?}; repeat one with MULETEER_KILL_CELL");
}

macro_rules! campaign {
    ($($name:ident: $cli:ident $moment:ident;)*) => {
        $(#[test]
        fn $name() {
            cells(Cli::$cli, Moment::$moment);
        })*
    };
}

campaign! {
    claude_before_its_prompt_is_sent: Claude BeforeSent;
    claude_with_half_a_prompt: Claude HalfWritten;
    claude_with_its_prompt_unread: Claude Queued;
    claude_with_its_prompt_recorded: Claude Recorded;
    claude_in_the_middle_of_a_tool: Claude MidTool;
    claude_of_whom_nobody_has_heard: Claude Unheard;
    claude_after_the_result: Claude AfterResult;
    codex_before_its_prompt_is_sent: Codex BeforeSent;
    codex_with_half_a_prompt: Codex HalfWritten;
    codex_with_its_prompt_unread: Codex Queued;
    codex_with_its_prompt_recorded: Codex Recorded;
    codex_in_the_middle_of_a_tool: Codex MidTool;
    codex_of_whom_nobody_has_heard: Codex Unheard;
    codex_after_the_result: Codex AfterResult;
}

/// Nobody can tell whether the prompt was taken, so the dispatch is `blocked` and nothing is sent.
/// If a person then sends a message to a session that its CLI has lost, the dispatch says so at
/// once, without a counted restart.
fn unknown_and_lost(cli: Cli, test: &str) {
    let steps = [
        Step::bash("echo up >> effects; while [ ! -e go ]; do sleep 0.05; done"),
        Step::success("begun anew").times(3),
    ];
    let Some(scene) = Scene::new(cli, test, steps) else { return };
    let daemon = scene.world.daemon();
    let id = scene.spawn(TASK);
    let cast = scene.cast();
    scene.wait_for_effect();
    std::fs::rename(scene.transcripts(), scene.world.path().join("elsewhere")).unwrap();
    scene.world.kill_9(cast.agent);
    let entry = scene.end(&id);
    assert_eq!((&entry["state"], &entry["attempts"]), (&json!("blocked"), &json!(1)), "{entry}");
    assert!(
        entry["reason"]
            .as_str()
            .unwrap()
            .contains("not known whether the agent received its prompt"),
        "{entry}"
    );
    assert_eq!(scene.standings(&id), ["unknown"]);
    assert_eq!(scene.server.main_requests().len(), 1, "nothing was sent");
    let journal = scene.world.muleteer(&["journal", &id]).ok();
    assert!(journal.contains("whether the prompt was taken is not known"), "{journal}");

    scene.world.muleteer(&["send", &id, "Then do this"]).ok();
    let entry = wait_until("the session to be found lost", LONG, || {
        let entry = scene.world.dispatch(&id);
        (entry["attempts"] == 2 && entry["state"] == "blocked").then_some(entry)
    });
    assert!(entry["reason"].as_str().unwrap().contains("no longer has the session"), "{entry}");
    assert_eq!(scene.server.main_requests().len(), 1, "still nothing was sent");

    scene.world.muleteer(&["send", &id, "And this"]).ok();
    let entry = wait_until("the new session to end", LONG, || {
        let entry = scene.world.dispatch(&id);
        let over = ["success", "failed", "blocked"].contains(&entry["state"].as_str()?);
        (over && entry["attempts"].as_u64()? > 2).then_some(entry)
    });
    assert_eq!(
        (&entry["state"], &entry["result"]["summary"]),
        (&json!("success"), &json!("begun anew")),
        "{entry}"
    );
    let last = scene.server.main_requests().pop().unwrap().body.to_string();
    assert!(
        last.contains("And this") && !last.contains(TASK),
        "a new session, and no word is lost"
    );
    let asked = scene
        .server
        .main_requests()
        .iter()
        .filter(|one| one.body.to_string().contains("Then do this"))
        .count();
    assert!(asked > 0, "the word that found no session is not lost");
    scene.world.finish(Some(daemon));
}

#[test]
fn claude_without_a_transcript_blocks_the_dispatch() {
    unknown_and_lost(Cli::Claude, "claude_without_a_transcript_blocks_the_dispatch");
}

#[test]
fn codex_without_a_transcript_blocks_the_dispatch() {
    unknown_and_lost(Cli::Codex, "codex_without_a_transcript_blocks_the_dispatch");
}
