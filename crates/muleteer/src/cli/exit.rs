//! Every exit code of every verb, and which error has which (contract.md, "Exit codes").

use std::process::ExitCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Exit {
    Done = 0,
    /// Bad input or configuration.
    BadInput = 2,
    /// A precondition does not hold: no daemon, locked, already running.
    Precondition = 3,
    /// The operation failed. For `wait`: partial, failed, blocked.
    Failed = 4,
    /// A limit was reached (`run`, `tasks run`).
    Limit = 5,
    /// For `wait`: killed.
    Killed = 6,
    /// Ctrl-C in a verb whose exit code reports an awaited outcome. 130 is the shell's convention.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Every error code that this version may print, with its exit code and its meaning. An unlisted
/// code, from a newer daemon, exits as [`Exit::Failed`].
pub const CODES: &[(&str, Exit, &str)] = &[
    ("E_USAGE", Exit::BadInput, "the command line is invalid"),
    ("E_BAD_INPUT", Exit::BadInput, "an id, key or name in a request is not well-formed"),
    (
        "E_CONFIG_INVALID",
        Exit::BadInput,
        "a configuration file or role is invalid; file, line and column give the place",
    ),
    (
        "E_SCENARIO_INVALID",
        Exit::BadInput,
        "the scenario of a rehearsal is invalid; file, line and column give the place",
    ),
    ("E_PROMPT_MISSING", Exit::BadInput, "the prompt is missing or empty"),
    ("E_PROMPT_TOO_LONG", Exit::BadInput, "the prompt is larger than 8 MiB"),
    (
        "E_PROJECT_NOT_FOUND",
        Exit::BadInput,
        "the project is neither a directory nor a configured name",
    ),
    (
        "E_NOT_A_REPOSITORY",
        Exit::BadInput,
        "a worktree was requested for a project outside any git repository",
    ),
    ("E_ROLE_UNKNOWN", Exit::BadInput, "the role does not exist"),
    ("E_NOT_FOUND", Exit::BadInput, "the dispatch, file, key or request does not exist"),
    (
        "E_AMBIGUOUS",
        Exit::BadInput,
        "the id fits several dispatches or tasks, or several requests are open",
    ),
    (
        "E_BRANCH_IN_THE_WAY",
        Exit::BadInput,
        "the branch for the agent's work conflicts with the name of an existing branch",
    ),
    ("E_ID_TAKEN", Exit::BadInput, "another dispatch already has this id"),
    (
        "E_BACKEND_UNAVAILABLE",
        Exit::BadInput,
        "the agent's program is missing, or the backend does not exist",
    ),
    (
        "E_UNSUPPORTED",
        Exit::BadInput,
        "the backend does not support this, or an argument in its configuration would bypass the \
         policy",
    ),
    ("E_TOO_DEEP", Exit::BadInput, "the child dispatch would exceed pool.max_depth"),
    ("E_TASKS_MISSING", Exit::BadInput, "no task list in this directory or above"),
    (
        "E_TASKS_INVALID",
        Exit::BadInput,
        "the task list is invalid; file, line and field give the \
        place",
    ),
    (
        "E_TASKS_CORRUPT",
        Exit::BadInput,
        "the task list cannot be parsed, and no valid backup exists",
    ),
    ("E_NOTHING_ASKED", Exit::Precondition, "the dispatch has no open request"),
    ("E_SPEC_NOT_FOUND", Exit::BadInput, "the spec is missing or empty"),
    (
        "E_BEAD_SCOPE_AMBIGUOUS",
        Exit::BadInput,
        "beads are open, and no label selects those of the run",
    ),
    ("E_GRAPH_CYCLE", Exit::BadInput, "the dependencies of the beads form a cycle"),
    ("E_TASK_UNKNOWN", Exit::BadInput, "the task does not exist"),
    ("E_TASKS_LOCKED", Exit::Precondition, "another session has locked the task list"),
    (
        "E_TASKS_ENV",
        Exit::Precondition,
        "harness-init.sh failed, or the program of a validation is not installed",
    ),
    ("E_TASK_CLAIMED", Exit::Precondition, "the worker may not claim or change this task"),
    ("E_TASK_NONE", Exit::Precondition, "no task can be claimed now"),
    ("E_TASK_FAILED", Exit::Failed, "the validation of the task failed"),
    ("E_TASKS_GIT", Exit::Failed, "a git command for the task list failed"),
    ("E_NO_DAEMON", Exit::Precondition, "no daemon is running, and this verb starts none"),
    (
        "E_DAEMON_START",
        Exit::Precondition,
        "a daemon could not start or continue; the message has the reason",
    ),
    ("E_ALREADY_RUNNING", Exit::Precondition, "another daemon uses this state directory"),
    (
        "E_NOT_PRIVATE",
        Exit::Precondition,
        "the state or socket directory belongs to another user, or others can access it",
    ),
    ("E_FORBIDDEN", Exit::Precondition, "the caller is not allowed to do this"),
    ("E_PROTOCOL_VERSION", Exit::Precondition, "client and daemon have no common protocol version"),
    (
        "E_UNKNOWN_VERB",
        Exit::Precondition,
        "the daemon is older than the client and does not support the request",
    ),
    (
        "E_SERVICE_MANAGER",
        Exit::Precondition,
        "systemd or launchd is not running, or reported an \
        error",
    ),
    (
        "E_DISK_FULL",
        Exit::Precondition,
        "the disk of the state directory is full: the daemon \
        starts nothing new",
    ),
    (
        "E_DAEMON_ENDING",
        Exit::Precondition,
        "the daemon and its successors ended before they answered; try again",
    ),
    ("E_BUSY", Exit::Precondition, "the daemon did not finish in time; try again"),
    ("E_RUN_LOCKED", Exit::Precondition, "the run is already running"),
    (
        "E_ACCEPTANCE_MISSING",
        Exit::Precondition,
        "the acceptance criteria of the run are missing or were changed",
    ),
    (
        "E_CHECKPOINT_CORRUPT",
        Exit::Precondition,
        "the run's state on disk is damaged, or from a newer version",
    ),
    (
        "E_BEADS_UNAVAILABLE",
        Exit::BadInput,
        "`tbd`, which stores the beads, is not installed or not set up",
    ),
    ("E_BEADS_FAILED", Exit::Failed, "`tbd`, which stores the beads, failed or hung"),
    ("E_BEADS_CORRUPT", Exit::Precondition, "a line of the bead store is damaged"),
    ("E_EVENTS_CORRUPT", Exit::Precondition, "a line of events.jsonl is damaged"),
    ("E_EVENTS_GAP", Exit::Precondition, "a line of events.jsonl is missing"),
    ("E_EVENTS_SHORT", Exit::Precondition, "events.jsonl lacks events that were durable"),
    (
        "E_EVENTS_UNKNOWN",
        Exit::Precondition,
        "events.jsonl contains an event that this version does not know",
    ),
    ("E_EVENTS_VERSION", Exit::Precondition, "events.jsonl was written by a newer version"),
    ("E_EVENTS_FULL", Exit::Precondition, "the disk is full: cannot append an event"),
    ("E_DB_AHEAD", Exit::Precondition, "the database contains data beyond the events"),
    ("E_DB_GAP", Exit::Precondition, "the database lacks events"),
    ("E_DB_VERSION", Exit::Precondition, "the database was written by a newer version"),
    (
        "E_DB_CORRUPT",
        Exit::Precondition,
        "the database is damaged; delete it, and the daemon rebuilds it",
    ),
    ("E_DB_FULL", Exit::Precondition, "the disk is full: cannot write the database"),
    (
        "E_EVENTS_POISONED",
        Exit::Failed,
        "an fsync failed: the daemon exits, and the next one reads the file again",
    ),
    (
        "E_EVENT_REFUSED",
        Exit::Failed,
        "an event could not be read back after encoding, so it was not written: a bug",
    ),
    ("E_DB", Exit::Failed, "a database operation failed"),
    ("E_STORE_IO", Exit::Failed, "a file of the state directory cannot be read or written"),
    ("E_SPOOL_DAMAGED", Exit::Failed, "an agent's spool cannot be read"),
    ("E_CONNECTION_LOST", Exit::Failed, "the daemon ended several times before it answered"),
    ("E_PROTOCOL", Exit::Failed, "the peer does not use Muleteer's protocol"),
    (
        "E_CANCELLED",
        Exit::Failed,
        "the request was cancelled; exits 130 if by Ctrl-C (`wait --json`)",
    ),
    ("E_GRAPH_EMPTY", Exit::Failed, "the decomposition has no beads"),
    ("E_GRAPH_DANGLING", Exit::Failed, "a bead depends on one that does not exist"),
    ("E_DEADLOCK", Exit::Failed, "all remaining beads depend on blocked beads"),
    (
        "E_BEADS_BLOCKED",
        Exit::Failed,
        "the judge passed the run, but some of its beads are not \
                                       done",
    ),
    ("E_EXTERNAL_BLOCKED", Exit::Failed, "all remaining beads depend on beads outside the run"),
    ("E_AGENT_FAILED", Exit::Failed, "an agent that the run needs failed too often"),
    ("E_AGENT_TIMEOUT", Exit::Failed, "an agent that the run needs timed out too often"),
    ("E_JUDGE_PARSE_FAILED", Exit::Failed, "the judge's verdict could not be parsed, twice"),
    ("E_REMOTE_CHANGED", Exit::Failed, "an agent pushed to the base branch of the real remote"),
    ("E_JUDGE_WROTE", Exit::Failed, "the judge changed files that it judged, twice"),
    ("E_SPEC_HASH_MISMATCH", Exit::Failed, "the frozen spec was changed"),
    (
        "E_PR_CREATE_FAILED",
        Exit::Failed,
        "(runs of earlier versions) the pull request could not be created; the branch exists",
    ),
    ("E_MAX_RUNTIME", Exit::Failed, "the run reached its time limit"),
    ("E_BUDGET", Exit::Failed, "the run reached its budget"),
    ("E_RUN_STOPPED", Exit::Failed, "the run was stopped; `muleteer run --resume` continues it"),
    ("E_GIT", Exit::Failed, "a git command failed"),
    ("E_MAX_ITERATIONS", Exit::Limit, "the judge found faults in every allowed iteration"),
    ("E_DEMO", Exit::Failed, "the demo could not be set up or run"),
    ("E_IO", Exit::Failed, "a file or stream could not be read or written"),
    ("E_INTERNAL", Exit::Failed, "a bug"),
];

/// Returns the exit code for an error code.
pub fn of_code(code: &str) -> Exit {
    CODES.iter().find(|(name, ..)| *name == code).map_or(Exit::Failed, |(_, exit, _)| *exit)
}

/// Returns the exit code for a dispatch that ended in `state`. For several dispatches the highest
/// code counts.
pub fn of_state(state: &str) -> Exit {
    match state {
        "success" => Exit::Done,
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
        (BadInput, "bad input or configuration"),
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
    fn error_codes_are_listed_once_and_an_unknown_one_is_a_failure() {
        let mut names: Vec<_> = CODES.iter().map(|(name, ..)| *name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CODES.len());
        assert_eq!(of_code("E_NEWER"), Exit::Failed);
        assert_eq!(of_code("E_NO_DAEMON") as u8, 3);
    }
}
