//! Starts a daemon because a verb needs one. It is detached, has a clean environment, logs to a
//! file, and exits after some idle time.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::client::{Client, ClientError};
use muleteer_protocol::v1::WireError;
use serde::Deserialize;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A daemon must answer within this time of its start; recovery of many agents happens afterwards.
const DEADLINE: Duration = Duration::from_secs(10);
/// The daemon reads its log before it answers; this is the assumed speed on a slow machine, in
/// bytes a second.
const READS: u64 = 10 << 20;
/// How long a client waits silently before it reports what it waits for.
const QUIET: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(10);
/// The pause before a daemon that died, or found another one, is started again.
const AGAIN: Duration = Duration::from_millis(100);
/// A log longer than this is renamed when a daemon starts.
const LOG_LIMIT: u64 = 8 << 20;
/// How much of the log an error message shows.
const TAIL_LINES: usize = 12;
const TAIL_BYTES: u64 = 8 << 10;
/// This is more than any error of a daemon's start takes.
const REPORT_LIMIT: u64 = 64 << 10;

/// The session bus of the desktop, on which notifications are shown (`notify.desktop`).
const BUS: &str = "DBUS_SESSION_BUS_ADDRESS";
/// The variables that the daemon's own environment inherits. The daemon outlives the shell that
/// caused its start by days. Values for one agent travel in the request (see `env_pass`), so
/// nothing else of that shell is inherited.
const CLEAN: &[&str] = &["HOME", "PATH", "LANG", "TZ", "USER", "LOGNAME", "TMPDIR", BUS];
/// Muleteer's variables that a daemon must not inherit: an agent's markers, and fault points of
/// *this* process.
const NOT_OURS: &[&str] = &[
    "MULETEER_SOCKET",
    "MULETEER_DISPATCH_ID",
    "MULETEER_ROLE",
    "MULETEER_JOURNAL",
    "MULETEER_PROMPT_FILE",
    "MULETEER_SCENARIO",
    "MULETEER_FAULT",
    "MULETEER_DAEMON_FAULT",
    "MULETEER_NONCE",
    "MULETEER_HOST",
];

/// Starts a daemon and connects to it. If two clients do this at once, one daemon gets the lock and
/// both clients connect to it.
///
/// # Errors
/// The daemon's own error if it could not start. `E_DAEMON_START` with the end of the log if it
/// reported none, or does not answer in time.
pub async fn start(context: &Context) -> Result<Client, Failure> {
    let log = context.paths.daemon_log();
    let cannot = |error: io::Error| {
        Failure::new(
            ErrorCode::DaemonStart,
            format!("cannot start a daemon: {}: {error}", log.display()),
        )
        .file(&log)
        .hint("run `muleteer doctor` to check the directories")
    };
    let file = open_log(&log).map_err(cannot)?;
    context.out.detail(format!("starting a daemon; its log is {}", log.display()));
    let (mut child, mut report) = launch(context, file).map_err(cannot)?;
    let events = muleteer_store::events::length(&context.paths.events());
    let (began, patience) = (Instant::now(), patience(events));
    let deadline = began + patience;
    let mut said = false;
    loop {
        if events > READS && began.elapsed() >= QUIET && !std::mem::replace(&mut said, true) {
            let (size, seconds) = (events >> 20, patience.as_secs());
            context.out.note(format!(
                "the daemon reads {size} MiB of events first, which takes up to {seconds} s"
            ));
        }
        match context.dial().await {
            Ok(client) => return Ok(client),
            Err(ClientError::NoDaemon { .. } | ClientError::Lost) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(status) = child.try_wait().map_err(cannot)? {
            let why = told(&report);
            // Two cases are retried. `E_ALREADY_RUNNING`: another daemon has the lock, and its
            // socket will appear unless that one dies too. No exit code: a signal killed our daemon
            // as it began.
            let again = why
                .as_ref()
                .map_or(status.code().is_none(), |why| why.code() == ErrorCode::AlreadyRunning);
            if !again || Instant::now() >= deadline {
                return Err(why.unwrap_or_else(|| {
                    died(&log, &format!("the daemon exited immediately ({status})"))
                }));
            }
            sleep(AGAIN).await;
            (child, report) = launch(context, open_log(&log).map_err(cannot)?).map_err(cannot)?;
        }
        if Instant::now() >= deadline {
            let what = format!(
                "no daemon answered at {} within {}s",
                context.socket.display(),
                patience.as_secs()
            );
            return Err(died(&log, &what));
        }
        sleep(PAUSE).await;
    }
}

fn patience(events: u64) -> Duration {
    DEADLINE + Duration::from_secs(events / READS)
}

// `muleteer_process` cannot start the daemon: it holds an agent until it is recorded, but nobody
// records a daemon. The daemon itself closes inherited descriptors and leaves the session.
#[allow(clippy::disallowed_methods)]
fn launch(context: &Context, log: File) -> io::Result<(std::process::Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut command = std::process::Command::new(own_program());
    command.args(["daemon", "--on-demand"]);
    if context.socket_given || context.socket != context.paths.socket {
        command.arg("--socket").arg(&context.socket);
    }
    if let Some(config) = &context.config {
        command.arg("--config").arg(config);
    }
    command
        .env_clear()
        .envs(clean(std::env::vars_os()))
        .envs(fault())
        .current_dir("/")
        .stdin(std::process::Stdio::null())
        .stdout(OwnedFd::from(theirs))
        .stderr(log);
    // The daemon leaves our session by itself, before anything else (see `verbs::daemon`).
    Ok((command.spawn()?, ours))
}

/// The client that waits for this process to become the daemon. It receives the reason if the start
/// fails.
#[derive(Debug)]
pub struct Waiting(File);

impl Waiting {
    /// Takes over standard output, which is the waiting client's socket, so that nothing else
    /// prints to it. Standard output becomes a copy of stderr.
    ///
    /// # Errors
    /// The errors of duplicating the descriptors.
    pub fn take() -> io::Result<Self> {
        let report = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?;
        rustix::stdio::dup2_stdout(io::stderr())?;
        Ok(Self(File::from(report)))
    }

    /// Sends the failure to the client. If the client is gone, only the log has it.
    pub fn tell(mut self, failure: &Failure) {
        let _ = self.0.write_all(failure.document().to_string().as_bytes());
    }
}

/// Reads why a daemon that has ended did not start. `None` if it reported nothing.
fn told(report: &UnixStream) -> Option<Failure> {
    #[derive(Deserialize)]
    struct Document {
        error: WireError,
    }
    let mut bytes = Vec::new();
    // This does not block: the daemon has ended, and its output is complete.
    let _ = report.take(REPORT_LIMIT).read_to_end(&mut bytes);
    serde_json::from_slice::<Document>(&bytes).ok().map(|document| document.error.into())
}

/// Filters the variables that a daemon started on demand inherits.
fn clean(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let keep = |name: &str| {
        CLEAN.contains(&name)
            || name.starts_with("XDG_")
            // The daemon needs the destination of its spans; agents do not get it.
            || name.starts_with("OTEL_")
            || name.starts_with("LC_")
            || (name.starts_with("MULETEER_") && !NOT_OURS.contains(&name))
    };
    vars.into_iter().filter(|(name, _)| name.to_str().is_some_and(keep)).collect()
}

/// The fault point at which a test ends the daemon that is started here, and not this process.
fn fault() -> Option<(&'static str, OsString)> {
    let asked =
        cfg!(feature = "fault-points").then(|| std::env::var_os("MULETEER_DAEMON_FAULT"))??;
    Some(("MULETEER_FAULT", asked))
}

/// Returns the path of this program, or of its replacement if the file was replaced since it was
/// started. A daemon that was started from a deleted file could not start agents by that name.
pub fn own_program() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    let replaced = own.to_str().and_then(|path| path.strip_suffix(" (deleted)")).map(PathBuf::from);
    let there = [Some(own), replaced].into_iter().flatten().find(|path| path.exists());
    there.unwrap_or_else(|| "/proc/self/exe".into())
}

pub fn open_log(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    }
    if fs::metadata(path).is_ok_and(|meta| meta.len() > LOG_LIMIT) {
        fs::rename(path, path.with_extension("log.1"))?;
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

pub fn died(log: &Path, what: &str) -> Failure {
    let tail = tail(log).unwrap_or_default();
    let message = if tail.is_empty() {
        what.to_string()
    } else {
        format!("{what}; its log ends with:\n{tail}")
    };
    Failure::new(ErrorCode::DaemonStart, message)
        .file(log)
        .hint("run `muleteer daemon` in a terminal to see its messages")
}

fn tail(log: &Path) -> io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<_> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(TAIL_LINES)..]
        .iter()
        .map(|line| format!("  {line}\n"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_start_timeout_grows_with_the_log() {
        assert_eq!(patience(0), DEADLINE);
        assert_eq!(patience(1 << 30), DEADLINE + Duration::from_secs(102));
    }

    #[test]
    fn a_daemon_inherits_places_and_no_secrets() {
        let names = [
            "HOME",
            "XDG_STATE_HOME",
            "ANTHROPIC_API_KEY",
            "MULETEER_LOG",
            "MULETEER_FAULT",
            "MULETEER_SOCKET",
            "PWD",
        ];
        let vars = names.map(|name| (OsString::from(name), OsString::from("x")));
        let kept: Vec<_> = clean(vars)
            .into_iter()
            .map(|(name, _)| name.into_string().unwrap_or_default())
            .collect();
        assert_eq!(kept, ["HOME", "XDG_STATE_HOME", "MULETEER_LOG"]);
    }

    #[test]
    fn an_error_shows_the_end_of_the_log() {
        let dir = tempfile::tempdir().expect("dir");
        let log = dir.path().join("daemon.log");
        let lines: String = (0..100).map(|n| format!("line {n}\n")).collect();
        fs::write(&log, lines).expect("write");
        let text = died(&log, "the daemon exited immediately").text();
        assert!(text.contains("  line 99\n") && text.contains("line 88"), "{text}");
        assert!(!text.contains("line 87"), "{text}");
    }
}
