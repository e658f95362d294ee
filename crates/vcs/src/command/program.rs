//! The git that all commands of this process run: the one that PATH names when the first of them
//! starts, or when [`find_git`] is called. An agent that puts another one into a folder of PATH
//! later changes nothing.

use muleteer_process::command::helper;
use muleteer_process::command::program::{self, Program};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

const NAME: &str = "git";
/// Leads nowhere for certain. The rest of the path is what an error shows.
const NOWHERE: &str = "/dev/null";

static GIT: OnceLock<Program> = OnceLock::new();

/// Finds git now, unless that was done. If there is none, it is looked for again later.
pub fn find_git() {
    if GIT.get().is_none()
        && let Ok(found) = Program::find(NAME, std::env::var_os("PATH").as_deref())
    {
        // Another thread may have found it.
        let _ = GIT.set(found);
    }
}

/// Returns a git command without arguments. If git is not what it was, the command fails to start.
pub(super) fn git() -> Command {
    find_git();
    match GIT.get().map(Program::command) {
        Some(Ok(command)) => command,
        Some(Err(error)) => helper(format!("{NOWHERE}/{error}; restart the daemon")),
        None => helper(NAME),
    }
}

/// Returns the name of a command's program for messages.
pub(super) fn name(program: &OsStr) -> String {
    if program::is_descriptor(program) {
        return NAME.into();
    }
    let name = program.to_string_lossy();
    match name.strip_prefix(NOWHERE) {
        Some(said) => format!("{NAME}: {}", said.trim_start_matches('/')),
        None if GIT.get().is_some_and(|git| git.path() == Path::new(program)) => NAME.into(),
        None => name.into_owned(),
    }
}
