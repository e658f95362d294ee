//! The demo's own folder, with a repository and the directories of a private daemon. It uses
//! nothing else of this machine.
//!
//! Dropping a [`Place`] ends every process that it started and removes the folder, however the demo
//! ended: normally, by an error, by Ctrl-C or by a panic. With `keep` the folder stays.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::demo::cast::SCENARIO;
use muleteer_model::event::id;
use muleteer_protocol::ErrorCode;
use muleteer_supervisor::daemon::paths::{Paths, check_socket};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

/// Directories that programs find by a variable.
const OWN: [(&str, &str); 6] = [
    ("HOME", "home"),
    ("XDG_STATE_HOME", "state"),
    ("XDG_CONFIG_HOME", "config"),
    ("XDG_CACHE_HOME", "cache"),
    ("XDG_RUNTIME_DIR", "run"),
    ("TMPDIR", "tmp"),
];

/// The subject of the commit from which the run begins.
pub const FIRST: &str = "Begin with words, and a spec";

#[derive(Debug)]
pub struct Place {
    pub root: PathBuf,
    /// A client's view of the private daemon.
    pub context: Context,
    keep: bool,
    /// See [`crate::demo::running`].
    pub(super) daemon: Option<Child>,
}

impl Place {
    /// Creates the folder, its repository and the scenarios.
    ///
    /// # Errors
    /// When no folder can be created, or git is missing.
    pub fn make(out: Output, keep: bool) -> Result<Self, Failure> {
        let (root, paths) = folder()?;
        let socket = paths.socket.clone();
        let context = Context {
            out,
            paths,
            socket,
            is_agent: false,
            patience: Duration::ZERO,
            config: None,
            trace: None,
            socket_given: false,
            misplaced: None,
        };
        let place = Self { root, context, keep, daemon: None };
        place.furnish()?;
        Ok(place)
    }

    pub fn repo(&self) -> PathBuf {
        self.root.join("wordtools")
    }

    /// The folder that confined agents can write in addition to their worktree.
    pub fn stage(&self) -> PathBuf {
        self.root.join("home/stage")
    }

    pub fn gates(&self) -> PathBuf {
        self.stage().join("gates")
    }

    pub fn scenario(&self) -> PathBuf {
        self.root.join("run.yaml")
    }

    pub fn spec(&self) -> PathBuf {
        self.repo().join("plan.md")
    }

    /// The page of the run.
    pub fn page(&self) -> PathBuf {
        self.root.join("run.html")
    }

    pub fn run_events(&self, run_id: &str) -> PathBuf {
        self.repo().join(".muleteer/runs").join(run_id).join("events.jsonl")
    }

    /// A file that a shell can source to inspect a kept demo.
    pub fn env_file(&self) -> PathBuf {
        self.root.join("env.sh")
    }

    pub fn open(&self, gate: &str) -> Result<(), Failure> {
        write(&self.gates().join(gate), "")
    }

    /// Returns whether the agent has reached a gate. The answer does not depend on a living daemon
    /// (see `hold.sh`).
    pub fn has_reached(&self, who: &str, gate: &str) -> bool {
        self.gates().join(format!("{who}.{gate}")).exists()
    }

    /// Writes the page of the run.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn keep_page(&self, page: &str) -> Result<(), Failure> {
        write(&self.page(), page)
    }

    /// Removes the folder at the end even with `keep`, because nobody will inspect it.
    pub fn discard(&mut self) {
        self.keep = false;
    }

    fn furnish(&self) -> Result<(), Failure> {
        let folders = OWN.iter().map(|(_, dir)| *dir).chain([
            "home/stage/gates",
            "wordtools/lib",
            "wordtools/.muleteer",
            "config/muleteer",
        ]);
        for dir in folders {
            let path = self.root.join(dir);
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .map_err(|error| io_failure(&path, &error))?;
        }
        write(&self.stage().join("hold"), include_str!("hold.sh"))?;
        write(&self.scenario(), SCENARIO)?;
        let line = |(name, dir): &(&str, &str)| {
            format!("export {name}='{}'\n", self.root.join(dir).display())
        };
        // HOME and TMPDIR are not exported: a user who inspects the demo keeps their own.
        let exports: String =
            OWN.iter().filter(|(name, _)| name.starts_with("XDG_")).map(line).collect();
        write(&self.env_file(), &exports)?;
        write(&self.repo().join("README.md"), include_str!("project/README.md"))?;
        write(&self.repo().join("lib/words.sh"), include_str!("project/words.sh"))?;
        write(&self.spec(), include_str!("project/plan.md"))?;
        write(&self.repo().join(".muleteer/config.yaml"), "run: {phases: {maintain: {n: 2}}}\n")?;
        let sandbox = "sandbox: {write: [~/stage]}\n";
        write(&self.root.join("config/muleteer/config.yaml"), sandbox)?;
        write(&self.repo().join(".gitignore"), ".muleteer/\n.agents/\n")?;
        for words in [
            &["init", "--quiet", "."][..],
            // `--initial-branch` is not used, because older versions of git do not support it.
            &["symbolic-ref", "HEAD", "refs/heads/main"],
            &["config", "user.name", "Muleteer Demo"],
            &["config", "user.email", "demo@muleteer.invalid"],
            &["add", "."],
            &["commit", "--quiet", "--message", FIRST],
        ] {
            self.git(words)?;
        }
        Ok(())
    }

    /// Runs git in the repository and returns its output.
    ///
    /// # Errors
    /// When git is missing or fails.
    pub fn git(&self, words: &[&str]) -> Result<String, Failure> {
        let mut command = muleteer_vcs::command::alone(&self.repo(), self.variables());
        command.args(words);
        let output = command.output().map_err(|error| {
            Failure::new(ErrorCode::Demo, format!("cannot run git: {error}"))
                .hint("the demo needs git on PATH")
        })?;
        if output.status.code().is_none() {
            // Ctrl-C reaches all processes of the terminal, and git may report it first.
            return Err(Failure::new(
                ErrorCode::Cancelled,
                "the demo was interrupted; its processes were stopped and its files removed",
            ));
        }
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::new(
                ErrorCode::Demo,
                format!(
                    "git {} failed: {}",
                    words.join(" "),
                    why.lines().next().unwrap_or_default()
                ),
            ));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The environment of every process of the demo. It names no directory of the user's.
    pub fn variables(&self) -> Vec<(OsString, OsString)> {
        let kept = [
            "PATH",
            "LANG",
            "LC_ALL",
            "TZ",
            "MULETEER_LOG",
            "MULETEER_NONCE",
            "RUST_BACKTRACE",
            "LLVM_PROFILE_FILE",
        ];
        let mut all: Vec<_> = kept
            .iter()
            .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
            .collect();
        all.extend(
            OWN.iter()
                .map(|(name, dir)| (OsString::from(name), self.root.join(dir).into_os_string())),
        );
        all.extend(
            [("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_TERMINAL_PROMPT", "0")]
                .map(|(name, value)| (name.into(), value.into())),
        );
        all
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.end_all();
        if !self.keep {
            // Files that cannot be removed are in a folder for temporary files, and nobody is left
            // to report them to.
            drop(fs::remove_dir_all(&self.root));
        }
    }
}

/// Creates a private folder in which the path of the daemon's socket is short enough for the
/// system.
fn folder() -> Result<(PathBuf, Paths), Failure> {
    let mut bytes = [0; 5];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::new(ErrorCode::Io, format!("cannot get random bytes: {error}"))
    })?;
    let name = format!("muleteer-demo-{}", id::encode(&bytes));
    let mut why = Failure::new(ErrorCode::Demo, "no folder for temporary files");
    for parent in [std::env::temp_dir(), PathBuf::from("/tmp")] {
        // The path is canonical, so that paths in the output of other programs can be recognised.
        let Ok(root) = parent.canonicalize().map(|parent| parent.join(&name)) else { continue };
        let variable = |wanted: &str| {
            Some(root.join(OWN.iter().find(|(name, _)| *name == wanted)?.1).into_os_string())
        };
        let uid = rustix::process::getuid().as_raw();
        let fits = |paths: Paths| check_socket(&paths.socket).map(|()| paths);
        match Paths::resolve(&variable, uid, &Path::to_path_buf).and_then(fits) {
            Err(error) => why = Failure::of(ErrorCode::Demo, &error),
            Ok(paths) => match fs::DirBuilder::new().mode(0o700).create(&root) {
                Ok(()) => return Ok((root, paths)),
                Err(error) => why = io_failure(&root, &error),
            },
        }
    }
    Err(why.hint("set TMPDIR to a writable folder with a short path"))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let done = File::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    done.map_err(|error| io_failure(path, &error))
}

fn io_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::new(ErrorCode::Demo, format!("cannot create {}: {error}", path.display())).file(path)
}

/// Converts a value to text.
pub fn text(value: &OsStr) -> String {
    value.to_string_lossy().into_owned()
}
