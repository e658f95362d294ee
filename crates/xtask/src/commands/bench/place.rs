//! A Muleteer for one benchmark: its own directories, daemon and environment.

use super::measure::until;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use xtask::{Failure, workspace};

/// The time limit of steps that are not measured.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Builds the probes, and the release binaries unless they are given. Returns the folders of both.
/// A given folder may have the probes in `examples`, as cargo's have; then nothing is built.
///
/// # Errors
/// When cargo fails.
pub fn build(given: Option<&Path>) -> Result<(PathBuf, PathBuf), Failure> {
    if let Some(bin) = given
        && bin.join("examples/month").exists()
    {
        return Ok((bin.to_path_buf(), bin.join("examples")));
    }
    let target = workspace::target_dir()?;
    // The benchmark measures a release. Given binaries may be of any profile, and the probes then
    // use the same.
    let release = given.is_none();
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--quiet"]);
    if release {
        cargo.args(["--release", "-p", "muleteer", "-p", "muleteer-shim", "--bins"]);
        workspace::run(cargo.arg("--target-dir").arg(&target))?;
    }
    let mut cargo = workspace::cargo();
    cargo.args([
        "build",
        "--quiet",
        "-p",
        "muleteer-store",
        "-p",
        "muleteer-protocol",
        "-p",
        "muleteer-process",
        "-p",
        "muleteer-shim",
        "--examples",
    ]);
    if release {
        cargo.arg("--release");
    }
    workspace::run(cargo.arg("--target-dir").arg(&target))?;
    let profile = target.join(if release { "release" } else { "debug" });
    Ok((given.map_or_else(|| profile.clone(), Path::to_path_buf), profile.join("examples")))
}

/// The place of a benchmark. Dropping it ends its daemon and agents; [`clear`] removes its files.
#[derive(Debug)]
pub struct Place {
    dir: PathBuf,
    bin: PathBuf,
    daemon: Option<Child>,
    /// Its files stay.
    kept: bool,
}

impl Place {
    /// Makes the directories of a place.
    ///
    /// # Errors
    /// When its directories cannot be made.
    pub fn new(bin: &Path) -> Result<Self, Failure> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir =
            std::env::temp_dir().join(format!("muleteer-bench-{}-{number}", std::process::id()));
        Self::make(dir, bin, false)
    }

    /// Returns the place at `dir`, which is made if it is not there, and stays.
    ///
    /// # Errors
    /// When its directories cannot be made.
    pub fn at(dir: &Path, bin: &Path) -> Result<Self, Failure> {
        Self::make(std::path::absolute(dir)?, bin, true)
    }

    fn make(dir: PathBuf, bin: &Path, kept: bool) -> Result<Self, Failure> {
        for name in ["home", "run", "project", "tmp"] {
            std::fs::create_dir_all(dir.join(name))?;
        }
        // The directory is private, because the sockets in it belong to this place.
        let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(dir.join("run"), private)?;
        Ok(Self { dir, bin: bin.to_path_buf(), daemon: None, kept })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn project(&self) -> PathBuf {
        self.path("project")
    }

    pub fn state(&self) -> PathBuf {
        self.path("home/.local/state/muleteer")
    }

    /// Returns a FIFO at which agents wait (see [`Self::open_gate`]).
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn gate(&self) -> Result<PathBuf, Failure> {
        let gate = self.path("gate");
        if !gate.exists() {
            workspace::run(Command::new("mkfifo").arg(&gate))?;
        }
        Ok(gate)
    }

    /// Lets all processes pass that wait at the gate. There may be none.
    ///
    /// # Errors
    /// When there is no gate.
    pub fn open_gate(&self) -> Result<(), Failure> {
        use rustix::fs::{Mode, OFlags, open};
        match open(
            self.path("gate"),
            OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC,
            Mode::empty(),
        ) {
            Ok(_) | Err(rustix::io::Errno::NXIO) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns the shim with which the daemon starts agents.
    pub fn shim(&self) -> PathBuf {
        self.bin.join("muleteer-shim")
    }

    /// Writes the user's configuration file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn configure(&self, yaml: &str) -> Result<(), Failure> {
        let file = self.path("home/.config/muleteer/config.yaml");
        std::fs::create_dir_all(file.parent().ok_or("no parent")?)?;
        Ok(std::fs::write(file, yaml)?)
    }

    /// Returns `muleteer` with these arguments and closed streams.
    pub fn muleteer(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.bin.join("muleteer"));
        command.args(args);
        self.environment(&mut command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Runs `muleteer` to its end, which must be a success.
    ///
    /// # Errors
    /// The stderr of a command that fails.
    pub fn ok(&self, args: &[&str]) -> Result<String, Failure> {
        let output = self.muleteer(args).stdout(Stdio::piped()).stderr(Stdio::piped()).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
            return Err(format!("muleteer {}: {} {said}", args.join(" "), output.status).into());
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
    }

    /// Runs `muleteer --json` and parses its document.
    ///
    /// # Errors
    /// When it fails or prints no document.
    pub fn json(&self, args: &[&str]) -> Result<Value, Failure> {
        Ok(serde_json::from_str(&self.ok(args)?)?)
    }

    pub fn environment(&self, command: &mut Command) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.path("home"))
            .env("LANG", "C.UTF-8");
        command.env("XDG_RUNTIME_DIR", self.path("run")).env("TMPDIR", self.path("tmp"));
        command.current_dir(self.project());
    }

    /// Starts a daemon in the foreground and waits until it answers.
    ///
    /// # Errors
    /// When it ends or does not answer.
    pub fn daemon(&mut self) -> Result<u32, Failure> {
        let pid = self.launch_daemon()?;
        until("the daemon's answer", PATIENCE, || {
            let status = self.json(&["status", "--json"]).ok()?;
            (status["daemon"]["pid"].as_u64() == Some(u64::from(pid))).then_some(pid)
        })
    }

    /// Starts a daemon in the foreground and does not wait, because a request makes work for it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn launch_daemon(&mut self) -> Result<u32, Failure> {
        let log =
            std::fs::File::options().create(true).append(true).open(self.path("daemon.log"))?;
        let mut command = self.muleteer(&["daemon", "-q"]);
        let child = command.stdout(log.try_clone()?).stderr(log).spawn()?;
        let pid = child.id();
        self.daemon = Some(child);
        Ok(pid)
    }

    /// Waits until `count` events of this name were added to the log after `from`, a length in
    /// bytes. It reads only the added part: reading all of the log repeatedly would use one of few
    /// processors.
    ///
    /// # Errors
    /// When they do not come within the time.
    pub fn events_since(&self, from: u64, event: &str, count: usize) -> Result<(), Failure> {
        use std::io::{Read, Seek, SeekFrom};
        let mut log = std::fs::File::open(self.log())?;
        log.seek(SeekFrom::Start(from))?;
        let name = format!("\"event\":\"{event}\"");
        let (mut rest, mut seen) = (Vec::new(), 0);
        until(&format!("{count} events {event}"), PATIENCE * 2, || {
            log.read_to_end(&mut rest).ok()?;
            let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            seen += String::from_utf8_lossy(&rest[..whole]).matches(&name).count();
            rest.drain(..whole);
            (seen >= count).then_some(())
        })
    }

    pub fn log(&self) -> PathBuf {
        self.state().join("events.jsonl")
    }

    /// Kills the daemon with `kill -9` and reaps it.
    ///
    /// # Errors
    /// When there is none.
    pub fn kill_daemon(&mut self) -> Result<(), Failure> {
        let mut child = self.daemon.take().ok_or("no daemon")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Returns the daemon's socket.
    ///
    /// # Errors
    /// When `status` fails.
    pub fn socket(&self) -> Result<PathBuf, Failure> {
        let status = self.json(&["status", "--json"])?;
        Ok(status["daemon"]["socket"].as_str().ok_or("no daemon runs")?.into())
    }

    /// Returns how many milliseconds the restart policy delayed this dispatch's newest attempt,
    /// from its events.
    ///
    /// # Errors
    /// When the dispatch was not restarted.
    pub fn scheduled_pause(&self, id: &str) -> Result<f64, Failure> {
        let log = std::fs::read_to_string(self.log())?;
        log.lines()
            .filter(|line| line.contains(id) && line.contains("\"event\":\"restart_scheduled\""))
            .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["delay_ms"].as_f64())
            .next_back()
            .ok_or_else(|| format!("{id} was not started again").into())
    }

    /// Returns how many dispatches are in this state.
    pub fn count(&self, state: &str) -> usize {
        let Ok(status) = self.json(&["status", "--json"]) else { return 0 };
        let dispatches = status["dispatches"].as_array().map(Vec::as_slice).unwrap_or_default();
        dispatches.iter().filter(|dispatch| dispatch["state"] == state).count()
    }

    /// Dispatches `count` agents that do nothing, and waits until they live.
    ///
    /// # Errors
    /// When they do not.
    pub fn live_agents(&self, probes: &Path, count: usize) -> Result<(), Failure> {
        self.agents_that(probes, count, &["sleep", "100000"])
    }

    /// Dispatches `count` agents that run `command`, and waits until they live.
    ///
    /// # Errors
    /// When they do not.
    pub fn agents_that(
        &self,
        probes: &Path,
        count: usize,
        command: &[&str],
    ) -> Result<(), Failure> {
        let mut spawner = Command::new(probes.join("spawner"));
        self.environment(&mut spawner);
        spawner
            .arg("daemon")
            .arg(self.socket()?)
            .arg(self.state().join("operator.key"))
            .arg(self.project());
        spawner.arg(count.to_string()).args(command);
        let output = spawner.stdin(Stdio::null()).output()?;
        if !output.status.success() {
            return Err(
                format!("spawner: {}", String::from_utf8_lossy(&output.stderr).trim()).into()
            );
        }
        until("living agents", PATIENCE * 5, || {
            // It polls seldom, because a request is work too.
            std::thread::sleep(Duration::from_millis(200));
            (self.count("running") >= count).then_some(())
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.muleteer(&["daemon", "stop", "--agents", "stop"]).status();
        if let Some(mut child) = self.daemon.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if !self.kept {
            LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(self.dir.clone());
        }
    }
}

/// The directories of finished places, removed when everything is measured. For minutes ext4
/// without a journal makes no new file in the place of a removed one, and it checks each such place
/// for every new file.
static LEFT: Mutex<Vec<PathBuf>> = Mutex::new(vec![]);

/// Removes the directories of finished places.
pub fn clear() {
    for dir in LEFT.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        let _ = std::fs::remove_dir_all(dir);
    }
}
