//! The error codes of the contract, each with its exit code and its meaning, from one table.
//!
//! The wire and the files keep a code as text, because a newer program may write a code that this
//! version does not know. Code of this version names a code only by [`ErrorCode`].

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::process::ExitCode;
use std::str::FromStr;

/// The exit codes of all verbs (docs/contract.md, "Exit codes").
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

/// Declares [`ErrorCode`] from rows of variant, text, exit code and meaning.
macro_rules! error_codes {
    ($($variant:ident = $text:literal, $exit:ident, $doc:literal;)*) => {
        /// An error code of the contract. Scripts test for its text.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ErrorCode {
            $(#[doc = $doc] $variant,)*
        }

        impl ErrorCode {
            /// Every code, in the order of docs/contract.md.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the text that is printed, sent and stored.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// Returns the exit code of a verb that fails with this error.
            pub const fn exit_code(self) -> Exit {
                match self { $(Self::$variant => Exit::$exit,)* }
            }

            /// Returns the meaning, as docs/contract.md states it.
            pub const fn doc(self) -> &'static str {
                match self { $(Self::$variant => $doc,)* }
            }
        }

        impl FromStr for ErrorCode {
            type Err = UnknownCode;

            fn from_str(text: &str) -> Result<Self, UnknownCode> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err(UnknownCode(text.into())),
                }
            }
        }
    };
}

error_codes! {
    Usage = "E_USAGE", BadInput, "the command line is invalid";
    BadInput = "E_BAD_INPUT", BadInput,
        "an id, key or name in a request is not well-formed";
    ConfigInvalid = "E_CONFIG_INVALID", BadInput,
        "a configuration file or role is invalid; file, line and column give the place";
    ScenarioInvalid = "E_SCENARIO_INVALID", BadInput,
        "the scenario of a rehearsal is invalid; file, line and column give the place";
    PromptMissing = "E_PROMPT_MISSING", BadInput, "the prompt is missing or empty";
    PromptTooLong = "E_PROMPT_TOO_LONG", BadInput,
        "the prompt is larger than 8 MiB, or the message larger than 512 KiB";
    ProjectNotFound = "E_PROJECT_NOT_FOUND", BadInput,
        "the project is neither a directory nor a configured name";
    NotARepository = "E_NOT_A_REPOSITORY", BadInput,
        "a worktree was requested for a project outside any git repository";
    RoleUnknown = "E_ROLE_UNKNOWN", BadInput, "the role does not exist";
    NotFound = "E_NOT_FOUND", BadInput,
        "the dispatch, thread, file, key or request does not exist";
    Ambiguous = "E_AMBIGUOUS", BadInput,
        "the id fits several dispatches, threads or tasks, or several requests are open";
    BranchInTheWay = "E_BRANCH_IN_THE_WAY", BadInput,
        "the branch for the agent's work conflicts with the name of an existing branch";
    IdTaken = "E_ID_TAKEN", BadInput, "another dispatch or thread already has this id";
    BackendUnavailable = "E_BACKEND_UNAVAILABLE", BadInput,
        "the agent's program is missing, or the backend does not exist";
    Unsupported = "E_UNSUPPORTED", BadInput,
        "the backend does not support this, or an argument in its configuration would bypass the \
         policy";
    TooDeep = "E_TOO_DEEP", BadInput, "the child dispatch would exceed pool.max_depth";
    TasksMissing = "E_TASKS_MISSING", BadInput, "no task list in this directory or above";
    TasksInvalid = "E_TASKS_INVALID", BadInput,
        "the task list is invalid; file, line and field give the place";
    TasksCorrupt = "E_TASKS_CORRUPT", BadInput,
        "the task list cannot be parsed, and no valid backup exists";
    NothingAsked = "E_NOTHING_ASKED", Precondition,
        "the dispatch has no open request, or nobody waits for the answer any more";
    AlreadyAnswered = "E_ALREADY_ANSWERED", Precondition,
        "somebody else answered the question first; the message says who and when";
    SpecNotFound = "E_SPEC_NOT_FOUND", BadInput, "the spec is missing or empty";
    BeadScopeAmbiguous = "E_BEAD_SCOPE_AMBIGUOUS", BadInput,
        "beads are open, and no label selects those of the run";
    GraphCycle = "E_GRAPH_CYCLE", BadInput, "the dependencies of the beads form a cycle";
    TaskUnknown = "E_TASK_UNKNOWN", BadInput, "the task does not exist";
    TasksLocked = "E_TASKS_LOCKED", Precondition, "another session has locked the task list";
    TasksEnv = "E_TASKS_ENV", Precondition,
        "harness-init.sh failed, or the program of a validation is not installed";
    TaskClaimed = "E_TASK_CLAIMED", Precondition,
        "the worker may not claim or change this task";
    TaskNone = "E_TASK_NONE", Precondition, "no task can be claimed now";
    TaskFailed = "E_TASK_FAILED", Failed, "the validation of the task failed";
    TasksGit = "E_TASKS_GIT", Failed, "a git command for the task list failed";
    NoDaemon = "E_NO_DAEMON", Precondition,
        "no daemon is running, and this command may not start one";
    DaemonStart = "E_DAEMON_START", Precondition,
        "a daemon could not start or continue; the message has the reason";
    AlreadyRunning = "E_ALREADY_RUNNING", Precondition, "another daemon uses this state directory";
    NotPrivate = "E_NOT_PRIVATE", Precondition,
        "the state or socket directory belongs to another user, or others can access it";
    Forbidden = "E_FORBIDDEN", Precondition, "the caller is not allowed to do this";
    ProtocolVersion = "E_PROTOCOL_VERSION", Precondition,
        "client and daemon have no common protocol version";
    UnknownVerb = "E_UNKNOWN_VERB", Precondition,
        "the daemon is older than the client and does not support the request";
    ServiceManager = "E_SERVICE_MANAGER", Precondition,
        "systemd or launchd is not running, or reported an error";
    DiskFull = "E_DISK_FULL", Precondition,
        "the disk of the state directory is full: the daemon starts nothing new";
    DaemonEnding = "E_DAEMON_ENDING", Precondition,
        "the daemon and its successors ended before they answered; try again";
    Busy = "E_BUSY", Precondition, "the daemon did not finish in time; try again";
    Rejected = "E_REJECTED", Failed, "a person rejected the plan or the result of the run";
    RunLocked = "E_RUN_LOCKED", Precondition, "the run is already running";
    AcceptanceMissing = "E_ACCEPTANCE_MISSING", Precondition,
        "the acceptance criteria of the run are missing or were changed";
    CheckpointCorrupt = "E_CHECKPOINT_CORRUPT", Precondition,
        "the run's state on disk is damaged, or from a newer version";
    BeadsUnavailable = "E_BEADS_UNAVAILABLE", BadInput,
        "`tbd`, which stores the beads, is not installed or not set up";
    BeadsFailed = "E_BEADS_FAILED", Failed, "`tbd`, which stores the beads, failed or hung";
    BeadsCorrupt = "E_BEADS_CORRUPT", Precondition, "a line of the bead store is damaged";
    EventsCorrupt = "E_EVENTS_CORRUPT", Precondition, "a line of events.jsonl is damaged";
    EventsGap = "E_EVENTS_GAP", Precondition,
        "a line of events.jsonl, or a segment in events/, is missing";
    EventsShort = "E_EVENTS_SHORT", Precondition,
        "events.jsonl lacks events that were durable";
    EventsUnknown = "E_EVENTS_UNKNOWN", Precondition,
        "events.jsonl contains an event that this version does not know and may not skip";
    EventsVersion = "E_EVENTS_VERSION", Precondition, "events.jsonl was written by a newer version";
    EventsFull = "E_EVENTS_FULL", Precondition, "the disk is full: cannot append an event";
    DbAhead = "E_DB_AHEAD", Precondition, "the database contains data beyond the events";
    DbGap = "E_DB_GAP", Precondition, "the database lacks events";
    DbVersion = "E_DB_VERSION", Precondition, "the database was written by a newer version";
    DbCorrupt = "E_DB_CORRUPT", Precondition,
        "the database is damaged; delete it, and the daemon rebuilds it";
    DbFull = "E_DB_FULL", Precondition, "the disk is full: cannot write the database";
    EventsPoisoned = "E_EVENTS_POISONED", Failed,
        "an fsync failed: the daemon exits, and the next one reads the file again";
    EventRefused = "E_EVENT_REFUSED", Failed,
        "an event could not be read back after encoding, so it was not written: a bug";
    Db = "E_DB", Failed, "a database operation failed";
    StoreIo = "E_STORE_IO", Failed, "a file of the state directory cannot be read or written";
    SpoolDamaged = "E_SPOOL_DAMAGED", Failed, "an agent's spool cannot be read";
    ConnectionLost = "E_CONNECTION_LOST", Failed,
        "the daemon ended several times before it answered";
    Protocol = "E_PROTOCOL", Failed, "the peer does not use Muleteer's protocol";
    Cancelled = "E_CANCELLED", Failed,
        "the request was cancelled; after Ctrl-C (`wait --json`) the exit code is 130";
    GraphEmpty = "E_GRAPH_EMPTY", Failed, "the decomposition has no beads";
    GraphDangling = "E_GRAPH_DANGLING", Failed, "a bead depends on one that does not exist";
    Deadlock = "E_DEADLOCK", Failed, "all remaining beads depend on blocked beads";
    BeadsBlocked = "E_BEADS_BLOCKED", Failed,
        "the judge passed the run, but some of its beads are not done";
    ExternalBlocked = "E_EXTERNAL_BLOCKED", Failed,
        "all remaining beads depend on beads outside the run";
    AgentFailed = "E_AGENT_FAILED", Failed,
        "an agent that the run needs failed too often";
    AgentTimeout = "E_AGENT_TIMEOUT", Failed,
        "an agent that the run needs timed out too often";
    JudgeParseFailed = "E_JUDGE_PARSE_FAILED", Failed,
        "the judge's verdict could not be parsed, twice";
    RemoteChanged = "E_REMOTE_CHANGED", Failed,
        "an agent pushed to the base branch of the real remote";
    JudgeWrote = "E_JUDGE_WROTE", Failed, "the judge changed files that it judged, twice";
    SpecHashMismatch = "E_SPEC_HASH_MISMATCH", Failed, "the frozen spec was changed";
    PrCreateFailed = "E_PR_CREATE_FAILED", Failed,
        "(runs of earlier versions) the pull request could not be created; the branch exists";
    MaxRuntime = "E_MAX_RUNTIME", Failed, "the run reached its time limit";
    Budget = "E_BUDGET", Failed, "the run reached its budget";
    RunStopped = "E_RUN_STOPPED", Failed,
        "the run was stopped; `muleteer run --resume` continues it";
    Git = "E_GIT", Failed, "a git command failed";
    MaxIterations = "E_MAX_ITERATIONS", Limit,
        "the judge found faults in every allowed iteration";
    Demo = "E_DEMO", Failed, "the demo could not be set up or run";
    Io = "E_IO", Failed, "a file or stream could not be read or written";
    Internal = "E_INTERNAL", Failed, "a bug";
}

/// A text that is no error code of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the error code `{0}` is not known here")]
pub struct UnknownCode(String);

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl From<ErrorCode> for String {
    fn from(code: ErrorCode) -> Self {
        code.as_str().into()
    }
}

impl PartialEq<str> for ErrorCode {
    fn eq(&self, text: &str) -> bool {
        self.as_str() == text
    }
}

impl PartialEq<&str> for ErrorCode {
    fn eq(&self, text: &&str) -> bool {
        self.as_str() == *text
    }
}

impl PartialEq<ErrorCode> for str {
    fn eq(&self, code: &ErrorCode) -> bool {
        self == code.as_str()
    }
}

impl PartialEq<ErrorCode> for &str {
    fn eq(&self, code: &ErrorCode) -> bool {
        *self == code.as_str()
    }
}

impl PartialEq<ErrorCode> for String {
    fn eq(&self, code: &ErrorCode) -> bool {
        self == code.as_str()
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Cow::<str>::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn texts_are_unique_and_parse_to_their_code() {
        let texts: BTreeSet<_> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(texts.len(), ErrorCode::ALL.len());
        for code in ErrorCode::ALL {
            assert_eq!(code.as_str().parse(), Ok(*code));
            assert!(code.as_str() == *code && *code == code.as_str());
        }
        assert_eq!("E_NEWER".parse::<ErrorCode>(), Err(UnknownCode("E_NEWER".into())));
    }

    /// The variant is the text in camel case, so that either is found from the other.
    #[test]
    fn variants_are_named_for_their_texts() {
        for code in ErrorCode::ALL {
            let words = code.as_str().trim_start_matches("E_").split('_');
            let name: String =
                words.map(|word| word[..1].to_string() + &word[1..].to_lowercase()).collect();
            assert_eq!(format!("{code:?}"), name);
        }
    }

    #[test]
    fn serde_form_is_the_text() {
        for code in ErrorCode::ALL {
            let text = serde_json::to_string(code).expect("a string");
            assert_eq!(text, format!("{:?}", code.as_str()));
            assert_eq!(serde_json::from_str::<ErrorCode>(&text).expect("known"), *code);
        }
        assert!(serde_json::from_str::<ErrorCode>("\"E_NEWER\"").is_err());
    }

    /// A reader of the page and a script must find the same codes and meanings.
    #[test]
    fn contract_page_lists_every_code_in_order() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/contract.md");
        let page = std::fs::read_to_string(page).expect("docs/contract.md");
        let (_, section) = page.split_once("### Error codes\n").expect("the section");
        let rows: Vec<_> =
            section.lines().filter(|line| line.starts_with("| `E_")).map(str::to_string).collect();
        let table: Vec<_> = ErrorCode::ALL
            .iter()
            .map(|code| format!("| `{code}` | {} | {} |", code.exit_code() as u8, code.doc()))
            .collect();
        assert_eq!(rows, table);
    }
}
