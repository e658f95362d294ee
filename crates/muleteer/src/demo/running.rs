//! The processes of the demo: its daemon, and everything that daemon started.
//!
//! Only these processes are signalled. The daemon is our own child, and the others have the demo's
//! folder in their environment. Both are pinned first, so that no signal reaches another process
//! with the same pid.

use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::client::on_demand;
use crate::demo::place::Place;
use muleteer_process::clock::awake;
use muleteer_process::command::helper;
use muleteer_process::host::host;
use muleteer_process::identity::Pinned;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, Request};
use rustix::process::Signal;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

/// How long a new daemon may take to answer, and a stopped one to exit.
const DAEMON_PATIENCE: Duration = Duration::from_secs(15);
/// The idle time after which the daemon exits by itself if the demo was killed. The agents' gates
/// have timed out by then.
const IDLE_EXIT: &str = "30s";
const CLEAN_UP: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

impl Place {
    /// Starts a daemon, waits until it answers, and returns its pid.
    ///
    /// # Errors
    /// When the daemon does not answer.
    pub async fn start_daemon(&mut self) -> Result<u32, Failure> {
        let log = self.context.paths.daemon_log();
        let cannot = |error: &dyn std::fmt::Display| {
            Failure::new(ErrorCode::DaemonStart, format!("cannot start a daemon: {error}"))
                .file(&log)
        };
        let file = on_demand::open_log(&log).map_err(|error| cannot(&error))?;
        let copy = file.try_clone().map_err(|error| cannot(&error))?;
        let mut command = helper(on_demand::own_program());
        command
            .args(["daemon", "--on-demand", "--idle-exit", IDLE_EXIT])
            .env_clear()
            .envs(self.variables());
        let child = command
            .current_dir("/")
            .stdout(copy)
            .stderr(file)
            .spawn()
            .map_err(|error| cannot(&error))?;
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
                return Err(on_demand::died(
                    &log,
                    &format!("the daemon exited immediately ({status})"),
                ));
            }
            if awake() > deadline {
                return Err(on_demand::died(&log, "the daemon does not answer"));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Kills the daemon with SIGKILL and waits until it is dead. Returns true if that signal ended
    /// it.
    pub fn kill_daemon(&mut self) -> bool {
        let Some(mut child) = self.daemon.take() else { return false };
        // It is our own child and not reaped yet, so its pid cannot belong to another process.
        let killed =
            Pinned::open(child.id()).and_then(|pinned| pinned.signal(Signal::KILL.as_raw()));
        if killed.is_err() {
            drop(child.kill());
        }
        child.wait().is_ok_and(|status| status.signal() == Some(Signal::KILL.as_raw()))
    }

    /// Asks the daemon to stop together with its agents, and waits until it has exited.
    ///
    /// # Errors
    /// When the daemon cannot be asked, or does not exit.
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
                return Err(Failure::new(ErrorCode::Demo, "the daemon did not stop when asked"));
            } else {
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    }

    /// Asks the private daemon. `Context::ask` is not used, because it would start a daemon of the
    /// *user's* if ours is dead.
    ///
    /// # Errors
    /// As [`muleteer_protocol::client::Client::call`].
    pub async fn ask(&self, request: Request) -> Result<Reply, Failure> {
        Ok(self.context.dial_within(DAEMON_PATIENCE).await?.call(request).await?)
    }

    /// Returns every living process that was started here. It is recognised by this folder in its
    /// environment.
    pub fn living(&self) -> Vec<Pinned> {
        let own = std::process::id();
        let ours = |pid: u32| {
            host()
                .environ(pid)
                .is_some_and(|environ| contains(&environ, self.root.as_os_str().as_bytes()))
        };
        let found = host().pids().into_iter().filter(|&pid| pid != own && ours(pid));
        // The environment is checked again after pinning, because the pid may have been reused in
        // between.
        found
            .filter_map(|pid| Pinned::open(pid).ok())
            .filter(|pinned| ours(pinned.id().pid))
            .collect()
    }

    /// Kills one process that was started here with SIGKILL.
    pub fn kill(&self, pid: u32) -> bool {
        let found = self.living().into_iter().find(|pinned| pinned.id().pid == pid);
        found.is_some_and(|pinned| pinned.signal(Signal::KILL.as_raw()).is_ok())
    }

    /// Kills the daemon first, because it would restart missing processes; then the rest, until
    /// nothing is left.
    pub(super) fn end_all(&mut self) {
        self.kill_daemon();
        let deadline = awake() + CLEAN_UP;
        loop {
            let living = self.living();
            if living.is_empty() || awake() > deadline {
                return;
            }
            for pinned in living {
                // A process that has already exited needs no signal.
                drop(pinned.signal(Signal::KILL.as_raw()));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}
