//! Says which environment variables belong to one agent CLI: its keys, its addresses, its folders.
//! No other CLI needs them, and an agent can print everything that is in its environment.

/// Prefixes of names, with the backend that owns them.
const OWNERS: &[(&str, &str)] = &[
    ("ANTHROPIC_", "claude-code"),
    ("CLAUDE_CODE_", "claude-code"),
    ("CLAUDE_CONFIG_DIR", "claude-code"),
    ("OPENAI_", "codex"),
    ("CODEX_", "codex"),
    ("GEMINI_API_KEY", ""),
    ("GOOGLE_API_KEY", ""),
    ("MULETEER_SCENARIO", "rehearsal"),
];

/// Whether a variable belongs to another CLI than `backend`'s. An ACP agent or a command may be any
/// CLI, so nothing is withheld from them.
pub fn is_of_another(backend: &str, name: &str) -> bool {
    let one_cli = matches!(backend, "claude-code" | "codex");
    one_cli && OWNERS.iter().any(|(start, owner)| name.starts_with(start) && *owner != backend)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_gets_its_own_and_unowned_variables() {
        let names = [
            "ANTHROPIC_API_KEY",
            "OPENAI_BASE_URL",
            "CODEX_HOME",
            "MULETEER_SCENARIO",
            "PATH",
            "AWS_REGION",
        ];
        let kept = |backend| {
            names.into_iter().filter(|name| !is_of_another(backend, name)).collect::<Vec<_>>()
        };
        assert_eq!(kept("claude-code"), ["ANTHROPIC_API_KEY", "PATH", "AWS_REGION"]);
        assert_eq!(kept("codex"), ["OPENAI_BASE_URL", "CODEX_HOME", "PATH", "AWS_REGION"]);
        assert_eq!(kept("acp"), names);
        assert_eq!(kept("subprocess"), names);
    }
}
