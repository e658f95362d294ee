//! What an agent's tools do: files and commands.

#![allow(
    clippy::disallowed_methods,
    reason = "an agent runs its own commands, as real ones do: its shim watches all of them"
)]

use crate::rehearse::inbox::Inbox;
use muleteer_backends::rehearsal::Vars;
use muleteer_process::group::descendants;
use muleteer_process::identity::{Pinned, ProcessId};
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Longest value given to a command as a variable: the system limits one to 128 KiB.
const VALUE_LIMIT: usize = 64 * 1024;

/// Commits everything; `$message` is the message. Nothing to commit is no failure: a step that was
/// cut off behind its commit is done again.
pub const COMMIT: &str = r#"
git add -A || exit 1
if git diff --cached --quiet; then echo "nothing to commit"; exit 0; fi
if ! git var GIT_COMMITTER_IDENT >/dev/null 2>&1; then
  export GIT_AUTHOR_NAME=Rehearsal GIT_AUTHOR_EMAIL=rehearsal@localhost
  export GIT_COMMITTER_NAME=Rehearsal GIT_COMMITTER_EMAIL=rehearsal@localhost
fi
git commit -q -m "$message" && git log -1 --format='%h %s'
"#;

/// Writes or appends, durably: what is reported as written is there after a crash.
pub fn write(path: &str, text: &str, append: bool) -> io::Result<String> {
    let path = Path::new(path);
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let mut file = if append {
        OpenOptions::new().create(true).append(true).open(path)?
    } else {
        File::create(path)?
    };
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    Ok(format!(
        "{} bytes {} {}",
        text.len(),
        if append { "appended to" } else { "written to" },
        path.display()
    ))
}

/// A command that runs; its output and its end come to the inbox.
#[derive(Debug)]
pub struct Running {
    shell: Option<ProcessId>,
}

/// Starts `sh -c command`. Variables of the scenario are in its environment, so that no prompt's
/// text is ever read as shell.
pub fn start(inbox: &Inbox, run: u64, command: &str, vars: &Vars) -> io::Result<Running> {
    let values = vars.own().map(|(name, value)| (name, cut(value)));
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .envs(values)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(stdout) = child.stdout.take() {
        inbox.listen(run, stdout);
    }
    if let Some(stderr) = child.stderr.take() {
        inbox.listen(run, stderr);
    }
    // Told apart before anybody reaps it, so that a signal never meets a stranger.
    let shell = ProcessId::of(child.id());
    inbox.await_exit(run, child);
    Ok(Running { shell })
}

impl Running {
    /// Ends the command and what it started, the shell first, so that it cannot start the next one.
    pub fn end(&self) {
        let Some(shell) = self.shell else { return };
        let below = descendants(shell.pid);
        for id in std::iter::once(shell).chain(below.into_iter().map(ProcessId::from)) {
            // Gone already is as good.
            let _ = Pinned::open_exact(id).and_then(|pinned| pinned.signal(Signal::KILL.as_raw()));
        }
    }
}

fn cut(value: &str) -> String {
    let mut end = value.len().min(VALUE_LIMIT);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    // No variable can hold a NUL.
    value[..end].replace('\0', "")
}
