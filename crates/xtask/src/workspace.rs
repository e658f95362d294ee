//! Finds the checkout, and runs cargo.

use crate::Failure;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the checkout.
///
/// The path comes from the crate's own folder at compile time: `current_dir` differs between
/// `cargo xtask` (the user's directory) and `cargo test` (the package's folder).
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("crates/xtask is two levels below the root")
        .to_path_buf()
}

/// Returns the `target` directory into which this program was built, so that `CARGO_TARGET_DIR` and
/// configuration count without a call of cargo.
///
/// # Errors
/// When the program is not inside a profile's folder (it was copied elsewhere).
pub fn target_dir() -> Result<PathBuf, Failure> {
    let exe = std::env::current_exe()?;
    let in_deps =
        |dir: &Path| dir.file_name().is_some_and(|name| name == "deps" || name == "examples");
    let profile = match exe.parent() {
        Some(dir) if in_deps(dir) => dir.parent(),
        other => other,
    };
    profile
        .and_then(Path::parent)
        .map(Path::to_path_buf)
        .ok_or_else(|| format!("{} is not inside a target directory", exe.display()).into())
}

/// Returns the cargo that runs us, else the one on `PATH`, at the root of the checkout.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs a command to its end with our own stdout and stderr.
///
/// # Errors
/// Names the command and its exit status.
pub fn run(command: &mut Command) -> Result<(), Failure> {
    let said = said(command);
    eprintln!("xtask: {said}");
    let status = command.status().map_err(|error| format!("{said}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{said}: {status}").into()) }
}

/// Returns the command line, for messages.
pub fn said(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    std::iter::once(name)
        .chain(command.get_args())
        .map(|part| part.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}
