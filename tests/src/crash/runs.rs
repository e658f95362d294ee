//! Kills with `kill -9` in a spec run, at named points and at seeded moments.
//!
//! There is one scene: three commuting beads on rehearsal agents, maintenance after the second, a
//! judge that finds something once, a remote and a `gh`. However often and wherever processes are
//! killed, the result is that of an undisturbed run (`Outcome`): the same tree, the same beads in
//! the same states, the same decisions about each bead. If only daemons die, every agent's part was
//! also played exactly once, because its agent survived.

use super::Dice;
use crate::run::Running;
use crate::{Daemon, Repo, World, events, processes, segments, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The time limit of a whole run on a loaded machine with several kills, and of each wait in it.
const LONG: Duration = Duration::from_secs(240);

/// The remote, relative to the world's root; `GH` uses the same path.
const ORIGIN: &str = "origin.git";

/// Every agent of the run. `$HOME/out/effects` records which part ran how often.
pub const SCENARIO: &str = r###"
v: 1
turns:
  - when: {env: {MULETEER_PURPOSE: acceptance}}
    steps:
      - run: echo acceptance >> "$HOME/out/effects"
      - run: |
          for name in user-stories edge-cases negative-tests; do
            echo "it is there" > "$MULETEER_ACCEPTANCE_DIR/$name.md"
          done
      - result: {status: success, summary: three files}
  - when: {env: {MULETEER_PURPOSE: decompose}}
    steps:
      - run: echo decompose >> "$HOME/out/effects"
      - run: muleteer bead create --title One --priority 1
      - run: muleteer bead create --title Two
      - run: muleteer bead create --title Three
      - result: {status: success, summary: three beads}
  - when: {env: {MULETEER_PURPOSE: implement}}
    steps:
      - run: muleteer bead show "$bead" --json | sed 's/.*"title":"\([^"]*\)".*/\1/' > .git/title
      - run: echo "implement $(cat .git/title)" >> "$HOME/out/effects"
      - run: echo "what $(cat .git/title) is about" > "$(cat .git/title).txt"
      - commit: "a part"
      - run: |
          for try in 1 2 3 4 5 6; do
            git fetch -q "$MULETEER_REMOTE" "$MULETEER_TARGET_BRANCH" && git rebase -q FETCH_HEAD &&
              git push -q "$MULETEER_REMOTE" HEAD:"$MULETEER_TARGET_BRANCH" && exit 0
          done
          exit 1
      - run: sleep 0.1
      - run: muleteer bead close "$bead" --reason done
      - result: {status: success, summary: done}
  - when: {env: {MULETEER_PURPOSE: maintain}}
    steps:
      - run: echo maintain >> "$HOME/out/effects"
      - run: muleteer bead close "$bead" --reason "nothing is broken" --no-change
      - result: {status: success, summary: nothing}
  - when: {env: {MULETEER_PURPOSE: judge}}
    steps:
      - run: echo "judge $MULETEER_ITERATION" >> "$HOME/out/effects"
      - run: grep -q "it is there" "$MULETEER_ACCEPTANCE_DIR/user-stories.md" && test -s One.txt
      - say: I have looked at all of it.
      - result: {status: success, summary: judged}
  - when: {env: {MULETEER_PURPOSE: structure, MULETEER_ITERATION: "1"}}
    steps:
      - say: >-
          {"status":"success","specDrift":{"detected":true,"issues":[]},
          "acceptance":{"passed":true,"results":[]},"observations":[],
          "newBeads":[{"title":"Four","description":"","type":"bug"}]}
  - when: {env: {MULETEER_PURPOSE: structure}}
    steps:
      - say: >-
          {"status":"success","specDrift":{"detected":false,"issues":[]},
          "acceptance":{"passed":true,"results":[]},"observations":[],"newBeads":[]}
"###;

/// Like the real one, it refuses a second pull request from one branch.
const GH: &str = r#"#!/bin/sh
case "$1 $2" in
"pr view") cat "$HOME/../origin.git/prs" 2>/dev/null ;;
"pr create")
  if test -s "$HOME/../origin.git/prs"; then echo "a pull request already exists" >&2; exit 1; fi
  echo https://example.invalid/pull/1 >> "$HOME/../origin.git/prs"
  echo https://example.invalid/pull/1 ;;
*) exit 1 ;;
esac
"#;

/// The result of a run, without the parts that differ between runs (ids, times, hashes of commits).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Outcome {
    tree: String,
    remote_tree: String,
    /// The state of each bead in the store, by title.
    beads: BTreeMap<String, String>,
    /// The decisions about each bead, by title, without recovery.
    decisions: BTreeMap<String, Vec<String>>,
    run: Vec<String>,
    pull_requests: usize,
}

/// A run that has begun.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) world: World,
    pub(super) repo: Repo,
    run: String,
    /// Further arguments of the command that begins the run.
    more: Vec<&'static str>,
}

impl Stage {
    pub(super) fn new() -> Self {
        let world = World::new();
        std::fs::create_dir(world.home().join("out")).expect("a directory");
        world.configure("sandbox: {write: [~/out]}\n");
        let repo = world.repo("repo");
        repo.write("plan.md", "# Four files\n\nEach says what it is about.\n");
        std::fs::create_dir_all(repo.path.join(".muleteer")).expect("a directory");
        repo.write(
            ".muleteer/config.yaml",
            // A campaign may kill this many agents of one bead in a row.
            "run:\n  agent: {max_concurrency: 2, max_retries_per_bead: 10}\n  phases: {maintain: \
             {n: 2}}\n",
        );
        std::fs::write(world.path().join("scenario.yaml"), SCENARIO).expect("a scenario");
        crate::program::write(&world.bin().join("gh"), GH);
        let origin = world.path().join(ORIGIN);
        let origin = origin.to_str().expect("a test's paths are UTF-8");
        repo.git(&["init", "--quiet", "--bare", "--initial-branch=main", origin]);
        repo.git(&["remote", "add", "origin", origin]);
        repo.git(&["push", "--quiet", "origin", "main"]);
        Self { world, repo, run: String::new(), more: vec![] }
    }

    /// Creates the same stage with beads in the real `tbd`. Returns `None` after a report that
    /// `test` is skipped.
    fn with_tbd(test: &str) -> Option<Self> {
        let agents = crate::tbd::pinned(test)?;
        let stage = Self::new();
        crate::tbd::install(&stage.world, &stage.repo, &agents);
        let config = stage.repo.read(".muleteer/config.yaml");
        stage.repo.write(".muleteer/config.yaml", &format!("{config}  beads: {{store: tbd}}\n"));
        Some(stage)
    }

    fn muleteer(&self, args: &[&str]) -> crate::Muleteer {
        self.world.muleteer(args).current_dir(&self.repo.path).deadline(LONG)
    }

    /// Begins the run and leaves it to the daemon, which may die of it.
    pub(super) fn begin(&mut self) {
        let scenario = self.world.path().join("scenario.yaml");
        let scenario = scenario.to_str().expect("a test's paths are UTF-8");
        self.run =
            self.muleteer(&["run", "--spec", "plan.md", "--scenario", scenario, "--detach"]).ok();
    }

    /// Begins the run by a client that never starts a daemon itself, and lets the client wait for
    /// its answer.
    fn begin_without_help(&mut self) -> Running {
        let scenario = self.world.path().join("scenario.yaml");
        let scenario = scenario.to_str().expect("a test's paths are UTF-8");
        let socket = wait_until("the daemon to answer", LONG, || {
            let status = self.world.status();
            (status["daemon"]["running"] == true)
                .then(|| status["daemon"]["socket"].as_str().map(str::to_string))?
        });
        let words = ["run", "--spec", "plan.md", "--scenario", scenario, "--detach"];
        let client = self
            .muleteer(&[&words[..], &self.more].concat())
            .env("MULETEER_SOCKET", socket)
            .start();
        self.run = wait_until("the run to begin", LONG, || {
            let entry =
                std::fs::read_dir(self.repo.path.join(".muleteer/runs")).ok()?.flatten().next()?;
            entry.file_name().into_string().ok()
        });
        client
    }

    fn events(&self) -> Vec<Value> {
        events::read(&self.log())
    }

    /// Returns the remote; the pull requests are beside git's files there.
    pub(super) fn elsewhere(&self) -> PathBuf {
        self.world.path().join(ORIGIN)
    }

    /// Returns the file that records which part was begun.
    pub(super) fn effects_file(&self) -> PathBuf {
        self.world.home().join("out/effects")
    }

    /// Returns whether the run has a log.
    pub(super) fn is_known(&self) -> bool {
        std::fs::read(self.log()).is_ok_and(|log| log.contains(&b'\n'))
    }

    /// Returns the reason why the run cannot be resumed.
    pub(super) fn refused(&self) -> String {
        self.muleteer(&["run", "--resume", &self.run, "--json"]).run().error_code()
    }

    pub(super) fn log(&self) -> PathBuf {
        self.repo.path.join(".muleteer/runs").join(&self.run).join("events.jsonl")
    }

    fn is_over(&self) -> bool {
        let over = ["run_completed", "run_failed", "run_rested"];
        self.events().last().is_some_and(|event| over.iter().any(|name| event["event"] == *name))
    }

    /// Resumes the run, or joins it if a daemon hosts it already, and waits for its end.
    pub(super) fn finish(&self) -> Value {
        let resumed = self.muleteer(&["run", "--resume", &self.run, "--json"]).run();
        if resumed.code == Some(3) {
            assert_eq!(resumed.error_code(), "E_RUN_LOCKED", "{}", resumed.stdout);
        }
        let done = wait_until("the run to be over", LONG, || {
            let document = self.muleteer(&["run", "--status", &self.run, "--json"]).json();
            (document["status"] != "in_progress").then_some(document)
        });
        assert_eq!(done["status"], "completed", "{done}\n{}\n{}", resumed.stdout, self.told());
        done
    }

    /// Returns the run's log and its branch, for the reader of a failure.
    fn told(&self) -> String {
        let log = std::fs::read_to_string(self.log()).unwrap_or_default();
        let keep = self.world.state().join("runs").join(&self.run).join("keep.git");
        let branch = format!("muleteer/{}", self.run);
        let git = |args: &[&str]| {
            let dir = ["--git-dir", keep.to_str().unwrap_or_default()];
            let said = std::process::Command::new("git").args(dir).args(args).output();
            said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default()
        };
        let branch = [git(&["log", "--stat", "--format=%h %s", &branch]), git(&["for-each-ref"])];
        format!("--- the run's log\n{log}--- its branch\n{}", branch.join("\n"))
    }

    pub(super) fn outcome(&self) -> Outcome {
        events::check(&self.log());
        let branch = format!("muleteer/{}", self.run);
        let listed = self
            .muleteer(&["bead", "list", "--label", &format!("run:{}", self.run), "--json"])
            .json();
        let listed = listed.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let mut titles: BTreeMap<String, String> = BTreeMap::new();
        let mut beads = BTreeMap::new();
        for bead in &listed {
            let title = text(&bead["title"]).replace(&self.run, "the run");
            titles.insert(text(&bead["id"]), title.clone());
            let before = beads.insert(title.clone(), text(&bead["status"]));
            assert!(before.is_none(), "two beads are called {title}: {listed:?}");
        }
        let recovery = ["bead_retried", "run_resumed", "agent_retried", "pool_slowed"];
        let (mut decisions, mut run): (BTreeMap<String, Vec<String>>, Vec<String>) =
            Default::default();
        for event in self.events() {
            let name = text(&event["event"]);
            if recovery.contains(&name.as_str()) {
                // The decision was taken back and will be made again: the two count as one.
                if let Some(list) =
                    event["bead_id"].as_str().and_then(|id| decisions.get_mut(&titles[id]))
                {
                    list.pop();
                }
                // A judge that died is started again, which counts as one start.
                if event["purpose"] == "judge"
                    && run.last().is_some_and(|last| last == "judge_started")
                {
                    run.pop();
                }
                continue;
            }
            match (name.as_str(), event["bead_id"].as_str()) {
                ("bead_assigned" | "bead_completed" | "bead_blocked", Some(id)) => {
                    decisions.entry(titles[id].clone()).or_default().push(name);
                }
                ("agent_started" | "agent_finished" | "run_started", _) => {}
                // The moment of maintenance depends on timing; that it runs once does not.
                ("maintenance_started" | "maintenance_finished", _) => {
                    decisions.entry("maintenance".into()).or_default().push(name);
                }
                _ => run.push(name),
            }
        }
        let tree = |dir: &str, name: &str| {
            self.repo.git(&["--git-dir", dir, "rev-parse", &format!("{name}^{{tree}}")])
        };
        let origin = self.elsewhere();
        let created = std::fs::read_to_string(self.elsewhere().join("prs")).unwrap_or_default();
        Outcome {
            tree: tree(".git", &branch),
            remote_tree: tree(origin.to_str().unwrap_or_default(), &branch),
            beads,
            decisions,
            run,
            pull_requests: created.lines().count(),
        }
    }

    /// Returns the begun parts, sorted by name.
    fn effects(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.effects_file()).unwrap_or_default();
        let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
        lines.sort();
        lines
    }

    pub(super) fn check(&self, only_daemons_died: bool, what: &str) {
        let wanted = undisturbed();
        let told = [
            "bead_retried",
            "agent_retried",
            "bead_blocked",
            "run_stopping",
            "agent_finished",
            "judge_finished",
        ];
        let events: Vec<String> = self
            .events()
            .iter()
            .filter(|event| told.iter().any(|name| event["event"] == *name))
            .map(|event| {
                format!(
                    "{} {} {}{}",
                    event["event"], event["purpose"], event["reason"], event["message"]
                )
            })
            .collect();
        let what = format!("{what}\n{}", events.join("\n"));
        assert_eq!(self.outcome(), wanted.0, "{what}");
        if only_daemons_died {
            assert_eq!(self.effects(), wanted.1, "a prompt was given twice: {what}");
            // A clone whose git was killed may stay if its work could not be secured.
            let left =
                std::fs::read_dir(self.repo.path.join(".muleteer/worktrees").join(&self.run));
            let left: Vec<_> =
                left.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
            assert!(left.is_empty(), "{left:?} are left: {what}");
        }
    }
}

/// Returns the result of an undisturbed run, which is computed once.
pub(super) fn undisturbed() -> &'static (Outcome, Vec<String>) {
    static FOUND: std::sync::OnceLock<(Outcome, Vec<String>)> = std::sync::OnceLock::new();
    FOUND.get_or_init(|| {
        let mut stage = Stage::new();
        let daemon = stage.world.daemon();
        stage.begin();
        stage.finish();
        let found = (stage.outcome(), stage.effects());
        assert_eq!(found.0.pull_requests, 1);
        let states: Vec<&str> = found.0.beads.values().map(String::as_str).collect();
        assert_eq!(states, ["closed"; 5], "{:?}", found.0.beads);
        stage.world.finish(Some(daemon));
        found
    })
}

/// Kills the daemon at each of the points in turn; each next daemon resumes the run.
///
/// # Panics
/// When the run does not end as it should, or no daemon reached a point.
pub fn through(points: &[String]) {
    killed_through(Stage::new(), points);
}

/// Does the same as [`through`], with beads in the real `tbd`.
///
/// # Panics
/// As [`through`]. The expected result is that of a run on the embedded store.
pub fn through_with_tbd(test: &str, points: &[String]) {
    if let Some(stage) = Stage::with_tbd(test) {
        killed_through(stage, points);
    }
}

/// Does the same as [`through`] for a run that works on the checked-out branch. Such a run also
/// brings files and index home, and these agree with the branch however often that was cut off.
///
/// # Panics
/// When they do not agree, or no daemon reached a point.
pub fn home_through(points: &[String]) {
    let mut stage = Stage::new();
    stage.more = vec!["--target", "main"];
    // The state that git may have reached when it was killed.
    let torn = |stage: &Stage| stage.repo.write("One.txt", "what One");
    let daemon = kill_at_each(&mut stage, points, torn);
    let tree = stage.repo.git(&["rev-parse", "HEAD^{tree}"]);
    assert_eq!(tree, undisturbed().0.tree, "{points:?}");
    assert_eq!(stage.effects(), undisturbed().1, "{points:?}");
    assert_eq!(
        stage.repo.git(&["status", "--porcelain", "--untracked-files=no"]),
        "",
        "{points:?}"
    );
    assert_eq!(stage.repo.git(&["stash", "list"]), "", "{points:?}");
    assert!(
        !stage.repo.path.join(".git/muleteer-forward").exists(),
        "nothing is under way: {points:?}"
    );
    stage.world.finish(daemon);
}

fn killed_through(mut stage: Stage, points: &[String]) {
    let last = kill_at_each(&mut stage, points, |_| ());
    stage.check(true, &format!("killed at {points:?}"));
    stage.world.finish(last);
}

/// Begins the run, kills its daemon at each point in turn, calls `then`, and resumes the run to its
/// end. Returns the last daemon.
fn kill_at_each(stage: &mut Stage, points: &[String], then: impl FnOnce(&Stage)) -> Option<Daemon> {
    let (mut last, mut client): (Option<Daemon>, Option<Running>) = (None, None);
    for (at, point) in points.iter().enumerate() {
        let mut daemon = stage.world.daemon_unready(&[("MULETEER_FAULT", point)]);
        if at == 0 {
            client = Some(stage.begin_without_help());
        }
        wait_until(&format!("a daemon to die at {point}"), LONG, || {
            if !daemon.is_alive() {
                return Some(());
            }
            assert!(!stage.is_over(), "{point} was never passed");
            None
        });
        daemon.ended();
        last = Some(daemon);
    }
    then(stage);
    stage.finish();
    drop(client);
    last
}

/// Kills one shim of the run at each of the points in turn, and then the daemon. The next daemon
/// resumes the run each time.
///
/// # Panics
/// When the run does not end as it should, or no shim reached a point.
pub fn shims_through(points: &[&str]) {
    let mut stage = Stage::new();
    let (mut last, mut client): (Option<Daemon>, Option<Running>) = (None, None);
    for (at, point) in points.iter().enumerate() {
        let mark = stage.world.path().join(format!("struck-{at}"));
        let once = mark.to_str().expect("a test's paths are UTF-8");
        let mut daemon =
            stage.world.daemon_unready(&[("MULETEER_FAULT", point), ("MULETEER_FAULT_ONCE", once)]);
        if at == 0 {
            client = Some(stage.begin_without_help());
        }
        wait_until(&format!("a shim to die at {point}"), LONG, || {
            if mark.exists() {
                return Some(());
            }
            assert!(!stage.is_over(), "{point} was never passed");
            None
        });
        daemon.kill_9();
        last = Some(daemon);
    }
    stage.finish();
    drop(client);
    stage.check(false, &format!("shims killed at {points:?}"));
    stage.world.finish(last);
}

/// Kills daemons and shims at moments that the seed chooses, or stops the daemon there and resumes
/// the run twice.
///
/// # Panics
/// When the run does not end as it should.
pub fn seeded(seed: u64) {
    let mut dice = Dice::new(seed);
    let mut stage = Stage::new();
    let first = stage.world.daemon();
    stage.begin();
    let mut struck = vec![];
    for _ in 0..=dice.below(3) {
        // This sleep *is* the test's input: a moment chosen by the seed.
        std::thread::sleep(Duration::from_millis(dice.below(1500)));
        let what = ["daemon", "daemon", "shim", "both", "everything"][dice.below(5) as usize];
        struck.push(what);
        let all = stage.world.processes();
        let shims: Vec<u32> = processes::shims(&all).iter().map(|one| one.pid).collect();
        let daemons: Vec<u32> =
            all.iter().filter(|one| one.is_daemon()).map(|one| one.pid).collect();
        let one = shims.get(dice.below(shims.len().max(1) as u64) as usize).copied();
        let victims: Vec<u32> = match what {
            "daemon" => daemons,
            "shim" => one.into_iter().collect(),
            "both" => daemons.into_iter().chain(one).collect(),
            _ => daemons.into_iter().chain(all.iter().map(|one| one.pid)).collect(),
        };
        for pid in victims {
            stage.world.kill_9(pid);
        }
        if what != "shim" {
            // A person would do that in another terminal.
            stage.muleteer(&["run", "--resume", &stage.run, "--detach"]).run();
        }
    }
    eprintln!("run seed {seed}: killed {struck:?}");
    stage.finish();
    stage.check(
        struck.iter().all(|what| *what == "daemon"),
        &format!("seed {seed}: killed {struck:?}"),
    );
    stage.world.finish(Some(first));
}

/// Loses the output of an agent: the agent ends, and the machine dies before the daemon has read
/// it. Muleteer asks the agent again, and does not take the rest of the output for its answer.
///
/// # Panics
/// When the run does not end as it should, or the `nth` agent that ended had another purpose than
/// `purpose`.
pub fn a_word_that_the_machine_lost(nth: u32, purpose: &str) {
    let mut stage = Stage::new();
    let point = format!("run.agent_ended:{nth}");
    let mut first =
        stage.world.daemon_unready(&[("MULETEER_FAULT", &point), ("MULETEER_FAULT_BOOT", "one")]);
    let client = stage.begin_without_help();
    first.ended();
    let started = stage
        .events()
        .into_iter()
        .rfind(|event| event["event"] == "agent_started")
        .expect("an agent");
    assert_eq!(started["purpose"], purpose);
    let spool =
        stage.world.state().join("agents").join(started["dispatch"].as_str().expect("an id"));
    for file in segments(&spool) {
        std::fs::write(file, "").expect("nothing of it");
    }
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let notes = stage.world.state().join("runs").join(&stage.run).join("bases");
    for note in std::fs::read_dir(notes).expect("a folder").flatten() {
        let note = std::fs::File::options().append(true).open(note.path()).expect("a note");
        note.set_modified(long_ago).expect("its time");
    }
    let second = stage.world.daemon_with(&[("MULETEER_FAULT_BOOT", "two")]);
    stage.finish();
    drop(client);
    stage.check(false, &format!("the machine went down after the {purpose} agent"));
    let again = stage
        .events()
        .into_iter()
        .find(|event| event["event"] == "agent_retried")
        .expect("it was asked again");
    assert!(
        again["reason"].as_str().is_some_and(|why| why.contains("the machine stopped")),
        "{again}"
    );
    stage.world.finish(Some(second));
}

/// Resumes a run twice at once while its host is stopped. One client gets it, the other
/// `E_RUN_LOCKED`.
///
/// # Panics
/// When both or neither get it.
pub fn two_resumes_of_a_stopped_host() {
    let mut stage = Stage::new();
    let mut first = stage.world.daemon_unready(&[("MULETEER_FAULT", "run.agent_ended:3")]);
    let client = stage.begin_without_help();
    first.ended();
    let host = stage.world.daemon();
    stage.world.signal(host.pid(), Signal::STOP);
    let args = ["run", "--resume", stage.run.as_str(), "--detach", "--json"];
    let (one, other) = (stage.muleteer(&args).start(), stage.muleteer(&args).start());
    // Both clients have asked, or are about to; their answers must not depend on that.
    std::thread::sleep(Duration::from_millis(300));
    stage.world.signal(host.pid(), Signal::CONT);
    let answers = [one.finish(), other.finish()];
    let mut codes: Vec<_> = answers.iter().map(|answer| answer.code).collect();
    codes.sort_unstable();
    assert_eq!(codes, [Some(0), Some(3)], "{answers:?}");
    let refused = answers.iter().find(|answer| answer.code == Some(3)).expect("one was refused");
    assert_eq!(refused.error_code(), "E_RUN_LOCKED");
    stage.finish();
    drop(client);
    stage.check(true, "two resumes");
    stage.world.finish(Some(host));
}
