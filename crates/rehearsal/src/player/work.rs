//! The tools of an agent: files and commands.

#![allow(
    clippy::disallowed_methods,
    reason = "an agent runs its own commands, as real ones do: its shim watches all of them"
)]

use crate::Vars;
use crate::player::inbox::Inbox;
use muleteer_process::group::descendants;
use muleteer_process::identity::{Pinned, ProcessId};
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// The maximum length of a variable's value for a command: the system limits it to 128 KiB.
const VALUE_LIMIT: usize = 64 * 1024;

/// A shell script that commits everything, with `$message` as the message. It succeeds if there is
/// nothing to commit, because a step that was interrupted after its commit is repeated.
pub const COMMIT: &str = r#"
git add -A || exit 1
if git diff --cached --quiet; then echo "nothing to commit"; exit 0; fi
if ! git var GIT_COMMITTER_IDENT >/dev/null 2>&1; then
  export GIT_AUTHOR_NAME=Rehearsal GIT_AUTHOR_EMAIL=rehearsal@localhost
  export GIT_COMMITTER_NAME=Rehearsal GIT_COMMITTER_EMAIL=rehearsal@localhost
fi
git commit -q -m "$message" && git log -1 --format='%h %s'
"#;

/// Writes or appends durably: text that is reported as written survives a crash.
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

/// A running command; its output and its exit arrive in the inbox.
#[derive(Debug)]
pub struct Running {
    shell: Option<ProcessId>,
}

/// Starts `sh -c command`. The scenario's variables are passed in the environment, so that the text
/// of a prompt is never read as shell code.
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
    // The process is identified before it is reaped, so that no signal can reach another process
    // with the same pid.
    let shell = ProcessId::of(child.id());
    inbox.await_exit(run, child);
    Ok(Running { shell })
}

impl Running {
    /// Kills the command and its descendants, the shell first, so that it cannot start another
    /// process.
    pub fn end(&self) {
        let Some(shell) = self.shell else { return };
        let below = descendants(shell.pid);
        for id in std::iter::once(shell).chain(below.into_iter().map(ProcessId::from)) {
            // A process that has already exited needs no signal.
            let _ = Pinned::open_exact(id).and_then(|pinned| pinned.signal(Signal::KILL.as_raw()));
        }
    }
}

fn cut(value: &str) -> String {
    let mut end = value.len().min(VALUE_LIMIT);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    // A variable cannot contain a NUL.
    value[..end].replace('\0', "")
}
