//! Where the demo happens: a folder of its own with a repository, a private daemon's directories, and
//! nothing else of this machine's; and the end of everything that was started there.
//!
//! Dropping a [`Place`] ends what it started and removes the folder, however the demo ended: by its
//! last act, an error, Ctrl-C or a panic. Only what was asked to be kept stays.

use crate::connect::unexpected;
use crate::context::Context;
use crate::demo::cast::CAST;
use crate::failure::Failure;
use crate::on_demand;
use crate::output::Output;
use muleteer_model::id;
use muleteer_process::clock::awake;
use muleteer_process::command::helper;
use muleteer_process::host::host;
use muleteer_process::identity::Pinned;
use muleteer_protocol::v1::{Reply, Request};
use muleteer_supervisor::paths::Paths;
use rustix::process::Signal;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

/// How long a new daemon may take to answer, and a stopped one to go.
const DAEMON_PATIENCE: Duration = Duration::from_secs(15);
/// A daemon whose demo was itself killed goes by itself when its agents' gates have timed out.
const IDLE_EXIT: &str = "30s";
const CLEAN_UP: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);
/// Directories that a program finds by a variable.
const OWN: [(&str, &str); 6] = [
    ("HOME", "home"),
    ("XDG_STATE_HOME", "state"),
    ("XDG_CONFIG_HOME", "config"),
    ("XDG_CACHE_HOME", "cache"),
    ("XDG_RUNTIME_DIR", "run"),
    ("TMPDIR", "tmp"),
];

#[derive(Debug)]
pub struct Place {
    pub root: PathBuf,
    /// A client's view of the private daemon.
    pub context: Context,
    keep: bool,
    daemon: Option<Child>,
}

impl Place {
    /// Makes the folder, its repository and the scenarios.
    ///
    /// # Errors
    /// When no folder can be made, or git is missing.
    pub fn make(out: Output, keep: bool) -> Result<Self, Failure> {
        let (root, paths) = folder()?;
        let socket = paths.socket.clone();
        let context = Context { out, paths, socket, is_agent: false, config: None, socket_given: false };
        let place = Self { root, context, keep, daemon: None };
        place.furnish()?;
        Ok(place)
    }

    pub fn repo(&self) -> PathBuf {
        self.root.join("wordtools")
    }

    pub fn gates(&self) -> PathBuf {
        self.root.join("gates")
    }

    pub fn scenario(&self, role: &str) -> PathBuf {
        self.root.join(format!("{role}.yaml"))
    }

    /// To be read by a shell that wants to look at a kept demo.
    pub fn env_file(&self) -> PathBuf {
        self.root.join("env.sh")
    }

    pub fn open(&self, gate: &str) -> Result<(), Failure> {
        write(&self.gates().join(gate), "")
    }

    fn furnish(&self) -> Result<(), Failure> {
        let folders = OWN.iter().map(|(_, dir)| *dir).chain(["gates", "wordtools/lib"]);
        for dir in folders {
            let path = self.root.join(dir);
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|error| io_failure(&path, &error))?;
        }
        write(&self.root.join("hold"), include_str!("hold.sh"))?;
        for part in CAST {
            write(&self.scenario(part.role), part.scenario)?;
        }
        let line = |(name, dir): &(&str, &str)| format!("export {name}='{}'\n", self.root.join(dir).display());
        // Not HOME and TMPDIR: who looks around keeps their own.
        let exports: String = OWN.iter().filter(|(name, _)| name.starts_with("XDG_")).map(line).collect();
        write(&self.env_file(), &exports)?;
        write(&self.repo().join("README.md"), include_str!("project/README.md"))?;
        write(&self.repo().join("lib/words.sh"), include_str!("project/words.sh"))?;
        for words in [
            &["init", "--quiet", "."][..],
            // Not `--initial-branch`: older gits do not know it.
            &["symbolic-ref", "HEAD", "refs/heads/main"],
            &["config", "user.name", "Muleteer Demo"],
            &["config", "user.email", "demo@muleteer.invalid"],
            &["add", "."],
            &["commit", "--quiet", "--message", "Begin with words"],
        ] {
            self.git(words)?;
        }
        Ok(())
    }

    /// Runs git in the repository and gives what it printed.
    ///
    /// # Errors
    /// When git is not there or refuses.
    pub fn git(&self, words: &[&str]) -> Result<String, Failure> {
        let mut command = helper("git");
        command.args(words).current_dir(self.repo()).env_clear().envs(self.variables());
        let output = command
            .output()
            .map_err(|error| Failure::new("E_DEMO", format!("cannot run git: {error}")).hint("the demo needs git on PATH"))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::new("E_DEMO", format!("git {} failed: {}", words.join(" "), why.trim())));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The environment of everything that runs here: it names no place of the user's.
    pub fn variables(&self) -> Vec<(OsString, OsString)> {
        let kept = ["PATH", "LANG", "LC_ALL", "TZ", "MULETEER_LOG", "MULETEER_NONCE", "RUST_BACKTRACE", "LLVM_PROFILE_FILE"];
        let mut all: Vec<_> = kept.iter().filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?))).collect();
        all.extend(OWN.iter().map(|(name, dir)| (OsString::from(name), self.root.join(dir).into_os_string())));
        all.extend([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_TERMINAL_PROMPT", "0")].map(|(name, value)| (name.into(), value.into())));
        all
    }

    /// Starts a daemon, waits until it answers, and gives its pid.
    ///
    /// # Errors
    /// When it does not.
    pub async fn start_daemon(&mut self) -> Result<u32, Failure> {
        let log = self.context.paths.daemon_log();
        let cannot = |error: &dyn std::fmt::Display| Failure::new("E_DAEMON_START", format!("cannot start a daemon: {error}")).file(&log);
        let file = on_demand::open_log(&log).map_err(|error| cannot(&error))?;
        let copy = file.try_clone().map_err(|error| cannot(&error))?;
        let mut command = helper(on_demand::own_program());
        command.args(["daemon", "--on-demand", "--idle-exit", IDLE_EXIT]).env_clear().envs(self.variables());
        let child = command.current_dir("/").stdout(copy).stderr(file).spawn().map_err(|error| cannot(&error))?;
        let pid = child.id();
        self.daemon = Some(child);
        let deadline = awake() + DAEMON_PATIENCE;
        loop {
            if let Ok(client) = self.context.dial().await
                && client.welcome().daemon_pid == pid
            {
                return Ok(pid);
            }
            let ended = self.daemon.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = ended {
                return Err(on_demand::died(&log, &format!("the daemon ended at once ({status})")));
            }
            if awake() > deadline {
                return Err(on_demand::died(&log, "the daemon does not answer"));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// `kill -9` of the daemon, and waits until it is dead. True if that signal is what it died of.
    pub fn kill_daemon(&mut self) -> bool {
        use std::os::unix::process::ExitStatusExt;
        let Some(mut child) = self.daemon.take() else { return false };
        // Our own child, not reaped yet: its pid can mean nobody else.
        let killed = Pinned::open(child.id()).and_then(|pinned| pinned.signal(Signal::KILL.as_raw()));
        if killed.is_err() {
            drop(child.kill());
        }
        child.wait().is_ok_and(|status| status.signal() == Some(Signal::KILL.as_raw()))
    }

    /// Asks the daemon to stop, with whatever agents there may be, and waits until it is gone.
    ///
    /// # Errors
    /// When it cannot be asked, or does not go.
    pub async fn stop_daemon(&mut self) -> Result<(), Failure> {
        match self.ask(Request::Stop { agents: "stop".into() }).await? {
            Reply::Stopping { .. } => {}
            other => return Err(unexpected(&other)),
        }
        let deadline = awake() + DAEMON_PATIENCE;
        while let Some(child) = &mut self.daemon {
            if child.try_wait().is_ok_and(|ended| ended.is_some()) {
                self.daemon = None;
            } else if awake() > deadline {
                return Err(Failure::new("E_DEMO", "the daemon was asked to stop and does not go"));
            } else {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    /// Asks the private daemon. Not [`Context::ask`]: that would start a daemon of the *user's* where
    /// ours is dead.
    ///
    /// # Errors
    /// As [`muleteer_protocol::client::Client::call`].
    pub async fn ask(&self, request: Request) -> Result<Reply, Failure> {
        Ok(self.context.dial_within(DAEMON_PATIENCE).await?.call(request).await?)
    }

    /// Every living process that was started here, told by this folder in its environment.
    pub fn living(&self) -> Vec<Pinned> {
        let own = std::process::id();
        let ours = |pid: u32| host().environ(pid).is_some_and(|environ| contains(&environ, self.root.as_os_str().as_bytes()));
        let found = host().pids().into_iter().filter(|&pid| pid != own && ours(pid));
        // Looked at again once pinned: the pid may have passed to somebody else in between.
        found.filter_map(|pid| Pinned::open(pid).ok()).filter(|pinned| ours(pinned.id().pid)).collect()
    }

    /// `kill -9` of one process that was started here.
    pub fn kill(&self, pid: u32) -> bool {
        let found = self.living().into_iter().find(|pinned| pinned.id().pid == pid);
        found.is_some_and(|pinned| pinned.signal(Signal::KILL.as_raw()).is_ok())
    }

    /// The daemon first, which would start what it misses again; then the rest, until nothing is left.
    fn end_all(&mut self) {
        self.kill_daemon();
        let deadline = awake() + CLEAN_UP;
        loop {
            let living = self.living();
            if living.is_empty() || awake() > deadline {
                return;
            }
            for pinned in living {
                // Gone already is as good.
                drop(pinned.signal(Signal::KILL.as_raw()));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.end_all();
        if !self.keep {
            // What cannot be removed lies in a folder for temporary files: there is nobody to tell.
            drop(fs::remove_dir_all(&self.root));
        }
    }
}

/// A new folder that nobody else can enter, where the daemon's socket has a path short enough for the
/// system.
fn folder() -> Result<(PathBuf, Paths), Failure> {
    let mut bytes = [0; 5];
    getrandom::fill(&mut bytes).map_err(|error| Failure::new("E_IO", format!("no random bytes: {error}")))?;
    let name = format!("muleteer-demo-{}", id::encode(&bytes));
    let mut why = Failure::new("E_DEMO", "there is no folder for temporary files");
    for parent in [std::env::temp_dir(), PathBuf::from("/tmp")] {
        // Canonical, so that what others report can be told as ours.
        let Ok(root) = parent.canonicalize().map(|parent| parent.join(&name)) else { continue };
        let variable = |wanted: &str| Some(root.join(OWN.iter().find(|(name, _)| *name == wanted)?.1).into_os_string());
        let uid = rustix::process::getuid().as_raw();
        match Paths::resolve(&variable, uid, &Path::to_path_buf) {
            Err(error) => why = Failure::of("E_DEMO", &error),
            Ok(paths) => match fs::DirBuilder::new().mode(0o700).create(&root) {
                Ok(()) => return Ok((root, paths)),
                Err(error) => why = io_failure(&root, &error),
            },
        }
    }
    Err(why.hint("set TMPDIR to a folder with a short path that can be written to"))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let done = File::create(path).and_then(|mut file| file.write_all(text.as_bytes()));
    done.map_err(|error| io_failure(path, &error))
}

fn io_failure(path: &Path, error: &io::Error) -> Failure {
    Failure::new("E_DEMO", format!("cannot make {}: {error}", path.display())).file(path)
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// As text, for what travels as text.
pub fn text(value: &OsStr) -> String {
    value.to_string_lossy().into_owned()
}
