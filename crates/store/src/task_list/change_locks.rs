//! The locks of one change: our own file lock, and the protocol's lock that other tools know.

use crate::task_list::error::{Locked, TaskListError};
use crate::task_list::files::Right;
use crate::task_list::lock::SessionLock;
use crate::task_list::root::Root;
use muleteer_process::clock::awake;
use muleteer_process::lock::LockGuard;
use std::time::Duration;

/// The result of an attempt to take the protocol's lock.
enum Attempt {
    /// With whether a stale lock was removed.
    Taken(SessionLock, bool),
    Held(Locked),
}

impl Root {
    /// Takes the file lock, and the protocol's lock where `right` needs one, within `patience`.
    /// Returns both, and whether a stale lock was removed. Blocks.
    ///
    /// # Errors
    /// The lock is held by another process, or cannot be taken.
    pub(super) fn locks(
        &self,
        right: Right<'_>,
        patience: Duration,
    ) -> Result<(LockGuard, Option<SessionLock>, bool), TaskListError> {
        let deadline = awake() + patience;
        loop {
            let flock = self.flock()?;
            if !self.wants_lock(right)? {
                return Ok((flock, None, false));
            }
            match self.try_lock()? {
                Attempt::Taken(lock, stale) => return Ok((flock, Some(lock), stale)),
                Attempt::Held(locked) if awake() >= deadline => {
                    return Err(TaskListError::Locked(locked));
                }
                Attempt::Held(_) => {
                    // Other callers may be less patient, so nobody waits with the file lock.
                    drop(flock);
                    // Another tool's lock is a directory, and no event reports its removal.
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }

    /// Returns whether a change with this right needs the protocol's lock.
    fn wants_lock(&self, right: Right<'_>) -> Result<bool, TaskListError> {
        match right {
            Right::Session(lock) => lock.confirm().map(|()| false),
            Right::Own | Right::Beside(_) => Ok(true),
            Right::Run(run) => Ok(!matches!(
                SessionLock::holder(self),
                Some(Locked { holder: Some(holder), .. }) if holder.run.as_deref() == Some(run)
            )),
        }
    }

    /// Tries to take the lock. Others hold it for one change only, but the exclusive session of a
    /// run does not end soon, so that one is an error.
    fn try_lock(&self) -> Result<Attempt, TaskListError> {
        match SessionLock::acquire(self, None) {
            Ok((lock, stale)) => Ok(Attempt::Taken(lock, stale)),
            Err(TaskListError::Locked(locked))
                if locked.holder.as_ref().is_none_or(|holder| holder.run.is_none()) =>
            {
                Ok(Attempt::Held(locked))
            }
            Err(error) => Err(error),
        }
    }
}
