//! A spec run on the real `claude`, and one on the real `codex`. [`tally`] has the program that
//! they make and the answers of their model; the rest (decomposition, clones, rebases, pushes,
//! tests, the judge) is real.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_tests::acp::Agent;
use muleteer_tests::model_server::ModelServer;
use muleteer_tests::spec_stage::{confined, last};
use muleteer_tests::talk::Talk;
use muleteer_tests::tally::{self, Length};
use muleteer_tests::{Muleteer, Output, Repo, World, claude, codex, events, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The time limit of one whole run, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(900);

pub struct Stage {
    pub world: World,
    pub repo: Repo,
    pub server: ModelServer,
    pub options: Vec<String>,
    confined: bool,
    /// The ACP agent to use, if any.
    acp: Option<Agent>,
}

impl Stage {
    pub fn claude(test: &str, length: Length) -> Option<Self> {
        let binary = claude::binary(test)?;
        let world = World::new();
        claude::link(&world, &binary);
        let server = ModelServer::playing(move |request| tally::play(length, request));
        let mut options = vec!["--backend".to_string(), "claude-code".into()];
        options.extend(claude::env_options(&server));
        Some(Self::new(world, server, options))
    }

    pub fn codex(test: &str, length: Length) -> Option<Self> {
        let binary = codex::binary(test)?;
        let world = World::new();
        let server = ModelServer::playing(move |request| tally::play(length, request));
        codex::install(&world, &binary, &server);
        // Codex reports only tokens.
        world.configure("models:\n  prices:\n    gpt-5.5: {input: 1, output: 10}\n");
        let mut options: Vec<_> =
            ["--backend", "codex", "--model", "gpt-5.5"].map(String::from).into();
        options.extend(codex::env_options(&world));
        Some(Self::new(world, server, options))
    }

    pub fn acp(test: &str, agent: Agent, length: Length) -> Option<Self> {
        let world = World::new();
        let server = ModelServer::playing(move |request| tally::play(length, request));
        if !agent.install(&world, &server, test) {
            return None;
        }
        world.configure("models:\n  prices:\n    gpt-5.5: {input: 1, output: 10}\n");
        let mut options = vec!["--backend".to_string(), agent.backend().into()];
        options.extend(agent.options(&world, &server));
        Some(Self { acp: Some(agent), ..Self::new(world, server, options) })
    }

    pub fn new(world: World, server: ModelServer, options: Vec<String>) -> Self {
        let repo = world.repo("repo");
        repo.write("plan.md", tally::SPEC);
        std::fs::create_dir(repo.path.join(".muleteer")).unwrap();
        repo.write(".muleteer/config.yaml", "run: {phases: {maintain: {n: 3}}}\n");
        Self { world, repo, server, options, confined: confined(), acp: None }
    }

    /// Makes the stage as on a machine without a sandbox.
    fn unconfined(mut self) -> Self {
        self.repo
            .write(".muleteer/config.yaml", "sandbox: off\nrun: {phases: {maintain: {n: 3}}}\n");
        self.world.trust(&self.repo);
        self.confined = false;
        self
    }

    pub fn muleteer(&self, args: &[&str]) -> Muleteer {
        self.world.muleteer(args).current_dir(&self.repo.path).deadline(PATIENCE)
    }

    pub fn begin(&self, more: &[&str]) -> Muleteer {
        let mut args = vec!["run", "--spec", "plan.md"];
        args.extend(self.options.iter().map(String::as_str));
        args.extend(more);
        self.muleteer(&args)
    }

    fn events(&self, run: &str, name: &str) -> Vec<Value> {
        let path = self.repo.path.join(".muleteer/runs").join(run).join("events.jsonl");
        events::read(&path).into_iter().filter(|event| event["event"] == name).collect()
    }

    fn bead(&self, id: &str) -> Value {
        self.muleteer(&["bead", "show", id, "--json"]).json()
    }

    /// Returns the first request of the bead's agents for which `so` is true.
    fn heard(&self, title: &str, so: impl Fn(&Talk) -> bool) -> Talk {
        let title = format!("**Title**: {title}\n");
        let talks = self.server.main_requests().into_iter().map(|request| Talk::of(&request));
        let mut own = talks.filter(|talk| talk.prompt.contains(&title));
        own.find(|talk| so(talk)).unwrap_or_else(|| panic!("no such request of {title}"))
    }

    /// Checks the invariants of every successful run. Returns the run's id.
    fn check(&self, output: Output, beads: u64, verdicts: &[&str]) -> String {
        if output.code != Some(0) {
            self.tell();
        }
        let document = last(&output.expect_code(0).stdout);
        let run = document["run_id"].as_str().unwrap().to_string();
        let iterations = verdicts.len() as u64;
        assert_eq!(
            (&document["status"], &document["iteration"]),
            (&"completed".into(), &iterations.into()),
            "{document}"
        );
        assert_eq!(
            (&document["beads"]["total"], &document["beads"]["closed"]),
            (&beads.into(), &beads.into()),
            "{document}"
        );
        let enforced = &document["enforced"];
        assert_eq!(enforced["judge_read_only"], enforced["acceptance_hidden"]);
        let is_checked = enforced["judge_read_only"] == "checked";
        assert_eq!(is_checked, enforced["reason"].is_string(), "{enforced}");
        let is_root = rustix::process::geteuid().is_root();
        assert!(is_checked || (self.confined && !is_root), "{enforced}");
        let judged: Vec<_> = self
            .events(&run, "judge_finished")
            .iter()
            .map(|event| event["verdict"].clone())
            .collect();
        assert_eq!(judged, verdicts);
        assert!(
            !self.repo.path.join(".muleteer/worktrees").join(&run).exists(),
            "worktrees are tidied away"
        );

        // Each agent was prompted once, and its cost is known.
        let started = self.events(&run, "agent_started").len();
        let openings = self.openings();
        assert!(openings.values().all(|times| *times == 1), "{openings:?}");
        assert_eq!(openings.len(), started, "{openings:?}");
        let finished = self.events(&run, "agent_finished");
        let costs: Vec<f64> =
            finished.iter().map(|event| event["cost_usd"].as_f64().unwrap()).collect();
        // An agent that is killed in a turn cannot report its cost, and Muleteer does not know
        // Claude's prices.
        let unpaid = finished
            .iter()
            .filter(|event| event["cost_usd"] == 0.0 && event["status"] == "success");
        assert_eq!((costs.len(), unpaid.count()), (started, 0), "{finished:?}");
        let (sum, told) = (costs.iter().sum::<f64>(), document["cost_usd"].as_f64().unwrap());
        assert!((sum - told).abs() < 1e-6, "{sum} {told}");

        let log = self.repo.path.join(".muleteer/runs").join(&run).join("run-log.yml");
        let log = std::fs::read_to_string(log).unwrap();
        for line in ["status: completed".to_string(), format!("total_agent_spawns: {started}")] {
            assert!(log.contains(&line), "{line} in {log}");
        }

        // Muleteer asked for the form of the verdict in the CLI's own way.
        let requests = self.server.main_requests();
        let structured = requests.iter().filter(|request| {
            request.body["text"]["format"]["schema"]["properties"]["specDrift"].is_object()
                || request.body["tools"].to_string().contains("specDrift")
        });
        // ACP has no such way: there the prompt asks for it.
        let asked = if self.acp.is_some() { 0 } else { verdicts.len() };
        assert_eq!(structured.filter(|request| Talk::of(request).answers == 0).count(), asked);
        // No agent that wrote code has ever seen the criteria.
        for talk in requests.iter().map(Talk::of) {
            // Without a sandbox an agent can read the criteria and the transcripts of others.
            assert!(!self.confined || !talk.last().contains("LEAKED"), "{}", talk.last());
            let knows = talk.results.iter().any(|told| told.contains(tally::SECRET))
                || talk.prompt.contains(tally::SECRET);
            let may = talk.prompt.contains("acceptance criteria");
            assert!(!knows || may, "{}", talk.prompt);
        }
        run
    }

    /// Returns the conversations, each with the number of requests that began it.
    fn openings(&self) -> BTreeMap<String, usize> {
        let mut openings = BTreeMap::new();
        for request in self.server.main_requests() {
            let talk = Talk::of(&request);
            *openings.entry(talk.session).or_default() += usize::from(talk.answers == 0);
        }
        openings
    }

    /// Checks out the branch in a folder of its own. Its tests must pass, and a wrong command must
    /// end with the exit code of the spec.
    fn result(&self, branch: &str) -> PathBuf {
        let folder = self.world.path().join("result");
        self.repo.git(&[
            "worktree",
            "add",
            "--quiet",
            "--detach",
            folder.to_str().unwrap(),
            branch,
        ]);
        let (code, said) = node(&folder, &["--test"], "");
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(node(&folder, &["src/cli.js", "nope"], "x").0, Some(2));
        folder
    }

    /// Prints the actions of the agents, for the reader of a failure.
    pub fn tell(&self) {
        for talk in self.server.main_requests().iter().map(Talk::of) {
            let title = talk.told("**Title**: ", "\n").unwrap_or_default();
            eprintln!("--- {} {title} {}\n{}", talk.session, talk.answers, cut(talk.last()));
        }
    }
}

pub fn cut(text: &str) -> String {
    let all: Vec<char> = text.chars().collect();
    all[all.len().saturating_sub(600)..].iter().collect()
}

fn node(folder: &Path, args: &[&str], input: &str) -> (Option<i32>, String) {
    let mut command = Command::new("node");
    command.args(args).current_dir(folder);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The program may end without reading its stdin.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).trim().to_string())
}

#[test]
fn a_spec_becomes_a_program_by_the_real_claude() {
    let test = "a_spec_becomes_a_program_by_the_real_claude";
    let Some(stage) = Stage::claude(test, Length::Whole) else { return };
    let daemon = stage.world.daemon();
    let output = stage.begin(&["--json"]).run();
    let run = stage.check(output, 10, &["fail", "pass"]);

    // An agent that ended without a word is resumed in its worktree; one whose API failed gets a
    // new one.
    let retried = stage.events(&run, "bead_retried");
    let how = |title: &str| {
        let of = |event: &&Value| stage.bead(event["bead_id"].as_str().unwrap())["title"] == title;
        retried.iter().filter(of).map(|event| event["reuse"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        (how("Unique"), how("Shout"), retried.len()),
        (vec![true.into()], vec![false.into()], 2),
        "{retried:?}"
    );
    let again = stage.heard("Unique", |talk| talk.prompt.contains("The attempt before yours"));
    assert!(
        again.prompt.contains("have no time left for the rest"),
        "it is told the last lines: {}",
        again.prompt
    );

    // Both agents added the same line: the second one had a conflict, and the result has both
    // lines.
    let lines = stage.heard("Lines", |talk| talk.last().contains("== resolved"));
    assert!(
        lines.results.iter().any(|told| told.contains("CONFLICT (content)")),
        "{:?}",
        lines.results
    );
    assert!(
        lines.last().contains("UU src/commands.js") && lines.last().contains("== resolved 0"),
        "{}",
        lines.last()
    );
    // Both agents pushed at once: one push was refused, and its agent retried until it succeeded.
    let pushes = ["Longest", "Reverse"].map(|title| {
        let all = stage.heard(title, |talk| talk.last().contains("== closed")).results;
        all.into_iter().filter(|told| told.contains("== push")).collect::<Vec<_>>()
    });
    let refused = pushes.iter().flatten().filter(|told| told.contains("rejected]")).count();
    assert!(refused >= 1 && pushes.iter().any(|all| all.len() == 1), "{pushes:?}");
    assert!(pushes.iter().all(|all| all.last().unwrap().contains("== push 0")), "{pushes:?}");

    // Maintenance repaired a test that merges broke, beside the others' work.
    let mended = stage.events(&run, "maintenance_finished");
    assert!(
        !mended.is_empty() && mended.iter().all(|event| event["status"] == "success"),
        "{mended:?}"
    );
    let branch = format!("muleteer/{run}");
    let log = stage.repo.git(&["log", "--format=%s", &branch]);
    assert_eq!(log.matches("chore: fix test/build breakage").count(), 1, "{log}");

    // One of the agents' observations became a bead of the next iteration.
    let triage = stage.events(&run, "verdict_applied")[0]["triage"].clone();
    let titles = |list: &Value| {
        let ids = list.as_array().unwrap().iter().map(|id| id.as_str().unwrap());
        ids.map(|id| stage.bead(id)["title"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        titles(&triage["promoted"]),
        ["Observation: reverse takes letters of two units apart"]
    );
    assert_eq!(titles(&triage["dismissed"]), ["Observation: no colours"]);
    let folder = stage.result(&branch);
    for (name, input, output) in [
        ("words", "one two  three", "3"),
        ("lines", "a\nb", "2"),
        ("longest", "a bcd ef", "bcd"),
        ("reverse", "ab\u{1f600}", "\u{1f600}ba"),
        ("unique", "a b a", "2"),
        ("shout", "hey", "HEY"),
    ] {
        assert_eq!(
            node(&folder, &["src/cli.js", name], input),
            (Some(0), output.to_string()),
            "{name}"
        );
    }
    assert!(std::fs::read_to_string(folder.join("MANUAL.md")).unwrap().contains("- `shout`"));
    stage.world.finish(Some(daemon));
}

#[test]
fn a_short_spec_becomes_a_program_by_the_real_codex() {
    let test = "a_short_spec_becomes_a_program_by_the_real_codex";
    let Some(stage) = Stage::codex(test, Length::Short) else { return };
    let daemon = stage.world.daemon();
    let output = stage.begin(&["--json"]).run();
    let run = stage.check(output, 4, &["fail", "pass"]);
    assert_eq!(stage.events(&run, "bead_retried").len(), 0);
    let folder = stage.result(&format!("muleteer/{run}"));
    assert_eq!(node(&folder, &["src/cli.js", "words"], "one two"), (Some(0), "2".to_string()));
    stage.world.finish(Some(daemon));
}

/// The agent's answers come in chunks. Muleteer joins them before it reads the verdict, for the
/// next attempt, and in `logs`.
fn a_spec_becomes_a_program_over_acp(test: &str, agent: Agent) {
    let Some(stage) = Stage::acp(test, agent, Length::Short) else { return };
    let daemon = stage.world.daemon();
    let output = stage.begin(&["--json"]).run();
    let run = stage.check(output, 4, &["fail", "pass"]);
    assert_eq!(stage.events(&run, "bead_retried").len(), 0);
    let folder = stage.result(&format!("muleteer/{run}"));
    assert_eq!(node(&folder, &["src/cli.js", "words"], "one two"), (Some(0), "2".to_string()));
    for start in stage.events(&run, "agent_started") {
        let logs = stage.muleteer(&["logs", start["dispatch"].as_str().unwrap(), "--json"]).json();
        let events = logs["events"].as_array().unwrap();
        let of =
            |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
        assert!(
            of("permission").is_empty(),
            "the policy allows everything: {:?}",
            of("permission")
        );
        let calls: Vec<_> = of("tool_call")
            .iter()
            .map(|call| call["id"].clone())
            .filter(|id| id != "plan")
            .collect();
        let once: std::collections::BTreeSet<_> = calls.iter().map(ToString::to_string).collect();
        assert_eq!(once.len(), calls.len(), "{calls:?}");
        assert_eq!(of("tool_result").len(), of("tool_call").len(), "{events:?}");
        if start["purpose"] == "structure" {
            let whole = |event: &&&Value| {
                event["text"].as_str().is_some_and(|text| text.contains("specDrift"))
            };
            let verdicts = of("text");
            let verdict = verdicts.iter().find(whole).unwrap()["text"].as_str().unwrap();
            assert!(verdict.contains("newBeads"), "in one piece: {verdict}");
        }
    }
    stage.world.finish(Some(daemon));
}

#[test]
fn a_short_spec_becomes_a_program_by_the_real_claude_over_acp() {
    a_spec_becomes_a_program_over_acp(
        "a_short_spec_becomes_a_program_by_the_real_claude_over_acp",
        Agent::Claude,
    );
}

#[test]
fn a_short_spec_becomes_a_program_by_the_real_codex_over_acp() {
    a_spec_becomes_a_program_over_acp(
        "a_short_spec_becomes_a_program_by_the_real_codex_over_acp",
        Agent::Codex,
    );
}

/// Without a sandbox the judge's CLI itself prevents writing, and Muleteer checks the judge's
/// worktree afterwards.
#[test]
fn without_a_sandbox_the_real_clis_make_the_program_too_and_their_judges_cannot_edit() {
    let test = "without_a_sandbox_the_real_clis_make_the_program_too_and_their_judges_cannot_edit";
    let (Some(claude), Some(codex)) =
        (Stage::claude(test, Length::Short), Stage::codex(test, Length::Short))
    else {
        return;
    };
    for stage in [claude.unconfined(), codex.unconfined()] {
        let daemon = stage.world.daemon();
        let output = stage.begin(&["--json"]).run();
        let run = stage.check(output, 4, &["fail", "pass"]);
        let folder = stage.result(&format!("muleteer/{run}"));
        assert_eq!(node(&folder, &["src/cli.js", "words"], "one two"), (Some(0), "2".to_string()));
        // Claude sends its tools in each request; Codex names its sandbox in the request's text.
        for request in stage.server.main_requests() {
            let judging = Talk::of(&request).prompt.contains("## The acceptance criteria");
            let text = request.body.to_string();
            assert_eq!(
                judging,
                !text.contains(r#""name":"Edit""#) && !text.contains("danger-full-access"),
                "{}",
                cut(&text)
            );
        }
        stage.world.finish(Some(daemon));
    }
}

/// The daemon dies while agents work: they continue without it, and the next daemon adopts them.
/// The judge dies while it waits for the model: its transcript is where no other agent may read,
/// and Muleteer finds it there.
#[test]
fn killed_daemon_and_judge_send_no_prompt_twice() {
    let test = "killed_daemon_and_judge_send_no_prompt_twice";
    let Some(stage) = Stage::claude(test, Length::Killed) else { return };
    let mut daemon = stage.world.daemon();
    let told =
        |mark: &str| wait_until(mark, PATIENCE, || stage.server.was_told(mark).then_some(()));
    let run = stage.begin(&["--detach"]).ok();
    told("pushing");
    daemon.kill_9();
    let resumed = stage.muleteer(&["run", "--resume", &run, "--json"]).start();
    wait_until("the next daemon", PATIENCE, || {
        (stage.world.status()["daemon"]["running"] == true).then_some(())
    });
    stage.server.tell("daemon killed");
    told("judging");
    let judge = stage.events(&run, "agent_started").pop().unwrap();
    assert_eq!(judge["purpose"], "judge");
    let dispatch = judge["dispatch"].as_str().unwrap();
    let shim = stage.world.events_of(dispatch, "agent_spawned")[0]["shim_pid"].as_u64().unwrap();
    stage.world.kill_9(u32::try_from(shim).unwrap());
    let probed = wait_until("its transcript to be read", PATIENCE, || {
        stage.world.events_of(dispatch, "prompt_probed").pop()
    });
    assert!(
        ["mid_tool", "unanswered"].iter().any(|taken| probed["standing"] == *taken),
        "{probed}"
    );
    stage.server.tell("judge killed");

    let output = resumed.finish();
    stage.check(output, 3, &["pass"]);
    assert_eq!(stage.events(&run, "bead_retried").len(), 0, "they were adopted");
    stage.result(&format!("muleteer/{run}"));
    stage.world.finish(None);
}
