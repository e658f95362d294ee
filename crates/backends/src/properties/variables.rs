//! The environment variables of the agent CLIs.

use crate::{Backend, Program, all};

/// The variables that matter to one CLI. A `*` at the end of a pattern matches any ending.
#[derive(Debug, Clone, Copy, Default)]
pub struct Variables {
    /// Patterns of the names that belong to this CLI: its keys, its addresses, its folders. No
    /// other CLI needs them, and an agent can print everything that is in its environment.
    pub own: &'static [&'static str],
    /// Patterns of the names that pass from a client's environment to its agents.
    pub passed: &'static [&'static str],
    /// Patterns of the names that only agents need, and not the validations of a task list.
    pub for_agents: &'static [&'static str],
    /// Patterns of the names that decide which code the CLI runs: settings with hooks, permissions
    /// and programs of their own.
    pub loading: &'static [&'static str],
    /// Names by which the CLI recognises that it runs inside itself. No pattern passes them.
    pub nesting: &'static [&'static str],
}

/// Returns true if a variable belongs to another CLI than the backend's. An ACP agent or a command
/// may be any CLI, and some CLIs use any provider's key, so nothing is withheld from them.
pub fn is_of_another(backend: &dyn Backend, name: &str) -> bool {
    let one_cli =
        matches!(backend.program(), Program::OnPath { .. }) && !backend.has_any_provider();
    let mut others = all().into_iter().filter(|other| other.name() != backend.name());
    one_cli && others.any(|other| fits_any(other.variables().own, name))
}

/// Returns true if only agents need this variable.
pub fn is_for_agents(name: &str) -> bool {
    all().iter().any(|backend| fits_any(backend.variables().for_agents, name))
}

/// Returns true if this variable decides which code an agent CLI runs.
pub fn loads_code(name: &str) -> bool {
    all().iter().any(|backend| fits_any(backend.variables().loading, name))
}

/// Returns true if a CLI recognises by this variable that it runs inside itself.
pub fn is_nesting(name: &str) -> bool {
    all().iter().any(|backend| backend.variables().nesting.contains(&name))
}

/// Returns true if the value of a variable is a key, a password or the like, by its name.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let mut words = name.split('_');
    words.any(|word| matches!(word, "KEY" | "TOKEN" | "PAT" | "PASSWD" | "PASSPHRASE"))
        || ["APIKEY", "PASSWORD", "SECRET"].iter().any(|part| name.contains(part))
        || name.ends_with("_HEADERS")
}

/// Returns the patterns of the variables that pass from a client to its agents.
pub fn passed() -> impl Iterator<Item = &'static str> {
    all().into_iter().flat_map(|backend| backend.variables().passed).copied()
}

/// Returns true if `name` matches `pattern`, which may end in a `*`.
pub fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    }
}

fn fits_any(patterns: &[&str], name: &str) -> bool {
    patterns.iter().any(|pattern| fits(pattern, name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::by_name;

    #[test]
    fn agent_keeps_its_own_keys_and_unowned_variables() {
        let names = [
            "ANTHROPIC_API_KEY",
            "OPENAI_BASE_URL",
            "CODEX_HOME",
            "MULETEER_SCENARIO",
            "GEMINI_API_KEY",
            "PATH",
            "AWS_REGION",
        ];
        let kept = |backend| {
            let backend = by_name(backend).unwrap();
            names.into_iter().filter(|name| !is_of_another(backend, name)).collect::<Vec<_>>()
        };
        assert_eq!(kept("claude-code"), ["ANTHROPIC_API_KEY", "PATH", "AWS_REGION"]);
        assert_eq!(kept("codex"), ["OPENAI_BASE_URL", "CODEX_HOME", "PATH", "AWS_REGION"]);
        assert_eq!(kept("acp"), names);
        assert_eq!(kept("opencode"), names);
        assert_eq!(kept("pi"), names);
        assert_eq!(kept("subprocess"), names);
    }

    #[test]
    fn settings_variables_of_a_cli_load_code() {
        for name in ["CODEX_SQLITE_HOME", "CLAUDE_CONFIG_DIR", "CLAUDE_CODE_SHELL", "QWEN_HOME"] {
            assert!(loads_code(name), "{name}");
        }
        for name in ["ANTHROPIC_BASE_URL", "CLAUDE", "PATH"] {
            assert!(!loads_code(name), "{name}");
        }
    }

    #[test]
    fn secret_variables_are_known_by_their_names() {
        for name in [
            "ANTHROPIC_API_KEY",
            "ANTHROPIC_AUTH_TOKEN",
            "CLAUDE_CODE_OAUTH_TOKEN",
            "OPENAI_API_KEY",
            "CODEX_API_KEY",
            "GEMINI_API_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_ACCESS_KEY_ID",
            "GITHUB_TOKEN",
            "GITHUB_PAT",
            "ANTHROPIC_CUSTOM_HEADERS",
            "db_password",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in ["PATH", "SSH_AUTH_SOCK", "CODEX_HOME", "MAX_THINKING_TOKENS", "XKB_KEYMAP"] {
            assert!(!is_secret(name), "{name}");
        }
    }
}
