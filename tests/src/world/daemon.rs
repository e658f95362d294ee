//! A daemon that runs in the foreground of a test.

use crate::{PATIENCE, World, processes, wait_until};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};

/// A daemon process. Dropping it kills it with SIGKILL: a crash-only program has no other kind of
/// end.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts `muleteer daemon` with additional variables, and does not wait for it.
    pub(crate) fn launch(world: &World, variables: &[(&str, &str)]) -> Self {
        Self::launch_under(world, &[], variables)
    }

    /// Does the same below the program that `words` start.
    pub(crate) fn launch_under(
        world: &World,
        words: &[String],
        variables: &[(&str, &str)],
    ) -> Self {
        let log = world.path().join("daemon.log");
        let file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("the daemon's log");
        let mut muleteer = world.under(words, &["daemon", "-v"]);
        for (name, value) in variables {
            muleteer = muleteer.env(name, value);
        }
        let mut command = muleteer.command;
        let copy = file.try_clone().expect("a second handle");
        command.stdin(Stdio::null()).stdout(copy).stderr(file);
        Self { child: command.spawn().expect("the daemon starts"), log }
    }

    /// Waits until the daemon answers.
    pub(crate) fn ready(mut self, world: &World) -> Self {
        let pid = u64::from(self.pid());
        wait_until("the daemon to answer", PATIENCE, || {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the daemon ended: {status}\n{}", self.log());
            }
            let output = world.muleteer(&["status", "--json"]).run();
            let status = serde_json::from_str::<serde_json::Value>(&output.stdout).ok()?;
            (status["daemon"]["running"] == true && status["daemon"]["pid"] == pid).then_some(())
        });
        self
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_alive(&self) -> bool {
        processes::is_alive(self.child.id())
    }

    /// Kills the daemon with `kill -9`, and waits until it is dead.
    pub fn kill_9(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits until the daemon has ended by itself or at a fault point.
    pub fn ended(&mut self) -> ExitStatus {
        wait_until("the daemon to end", PATIENCE, || self.child.try_wait().ok().flatten())
    }

    /// Whether the daemon has ended.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Returns the daemon's stdout and stderr.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill_9();
    }
}
