//! One run of git: deaf to configuration, bounded in what it may say.

use super::GitError;
use crate::worktree::{DURABLE, HARMLESS, LEADING_AWAY, complaint};
use muleteer_process::command::helper;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Output of git that we read: no list of changed files is larger.
const OUTPUT_LIMIT: usize = 64 * 1024 * 1024;
/// Of its complaints.
const WORD_LIMIT: usize = 64 * 1024;

pub(super) fn failed(what: &str, said: &str) -> GitError {
    GitError::Failed { what: format!("git {what}"), said: said.into() }
}

/// git, deaf to configuration that could run somebody's code or ask somebody something.
pub(super) fn bare(dir: &Path) -> Command {
    let mut command = helper("git");
    command
        .arg("-C")
        .arg(dir)
        .args(HARMLESS.iter().flat_map(|setting| ["-c", setting]))
        .args(["-c", "core.quotePath=false", "-c", "protocol.ext.allow=never", "-c", "commit.gpgSign=false"])
        // A snapshot may be of thousands of files: for those git waits once, at the end.
        .args(["-c", DURABLE, "-c", "core.fsyncMethod=batch"])
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_EDITOR", "true")
        .env("LC_ALL", "C");
    for name in LEADING_AWAY {
        command.env_remove(name);
    }
    command
}

pub(super) fn run(command: Command, stdin: &[u8], what: &str) -> Result<String, GitError> {
    run_bytes(command, stdin, what).map(words)
}

/// Only git's own words are trimmed: what is NUL-separated keeps its separators. A path that is no text names nothing then.
pub(super) fn words(said: Vec<u8>) -> String {
    String::from_utf8_lossy(&said).trim_matches('\n').trim_end_matches('\0').to_string()
}

/// Runs it to its end.
pub(super) fn run_bytes(mut command: Command, stdin: &[u8], what: &str) -> Result<Vec<u8>, GitError> {
    let unheard = |said: String| GitError::Unheard { what: format!("git {what}"), said };
    let fail = |error: std::io::Error| unheard(error.to_string());
    if !stdin.is_empty() {
        command.stdin(Stdio::piped());
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(fail)?;
    let writer = child.stdin.take().map(|mut pipe| {
        let bytes = stdin.to_vec();
        // git may answer before it has read everything.
        std::thread::spawn(move || drop(pipe.write_all(&bytes)))
    });
    // Its complaints are read beside its answer, or it could wait for us for ever.
    let stderr = child.stderr.take();
    let complaints = std::thread::spawn(move || at_most(stderr, WORD_LIMIT));
    // One byte more than is allowed tells that there was more; then its pipe is closed, and it ends.
    let stdout = at_most(child.stdout.take(), OUTPUT_LIMIT + 1);
    let status = child.wait().map_err(fail)?;
    if let Some(writer) = writer {
        drop(writer.join());
    }
    let stdout = stdout.map_err(fail)?;
    if stdout.len() > OUTPUT_LIMIT {
        return Err(unheard("its answer is too long".into()));
    }
    if !status.success() {
        let stderr = complaints.join().ok().and_then(Result::ok).unwrap_or_default();
        return Err(failed(what, &complaint(&stderr)));
    }
    Ok(stdout)
}

pub(super) fn at_most(stream: Option<impl Read>, limit: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![];
    if let Some(stream) = stream {
        stream.take(limit as u64).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}
