//! What was seen of the play: the events as they were streamed, and what no event tells.

use crate::demo::cast::Part;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::{Event, FinalState, Record};
use muleteer_model::fleet::Fleet;
use muleteer_model::id::DispatchId;
use muleteer_process::identity::ProcessId;
use muleteer_protocol::v1::DispatchStatus;

#[derive(Debug, Default)]
pub struct Log {
    /// In the order in which they came, repeated ones too.
    pub records: Vec<Record>,
    pub fleet: Fleet,
    /// The dispatches, in the order of the cast.
    pub agents: Vec<(DispatchId, &'static Part)>,
    /// Pids of the daemons that were started, oldest first.
    pub daemons: Vec<u32>,
    /// The first one died of SIGKILL, and nothing else.
    pub daemon_killed: bool,
    /// How often the stream broke off, and went on.
    pub lost: u32,
    pub back: u32,
    /// Of the victim, and whether the signal reached it.
    pub killed: Option<(u32, bool)>,
    /// Each agent's process when the daemon was killed; true once it was still there, the very same,
    /// after the next daemon had taken it over.
    pub processes: Vec<(&'static str, ProcessId, bool)>,
    /// Who got work done while no daemon lived.
    pub unattended: Vec<&'static str>,
    /// What `status` said at the end.
    pub statuses: Vec<DispatchStatus>,
}

impl Log {
    pub fn take(&mut self, record: Record) {
        self.fleet.apply(&record);
        self.records.push(record);
    }

    pub fn id(&self, role: &str) -> Option<&DispatchId> {
        self.agents.iter().find(|(_, part)| part.role == role).map(|(id, _)| id)
    }

    pub fn role(&self, id: &DispatchId) -> Option<&'static str> {
        self.agents.iter().find(|(of, _)| of == id).map(|(_, part)| part.role)
    }

    pub fn dispatch(&self, role: &str) -> Option<&Dispatch> {
        self.fleet.get(self.id(role)?).map(|dispatch| &**dispatch)
    }

    pub fn status(&self, role: &str) -> Option<&DispatchStatus> {
        self.statuses.iter().find(|status| status.role == role)
    }

    /// The events of one role's dispatch.
    pub fn of<'a>(&'a self, role: &str) -> impl Iterator<Item = &'a Event> {
        let id = self.id(role).cloned();
        let of = move |record: &&Record| id.is_some() && record.entry.dispatch_id == id;
        self.records.iter().filter(of).map(|record| &record.entry.event)
    }

    /// True when the agent has come to a gate (see `hold.sh`).
    pub fn waits_at(&self, role: &str, gate: &str) -> bool {
        let command = format!("hold\" {gate}");
        self.of(role)
            .any(|event| matches!(event, Event::ToolCalled { target, .. } if target.ends_with(&command)))
    }

    /// True when this holds of every one of the cast.
    pub fn all(&self, holds: impl Fn(&'static str) -> bool) -> bool {
        !self.agents.is_empty() && self.agents.iter().all(|(_, part)| holds(part.role))
    }

    /// One that has ended in another way than it should.
    pub fn failed(&self) -> Option<String> {
        self.agents.iter().find_map(|(_, part)| {
            self.of(part.role).find_map(|event| match event {
                Event::DispatchFinished { state, reason, .. } if *state != FinalState::Success => {
                    Some(format!("the {} ended {}: {reason}", part.role, state.as_str()))
                }
                _ => None,
            })
        })
    }

    /// How often each of these happened to a role.
    pub fn count(&self, role: &str, is_it: impl Fn(&Event) -> bool) -> usize {
        self.of(role).filter(|event| is_it(event)).count()
    }
}
