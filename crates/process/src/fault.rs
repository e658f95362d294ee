//! Fault points: named points at which a test may end the process. They are compiled in only with
//! `fault-points`.
//!
//! `MULETEER_FAULT=<name>[:<nth>][=kill|panic|stop|abort][*<times>]`: at the nth (default first)
//! time that the process passes the point, and at the next times up to `times`, it gets SIGKILL,
//! panics, gets SIGSTOP, or aborts. The lists below contain every name, so that `cargo xtask crash`
//! can try each. With `MULETEER_FAULT_ONCE=<file>` only the first process that creates the file is
//! hit, so that the successor of a killed shim is not killed as well.

use std::time::Duration;

/// A process with this variable uses its value as the id of the machine's boot. A daemon with
/// another value behaves as after a reboot.
#[cfg(feature = "fault-points")]
pub const BOOT_VAR: &str = "MULETEER_FAULT_BOOT";

/// The length at which a test closes the file of the events, in bytes. A program without fault
/// points ignores it.
pub const SEGMENT_VAR: &str = "MULETEER_FAULT_SEGMENT";

/// Returns the length at which the file of the events is closed: `usual`, unless a test has set
/// another one.
pub fn segment_bytes(usual: u64) -> u64 {
    #[cfg(feature = "fault-points")]
    if let Some(bytes) = std::env::var(SEGMENT_VAR).ok().and_then(|text| text.parse().ok()) {
        return bytes;
    }
    usual
}

/// The periods of MCP calls in a test, such as `progress=100,patience=800,longest=3000`, in
/// milliseconds. A program without fault points ignores it.
pub const PERIODS_VAR: &str = "MULETEER_FAULT_MCP_PERIODS";

/// Returns a period of MCP calls: `usual`, unless a test has set another one.
pub fn period(name: &str, usual: Duration) -> Duration {
    #[cfg(feature = "fault-points")]
    if let Some(ms) = periods().and_then(|set| {
        let mut set = set.split(',').filter_map(|one| one.split_once('='));
        set.find(|(known, _)| *known == name)?.1.parse().ok()
    }) {
        return Duration::from_millis(ms);
    }
    #[cfg(not(feature = "fault-points"))]
    let _ = name;
    usual
}

/// Returns the value of [`PERIODS_VAR`], for a process that starts another one.
pub fn periods() -> Option<String> {
    cfg!(feature = "fault-points").then(|| std::env::var(PERIODS_VAR).ok())?
}

/// The fault points of a dispatch, in the order of its life.
pub const POINTS: &[&str] = &[
    "ledger.before_write",
    "ledger.after_write",
    "ledger.after_fsync",
    "gate.create_durable",
    "gate.create_replied",
    "pool.look",
    "life.attempt_durable",
    "clone.made",
    "start.before_shim",
    "zygote.asked",
    "zygote.forked",
    "start.after_shim",
    "shim.begun",
    "shim.meta_written",
    "shim.forked",
    "shim.recorded",
    "shim.released",
    "link.before_prompt",
    "link.after_prompt",
    "link.before_answer",
    "link.after_answer",
    "shim.stdin_written",
    "shim.record_written",
    "link.batch_read",
    "life.batch_durable",
    "journal.mid_batch",
    "shim.exited_written",
    "life.exit_durable",
    "life.before_finish",
    "prune.recorded",
    "tasks.backup_written",
    "tasks.list_exchanged",
    "tasks.list_written",
    "tasks.refs_written",
    "tasks.saved",
    "tasks.intent_durable",
    "tasks.claimed",
    "tasks.validated",
    "tasks.committed",
    "git.before_forward",
    "tasks.landed",
    "tasks.outcome_written",
];

/// The fault point of a request to stop a run of a task list.
pub const STOP_POINTS: &[&str] = &["tasks.stopping_durable"];

/// The fault points of a spec run, in the order of its life.
pub const RUN_POINTS: &[&str] = &[
    "run.before_started",
    "run.recorded",
    "run.before_freeze",
    "run.after_freeze",
    "run.before_commit",
    "run.committed",
    "run.checkpointed",
    "run.before_worktree",
    "run.after_worktree",
    "run.before_dispatch",
    "run.after_dispatch",
    "run.agent_ended",
    "run.before_accept",
    "run.after_accept",
    "run.before_bead",
    "run.mid_discard",
    "run.after_bead",
    "run.before_verdict",
    "run.after_verdict",
    "run.before_publish",
    "run.after_publish",
    "run.before_pr",
    "run.pushed",
    "run.after_pr",
];

/// The fault points around each call that changes data in the real `tbd`.
pub const TBD_POINTS: &[&str] = &["tbd.before_call", "tbd.after_call"];

/// The fault points around forwarding the work of a run that ends before it passed, and around its
/// end.
pub const KEEP_POINTS: &[&str] = &["run.before_kept", "run.after_kept", "run.before_rest"];

/// The fault points of a daemon that sets aside a run with which other daemons crashed.
pub const ASIDE_POINTS: &[&str] = &["aside.counted", "aside.noted", "aside.rested", "aside.kept"];

/// The fault points of the healing of a dispatch, in their order: its beginning is durable, its
/// light agent exists, the agent's answer is read, the choice is durable, and it is carried out.
pub const HEALING_POINTS: &[&str] =
    &["healing.begun", "healing.asked", "healing.read", "healing.chosen", "healing.carried_out"];

/// The fault points of the message about the end of a run: the end is recorded, the message is
/// saved, and its thread has it.
pub const RUN_END_POINTS: &[&str] = &["runend.due", "runend.saved", "runend.told"];

/// The fault points around undoing a push to a run's hub. Only an agent that breaks the rules gets
/// there.
pub const PUSH_POINTS: &[&str] = &["hub.push_noted", "hub.push_undone"];

/// The fault points of an amendment of a run's spec, in their order. The run passes
/// `run.before_freeze` and `run.after_freeze` around the last one.
pub const AMEND_POINTS: &[&str] =
    &["amend.planned", "amend.saved", "amend.recorded", "amend.withdrawn"];

/// The fault points of the messages of a thread.
pub const THREAD_POINTS: &[&str] =
    &["thread.accepted", "thread.decided", "thread.delivered", "thread.archived"];

/// The fault points of adapters: a message is accepted or sent or its acknowledgement is durable.
pub const ADAPTER_POINTS: &[&str] = &[
    "adapter.started",
    "adapter.thread_opened",
    "adapter.accepted",
    "adapter.sent",
    "adapter.given",
    "adapter.posted",
    "adapter.interrupted",
];

/// The fault points of schedules: a due moment, its thread, its message or its outcome is durable.
pub const SCHEDULE_POINTS: &[&str] =
    &["schedule.due", "schedule.thread_opened", "schedule.accepted", "schedule.done"];

/// The fault points of meetings: a start, a decision, the minutes or an end is durable, or the
/// agent of a stalled turn is interrupted.
pub const MEETING_POINTS: &[&str] = &[
    "meeting.started",
    "meeting.decided",
    "meeting.interrupted",
    "meeting.minutes_written",
    "meeting.ended",
];

/// The fault points of notifications.
pub const NOTIFY_POINTS: &[&str] = &["notify.recorded", "notify.tried", "notify.sent"];

/// The fault points of what a thread is told of its agents' work.
pub const REPORT_POINTS: &[&str] = &["thread.report_due", "thread.reported"];

/// The fault points of the end of a process that nobody sent a further message in time.
pub const HOLD_POINTS: &[&str] = &["hold.over", "hold.before_close"];

/// The fault points of the commands of a thread.
pub const COMMAND_POINTS: &[&str] =
    &["thread.task_opened", "thread.command_done", "thread.command_recorded"];

/// The fault points of a question that is no request of an agent's CLI.
pub const QUESTION_POINTS: &[&str] =
    &["question.asked", "question.answered", "question.before_effect", "question.after_effect"];

/// The fault points of the sign-off of a spec: its copy is durable, its changed text is asked
/// about, its run has begun, the thread has the outcome, and the copy is removed.
pub const SIGN_OFF_POINTS: &[&str] = &[
    "signoff.saved",
    "signoff.asked_again",
    "signoff.begun",
    "signoff.told",
    "signoff.copy_unneeded",
    "signoff.copy_removed",
];

/// The fault points of MCP tools: a question, a drafted agent, a message or the wait of a call is
/// durable, and the call has no answer yet.
pub const TOOL_POINTS: &[&str] =
    &["tool.asked", "tool.drafted", "tool.message_recorded", "tool.waiting", "tool.files_written"];

/// The fault points of `clean`.
pub const CLEAN_POINTS: &[&str] = &["clean.recorded", "clean.moved", "clean.archive_recorded"];

/// The points of compressing the output of an agent that has ended, in their order.
pub const OUTPUT_POINTS: &[&str] = &["spool.written", "spool.renamed", "spool.removed"];

/// The points of removing the attached files of an archived thread.
pub const ATTACHED_POINTS: &[&str] = &["prune.thread_chosen", "prune.thread_removed"];

/// The points of a snapshot of the events, which is written when the log has grown.
pub const SNAPSHOT_POINTS: &[&str] = &["snapshot.before_write", "snapshot.after_write"];

/// The points of archiving finished dispatches, of restoring them, and of a database that is filled
/// again.
pub const ARCHIVE_POINTS: &[&str] = &[
    "archive.stored",
    "archive.recorded",
    "archive.restored",
    "database.emptied",
    "database.filled",
];

/// The points of closing the file of the events and of compressing a closed one, in their order.
pub const SEGMENT_POINTS: &[&str] = &[
    "rotate.begun",
    "rotate.linked",
    "rotate.renamed",
    "rotate.durable",
    "compress.written",
    "compress.renamed",
    "compress.compressed",
    "compress.removed",
];

/// The points of removing old events, in their order.
pub const RETENTION_POINTS: &[&str] =
    &["retention.recorded", "retention.written", "retention.renamed", "retention.removed_one"];

/// The fault points around the logins and keys of a private HOME.
pub const HOME_POINTS: &[&str] = &[
    "home.made",
    "home.recorded",
    "home.lent",
    "home.left",
    "life.home_closed",
    "life.end_durable",
];

/// The points around the last records that a database lacks.
pub const DATABASE_POINTS: &[&str] = &["database.before_batch", "database.after_batch"];

/// The points of removing keys from the files of a dispatch that ended.
pub const SECRET_POINTS: &[&str] = &["secrets.launches_written", "secrets.removed"];

/// The points around writing metrics.
pub const METRIC_POINTS: &[&str] = &["metrics.before_write", "metrics.after_write"];

/// Passes a fault point. Does nothing unless compiled with `fault-points` and requested.
#[inline(always)]
pub fn point(name: &'static str) {
    #[cfg(feature = "fault-points")]
    armed::pass(name);
    #[cfg(not(feature = "fault-points"))]
    let _ = name;
}

#[cfg(feature = "fault-points")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Fault {
        name: String,
        nth: u64,
        what: String,
        times: u64,
        passed: AtomicU64,
    }

    const LISTS: [&[&str]; 32] = [
        super::HEALING_POINTS,
        super::MEETING_POINTS,
        super::TOOL_POINTS,
        super::DATABASE_POINTS,
        super::SECRET_POINTS,
        super::ADAPTER_POINTS,
        super::POINTS,
        super::ARCHIVE_POINTS,
        super::SNAPSHOT_POINTS,
        super::SEGMENT_POINTS,
        super::RETENTION_POINTS,
        super::METRIC_POINTS,
        super::STOP_POINTS,
        super::RUN_POINTS,
        super::TBD_POINTS,
        super::KEEP_POINTS,
        super::RUN_END_POINTS,
        super::ASIDE_POINTS,
        super::PUSH_POINTS,
        super::AMEND_POINTS,
        super::CLEAN_POINTS,
        super::OUTPUT_POINTS,
        super::ATTACHED_POINTS,
        super::THREAD_POINTS,
        super::SCHEDULE_POINTS,
        super::COMMAND_POINTS,
        super::REPORT_POINTS,
        super::HOLD_POINTS,
        super::NOTIFY_POINTS,
        super::QUESTION_POINTS,
        super::SIGN_OFF_POINTS,
        super::HOME_POINTS,
    ];

    fn fault() -> Option<&'static Fault> {
        static FAULT: OnceLock<Option<Fault>> = OnceLock::new();
        FAULT
            .get_or_init(|| {
                let spec = std::env::var("MULETEER_FAULT").ok()?;
                let (point, what) = spec.split_once('=').unwrap_or((&spec, "kill"));
                let (what, times) = what.split_once('*').unwrap_or((what, "1"));
                let (name, nth) = point.split_once(':').unwrap_or((point, "1"));
                Some(Fault {
                    name: name.into(),
                    nth: nth.parse().unwrap_or(1),
                    what: what.into(),
                    times: times.parse().unwrap_or(1),
                    passed: AtomicU64::new(0),
                })
            })
            .as_ref()
    }

    pub(super) fn pass(name: &str) {
        debug_assert!(
            LISTS.iter().any(|points| points.contains(&name)),
            "unknown fault point {name}"
        );
        let Some(fault) = fault().filter(|fault| fault.name == name) else { return };
        let passing = fault.passed.fetch_add(1, Ordering::SeqCst) + 1;
        if !(fault.nth..fault.nth + fault.times).contains(&passing) {
            return;
        }
        if let Some(once) = std::env::var_os("MULETEER_FAULT_ONCE")
            && std::fs::OpenOptions::new().write(true).create_new(true).open(once).is_err()
        {
            return;
        }
        use rustix::process::{Signal, getpid, kill_process};
        match fault.what.as_str() {
            "panic" => panic!("fault point {name}"),
            "stop" => stop(),
            "abort" => std::process::abort(),
            _ => drop(kill_process(getpid(), Signal::KILL)),
        }
    }

    /// Stops this very thread. Another thread could take a signal that is sent to the process, and
    /// this one would pass the point meanwhile.
    #[allow(unsafe_code)]
    fn stop() {
        // SAFETY: it takes a number, and no memory of ours.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
}
