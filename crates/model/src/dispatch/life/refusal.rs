//! Errors at the start of an agent CLI that no further attempt changes.

use crate::dispatch::{Dispatch, Exit};

/// The error that Claude Code prints before it exits, as root and with all permissions:
/// `--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons`.
const AS_ROOT: &str = "cannot be used with root/sudo privileges";

const AS_ROOT_REASON: &str = "Claude Code refuses to run as root without asking for permission: \
    run Muleteer as an ordinary user; or, in a container or on a disposable machine, set `--env \
    IS_SANDBOX=1` (or `backends: {claude_code: {env: {IS_SANDBOX: \"1\"}}}`); or let the agent \
    ask, with `permissions: {mode: ask}`";

/// Returns why the same command line would be rejected again, and what to do about it.
pub(super) fn of(d: &Dispatch, exit: &Exit) -> Option<&'static str> {
    let failed = exit.code.is_some_and(|code| code != 0);
    let is_claude = d.created.backend == "claude-code";
    let says = exit
        .stderr_tail
        .lines()
        .any(|line| line.contains("--dangerously") && line.contains(AS_ROOT));
    (failed && is_claude && says).then_some(AS_ROOT_REASON)
}
