//! Samples of the events of a dispatch.

use crate::events::catalog::{TRACE, id, time};
use muleteer_model::admission::api_error::{Terms, Trouble};
use muleteer_model::agent::ask::{Ask, AskOption, Verdict};
use muleteer_model::agent::event::TurnError;
use muleteer_model::agent::result::{AgentResult, ResultStatus};
use muleteer_model::agent::transcript::{Session, Standing};
use muleteer_model::dispatch::work::{LeftWork, WorkHome};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::mcp::McpCalled;
use muleteer_model::event::{
    Archived, Created, Event, EventsRemoved, ExitCause, FinalState, Limit, Limits, Outcome,
    PromptKind, Purse, Restored,
};
use muleteer_model::monitor::healing::event::{
    Choice, HealingBegun, HealingChosen, HealingDone, Trouble as HealingTrouble,
};
use muleteer_model::monitor::{self, Action, Monitor, Response, Responses};
use std::collections::BTreeMap;

/// Returns the events of a dispatch, in their usual order.
pub(super) fn all() -> Vec<Event> {
    [beginning, session, prompts, tools, output, api, interventions, ending]
        .into_iter()
        .flat_map(|part| part())
        .collect()
}

/// Returns the events about the beginning of a dispatch and of its attempts.
fn beginning() -> Vec<Event> {
    vec![
        Event::DispatchCreated(Box::new(created())),
        Event::PromptQueued {
            key: "k1".into(),
            kind: PromptKind::Initial,
            by: "operator".into(),
            trace: Some(TRACE.into()),
        },
        Event::WorktreeCreated {
            path: "/repo/.muleteer/worktrees/abcdefgh".into(),
            base: "9fceb02d".into(),
        },
        Event::AttemptStarted { attempt: 1, epoch: 1, resume: Some("session-1".into()) },
        Event::AgentSpawned {
            pid: 4713,
            shim_pid: 4712,
            containment: "cgroup".into(),
            awake_ms: 86_400_000,
        },
        Event::AgentAdopted { shim_pid: 4712, epoch: 1 },
        Event::StartFailed { epoch: 1, error: "no such file".into(), permanent: true },
    ]
}

/// Returns the events about a session, its mode and its model.
fn session() -> Vec<Event> {
    vec![
        Event::SessionStarted { session_id: "session-1".into(), model: Some("sonnet".into()) },
        Event::AgentGreeted { agent: "codex-acp 2.6.0".into(), load: Some("session-1".into()) },
        Event::SessionOpened {
            session_id: "session-1".into(),
            set_model_by: Some("option model".into()),
            model_by: Some("option model".into()),
            set_mode: None,
        },
        Event::SessionModeSet { mode: "default".into() },
        Event::SessionModeKept { mode: "default".into(), by: "call".into() },
        Event::SessionModeChanged { mode: "yolo".into(), back: Some("default".into()) },
        Event::SessionModeStays {
            mode: "yolo".into(),
            reason: "Muleteer reset the mode, and the \
            agent switched again"
                .into(),
        },
        Event::SessionModeRefused {
            mode: "bypassPermissions".into(),
            reason: "not available".into(),
            next: Some("default".into()),
        },
        Event::SessionModelSet { model: "gpt-5.5".into() },
        Event::CallFailed {
            call: "session/load".into(),
            reason: "no answer within 2m".into(),
            for_good: false,
            missing: false,
        },
    ]
}

/// Returns the events about prompts.
fn prompts() -> Vec<Event> {
    vec![
        Event::PromptSent { key: "k1".into() },
        Event::PromptWritten { key: "k1".into() },
        Event::TurnStarted { turn: 1, key: "k1".into() },
        Event::PromptFolded { key: "k2".into(), turn: 1 },
        Event::PromptProbed {
            key: "k1".into(),
            standing: Standing::MidTool,
            session: Session::Held,
            session_id: Some("session-1".into()),
            counted: true,
            detail: String::new(),
        },
        Event::SessionLost { session_id: "session-1".into() },
    ]
}

/// Returns the events about tool calls, permissions and the policy.
fn tools() -> Vec<Event> {
    vec![
        Event::ToolCalled {
            call_id: "t1".into(),
            tool: "Edit".into(),
            target: "src/lib.rs".into(),
            parent: Some("t0".into()),
        },
        Event::ToolSubject { call_id: "t1".into(), text: "ls\nrm -rf x".into() },
        Event::ToolFailed { call_id: "t1".into(), text: "old_string not found".into() },
        Event::ToolFinished { call_id: "t1".into() },
        Event::PolicyBroken {
            call_id: "t1".into(),
            tool: "Bash".into(),
            target: "touch x".into(),
            rule: "mode ask".into(),
            denied: true,
        },
        Event::PermissionRequested {
            request_id: "r1".into(),
            answered: true,
            question: true,
            ask: Box::new(ask()),
        },
        Event::PermissionAnswered {
            request_id: "r1".into(),
            answer: Verdict::Deny,
            text: "use `git clean` instead".into(),
            by: "operator".into(),
            rule: Some("Bash(rm *)".into()),
            key: "k3f9".into(),
            question: true,
        },
        Event::PermissionClosed { request_id: "r1".into() },
        Event::AnswerDelivered { request_id: "r1".into() },
        Event::HoldExpired { idle: true },
        Event::AnswerAwaited {},
    ]
}

/// Returns the events about other output and results.
fn output() -> Vec<Event> {
    vec![
        Event::AgentSaid { text: "The test passes now.".into() },
        Event::AgentNotice { text: "MCP server `docs` does not work".into() },
        Event::McpCalled(Box::new(McpCalled {
            tool: "report_progress".into(),
            text: "The parser is done.".into(),
            percent: Some(40),
            child: Some(DispatchId::from_random([1, 2, 3, 4, 5])),
            ms: 12,
            wait: None,
        })),
        Event::UsageRecorded {
            model: "sonnet".into(),
            input: 1200,
            output: 300,
            cache_read: 9000,
            cache_write: 500,
            cost_usd: 0.0125,
            cumulative: true,
            total_usd: None,
        },
        Event::TurnFinished {
            turn: 1,
            ok: false,
            error: Some(TurnError::ApiError),
            status: Some(529),
            text: "overloaded".into(),
        },
        Event::ResultReceived { result: result() },
        Event::ResultInvalid { faults: vec!["`status` is missing".into()], repair: true },
        Event::ResultQuoted {},
        Event::ResultOvertaken {},
        Event::JournalEntry { text: "Chose a BTreeMap: order matters.".into() },
    ]
}

/// Returns the events about the model API and the reading of output.
fn api() -> Vec<Event> {
    vec![
        Event::ApiRetried {
            attempt: 1,
            max: 10,
            status: Some(529),
            delay_s: 2.5,
            awake_ms: Some(90_000),
        },
        Event::RateLimited { until: Some(time()), wait_s: 90.0, awake_ms: Some(90_000) },
        Event::ApiWaiting {
            trouble: Trouble::RateLimit,
            status: Some(429),
            until: time(),
            told: true,
            waits: 1,
            spent_ms: 90_000,
        },
        Event::ApiGivenUp {
            trouble: Trouble::Refused,
            status: Some(401),
            reason: "the model API refused the key EXAMPLE_API_KEY (HTTP 401)".into(),
        },
        Event::Compacted { before: 180_000, after: 30_000 },
        Event::OutputRead {},
        Event::BlockedByUs { on: true },
    ]
}

/// Returns the events about interventions by users, limits and monitors.
fn interventions() -> Vec<Event> {
    vec![
        Event::ModelRequested { key: "m1".into(), model: "haiku".into(), by: "operator".into() },
        Event::ModelChanged { key: "m1".into(), model: "haiku".into() },
        Event::ModelRefused { key: "m1".into(), reason: "no such model".into() },
        Event::InterruptRequested { key: "i1".into(), by: "operator".into() },
        Event::KillRequested { reason: "wrong branch".into(), by: "operator".into() },
        Event::LimitReached { limit: Limit::Budget, detail: "$10.02 of $10.00".into() },
        Event::MonitorSpoke {
            monitor: Monitor::Loop,
            action: Action::Warn,
            reason: "Bash cargo test failed in the same way 4 times".into(),
        },
        Event::StallDetected { silent_s: 300, evidence: "no output, no tool call".into() },
        Event::HealingBegun(Box::new(HealingBegun {
            number: 1,
            trouble: HealingTrouble::Stall,
            reason: "no sign of life for 5m: no output, no tool call".into(),
            healer: Some(id()),
        })),
        Event::HealingChosen(Box::new(HealingChosen {
            number: 1,
            choice: Choice::Redirect,
            reason: "it waited for a server that nobody starts".into(),
            by: "agent/heal2345".into(),
            message: Some("Start the server in the background first.".into()),
            dispatch: Some(id()),
            model: Some("sonnet".into()),
        })),
        Event::HealingDone(Box::new(HealingDone { number: 1, reason: "it was pruned".into() })),
    ]
}

/// Returns the events about the end of an attempt and of a dispatch.
fn ending() -> Vec<Event> {
    vec![
        Event::AgentExited {
            epoch: 1,
            code: Some(0),
            signal: Some(9),
            cause: ExitCause::Exited,
            stderr_tail: "warning: x".into(),
            used_ms: 61_500,
            left: vec![],
        },
        Event::SweepFinished { killed: 1, clean: true, left: vec![] },
        Event::AttemptFinished {
            attempt: 1,
            outcome: Outcome::Failure,
            reason: "exit 1".into(),
            counted: true,
        },
        Event::RestartScheduled { until: time(), delay_ms: 2000 },
        Event::DispatchClosing { state: FinalState::Success, reason: "result".into() },
        Event::WorkFetched(WorkHome {
            branch: "muleteer/abcdefgh".into(),
            commit: Some("1a2b3c4d".into()),
            commits: Some(2),
            left: vec![LeftWork {
                name: "refs/muleteer/left/abcdefgh/uncommitted".into(),
                what: "uncommitted changes in 3 files".into(),
            }],
            skipped: vec!["core.1234 (2 GiB, too large)".into()],
            trouble: None,
        }),
        Event::DispatchFinished {
            state: FinalState::Success,
            reason: "result".into(),
            result: Some(result()),
        },
        Event::FilesRemoved { by: "operator".into() },
        Event::CloneRemoved {
            path: "/repo/.muleteer/worktrees/abcdefgh".into(),
            by: "operator".into(),
        },
        Event::JournalArchived {
            path: "/repo/.agents/journals/archive/parser/abcdefgh.md".into(),
            by: "retention".into(),
        },
        Event::DispatchesArchived { families: vec![vec![Archived { id: id(), last_seq: 40 }]] },
        Event::DispatchesRestored(Restored {
            ids: vec![id()],
            first_seq: 7,
            last_seq: 40,
            boot_id: "3c8f1a52".into(),
        }),
        Event::EventsRemoved(Box::new(EventsRemoved {
            through: 40,
            before: time(),
            kept: vec![id()],
            archived: 3,
            purses: BTreeMap::from([("spec-run-1".into(), 0.5)]),
            by: "operator".into(),
        })),
    ]
}

fn result() -> AgentResult {
    AgentResult {
        status: ResultStatus::Success,
        summary: "Fixed the parser.".into(),
        changes: vec!["src/lib.rs".into()],
        issues: vec!["slow on large files".into()],
        questions: vec!["keep the old flag?".into()],
        pr_url: Some("https://example.org/pr/1".into()),
    }
}

fn created() -> Created {
    Created {
        role: "developer".into(),
        category: "coding".into(),
        project: "/repo".into(),
        repository: Some("/repo".into()),
        feature: "parser".into(),
        title: Some("Read dates without a year".into()),
        spec: Some("docs/specs/parser.md".into()),
        backend: "example".into(),
        model: Some("sonnet".into()),
        model_source: Some("role".into()),
        limits: Limits {
            budget_usd: Some(10.0),
            max_turns: Some(100),
            timeout_s: Some(3600),
            inactivity_timeout_s: 300,
            max_restarts: 3,
        },
        purse: Some(Purse { of: "wxyzabcd".into(), usd: 50.0 }),
        worktree: Some("/repo/.muleteer/worktrees/abcdefgh".into()),
        branch: Some("main".into()),
        journal: "/repo/.agents/journals/parser/developer.md".into(),
        parent: Some(DispatchId::from_random([5, 4, 3, 2, 1])),
        by: "operator".into(),
        multi_turn: true,
        resumable: true,
        wants_result: true,
        calls: None,
        program: None,
        trace: Some(TRACE.into()),
        ask_on_crash: false,
        permissions: muleteer_model::agent::permission::Policy::default(),
        confined: true,
        can_ask: true,
        unattended_s: Some(600),
        hold_s: Some(1800),
        idle_hold_s: None,
        role_fault: None,
        thread_verbosity: None,
        transcripts: false,
        folds: false,
        api: Terms {
            credential: "EXAMPLE_API_KEY".into(),
            channel: "example, EXAMPLE_API_KEY".into(),
            ..Terms::default()
        },
        watched: monitor::Terms {
            responses: Responses {
                loops: Response::Stop,
                drift: Response::Warn,
                spiral: Response::Stop,
                budget: Response::Warn,
            },
            scope: vec!["src/parser/**".into()],
        },
        // Absent in records of earlier versions.
        mcp: None,
        fingerprint: "5d41402a".into(),
    }
}

fn ask() -> Ask {
    let option = AskOption {
        id: "yes".into(),
        name: "Yes, this once".into(),
        kind: Some("allow_once".into()),
    };
    Ask {
        call_id: Some("t1".into()),
        text: "remove what was built".into(),
        input_cut: true,
        options: vec![option],
        ..Ask::tool("Bash", serde_json::json!({"command": "rm -rf build"}))
    }
}
