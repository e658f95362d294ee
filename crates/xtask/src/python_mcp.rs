//! The official Python client of MCP, which system tests drive. pip installs the wheels that
//! `deploy/ci/mcp-clients/requirements.txt` pins by hash into a cache outside the checkout. The
//! folder appears by one rename, so it is whole or absent.

use crate::agents::{cache_root, fnv1a};
use crate::{Failure, workspace};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Returns the folder for PYTHONPATH, and installs it first if it is missing.
///
/// # Errors
/// When python, pip, the registry or a wheel for this platform is missing. Tests that need it then
/// report a skip.
pub fn install() -> Result<PathBuf, Failure> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _turn = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let requirements = workspace::root().join("deploy/ci/mcp-clients/requirements.txt");
    let pins = std::fs::read(&requirements)
        .map_err(|error| format!("{}: {error}", requirements.display()))?;
    // Some wheels are for one version of Python.
    let version = "import sys; print('%d.%d' % sys.version_info[:2])";
    let version = output(Command::new("python3").args(["-c", version]))?;
    let cache = cache_root()?.join("muleteer-test-mcp");
    let place = cache.join(format!("{:016x}-{}", fnv1a(&pins), version.trim()));
    let whole = |dir: &PathBuf| dir.join("mcp/__init__.py").is_file();
    if whole(&place) {
        return Ok(place);
    }
    let temporary = cache.join(format!(".installing-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&temporary);
    std::fs::create_dir_all(&temporary)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    pip.args(["--require-hashes", "--only-binary=:all:", "--retries", "1", "--timeout", "60"]);
    pip.arg("--target").arg(&temporary).arg("--requirement").arg(&requirements);
    let installed = output(&mut pip).and_then(|_| match whole(&temporary) {
        true => Ok(()),
        false => Err("pip brought no `mcp`".into()),
    });
    let outcome = installed.and_then(|()| match std::fs::rename(&temporary, &place) {
        Ok(()) => Ok(place.clone()),
        // Another process was faster.
        Err(_) if whole(&place) => Ok(place.clone()),
        Err(error) => Err(format!("{}: {error}", place.display()).into()),
    });
    let _ = std::fs::remove_dir_all(&temporary);
    outcome
}

fn output(command: &mut Command) -> Result<String, Failure> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| format!("python3: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            Err(format!("python3 failed: {}", String::from_utf8_lossy(&output.stderr).trim())
                .into())
        }
    }
}
