//! The channels by which a person is told: a command of theirs, ntfy, a webhook, the desktop, mail.

use crate::notify::desktop::{self, DesktopError};
use crate::notify::mail::{self, MailError};
use futures_util::FutureExt;
use futures_util::future::FusedFuture;
use muleteer_model::config::notify::Notify;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::notify::{Kind, Notice};
use muleteer_process::command::helper;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::unix::process::CommandExt;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStderr, Command};
use tokio::time::timeout;

/// The time for one try.
const PATIENCE: Duration = Duration::from_secs(20);
/// The time for the last words of a command that has ended.
const REST: Duration = Duration::from_millis(200);
/// The most bytes of an answer or of an error that are shown.
const DETAIL_LIMIT: usize = 300;
const NTFY_TOKEN: &str = "MULETEER_NTFY_TOKEN";
const WEBHOOK_TOKEN: &str = "MULETEER_WEBHOOK_TOKEN";

/// A notification as the channels get it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    pub title: String,
    /// One line for each matter.
    pub text: String,
    #[serde(default)]
    pub matters: Vec<About>,
}

/// One matter of a notification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    pub kind: Kind,
    /// Empty for a matter of no dispatch.
    #[serde(default)]
    pub dispatch_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    pub text: String,
}

/// The reason why a try failed. It never has a token, and of an address only its host.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("notify.{0} is not configured")]
    Absent(String),
    #[error("cannot run the command")]
    Command(#[source] io::Error),
    #[error("the command failed ({0}): {1}")]
    Failed(ExitStatus, String),
    #[error("it did not end within {} s", PATIENCE.as_secs())]
    Slow,
    #[error("{host}: {message}")]
    Http { host: String, message: String },
    #[error(transparent)]
    Desktop(#[from] DesktopError),
    #[error(transparent)]
    Mail(#[from] MailError),
}

impl ChannelError {
    /// Whether the person may have been told nevertheless, so that another try could repeat it.
    pub fn is_uncertain(&self) -> bool {
        match self {
            Self::Slow => true,
            Self::Desktop(error) => error.is_uncertain(),
            Self::Mail(error) => error.is_uncertain(),
            Self::Absent(_) | Self::Command(_) | Self::Failed(..) | Self::Http { .. } => false,
        }
    }

    /// Whether another try soon would fail for the same reason.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Absent(_) => true,
            Self::Desktop(error) => error.is_lasting(),
            Self::Mail(error) => error.is_lasting(),
            Self::Slow | Self::Command(_) | Self::Failed(..) | Self::Http { .. } => false,
        }
    }
}

impl Message {
    pub fn of(notice: &Notice, fleet: &Fleet) -> Self {
        let about = notice.matters.iter().map(|matter| About {
            kind: matter.kind,
            dispatch_id: matter.dispatch.as_ref().map(ToString::to_string).unwrap_or_default(),
            question_id: matter.question.clone(),
            thread_id: matter
                .dispatch
                .as_ref()
                .and_then(|id| fleet.get(id))
                .and_then(|dispatch| dispatch.created.thread().map(ToString::to_string)),
            text: matter.text.clone(),
        });
        Self { title: notice.title(), text: notice.text(), matters: about.collect() }
    }

    /// Returns the message of `muleteer notify test`.
    pub fn test() -> Self {
        let text = "This is a test of Muleteer's notifications.".to_string();
        Self { title: "Muleteer: a test".into(), text, matters: vec![] }
    }
}

/// Sends a message on one channel. Cancel-safe: the command ends with the future.
///
/// # Errors
/// The reason why nobody was told.
pub async fn send(notify: &Notify, channel: &str, message: &Message) -> Result<(), ChannelError> {
    let absent = || ChannelError::Absent(channel.into());
    match channel {
        "command" => {
            let command = notify.command.as_deref().ok_or_else(absent)?;
            run(command, message).await
        }
        "ntfy" => {
            let address = notify.ntfy.clone().ok_or_else(absent)?;
            let title = message.title.replace(|c: char| !(' '..='~').contains(&c), "?");
            let body = message.text.clone();
            post(address, NTFY_TOKEN, vec![("title", title)], "text/plain", body).await
        }
        "webhook" => {
            let address = notify.webhook.clone().ok_or_else(absent)?;
            post(address, WEBHOOK_TOKEN, vec![], "application/json", json(message)).await
        }
        "desktop" if notify.desktop => Ok(desktop::show(message, PATIENCE).await?),
        "mail" => {
            let settings = notify.mail.as_ref().ok_or_else(absent)?;
            Ok(mail::send(settings, mail::password(), message, PATIENCE).await?)
        }
        _ => Err(absent()),
    }
}

fn json(message: &Message) -> String {
    serde_json::to_string(message).unwrap_or_default()
}

/// Runs the person's command with the message on its stdin.
async fn run(command: &str, message: &Message) -> Result<(), ChannelError> {
    let mut shell = helper("/bin/sh");
    shell.args(["-c", command]).stdin(Stdio::piped()).stdout(Stdio::null());
    shell.stderr(Stdio::piped()).process_group(0);
    shell.env("MULETEER_NOTIFY_TITLE", &message.title);
    shell.env("MULETEER_NOTIFY_TEXT", &message.text);
    let mut child =
        Command::from(shell).kill_on_drop(true).spawn().map_err(ChannelError::Command)?;
    let group = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
    let document = json(message);
    let mut said = vec![];
    let ended = {
        let write = async {
            if let Some(mut stdin) = stdin {
                // A command that reads no stdin is none the worse.
                drop(stdin.write_all(document.as_bytes()).await);
            }
        };
        let pipes = async { tokio::join!(write, read_begin(stderr, &mut said)) };
        let mut pipes = pin!(pipes.fuse());
        let done = async {
            tokio::select! {
                status = child.wait() => status,
                _ = &mut pipes => child.wait().await,
            }
        };
        let ended = timeout(PATIENCE, done).await;
        // The output of the command is in the pipe. A process that it left behind may hold the pipe
        // for long, and is not waited for.
        if ended.is_ok() && !pipes.is_terminated() {
            let _ = timeout(REST, &mut pipes).await;
        }
        ended
    };
    let Ok(status) = ended else {
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        return Err(ChannelError::Slow);
    };
    let status = status.map_err(ChannelError::Command)?;
    match status.success() {
        true => Ok(()),
        false => Err(ChannelError::Failed(status, detail(&said))),
    }
}

/// Reads all that a command writes, and keeps the beginning.
async fn read_begin(stderr: Option<ChildStderr>, begin: &mut Vec<u8>) {
    let Some(mut stderr) = stderr else { return };
    let mut part = [0; 4096];
    while let Ok(bytes @ 1..) = stderr.read(&mut part).await {
        let room = DETAIL_LIMIT.saturating_sub(begin.len());
        begin.extend_from_slice(&part[..bytes.min(room)]);
    }
}

/// Posts a text with the bearer token of a variable, if it is set.
async fn post(
    address: String,
    token: &str,
    headers: Vec<(&'static str, String)>,
    kind: &'static str,
    body: String,
) -> Result<(), ChannelError> {
    let token = std::env::var(token).ok().filter(|token| !token.is_empty());
    let host = host(&address);
    let failed = {
        let host = host.clone();
        move |message: String| ChannelError::Http { host, message }
    };
    let sent = tokio::task::spawn_blocking(move || {
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).max_redirects(0);
        let agent: ureq::Agent = config.build().into();
        let mut request = agent.post(&address).header("content-type", kind);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.send(body.as_bytes())
    });
    match sent.await {
        Ok(Ok(answer)) if answer.status().is_success() => Ok(()),
        Ok(Ok(answer)) => Err(failed(format!("it answered {}", answer.status()))),
        // The library's errors may quote the address, whose path can be a secret.
        Ok(Err(ureq::Error::StatusCode(status))) => Err(failed(format!("it answered {status}"))),
        Ok(Err(ureq::Error::Timeout(_))) => Err(ChannelError::Slow),
        Ok(Err(ureq::Error::HostNotFound)) => Err(failed("the host is unknown".into())),
        Ok(Err(ureq::Error::Io(error))) => Err(failed(error.kind().to_string())),
        Ok(Err(_)) => Err(failed("the request failed".into())),
        Err(error) => Err(failed(error.to_string())),
    }
}

/// Returns the scheme and host of an address, without user, path and query.
fn host(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}")
}

/// Returns the begin of a foreign text, on one line.
pub(super) fn detail(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(DETAIL_LIMIT)]);
    text.trim().replace(|c: char| c.is_control(), " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that the command leaves behind holds its stderr much longer than a try may take.
    #[tokio::test]
    async fn command_is_not_delayed_by_what_it_leaves_and_its_words_are_bounded() {
        let left = "sleep 30 & echo $! >&2; head -c 4000000 /dev/zero | tr '\\0' x >&2; exit";
        let message = Message::test();
        assert!(run(&format!("{left} 0"), &message).await.is_ok());
        let failed = run(&format!("{left} 3"), &message).await;
        assert!(
            matches!(&failed, Err(ChannelError::Failed(status, words))
                if status.code() == Some(3)
                    && words.len() == DETAIL_LIMIT
                    && words.contains("xxx")),
            "{failed:?}"
        );
    }

    #[test]
    fn only_a_try_without_an_outcome_is_uncertain() {
        assert!(ChannelError::Slow.is_uncertain());
        let refused = ChannelError::Http { host: String::new(), message: "refused".into() };
        assert!(!refused.is_uncertain());
    }

    #[test]
    fn error_has_no_part_of_an_address_that_may_be_secret() {
        for (address, shown) in [
            ("https://hooks.example/services/T0/B0/secret?token=s", "https://hooks.example"),
            ("http://user:pass@127.0.0.1:8080/x", "http://127.0.0.1:8080"),
            ("https://ntfy.sh", "https://ntfy.sh"),
        ] {
            assert_eq!(host(address), shown);
        }
    }
}
