//! Reads and changes the list.

use crate::links::{open_to_write, stay_within};
use crate::task_list::contents::{bytes, parse, parse_bytes, write_through};
use crate::task_list::error::{Locked, TaskListError};
use crate::task_list::intent::{self, Mark, mark};
use crate::task_list::lock::SessionLock;
use crate::task_list::progress::append;
use crate::task_list::root::Root;
use crate::task_list::swap::{self, Stood};
use crate::task_list::written::Written;
use jiff::Timestamp;
use muleteer_model::task_list::document::merge::merge;
use muleteer_model::task_list::document::tamper::Overwritten;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::{BACKUP, Category, TASKS, TaskList, stats};
use muleteer_process::lock::{LockGuard, lock_within};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::time::Duration;

/// A change takes milliseconds. A process that waits longer than this gets an error.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a change waits for the protocol's lock.
pub const LOCK_PATIENCE: Duration = Duration::from_millis(1500);
/// How often one change is merged with manual edits that arrive during the change. After that, an
/// edit is kept beside the list.
const TRIES: u32 = 8;

/// A list that was read without a lock.
#[derive(Debug)]
pub struct Reading {
    pub list: TaskList,
    /// The file is damaged, and this is its backup.
    pub from_backup: bool,
}

/// One change of a list, under lock: others wait until it is dropped.
#[derive(Debug)]
pub struct Tx {
    pub root: Root,
    pub list: TaskList,
    /// A lock of a dead process was found and removed.
    pub stale_lock: bool,
    /// The list was damaged, and this is its backup: a text that says so.
    pub restored: Option<String>,
    /// Manual edits that were made while a session held the lock. This change reverts them, and its
    /// log says so.
    pub overwritten: Vec<Overwritten>,
    now: Timestamp,
    lines: Vec<Entry>,
    session: Option<u64>,
    written: Option<Written>,
    /// The contents of the file, as far as they are known; `None` if there is none.
    disk: Option<Vec<u8>>,
    /// Whether files can be exchanged here.
    pub(super) exchanges: bool,
    /// Released before the flock, in this order.
    _lock: Option<SessionLock>,
    _flock: LockGuard,
}

/// The source of a list that replaces an unreadable one.
#[derive(Debug, Clone, Copy)]
enum Good {
    Backup,
    /// The run remembers it.
    Run,
}

/// The permission to make a change.
#[derive(Debug, Clone, Copy)]
pub enum Right<'a> {
    /// The protocol's lock is taken for this change.
    Own,
    /// We hold the protocol's lock for the whole session.
    Session(&'a SessionLock),
    /// For a run beside others: the protocol's lock is taken for this change.
    Beside(&'a Written),
    /// We work for this run: if it holds the lock, we may change the list under it.
    Run(&'a str),
}

impl Root {
    /// Reads the list without a lock, for `status` and the like.
    ///
    /// # Errors
    /// If neither the list nor its backup can be read.
    pub fn read(&self) -> Result<Reading, TaskListError> {
        match parse(&self.tasks()) {
            Ok(list) => Ok(Reading { list, from_backup: false }),
            Err(error @ TaskListError::Corrupt { .. }) => match parse(&self.backup()) {
                Ok(list) => Ok(Reading { list, from_backup: true }),
                Err(_) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Takes the lock for a whole session (exclusive mode).
    ///
    /// # Errors
    /// [`TaskListError::Locked`] at once if another process has it: a second session fails fast.
    pub fn lock_session(&self, run: &str) -> Result<(SessionLock, bool), TaskListError> {
        let _flock = self.flock()?;
        SessionLock::acquire(self, Some(run))
    }

    /// Begins a change: locks and reads. A damaged list is restored from its backup. Its contents
    /// are kept beside it, because the backup is one change behind, and the damage may come with a
    /// change by a person.
    ///
    /// # Errors
    /// If it is locked, or cannot be read.
    pub fn begin(&self, right: Right<'_>, now: Timestamp) -> Result<Tx, TaskListError> {
        self.begin_within(right, now, LOCK_PATIENCE)
    }

    /// Works like [`Self::begin`], with another time to wait for the protocol's lock.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn begin_within(
        &self,
        right: Right<'_>,
        now: Timestamp,
        patience: Duration,
    ) -> Result<Tx, TaskListError> {
        let (flock, lock, stale_lock) = self.locks(right, patience)?;
        let disk = bytes(&self.tasks()).ok();
        let parsed = match &disk {
            Some(bytes) => parse_bytes(&self.tasks(), bytes),
            None => parse(&self.tasks()),
        };
        let written = match right {
            Right::Session(lock) => lock.written.clone(),
            Right::Beside(written) => Some(written.clone()),
            Right::Own | Right::Run(_) => None,
        };
        let (mut list, damage) = match parsed {
            Ok(list) => (list, None),
            Err(error) => match self.last_good(&error, written.as_ref()) {
                Some((list, from)) => (list, Some((error.why(), from))),
                None => {
                    if matches!(error, TaskListError::Corrupt { .. }) {
                        let message = "harness-tasks.json corrupted and unrecoverable";
                        let line = Entry::error(None, Category::EnvSetup, message).at(1, now);
                        append(&self.progress(), &format!("{line}\n"))?;
                    }
                    return Err(error);
                }
            },
        };
        if let Some(lines) = intent::unsaid(self) {
            append(&self.progress(), &lines)?;
        }
        intent::forget(self);
        let overwritten =
            written.as_ref().map(|written| written.put_back(self, &mut list)).unwrap_or_default();
        let mut tx = self.begun(list, now, (lock, stale_lock), flock);
        (tx.written, tx.disk) = (written, disk);
        if let Some((why, from)) = damage {
            // If the list is not a regular file, the replacement removes it.
            let kept = if tx.disk.is_some() { swap::set_aside(self)? } else { None };
            tx.replace("")?;
            let text = restored(&why, from, kept.as_deref());
            tx.lines.insert(0, Entry::warn(None, &text));
            tx.flush()?;
            tx.restored = Some(text);
        }
        for kept in swap::left(self)? {
            let text = format!(
                "{TASKS} was changed by another program while a killed process wrote it: that \
                 change is saved as {}",
                name(&kept)
            );
            tx.log(Entry::warn(None, &text));
            tx.flush()?;
            tx.restored.get_or_insert(text);
        }
        for one in &overwritten {
            tx.log(Entry::warn(one.task.as_deref(), &one.text));
        }
        tx.overwritten = overwritten;
        if stale_lock {
            tx.log(Entry::warn(None, "Removed stale lock"));
        }
        Ok(tx)
    }

    /// Writes a new list and its log, and overwrites no existing list.
    ///
    /// # Errors
    /// If it cannot be written, or if another process works here.
    pub fn create(&self, list: TaskList, now: Timestamp) -> Result<Tx, TaskListError> {
        let (flock, lock, stale_lock) = self.locks(Right::Own, LOCK_PATIENCE)?;
        if self.tasks().exists() {
            return Err(TaskListError::io(&self.tasks(), "create")(
                io::ErrorKind::AlreadyExists.into(),
            ));
        }
        // The next change would overwrite it. It may be the only copy of an earlier list.
        let kept = match fs::symlink_metadata(self.backup()) {
            Ok(_) => Some(swap::keep(self, &self.backup())?),
            Err(_) => None,
        };
        let mut tx = self.begun(list, now, (lock, stale_lock), flock);
        tx.replace("")?;
        if let Some(kept) = kept {
            let text = format!("{BACKUP} could not be restored; saved it as {}", name(&kept));
            tx.log(Entry::warn(None, &text));
            tx.restored = Some(text);
        }
        Ok(tx)
    }

    /// Returns the list to continue with if the file cannot be read. The run's remembered list is
    /// used, unless others have changed the list since. In that case, and without a run, it is the
    /// backup.
    fn last_good(
        &self,
        error: &TaskListError,
        written: Option<&Written>,
    ) -> Option<(TaskList, Good)> {
        let is_parsed = match error {
            TaskListError::Corrupt { .. } => false,
            TaskListError::Invalid { .. } => true,
            TaskListError::Io { source, .. } => {
                let is_file = fs::metadata(self.tasks()).is_ok_and(|meta| meta.is_file());
                if is_file && source.kind() != io::ErrorKind::PermissionDenied {
                    return None;
                }
                true
            }
            _ => return None,
        };
        let backup = bytes(&self.backup()).ok();
        let backup = backup
            .and_then(|bytes| Some((parse_bytes(&self.backup(), &bytes).ok()?, mark(&bytes))));
        let known =
            written.and_then(|written| written.known(backup.as_ref().map(|(_, mark)| *mark)));
        match (known, backup) {
            (Some(list), _) => Some((list, Good::Run)),
            (None, Some((list, _)))
                if !is_parsed || written.is_some_and(|written| written.known(None).is_some()) =>
            {
                Some((list, Good::Backup))
            }
            _ => None,
        }
    }

    fn begun(
        &self,
        list: TaskList,
        now: Timestamp,
        (lock, stale_lock): (Option<SessionLock>, bool),
        flock: LockGuard,
    ) -> Tx {
        let root = self.clone();
        let (restored, overwritten, lines) = (None, vec![], vec![]);
        let (session, written, disk, exchanges) = (None, None, None, true);
        Tx {
            root,
            list,
            stale_lock,
            restored,
            overwritten,
            now,
            lines,
            session,
            written,
            disk,
            exchanges,
            _lock: lock,
            _flock: flock,
        }
    }

    pub(super) fn flock(&self) -> Result<LockGuard, TaskListError> {
        let dir = self.path().join(".muleteer");
        stay_within(self.path(), &self.private()).map_err(TaskListError::io(&dir, "write to"))?;
        fs::create_dir_all(&dir).map_err(TaskListError::io(&dir, "create"))?;
        let path = dir.join("tasks.lock");
        let guard = lock_within(&path, PATIENCE).map_err(TaskListError::io(&path, "lock"))?;
        guard.ok_or(TaskListError::Locked(Locked { path, pid: None, holder: None, stranger: None }))
    }
}

impl Tx {
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Adds a line to the log; it is written with the change.
    pub fn log(&mut self, entry: Entry) {
        self.lines.push(entry);
    }

    /// Sets the session of the log lines, if it is not the list's newest.
    pub fn under_session(&mut self, session: u64) {
        self.session = Some(session);
    }

    /// Writes the change: backup, list, log, and the marker if all tasks are over.
    ///
    /// # Errors
    /// If a file cannot be written. The list is then either the old one or the new one.
    pub fn commit(mut self) -> Result<TaskList, TaskListError> {
        self.save()?;
        Ok(self.list)
    }

    /// Works like [`Self::commit`], and keeps the lock.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn save(&mut self) -> Result<(), TaskListError> {
        let lines = self.said();
        self.announce(&lines)?;
        self.replace(&lines)?;
        muleteer_process::fault::point("tasks.list_written");
        append(&self.root.progress(), &lines)?;
        self.flush()?;
        intent::forget(&self.root);
        Ok(())
    }

    /// Records the list and the log lines that are about to be written.
    fn announce(&self, lines: &str) -> Result<(), TaskListError> {
        if !lines.is_empty() {
            let file = self.root.private();
            intent::write(&self.root, &self.list.to_text(), lines)
                .map_err(TaskListError::io(&file, "write to"))?;
        }
        let Some(written) = &self.written else { return Ok(()) };
        written
            .is_about_to_write(&self.root, &self.list)
            .map_err(TaskListError::io(&self.root.session(), "write"))
    }

    /// Switches the hooks of agents' own sessions on or off.
    ///
    /// # Errors
    /// If the marker cannot be created or removed.
    pub fn mark_active(&self, active: bool) -> Result<(), TaskListError> {
        let marker = self.root.active();
        if active {
            return open_to_write(&marker, OpenOptions::new().create(true).append(true))
                .map(drop)
                .map_err(TaskListError::io(&marker, "create"));
        }
        match fs::remove_file(&marker) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(TaskListError::io(&marker, "remove")(error))
            }
            _ => Ok(()),
        }
    }

    /// Removes the marker if no task is pending, in progress or to be retried.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn settle_marker(&self) -> Result<(), TaskListError> {
        if stats::is_over(&self.list) { self.mark_active(false) } else { Ok(()) }
    }

    /// Writes the list by the protocol: copy to the backup, write a temporary file, move it into
    /// place. An edit that somebody made since the list was read is merged, or kept beside the
    /// list, and the change's log says so. `lines` are the log lines of the change itself.
    fn replace(&mut self, lines: &str) -> Result<(), TaskListError> {
        // Replaced files of earlier rounds. They are kept until their contents are in the list.
        let mut taken = vec![];
        // Our own change is on disk; everything written after it is an edit of somebody else.
        let mut is_there = false;
        let mut backup = None;
        for tries in 1..=TRIES {
            let text = self.list.to_text();
            if self.disk.as_deref() == Some(text.as_bytes()) {
                self.has_placed(text, None);
                break;
            }
            // Only a valid list may become the backup.
            if let Some(old) =
                self.disk.as_ref().filter(|old| parse_bytes(&self.root.tasks(), old).is_ok())
            {
                write_through(&self.root.backup(), old)?;
                backup = Some(mark(old));
            }
            muleteer_process::fault::point("tasks.backup_written");
            let stood = swap::put(&self.root, &text, self.disk.as_deref(), self.exchanges)?;
            if matches!(stood, Stood::AsRead | Stood::Gone) {
                if matches!(stood, Stood::Gone) {
                    self.log(Entry::warn(None, &format!("{TASKS} was removed; wrote it again")));
                }
                self.has_placed(text, backup);
                break;
            }
            let base = self.base();
            let (theirs, out) = match stood {
                Stood::Out(out) => (parse(&out).ok(), Some(out)),
                Stood::Still(bytes) if tries == TRIES => {
                    self.disk = Some(bytes);
                    let busy = io::Error::other(
                        "another program changes it each time before it is replaced",
                    );
                    return Err(TaskListError::io(&self.root.tasks(), "replace")(busy));
                }
                Stood::Still(bytes) => {
                    let theirs = parse_bytes(&self.root.tasks(), &bytes).ok();
                    self.disk = Some(bytes);
                    (theirs, None)
                }
                Stood::AsRead | Stood::Gone => (None, None),
            };
            let merged = theirs.and_then(|theirs| self.take_over(&base, theirs, is_there));
            if out.is_some() {
                self.has_placed(text, backup);
                is_there = true;
            }
            let meanwhile = format!("another program changed {TASKS} during a change");
            let said = match merged {
                Some((list, clashes)) if clashes.is_empty() && tries < TRIES => {
                    self.list = list;
                    taken.extend(out);
                    format!("{meanwhile}: merged both changes")
                }
                merged => {
                    // Our change was decided before the edit. An edit that cannot be merged
                    // unchanged must be found beside the list.
                    let kept = match out {
                        Some(out) => Some(swap::keep(&self.root, &out)?),
                        None => swap::set_aside(&self.root)?,
                    };
                    let kept = kept.as_deref().map(name).unwrap_or_default();
                    match merged {
                        None => format!(
                            "{TASKS} was damaged; wrote it again and saved the damaged content as \
                             {kept}"
                        ),
                        Some((list, clashes)) if tries < TRIES => {
                            self.list = list;
                            let of = clashes.join(", ");
                            format!(
                                "{meanwhile}, also of {of}: kept the harness's values and saved \
                                 the other ones as {kept}"
                            )
                        }
                        Some(_) => {
                            format!("{meanwhile}, repeatedly: saved its last change as {kept}")
                        }
                    }
                }
            };
            self.log(Entry::warn(None, &said));
            self.announce(lines)?;
        }
        for path in taken {
            drop(fs::remove_file(path));
        }
        Ok(())
    }

    fn has_placed(&mut self, text: String, backup: Option<Mark>) {
        self.disk = Some(text.into_bytes());
        if let Some(written) = &self.written {
            written.has_written(&self.root, &self.list, backup);
        }
    }

    fn put_back(&self, list: &mut TaskList) -> Vec<Overwritten> {
        self.written
            .as_ref()
            .map(|written| written.put_back(&self.root, list))
            .unwrap_or_default()
    }

    /// Returns the list as it was when this change began.
    fn base(&self) -> TaskList {
        let read = self.disk.as_ref().and_then(|bytes| parse_bytes(&self.root.tasks(), bytes).ok());
        let Some(mut list) = read else { return self.list.clone() };
        self.put_back(&mut list);
        list
    }

    /// Merges this change with a list that somebody wrote meanwhile. It returns the merged list and
    /// the names of everything that both changed; `None` if the result is not a valid list. If
    /// `is_there`, our change is on disk, and everything that the list has beyond the disk comes
    /// from an earlier edit of theirs.
    fn take_over(
        &mut self,
        base: &TaskList,
        mut theirs: TaskList,
        is_there: bool,
    ) -> Option<(TaskList, Vec<String>)> {
        let overwritten = self.put_back(&mut theirs);
        let merged = if is_there {
            merge(base, &theirs, &self.list)
        } else {
            merge(base, &self.list, &theirs)
        };
        let merged = merged.ok()?;
        for one in &overwritten {
            self.log(Entry::warn(one.task.as_deref(), &one.text));
        }
        Some((merged.list, if is_there { vec![] } else { merged.clashes }))
    }

    fn flush(&mut self) -> Result<(), TaskListError> {
        let text = self.said();
        append(&self.root.progress(), &text)
    }

    fn said(&mut self) -> String {
        let session = self.session.unwrap_or_else(|| self.list.session());
        let now = self.now;
        self.lines.drain(..).map(|entry| format!("{}\n", entry.at(session, now))).collect()
    }

    /// Does as much as a process that is killed between the list and the log.
    #[cfg(test)]
    pub(super) fn die_before_the_log(mut self) {
        let lines = self.said();
        intent::write(&self.root, &self.list.to_text(), &lines).expect("an intent");
        self.replace(&lines).expect("a list");
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the text about a damaged list that was replaced.
fn restored(why: &str, from: Good, kept: Option<&Path>) -> String {
    if matches!(from, Good::Run) {
        let kept = kept.map_or_else(String::new, |kept| {
            format!("; saved the damaged content as {}", name(kept))
        });
        return format!("{TASKS} was damaged; restored the run's last version{kept} ({why})");
    }
    let kept = kept.map_or_else(String::new, |kept| {
        let kept = name(kept);
        format!("; saved the damaged content, with the last change, as {kept} ({why})")
    });
    format!("{TASKS} was damaged; restored {BACKUP}, the version before the last change{kept}")
}
