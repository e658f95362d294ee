//! Finds configured arguments that set the permissions of Codex.

use crate::flags::{Flag, flag_words};

/// Configuration keys that name a sandbox or an approver.
const KEYS: [&str; 3] = ["sandbox_mode", "approval_policy", "approvals_reviewer"];
/// Permission profiles of the configuration.
const PROFILES: [&str; 2] = ["default_permissions", "permissions"];

/// Returns the argument by which the configuration itself sets the agent's permissions. Muleteer
/// then sets none.
pub(super) fn rights(args: &[String]) -> Option<String> {
    Flag::all(&flag_words(None, args))
        .find(|flag| is_about_rights(flag))
        .map(|flag| flag.to_string())
}

/// Returns the first word that would let the agent write although its role forbids it.
pub(super) fn loosened_by(words: &[String]) -> Option<String> {
    let loosens = |flag: &Flag<'_>| {
        is_about_rights(flag) || flag.name.starts_with("--dangerously") || names(flag, &PROFILES)
    };
    Flag::all(words).find(loosens).map(|flag| flag.to_string())
}

fn is_about_rights(flag: &Flag<'_>) -> bool {
    let joined = |short: &str| flag.word.starts_with(short) && !flag.word.starts_with("--");
    let long = matches!(
        flag.name,
        "--sandbox" | "--ask-for-approval" | "--approve-for-me" | "--full-auto" | "--yolo"
    );
    long || flag.name.starts_with("--dangerously-bypass-approvals")
        || joined("-s")
        || joined("-a")
        || names(flag, &KEYS)
}

/// Matches `key=value`, `-ckey=value` and `--config=key=value`, also with a subkey or with blanks.
fn names(flag: &Flag<'_>, keys: &[&str]) -> bool {
    let word = ["--config=", "-c"]
        .iter()
        .find_map(|start| flag.word.strip_prefix(start))
        .unwrap_or(flag.word);
    let key = word.trim_start_matches('=').split(['=', '.']).next().unwrap_or_default();
    keys.contains(&key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(args: &[&str]) -> Vec<String> {
        args.iter().map(|arg| (*arg).to_string()).collect()
    }

    #[test]
    fn arguments_about_rights_are_found_in_every_form() {
        for args in [
            &["-s", "danger-full-access"][..],
            &["-sdanger-full-access"],
            &["--sandbox", "workspace-write"],
            &["--sandbox=workspace-write"],
            &["--full-auto"],
            &["--yolo"],
            &["--dangerously-bypass-approvals-and-sandbox"],
            &["--approve-for-me"],
            &["-a", "never"],
            &["-c", "approval_policy=never"],
            &["-c", "approval_policy = \"never\""],
            &["-c", "\"sandbox_mode\"='danger-full-access'"],
            &["-csandbox_mode=danger-full-access"],
            &["-c=sandbox_mode=danger-full-access"],
            &["--config=approval_policy=never"],
        ] {
            assert!(rights(&strings(args)).is_some(), "{args:?}");
            assert!(loosened_by(&flag_words(None, &strings(args))).is_some(), "{args:?}");
        }
        assert!(
            loosened_by(&flag_words(None, &strings(&["-c", "default_permissions=full"]))).is_some()
        );
    }

    #[test]
    fn other_arguments_are_not_found() {
        for args in [
            &["--model", "gpt-5.5"][..],
            &["-c", "model_reasoning_effort=high"],
            &["--skip-git-repo-check", "--search"],
            &["-c", "sandbox_workspace_write.network_access=true"],
        ] {
            assert_eq!(rights(&strings(args)), None, "{args:?}");
            assert_eq!(loosened_by(&flag_words(None, &strings(args))), None, "{args:?}");
        }
    }
}
