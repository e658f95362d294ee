//! Power cuts: what a disk may hold when the machine dies, worked out from the calls that a real
//! daemon and its shims made on their files.
//!
//! A dispatch is recorded under `strace`. A seed chooses how far that had come, and what of it the
//! disk keeps: data that was not synced is gone, cut short or there; names that were made, renamed
//! or removed since their directory was synced are known up to any of them, in the order they came.
//! What was synced is there, and nothing more is assumed than that. A daemon of another boot begins
//! on the result. Then it must hold:
//!
//! - what was synced of the log is there, byte for byte, and goes on;
//! - the agent was not started twice, and not before its dispatch was durable;
//! - the dispatch comes to an end, the same one if it had ended;
//! - of one that worked in a clone, the branch is in the repository if it had ended well.
//!
//! Below the state directory a name is certain only once its directory was synced. git never syncs
//! one, and counts on a journal: in the repository, and in the clone below it, names are certain
//! with whatever is synced next anywhere.
//!
//! The database is left out: it is made anew from the log where it is missing.

mod disk;
mod runs;
mod tasks;
mod trace;

pub use runs::RecordedRun;
pub use tasks::RecordedTasks;

use super::{Dice, Scene, syscalls};
use crate::{Daemon, World, events};
use disk::{Disk, Kept, Names, Step};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

const AGENT: &str = r#"
echo "start $$" >> effects
echo one; sleep 0.05; echo two
echo end >> effects
echo '{"type":"result","status":"success","summary":"done"}'
"#;

const CALLS: &str = "trace=openat,creat,write,pwrite64,writev,pwritev,ftruncate,rename,renameat,renameat2,unlink,unlinkat,\
                     mkdir,mkdirat,rmdir,link,linkat,fsync,fdatasync,syncfs,sync_file_range,chdir,mount,execve";

/// What an agent commits, where it has a clone.
const WORK: &str = "echo new > b.txt && git add b.txt && git commit --quiet -m 'Add b' && ";

/// What a daemon and all that it started did to files, from before it began until it had ended.
#[derive(Debug)]
struct Recording {
    /// What there was before.
    disk: Disk,
    steps: Vec<Step>,
    /// All trials have the one place: the events name it.
    turn: Mutex<()>,
}

/// A power cut.
struct Cut<'a> {
    /// What the agents had done by then.
    effects: String,
    /// What of the log of events was synced.
    promised: Vec<u8>,
    dice: Dice,
    kept: Kept,
    disk: Disk,
    _turn: MutexGuard<'a, ()>,
}

impl Recording {
    /// Reads what was written into `traces` since the `disk` was as it is.
    fn read(disk: Disk, traces: &Path, effects: &Path) -> Self {
        let steps = trace::read(traces, &disk.roots(), effects);
        Self { disk, steps, turn: Mutex::default() }
    }

    fn count(&self, wanted: fn(&Step) -> bool) -> usize {
        self.steps.iter().filter(|step| wanted(step)).count()
    }

    /// Cuts the power as `seed` chooses; what is on the disk then is not yet laid out.
    fn cut(&self, seed: u64, log: &Path) -> Cut<'_> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut dice = Dice::new(seed);
        let at = dice.below(self.steps.len() as u64 + 1) as usize;
        let mut disk = self.disk.clone();
        let mut effects = String::new();
        for step in &self.steps[..at] {
            match step {
                Step::Effect(line) => effects.push_str(line),
                other => disk.take(other),
            }
        }
        let kept = Kept::of(&mut dice);
        eprintln!("power seed {seed}: after {at} of {} steps, {kept:?}", self.steps.len());
        Cut { effects, promised: disk.synced(log), dice, kept, disk, _turn: turn }
    }
}

impl Cut<'_> {
    /// Writes what is left in place of what is there.
    fn lay_out(&mut self) {
        self.disk.lay_out(self.kept, &mut self.dice);
    }

    /// Has a daemon of another boot begin on it.
    ///
    /// # Panics
    /// When something of the `log` is gone that was synced.
    fn boot(&self, world: &World, log: &Path, effects: &Path) -> Daemon {
        std::fs::write(effects, &self.effects).expect("the effects so far");
        let daemon = world.daemon_with(&[("MULETEER_FAULT_BOOT", "two")]);
        let now = std::fs::read(log).expect("the log");
        assert!(
            now.starts_with(&self.promised),
            "what was synced of the log is not there any more"
        );
        daemon
    }
}

/// A dispatch from before its daemon began until it had ended, as a list of what was done to its
/// files.
#[derive(Debug)]
pub struct Recorded {
    scene: Scene,
    /// The agent worked in a clone.
    clone: bool,
    recording: Recording,
}

impl Recorded {
    /// Runs a dispatch under `strace`.
    ///
    /// # Panics
    /// When it does not come to its end.
    pub fn new(clone: bool) -> Self {
        let scene = Scene::new();
        let mut disk = Disk::default();
        disk.root(&scene.world.state(), Names::Synced);
        disk.root(&scene.repo.path, Names::Journal);
        let (traces, mut daemon) = under_strace(&scene.world);
        daemon.answers_or_ends(&scene.world);
        let effects = scene.repo_path("effects");
        let script = AGENT.replace("effects", &effects.display().to_string());
        let (script, more) = if clone {
            (
                script.replace("echo one;", &format!("{WORK} echo one;")),
                &["--wait", "--worktree"][..],
            )
        } else {
            (script, &["--wait"][..])
        };
        let ran = scene.world.spawn(&scene.repo, &script, more).run();
        assert_eq!(ran.code, Some(0), "{ran:?}\n{}", daemon.log());
        scene.world.expect_clean_end(Some(daemon));
        let recording = Recording::read(disk, &traces, &effects);
        assert_eq!(
            recording.count(|step| matches!(step, Step::Effect(_))),
            2,
            "the agent's effects are in the recording"
        );
        assert!(recording.count(|step| matches!(step, Step::Sync(_))) > 5, "so is what was synced");
        Self { scene, clone, recording }
    }

    /// How many places there are to cut at.
    pub fn len(&self) -> usize {
        self.recording.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts the power as `seed` chooses, and lets a daemon begin on what is left.
    ///
    /// # Panics
    /// When something that must hold does not.
    pub fn cut(&self, seed: u64) {
        let Scene { world, repo } = &self.scene;
        let log = world.state().join("events.jsonl");
        let mut cut = self.recording.cut(seed, &log);
        cut.lay_out();
        let daemon = cut.boot(world, &log, &self.scene.repo_path("effects"));
        let created = world.events().into_iter().find(|event| event["event"] == "dispatch_created");
        match created.as_ref().and_then(|event| event["dispatch_id"].as_str()) {
            None => assert_eq!(cut.effects, "", "an agent ran whose dispatch is not known"),
            Some(id) => {
                let had = String::from_utf8_lossy(&cut.promised)
                    .contains("\"event\":\"dispatch_finished\"");
                let entry = world.wait_for_end(id);
                let after = repo.effects("effects");
                let starts = after.iter().filter(|line| line.starts_with("start ")).count();
                assert!(starts <= 1, "started twice: {after:?}\n{entry}");
                assert!(!had || entry["state"] == "success", "it had ended otherwise: {entry}");
                let ended = after.last().is_some_and(|line| line == "end");
                assert!(entry["state"] != "success" || ended, "{after:?}\n{entry}");
                // What its agent's own git did not sync may be lost: its work is done then, and
                // cannot be brought home.
                let lost = self.clone && ended && entry["work"]["trouble"].is_string();
                let known = match entry["state"].as_str() {
                    Some("success" | "failed") => true,
                    Some("partial") => lost,
                    _ => false,
                };
                assert!(known, "nothing of it can be alive, and nothing else is wrong: {entry}");
                if self.clone && entry["state"] == "success" {
                    // What its agent's own git did not sync may be lost, and then that is said.
                    let said =
                        world.events().iter().any(|event| event["what"] == format!("work of {id}"));
                    if had || !said {
                        assert_eq!(
                            repo.git(&["show", &format!("muleteer/{id}:b.txt")]),
                            "new",
                            "{entry}"
                        );
                    }
                }
            }
        }
        events::check(&log);
        world.expect_clean_end(Some(daemon));
    }
}

/// A daemon of the boot `one` whose calls, and those of all that it starts, are written into the
/// folder that is given.
fn under_strace(world: &World) -> (PathBuf, Daemon) {
    let traces = world.path().join("traces");
    std::fs::create_dir(&traces).expect("a folder");
    let output = traces.join("of").display().to_string();
    let words = [
        "env",
        "MULETEER_FAULT_BOOT=one",
        "strace",
        "-D",
        "-qq",
        "-ff",
        "-ttt",
        "-T",
        "-y",
        "-s",
        "1000000",
    ];
    let words = [&words[..], &["-e", "signal=none", "-o", &output, "-e", CALLS]].concat();
    let daemon = world.daemon_under(&words.into_iter().map(String::from).collect::<Vec<_>>());
    (traces, daemon)
}

impl Default for Recorded {
    fn default() -> Self {
        Self::new(false)
    }
}

/// Whether it can be tried here.
///
/// # Errors
/// What stands in the way.
pub fn available() -> Result<(), String> {
    syscalls::available()
}
