//! Starting a daemon because a verb needs one: detached, with a clean environment, its output in a
//! file, and gone again when it has been idle for a while.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
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

/// A daemon must answer within this time of its start; recovery of many agents happens after that.
const DEADLINE: Duration = Duration::from_secs(10);
/// Before it answers it reads its log: on a slow machine that goes at this pace, in bytes a second.
const READS: u64 = 10 << 20;
/// So long nothing is said of what is waited for.
const QUIET: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(10);
/// Before a daemon that died, or found another, is started again.
const AGAIN: Duration = Duration::from_millis(100);
/// A log longer than this is set aside when a daemon starts.
const LOG_LIMIT: u64 = 8 << 20;
/// How much of the log an error shows.
const TAIL_LINES: usize = 12;
const TAIL_BYTES: u64 = 8 << 10;
/// More than any error of a daemon's start.
const REPORT_LIMIT: u64 = 64 << 10;

/// What the daemon's own environment is made of. It outlives the shell that caused it by days: what
/// is meant for one agent travels in the request (see `env_pass`), and nothing else of that shell
/// stays.
const CLEAN: &[&str] = &["HOME", "PATH", "LANG", "TZ", "USER", "LOGNAME", "TMPDIR"];
/// Ours, and yet not for a daemon: an agent's marks, and points at which tests end *this* process.
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
];

/// Starts a daemon and connects to it. Of two clients that do this at once, one daemon gets the
/// lock and both clients get it.
///
/// # Errors
/// Why the daemon could not start, in its own words; `E_DAEMON_START` when it said nothing, or does
/// not answer in time, with the end of the log.
pub async fn start(context: &Context) -> Result<Client, Failure> {
    let log = context.paths.daemon_log();
    let cannot = |error: io::Error| {
        Failure::new("E_DAEMON_START", format!("cannot start a daemon: {}: {error}", log.display()))
            .file(&log)
            .hint("`muleteer doctor` says what is wrong with the directories")
    };
    let file = open_log(&log).map_err(cannot)?;
    context.out.detail(format!("starting a daemon; its log is {}", log.display()));
    let (mut child, mut report) = launch(context, file).map_err(cannot)?;
    let events = fs::metadata(context.paths.events()).map_or(0, |meta| meta.len());
    let (began, patience) = (Instant::now(), patience(events));
    let deadline = began + patience;
    let mut said = false;
    loop {
        if events > READS && began.elapsed() >= QUIET && !std::mem::replace(&mut said, true) {
            let (size, seconds) = (events >> 20, patience.as_secs());
            context.out.note(format!(
                "the daemon reads its log first ({size} MiB of events); for up to {seconds} s"
            ));
        }
        match context.dial().await {
            Ok(client) => return Ok(client),
            Err(ClientError::NoDaemon { .. } | ClientError::Lost) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(status) = child.try_wait().map_err(cannot)? {
            let why = told(&report);
            // Another daemon has the lock, and its socket is about to appear, unless it dies too. A
            // signal: somebody killed ours as it began. Both are crashes, and starting again is the
            // cure.
            let again = why
                .as_ref()
                .map_or(status.code().is_none(), |why| why.code() == "E_ALREADY_RUNNING");
            if !again || Instant::now() >= deadline {
                return Err(why.unwrap_or_else(|| {
                    died(&log, &format!("the daemon ended at once ({status})"))
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

// Not `muleteer_process`'s way of starting: that holds an agent until it is recorded, and a daemon
// is nobody's child. What it would close and leave, the daemon closes and leaves itself.
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
    // The daemon leaves our session by itself, before anything else (see `commands::daemon`).
    Ok((command.spawn()?, ours))
}

/// Whoever waits for the daemon that this process is to become: told why, if nothing comes of it.
#[derive(Debug)]
pub struct Waiting(File);

impl Waiting {
    /// Takes standard output, which is the socket of whoever waits, out of the way of all that
    /// prints.
    ///
    /// # Errors
    /// Of the descriptors.
    pub fn take() -> io::Result<Self> {
        let report = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3)?;
        rustix::stdio::dup2_stdout(io::stderr())?;
        Ok(Self(File::from(report)))
    }

    /// They may have gone: then the log alone has it.
    pub fn tell(mut self, failure: &Failure) {
        let _ = self.0.write_all(failure.document().to_string().as_bytes());
    }
}

/// Why a daemon that has ended did not start. None where it could not say so.
fn told(report: &UnixStream) -> Option<Failure> {
    #[derive(Deserialize)]
    struct Document {
        error: WireError,
    }
    let mut bytes = Vec::new();
    // It does not wait: the daemon has ended, and what it wrote is there.
    let _ = report.take(REPORT_LIMIT).read_to_end(&mut bytes);
    serde_json::from_slice::<Document>(&bytes).ok().map(|document| document.error.into())
}

/// The variables that a daemon started on demand inherits.
fn clean(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let keep = |name: &str| {
        CLEAN.contains(&name)
            || name.starts_with("XDG_")
            // Where spans go is the daemon's business, and no agent's.
            || name.starts_with("OTEL_")
            || name.starts_with("LC_")
            || (name.starts_with("MULETEER_") && !NOT_OURS.contains(&name))
    };
    vars.into_iter().filter(|(name, _)| name.to_str().is_some_and(keep)).collect()
}

/// A point at which a test ends the daemon that is started here, and not this process.
fn fault() -> Option<(&'static str, OsString)> {
    let asked =
        cfg!(feature = "fault-points").then(|| std::env::var_os("MULETEER_DAEMON_FAULT"))??;
    Some(("MULETEER_FAULT", asked))
}

/// This very program; where its file was replaced since it was started, the one in its place: a
/// daemon started from a file that has no name any more could not start agents by that name.
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
    Failure::new("E_DAEMON_START", message)
        .file(log)
        .hint("run `muleteer daemon` in a terminal to see it start")
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
    fn a_daemon_with_a_long_log_is_given_the_time_to_read_it() {
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
        let text = died(&log, "the daemon ended at once").text();
        assert!(text.contains("  line 99\n") && text.contains("line 88"), "{text}");
        assert!(!text.contains("line 87"), "{text}");
    }
}
