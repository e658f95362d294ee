//! `rotel`, a collector to which system tests send spans: a pinned Python package, which pip
//! installs into a cache outside the checkout. It appears by one rename, so it is whole or absent.

use crate::Failure;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

const VERSION: &str = "0.0.1a15";

/// Returns the program, and installs it first if it is missing. `MULETEER_TEST_ROTEL` names another
/// one.
///
/// # Errors
/// When python, the registry or a package for this platform is missing. Tests that need it then
/// report a skip.
pub fn install() -> Result<PathBuf, Failure> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _turn = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let variable =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(given) = variable("MULETEER_TEST_ROTEL") {
        return Ok(given);
    }
    let cache = variable("MULETEER_TEST_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME"))
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))
        .ok_or("none of MULETEER_TEST_CACHE, XDG_CACHE_HOME and HOME is set")?;
    let place = cache.join("muleteer-test-rotel").join(VERSION);
    let program = place.join("rotel/rotel-agent");
    if program.is_file() {
        return Ok(program);
    }
    let temporary = cache.join(format!("muleteer-test-rotel/.installing-{}", std::process::id()));
    std::fs::create_dir_all(&temporary)?;
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
    ]);
    pip.args(["--retries", "1", "--timeout", "60", "--target"])
        .arg(&temporary)
        .arg(format!("rotel=={VERSION}"));
    let output = pip.stdin(Stdio::null()).output().map_err(|error| format!("python3: {error}"))?;
    let installed = output.status.success() && temporary.join("rotel/rotel-agent").is_file();
    let moved = if installed { std::fs::rename(&temporary, &place) } else { Ok(()) };
    let outcome = match (installed, moved) {
        (true, Ok(())) => Ok(program),
        // Another process was faster.
        (true, Err(_)) if program.is_file() => Ok(program),
        (true, Err(error)) => Err(format!("{}: {error}", place.display()).into()),
        (false, _) => {
            Err(format!("pip brought no rotel: {}", String::from_utf8_lossy(&output.stderr).trim())
                .into())
        }
    };
    let _ = std::fs::remove_dir_all(&temporary);
    outcome
}
