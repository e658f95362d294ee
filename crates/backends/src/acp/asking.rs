//! Which agents ask before they act, what makes one ask, and what makes it not ask.
//!
//! A permission policy holds an ACP agent only as far as the agent asks. One that is known never to, or is
//! started with a flag or a variable that says so, is refused under a policy that has something to ask.

use super::{Known, Mode};
use crate::claude_code::{READ_INSTRUCTIONS, control};
use crate::flags::flag_words;
use crate::launch::{Command, ProjectSettings};
use muleteer_model::permission::Policy;
use muleteer_model::session_mode::is_unasking;
use serde_json::{Map, Value, json};

/// Makes opencode ask about everything, whatever its own settings allow.
pub(super) const OPENCODE: Mode = Mode {
    variable: "OPENCODE_PERMISSION",
    unasked: None,
    asking: r#"{"*":"ask","bash":"ask","edit":"ask","external_directory":"ask","task":"ask","webfetch":"ask"}"#,
};

/// Programs that run every tool of theirs without asking.
const NEVER: [&str; 4] = ["pi", "pi-acp", "pi-coding-agent", "mini"];

/// Parts of a flag that says: do not ask.
const UNASKED_FLAGS: [&str; 14] = [
    "yolo",
    "dangerously",
    "allow-all",
    "auto-approve",
    "auto_approve",
    "auto-accept",
    "always-approve",
    "full-auto",
    "skip-permissions",
    "trust-all",
    "danger-full-access",
    "bypass-approvals",
    "allowed-tools",
    "allowedtools",
];

/// Flags and settings whose value names a mode.
const MODE_FLAGS: [&str; 9] = [
    "--approval-mode",
    "--permission-mode",
    "--ask-for-approval",
    "--mode",
    "--sandbox",
    "-s",
    "approval_policy",
    "sandbox_mode",
    "GOOSE_MODE",
];

/// A sandbox that is none.
const FULL_ACCESS: &str = "danger-full-access";

/// Variables that say the same where they are set.
const UNASKED_VARIABLES: [&str; 5] = ["YOLO", "ALLOW_ALL", "AUTO_APPROVE", "SKIP_PERMISSIONS", "DANGEROUSLY"];

/// After these, `-y` is for a package manager.
const RUNNERS: [&str; 8] = ["bunx", "dlx", "exec", "npm", "npx", "pnpm", "uvx", "yarn"];

/// Why no policy can hold the agent that is started like this; `None` where nothing is known to be in the
/// way. `agent`: the one that is known by name.
pub fn refusal<'a>(
    agent: Option<Known>,
    command: Option<&Command>,
    args: &[String],
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Option<String> {
    let mut words = flag_words(command, args);
    words.extend(agent.map(|known| known.program.to_string()));
    if let Some(name) = words.iter().map(|word| program(word)).find(|name| NEVER.contains(name)) {
        return Some(format!("the ACP agent `{name}` never asks for permission, so no policy can hold it"));
    }
    if let Some(flag) = unasking_flag(&words) {
        return Some(format!("`{flag}` makes the ACP agent act without asking, so no policy can hold it"));
    }
    let set = env.into_iter().find(|(name, value)| is_unasking_variable(name, value));
    set.map(|(name, _)| format!("`{name}` makes the ACP agent act without asking, so no policy can hold it"))
}

/// The variable by which the agent that a command names is made to ask.
pub(super) fn mode(command: Option<&Command>, args: &[String]) -> Option<Mode> {
    let words = flag_words(command, args);
    words
        .iter()
        .any(|word| matches!(program(word), "opencode" | "opencode-ai"))
        .then_some(OPENCODE)
}

/// The options that claude-agent-acp hands to Claude Code: its tools and the rules for them, and whether
/// the settings of its directory count.
pub(super) fn meta(agent: &str, policy: &Policy, (settings, cwd): (ProjectSettings, &str)) -> Option<Value> {
    if !agent.contains("claude-agent-acp") {
        return None;
    }
    let mut options = Map::new();
    if settings == ProjectSettings::Ignored {
        options.insert("settingSources".into(), json!(["user"]));
        options.insert("additionalDirectories".into(), json!([cwd]));
        options.insert("env".into(), json!({READ_INSTRUCTIONS: "1"}));
    }
    if !policy.is_open() {
        options.insert("settings".into(), control::settings(policy));
        if let Some(tools) = control::tools(policy) {
            options.insert("tools".into(), tools.into());
        }
        let never = control::never(policy);
        if !never.is_empty() {
            options.insert("disallowedTools".into(), never.into());
        }
    }
    (!options.is_empty()).then(|| json!({"claudeCode": {"options": options}}))
}

/// Its name without a path and a version.
fn program(word: &str) -> &str {
    let name = word.rsplit('/').next().unwrap_or(word);
    name.split_once('@').map_or(name, |(name, _)| name)
}

fn unasking_flag(words: &[String]) -> Option<String> {
    words.iter().enumerate().find_map(|(n, word)| {
        let lower = word.to_ascii_lowercase();
        let flag = lower.starts_with('-') || lower.contains('=');
        let before = n.checked_sub(1).and_then(|n| words.get(n)).map(String::as_str).unwrap_or_default();
        let said = flag && UNASKED_FLAGS.iter().any(|part| lower.contains(part));
        let yes = matches!(word.as_str(), "-y" | "--yes") && !RUNNERS.contains(&program(before));
        let value = match word.split_once('=') {
            Some((name, value)) if MODE_FLAGS.contains(&name) => Some(value),
            Some((name, value)) if is_unasking_variable(name, value) => return Some(name.to_string()),
            None if MODE_FLAGS.contains(&before) => Some(word.as_str()),
            _ => None,
        };
        let mode = value.is_some_and(|value| matches!(value, "never" | FULL_ACCESS) || is_unasking(value));
        (said || yes || mode).then(|| word.clone())
    })
}

fn is_unasking_variable(name: &str, value: &str) -> bool {
    if name == OPENCODE.variable {
        return value.contains("\"allow\"") || !value.contains("\"ask\"");
    }
    let on = !matches!(value.trim().to_ascii_lowercase().as_str(), "" | "0" | "false" | "no" | "off");
    let named = UNASKED_VARIABLES.iter().any(|part| name.contains(part));
    (named && on) || (MODE_FLAGS.contains(&name) && is_unasking(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(command: &str, env: &[(&str, &str)]) -> Option<String> {
        refusal(None, Some(&Command::Shell(command.into())), &[], env.iter().copied())
    }

    #[test]
    fn meta_of_empty_tools_names_no_tool() {
        let mut policy = Policy::default();
        assert_eq!(meta("claude-agent-acp", &policy), None);
        policy.restrict(Some(&[]), &[], None);
        let options = meta("claude-agent-acp", &policy).expect("options")["claudeCode"]["options"].take();
        assert_eq!(options, json!({"settings": {"permissions": {"ask": [], "deny": []}}, "tools": []}));
        assert_eq!(meta("codex-acp", &policy), None);
    }

    #[test]
    fn agents_that_never_ask_are_refused() {
        for command in [
            "pi-acp",
            "npx -y pi-acp@0.0.34",
            "/opt/bin/pi --acp",
            "gemini --acp --yolo",
            "gemini --acp -y",
            "qwen --acp --approval-mode=auto-edit",
            "qwen --acp --approval-mode yolo",
            "my-agent --dangerously-skip-permissions",
            "copilot --acp --allow-all-tools",
            "COPILOT_ALLOW_ALL=true copilot --acp",
            "sh -c 'exec agent --auto-approve'",
            "agent -c approval_policy=never",
            "agent --permission-mode bypassPermissions",
            "codex-acp -c 'approval_policy=\"never\"'",
            "codex-acp -s danger-full-access",
            "codex-acp -c sandbox_mode='danger-full-access'",
            "gemini --acp --allowed-tools run_shell_command",
            "gemini --acp --approval-mode='yolo'",
        ] {
            assert!(why(command, &[]).is_some(), "{command}");
        }
        for (name, value) in [
            ("COPILOT_ALLOW_ALL", "true"),
            ("GEMINI_YOLO", "1"),
            ("OPENCODE_PERMISSION", r#"{"*":"allow"}"#),
            ("OPENCODE_PERMISSION", r#"{"*":"ask","bash":"allow"}"#),
        ] {
            assert!(why("agent --acp", &[(name, value)]).is_some(), "{name}");
        }
    }

    #[test]
    fn others_are_not() {
        for command in [
            "claude-agent-acp",
            "npx -y @agentclientprotocol/claude-agent-acp",
            "opencode acp",
            "gemini --acp",
            "qwen --acp --approval-mode default",
            "sh /tmp/agent.sh",
            "codex-acp -c approval_policy=on-request",
            "/home/yolo/agent --acp",
        ] {
            assert_eq!(why(command, &[("COPILOT_ALLOW_ALL", "false"), ("HOME", "/h")]), None, "{command}");
        }
        assert_eq!(why("opencode acp", &[("OPENCODE_PERMISSION", r#"{"*":"ask"}"#)]), None);
    }

    #[test]
    fn claude_gets_no_untrusted_settings_and_reads_its_instructions() {
        let agent = "claude-agent-acp 0.101.0";
        let open = Policy::default();
        let meta = |agent: &str, settings| meta(agent, &open, (settings, "/p"));
        assert_eq!(meta(agent, ProjectSettings::Count), None);
        assert_eq!(meta("another 1", ProjectSettings::Ignored), None);
        let options = json!({
            "settingSources": ["user"],
            "additionalDirectories": ["/p"],
            "env": {"CLAUDE_CODE_ADDITIONAL_DIRECTORIES_CLAUDE_MD": "1"},
        });
        assert_eq!(meta(agent, ProjectSettings::Ignored), Some(json!({"claudeCode": {"options": options}})));
    }

    #[test]
    fn opencode_is_made_to_ask_however_it_is_named() {
        let shell = |text: &str| mode(Some(&Command::Shell(text.into())), &[]).map(|mode| mode.variable);
        assert_eq!(shell("npx -y opencode-ai@1.18 acp"), Some("OPENCODE_PERMISSION"));
        assert_eq!(shell("my-agent"), None);
    }
}
