//! The ACP agents whose way of asking for permission is known. A policy is checked against it.

use muleteer_model::agent::backend::{AskingAgent, Manner, Tells};

pub(super) static AGENTS: [AskingAgent; 8] = [
    AskingAgent {
        names: &["@agentclientprotocol/claude-agent-acp", "claude-agent-acp"],
        program: "claude-agent-acp",
        manner: Manner::Asks,
        tells: Tells::Cost,
        own: &[["/.claude/plans/", ""], ["/.claude/projects/", "/memory/"]],
    },
    AskingAgent {
        names: &["@agentclientprotocol/codex-acp", "codex-acp"],
        program: "codex-acp",
        manner: Manner::Sandboxed,
        tells: Tells::Tokens,
        own: &[],
    },
    AskingAgent {
        names: &["OpenCode"],
        program: "opencode",
        manner: Manner::Early,
        tells: Tells::Cost,
        own: &[["/opencode/plans/", ""]],
    },
    AskingAgent {
        names: &["gemini-cli"],
        program: "gemini",
        manner: Manner::Asks,
        tells: Tells::Tokens,
        own: &[["/.gemini/tmp/", ""]],
    },
    AskingAgent {
        names: &["qwen-code"],
        program: "qwen",
        manner: Manner::Asks,
        tells: Tells::Tokens,
        own: &[["/.qwen/tmp/", ""]],
    },
    AskingAgent {
        names: &["Copilot"],
        program: "copilot",
        manner: Manner::Asks,
        tells: Tells::Tokens,
        own: &[["/.copilot/session-state/", ""]],
    },
    AskingAgent {
        names: &["cline"],
        program: "cline",
        manner: Manner::Early,
        tells: Tells::Nothing,
        own: &[],
    },
    AskingAgent {
        names: &["pi-acp"],
        program: "pi-acp",
        manner: Manner::Unknown,
        tells: Tells::Nothing,
        own: &[],
    },
];
