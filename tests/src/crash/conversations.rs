//! Kills with `kill -9` in conversations, at named points and at seeded moments.
//!
//! There is one scene: three threads with an agent each, and two writers in each thread. A writer
//! names each message with a key and repeats it until it is accepted, as a script does, and starts
//! a daemon on demand. Meanwhile processes are killed, daemons are stopped with their agents, and
//! threads are archived. Afterwards:
//!
//! - each message is accepted once, whatever its writer repeated;
//! - its state is final, it has at most one answer, and without one it has a reason;
//! - no agent heard it in two turns, and the agents of a thread heard its messages in their order;
//! - if only daemons died, each agent survived: every message was heard and answered;
//! - no recorded event is lost, changed or doubled, and no process is left alive.

use super::{Dice, Victim, strike};
use crate::{Daemon, PATIENCE, Repo, World, events, wait_until};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time limit of all messages on a loaded machine with several kills.
const LONG: Duration = Duration::from_secs(150);
const THREADS: usize = 3;
const WRITERS: usize = 2;
/// The messages of a writer. In a long trial it writes until the last action.
const MESSAGES: usize = 3;
/// The most messages of a writer in a long trial.
const MESSAGES_OF_LONG: usize = 60;

/// An agent that repeats each message, and writes down in which turn of which dispatch it heard it.
/// The turn lasts long enough to be cut. A prompt with the context of a lost session ends with the
/// message.
const SCENARIO: &str = "
v: 1
turns:
  - repeat: true
    steps:
      - run: |
          said=$(printf %s \"$prompt\" | tail -n 1)
          printf '%s %s %s\\n' \"$dispatch\" \"$turn\" \"$said\" >> heard
      - run: sleep 0.04
      - say: \"I heard ${prompt}\"
";

/// An action against a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    Kill(Victim),
    /// `daemon stop --agents stop`.
    Stop,
    /// `thread archive`.
    Archive(usize),
}

impl Action {
    fn by(dice: &mut Dice) -> Self {
        const VICTIMS: [Victim; 8] = [
            Victim::Daemon,
            Victim::Daemon,
            Victim::Shim,
            Victim::Agent,
            Victim::Zygote,
            Victim::DaemonAndShim,
            Victim::ShimAndAgent,
            Victim::Everything,
        ];
        match dice.below(11) {
            at @ 0..=7 => Self::Kill(VICTIMS[at as usize]),
            8 => Self::Stop,
            _ => Self::Archive(dice.below(THREADS as u64) as usize),
        }
    }

    /// Whether no agent suffers from it.
    fn spares_agents(self) -> bool {
        matches!(self, Self::Kill(Victim::Daemon | Victim::Zygote) | Self::Archive(_))
    }
}

struct Scene {
    world: World,
    repos: Vec<Repo>,
    threads: Vec<String>,
}

/// One message, as its writer knows it.
#[derive(Debug)]
struct Sent {
    thread: usize,
    text: String,
    id: String,
}

/// Kills once at the named point, when it is reached for the `nth` time.
///
/// # Panics
/// When an invariant does not hold, or the daemon did not reach the point.
pub fn at_point(point: &str, nth: u32) {
    let fault = format!("{point}:{nth}");
    let scene = Scene::new();
    // The threads are open before the daemon that dies begins.
    let mut first = scene.world.daemon();
    let scene = scene.open();
    first.kill_9();
    let mut daemon = scene.world.daemon_with(&[("MULETEER_FAULT", &fault)]);
    let sent = scene.write(nth.into(), MESSAGES, || {
        if point.starts_with("thread.archive") {
            scene.archive(0);
        }
    });
    let status = daemon.ended();
    assert!(status.code().is_none(), "{fault}: the daemon was to be killed, but {status}");
    scene.settle();
    scene.check(&sent, true);
    scene.end(daemon);
}

/// Does actions at moments, both chosen by `seed`.
///
/// # Panics
/// When an invariant does not hold.
pub fn seeded(seed: u64) {
    let mut dice = Dice::new(seed);
    let scene = Scene::new();
    let daemon = scene.world.daemon();
    let scene = scene.open();
    let mut done = vec![];
    let long = actions_of_long();
    let most = if long.is_some() { MESSAGES_OF_LONG } else { MESSAGES };
    let sent = scene.write(seed, most, || {
        for _ in 0..long.unwrap_or_else(|| dice.below(4) + 1) {
            // This sleep *is* the test's input: a moment chosen by the seed.
            std::thread::sleep(Duration::from_millis(dice.below(500)));
            let action = Action::by(&mut dice);
            scene.carry_out(action);
            done.push(action);
        }
    });
    eprintln!("conversation seed {seed}: {done:?}");
    scene.settle();
    scene.check(&sent, done.iter().all(|action| action.spares_agents()));
    scene.end(daemon);
}

/// The number of actions of a trial, if `MULETEER_CRASH_KILLS` makes it a long one: one state
/// directory with many kills costs less time for each than many with a few.
pub(super) fn actions_of_long() -> Option<u64> {
    let count = std::env::var("MULETEER_CRASH_KILLS").ok()?;
    Some(count.parse().expect("MULETEER_CRASH_KILLS is a number"))
}

impl Scene {
    fn new() -> Self {
        let world = World::new();
        let repos = (0..THREADS).map(|n| world.repo(&format!("repo{n}"))).collect();
        Self { world, repos, threads: vec![] }
    }

    /// Opens the threads.
    fn open(mut self) -> Self {
        let file = self.world.path().join("scenario.yaml");
        std::fs::write(&file, SCENARIO).expect("a scenario");
        let file = file.to_str().expect("a test's paths are UTF-8");
        for repo in &self.repos {
            let args = ["thread", "new", "--project", repo.to_str(), "--backend", "rehearsal"];
            let args = [&args[..], &["--scenario", file]].concat();
            self.threads.push(self.world.muleteer(&args).ok());
        }
        self
    }

    fn log(&self) -> PathBuf {
        self.world.state().join("events.jsonl")
    }

    fn carry_out(&self, action: Action) {
        match action {
            Action::Kill(victim) => strike(&self.world, victim),
            Action::Stop => {
                self.world.muleteer(&["daemon", "stop", "--agents", "stop"]).run();
            }
            Action::Archive(thread) => self.archive(thread),
        }
    }

    fn archive(&self, thread: usize) {
        self.repeat(&["thread", "archive", &self.threads[thread]]);
    }

    /// Lets all writers write, and disturbs them. Returns the messages, in the order of each
    /// writer.
    fn write(&self, seed: u64, most: usize, disturb: impl FnOnce()) -> Vec<Sent> {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let goes_on = |n: usize| n < MESSAGES || (n < most && !is_over.load(Ordering::Relaxed));
            let writers: Vec<_> = (0..THREADS)
                .flat_map(|thread| (0..WRITERS).map(move |writer| (thread, writer)))
                .map(|place| scope.spawn(move || self.writes(seed, place, &goes_on)))
                .collect();
            disturb();
            is_over.store(true, Ordering::Relaxed);
            writers.into_iter().flat_map(|writer| writer.join().expect("a writer")).collect()
        })
    }

    /// One writer. It repeats some messages that were accepted, as a script does whose own memory
    /// was lost.
    fn writes(
        &self,
        seed: u64,
        (thread, writer): (usize, usize),
        goes_on: &impl Fn(usize) -> bool,
    ) -> Vec<Sent> {
        let mut dice = Dice::new(seed.wrapping_mul(31) + (thread * WRITERS + writer) as u64);
        let mut sent = vec![];
        for n in (0..).take_while(|n| goes_on(*n)) {
            std::thread::sleep(Duration::from_millis(dice.below(250)));
            let text = format!("t{thread}w{writer}n{n}");
            let id = self.send(thread, &text);
            if dice.below(3) == 0 {
                assert_eq!(self.send(thread, &text), id, "{text}: the key decides");
            }
            sent.push(Sent { thread, text, id });
        }
        sent
    }

    /// Sends a message under its text as the key until it is accepted. Returns its id.
    fn send(&self, thread: usize, text: &str) -> String {
        let args = ["thread", "send", &self.threads[thread], text, "--key", text, "--json"];
        let document = self.repeat(&args);
        let document: Value = serde_json::from_str(&document).expect("JSON");
        document["message_id"].as_str().expect("an id").to_string()
    }

    /// Repeats a command until it succeeds: its daemon may die, and the next one may too.
    fn repeat(&self, args: &[&str]) -> String {
        let begun = Instant::now();
        loop {
            let output = self.world.muleteer(args).run();
            if output.code == Some(0) {
                return output.stdout;
            }
            assert!(begun.elapsed() < PATIENCE, "{args:?}: {output:?}");
        }
    }

    fn messages(&self, thread: usize) -> Vec<Value> {
        let shown = self.repeat(&["thread", "show", &self.threads[thread], "--json"]);
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        shown["messages"].as_array().expect("messages").clone()
    }

    /// Waits until no message is open.
    fn settle(&self) {
        let before = events::lines(&self.log());
        // `thread show` starts no daemon. This message is known.
        self.send(0, "t0w0n0");
        for thread in 0..THREADS {
            wait_until(&format!("the end of thread {thread}"), LONG, || {
                let all = self.messages(thread);
                let mut inbound = all.iter().filter(|message| message["direction"] == "in");
                let is_final = |message: &Value| {
                    let state = message["state"].as_str().unwrap_or_default();
                    ["answered", "refused", "unknown"].contains(&state)
                };
                inbound.all(is_final).then_some(())
            });
        }
        events::check_nothing_lost(&before, &self.log());
    }

    fn check(&self, sent: &[Sent], agents_lived: bool) {
        let events = self.world.events();
        let named = |name: &'static str| events.iter().filter(move |event| event["event"] == name);
        let accepted: Vec<&str> =
            named("message_accepted").filter_map(|event| event["message"].as_str()).collect();
        assert_eq!(accepted.len(), sent.len(), "each message once: {accepted:?}");
        let ids: BTreeSet<&str> = sent.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(accepted.iter().copied().collect::<BTreeSet<_>>(), ids);
        let mut answered = BTreeSet::new();
        for recorded in named("message_recorded") {
            for id in recorded["answers"].as_array().into_iter().flatten() {
                assert!(answered.insert(id.to_string()), "answered twice: {id}");
            }
        }
        for thread in 0..THREADS {
            self.check_thread(thread, sent, &accepted, agents_lived);
        }
    }

    fn check_thread(&self, thread: usize, sent: &[Sent], accepted: &[&str], agents_lived: bool) {
        let all = self.messages(thread);
        let mut states = BTreeMap::new();
        for message in all.iter().filter(|message| message["direction"] == "in") {
            let (text, id) = (message["text"].as_str().unwrap_or_default(), &message["id"]);
            let state = message["state"].as_str().unwrap_or_default();
            let is_answered = all.iter().any(|other| {
                other["answers"].as_array().is_some_and(|answers| answers.contains(id))
            });
            assert_eq!(is_answered, state == "answered", "{message}\n{all:#?}");
            assert!(is_answered || !message["reason"].is_null(), "explained: {message}");
            states.insert(text.to_string(), state.to_string());
        }
        let heard = self.repos[thread].effects("heard");
        let mut turns = BTreeMap::<&str, BTreeSet<String>>::new();
        let mut order = vec![];
        for line in &heard {
            let (place, text) = line.rsplit_once(' ').expect("a dispatch, a turn and a text");
            if turns.entry(text).or_default().insert(place.into()) && !order.contains(&text) {
                order.push(text);
            }
        }
        for (text, places) in &turns {
            assert_eq!(places.len(), 1, "{text} was heard in {places:?}\n{heard:#?}");
            let state = states.get(*text).map(String::as_str);
            assert!(state.is_some() && state != Some("refused"), "{text} is {state:?} and heard");
        }
        let place = |text: &&str| {
            let id = &sent.iter().find(|one| one.text == **text).expect("a sent text").id;
            accepted.iter().position(|one| one == id)
        };
        assert!(order.iter().map(place).is_sorted(), "out of order: {order:?} of {accepted:?}");
        if agents_lived {
            let count = sent.iter().filter(|one| one.thread == thread).count();
            assert_eq!(order.len(), count, "every message is heard: {order:?}\n{all:#?}");
            assert!(states.values().all(|state| state == "answered"), "{states:?}\n{all:#?}");
            assert_eq!(heard.len(), count, "no step was repeated: {heard:?}");
        }
    }

    /// Stops the daemon, and checks that nothing is left.
    fn end(self, faulty: Daemon) {
        self.world.muleteer(&["daemon", "stop", "--agents", "stop"]).run();
        drop(faulty);
        self.world.wait_for_nothing_left(&[]);
        events::check(&self.log());
    }
}
