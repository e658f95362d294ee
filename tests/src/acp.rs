//! The real ACP agents, closed off from everything but the scripted model.

use crate::World;
use crate::model_server::ModelServer;
use crate::skip::skip;
use crate::{claude, codex};
use xtask::agents::Agents;

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agent {
    Claude,
    Codex,
}

impl Agent {
    /// As `--backend` names it.
    pub fn backend(self) -> &'static str {
        match self {
            Self::Claude => "acp:claude-agent-acp",
            Self::Codex => "acp:codex-acp",
        }
    }

    /// Puts it on the world's `PATH`; `false` after having said loudly that `test` is skipped.
    ///
    /// # Panics
    /// When its files cannot be written.
    pub fn install(self, world: &World, server: &ModelServer, test: &str) -> bool {
        // A checkout without its lock file is broken, which is no reason to skip.
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

    /// What a closed run needs, as options of `muleteer spawn`.
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
