//! Power cuts in a spec run: its log, its beads, its own repositories and clones, and the person's.
//!
//! - The synced part of the run's log is there, byte for byte, and the log continues after it.
//! - If the run is not known, no agent of it had begun.
//! - The run ends as an undisturbed run does, whatever had to be repeated: the same tree here and
//!   at the remote, the same beads, the same decisions about each, one pull request.
//!
//! The remote and the host of pull requests are other machines, which keep everything that they
//! received.

use super::{Disk, Names, Recording, Step, under_strace};
use crate::crash::runs::{Stage, undisturbed};
use crate::events;

/// A recorded spec run: the steps on its files.
#[derive(Debug)]
pub struct RecordedRun {
    stage: Stage,
    recording: Recording,
}

impl RecordedRun {
    /// Runs a spec under `strace`.
    ///
    /// # Panics
    /// When the run does not end.
    pub fn new() -> Self {
        let mut stage = Stage::new();
        let (state, own) = (stage.world.state(), stage.repo.path.join(".muleteer"));
        let mut disk = Disk::default();
        disk.root(&state, Names::Synced);
        disk.root(&state.join("runs"), Names::Journal);
        disk.root(&stage.repo.path, Names::Journal);
        disk.root(&own.join("runs"), Names::Synced);
        disk.root(&own.join("beads"), Names::Synced);
        disk.root(&stage.world.path().join("cache"), Names::Synced);
        disk.root(&stage.elsewhere(), Names::Elsewhere);
        let (traces, mut daemon) = under_strace(&stage.world, false);
        daemon.answers_or_ends(&stage.world);
        stage.begin();
        stage.finish();
        assert_eq!(stage.outcome(), undisturbed().0, "{}", daemon.log());
        stage.world.expect_clean_end(Some(daemon));
        let recording = Recording::read(disk, &traces, &stage.effects_file());
        let effects = recording.count(|step| matches!(step, Step::Effect(_)));
        assert_eq!(effects, undisturbed().1.len(), "the agents' effects are in the recording");
        Self { stage, recording }
    }

    /// Returns the number of steps after which the power can be cut.
    pub fn len(&self) -> usize {
        self.recording.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Cuts the power as `seed` chooses, starts a daemon on the remaining state, and resumes the
    /// run.
    ///
    /// # Panics
    /// When an invariant does not hold.
    pub fn cut(&self, seed: u64) {
        let stage = &self.stage;
        let log = stage.world.state().join("events.jsonl");
        let mut cut = self.recording.cut(seed, &log);
        let promised = cut.disk.synced(&stage.log());
        cut.lay_out();
        let daemon = cut.boot(&stage.world, &log, &stage.effects_file());
        if promised.is_empty() && !stage.is_known() {
            assert_eq!(cut.effects, "", "an agent ran for a run that is not known");
            assert_eq!(stage.refused(), "E_NOT_FOUND");
        } else {
            stage.finish();
            let now = std::fs::read(stage.log()).expect("the run's log");
            assert!(
                now.starts_with(&promised),
                "what was synced of the run's log is not there any more"
            );
            stage.check(false, &format!("power seed {seed}\n{}", daemon.log()));
        }
        events::check(&log);
        stage.world.expect_clean_end(Some(daemon));
    }
}

impl Default for RecordedRun {
    fn default() -> Self {
        Self::new()
    }
}
