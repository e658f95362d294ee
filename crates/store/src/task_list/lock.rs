//! The lock of the task-list format: a directory in `/tmp` that contains the holder's pid. Our
//! processes take it only under our own flock, so they do not race for it; towards other tools it
//! is as safe as their own use of it.

use crate::atomic::write_whole;
use crate::links::open_to_read;
use crate::task_list::error::{Holder, Locked, TaskListError};
use crate::task_list::root::Root;
use crate::task_list::written::Written;
use muleteer_process::identity::ProcessId;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Another tool creates the directory first and writes its pid after that.
const PID_GRACE: Duration = Duration::from_secs(1);
const HOLDER: &str = "muleteer.json";
/// No file of a lock is larger.
const SMALL: u64 = 64 * 1024;

/// The held lock. Dropping it releases the lock.
#[derive(Debug)]
pub struct SessionLock {
    path: PathBuf,
    holder: Holder,
    /// For the lock of a run: the list that the run wrote last.
    pub(super) written: Option<Written>,
}

impl SessionLock {
    /// Takes the lock for this process. The caller holds our flock.
    ///
    /// A dead process's lock is moved away first. A lock of the same run is taken over: the daemon
    /// that held it is dead, or is this process.
    ///
    /// # Errors
    /// [`TaskListError::Locked`] if a living process has it.
    pub(super) fn acquire(root: &Root, run: Option<&str>) -> Result<(Self, bool), TaskListError> {
        let path = root.lock_dir();
        let mut stale = false;
        // After we moved a stale lock away, another process may have been faster.
        for _ in 0..2 {
            match fs::create_dir(&path) {
                Ok(()) => {
                    let written = run.map(|run| Written::adopt(root, run, None));
                    return Self::settle(path, run, written).map(|lock| (lock, stale));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(TaskListError::io(&path, "create")(error)),
            }
            let locked = look(&path);
            // `/tmp` is sticky: nobody but its owner can move another user's lock away.
            if is_alive(&locked) || (locked.stranger.is_some() && !is_root()) {
                return Err(TaskListError::Locked(locked));
            }
            stale = true;
            move_away(&path)?;
        }
        Err(TaskListError::Locked(look(&path)))
    }

    /// Returns the run of a daemon that works on a list: from the lock of an exclusive list, or
    /// from the record that the run of a concurrent list has left; `None` if no living process
    /// does.
    pub fn run_on(root: &Root) -> Option<String> {
        let of_lock = Self::holder(root).and_then(|locked| locked.holder?.run);
        of_lock.or_else(|| {
            let holder = read_file(&root.at_work())?;
            let said = Locked {
                path: root.at_work(),
                pid: Some(holder.pid),
                holder: Some(holder.clone()),
                stranger: None,
            };
            if is_alive(&said) { holder.run } else { None }
        })
    }

    fn settle(
        path: PathBuf,
        run: Option<&str>,
        written: Option<Written>,
    ) -> Result<Self, TaskListError> {
        let lock = Self { path, holder: us(run), written };
        lock.sign()?;
        Ok(lock)
    }

    fn sign(&self) -> Result<(), TaskListError> {
        let text = serde_json::to_vec(&self.holder).map_err(io::Error::from);
        let written = text
            .and_then(|text| fs::write(self.path.join(HOLDER), text))
            .and_then(|()| fs::write(self.path.join("pid"), format!("{}\n", self.holder.pid)));
        written.map_err(TaskListError::io(&self.path, "write to"))
    }

    fn is_held(&self) -> bool {
        read_holder(&self.path).as_ref() == Some(&self.holder)
    }

    /// Takes a lock again that was removed, as a cleaner of `/tmp` does. The caller holds our
    /// flock.
    ///
    /// # Errors
    /// [`TaskListError::Locked`] if another living process has it now.
    pub(super) fn confirm(&self) -> Result<(), TaskListError> {
        for _ in 0..2 {
            if self.is_held() {
                return Ok(());
            }
            match fs::create_dir(&self.path) {
                Ok(()) => return self.sign(),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(TaskListError::io(&self.path, "create")(error)),
            }
            let locked = look(&self.path);
            if locked.holder.is_none() && locked.pid == Some(self.holder.pid) {
                return self.sign();
            }
            if is_alive(&locked) {
                return Err(TaskListError::Locked(locked));
            }
            move_away(&self.path)?;
        }
        Err(TaskListError::Locked(look(&self.path)))
    }

    /// Returns the current holder of the lock, without taking it; `None` if no living process has
    /// it.
    pub fn holder(root: &Root) -> Option<Locked> {
        let locked = look_once(&root.lock_dir());
        (root.lock_dir().exists() && is_alive(&locked)).then_some(locked)
    }
}

impl Drop for SessionLock {
    fn drop(&mut self) {
        // If this process was suspended, another tool may have assumed that it had died, and have
        // taken the lock.
        if self.is_held() {
            drop(fs::remove_dir_all(&self.path));
        }
    }
}

fn us(run: Option<&str>) -> Holder {
    let pid = std::process::id();
    let id = ProcessId::of(pid);
    let boot_id = muleteer_process::identity::boot_id();
    Holder {
        pid,
        start_time: id.map_or(0, |id| id.start_time),
        boot_id,
        run: run.map(String::from),
    }
}

impl Root {
    /// Checks that a session's lock is still this process's, and takes it again if it was removed.
    ///
    /// # Errors
    /// [`TaskListError::Locked`] if another living process has it now.
    pub fn confirm_session(&self, lock: &SessionLock) -> Result<(), TaskListError> {
        if lock.is_held() {
            return Ok(());
        }
        let _flock = self.flock()?;
        lock.confirm()
    }

    /// Records that this process works on the list for a run that holds no lock between changes.
    /// `status` and others read it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn leave_word(&self, run: &str) -> Result<(), TaskListError> {
        let path = self.at_work();
        let write = || -> io::Result<()> {
            fs::create_dir_all(self.private())?;
            write_whole(&path, &serde_json::to_vec(&us(Some(run)))?, 0o644)
                .map_err(io::Error::other)
        };
        write().map_err(TaskListError::io(&path, "write"))
    }

    /// Removes the record of [`Self::leave_word`].
    pub fn take_word_back(&self, run: &str) {
        if read_file(&self.at_work()).is_some_and(|holder| holder.run.as_deref() == Some(run)) {
            drop(fs::remove_file(self.at_work()));
        }
    }
}

fn read_file(path: &Path) -> Option<Holder> {
    serde_json::from_slice(&read_small(path)?).ok()
}

/// Reads a small regular file. Everybody may put files into `/tmp`, also a pipe or an endless one.
fn read_small(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = vec![];
    open_to_read(path).ok()?.take(SMALL).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

fn read_holder(path: &Path) -> Option<Holder> {
    read_file(&path.join(HOLDER))
}

fn look_once(path: &Path) -> Locked {
    let pid = read_small(&path.join("pid"))
        .and_then(|bytes| String::from_utf8_lossy(&bytes).trim().parse().ok());
    Locked { path: path.into(), pid, holder: read_holder(path), stranger: stranger(path) }
}

fn look(path: &Path) -> Locked {
    let deadline = muleteer_process::clock::awake() + PID_GRACE;
    loop {
        let locked = look_once(path);
        if locked.pid.is_some() || !path.exists() || muleteer_process::clock::awake() >= deadline {
            return locked;
        }
        // A foreign tool is between its `mkdir` and its `echo`. No event reports the file, so poll
        // for it.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the owner of the lock, if that is another user.
fn stranger(path: &Path) -> Option<u32> {
    let owner = fs::symlink_metadata(path).ok()?.uid();
    (owner != rustix::process::geteuid().as_raw()).then_some(owner)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether the holder lives, like `kill -0`. For a holder of ours it must also be the same process.
fn is_alive(locked: &Locked) -> bool {
    let Some(pid) = locked.pid else { return false };
    // A zombie counts as dead.
    let Some(now) = ProcessId::of(pid).filter(|id| id.is_alive()) else { return false };
    match &locked.holder {
        Some(holder) if holder.pid == pid => {
            holder.boot_id == muleteer_process::identity::boot_id()
                && (holder.start_time == 0 || holder.start_time == now.start_time)
        }
        _ => true,
    }
}

/// Moves a stale lock away, as the protocol requires: only one process can win a rename.
fn move_away(path: &Path) -> Result<(), TaskListError> {
    let mut stale = path.to_path_buf().into_os_string();
    stale.push(format!(".stale.{}", std::process::id()));
    match fs::rename(path, &stale) {
        Ok(()) => {
            drop(fs::remove_dir_all(&stale));
            Ok(())
        }
        // Another process was faster; the next look shows who has the lock.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(TaskListError::io(path, "move away")(error)),
    }
}
