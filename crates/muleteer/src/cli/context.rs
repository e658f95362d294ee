//! The context of every verb: the global options and the environment, evaluated once.

use crate::cli::failure::Failure;
use crate::cli::global::Global;
use crate::cli::output::Output;
use muleteer_process::lock;
use muleteer_protocol::ErrorCode;
use muleteer_supervisor::daemon::Note;
use muleteer_supervisor::daemon::paths::{PathError, Paths, check_socket};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long an agent's client waits for its daemon to come back (docs/design/wire-protocol.md).
const AGENT_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub struct Context {
    pub out: Output,
    pub paths: Paths,
    /// The daemon's socket: `--socket`, else `MULETEER_SOCKET`, else the state directory's.
    pub socket: PathBuf,
    /// `MULETEER_SOCKET` is set, so the client belongs to an agent. Such a client never starts a
    /// daemon and never sends the operator key.
    pub is_agent: bool,
    /// How long a client waits for an absent daemon. An agent cannot start one, so it waits for the
    /// next daemon. With `--socket` the error is reported at once.
    pub patience: Duration,
    /// `--config`, absolute.
    pub config: Option<PathBuf>,
    /// The trace context that requests carry: `TRACEPARENT`, or the verb's own span if it is
    /// traced.
    pub trace: Option<String>,
    /// `--socket` was given, so a daemon started on demand must listen there.
    pub socket_given: bool,
    /// Why the state directory cannot be used. Only verbs that need no state see this.
    pub misplaced: Option<PathError>,
}

impl Context {
    /// Reads the options and the environment for a verb that needs the state directory.
    ///
    /// # Errors
    /// When the environment does not determine the directories, or names a path that the system
    /// rejects.
    pub fn new(global: &Global) -> Result<Self, Failure> {
        let context = Self::anywhere(global);
        if let Some(error) = &context.misplaced {
            return Err(Failure::of(ErrorCode::Usage, error).hint(error.hint()));
        }
        match &context.config {
            // This is checked for all verbs, even those that read no configuration: a mistyped path
            // must not look as if the file were in effect.
            Some(path) if !path.exists() => {
                let message = format!("the configuration file {} does not exist", path.display());
                Err(Failure::new(ErrorCode::ConfigInvalid, message)
                    .file(path)
                    .hint("name an existing file with --config"))
            }
            _ => Ok(context),
        }
    }

    /// As [`Self::new`], without failing. Verbs that need no state use it, and `doctor`, which
    /// reports what is wrong.
    pub fn anywhere(global: &Global) -> Self {
        let found = Paths::from_env();
        let nowhere = found.as_ref().err().cloned();
        let paths = found.unwrap_or_else(|_| Paths::nowhere());
        let from_env =
            std::env::var_os("MULETEER_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from);
        let is_agent = from_env.is_some();
        // An agent's socket is in the state directory, so its path may be too long. On Linux a
        // client reaches it by a shorter name, so the length is not checked.
        let reached_by_another_name =
            is_agent && global.socket.is_none() && cfg!(target_os = "linux");
        let socket = global
            .socket
            .as_deref()
            .map(absolute)
            .or(from_env)
            .unwrap_or_else(|| elsewhere(&paths).unwrap_or_else(|| paths.socket.clone()));
        Self {
            misplaced: nowhere
                .or_else(|| check_socket(&socket).err().filter(|_| !reached_by_another_name)),
            out: global.output(),
            paths,
            socket,
            is_agent,
            patience: if is_agent && global.socket.is_none() {
                AGENT_PATIENCE
            } else {
                Duration::ZERO
            },
            config: global.config.as_deref().map(absolute),
            trace: std::env::var("TRACEPARENT").ok(),
            socket_given: global.socket.is_some(),
        }
    }
}

/// Returns the socket of a daemon that was started in another environment. Such a daemon, for
/// example a system service or a cron job, listens elsewhere and notes its socket in its lock file.
/// The note counts only if the default socket does not exist.
fn elsewhere(paths: &Paths) -> Option<PathBuf> {
    if paths.socket.exists() {
        return None;
    }
    let note: Note = lock::read_note(&paths.daemon_lock())?;
    note.socket.filter(|socket| socket.is_absolute() && socket.exists())
}

/// Returns the absolute path, or the path as given if there is no current directory.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Returns the directory for which configuration and roles are read: `--project`, or the current
/// directory.
///
/// # Errors
/// `E_PROJECT_NOT_FOUND` if `--project` is not a directory.
pub fn seen_from(project: Option<&Path>) -> Result<PathBuf, Failure> {
    match project {
        Some(path) if !path.is_dir() => Err(Failure::new(
            ErrorCode::ProjectNotFound,
            format!("{} is not a directory", path.display()),
        )),
        path => Ok(absolute(path.unwrap_or(".".as_ref()))),
    }
}

/// Returns the current directory.
///
/// # Errors
/// `code` if the directory no longer exists or cannot be read.
pub fn here(code: ErrorCode) -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|error| {
        Failure::new(code, format!("cannot read the current directory: {error}"))
            .hint("change to an existing directory")
    })
}
