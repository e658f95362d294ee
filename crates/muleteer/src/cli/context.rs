//! What every verb starts from: the global options and the environment, worked out once.

use crate::cli::Global;
use crate::cli::failure::Failure;
use crate::cli::output::Output;
use muleteer_process::lock;
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
    /// `MULETEER_SOCKET` is set: an agent asks. It never starts a daemon and shows no operator key.
    pub is_agent: bool,
    /// How long a client waits for a daemon that is away: an agent cannot start one, and goes on
    /// under the next. Who says with `--socket` where the daemon is, is told at once.
    pub patience: Duration,
    /// `--config`, absolute.
    pub config: Option<PathBuf>,
    /// The place in a trace that requests carry: `TRACEPARENT`, or the verb's own span where it is
    /// traced.
    pub trace: Option<String>,
    /// `--socket` was given, so a daemon started on demand must listen there.
    pub socket_given: bool,
    /// Why nothing lives where the paths say: only verbs that need no state see this.
    pub misplaced: Option<PathError>,
}

impl Context {
    /// # Errors
    /// When the environment does not say where anything lives, or says what the system does not
    /// take.
    pub fn new(global: &Global) -> Result<Self, Failure> {
        let context = Self::anywhere(global);
        if let Some(error) = &context.misplaced {
            return Err(Failure::of("E_USAGE", error).hint(error.hint()));
        }
        match &context.config {
            // Also for the verbs that need none of it: a name that is mistyped must not look as if
            // it were in force.
            Some(path) if !path.exists() => {
                let message = format!("there is no configuration {}", path.display());
                Err(Failure::new("E_CONFIG_INVALID", message)
                    .file(path)
                    .hint("--config names a file that is there"))
            }
            _ => Ok(context),
        }
    }

    /// Also where nothing can live: for the verbs that need no state, and the one that says why.
    pub fn anywhere(global: &Global) -> Self {
        let found = Paths::from_env();
        let nowhere = found.as_ref().err().cloned();
        let paths = found.unwrap_or_else(|_| Paths::nowhere());
        let from_env =
            std::env::var_os("MULETEER_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from);
        let is_agent = from_env.is_some();
        // As deep as the state directory, and reached by a shorter name where there is one.
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

/// The socket of a daemon that was started in another environment (a system service, a cron job)
/// and so listens elsewhere: its lock's note says where. Of use only while nobody listens where we
/// look first.
fn elsewhere(paths: &Paths) -> Option<PathBuf> {
    if paths.socket.exists() {
        return None;
    }
    let note: Note = lock::read_note(&paths.daemon_lock())?;
    note.socket.filter(|socket| socket.is_absolute() && socket.exists())
}

/// The path as seen from anywhere; as given if there is no current directory to start from.
pub fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// What configuration and roles are seen from: `--project`, or where we are.
///
/// # Errors
/// `E_PROJECT_NOT_FOUND` when that is no directory.
pub fn seen_from(project: Option<&Path>) -> Result<PathBuf, Failure> {
    match project {
        Some(path) if !path.is_dir() => Err(Failure::new(
            "E_PROJECT_NOT_FOUND",
            format!("{} is not a directory", path.display()),
        )),
        path => Ok(absolute(path.unwrap_or(".".as_ref()))),
    }
}

/// Where we are.
///
/// # Errors
/// `code` when that is gone, or may not be looked at.
pub fn here(code: &str) -> Result<PathBuf, Failure> {
    std::env::current_dir().map_err(|error| {
        Failure::new(code, format!("the current directory cannot be used: {error}"))
            .hint("go to one that is there")
    })
}
