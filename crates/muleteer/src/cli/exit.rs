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
    ("E_USAGE", Exit::BadInput, "the command line is wrong"),
    (
        "E_BAD_INPUT",
        Exit::BadInput,
        "an id, key or name in a request has a form that is not accepted",
    ),
    (
        "E_CONFIG_INVALID",
        Exit::BadInput,
        "a configuration file or role is wrong; file, line and column say where",
    ),
    (
        "E_SCENARIO_INVALID",
        Exit::BadInput,
        "a rehearsal's scenario is wrong; file, line and column say where",
    ),
    ("E_PROMPT_MISSING", Exit::BadInput, "there is no prompt, or it is empty"),
    ("E_PROMPT_TOO_LONG", Exit::BadInput, "a prompt is over 8 MiB"),
    (
        "E_PROJECT_NOT_FOUND",
        Exit::BadInput,
        "the project is neither a directory nor a configured name",
    ),
    (
        "E_NOT_A_REPOSITORY",
        Exit::BadInput,
        "a worktree is wanted of a project that is in no git repository",
    ),
    ("E_ROLE_UNKNOWN", Exit::BadInput, "no role has this name"),
    (
        "E_NOT_FOUND",
        Exit::BadInput,
        "no dispatch has this id, or a named file, key or request is not there",
    ),
    (
        "E_AMBIGUOUS",
        Exit::BadInput,
        "more than one dispatch or task begins with this id, or more than one request is open",
    ),
    (
        "E_BRANCH_IN_THE_WAY",
        Exit::BadInput,
        "a branch of the repository leaves git no room for the one the work comes home as",
    ),
    ("E_ID_TAKEN", Exit::BadInput, "a dispatch with this id and other content exists"),
    (
        "E_BACKEND_UNAVAILABLE",
        Exit::BadInput,
        "the agent's program is not there, or no backend has this name",
    ),
    (
        "E_UNSUPPORTED",
        Exit::BadInput,
        "the dispatch's backend cannot do this, or an argument in its configuration would void its \
         policy",
    ),
    ("E_TOO_DEEP", Exit::BadInput, "an agent's dispatch would nest deeper than pool.max_depth"),
    ("E_TASKS_MISSING", Exit::BadInput, "there is no task list here or above"),
    ("E_TASKS_INVALID", Exit::BadInput, "a task list is wrong; file, line and field say where"),
    (
        "E_TASKS_CORRUPT",
        Exit::BadInput,
        "a task list cannot be parsed, and there is no valid backup",
    ),
    ("E_NOTHING_ASKED", Exit::Precondition, "the dispatch waits for no answer, or has had it"),
    ("E_SPEC_NOT_FOUND", Exit::BadInput, "there is no spec, or it is empty"),
    (
        "E_BEAD_SCOPE_AMBIGUOUS",
        Exit::BadInput,
        "beads are open already, and nothing says which of them the run is about",
    ),
    ("E_GRAPH_CYCLE", Exit::BadInput, "beads wait for each other in a circle"),
    ("E_TASK_UNKNOWN", Exit::BadInput, "the list has no task with this id"),
    ("E_TASKS_LOCKED", Exit::Precondition, "another session works on the task list"),
    (
        "E_TASKS_ENV",
        Exit::Precondition,
        "harness-init.sh fails, or the program of a validation is not installed",
    ),
    ("E_TASK_CLAIMED", Exit::Precondition, "the task is not the worker's to take or to change"),
    ("E_TASK_NONE", Exit::Precondition, "no task of the list can be taken now"),
    ("E_TASK_FAILED", Exit::Failed, "the task's validation failed"),
    ("E_TASKS_GIT", Exit::Failed, "git refused something the task list needs"),
    ("E_NO_DAEMON", Exit::Precondition, "no daemon answers, and none may be started"),
    (
        "E_DAEMON_START",
        Exit::Precondition,
        "a daemon could not start or go on; the message says why",
    ),
    ("E_ALREADY_RUNNING", Exit::Precondition, "another daemon has this state directory"),
    (
        "E_NOT_PRIVATE",
        Exit::Precondition,
        "the state directory or that of the sockets is somebody else's, or others may enter it",
    ),
    ("E_FORBIDDEN", Exit::Precondition, "this peer may not do that"),
    (
        "E_PROTOCOL_VERSION",
        Exit::Precondition,
        "client and daemon share no version of the protocol",
    ),
    (
        "E_UNKNOWN_VERB",
        Exit::Precondition,
        "the daemon is older than the client and does not know the request",
    ),
    ("E_SERVICE_MANAGER", Exit::Precondition, "systemd or launchd does not run here, or refused"),
    ("E_DISK_FULL", Exit::Precondition, "the state directory's disk is full: nothing new is begun"),
    (
        "E_DAEMON_ENDING",
        Exit::Precondition,
        "the daemon ended before it could answer, and so did those after it; ask again",
    ),
    ("E_BUSY", Exit::Precondition, "the daemon could not do it in time; try again"),
    ("E_RUN_LOCKED", Exit::Precondition, "the run is under way already"),
    (
        "E_ACCEPTANCE_MISSING",
        Exit::Precondition,
        "the run's acceptance criteria are gone, or are not what they were",
    ),
    (
        "E_CHECKPOINT_CORRUPT",
        Exit::Precondition,
        "the run's state on disk is damaged, or of a newer version",
    ),
    (
        "E_BEADS_UNAVAILABLE",
        Exit::BadInput,
        "beads are kept by `tbd`, which is not there or not set up",
    ),
    ("E_BEADS_FAILED", Exit::Failed, "`tbd`, which keeps the beads, failed or hung"),
    ("E_BEADS_CORRUPT", Exit::Precondition, "a line of the bead store is damaged"),
    ("E_EVENTS_CORRUPT", Exit::Precondition, "a line of events.jsonl is damaged"),
    ("E_EVENTS_GAP", Exit::Precondition, "a line of events.jsonl is missing"),
    ("E_EVENTS_SHORT", Exit::Precondition, "events.jsonl ends before what was known to be durable"),
    (
        "E_EVENTS_UNKNOWN",
        Exit::Precondition,
        "events.jsonl holds an event that this version must know and does not",
    ),
    ("E_EVENTS_VERSION", Exit::Precondition, "events.jsonl was written by a newer version"),
    ("E_EVENTS_FULL", Exit::Precondition, "there is no room to append an event"),
    ("E_DB_AHEAD", Exit::Precondition, "the database holds more than the events say"),
    ("E_DB_GAP", Exit::Precondition, "the database misses events"),
    ("E_DB_VERSION", Exit::Precondition, "the database was written by a newer version"),
    (
        "E_DB_CORRUPT",
        Exit::Precondition,
        "the database is damaged; it can be deleted, and is made again",
    ),
    ("E_DB_FULL", Exit::Precondition, "there is no room for the database"),
    (
        "E_EVENTS_POISONED",
        Exit::Failed,
        "an fsync failed: the daemon ends, and the next one reads the file again",
    ),
    (
        "E_EVENT_REFUSED",
        Exit::Failed,
        "an event could not be written as it could not be read back: a bug",
    ),
    ("E_DB", Exit::Failed, "the database refused"),
    ("E_STORE_IO", Exit::Failed, "a file of the state directory cannot be read or written"),
    ("E_SPOOL_DAMAGED", Exit::Failed, "an agent's spool cannot be read on"),
    (
        "E_CONNECTION_LOST",
        Exit::Failed,
        "the daemon went away, again and again, before it answered",
    ),
    ("E_PROTOCOL", Exit::Failed, "the peer does not speak our protocol"),
    (
        "E_CANCELLED",
        Exit::Failed,
        "the request was cancelled; by Ctrl-C (`wait --json`), it exits with 130",
    ),
    ("E_GRAPH_EMPTY", Exit::Failed, "a decomposition has no beads"),
    ("E_GRAPH_DANGLING", Exit::Failed, "a bead waits for one that does not exist"),
    ("E_DEADLOCK", Exit::Failed, "every bead left waits for one that is blocked"),
    ("E_BEADS_BLOCKED", Exit::Failed, "the judge passed the run, and beads of it are not done"),
    ("E_EXTERNAL_BLOCKED", Exit::Failed, "every bead left waits for one outside the run"),
    ("E_AGENT_FAILED", Exit::Failed, "an agent the run cannot do without has failed too often"),
    ("E_AGENT_TIMEOUT", Exit::Failed, "an agent the run cannot do without took too long too often"),
    ("E_JUDGE_PARSE_FAILED", Exit::Failed, "the judge's verdict could not be read, twice"),
    ("E_REMOTE_CHANGED", Exit::Failed, "an agent pushed to the base branch of the real remote"),
    ("E_JUDGE_WROTE", Exit::Failed, "the judge changed what it was to judge, twice"),
    ("E_SPEC_HASH_MISMATCH", Exit::Failed, "the frozen spec is not what was frozen"),
    (
        "E_PR_CREATE_FAILED",
        Exit::Failed,
        "a run of an earlier version: the pull request could not be made; the branch is there",
    ),
    ("E_MAX_RUNTIME", Exit::Failed, "the run took longer than it may"),
    ("E_BUDGET", Exit::Failed, "the run has spent its budget"),
    ("E_RUN_STOPPED", Exit::Failed, "the run was stopped; `muleteer run --resume` goes on with it"),
    ("E_GIT", Exit::Failed, "git failed"),
    ("E_MAX_ITERATIONS", Exit::Limit, "the judge found something in every iteration there may be"),
    ("E_DEMO", Exit::Failed, "the demo could not be set up or carried out"),
    ("E_IO", Exit::Failed, "a file or stream failed"),
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
            (Interrupted, "Ctrl-C, where an end was waited for"),
        ],
        "wait" => &[
            (Done, "every one succeeded"),
            (Failed, "one was partial, failed, blocked or stalled"),
            (Killed, "one was killed"),
            (Interrupted, "Ctrl-C; what was waited for goes on"),
        ],
        "spawn" => &[
            (Done, "it was made; with --wait or --follow, it succeeded"),
            (Failed, "with --wait or --follow, it was partial, failed, blocked or stalled"),
            (Killed, "with --wait or --follow, it was killed"),
            (Interrupted, "with --wait, Ctrl-C; the dispatch goes on"),
        ],
        "run" => &[
            (
                Done,
                "the judge passed it, it waits for approval, or it was only to be shown or left to \
                 the daemon",
            ),
            (Limit, "the judge found something in every iteration there may be"),
            (Interrupted, "with --status --follow, Ctrl-C; the run is left alone"),
        ],
        "tasks run" => &[
            (Done, "all is done"),
            (Failed, "some failed for good"),
            (Limit, "a limit was reached, or the run was stopped"),
            (Interrupted, "Ctrl-C; the run goes on"),
        ],
        "doctor" => &[(Done, "nothing fails"), (Failed, "something fails")],
        // Claude Code treats this exit code as a rejection of the event.
        "hook teammate-idle" => &[(BadInput, "there is something to do, and stderr says what")],
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
    fn wait_exits_as_the_contract_says() {
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
