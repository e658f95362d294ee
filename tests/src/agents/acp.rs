//! The real ACP agents, isolated from everything but the scripted model.

use crate::World;
use crate::model_server::ModelServer;
use crate::skip::skip;
use crate::{claude, codex};
use xtask::agents::Agents;

/// The ACP agents that tests drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    Claude,
    Codex,
}

impl Agent {
    /// Returns the agent's name as `--backend` takes it.
    pub fn backend(self) -> &'static str {
        match self {
            Self::Claude => "acp:claude-agent-acp",
            Self::Codex => "acp:codex-acp",
        }
    }

    /// Puts the agent on the world's `PATH`. Returns `false`, and reports that `test` is skipped,
    /// if it is not installed.
    ///
    /// # Panics
    /// When its files cannot be written, or the lock file of the agent CLIs cannot be read.
    pub fn install(self, world: &World, server: &ModelServer, test: &str) -> bool {
        // A checkout without its lock file is broken, so this is no reason to skip.
        xtask::agents::installed().expect("the lock file of the agent CLIs");
        let agents = match xtask::agents::install() {
            Ok(agents) => agents,
            Err(failure) => {
                skip(test, &failure.to_string());
                return false;
            }
        };
        let (name, script) = self.script(&agents);
        if self == Self::Codex {
            codex::install(world, &agents.codex(), server);
        }
        crate::program::write(&world.bin().join(name), &script);
        true
    }

    fn script(self, agents: &Agents) -> (&'static str, String) {
        let (name, variable, cli, script) = match self {
            Self::Claude => {
                ("claude-agent-acp", "CLAUDE_CODE_EXECUTABLE", agents.claude(), agents.claude_acp())
            }
            Self::Codex => ("codex-acp", "CODEX_PATH", agents.codex(), agents.codex_acp()),
        };
        let node = agents.node();
        let (cli, node, script) = (cli.display(), node.display(), script.display());
        (name, format!("#!/bin/sh\nexport {variable}='{cli}'\nexec '{node}' '{script}' \"$@\"\n"))
    }

    /// Returns the options of `muleteer spawn` that isolate the agent.
    pub fn options(self, world: &World, server: &ModelServer) -> Vec<String> {
        let mut options = match self {
            Self::Claude => claude::env_options(server),
            Self::Codex => codex::env_options(world),
        };
        if self == Self::Codex {
            options.extend(["--model", "gpt-5.5"].map(String::from));
        }
        options
    }
}
