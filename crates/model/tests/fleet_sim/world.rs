//! The world outside of the daemon: shims and their agents, which survive the daemon.

use crate::rng::Rng;
use muleteer_model::agent::event::{AgentEvent, TurnResult};
use muleteer_model::dispatch::Exit;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::ExitCause;
use muleteer_model::event::id::DispatchId;
use std::collections::BTreeMap;

#[derive(Debug, Clone)]
pub enum Rec {
    Spawned,
    Line(Vec<AgentEvent>),
    Exited(Exit),
}

/// The shim of one attempt.
#[derive(Debug)]
struct Shim {
    epoch: u32,
    resumable: bool,
    prompted: bool,
    ending: bool,
    /// The steps of work that are left.
    work: u64,
    alive: bool,
}

/// The state of a dispatch's shim.
#[derive(Debug, PartialEq, Eq)]
pub enum Standing {
    Never,
    Alive,
    /// Its spool ends with an exit.
    Ended,
    /// Its spool ends without an exit.
    Lost,
}

#[derive(Debug, Default)]
pub struct World {
    pub chaos: u64,
    shims: BTreeMap<DispatchId, Shim>,
    pub spools: BTreeMap<(DispatchId, u32), Vec<Rec>>,
}

impl World {
    pub fn new(chaos: u64) -> Self {
        Self { chaos, ..Self::default() }
    }

    /// Whether a fault occurs: the probability is `chaos` in `per * 10`.
    pub fn trouble(&self, rng: &mut Rng, per: u64) -> bool {
        self.chaos > 0 && rng.below(per * 10) < self.chaos
    }

    pub fn alive(&self) -> usize {
        self.shims.values().filter(|shim| shim.alive).count()
    }

    /// Returns a random working agent, if there is one.
    pub fn working(&self, rng: &mut Rng) -> Option<DispatchId> {
        let all: Vec<_> = self
            .shims
            .iter()
            .filter(|(_, shim)| shim.alive && shim.prompted)
            .map(|(id, _)| id)
            .collect();
        (!all.is_empty()).then(|| (*rng.pick(&all)).clone())
    }

    pub fn stand(&self, id: &DispatchId, epoch: u32) -> Standing {
        let spool = self.spools.get(&(id.clone(), epoch));
        let alive = self.shims.get(id).is_some_and(|shim| shim.alive && shim.epoch == epoch);
        match spool {
            _ if alive => Standing::Alive,
            None => Standing::Never,
            Some(spool) if matches!(spool.last(), Some(Rec::Exited(_))) => Standing::Ended,
            Some(_) => Standing::Lost,
        }
    }

    pub fn begin(&mut self, id: &DispatchId, epoch: u32, resumable: bool, rng: &mut Rng) {
        let before = self.shims.get(id);
        assert!(before.is_none_or(|shim| !shim.alive), "a second copy of {id} beside a living one");
        assert!(before.is_none_or(|shim| shim.epoch < epoch), "epoch {epoch} of {id} began twice");
        let work = 1 + rng.below(30);
        self.shims.insert(
            id.clone(),
            Shim { epoch, resumable, prompted: false, ending: false, work, alive: true },
        );
        self.put(id, epoch, Rec::Spawned);
        if resumable {
            let session_id = Some(format!("session of {id}"));
            self.put(
                id,
                epoch,
                Rec::Line(vec![AgentEvent::Session { model: None, cwd: None, session_id }]),
            );
        }
    }

    pub fn prompt(&mut self, id: &DispatchId, epoch: u32) {
        let Some(shim) = self.shims.get_mut(id).filter(|shim| shim.alive && shim.epoch == epoch)
        else {
            return;
        };
        if !std::mem::replace(&mut shim.prompted, true) && shim.resumable {
            let receipt = AgentEvent::Prompt { text: String::new(), key: None, repeated: false };
            self.put(id, epoch, Rec::Line(vec![receipt]));
        }
    }

    pub fn terminate(&mut self, id: &DispatchId, epoch: u32) {
        if let Some(shim) = self.shims.get_mut(id).filter(|shim| shim.epoch == epoch) {
            shim.ending = true;
        }
    }

    /// Terminates the processes that a dead shim left.
    pub fn sweep(&mut self, id: &DispatchId) {
        if let Some(shim) = self.shims.get_mut(id) {
            shim.alive = false;
        }
    }

    fn put(&mut self, id: &DispatchId, epoch: u32, rec: Rec) {
        self.spools.entry((id.clone(), epoch)).or_default().push(rec);
    }

    /// Lets a random agent work for a step; it does not end before the agents that it dispatched.
    pub fn step(&mut self, rng: &mut Rng, fleet: &Fleet) {
        let alive: Vec<_> =
            self.shims.iter().filter(|(_, shim)| shim.alive).map(|(id, _)| id.clone()).collect();
        if alive.is_empty() {
            return;
        }
        let id = rng.pick(&alive).clone();
        let (crash, lost) = (self.trouble(rng, 30), self.trouble(rng, 60));
        let waits =
            fleet.iter().any(|d| !d.is_finished() && d.created.parent.as_ref() == Some(&id));
        let Some(shim) = self.shims.get_mut(&id) else { return };
        let epoch = shim.epoch;
        if lost {
            shim.alive = false;
            return;
        }
        let exit = |code, signal, cause| {
            Rec::Exited(Exit { code, signal, cause, stderr_tail: String::new(), left: vec![] })
        };
        if shim.ending {
            shim.alive = false;
            self.put(&id, epoch, exit(None, Some(15), ExitCause::Terminated));
        } else if crash {
            shim.alive = false;
            self.put(&id, epoch, exit(Some(1), None, ExitCause::Exited));
        } else if shim.prompted && shim.work > 0 {
            shim.work -= 1;
        } else if shim.prompted && !waits {
            shim.alive = false;
            if shim.resumable {
                let result =
                    TurnResult { ok: true, text: Some("done".into()), ..TurnResult::default() };
                self.put(&id, epoch, Rec::Line(vec![AgentEvent::Result(result)]));
            }
            self.put(&id, epoch, exit(Some(0), None, ExitCause::Exited));
        }
    }
}
