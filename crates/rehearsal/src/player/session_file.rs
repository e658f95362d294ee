//! The session file. It is replaced as a whole, and durable before its content is reported.

use crate::session::Session;
use muleteer_backends::rehearsal::transcript::{UNKNOWN_SESSION, VERSION, session_file};
use muleteer_process::lock::{LockGuard, lock_within};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the release of a dead process's lock may take.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Keep {
    /// `None` without a folder; then nothing is stored.
    place: Option<Place>,
}

#[derive(Debug)]
struct Place {
    path: PathBuf,
    /// It is not beside `path`, where only session files may be.
    temporary: PathBuf,
    _lock: LockGuard,
}

#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("{UNKNOWN_SESSION}: {0}")]
    Unknown(String),
    #[error("Session ID {0} is already in use")]
    InUse(String),
    #[error("{0:?} is not a session id: use letters, digits, - and _")]
    BadId(String),
    #[error("the session file {}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl Keep {
    /// Creates a new session with this id.
    pub fn create(folder: Option<&Path>, id: &str) -> Result<(Self, Session), KeepError> {
        let keep = Self::claim(folder, id)?;
        if keep.place.as_ref().is_some_and(|place| place.path.exists()) {
            return Err(KeepError::InUse(id.to_string()));
        }
        let session = Session::new(id);
        keep.save(&session)?;
        Ok((keep, session))
    }

    /// Opens the session of a process that has ended.
    pub fn resume(folder: Option<&Path>, id: &str) -> Result<(Self, Session), KeepError> {
        let keep = Self::claim(folder, id)?;
        let Some(Place { path, .. }) = &keep.place else {
            return Err(KeepError::Unknown(id.to_string()));
        };
        let failed = |source| KeepError::Io { path: path.clone(), source };
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(KeepError::Unknown(id.to_string()));
            }
            Err(error) => return Err(failed(error)),
        };
        let session: Session =
            serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))?;
        if session.v != VERSION {
            let message = format!("this build does not know version {}", session.v);
            return Err(failed(io::Error::new(io::ErrorKind::InvalidData, message)));
        }
        Ok((keep, session))
    }

    /// Takes the lock of a session. The supervisor must prevent that two processes play one
    /// session; a violation is detected here.
    fn claim(folder: Option<&Path>, id: &str) -> Result<Self, KeepError> {
        let Some(folder) = folder else {
            return Ok(Self { place: None });
        };
        if id.is_empty() || !id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_') {
            return Err(KeepError::BadId(id.to_string()));
        }
        let lock = folder.join(format!("{id}.lock"));
        let failed = |source| KeepError::Io { path: lock.clone(), source };
        let path = session_file(folder, id);
        fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(failed)?;
        let guard = lock_within(&lock, PATIENCE)
            .map_err(failed)?
            .ok_or_else(|| KeepError::InUse(id.to_string()))?;
        Ok(Self {
            place: Some(Place { temporary: folder.join(format!("{id}.new")), path, _lock: guard }),
        })
    }

    pub fn save(&self, session: &Session) -> Result<(), KeepError> {
        let Some(Place { path, temporary, .. }) = &self.place else {
            return Ok(());
        };
        let write = || {
            let mut file = File::create(temporary)?;
            file.write_all(&serde_json::to_vec(session)?)?;
            file.sync_all()?;
            fs::rename(temporary, path)?;
            File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()
        };
        write().map_err(|source| KeepError::Io { path: path.clone(), source })
    }
}
