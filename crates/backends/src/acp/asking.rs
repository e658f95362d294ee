//! Knows which agents ask before they act, and which settings make them ask or not ask.
//!
//! A permission policy binds an ACP agent only as far as the agent asks. Under a policy that needs
//! asks, an agent is rejected if it is known never to ask, or if a flag or a variable switches
//! asking off.

use crate::acp::start;
use crate::acp::{Known, Mode};
use crate::claude_code::{READ_INSTRUCTIONS, control};
use crate::launch::{Command, ProjectSettings};
use muleteer_model::agent::capability::never_asks;
use muleteer_model::agent::permission::Policy;
use muleteer_model::agent::session_mode::is_unasking;
use serde_json::{Map, Value, json};

/// Makes opencode ask about everything, whatever its own settings allow.
pub(super) const OPENCODE: Mode = Mode {
    variable: "OPENCODE_PERMISSION",
    unasked: None,
    asking: concat!(
        r#"{"*":"ask","bash":"ask","edit":"ask","external_directory":"ask","task":"ask","#,
        r#""webfetch":"ask"}"#,
    ),
};

/// Makes goose ask about everything; by default it asks about nothing.
const GOOSE: Mode = Mode { variable: "GOOSE_MODE", unasked: None, asking: "approve" };

/// Parts of flag names that switch asking off.
const UNASKED_FLAGS: [&str; 15] = [
    "yolo",
    "dangerously",
    "allow-all",
    "auto-approve",
    "auto-accept",
    "always-approve",
    "full-auto",
    "skip-permissions",
    "trust-all",
    "danger-full-access",
    "bypass-approvals",
    "bypass-permissions",
    "yes-always",
    "allowed-tools",
    "allowedtools",
];

/// Flags and settings whose value names a mode.
const MODE_FLAGS: [&str; 12] = [
    "--approval-mode",
    "--approval-policy",
    "--permission-mode",
    "--ask-for-approval",
    "--mode",
    "--sandbox",
    "-s",
    "approval_mode",
    "approval_policy",
    "permission_mode",
    "sandbox_mode",
    "GOOSE_MODE",
];

/// Parts of variable names that switch asking off.
const UNASKED_VARIABLES: [&str; 5] =
    ["YOLO", "ALLOW_ALL", "AUTO_APPROVE", "SKIP_PERMISSIONS", "DANGEROUSLY"];

/// Returns why no policy can bind an agent that is started like this; `None` if nothing is known to
/// prevent it. `agent` is the agent that was chosen by name.
pub fn refusal<'a>(
    agent: Option<Known>,
    command: Option<&Command>,
    args: &[String],
    env: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Option<String> {
    let cannot = |what: &str| {
        format!(
            "`{what}` makes the ACP agent act without asking, so no permission policy can be \
                 enforced"
        )
    };
    let starts = start::starts(command, args);
    let programs = starts.iter().filter_map(|start| start.program.as_deref());
    let programs = programs.chain(agent.map(|known| known.program));
    if let Some(name) = programs.into_iter().find(|name| never_asks(name)) {
        return Some(format!(
            "the ACP agent `{name}` never asks for permission, so no permission policy can be \
             enforced"
        ));
    }
    if let Some(flag) = starts.iter().find_map(|start| unasking_flag(&start.args)) {
        return Some(cannot(flag));
    }
    let set = starts
        .iter()
        .flat_map(|start| &start.sets)
        .find(|(name, value)| is_unasking_variable(name, value));
    let given = || env.into_iter().find(|(name, value)| is_unasking_variable(name, value));
    set.map(|(name, _)| cannot(name)).or_else(|| given().map(|(name, _)| cannot(name)))
}

/// Returns the name of the agent's program, if it can be determined. `agent` is the agent that was
/// chosen by name.
pub fn program(agent: Option<Known>, command: Option<&Command>, args: &[String]) -> Option<String> {
    match agent {
        Some(known) => Some(known.program.into()),
        None => start::starts(command, args).pop()?.program,
    }
}

/// Returns the variable that makes the agent of a command ask.
pub(super) fn mode(command: Option<&Command>, args: &[String]) -> Option<Mode> {
    let starts = start::starts(command, args);
    starts.iter().find_map(|start| match start.program.as_deref()? {
        "opencode" => Some(OPENCODE),
        "goose" => Some(GOOSE),
        _ => None,
    })
}

/// Returns the options that claude-agent-acp passes to Claude Code: its tools, the rules for them,
/// and whether the settings of its directory apply.
pub(super) fn meta(
    agent: &str,
    policy: &Policy,
    (settings, cwd): (ProjectSettings, &str),
) -> Option<Value> {
    // A version may follow the name.
    let name = agent.split(' ').next().unwrap_or_default();
    if !["@agentclientprotocol/claude-agent-acp", "claude-agent-acp"].contains(&name) {
        return None;
    }
    let mut options = Map::new();
    match settings {
        ProjectSettings::Count => {}
        ProjectSettings::Ignored => {
            options.insert("settingSources".into(), json!(["user"]));
            options.insert("additionalDirectories".into(), json!([cwd]));
            options.insert("env".into(), json!({READ_INSTRUCTIONS: "1"}));
        }
        ProjectSettings::Nothing => {
            options.insert("settingSources".into(), json!([]));
            options.insert("strictMcpConfig".into(), json!(true));
        }
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

/// Whether an argument sets by itself which actions the agent takes without asking.
pub(super) fn names_a_mode(word: &str) -> bool {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    matches!(word, "-y" | "--yes")
        || name.starts_with("--")
            && (MODE_FLAGS.contains(&name) || UNASKED_FLAGS.iter().any(|part| name.contains(part)))
}

/// Returns the argument that makes the agent act without asking.
fn unasking_flag(words: &[String]) -> Option<&str> {
    words.iter().enumerate().find_map(|(n, word)| {
        let before = n.checked_sub(1).map_or("", |n| words[n].as_str());
        let after = words.get(n + 1).map_or("", String::as_str);
        is_unasking_word(word, before, after).then_some(word.as_str())
    })
}

fn is_unasking_word(word: &str, before: &str, after: &str) -> bool {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name.trim(), Some(unquoted(value))),
        None => (word, None),
    };
    if matches!(word, "-y" | "--yes")
        || MODE_FLAGS.contains(&before) && is_unasking_value(unquoted(word))
    {
        return true;
    }
    // Either `--config=key=value`, or a container's argument with a variable's name and value.
    if let Some(value) = value
        && (is_unasking_setting(name, value)
            || is_unasking_variable(name, value)
            || value
                .split_once('=')
                .is_some_and(|(key, value)| is_unasking_setting(key.trim(), unquoted(value))))
    {
        return true;
    }
    let flag = name.to_ascii_lowercase().replace('_', "-");
    let is_off = |value: &str| matches!(value, "false" | "0" | "no" | "off");
    flag.starts_with('-')
        && !flag.contains(char::is_whitespace)
        && !flag.starts_with("--no-")
        && !value.map_or(is_off(after), is_off)
        && UNASKED_FLAGS.iter().any(|part| flag.contains(part))
}

fn is_unasking_setting(key: &str, value: &str) -> bool {
    MODE_FLAGS.contains(&key) && is_unasking_value(value)
}

fn is_unasking_value(value: &str) -> bool {
    value == "never" || is_unasking(value) || UNASKED_FLAGS.contains(&value)
}

/// Removes the quotes that TOML or a shell user writes around a value.
fn unquoted(value: &str) -> &str {
    value.trim().trim_matches(['"', '\''])
}

fn is_unasking_variable(name: &str, value: &str) -> bool {
    if name == OPENCODE.variable {
        return !serde_json::from_str(value).is_ok_and(|value| asks_about_all(&value));
    }
    let value = unquoted(value);
    let on = !matches!(value.to_ascii_lowercase().as_str(), "" | "0" | "false" | "no" | "off");
    let named = !name.starts_with('-') && UNASKED_VARIABLES.iter().any(|part| name.contains(part));
    (named && on) || (MODE_FLAGS.contains(&name) && is_unasking_value(value))
}

/// Whether opencode's permissions leave nothing that it does without asking. Its own settings may
/// allow tools that the permissions do not name.
fn asks_about_all(permissions: &Value) -> bool {
    fn asks(value: &Value) -> bool {
        match value {
            Value::String(word) => word == "ask" || word == "deny",
            Value::Object(patterns) => patterns.values().all(asks),
            _ => false,
        }
    }
    permissions.get("*").map_or(permissions.is_string(), Value::is_string) && asks(permissions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(command: &str, env: &[(&str, &str)]) -> Option<String> {
        refusal(None, Some(&Command::Shell(command.into())), &[], env.iter().copied())
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
            "npx -q -y pi-acp",
            "npx --package=pi-acp pi-acp",
            "npm exec -- pi-acp",
            "node /opt/node_modules/pi-acp/dist/index.js",
            "env PI_OFFLINE=1 pi-acp",
            "cd /x && exec pi-acp",
            "npx -y @google/gemini-cli --acp -y",
            "qwen --acp --approval-mode=\"yolo\"",
            "qwen --acp '--approval-mode' \"yolo\"",
            "sh -c 'qwen --acp --approval-mode yolo'",
            "bash -lc \"exec qwen --acp --approval-mode='yolo'\"",
            "codex-acp -c 'approval_policy=\"never\"'",
            "codex-acp -c approval_policy=\"never\"",
            "codex-acp --config='approval_policy = \"never\"'",
            "codex-acp -c sandbox_mode=danger-full-access",
            "agent --\"yolo\"",
            "agent --yo\\lo",
            "agent --auto_approve=true",
            "export GEMINI_YOLO=1; gemini --acp",
            "env 'COPILOT_ALLOW_ALL'=true copilot --acp",
            "GOOSE_MODE=auto goose acp",
            "codex-acp -s danger-full-access",
            "codex-acp -c sandbox_mode='danger-full-access'",
            "gemini --acp --allowed-tools run_shell_command",
            "gemini --acp --approval-mode='yolo'",
            "docker run -i img gemini --acp --yolo",
            "docker run -i -e COPILOT_ALLOW_ALL=true img copilot --acp",
            "docker run -i img --yolo",
            "bwrap --bind / / --setenv GEMINI_YOLO 1 gemini --acp",
            "mise exec -- pi-acp",
        ] {
            assert!(why(command, &[]).is_some(), "{command}");
        }
        for (name, value) in [
            ("COPILOT_ALLOW_ALL", "true"),
            ("GEMINI_YOLO", "1"),
            ("OPENCODE_PERMISSION", r#"{"*":"allow"}"#),
            ("OPENCODE_PERMISSION", r#"{"*":"ask","bash":"allow"}"#),
            ("OPENCODE_PERMISSION", r#"{"*":"ask","bash":{"*":"ask","git *":"allow"}}"#),
            ("OPENCODE_PERMISSION", r#"{"bash":"ask"}"#),
            ("OPENCODE_PERMISSION", r#"{"bash":"ask","edit":"ask","webfetch":"deny"}"#),
            ("OPENCODE_PERMISSION", r#"{"*":{"a":"ask"}}"#),
            ("OPENCODE_PERMISSION", "{}"),
            ("OPENCODE_PERMISSION", "no JSON \"ask\""),
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
            "/home/pi/agent --acp",
            "agent --acp --cwd /home/pi",
            "agent --acp --name pi",
            "sudo -u pi agent --acp",
            "npx -q -y @agentclientprotocol/claude-agent-acp",
            "npx --yes --quiet gemini --acp",
            "npm exec --yes -- gemini --acp",
            "pnpm dlx -s gemini --acp",
            "agent --config=/home/yolo/c.toml",
            "agent --no-yolo",
            "agent --yolo=false",
            "agent --yolo false",
            "agent --title '--approval-mode yolo'",
            "echo 'not --yolo' && agent --acp",
            "agent --color=auto",
            "GOOSE_MODE=approve goose acp",
        ] {
            assert_eq!(
                why(command, &[("COPILOT_ALLOW_ALL", "false"), ("HOME", "/h")]),
                None,
                "{command}"
            );
        }
        for value in [r#"{"*":"ask"}"#, r#"{"*":"deny","bash":{"git *":"ask"}}"#, r#""ask""#] {
            assert_eq!(why("opencode acp", &[("OPENCODE_PERMISSION", value)]), None, "{value}");
        }
        let argv =
            |words: &[&str]| Command::Argv(words.iter().map(|word| (*word).to_string()).collect());
        assert_eq!(refusal(None, Some(&argv(&["agent", "say --yolo"])), &[], []), None);
        let args = ["--approval-mode".to_string(), "yolo".to_string()];
        assert!(refusal(None, Some(&argv(&["qwen", "--acp"])), &args, []).is_some());
        assert!(refusal(None, None, &args, []).is_some());
    }

    #[test]
    fn opencode_gets_its_asking_mode_under_every_name() {
        let shell =
            |text: &str| mode(Some(&Command::Shell(text.into())), &[]).map(|mode| mode.variable);
        assert_eq!(shell("npx -y opencode-ai@1.18 acp"), Some("OPENCODE_PERMISSION"));
        assert_eq!(shell("sh -c '/opt/opencode acp'"), Some("OPENCODE_PERMISSION"));
        assert_eq!(shell("goose acp"), Some("GOOSE_MODE"));
        assert_eq!(shell("my-agent"), None);
        assert_eq!(shell("my-agent opencode"), None);
    }

    #[test]
    fn program_of_a_command_is_recognized_by_its_name() {
        let shell = |text: &str| program(None, Some(&Command::Shell(text.into())), &[]);
        for (command, name) in [
            ("npx -y @agentclientprotocol/claude-agent-acp@0.101.0", Some("claude-agent-acp")),
            (
                "node /a/node_modules/@agentclientprotocol/codex-acp/dist/index.js",
                Some("codex-acp"),
            ),
            ("npx @google/gemini-cli --acp", Some("gemini")),
            ("A=b /opt/my-agent --acp", Some("my-agent")),
            ("sh /tmp/agent.sh", Some("agent.sh")),
            (
                "docker run -it --rm -v /a:/b -eA=b --network none img opencode acp",
                Some("opencode"),
            ),
            ("podman --log-level debug exec -w /p box /usr/bin/opencode acp", Some("opencode")),
            ("docker run -i img --acp", Some("docker")),
            ("docker run -i img", Some("docker")),
            ("mise exec node@22 -- opencode acp", Some("opencode")),
            ("mise x -c 'opencode acp'", Some("opencode")),
            ("direnv exec . opencode acp", Some("opencode")),
            ("bwrap --ro-bind / / --dev /dev --unshare-net -- opencode acp", Some("opencode")),
            ("bwrap --bind / / --die-with-parent opencode acp", Some("opencode")),
            ("nix develop .#x --command opencode acp", Some("opencode")),
            ("nix run nixpkgs#opencode -- acp", Some("opencode")),
            ("uv run --with x opencode acp", Some("opencode")),
            ("npx @agentclientprotocol/codex-acp -c model=x", Some("codex-acp")),
            ("$AGENT", Some("$AGENT")),
            ("", None),
        ] {
            assert_eq!(shell(command).as_deref(), name, "{command}");
        }
    }

    #[test]
    fn meta_of_empty_tools_names_no_tool() {
        let mut policy = Policy::default();
        assert_eq!(meta("claude-agent-acp", &policy, (ProjectSettings::Count, "/p")), None);
        policy.restrict(Some(&[]), &[], None);
        let options = meta("claude-agent-acp", &policy, (ProjectSettings::Count, "/p"))
            .expect("options")["claudeCode"]["options"]
            .take();
        assert_eq!(
            options,
            json!({"settings": {"permissions": {"ask": [], "deny": []}}, "tools": []})
        );
        assert_eq!(meta("codex-acp", &policy, (ProjectSettings::Count, "/p")), None);
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
        assert_eq!(
            meta(agent, ProjectSettings::Nothing),
            Some(json!({"claudeCode": {"options": {
                "settingSources": [], "strictMcpConfig": true,
            }}}))
        );
        assert_eq!(
            meta(agent, ProjectSettings::Ignored),
            Some(json!({"claudeCode": {"options": options}}))
        );
    }
}
