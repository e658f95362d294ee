//! Records which process is behind a claim. A claim names a worker, and its lease does not say
//! whether that worker still lives. If its process is known and has ended, its task was
//! interrupted.

use crate::atomic::write_atomic;
use crate::task_list::contents::bytes;
use crate::task_list::files::Tx;
use crate::task_list::lock::SessionLock;
use crate::task_list::root::Root;
use muleteer_model::task_list::Status;
use muleteer_model::task_list::TaskList;
use muleteer_model::task_list::session::claim;
use muleteer_process::group;
use muleteer_process::identity::{ProcessId, boot_id, pid_namespace};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How many workers are remembered: the newest ones.
const REMEMBERED: usize = 200;
/// The variable in the environment of a run's agents, with the run's id.
pub const RUN_VARIABLE: &str = "MULETEER_TASKS_RUN";

/// The process of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behind<'a> {
    /// A session of an agent CLI. A process has one session at a time, so a new session ends the
    /// one before.
    Session(ProcessId),
    /// A process that other workers may share.
    Process(ProcessId),
    /// This process, as the daemon of a run. The run's agents outlive it.
    Run(&'a str),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    pid: u32,
    start_time: u64,
    boot_id: String,
    pid_namespace: u64,
    host: String,
    /// Counts up: a larger number is newer.
    number: u64,
    #[serde(default)]
    is_session: bool,
    #[serde(default)]
    run: Option<String>,
}

type Records = BTreeMap<String, Record>;

impl Tx {
    /// Remembers the process behind a worker. It is only a hint: if it cannot be written, the lease
    /// alone decides.
    pub fn remember_holder(&self, worker: &str, behind: Behind<'_>) {
        let mut all = read(&self.root);
        let (id, is_session, run) = match behind {
            Behind::Session(id) => (id, true, None),
            // The session with this name is better information.
            Behind::Process(_)
                if all.get(worker).is_some_and(|known| known.is_session && known.lives()) =>
            {
                return;
            }
            Behind::Process(id) => (id, false, None),
            Behind::Run(run) => (ProcessId::current(), false, Some(run.to_string())),
        };
        let number = all.values().map(|record| record.number).max().unwrap_or(0) + 1;
        let (pid, start_time) = (id.pid, id.start_time);
        let record = Record {
            pid,
            start_time,
            boot_id: boot_id(),
            pid_namespace: pid_namespace(),
            host: host(),
            number,
            is_session,
            run,
        };
        all.insert(worker.into(), record);
        while all.len() > REMEMBERED {
            let oldest = all
                .iter()
                .min_by_key(|(_, record)| record.number)
                .map(|(worker, _)| worker.clone());
            oldest.map(|worker| all.remove(&worker));
        }
        self.root.write_holders(&all);
    }
}

impl Tx {
    /// Forgets the process behind a worker that acts now, if that process has ended. It was not the
    /// worker's own, but for example a script that ran one of its hooks. The lease alone decides
    /// then.
    pub fn forget_ended_holder(&self, worker: &str) {
        let mut all = read(&self.root);
        let session = worker.split('/').next().unwrap_or_default();
        let before = all.len();
        for name in [worker, session] {
            if all.get(name).is_some_and(|known| known.run.is_none() && !known.lives()) {
                all.remove(name);
            }
        }
        if all.len() < before {
            self.root.write_holders(&all);
        }
    }
}

impl Root {
    fn write_holders(&self, all: &Records) {
        if std::fs::create_dir_all(self.private()).is_ok()
            && let Ok(bytes) = serde_json::to_vec(all)
        {
            drop(write_atomic(&file(self), &bytes, 0o600));
        }
    }

    /// Ends the leases in an exclusive list whose holders are known to have ended.
    pub fn end_leases(&self, list: &mut TaskList, now: jiff::Timestamp) {
        let all = read(self);
        let held =
            list.tasks.iter().filter(|task| task.status == Status::InProgress && task.is_held(now));
        let by: Vec<_> = held.filter_map(|task| task.claimed_by.clone()).collect();
        let gone: Vec<_> = by.into_iter().filter(|worker| self.is_gone(&all, worker)).collect();
        claim::end_leases(list, &gone, now);
    }

    /// Returns whether the process behind a worker is known to have ended, or to have begun another
    /// session.
    pub fn has_ended(&self, worker: &str) -> bool {
        self.is_gone(&read(self), worker)
    }

    fn is_gone(&self, all: &Records, worker: &str) -> bool {
        // A subagent claims with a name below its session: `session/name`.
        let session = worker.split('/').next().unwrap_or_default();
        let Some(record) = all.get(worker).or_else(|| all.get(session)) else { return false };
        match &record.run {
            _ if record.lives() => {
                record.is_session && all.values().any(|other| other.follows(record))
            }
            // The run's agents continue without a daemon, and the next daemon adopts the run.
            Some(run) => SessionLock::run_on(self).is_none() && !group::any_with(RUN_VARIABLE, run),
            None => true,
        }
    }
}

impl Record {
    /// Whether the process may live. False only if it is known to have ended.
    fn lives(&self) -> bool {
        if self.host != host() {
            return true;
        }
        if self.boot_id != boot_id() {
            return false;
        }
        let id = ProcessId { pid: self.pid, start_time: self.start_time };
        self.pid_namespace != pid_namespace() || id.is_alive()
    }

    /// Whether this is a later session of the same process.
    fn follows(&self, other: &Self) -> bool {
        let process = |record: &Self| (record.pid, record.start_time, record.pid_namespace);
        self.is_session
            && self.number > other.number
            && process(self) == process(other)
            && self.boot_id == other.boot_id
    }
}

/// Returns the name of this machine or container, because processes of another one are not visible
/// here.
fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map_or_else(|_| String::new(), |name| name.trim().into())
}

fn file(root: &Root) -> PathBuf {
    root.private().join("holders.json")
}

fn read(root: &Root) -> Records {
    let bytes = bytes(&file(root)).ok();
    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}
