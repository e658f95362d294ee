//! The ACP agents whose way of asking for permission is known. A policy is checked against it.

use muleteer_model::agent::backend::{AskingAgent, Manner};

pub(super) static AGENTS: [AskingAgent; 7] = [
    AskingAgent {
        names: &["@agentclientprotocol/claude-agent-acp", "claude-agent-acp"],
        program: "claude-agent-acp",
        manner: Manner::Asks,
        own: &[["/.claude/plans/", ""], ["/.claude/projects/", "/memory/"]],
    },
    AskingAgent {
        names: &["@agentclientprotocol/codex-acp", "codex-acp"],
        program: "codex-acp",
        manner: Manner::Sandboxed,
        own: &[],
    },
    AskingAgent {
        names: &["OpenCode"],
        program: "opencode",
        manner: Manner::Early,
        own: &[["/opencode/plans/", ""]],
    },
    AskingAgent {
        names: &["gemini-cli"],
        program: "gemini",
        manner: Manner::Asks,
        own: &[["/.gemini/tmp/", ""]],
    },
    AskingAgent {
        names: &["qwen-code"],
        program: "qwen",
        manner: Manner::Asks,
        own: &[["/.qwen/tmp/", ""]],
    },
    AskingAgent {
        names: &["Copilot"],
        program: "copilot",
        manner: Manner::Asks,
        own: &[["/.copilot/session-state/", ""]],
    },
    AskingAgent { names: &["cline"], program: "cline", manner: Manner::Early, own: &[] },
];
