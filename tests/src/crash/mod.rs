//! Kills with `kill -9` at named points and at seeded moments, and the invariants afterwards.
//!
//! There is one scene: a dispatch whose agent appends one line for each effect to a file of its
//! repository, prints lines, and leaves a grandchild in a session of its own. A client waits for it
//! with `spawn --wait` as a person would, and starts a daemon on demand when its own is gone.
//! Afterwards:
//!
//! - no recorded event is lost, changed or doubled (`events`);
//! - no effect happened twice, and the agent started at most once: there was never a second copy;
//! - the state is true: `success` if and only if every effect happened, and the client's exit code
//!   agrees;
//! - no process is left alive.

pub mod adapters;
pub mod conversations;
pub mod corruption;
pub mod power;
pub mod runs;
pub mod stored;
pub mod syscalls;

use crate::processes::{self, Process};
use crate::run::Running;
use crate::{Daemon, Output, PATIENCE, Repo, World, events, wait_until};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const STEPS: usize = 5;

/// `$$` distinguishes two copies of an agent, if there are ever two.
const AGENT: &str = r#"
echo "start $$" >> effects
setsid sleep 1000 </dev/null >/dev/null 2>&1 &
for step in 1 2 3 4 5; do
    echo "line $step of $$"
    echo "step $step" >> effects
    sleep 0.06
done
echo end >> effects
echo '{"type":"result","status":"success","summary":"all steps done"}'
"#;

/// The processes to kill at a seeded moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Daemon,
    Shim,
    Agent,
    /// The process that forks the daemon's shims.
    Zygote,
    DaemonAndShim,
    ZygoteAndShim,
    ShimAndAgent,
    Everything,
}

const VICTIMS: [Victim; 8] = [
    Victim::Daemon,
    Victim::Shim,
    Victim::Agent,
    Victim::Zygote,
    Victim::DaemonAndShim,
    Victim::ZygoteAndShim,
    Victim::ShimAndAgent,
    Victim::Everything,
];

/// Kills once at the named point, when it is reached for the `nth` time.
///
/// # Panics
/// When an invariant does not hold, or no process reached the point: such a test would prove
/// nothing.
pub fn at_point(point: &str, nth: u32) {
    let fault = format!("{point}:{nth}");
    let scene = Scene::new();
    // Each shim inherits the variables. Without the second, each next shim would die at the point
    // too, and the dispatch would end before this test could do anything.
    let once = scene.world.path().join("struck");
    let once = once.to_str().expect("a test's paths are UTF-8");
    let mut daemon =
        scene.world.daemon_unready(&[("MULETEER_FAULT", &fault), ("MULETEER_FAULT_ONCE", once)]);
    daemon.answers_or_ends(&scene.world);
    let client = scene.dispatch();
    if point.starts_with("shim.") {
        scene.shim_dies(point);
        assert!(std::path::Path::new(once).exists(), "no shim reached {fault}");
    } else {
        let status = daemon.ended();
        assert!(
            status.code().is_none(),
            "{fault}: the daemon was to be killed, but {status}: {}",
            daemon.log()
        );
    }
    let before = events::lines(&scene.log());
    let output = client.finish();
    let state = scene.check(&output, &before);
    // Once the release is announced, nobody knows whether the agent ran, or how far it came.
    let may_fail = ["shim.recorded", "shim.released", "shim.stdin_written", "shim.record_written"]
        .contains(&point);
    assert!(state == "success" || may_fail, "{fault}: the dispatch is {state}\n{}", output.stderr);
    scene.end(daemon);
}

/// Kills the zygote at the point, or stops it there until the daemon kills it. The agent runs once,
/// whether or not the zygote had forked a shim.
///
/// # Panics
/// When it does not run once, or no zygote reached the point.
pub fn zygote_at(point: &str, how: &str) {
    let fault = format!("{point}={how}");
    let scene = Scene::new();
    let once = scene.world.path().join("struck");
    let once = once.to_str().expect("a test's paths are UTF-8");
    let daemon =
        scene.world.daemon_with(&[("MULETEER_FAULT", &fault), ("MULETEER_FAULT_ONCE", once)]);
    let output = scene.dispatch().finish();
    assert!(
        daemon.log().contains("the zygote died during a request"),
        "{fault} was never passed: {}",
        daemon.log()
    );
    let state = scene.check(&output, &[]);
    assert_eq!(state, "success", "{fault}\n{}", output.stderr);
    scene.end(daemon);
}

/// Makes the actor panic that reaches the point for the `nth` time. The daemon contains the panic,
/// and the dispatch ends as if nothing had happened.
///
/// # Panics
/// When it does not, or no actor reached the point.
pub fn panic_at(point: &str, nth: u32) {
    let fault = format!("{point}:{nth}=panic");
    let scene = Scene::new();
    let daemon = scene.world.daemon_with(&[("MULETEER_FAULT", &fault)]);
    let output = scene.dispatch().finish();
    assert!(daemon.log().contains(&format!("fault point {point}")), "{fault} was never passed");
    assert!(daemon.is_alive(), "{fault}: the daemon died of it\n{}", daemon.log());
    let state = scene.check(&output, &[]);
    assert_eq!(state, "success", "{fault}\n{}", output.stderr);
    scene.end(daemon);
}

/// Kills the daemon (or makes the actor panic) while it sends an agent the answer to its question.
/// The agent receives the answer exactly once, and nobody is asked again.
///
/// # Panics
/// When it does not, or no process reached the point.
pub fn answering(point: &str, how: &str) {
    let (world, fault) = (World::new(), format!("{point}={how}"));
    let repo = world.repo("repo");
    let mut daemon = world.daemon_with(&[("MULETEER_FAULT", &fault)]);
    let scenario = world.path().join("scenario.yaml");
    let steps = "v: 1\nturns:\n  - steps:\n      - ask: {permission: \"rm -rf build\"}\n      \
                 - run: echo answered >> effects\n      - result: {status: success, summary: s}\n";
    std::fs::write(&scenario, steps).expect("a scenario");
    let scenario = scenario.display().to_string();
    let id = world
        .muleteer(&["spawn", "developer", repo.to_str(), "do it", "--scenario", &scenario])
        .ok();
    world.wait_for_state(&id, &["waiting"]);
    // The client's reply may be lost with the daemon; then the client asks again.
    let answered = world.muleteer(&["answer", &id, "allow"]).deadline(PATIENCE).run();
    assert_eq!(answered.code, Some(0), "{fault}: {answered:?}");
    if how == "kill" {
        let status = daemon.ended();
        assert!(
            status.code().is_none(),
            "{fault}: the daemon was to be killed, but {status}: {}",
            daemon.log()
        );
    } else {
        // The daemon reports the answer when it is durable, and carries it out afterwards.
        wait_until(&format!("{fault} to be passed"), PATIENCE, || {
            daemon.log().contains(&format!("fault point {point}")).then_some(())
        });
    }
    // The reply may have come before the daemon died. Then no client has started another daemon
    // yet.
    world.muleteer(&["wait", &id]).deadline(PATIENCE * 4).run();
    let entry = world.wait_for_end(&id);
    assert_eq!(
        (&entry["state"], &entry["attempts"]),
        (&"success".into(), &1.into()),
        "{fault}: {entry}"
    );
    assert_eq!(repo.effects("effects"), ["answered"], "{fault}");
    assert_eq!(world.events_of(&id, "permission_answered").len(), 1, "{fault}");
    let raw = world.muleteer(&["logs", &id, "--raw"]).ok();
    assert_eq!(raw.matches("\"permission_answer\"").count(), 1, "{fault}: {raw}");
    world.muleteer(&["daemon", "stop"]).ok();
    world.finish(None);
}

/// Kills victims at moments, both chosen by `seed`.
///
/// # Panics
/// When an invariant does not hold.
pub fn seeded(seed: u64) {
    let mut dice = Dice::new(seed);
    let scene = Scene::new();
    let mut daemons = vec![scene.world.daemon()];
    let client = scene.dispatch();
    let mut killed = vec![];
    for _ in 0..=dice.below(2) {
        // This sleep *is* the test's input: a moment chosen by the seed.
        std::thread::sleep(Duration::from_millis(dice.below(500)));
        let victim = VICTIMS[dice.below(VICTIMS.len() as u64) as usize];
        strike(&scene.world, victim);
        killed.push(victim);
    }
    eprintln!("seed {seed}: killed {killed:?}");
    let before = events::lines(&scene.log());
    let output = client.finish();
    let state = scene.check(&output, &before);
    if killed.iter().all(|victim| matches!(victim, Victim::Daemon | Victim::Zygote)) {
        assert_eq!(
            state, "success",
            "only daemons died, and no agent may suffer from that\n{}",
            output.stderr
        );
    }
    let last = daemons.remove(0);
    scene.end(last);
}

/// Does the same with an agent that can resume its session (`rehearsal`). The dispatch succeeds
/// whatever dies, with every effect in its order. The agent may repeat a step that was cut short,
/// as it may repeat a tool; it repeats no finished step.
///
/// # Panics
/// When an invariant does not hold.
pub fn seeded_resumable(seed: u64) {
    let mut dice = Dice::new(seed);
    let scene = Scene::new();
    let daemon = scene.world.daemon();
    let client = scene.dispatch_resumable();
    let mut killed = vec![];
    for _ in 0..=dice.below(2) {
        // This sleep *is* the test's input: a moment chosen by the seed.
        std::thread::sleep(Duration::from_millis(dice.below(600)));
        let victim = VICTIMS[dice.below(VICTIMS.len() as u64) as usize];
        strike(&scene.world, victim);
        killed.push(victim);
    }
    eprintln!("resumable seed {seed}: killed {killed:?}");
    scene.check_resumable(client, killed.len());
    scene.end(daemon);
}

/// Kills everything after an agent's session was created and before the daemon recorded it. The
/// session is not lost, and no second one begins beside it.
///
/// # Panics
/// When an invariant does not hold.
pub fn session_nobody_heard_of() {
    let scene = Scene::new();
    let daemon = scene.world.daemon_with(&[("MULETEER_FAULT", "shim.released=stop")]);
    let client = scene.dispatch_resumable();
    wait_until("the session", PATIENCE, || {
        let agents = std::fs::read_dir(scene.world.state().join("agents")).ok()?;
        let mut folders = agents.flatten().map(|agent| agent.path().join("rehearsal/sessions"));
        folders
            .any(|folder| std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some()))
            .then_some(())
    });
    let before = scene.world.events();
    assert!(
        before.iter().all(|event| event["event"] != "session_started"),
        "heard of already: {before:?}"
    );
    strike(&scene.world, Victim::Everything);
    scene.check_resumable(client, 1);
    scene.end(daemon);
}

/// The scenario of the agent of [`seeded_resumable`].
const SCENARIO: &str = r#"
v: 1
turns:
  - steps:
      - run: echo step 1 >> effects; sleep 0.06
      - run: echo step 2 >> effects; sleep 0.06
      - run: echo step 3 >> effects; sleep 0.06
      - run: echo step 4 >> effects; sleep 0.06
      - run: echo step 5 >> effects; sleep 0.06
      - result: {status: success, summary: all steps done}
otherwise:
  - result: {status: success, summary: nothing was left}
"#;

#[derive(Debug)]
struct Scene {
    world: World,
    repo: Repo,
}

impl Scene {
    fn new() -> Self {
        let world = World::new();
        let repo = world.repo("repo");
        Self { world, repo }
    }

    fn repo_path(&self, name: &str) -> PathBuf {
        PathBuf::from(self.repo.to_str()).join(name)
    }

    fn log(&self) -> PathBuf {
        self.world.state().join("events.jsonl")
    }

    fn dispatch(&self) -> Running {
        self.world.spawn(&self.repo, AGENT, &["--wait", "--json"]).start()
    }

    /// Starts a dispatch with the agent of [`seeded_resumable`].
    fn dispatch_resumable(&self) -> Running {
        let scenario = self.world.path().join("scenario.yaml");
        std::fs::write(&scenario, SCENARIO).expect("a scenario");
        let scenario = scenario.to_str().expect("a test's paths are UTF-8");
        let args = ["spawn", "developer", self.repo.to_str(), "do it", "--backend", "rehearsal"];
        let args = [&args[..], &["--scenario", scenario, "--wait", "--json"]].concat();
        self.world.muleteer(&args).start()
    }

    /// Waits for the end, which must be a success. Each effect is in its order, and none happened
    /// more often than it was cut short.
    fn check_resumable(&self, client: Running, kills: usize) {
        let before = events::lines(&self.log());
        let output = client.finish();
        let entry = self.only_dispatch(&output);
        assert_eq!(
            (output.code, &entry["state"]),
            (Some(0), &Value::from("success")),
            "{entry}\n{}",
            output.stderr
        );
        let mut effects = self.repo.effects("effects");
        let done = effects.len();
        effects.dedup();
        let wanted: Vec<String> = (1..=STEPS).map(|step| format!("step {step}")).collect();
        assert_eq!(effects, wanted, "in order, each finished once\n{entry}");
        assert!(done - STEPS <= kills, "{done} effects of {STEPS} steps after {kills} kills");
        events::check_nothing_lost(&before, &self.log());
    }

    /// Waits until a shim has died at `point`, as the events report.
    fn shim_dies(&self, point: &str) {
        wait_until(&format!("a shim to die at {point}"), PATIENCE, || {
            let events = self.world.events();
            let again = events.iter().any(|event| event["epoch"].as_u64() > Some(1));
            let never_ran = events
                .iter()
                .any(|event| event["event"] == "agent_exited" && event["cause"] == "never_ran");
            let over = events.iter().any(|event| event["event"] == "dispatch_finished");
            (again || never_ran || over).then_some(())
        });
    }

    /// Checks every invariant once the client has its answer. Returns the final state.
    fn check(&self, output: &Output, before: &[String]) -> String {
        let entry = self.only_dispatch(output);
        let state = entry["state"].as_str().unwrap_or_default().to_string();
        let code = match state.as_str() {
            "success" => 0,
            "killed" => 6,
            "failed" | "blocked" => 4,
            other => panic!("no final state of this dispatch: {other}\n{entry}\n{output:?}"),
        };
        assert_eq!(
            output.code,
            Some(code),
            "the exit code of a {state} dispatch\n{}",
            output.stderr
        );
        self.check_effects(&state, &entry);
        self.check_output(&state, entry["id"].as_str().unwrap_or_default());
        events::check(&self.log());
        events::check_nothing_lost(before, &self.log());
        for once in ["dispatch_created", "dispatch_finished"] {
            let count = self.world.events().iter().filter(|event| event["event"] == once).count();
            assert_eq!(count, 1, "{once} stands so often in the events");
        }
        state
    }

    /// Returns the only dispatch: the client chose an id, and resent it as often as necessary.
    fn only_dispatch(&self, output: &Output) -> Value {
        let status = self.world.status();
        match status["dispatches"].as_array().map(Vec::as_slice) {
            Some([one]) => one.clone(),
            _ => panic!(
                "one dispatch is wanted: {status}\nclient: {} {}",
                output.stdout, output.stderr
            ),
        }
    }

    fn check_effects(&self, state: &str, entry: &Value) {
        let effects = self.repo.effects("effects");
        let starts = effects.iter().filter(|line| line.starts_with("start ")).count();
        assert!(starts <= 1, "a second copy of the agent ran: {effects:?}\n{entry}");
        let wanted: Vec<String> =
            (1..=STEPS).map(|step| format!("step {step}")).chain(["end".to_string()]).collect();
        let steps = effects.get(1..).unwrap_or_default();
        assert!(wanted.starts_with(steps), "effects twice or out of order: {effects:?}\n{entry}");
        if state == "success" {
            assert_eq!(steps, wanted, "a success without all of its effects\n{entry}");
        }
    }

    fn check_output(&self, state: &str, id: &str) {
        let raw = self.world.muleteer(&["logs", id, "--raw"]).ok();
        for step in 1..=STEPS {
            let count = raw.matches(&format!("line {step} of ")).count();
            assert!(
                count <= 1,
                "line {step} of the agent stands {count} times in its output:\n{raw}"
            );
            assert!(count == 1 || state != "success", "line {step} of a success is lost:\n{raw}");
        }
    }

    /// Checks that nothing but the daemon is left, stops it, and checks that it is gone too.
    fn end(self, faulty: Daemon) {
        let pid =
            self.world.status()["daemon"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        self.world.wait_for_nothing_left(&Vec::from_iter(pid));
        self.world.muleteer(&["daemon", "stop", "--agents", "stop"]).run();
        drop(faulty);
        self.world.wait_for_nothing_left(&[]);
        events::check(&self.log());
    }
}

/// Kills the victim's processes of a world.
fn strike(world: &World, victim: Victim) {
    let all = world.processes();
    let shims: Vec<u32> = processes::shims(&all).iter().map(|one| one.pid).collect();
    let is_agent = |one: &&Process| shims.contains(&one.parent);
    let agents: Vec<u32> = all.iter().filter(is_agent).map(|one| one.pid).collect();
    let daemons: Vec<u32> = all.iter().filter(|one| one.is_daemon()).map(|one| one.pid).collect();
    if matches!(victim, Victim::Zygote | Victim::ZygoteAndShim) {
        daemons.iter().for_each(|daemon| processes::kill_zygote(*daemon));
    }
    let pids = match victim {
        Victim::Zygote => vec![],
        Victim::ZygoteAndShim => shims,
        Victim::Daemon => daemons,
        Victim::Shim => shims,
        Victim::Agent => agents,
        Victim::DaemonAndShim => [daemons, shims].concat(),
        Victim::ShimAndAgent => [shims, agents].concat(),
        Victim::Everything => [daemons, shims, agents].concat(),
    };
    for pid in pids {
        world.kill_9(pid);
    }
}

impl Daemon {
    /// Waits until the daemon answers, or until a fault point has ended it.
    pub fn answers_or_ends(&mut self, world: &World) {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if !self.is_alive() || world.status()["daemon"]["running"] == true {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the daemon neither answers nor ends: {}", self.log());
    }
}

/// SplitMix64: it is small and the same everywhere, so a seed in an old report stays valid.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns the next number, at least 0 and below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit
    }
}
