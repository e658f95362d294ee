//! Reading and changing the list and its log.

use super::intent;
use super::lock::SessionLock;
use super::written::Written;
use super::{Locked, Root, TaskListError};
use jiff::Timestamp;
use muleteer_model::tasklist::list::Unreadable;
use muleteer_model::tasklist::log::{self, Entry};
use muleteer_model::tasklist::overwritten::Overwritten;
use muleteer_model::tasklist::select::FailureTimes;
use muleteer_model::tasklist::{BACKUP, Category, TASKS, TaskList, stats};
use muleteer_process::lock::{LockGuard, lock_within};
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A change takes milliseconds; who waits longer for its turn is told.
const PATIENCE: Duration = Duration::from_secs(30);
/// A list is read whole.
const LIST_LIMIT: u64 = 256 * 1024 * 1024;
/// More damaged lists are not kept.
const DAMAGED_LIMIT: u32 = 1000;
/// Of the log, this much of its end is looked at.
const LOG_TAIL: u64 = 1024 * 1024;

/// A list as it was read without any lock.
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
    /// The list was damaged, and this is its backup: what there is to say about that.
    pub restored: Option<String>,
    /// What somebody has written over while a session held the lock, and is put back with this change; the log says so then.
    pub overwritten: Vec<Overwritten>,
    now: Timestamp,
    lines: Vec<Entry>,
    session: Option<u64>,
    written: Option<Written>,
    /// Given back before the flock, in this order.
    _lock: Option<SessionLock>,
    _flock: LockGuard,
}

/// What entitles to a change.
#[derive(Debug, Clone, Copy)]
pub enum Right<'a> {
    /// The reference's lock is taken for this change.
    Own,
    /// It is held for the whole session, by us.
    Session(&'a SessionLock),
    /// We work for this run: where it holds the lock, we may go on under it.
    Run(&'a str),
}

impl Root {
    /// Reads the list without a lock: `status` and its like.
    ///
    /// # Errors
    /// When neither the list nor its backup can be read.
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
    /// [`TaskListError::Locked`] at once if somebody has it: a second session fails fast.
    pub fn lock_session(&self, run: &str) -> Result<(SessionLock, bool), TaskListError> {
        let _flock = self.flock()?;
        SessionLock::acquire(self, Some(run))
    }

    /// Begins a change: locks and reads. A damaged list is restored from its backup; what it held is kept beside it, since
    /// the backup is one change behind, and a person may have made the damage and the change.
    ///
    /// # Errors
    /// When it is locked, or cannot be read.
    pub fn begin(&self, right: Right<'_>, now: Timestamp) -> Result<Tx, TaskListError> {
        let flock = self.flock()?;
        let (lock, stale_lock) = match right {
            Right::Session(_) => (None, false),
            Right::Own => self.lock_within(None).map(|(lock, stale)| (Some(lock), stale))?,
            Right::Run(run) => match SessionLock::holder(self) {
                Some(Locked { holder: Some(holder), .. }) if holder.run.as_deref() == Some(run) => (None, false),
                _ => self.lock_within(None).map(|(lock, stale)| (Some(lock), stale))?,
            },
        };
        let (mut list, damage) = match parse(&self.tasks()) {
            Ok(list) => (list, None),
            Err(error @ TaskListError::Corrupt { .. }) => match parse(&self.backup()) {
                Ok(list) => (list, Some(error.why())),
                Err(_) => {
                    let message = "harness-tasks.json corrupted and unrecoverable";
                    let line = Entry::error(None, Category::EnvSetup, message).at(1, now);
                    append(&self.progress(), &format!("{line}\n"))?;
                    return Err(error);
                }
            },
            Err(error) => return Err(error),
        };
        if let Some(lines) = intent::unsaid(self) {
            append(&self.progress(), &lines)?;
        }
        intent::forget(self);
        let written = match right {
            Right::Session(lock) => lock.written.clone(),
            _ => None,
        };
        let overwritten = written.as_ref().map(|written| written.put_back(&mut list)).unwrap_or_default();
        let mut tx = self.begun(list, now, (lock, stale_lock), flock);
        tx.written = written;
        if let Some(why) = damage {
            let kept = tx.replace()?;
            let text = restored(&why, kept.as_deref());
            tx.log(Entry::warn(None, &text));
            tx.flush()?;
            tx.restored = Some(text);
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

    /// Writes a new list and its log; nothing that is there is overwritten.
    ///
    /// # Errors
    /// When it cannot be written, or somebody works here.
    pub fn create(&self, list: TaskList, now: Timestamp) -> Result<Tx, TaskListError> {
        let flock = self.flock()?;
        let (lock, stale_lock) = self.lock_within(None)?;
        if self.tasks().exists() {
            return Err(TaskListError::io(&self.tasks(), "create")(io::ErrorKind::AlreadyExists.into()));
        }
        let tx = self.begun(list, now, (Some(lock), stale_lock), flock);
        tx.replace()?;
        Ok(tx)
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
        let (session, written) = (None, None);
        Tx { root, list, stale_lock, restored, overwritten, now, lines, session, written, _lock: lock, _flock: flock }
    }

    /// Others hold it for one change only; an exclusive session of somebody else does not go away.
    fn lock_within(&self, run: Option<&str>) -> Result<(SessionLock, bool), TaskListError> {
        const SHORT: Duration = Duration::from_millis(1500);
        let deadline = muleteer_process::clock::awake() + SHORT;
        loop {
            match SessionLock::acquire(self, run) {
                Err(TaskListError::Locked(locked))
                    if locked.holder.as_ref().is_none_or(|holder| holder.run.is_none())
                        && muleteer_process::clock::awake() < deadline =>
                {
                    // Another tool's lock is a directory: nothing tells when it goes.
                    std::thread::sleep(Duration::from_millis(10));
                }
                other => return other,
            }
        }
    }

    fn flock(&self) -> Result<LockGuard, TaskListError> {
        let dir = self.path().join(".muleteer");
        fs::create_dir_all(&dir).map_err(TaskListError::io(&dir, "create"))?;
        let path = dir.join("tasks.lock");
        let guard = lock_within(&path, PATIENCE).map_err(TaskListError::io(&path, "lock"))?;
        guard.ok_or(TaskListError::Locked(Locked { path, pid: None, holder: None }))
    }

    /// The last lines of the log, oldest first.
    pub fn log_tail(&self, lines: usize) -> Vec<String> {
        self.log_tail_within(lines, usize::MAX)
    }

    /// The same, of no more than `bytes` in all: the newest.
    pub fn log_tail_within(&self, lines: usize, bytes: usize) -> Vec<String> {
        let text = self.log_end();
        let mut left = bytes;
        let fits = |line: &&str| {
            let fits = line.len() < left;
            left = left.saturating_sub(line.len() + 1);
            fits
        };
        let mut end: Vec<_> = text.lines().rev().take(lines).take_while(fits).map(String::from).collect();
        end.reverse();
        end
    }

    /// When tasks failed that do not say so themselves.
    pub fn failure_times(&self, list: &TaskList) -> FailureTimes {
        let unsaid = |task: &muleteer_model::tasklist::Task| task.failed_at.is_none() && !task.error_log.is_empty();
        if list.tasks.iter().any(unsaid) { log::failure_times(self.log_end().lines()) } else { FailureTimes::new() }
    }

    /// The tasks that were completed lately, with their commits in short.
    pub fn completions(&self) -> Vec<(String, String)> {
        log::completions(self.log_end().lines())
    }

    fn log_end(&self) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let mut file = regular(&self.progress())?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
            let mut bytes = vec![];
            file.take(LOG_TAIL).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }

    /// Appends lines to the log without changing the list. The caller must be alone, or say nothing that
    /// depends on the list.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub fn note(&self, session: u64, now: Timestamp, entries: Vec<Entry>) -> Result<(), TaskListError> {
        let text: String = entries.into_iter().map(|entry| format!("{}\n", entry.at(session, now))).collect();
        append(&self.progress(), &text)
    }
}

impl Tx {
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Adds a line to the log; written with the change.
    pub fn log(&mut self, entry: Entry) {
        self.lines.push(entry);
    }

    /// The session that lines are written under, where it is not the list's newest.
    pub fn under_session(&mut self, session: u64) {
        self.session = Some(session);
    }

    /// Writes the change: backup, list, log, and the marker if all is over.
    ///
    /// # Errors
    /// When a file cannot be written; the list is then as it was, or as it is to be.
    pub fn commit(mut self) -> Result<TaskList, TaskListError> {
        self.save()?;
        Ok(self.list)
    }

    /// As [`Self::commit`], and goes on under the lock.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn save(&mut self) -> Result<(), TaskListError> {
        let lines = self.said();
        if !lines.is_empty() {
            let file = self.root.private();
            intent::write(&self.root, &self.list.to_text(), &lines).map_err(TaskListError::io(&file, "write to"))?;
        }
        if let Some(written) = &self.written {
            let file = self.root.session();
            written
                .is_about_to_write(&self.root, &self.list)
                .map_err(TaskListError::io(&file, "write"))?;
        }
        let kept = self.replace()?;
        if let Some(written) = &self.written {
            written.has_written(&self.list);
        }
        muleteer_process::fault::point("tasks.list_written");
        append(&self.root.progress(), &lines)?;
        if let Some(kept) = kept {
            // Damaged since it was read: this change was decided before.
            let text =
                format!("harness-tasks.json was damaged and is written anew; what it held is kept as {}", name(&kept));
            self.log(Entry::warn(None, &text));
            self.flush()?;
        }
        intent::forget(&self.root);
        Ok(())
    }

    /// Makes the hooks of agents' own sessions take effect, or not any more.
    ///
    /// # Errors
    /// When the marker cannot be made.
    pub fn mark_active(&self, active: bool) -> Result<(), TaskListError> {
        let marker = self.root.active();
        if active {
            return OpenOptions::new()
                .create(true)
                .append(true)
                .open(&marker)
                .map(drop)
                .map_err(TaskListError::io(&marker, "create"));
        }
        match fs::remove_file(&marker) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(TaskListError::io(&marker, "remove")(error)),
            _ => Ok(()),
        }
    }

    /// Removes the marker when nothing is pending, in progress or to be retried.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn settle_marker(&self) -> Result<(), TaskListError> {
        if stats::is_over(&self.list) { self.mark_active(false) } else { Ok(()) }
    }

    /// The reference's backup protocol: copy, write beside, move into place. Where a list was kept that could not be read.
    fn replace(&self) -> Result<Option<PathBuf>, TaskListError> {
        let (path, temporary) = (self.root.tasks(), self.root.temporary());
        let text = self.list.to_text();
        // Only what can be read is worth being the backup.
        let old = fs::read(&path).ok();
        if old.as_deref() == Some(text.as_bytes()) {
            return Ok(None);
        }
        let mut kept = None;
        if let Some(old) = old {
            if parse(&path).is_ok() {
                write_through(&self.root.backup(), &old)?;
            } else if !old.is_empty() {
                kept = self.set_aside()?;
            }
        }
        muleteer_process::fault::point("tasks.backup_written");
        write_through(&temporary, text.as_bytes())?;
        if let Ok(meta) = fs::metadata(&path) {
            let mode = fs::Permissions::from_mode(meta.permissions().mode());
            drop(fs::set_permissions(&temporary, mode));
        }
        fs::rename(&temporary, &path).map_err(TaskListError::io(&path, "replace"))?;
        let folder = File::open(self.root.path()).and_then(|folder| folder.sync_all());
        folder.map_err(TaskListError::io(self.root.path(), "make durable"))?;
        Ok(kept)
    }

    /// Gives the list a second name, which it has when another one takes its place. None that is there is overwritten.
    fn set_aside(&self) -> Result<Option<PathBuf>, TaskListError> {
        let from = self.root.tasks();
        for number in 1..=DAMAGED_LIMIT {
            let to = self.root.damaged(number);
            match fs::hard_link(&from, &to) {
                Ok(()) => return Ok(Some(to)),
                // By one that was killed before another list took its place.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_same(&from, &to) => {
                    return Ok(Some(to));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                // Not every file system, and not everybody, has second names.
                Err(_) => match copy_new(&from, &to) {
                    Ok(()) => return Ok(Some(to)),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(TaskListError::io(&to, "keep what the damaged list holds as")(error)),
                },
            }
        }
        let full = io::Error::other("there are too many of them: look through them, and take them away");
        Err(TaskListError::io(&self.root.damaged(1), "keep another damaged list beside")(full))
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

    /// As far as one that is killed between the list and the log comes.
    #[cfg(test)]
    pub(super) fn die_before_the_log(mut self) {
        let lines = self.said();
        intent::write(&self.root, &self.list.to_text(), &lines).expect("an intent");
        self.replace().expect("a list");
    }
}

fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()));
    matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
}

fn copy_new(from: &Path, to: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().create_new(true).write(true).open(to)?;
    let copied = regular(from).and_then(|from| io::copy(&mut from.take(LIST_LIMIT), &mut file));
    let copied = copied.and_then(|_| file.sync_all());
    if copied.is_err() {
        drop(fs::remove_file(to));
    }
    copied
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What is said of a list that its backup has replaced.
fn restored(why: &str, kept: Option<&Path>) -> String {
    let kept = kept.map_or_else(String::new, |kept| {
        let kept = name(kept);
        format!("; what it held is kept as {kept}: what was changed last is only there ({why})")
    });
    format!("{TASKS} was corrupted and is restored from {BACKUP}, as it was before its last change{kept}")
}

fn write_through(path: &Path, bytes: &[u8]) -> Result<(), TaskListError> {
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(TaskListError::io(path, "write"))
}

/// One write: a kill leaves all of it or nothing. A torn line of a full disk gets an end first.
fn append(path: &Path, text: &str) -> Result<(), TaskListError> {
    if text.is_empty() {
        return Ok(());
    }
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
        let length = file.metadata()?.len();
        let mut last = [b'\n'];
        if length > 0 {
            file.seek(SeekFrom::Start(length - 1))?;
            file.read_exact(&mut last)?;
        }
        let gap = if last == [b'\n'] { "" } else { "\n" };
        file.write_all(format!("{gap}{text}").as_bytes())
    };
    write().map_err(TaskListError::io(path, "append to"))
}

/// A file to be read, in a folder that agents work in: what they may have put in its place holds nobody up.
fn regular(path: &Path) -> io::Result<File> {
    let waits_for_nobody = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(waits_for_nobody).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

fn parse(path: &Path) -> Result<TaskList, TaskListError> {
    let corrupt = |line, column, why: String| TaskListError::Corrupt { file: path.into(), line, column, why };
    let file = match regular(path) {
        Ok(file) => file,
        // Gone while its backup is there: as good as damaged.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(corrupt(0, 0, "it is gone".into())),
        Err(error) => return Err(TaskListError::io(path, "read")(error)),
    };
    let mut bytes = vec![];
    file.take(LIST_LIMIT + 1)
        .read_to_end(&mut bytes)
        .map_err(TaskListError::io(path, "read"))?;
    if bytes.len() as u64 > LIST_LIMIT {
        return Err(corrupt(0, 0, format!("it is larger than {} MiB", LIST_LIMIT >> 20)));
    }
    let text = String::from_utf8(bytes).map_err(|_| corrupt(0, 0, "it is not UTF-8 text".into()))?;
    TaskList::parse(&text).map_err(|error| match error {
        Unreadable::Corrupt { line, column, why } => corrupt(line, column, why),
        Unreadable::Invalid(faults) => TaskListError::Invalid { file: path.into(), faults },
    })
}
