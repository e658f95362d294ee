//! The capabilities of every agent that Muleteer knows, in one table.
//!
//! Decisions and documentation read this table: the traits of the backends
//! ([`crate::agent::backend::Traits`]), the presets of the backend `acp`, `muleteer agents`,
//! `muleteer doctor` and `docs/guides/agents.md`.

use crate::agent::session_age::Loads;
use serde::Serialize;

/// One agent with what it can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agent {
    pub name: &'static str,
    /// The value of `--backend` that starts it.
    pub backend: &'static str,
    /// The program that is searched for on PATH; empty if the user names it, or if it is Muleteer.
    pub program: &'static str,
    /// Other names under which the program is started.
    pub other_programs: &'static [&'static str],
    /// The names that the agent gives itself (ACP).
    pub names: &'static [&'static str],
    pub manner: Manner,
    pub tells: Tells,
    /// The places outside of its directory where the agent writes for itself without asking: parts
    /// of the path, in order.
    pub own: &'static [[&'static str; 2]],
    /// A new process can resume the session of a dead one.
    pub resumes: bool,
    /// When a new process can load a session that was just made.
    pub loads: Loads,
    /// Its turn can be ended while its session is kept.
    pub interrupts: bool,
    /// Its commands go on after their turn was interrupted, each in a session of its own.
    pub leaves_commands: bool,
    /// `muleteer model` can change the model of its session.
    pub changes_model: bool,
    /// Its model is chosen when it starts: it need not offer a choice.
    pub model_at_start: bool,
    /// How the user chooses its model, if `muleteer model` cannot.
    pub choose_model: &'static str,
    /// It uses MCP servers.
    pub mcp: bool,
    /// It confines its commands by itself.
    pub sandbox: bool,
    /// Its process exits when its input ends.
    pub exits_at_end_of_input: bool,
    /// The command that installs it; empty if there is nothing to install.
    pub install: &'static str,
    /// How it gets access to a model.
    pub login: &'static str,
    /// Set if no new dispatch may name this agent. Dispatches that did so before still run.
    pub refused: Option<Refused>,
}

/// Why a known agent is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    pub why: &'static str,
    /// The value of `--backend` that runs the same CLI.
    pub instead: &'static str,
}

/// The way in which an agent asks for permission, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// It may ask for nothing at all.
    Unknown,
    /// It asks about everything that it does not find harmless itself.
    Asks,
    /// It reports that a call runs before it asks about it.
    Early,
    /// It first tries commands in a sandbox in which they can change nothing, and then asks.
    Sandboxed,
}

/// The reports of an agent on its use of the model API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tells {
    /// The cost and all tokens.
    Cost,
    /// The cost, and the tokens of a part of the requests.
    CostOnly,
    /// Tokens, which need a price.
    Tokens,
    Nothing,
}

/// The capabilities of one agent, as scripts read them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Features {
    pub asks: bool,
    pub resumes: bool,
    pub interrupts: bool,
    pub changes_model: bool,
    pub tells_tokens: bool,
    pub tells_cost: bool,
    pub mcp: bool,
    pub sandbox: bool,
    pub exits_at_end_of_input: bool,
}

impl Features {
    const NONE: Self = Self {
        asks: false,
        resumes: false,
        interrupts: false,
        changes_model: false,
        tells_tokens: false,
        tells_cost: false,
        mcp: false,
        sandbox: false,
        exits_at_end_of_input: false,
    };

    /// Returns every capability with its name for people, in the order of the table.
    pub fn named(self) -> [(&'static str, bool); 9] {
        [
            ("asks", self.asks),
            ("resumes", self.resumes),
            ("interrupts", self.interrupts),
            ("changes model", self.changes_model),
            ("tokens", self.tells_tokens),
            ("cost", self.tells_cost),
            ("MCP", self.mcp),
            ("sandbox", self.sandbox),
            ("exits", self.exits_at_end_of_input),
        ]
    }
}

impl Agent {
    /// An agent of which nothing is known.
    pub const UNKNOWN: Self = Self {
        name: "",
        backend: "",
        program: "",
        other_programs: &[],
        names: &[],
        manner: Manner::Unknown,
        tells: Tells::Nothing,
        own: &[],
        resumes: false,
        loads: Loads::AtOnce,
        interrupts: false,
        leaves_commands: false,
        changes_model: false,
        model_at_start: false,
        choose_model: "",
        mcp: false,
        sandbox: false,
        exits_at_end_of_input: true,
        install: "",
        login: "",
        refused: None,
    };

    /// Returns true if the agent asks for permission and waits for the answer.
    pub const fn asks(&self) -> bool {
        !matches!(self.manner, Manner::Unknown)
    }

    pub const fn tells_cost(&self) -> bool {
        matches!(self.tells, Tells::Cost | Tells::CostOnly)
    }

    /// Returns what a new dispatch of the agent can do.
    pub const fn features(&self) -> Features {
        if self.refused.is_some() {
            return Features::NONE;
        }
        Features {
            asks: self.asks(),
            resumes: self.resumes,
            interrupts: self.interrupts,
            changes_model: self.changes_model,
            tells_tokens: matches!(self.tells, Tells::Cost | Tells::Tokens),
            tells_cost: self.tells_cost(),
            mcp: self.mcp,
            sandbox: self.sandbox,
            exits_at_end_of_input: self.exits_at_end_of_input,
        }
    }

    /// Returns true if the agent is started by this program.
    pub fn is_started_by(&self, program: &str) -> bool {
        !program.is_empty() && (self.program == program || self.other_programs.contains(&program))
    }
}

/// An agent that resumes, is interrupted and changes its model, as most agents of ACP.
const ACP_AGENT: Agent =
    Agent { resumes: true, interrupts: true, changes_model: true, mcp: true, ..Agent::UNKNOWN };

pub const CLAUDE_CODE: Agent = Agent {
    name: "claude-code",
    backend: "claude-code",
    program: "claude",
    manner: Manner::Asks,
    tells: Tells::Cost,
    resumes: true,
    interrupts: true,
    changes_model: true,
    mcp: true,
    install: "npm install -g @anthropic-ai/claude-code",
    login: "run `claude` and `/login`, or set ANTHROPIC_API_KEY",
    ..Agent::UNKNOWN
};

pub const CODEX: Agent = Agent {
    name: "codex",
    backend: "codex",
    program: "codex",
    tells: Tells::Tokens,
    resumes: true,
    interrupts: true,
    // With its next process.
    changes_model: true,
    mcp: true,
    sandbox: true,
    install: "npm install -g @openai/codex",
    login: "run `codex login`, or set CODEX_API_KEY",
    ..Agent::UNKNOWN
};

/// opencode by its own JSON. It asks nobody there.
pub const OPENCODE_RUN: Agent =
    Agent { backend: "opencode", manner: Manner::Unknown, tells: Tells::Cost, ..OPENCODE };

/// pi by its own JSON.
pub const PI_JSON: Agent = Agent {
    backend: "pi",
    program: "pi",
    other_programs: &["pi-coding-agent"],
    names: &[],
    tells: Tells::Cost,
    install: "npm install -g @earendil-works/pi-coding-agent",
    login: "run `pi` and `/login`, or name a provider in `~/.pi/agent/models.json`",
    refused: None,
    ..PI
};

pub const CLAUDE_AGENT_ACP: Agent = Agent {
    name: "claude-agent-acp",
    backend: "acp:claude-agent-acp",
    program: "claude-agent-acp",
    names: &["@agentclientprotocol/claude-agent-acp", "claude-agent-acp"],
    manner: Manner::Asks,
    tells: Tells::Cost,
    own: &[["/.claude/plans/", ""], ["/.claude/projects/", "/memory/"]],
    install: "npm install -g @agentclientprotocol/claude-agent-acp",
    login: "run `claude` and `/login`, or set ANTHROPIC_API_KEY",
    ..ACP_AGENT
};

pub const CODEX_ACP: Agent = Agent {
    name: "codex-acp",
    backend: "acp:codex-acp",
    program: "codex-acp",
    names: &["@agentclientprotocol/codex-acp", "codex-acp"],
    manner: Manner::Sandboxed,
    tells: Tells::Tokens,
    leaves_commands: true,
    sandbox: true,
    install: "npm install -g @agentclientprotocol/codex-acp",
    login: "run `codex login`, or set OPENAI_API_KEY",
    ..ACP_AGENT
};

pub const OPENCODE: Agent = Agent {
    name: "opencode",
    backend: "acp:opencode",
    program: "opencode",
    names: &["OpenCode"],
    manner: Manner::Early,
    // Over ACP it reports the tokens of the last request of each turn.
    tells: Tells::CostOnly,
    own: &[["/opencode/plans/", ""]],
    install: "npm install -g opencode-ai",
    login: "run `opencode auth login`, or name a provider in `opencode.json`",
    ..ACP_AGENT
};

pub const GEMINI: Agent = Agent {
    name: "gemini",
    backend: "acp:gemini",
    program: "gemini",
    names: &["gemini-cli"],
    manner: Manner::Asks,
    tells: Tells::Tokens,
    own: &[["/.gemini/tmp/", ""]],
    loads: Loads::FromNextMinute,
    // With an MCP server it continues after the end of its input.
    exits_at_end_of_input: false,
    install: "npm install -g @google/gemini-cli",
    login: "run `gemini` and choose a login, or set GEMINI_API_KEY",
    ..ACP_AGENT
};

pub const QWEN: Agent = Agent {
    name: "qwen",
    backend: "acp:qwen",
    program: "qwen",
    names: &["qwen-code"],
    manner: Manner::Asks,
    tells: Tells::Tokens,
    own: &[["/.qwen/tmp/", ""]],
    install: "npm install -g @qwen-code/qwen-code",
    login: "run `qwen` and choose a login, or set OPENAI_API_KEY, OPENAI_BASE_URL and \
            OPENAI_MODEL with `selectedType: openai` in its settings",
    ..ACP_AGENT
};

pub const COPILOT: Agent = Agent {
    name: "copilot",
    backend: "acp:copilot",
    program: "copilot",
    names: &["Copilot"],
    manner: Manner::Asks,
    tells: Tells::Tokens,
    own: &[["/.copilot/session-state/", ""]],
    // Only the variable COPILOT_MODEL sets it.
    changes_model: false,
    model_at_start: true,
    choose_model: "spawn a new dispatch with --model",
    install: "npm install -g @github/copilot",
    login: "run `copilot login`, or set COPILOT_PROVIDER_BASE_URL, COPILOT_PROVIDER_API_KEY and \
            COPILOT_MODEL",
    ..ACP_AGENT
};

pub const CLINE: Agent = Agent {
    name: "cline",
    backend: "acp:cline",
    program: "cline",
    names: &["cline"],
    manner: Manner::Early,
    tells: Tells::Nothing,
    // It confirms a change and ignores it.
    changes_model: false,
    choose_model: "choose the model with `cline auth`, then spawn a new dispatch",
    mcp: false,
    install: "npm install -g cline",
    login: "run `cline auth`",
    ..ACP_AGENT
};

pub const PI: Agent = Agent {
    name: "pi",
    backend: "acp:pi",
    program: "pi-acp",
    other_programs: &["pi", "pi-coding-agent"],
    names: &["pi-acp"],
    mcp: false,
    install: "npm install -g pi-acp @earendil-works/pi-coding-agent",
    login: "run `pi-acp --terminal-login`, or name a provider in `~/.pi/agent/models.json`",
    refused: Some(Refused {
        why: "pi-acp does not report errors of the model's API: a wrong key and a rate limit look \
              like a turn without an answer",
        instead: "pi",
    }),
    ..ACP_AGENT
};

pub const MINI: Agent = Agent {
    name: "mini-swe-agent",
    backend: "subprocess",
    program: "mini",
    install: "pip install mini-swe-agent",
    login: "run `mini-extra config setup`, or set OPENAI_API_KEY and MSWEA_CONFIGURED=true",
    ..Agent::UNKNOWN
};

/// Any command. Its lines may report its cost.
pub const SUBPROCESS: Agent = Agent {
    name: "subprocess",
    backend: "subprocess",
    tells: Tells::Cost,
    login: "the command's own",
    ..Agent::UNKNOWN
};

pub const REHEARSAL: Agent = Agent {
    name: "rehearsal",
    backend: "rehearsal",
    manner: Manner::Asks,
    tells: Tells::Cost,
    resumes: true,
    interrupts: true,
    changes_model: true,
    login: "none: it plays a scenario",
    ..Agent::UNKNOWN
};

/// The agents of the backend `acp`, in the order in which `--backend acp` searches for one.
pub static ACP: [Agent; 8] =
    [CLAUDE_AGENT_ACP, CODEX_ACP, OPENCODE, GEMINI, QWEN, COPILOT, CLINE, PI];

/// The agents of the backend `subprocess` that are known.
pub static COMMANDS: [Agent; 1] = [MINI];

/// Every agent, in the order in which it is shown.
pub static AGENTS: [Agent; 15] = [
    CLAUDE_CODE,
    CODEX,
    CLAUDE_AGENT_ACP,
    CODEX_ACP,
    OPENCODE,
    GEMINI,
    QWEN,
    COPILOT,
    PI,
    CLINE,
    OPENCODE_RUN,
    PI_JSON,
    MINI,
    SUBPROCESS,
    REHEARSAL,
];

/// Returns the agent that a backend runs by this program.
pub fn of_program(backend: &str, program: &str) -> Option<&'static Agent> {
    AGENTS.iter().find(|agent| {
        agent.backend.split(':').next() == Some(backend) && agent.is_started_by(program)
    })
}

/// Returns the program of an agent that never asks for permission, if `program` starts one that an
/// ACP command can name.
pub fn never_asks(program: &str) -> bool {
    [PI, MINI].iter().any(|agent| !agent.asks() && agent.is_started_by(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_agent_has_its_own_backend_name_and_program() {
        let kind = |agent: &Agent| agent.backend.split(':').next().map(str::to_string);
        for (n, agent) in AGENTS.iter().enumerate() {
            // An agent may have its own backend and one by ACP.
            for other in AGENTS[..n].iter().filter(|other| kind(other) == kind(agent)) {
                assert_ne!(agent.name, other.name);
                assert!(!other.is_started_by(agent.program), "{}", agent.name);
            }
            assert!(!agent.login.is_empty(), "{}", agent.name);
            assert_eq!(agent.install.is_empty(), agent.program.is_empty(), "{}", agent.name);
            let tells_how = !agent.choose_model.is_empty();
            assert_eq!(tells_how, agent.resumes && !agent.changes_model, "{}", agent.name);
        }
    }

    #[test]
    fn agents_of_acp_are_in_both_tables() {
        for agent in &ACP {
            assert_eq!(agent.backend, format!("acp:{}", agent.name));
            assert!(AGENTS.contains(agent), "{}", agent.name);
        }
        let shown = AGENTS.iter().filter(|agent| agent.backend.starts_with("acp:")).count();
        assert_eq!(shown, ACP.len());
    }

    #[test]
    fn only_agents_without_asks_never_ask() {
        for (program, never) in
            [("pi", true), ("pi-acp", true), ("mini", true), ("gemini", false), ("", false)]
        {
            assert_eq!(never_asks(program), never, "{program}");
        }
    }
}
