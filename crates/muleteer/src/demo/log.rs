//! The record of the play: the run's events as they were streamed, and facts that no event reports.

use crate::demo::cast::{CAST, Part};
use muleteer_model::event::{Event, Record};
use muleteer_model::spec_run::event::{AgentStarted, Purpose, RunStatus};
use muleteer_model::spec_run::report::history::{Chronicle, Stint};
use muleteer_model::spec_run::{Job, RunStanding, Stage};
use muleteer_process::identity::ProcessId;
use muleteer_protocol::v1::DispatchStatus;

#[derive(Debug, Default)]
pub struct Log {
    /// The run's events in their order of arrival, including repeated ones.
    pub records: Vec<Record>,
    pub chronicle: Option<Chronicle>,
    pub run_id: String,
    /// The pids of the daemons that were started, oldest first.
    pub daemons: Vec<u32>,
    /// SIGKILL, and nothing else, ended the first daemon.
    pub daemon_killed: bool,
    /// How often the stream was lost, and how often it came back.
    pub lost: u32,
    pub back: u32,
    /// All events of the run were streamed.
    pub ended: bool,
    /// The victim's dispatch, its pid, and whether the signal reached it.
    pub killed: Option<(String, u32, bool)>,
    /// Each survivor's process when the daemon was killed. The flag is true if the same process was
    /// still alive after the next daemon had adopted it.
    pub processes: Vec<(&'static str, ProcessId, bool)>,
    /// The beads that made progress while no daemon was alive.
    pub unattended: Vec<&'static str>,
    /// The answer to `status` at the end.
    pub statuses: Vec<DispatchStatus>,
    /// git's output when the result was merged.
    pub merged: Option<String>,
}

impl Log {
    pub fn take(&mut self, record: Record) {
        match &mut self.chronicle {
            Some(chronicle) => chronicle.apply(&record),
            None => self.chronicle = Chronicle::begin(&record),
        }
        self.records.push(record);
    }

    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.records.iter().map(|record| &record.entry.event)
    }

    pub fn stints(&self) -> impl Iterator<Item = &Stint> {
        self.chronicle.iter().flat_map(|chronicle| &chronicle.stints)
    }

    /// Returns the part of a bead.
    pub fn part(&self, bead: &str) -> Option<&'static Part> {
        let title = &self.chronicle.as_ref()?.run.beads.get(bead)?.planned.title;
        CAST.iter().find(|part| part.title == title)
    }

    pub fn bead(&self, key: &str) -> Option<&str> {
        let run = &self.chronicle.as_ref()?.run;
        run.order
            .iter()
            .map(String::as_str)
            .find(|id| self.part(id).is_some_and(|part| part.key == key))
    }

    /// Returns the name of an agent: its bead's, else its purpose.
    pub fn who(&self, start: &AgentStarted) -> &'static str {
        let part = start.bead_id.as_deref().and_then(|bead| self.part(bead));
        part.map_or(start.purpose.as_str(), |part| part.key)
    }

    /// Returns the agent that works on a bead now.
    pub fn job(&self, key: &str) -> Option<&Job> {
        let bead = self.bead(key)?;
        let run = &self.chronicle.as_ref()?.run;
        run.jobs.values().find(|job| {
            job.start.purpose == Purpose::Implement && job.start.bead_id.as_deref() == Some(bead)
        })
    }

    pub fn attempts(&self, key: &str) -> u32 {
        let run = self.chronicle.as_ref().map(|chronicle| &chronicle.run);
        self.bead(key).and_then(|bead| run?.beads.get(bead)).map_or(0, |task| task.attempts)
    }

    pub fn outcome(&self) -> Option<RunStatus> {
        self.chronicle.as_ref()?.run.outcome()
    }

    pub fn done(&self) -> usize {
        self.chronicle.as_ref().map_or(0, |chronicle| chronicle.run.count(Stage::Done))
    }

    /// Returns the reason if the run failed, rests, or ended in an unexpected state.
    pub fn failed(&self) -> Option<String> {
        let run = &self.chronicle.as_ref()?.run;
        match &run.standing {
            RunStanding::Running | RunStanding::Stopping(_) => None,
            RunStanding::Resting { reason, .. } => Some(format!("the run is paused: {reason}")),
            RunStanding::Ended { error: Some(error), .. } => {
                Some(format!("the run failed: {} {}", error.code, error.message))
            }
            RunStanding::Ended { outcome: RunStatus::Completed, error: None } => None,
            RunStanding::Ended { outcome, error: None } => {
                Some(format!("the run ended {}", outcome.as_str()))
            }
        }
    }
}
