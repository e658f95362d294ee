//! Samples of the events of conversations.

use muleteer_model::config::ThreadVerbosity;
use muleteer_model::conversation::adapter::event::{
    AdapterLost, AdapterSetAside, AdapterSignal, AdapterStarted, AdapterSwitched, PostState,
    PostStateName, StrangerTold,
};
use muleteer_model::conversation::event::{
    Author, AuthorKind, MessageAccepted, MessageFile, MessageRecorded, RoleChanged, State,
    TaskState, ThreadOpened, VerbosityChanged,
};
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use muleteer_model::meeting::event::{
    ChairName, EndReason, MeetingEnded, MeetingEnding, MeetingStarted, MeetingTurn,
    MeetingTurnDone, TurnKind,
};
use muleteer_model::question::{
    Answer, AnsweredBy, Choice, Kind, QuestionAnswered, QuestionAsked, State as QuestionState,
};
use muleteer_model::schedule::event::{ScheduleDone, ScheduleDue, ScheduleSet};

/// Returns the events of a thread, in their usual order.
pub(super) fn all() -> Vec<Event> {
    let dispatch = DispatchId::from_random([1, 2, 3, 4, 5]);
    let thread = || "thrdabcd".to_string();
    let author = |kind, id: &str, name: &str| Author { kind, id: id.into(), name: name.into() };
    vec![
        Event::ThreadOpened(Box::new(ThreadOpened {
            thread: thread(),
            role: "product-analyst".into(),
            project: "/repo".into(),
            title: Some("Exports".into()),
            adapter: "slack".into(),
            external: Some("C024BE91L/1767261600.000100".into()),
            by: "operator".into(),
            bang: None,
        })),
        Event::MessageAccepted(Box::new(MessageAccepted {
            thread: thread(),
            message: "msgabcde".into(),
            author: author(AuthorKind::Person, "operator", "anna"),
            text: "Which formats do we support?".into(),
            key: "k1".into(),
            files: vec![MessageFile {
                name: "notes.txt".into(),
                bytes: 11,
                sha256: "9f86d0".into(),
            }],
            shown: false,
            command: None,
        })),
        Event::ThreadTaskOpened {
            thread: thread(),
            task: "taskabcd".into(),
            title: "Exports".into(),
            role: None,
        },
        Event::ThreadTaskState {
            thread: thread(),
            task: "taskabcd".into(),
            state: TaskState::Active,
            dispatch: Some(dispatch.clone()),
            reason: "the first message".into(),
        },
        Event::MessageState {
            thread: thread(),
            message: "msgabcde".into(),
            state: State::Queued,
            reason: "queued behind turn 1".into(),
            dispatch: Some(dispatch.clone()),
        },
        Event::MessageRecorded(Box::new(MessageRecorded {
            thread: thread(),
            message: "msgbcdef".into(),
            author: author(AuthorKind::Agent, dispatch.as_str(), "product-analyst"),
            text: "CSV and JSON.".into(),
            answers: vec!["msgabcde".into()],
            dispatch: Some(dispatch),
            turn: Some(1),
            files: vec![],
            reports_through: None,
        })),
        Event::ThreadRole(Box::new(RoleChanged {
            thread: thread(),
            role: "reviewer".into(),
            by: "operator".into(),
        })),
        Event::ThreadVerbosity(Box::new(VerbosityChanged {
            thread: thread(),
            verbosity: Some(ThreadVerbosity::Quiet),
            by: "operator".into(),
        })),
        Event::ThreadArchived { thread: thread(), by: "operator".into() },
    ]
}

/// Returns the events of adapters, in their usual order.
pub(super) fn adapters() -> Vec<Event> {
    let thread = || "thrdabcd".to_string();
    vec![
        Event::AdapterStarted(Box::new(AdapterStarted {
            adapter: "slack".into(),
            pid: 4711,
            restarts: 1,
        })),
        Event::AdapterLost(Box::new(AdapterLost {
            adapter: "slack".into(),
            reason: "it exited with code 1".into(),
            delay_ms: 200,
        })),
        Event::AdapterSetAside(Box::new(AdapterSetAside {
            adapter: "slack".into(),
            reason: "it exited with code 1".into(),
        })),
        Event::AdapterSwitched(Box::new(AdapterSwitched {
            adapter: "slack".into(),
            enabled: true,
            by: "operator".into(),
        })),
        Event::PostState(Box::new(PostState {
            thread: thread(),
            key: "thrdabcd/msgbcdef".into(),
            state: PostStateName::Posted,
            external_ref: Some("C024BE91L/1767261600.000200".into()),
            reason: "a reason of a refusal".into(),
        })),
        Event::AdapterSignal(Box::new(AdapterSignal {
            adapter: "slack".into(),
            source: "Ev08".into(),
            kind: "delete".into(),
            thread: thread(),
            by: "U0123ABCD".into(),
            about: Some("msgabcde".into()),
        })),
        Event::StrangerTold(Box::new(StrangerTold {
            adapter: "slack".into(),
            user: "U0999ZZZZ".into(),
            source: "Ev09".into(),
        })),
    ]
}

/// Returns the events of schedules, in their usual order.
pub(super) fn schedules() -> Vec<Event> {
    let due = jiff::Timestamp::from_second(1_767_258_000).unwrap_or_default();
    let key = muleteer_model::schedule::key("standup", due);
    vec![
        Event::ScheduleSet(Box::new(ScheduleSet {
            schedule: "standup".into(),
            cron: Some("0 9 * * 1-5".into()),
            time_zone: Some("Europe/Berlin".into()),
            since: due,
            removed: true,
        })),
        Event::ScheduleDue(Box::new(ScheduleDue {
            schedule: "standup".into(),
            due,
            key: key.clone(),
            thread: Some("thrdabcd".into()),
            role: "product-analyst".into(),
            project: Some("/home/ann/shop".into()),
            backend: Some("example".into()),
            prompt: "Report.".into(),
            by: Some("operator".into()),
            skipped: Some("a reason".into()),
        })),
        Event::ScheduleDone(Box::new(ScheduleDone {
            schedule: "standup".into(),
            key,
            thread: Some("thrdabcd".into()),
            message: Some("msgabcde".into()),
            reason: "a reason".into(),
        })),
    ]
}

/// Returns the events of a meeting, in their usual order.
pub(super) fn meetings() -> Vec<Event> {
    let (thread, meeting) = ("thrdabcd".to_string(), "meetabcd".to_string());
    vec![
        Event::MeetingStarted(Box::new(MeetingStarted {
            thread: thread.clone(),
            meeting: meeting.clone(),
            topic: "Exports".into(),
            roles: vec!["developer".into(), "reviewer".into()],
            chair: ChairName::Role,
            chair_role: Some("product-analyst".into()),
            max_turns: 12,
            budget_usd: Some(2.5),
            turn_limit_s: 600,
            by: "operator".into(),
        })),
        Event::MeetingTurn(Box::new(MeetingTurn {
            thread: thread.clone(),
            meeting: meeting.clone(),
            turn: 1,
            kind: TurnKind::Speak,
            role: "developer".into(),
            message: "msgmeet2".into(),
            hears: vec!["msgabcde".into()],
            why: "round robin".into(),
        })),
        Event::MeetingTurnDone(Box::new(MeetingTurnDone {
            thread: thread.clone(),
            meeting: meeting.clone(),
            turn: 1,
            lost: Some("a reason".into()),
        })),
        Event::MeetingEnding(Box::new(MeetingEnding {
            thread: thread.clone(),
            meeting: meeting.clone(),
            reason: EndReason::Requested,
            by: Some("operator".into()),
        })),
        Event::MeetingEnded(Box::new(MeetingEnded {
            thread,
            meeting,
            reason: EndReason::Requested,
            spent_usd: 0.5,
            minutes: Some("/repo/.agents/meetings/meetabcd.md".into()),
            file: Some(MessageFile {
                name: "minutes.md".into(),
                bytes: 4,
                sha256: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".into(),
            }),
        })),
    ]
}

/// Returns the events of a question that is no request of an agent's CLI.
pub(super) fn questions() -> Vec<Event> {
    let question = || "qstnabcd".to_string();
    vec![
        Event::QuestionAsked(Box::new(QuestionAsked {
            question: question(),
            kind: Kind::Approval,
            text: "Start the run with 7 beads?".into(),
            options: vec![Choice {
                id: "approve".into(),
                label: "Approve".into(),
                description: "the run starts".into(),
            }],
            multi: true,
            free_text: true,
            detail: serde_json::json!({"beads": 7}),
            default: Some("approve".into()),
            deadline: jiff::Timestamp::from_second(1_767_348_000).ok(),
            thread: Some("thrdabcd".into()),
            shown_in: vec![],
            dispatch: Some(DispatchId::from_random([1, 2, 3, 4, 5])),
            asked_by: "muleteer".into(),
            subject: "run/r1/approval".into(),
        })),
        Event::QuestionAnswered(Box::new(QuestionAnswered {
            question: question(),
            answer: Answer { options: vec!["approve".into()], text: "but slowly".into() },
            by: AnsweredBy { adapter: "slack".into(), user: "U0123ABCD".into() },
            key: "k3f9".into(),
        })),
        Event::QuestionState {
            question: question(),
            state: QuestionState::Delivered,
            reason: "the run has started".into(),
        },
    ]
}
