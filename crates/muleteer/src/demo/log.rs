//! What was seen of the play: the run's events as they were streamed, and what no event tells.

use crate::demo::cast::{CAST, Part};
use muleteer_model::event::{Event, Record};
use muleteer_model::spec_run::event::{AgentStarted, Purpose, RunStatus};
use muleteer_model::spec_run::report::history::{Chronicle, Stint};
use muleteer_model::spec_run::{Job, Stage};
use muleteer_process::identity::ProcessId;
use muleteer_protocol::v1::DispatchStatus;

#[derive(Debug, Default)]
pub struct Log {
    /// Of the run, in the order in which they came, repeated ones too.
    pub records: Vec<Record>,
    pub chronicle: Option<Chronicle>,
    pub run_id: String,
    /// Pids of the daemons that were started, oldest first.
    pub daemons: Vec<u32>,
    /// The first one died of SIGKILL, and nothing else.
    pub daemon_killed: bool,
    /// How often the stream broke off, and went on.
    pub lost: u32,
    pub back: u32,
    /// All of its events were streamed.
    pub ended: bool,
    /// Of the victim: its dispatch, its pid, and whether the signal reached it.
    pub killed: Option<(String, u32, bool)>,
    /// Each survivor's process when the daemon was killed; true once it was still there, the very
    /// same, after the next daemon had taken it over.
    pub processes: Vec<(&'static str, ProcessId, bool)>,
    /// Who got work done while no daemon lived.
    pub unattended: Vec<&'static str>,
    /// What `status` said at the end.
    pub statuses: Vec<DispatchStatus>,
    /// What git said when the result was merged.
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

    /// The part that a bead plays.
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

    /// Whose an agent is: a bead's, or what it is for.
    pub fn who(&self, start: &AgentStarted) -> &'static str {
        let part = start.bead_id.as_deref().and_then(|bead| self.part(bead));
        part.map_or(start.purpose.as_str(), |part| part.key)
    }

    /// The agent that is at a bead now.
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
        self.chronicle.as_ref()?.run.outcome
    }

    pub fn done(&self) -> usize {
        self.chronicle.as_ref().map_or(0, |chronicle| chronicle.run.count(Stage::Done))
    }

    /// The run has ended, or rests, in another way than it should.
    pub fn failed(&self) -> Option<String> {
        let run = &self.chronicle.as_ref()?.run;
        match (run.status(), &run.error, &run.resting) {
            (_, Some(error), _) => {
                Some(format!("the run failed: {} {}", error.code, error.message))
            }
            (_, _, Some((_, reason))) => Some(format!("the run rests: {reason}")),
            (RunStatus::InProgress | RunStatus::Completed, ..) => None,
            (status, ..) => Some(format!("the run ended {}", status.as_str())),
        }
    }
}
