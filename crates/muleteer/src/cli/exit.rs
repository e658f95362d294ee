//! Every exit code of every verb (docs/contract.md, "Exit codes").

use muleteer_protocol::ErrorCode;
pub use muleteer_protocol::Exit;

/// Returns the exit code for an error code. A code that only a newer daemon knows exits as
/// [`Exit::Failed`].
pub fn of_code(code: &str) -> Exit {
    code.parse().map_or(Exit::Failed, ErrorCode::exit_code)
}

/// Returns the exit code for a dispatch that ended in `state`. For several dispatches the highest
/// code counts.
pub fn of_state(state: &str) -> Exit {
    match state {
        // A conversation that owes nothing.
        "success" | "idle" => Exit::Done,
        "killed" => Exit::Killed,
        _ => Exit::Failed,
    }
}

/// Describes the exit codes of a verb for its manual page. Verbs with descriptions of their own are
/// `wait` or `tasks run`, for example; the empty name means the program.
pub fn of_verb(verb: &str) -> Vec<(Exit, &'static str)> {
    use Exit::{BadInput, Done, Failed, Interrupted, Killed, Limit, Precondition};
    let own: &[(Exit, &str)] = match verb {
        "" => &[
            (Limit, "a limit was reached (run, tasks run)"),
            (Killed, "the dispatch was killed (wait, spawn --wait)"),
            (Interrupted, "Ctrl-C while waiting"),
        ],
        "wait" => &[
            (Done, "all succeeded"),
            (Failed, "one was partial, failed, blocked or stalled"),
            (Killed, "one was killed"),
            (Interrupted, "Ctrl-C; the dispatches continue"),
        ],
        "spawn" => &[
            (Done, "it was created; with --wait or --follow, it succeeded"),
            (Failed, "with --wait or --follow, it was partial, failed, blocked or stalled"),
            (Killed, "with --wait or --follow, it was killed"),
            (Interrupted, "with --wait, Ctrl-C; the dispatch continues"),
        ],
        "send" => &[
            (Done, "it was sent; with --wait or --follow, the dispatch succeeded"),
            (Failed, "with --wait or --follow, it was partial, failed, blocked or stalled"),
            (Killed, "with --wait or --follow, it was killed"),
            (Interrupted, "with --wait, Ctrl-C; the dispatch continues"),
        ],
        "thread send" => &[
            (Done, "it was accepted; with --wait, it was answered"),
            (Failed, "with --wait, it was refused, or nobody can tell whether the agent got it"),
            (Interrupted, "with --wait, Ctrl-C; the agent continues"),
        ],
        "chat" => &[
            (Done, "each message was answered"),
            (Failed, "a message got no answer"),
            (Interrupted, "stdin is a pipe: Ctrl-C; the agent continues"),
        ],
        "run" => &[
            (
                Done,
                "the judge passed it, it waits for approval, or the verb only showed or detached \
                 it",
            ),
            (Limit, "the judge found faults in every allowed iteration"),
            (Interrupted, "with --status --follow, Ctrl-C; the run continues"),
        ],
        "tasks run" => &[
            (Done, "all tasks are done"),
            (Failed, "some tasks failed for good"),
            (Limit, "a limit was reached, or the run was stopped"),
            (Interrupted, "Ctrl-C; the run continues"),
        ],
        "doctor" => &[(Done, "no check fails"), (Failed, "a check fails")],
        // Claude Code treats this exit code as a rejection of the event.
        "hook teammate-idle" => &[(BadInput, "a task is available; stderr names it")],
        _ => &[],
    };
    let all = [
        (Done, "done"),
        (BadInput, "invalid input or configuration"),
        (Precondition, "a precondition does not hold: no daemon, locked, already running"),
        (Failed, "it failed"),
    ];
    let others = all.into_iter().filter(|(exit, _)| !own.iter().any(|(known, _)| known == exit));
    let mut codes: Vec<_> = own.iter().copied().chain(others).collect();
    codes.sort_unstable_by_key(|(exit, _)| *exit);
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_exit_codes_match_the_contract() {
        let table = [
            ("success", 0),
            ("idle", 0),
            ("partial", 4),
            ("failed", 4),
            ("blocked", 4),
            ("stalled", 4),
            ("killed", 6),
        ];
        for (state, code) in table {
            assert_eq!(of_state(state) as u8, code, "{state}");
        }
        let worst = ["success", "killed", "failed"].into_iter().map(of_state).max();
        assert_eq!(worst, Some(Exit::Killed));
    }

    #[test]
    fn unknown_error_code_exits_as_failed() {
        assert_eq!(of_code("E_NEWER"), Exit::Failed);
        assert_eq!(of_code("E_NO_DAEMON") as u8, 3);
    }
}
