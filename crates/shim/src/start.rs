//! The daemon's side of starting a shim. It blocks, but briefly: file writes and one spawn.

use crate::launch::Launch;
use crate::notes::{self, Notes};
use muleteer_process::command::helper;
use muleteer_process::lock::LockGuard;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The program of a shim, held open since the daemon's start, so that a package upgrade that
/// replaces or removes the file has no effect.
#[derive(Debug)]
pub struct ShimProgram {
    file: File,
    path: PathBuf,
    /// The words before the shim's own arguments: `shim` if the program is `muleteer`.
    words: Vec<OsString>,
}

impl ShimProgram {
    /// Finds `muleteer-shim` beside the running executable, else uses that executable with `shim`.
    pub fn locate() -> io::Result<Self> {
        let own = std::env::current_exe()?;
        let beside = own.with_file_name("muleteer-shim");
        match Self::open(&beside, &[]) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The link stays valid if the file was replaced since we were started.
                let link = Path::new("/proc/self/exe");
                Self::open(if link.exists() { link } else { &own }, &["shim"])
            }
            found => found,
        }
    }

    /// Opens the given program; `words` precede the shim's own arguments.
    pub fn open(path: &Path, words: &[&str]) -> io::Result<Self> {
        let file = File::open(path)?;
        Ok(Self { file, path: path.to_owned(), words: words.iter().map(OsString::from).collect() })
    }

    /// Returns the words with which a shim runs a program in the sandbox of `plan`; the program's
    /// own words follow. They name the shim's own executable, which the kernel holds: a file that
    /// replaced it since is not run.
    pub fn confining(&self, plan: &Path, cwd: &Path) -> Vec<String> {
        let words = self.words.iter().map(|word| word.to_string_lossy().into_owned());
        let paths = [plan, cwd].map(|path| path.to_string_lossy().into_owned());
        [String::from("/proc/self/exe")]
            .into_iter()
            .chain(words)
            .chain([crate::run::CONFINE.to_string()])
            .chain(paths)
            .collect()
    }

    /// Returns the command that does so without a shim; the program's own words follow.
    pub fn confining_now(&self, plan: &Path, cwd: &Path) -> Command {
        let mut command = self.command("muleteer-shim");
        command.arg(crate::run::CONFINE).args([plan, cwd]);
        command
    }

    /// Returns the command with the environment of every shim and with `name` as its process name.
    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = if cfg!(target_os = "linux") {
            helper(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
        } else {
            helper(&self.path)
        };
        // The program is executed through a descriptor, so arg0 gives `ps` a readable name.
        command.arg0(name).args(&self.words);
        command.env_clear();
        // The nonce is passed on: if an agent started this daemon, the daemon's shims are found by
        // it.
        for name in [
            "PATH",
            "MULETEER_FAULT",
            "MULETEER_FAULT_ONCE",
            "RUST_BACKTRACE",
            "MULETEER_NONCE",
            "LLVM_PROFILE_FILE",
        ] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command
    }
}

/// Completes the agent's directory for `launch`: the directory (0700), the key in its lock file
/// (kept if there is one), and `launch-<epoch>.json`. May be repeated. The caller holds the lock,
/// or nobody can.
pub fn prepare(agent_dir: &Path, launch: &Launch) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(agent_dir)?;
    match read_key(agent_dir) {
        Ok(_) => {}
        // A power cut may have left an empty file.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) =>
        {
            let mut key = [0; 16];
            getrandom::fill(&mut key).map_err(|error| io::Error::other(error.to_string()))?;
            notes::add_key(&notes::open(agent_dir)?, &key)?;
        }
        Err(error) => return Err(error),
    }
    launch.write(agent_dir)
}

/// Reads the 128-bit key of this agent's shims. `NotFound` if there is none yet; `InvalidData` if
/// the file of an earlier version has another length.
pub fn read_key(agent_dir: &Path) -> io::Result<[u8; 16]> {
    if let Some(key) = Notes::read(agent_dir)?.key() {
        return Ok(key);
    }
    let key = std::fs::read(agent_dir.join("key"))?;
    key.try_into()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "agents/<id>/key is not 16 bytes"))
}

/// Starts the shim of a prepared launch and gives it `lock`, the guard of `agents/<id>/lock`.
///
/// The caller must drop its own guard soon after, or the agent looks alive as long as the daemon
/// lives. Dropping it does not release the lock while the shim lives. The caller must reap the
/// child; until then its zombie counts as dead everywhere here.
///
/// The shim gets the lock as its standard input: so no code is needed between fork and exec, and no
/// other child that the daemon starts at the same moment can inherit the lock past its exec.
pub fn launch(
    agent_dir: &Path,
    program: &ShimProgram,
    lock: &LockGuard,
    epoch: u32,
) -> io::Result<Child> {
    let log = shim_log(agent_dir)?;
    let mut command = program.command("muleteer-shim");
    command.arg("--epoch").arg(epoch.to_string());
    // Only lets `ps` distinguish the shims.
    if let Some(name) = agent_dir.file_name() {
        command.arg("--agent").arg(name);
    }
    command
        .current_dir(agent_dir)
        .stdin(Stdio::from(lock.share()?))
        .stdout(Stdio::from(log.try_clone()?))
        .stderr(Stdio::from(log))
        .spawn()
}

/// Opens the log of the agent's shims for appending. The caller holds the agent's lock.
pub fn shim_log(agent_dir: &Path) -> io::Result<File> {
    notes::open_for_shim(agent_dir)
}

/// Returns why the shim of this epoch ended, if its log says so.
pub fn last_words(agent_dir: &Path, epoch: u32) -> Option<String> {
    notes::last_words(agent_dir, epoch)
}
