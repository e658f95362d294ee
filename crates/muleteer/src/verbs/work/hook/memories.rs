//! The hooks' memory of the sessions of agent CLIs between two calls: `hooks.json`.
//!
//! A CLI calls several hooks of one event at the same time, so the file is read, decided on and
//! written under one lock. Without it a rejection that another hook has just counted is lost.
//! Lock order: this one before the lock of the list.

use crate::cli::failure::Failure;
use crate::verbs::work::hook::event::Event;
use crate::verbs::work::tasks::place::lock_patience;
use muleteer_model::task_list::session::hook::Memory;
use muleteer_process::lock::{LockGuard, lock_within};
use muleteer_protocol::ErrorCode;
use muleteer_store::links::stay_within;
use muleteer_store::task_list::Root;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

/// The number of sessions that are remembered.
const SESSIONS: usize = 50;
/// The maximum length of the file.
const LIMIT: u64 = 16 * 1024 * 1024;
/// The shortest time to wait for another hook, which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// The memories of all sessions, under lock.
#[derive(Debug)]
pub(super) struct Memories {
    root: Root,
    key: String,
    all: BTreeMap<String, Memory>,
    _lock: LockGuard,
}

/// Returns whether a hook has been called for this session before. It takes no lock.
pub(super) fn is_known(event: &Event) -> bool {
    read(&event.root).contains_key(event.key())
}

fn file(root: &Root) -> PathBuf {
    root.private().join("hooks.json")
}

fn read(root: &Root) -> BTreeMap<String, Memory> {
    // An agent works in this folder, and a pipe or a device in place of the file must not block.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let bytes = || -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![];
        let file = OpenOptions::new().read(true).custom_flags(flags).open(file(root))?;
        if file.metadata()?.is_file() {
            file.take(LIMIT).read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    };
    bytes().ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

impl Memories {
    /// Locks and reads the memories.
    ///
    /// # Errors
    /// If they cannot be locked.
    pub(super) fn lock(event: &Event) -> Result<Self, Failure> {
        let path = event.root.private().join("hooks.lock");
        let fail = |error: String| Failure::new(ErrorCode::Io, error).file(&path);
        stay_within(event.root.path(), &event.root.private())
            .and_then(|()| std::fs::create_dir_all(event.root.private()))
            .map_err(|error| fail(error.to_string()))?;
        let lock = lock_within(&path, lock_patience().max(PATIENCE))
            .map_err(|error| fail(error.to_string()))?
            .ok_or_else(|| fail("another hook holds the lock".into()))?;
        let all = read(&event.root);
        Ok(Self { root: event.root.clone(), key: event.key().into(), all, _lock: lock })
    }

    /// Returns the memory of the event's session.
    pub(super) fn own(&self) -> Option<&Memory> {
        self.all.get(&self.key)
    }

    /// Returns the memories of all other sessions.
    pub(super) fn others(&mut self) -> impl Iterator<Item = &mut Memory> {
        self.all.iter_mut().filter(|(key, _)| **key != self.key).map(|(_, memory)| memory)
    }

    /// Returns whether the attempts that the log has for this number belong to another session: one
    /// that was counted under it, or one that has counted them as its own.
    pub(super) fn has_other_of(&self, session: u64) -> bool {
        let is_it = |memory: &Memory| {
            memory.session == session && (!memory.is_uncounted || memory.attempts_logged > 0)
        };
        self.all.iter().any(|(key, memory)| *key != self.key && is_it(memory))
    }

    /// Returns the largest session number that is remembered.
    pub(super) fn newest(&self) -> u64 {
        self.all.values().map(|memory| memory.session).max().unwrap_or_default()
    }

    /// Writes the memory of the event's session.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn put(&mut self, memory: Memory) -> Result<(), Failure> {
        self.all.insert(self.key.clone(), memory);
        while self.all.len() > SESSIONS {
            // The session's own memory stays: without it, its rejections would not end.
            let others = self.all.iter().filter(|(key, _)| **key != self.key);
            let oldest = others.min_by_key(|(_, memory)| memory.session).map(|(id, _)| id.clone());
            oldest.map(|id| self.all.remove(&id));
        }
        let path = file(&self.root);
        let fail = |error: String| Failure::new(ErrorCode::Io, error).file(&path);
        let bytes =
            serde_json::to_vec_pretty(&self.all).map_err(|error| fail(error.to_string()))?;
        muleteer_store::atomic::write_atomic(&path, &bytes, 0o644)
            .map_err(|error| fail(error.to_string()))
    }
}
