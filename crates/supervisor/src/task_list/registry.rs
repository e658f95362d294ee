//! The state of task-list runs in memory.

use crate::task_list::steps::Hold;
use muleteer_store::task_list::{SessionLock, Written};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// The state of runs in memory that outlives restarts of the actor.
#[derive(Debug, Default)]
pub struct Registry(Mutex<HashMap<String, Arc<Shared>>>);

impl Registry {
    pub fn get(&self, list: &str) -> Arc<Shared> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(list.into())
            .or_default()
            .clone()
    }

    pub fn forget(&self, list: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(list);
    }
}

#[derive(Debug, Default)]
pub struct Shared {
    lock: Mutex<Option<Arc<SessionLock>>>,
    /// The last content that this run wrote, for a concurrent list, whose lock is only held during
    /// a change.
    written: Mutex<Option<Written>>,
    /// Blocking steps continue when their task is dropped, so a worker's next incarnation waits for
    /// them here.
    steps: Mutex<HashMap<u32, Arc<Mutex<()>>>>,
    /// Held from choosing a task until it has begun, so that no other worker chooses it.
    pub taking: Arc<tokio::sync::Mutex<()>>,
    /// Held while work lands on the start branch, one worker at a time.
    pub landing: tokio::sync::Mutex<()>,
    /// A task has ended, so another one may have become eligible.
    pub changed: Notify,
}

impl Shared {
    pub fn keep_lock(&self, lock: SessionLock) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(lock));
    }

    pub(super) fn hold(&self) -> Hold {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let written = || self.written.lock().unwrap_or_else(PoisonError::into_inner).clone();
        lock.map(Hold::Session).or_else(|| written().map(Hold::Beside)).unwrap_or(Hold::Own)
    }

    pub(super) fn remember(&self, written: Written) {
        *self.written.lock().unwrap_or_else(PoisonError::into_inner) = Some(written);
    }

    pub(super) fn release(&self) {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.written.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(super) fn step(&self, worker: u32) -> Arc<Mutex<()>> {
        self.steps
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(worker)
            .or_default()
            .clone()
    }
}
