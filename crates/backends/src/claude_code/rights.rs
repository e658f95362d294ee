//! Finds configured arguments that would let Claude Code do what its policy restricts.

use crate::claude_code::control;
use crate::flags::Flag;
use muleteer_model::agent::permission::{PermissionMode, Policy};

/// Each replaces Muleteer's permissions, or extends the list of actions that need no asking.
const LOOSENING: [&str; 5] = [
    "--allowedtools",
    "--allowed-tools",
    "--permission-prompt-tool",
    "--setting-sources",
    "--settings",
];
/// Prefixes of flags that switch the rules off.
const UNASKED: [&str; 4] = ["--dangerously", "--allow-dangerously", "--full-auto", "--yolo"];
/// Found anywhere: in a mode, or in the definition of a subagent.
const BYPASS: &str = "bypasspermissions";

/// Returns the first word that would let the agent bypass the policy.
pub(super) fn loosened_by(policy: &Policy, words: &[String]) -> Option<String> {
    let loosens = |flag: &Flag<'_>| {
        let name = flag.name.to_ascii_lowercase();
        match name.as_str() {
            "--permission-mode" => !is_as_strict(policy, flag.value),
            // If the flag is given twice, the CLI uses both lists.
            "--tools" => control::tools(policy).is_some(),
            name => {
                LOOSENING.contains(&name)
                    || UNASKED.iter().any(|start| name.starts_with(start))
                    || flag.word.to_ascii_lowercase().contains(BYPASS)
            }
        }
    };
    Flag::all(words).find(loosens).map(|flag| flag.to_string())
}

fn is_as_strict(policy: &Policy, mode: Option<&str>) -> bool {
    mode == Some(control::mode(policy)) || mode == Some(PermissionMode::Plan.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags;
    use crate::launch::Command;
    use muleteer_model::agent::permission::Mode;

    fn asking() -> Policy {
        Policy { mode: Mode::Ask, ..Policy::default() }
    }

    fn found(policy: &Policy, args: &[&str]) -> Option<String> {
        let args: Vec<_> = args.iter().map(|arg| (*arg).to_string()).collect();
        loosened_by(policy, &flags::flag_words(None, &args))
    }

    #[test]
    fn loosening_arguments_are_found_in_every_form() {
        for (args, word) in [
            (&["--dangerously-skip-permissions"][..], "--dangerously-skip-permissions"),
            (&["--allow-dangerously-skip-permissions"], "--allow-dangerously-skip-permissions"),
            (&["--full-auto"], "--full-auto"),
            (&["--yolo"], "--yolo"),
            (
                &["--debug", "--permission-mode", "bypassPermissions"],
                "--permission-mode bypassPermissions",
            ),
            (&["--permission-mode=acceptEdits"], "--permission-mode=acceptEdits"),
            (&["--permission-mode='auto'"], "--permission-mode=auto"),
            (&["--permission-mode"], "--permission-mode"),
            (&["--allowedTools", "Bash(git *)"], "--allowedTools"),
            (&["--allowed-tools=Bash"], "--allowed-tools"),
            (&["--settings", "{}"], "--settings"),
            (&["--setting-sources", "user"], "--setting-sources"),
            (&["--permission-prompt-tool", "mcp__a__b"], "--permission-prompt-tool"),
            (
                &["--agents", r#"{"a": {"permissionMode": "bypassPermissions"}}"#],
                "bypassPermissions",
            ),
        ] {
            assert!(found(&asking(), args).is_some_and(|found| found.contains(word)), "{args:?}");
        }
    }

    #[test]
    fn harmless_arguments_are_not_found() {
        for args in [
            &["--debug", "--strict-mcp-config", "--mcp-config", "/a.json"][..],
            &["--permission-mode", "default"],
            &["--permission-mode=plan"],
            &["--disallowedTools=Edit,Write"],
            &["--tools", "Read"],
            &["--add-dir", "/settings"],
            &["--append-system-prompt", "Never use --yolo or bypassPermissions"],
        ] {
            assert_eq!(found(&asking(), args), None, "{args:?}");
        }
    }

    #[test]
    fn tools_loosen_only_where_a_role_names_its_own() {
        let mut policy = Policy::default();
        policy.restrict(Some(&["Read".into()]), &[], None);
        assert_eq!(found(&policy, &["--tools", "Bash"]), Some("--tools Bash".into()));
    }

    #[test]
    fn quoted_flags_of_a_command_are_found() {
        for text in [
            "claude --dangerously-skip-permissions",
            "claude '--danger'ously-skip-permissions",
            "x=1 claude \"--yolo\"",
        ] {
            let words = flags::flag_words(Some(&Command::Shell(text.into())), &[]);
            assert!(loosened_by(&asking(), &words).is_some(), "{text}");
        }
    }
}
