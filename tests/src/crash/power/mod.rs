//! Power cuts: the states that a disk may have when the machine dies, computed from the calls that
//! a real daemon and its shims made on their files.
//!
//! A dispatch is recorded under `strace`. A seed chooses the step at which the power is cut, and
//! the part of the unsynced state that the disk keeps. Data that was not synced is gone, cut short
//! or there. Names that were made, renamed or removed since their directory was synced are known up
//! to any of them, in their order. Synced data is there, and the model assumes nothing more. A
//! daemon of another boot starts on the result. Then these invariants must hold:
//!
//! - the synced part of the log is there, byte for byte, and the log continues after it;
//! - the agent was not started twice, and not before its dispatch was durable;
//! - the dispatch ends, and if it had ended before, with the same result;
//! - if the dispatch worked in a clone and had ended well, its branch is in the repository.
//!
//! Below the state directory a name is certain only once its directory was synced. git never syncs
//! a directory and relies on a journal: in the repository, and in the clone below it, names are
//! certain with the next sync of anything.
//!
//! The database is left out, because a daemon makes it again from the log if it is missing.

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

const CALLS: &str = "trace=openat,creat,write,pwrite64,writev,pwritev,ftruncate,rename,renameat,\
                     renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat,fsync,fdatasync,\
                     syncfs,sync_file_range,chdir,mount,execve";

/// The commands by which an agent with a clone makes a commit.
const WORK: &str = "echo new > b.txt && git add b.txt && git commit --quiet -m 'Add b' && ";

/// The steps of a daemon and all its descendants on files, from before its start until its end.
#[derive(Debug)]
struct Recording {
    /// The state before the first step.
    disk: Disk,
    steps: Vec<Step>,
    /// All trials use the same place, because the events name it. So they take turns.
    turn: Mutex<()>,
}

/// The state at one power cut.
struct Cut<'a> {
    /// The effects of the agents up to the cut.
    effects: String,
    /// The synced part of the event log.
    promised: Vec<u8>,
    dice: Dice,
    kept: Kept,
    disk: Disk,
    _turn: MutexGuard<'a, ()>,
}

impl Recording {
    /// Reads the steps in `traces` that followed the state `disk`.
    fn read(disk: Disk, traces: &Path, effects: &Path) -> Self {
        let steps = trace::read(traces, &disk.roots(), effects);
        Self { disk, steps, turn: Mutex::default() }
    }

    fn count(&self, wanted: fn(&Step) -> bool) -> usize {
        self.steps.iter().filter(|step| wanted(step)).count()
    }

    /// Cuts the power as `seed` chooses, without writing the remaining state to the real disk.
    fn cut(&self, seed: u64, log: &Path) -> Cut<'_> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut dice = Dice::new(seed);
        let at = dice.below(self.steps.len() as u64 + 1) as usize;
        let mut disk = self.disk.clone();
        let (mut effects, mut promised) = (String::new(), vec![]);
        for step in &self.steps[..at] {
            match step {
                Step::Effect(line) => effects.push_str(line),
                // The file was closed: its lines are in a segment.
                Step::Rename { to, .. } if to == log => {
                    promised.extend(disk.synced(log));
                    disk.take(step);
                }
                other => disk.take(other),
            }
        }
        promised.extend(disk.synced(log));
        let kept = Kept::of(&mut dice);
        eprintln!("power seed {seed}: after {at} of {} steps, {kept:?}", self.steps.len());
        Cut { effects, promised, dice, kept, disk, _turn: turn }
    }
}

impl Cut<'_> {
    /// Replaces the real files by those that the power cut leaves.
    fn lay_out(&mut self) {
        self.disk.lay_out(self.kept, &mut self.dice);
    }

    /// Starts a daemon of another boot on the remaining state.
    ///
    /// # Panics
    /// When a synced part of the `log` is gone.
    fn boot(&self, world: &World, log: &Path, effects: &Path) -> Daemon {
        std::fs::write(effects, &self.effects).expect("the effects so far");
        let daemon = world.daemon_with(&[("MULETEER_FAULT_BOOT", "two")]);
        let now = events::lines(log);
        let promised = String::from_utf8_lossy(&self.promised);
        assert!(
            promised.lines().eq(now.iter().take(promised.lines().count())),
            "what was synced of the log is not there any more"
        );
        daemon
    }
}

/// A recorded dispatch: the steps on its files from before its daemon's start until its end.
#[derive(Debug)]
pub struct Recorded {
    scene: Scene,
    /// Whether the agent worked in a clone.
    clone: bool,
    recording: Recording,
}

impl Recorded {
    /// Runs a dispatch under `strace`.
    ///
    /// # Panics
    /// When it does not end.
    pub fn new(clone: bool) -> Self {
        let scene = Scene::new();
        let mut disk = Disk::default();
        disk.root(&scene.world.state(), Names::Synced);
        disk.root(&scene.repo.path, Names::Journal);
        // The log of a dispatch with a clone is in segments.
        let (traces, mut daemon) = under_strace(&scene.world, clone);
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

    /// Returns the number of steps after which the power can be cut.
    pub fn len(&self) -> usize {
        self.recording.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts the power as `seed` chooses, and starts a daemon on the remaining state.
    ///
    /// # Panics
    /// When an invariant does not hold.
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
                // Data that the agent's own git did not sync may be lost. Then the work is done and
                // cannot be brought home.
                let lost = self.clone && ended && entry["work"]["trouble"].is_string();
                let known = match entry["state"].as_str() {
                    Some("success" | "failed") => true,
                    Some("partial") => lost,
                    _ => false,
                };
                assert!(known, "nothing of it can be alive, and nothing else is wrong: {entry}");
                if self.clone && entry["state"] == "success" {
                    // Data that the agent's own git did not sync may be lost. Then the daemon
                    // reports that.
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

/// Starts a daemon of the boot `one` under strace. The calls of the daemon and all its descendants
/// go to the returned folder.
fn under_strace(world: &World, in_segments: bool) -> (PathBuf, Daemon) {
    let traces = world.path().join("traces");
    std::fs::create_dir(&traces).expect("a folder");
    let output = traces.join("of").display().to_string();
    let words = [
        "env",
        "MULETEER_FAULT_BOOT=one",
        if in_segments { "MULETEER_FAULT_SEGMENT=1" } else { "MULETEER_FAULT_BOOT=one" },
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

/// Checks whether power cuts can be tried here.
///
/// # Errors
/// The reason why they cannot.
pub fn available() -> Result<(), String> {
    syscalls::available()
}
