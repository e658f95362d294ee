//! The sandbox of the commands that the harness runs. They run code that the agents wrote, so they
//! get the sandbox of the agents, with a private HOME into which no login is copied.

use crate::daemon::context::Daemon;
use crate::dispatch::confine::{self, Confined};
use crate::dispatch::launch::private_home;
use crate::task_list::steps::Confining;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// The rules of one worker's commands.
#[derive(Debug)]
pub struct Confine {
    pub daemon: Arc<Daemon>,
    /// Without the directory of the command.
    pub confined: Confined,
    /// The file for the plan of the command that runs.
    pub plan: PathBuf,
}

/// Returns the folder with the private HOME of the commands with this plan. It lasts as long as
/// the run, and one command follows another.
pub fn own_folder(plan: &Path) -> PathBuf {
    plan.with_extension("")
}

impl Confining for Confine {
    fn command(
        &self,
        argv: &[String],
        dir: &Path,
        env: &[(String, String)],
    ) -> io::Result<Command> {
        let mut confined = self.confined.clone();
        confined.write.push(dir.to_owned());
        let (project, own) = (dir.display().to_string(), own_folder(&self.plan));
        // It is the process of no backend.
        let work = (project.as_str(), "");
        let plan = confine::plan_of(&self.daemon, &confined, work, env, argv, &own);
        private_home::prepare(&own, &plan, env, false).map_err(io::Error::other)?;
        confine::write(&self.plan, &plan).map_err(io::Error::other)?;
        let mut command = self.daemon.shims.program().confining_now(&self.plan, dir);
        command.args(argv).current_dir(dir).env_clear();
        command.envs(env.iter().map(|(name, value)| (name, value)));
        Ok(command)
    }
}
