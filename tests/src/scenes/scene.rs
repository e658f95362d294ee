//! A real agent CLI in a world of its own, with a scripted model.

use crate::acp::Agent;
use crate::cli::Cli;
use crate::model_server::{ModelServer, Step};
use crate::{Muleteer, PATIENCE, Repo, World, claude, codex, wait_until};
use std::time::Duration;
use xtask::agents::Agents;

#[derive(Debug)]
pub struct Scene {
    pub world: World,
    pub repo: Repo,
    pub server: ModelServer,
    options: Vec<String>,
}

impl Scene {
    /// Makes a scene with Claude Code. Returns `None` after a report that `test` is skipped.
    pub fn claude(test: &str, steps: impl IntoIterator<Item = Step>) -> Option<Self> {
        Self::claude_asking(test, ModelServer::start(steps))
    }

    /// Does the same with a model that the test has started.
    pub fn claude_asking(test: &str, server: ModelServer) -> Option<Self> {
        let binary = claude::binary(test)?;
        let world = World::new();
        claude::link(&world, &binary);
        let mut options = vec!["--backend".to_string(), "claude-code".into()];
        options.extend(claude::env_options(&server));
        Some(Self::new(world, server, options))
    }

    /// Makes a scene with Codex. Returns `None` after a report that `test` is skipped.
    pub fn codex(test: &str, steps: impl IntoIterator<Item = Step>) -> Option<Self> {
        let binary = codex::binary(test)?;
        let world = World::new();
        let server = ModelServer::start(steps);
        codex::install(&world, &binary, &server);
        let mut options: Vec<_> =
            ["--backend", "codex", "--model", "gpt-5.5"].map(String::from).into();
        options.extend(codex::env_options(&world));
        Some(Self::new(world, server, options))
    }

    /// Makes a scene with an ACP agent. Returns `None` after a report that `test` is skipped.
    pub fn acp(test: &str, agent: Agent, steps: impl IntoIterator<Item = Step>) -> Option<Self> {
        let world = World::new();
        let server = ModelServer::start(steps);
        if !agent.install(&world, &server, test) {
            return None;
        }
        let mut options = vec!["--backend".to_string(), agent.backend().into()];
        options.extend(agent.options(&world, &server));
        Some(Self::new(world, server, options))
    }

    /// Makes a scene with an agent of the conformance suite.
    ///
    /// # Panics
    /// When the agent cannot be set up.
    pub fn conformance(cli: Cli, agents: &Agents, server: ModelServer) -> Self {
        let world = World::new();
        cli.install(&world, &server, agents);
        let options = cli.options(&world, &server);
        Self::new(world, server, options)
    }

    fn new(world: World, server: ModelServer, options: Vec<String>) -> Self {
        let repo = world.repo("repo");
        Self { world, repo, server, options }
    }

    /// Returns `muleteer spawn developer REPO "Write hello.txt"` with all options that the CLI
    /// needs, and `more`.
    pub fn spawn(&self, more: &[&str]) -> Muleteer {
        self.spawn_with("Write hello.txt", more)
    }

    /// Does the same with another prompt.
    pub fn spawn_with(&self, prompt: &str, more: &[&str]) -> Muleteer {
        let mut args = vec!["spawn", "developer", self.repo.to_str(), prompt];
        args.extend(self.options.iter().map(String::as_str));
        args.extend(more);
        self.world.muleteer(&args).deadline(Duration::from_secs(120))
    }

    /// Opens a thread whose agent has all options that the CLI needs, and `more`. Returns its id.
    pub fn open_thread(&self, more: &[&str]) -> String {
        let mut args = vec!["thread", "new", "--project", self.repo.to_str()];
        args.extend(self.options.iter().map(String::as_str));
        args.extend(more);
        self.world.muleteer(&args).ok()
    }

    /// Waits until a scripted tool has written its line to the file `effects`.
    pub fn wait_for_the_tool(&self) {
        self.wait_for_tools(1);
    }

    /// Waits until scripted tools have written `count` lines.
    pub fn wait_for_tools(&self, count: usize) {
        wait_until("the tool to run", PATIENCE, || {
            (self.repo.effects("effects").len() == count).then_some(())
        });
    }

    /// Waits until the agent's output has `sign` at least `count` times.
    pub fn wait_for_spool(&self, id: &str, sign: &str, count: usize) {
        wait_until(&format!("{sign} in the output"), PATIENCE, || {
            let raw = self.world.muleteer(&["logs", id, "--raw"]).ok();
            (raw.matches(sign).count() >= count).then_some(())
        });
    }

    /// Returns the last message to the model, as JSON.
    ///
    /// # Panics
    /// When there was none.
    pub fn last_told(&self) -> String {
        let last = self.server.main_requests().pop().expect("a request of the model").body;
        // The first form is Anthropic's API, the second OpenAI's.
        if last["messages"].is_array() {
            last["messages"].to_string()
        } else {
            last["input"].to_string()
        }
    }
}
