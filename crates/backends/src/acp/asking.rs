//! Which agents ask before they act, what makes one ask, and what makes it not ask.
//!
//! A permission policy holds an ACP agent only as far as the agent asks. One that is known never to, or is
//! started with a flag or a variable that says so, is refused under a policy that has something to ask.

use super::{Known, Mode};
use crate::claude_code::control;
use crate::launch::Command;
use muleteer_model::permission::Policy;
use muleteer_model::session_mode::is_unasking;
use serde_json::{Value, json};

/// Makes opencode ask about everything, whatever its own settings allow.
pub(super) const OPENCODE: Mode = Mode {
    variable: "OPENCODE_PERMISSION",
    unasked: None,
    asking: r#"{"*":"ask","bash":"ask","edit":"ask","external_directory":"ask","task":"ask","webfetch":"ask"}"#,
};

/// Programs that run every tool of theirs without asking.
const NEVER: [&str; 4] = ["pi", "pi-acp", "pi-coding-agent", "mini"];

/// Parts of a flag that says: do not ask.
const UNASKED_FLAGS: [&str; 12] = [
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
];

/// Flags and settings whose value names a mode.
const MODE_FLAGS: [&str; 6] =
    ["--approval-mode", "--permission-mode", "--ask-for-approval", "--mode", "approval_policy", "GOOSE_MODE"];

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
    let mut words = words(command, args);
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
    let words = words(command, args);
    words
        .iter()
        .any(|word| matches!(program(word), "opencode" | "opencode-ai"))
        .then_some(OPENCODE)
}

/// The options that claude-agent-acp hands to Claude Code: its tools, and the rules for them.
pub(super) fn meta(agent: &str, policy: &Policy) -> Option<Value> {
    if policy.is_open() || !agent.contains("claude-agent-acp") {
        return None;
    }
    let mut options = json!({"settings": control::settings(policy)});
    if let Some(tools) = control::tools(policy) {
        options["tools"] = tools.into();
    }
    let never = control::never(policy);
    if !never.is_empty() {
        options["disallowedTools"] = never.into();
    }
    Some(json!({"claudeCode": {"options": options}}))
}

fn words(command: Option<&Command>, args: &[String]) -> Vec<String> {
    let mut words = match command {
        Some(Command::Argv(words)) => words.clone(),
        Some(Command::Shell(text)) => vec![text.clone()],
        None => vec![],
    };
    words.extend(args.iter().cloned());
    // A script for a shell is a word, too.
    let split = words
        .iter()
        .flat_map(|word| word.split(|c: char| c.is_whitespace() || "\"';|&()".contains(c)));
    split.filter(|word| !word.is_empty()).map(str::to_string).collect()
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
        let mode = value.is_some_and(|value| value == "never" || is_unasking(value));
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
    fn opencode_is_made_to_ask_however_it_is_named() {
        let shell = |text: &str| mode(Some(&Command::Shell(text.into())), &[]).map(|mode| mode.variable);
        assert_eq!(shell("npx -y opencode-ai@1.18 acp"), Some("OPENCODE_PERMISSION"));
        assert_eq!(shell("my-agent"), None);
    }
}
