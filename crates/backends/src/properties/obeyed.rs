//! The files that a CLI obeys although the agent judges them: no switch keeps it from loading them.
//!
//! | agent | obeys |
//! |---|---|
//! | opencode | plugins in `.opencode` |
//! | copilot | `.github/hooks`, skills, agents and instructions; its ACP server ignores the switch |
//! | cline | plugins, hooks and rules in `.cline`, `.clinerules`, `.agents`; `AGENTS.md` |
//! | pi by pi-acp | `AGENTS.md`, `CLAUDE.md`; pi itself has a switch |
//!
//! The versions are those of `acp/sealed.rs`. In the sandbox a judging agent does not see these
//! files. Without one it is not started where there are any.

use crate::{Backend, Command, Program, acp};
use muleteer_model::agent::capability::{CLINE, COPILOT, OPENCODE, PI};
use std::path::Path;

/// The files of one program.
#[derive(Debug, PartialEq, Eq)]
pub struct Obeyed {
    pub agent: &'static str,
    program: &'static str,
    /// Files and folders in the agent's directory and in each directory above it.
    pub files: &'static [&'static str],
    /// Files and folders in HOME.
    pub at_home: &'static [&'static str],
}

const OBEYED: [Obeyed; 4] = [
    Obeyed {
        agent: OPENCODE.name,
        program: OPENCODE.program,
        files: &[".opencode", "opencode.json", "opencode.jsonc"],
        // In HOME it looks where `OPENCODE_TEST_HOME` leads, and its program may be in `.opencode`.
        at_home: &[],
    },
    Obeyed {
        agent: COPILOT.name,
        program: COPILOT.program,
        files: &[
            ".github/hooks",
            ".github/copilot",
            ".github/copilot-instructions.md",
            ".github/instructions",
            ".github/skills",
            ".github/agents",
            ".claude/skills",
            ".claude/agents",
            ".claude/settings.json",
            ".agents/skills",
            ".mcp.json",
            "AGENTS.md",
            "CLAUDE.md",
            "GEMINI.md",
        ],
        at_home: &[".agents/skills", ".claude/skills", ".claude/agents"],
    },
    Obeyed {
        agent: CLINE.name,
        program: CLINE.program,
        files: &[
            ".cline",
            ".clinerules",
            ".agents/skills",
            ".agents/plugins",
            ".claude/skills",
            "AGENTS.md",
        ],
        at_home: &["Documents/Cline", "Cline", ".agents", ".claude/skills"],
    },
    Obeyed {
        agent: PI.name,
        program: PI.program,
        files: &[
            "AGENTS.override.md",
            "AGENTS.md",
            "AGENTS.MD",
            "CLAUDE.md",
            "CLAUDE.MD",
            ".pi",
            ".agents/skills",
        ],
        at_home: &[".agents/skills"],
    },
];

/// Returns the files that an agent obeys in any case, by its program.
pub fn obeyed(program: &str) -> Option<&'static Obeyed> {
    OBEYED.iter().find(|obeyed| obeyed.program == program)
}

/// Returns the name of an agent's program, if it can be determined. `argv` is the command line that
/// was made for it.
pub fn program(
    backend: &dyn Backend,
    (agent, command): (Option<&str>, Option<&Command>),
    args: &[String],
    argv: &[String],
) -> Option<String> {
    if let Program::OnPath { name, .. } = backend.program() {
        return Some(name.into());
    }
    if !backend.has_agents() {
        return None;
    }
    let name = || Path::new(argv.first()?).file_name()?.to_str().map(String::from);
    match (agent.and_then(|agent| acp::known(agent).ok()), command) {
        (None, None) => name(),
        (known, command) => acp::program(known, command, args),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::by_name;

    #[test]
    fn program_of_a_judging_agent_is_known_by_backend_name_and_command() {
        let argv = |word: &str| vec![word.to_string()];
        let command = Command::Shell("npx cline --acp".into());
        for (backend, agent, command, argv, expected) in [
            ("opencode", None, None, argv("/usr/bin/npx"), Some("opencode")),
            ("acp", Some("pi"), None, argv("/bin/pi-acp"), Some("pi-acp")),
            ("acp", None, None, argv("/bin/copilot"), Some("copilot")),
            ("acp", None, Some(&command), argv("/bin/sh"), Some("cline")),
            ("subprocess", None, None, argv("/bin/sh"), None),
        ] {
            let found = program(by_name(backend).unwrap(), (agent, command), &[], &argv);
            assert_eq!(found.as_deref(), expected, "{backend} {agent:?}");
        }
        assert!(obeyed("claude").is_none() && obeyed("codex").is_none());
        assert!(obeyed("opencode").unwrap().at_home.is_empty(), "its program may be there");
        assert!(obeyed("pi-acp").unwrap().files.contains(&"AGENTS.md"));
    }
}
