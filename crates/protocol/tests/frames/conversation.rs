//! Samples of the requests and documents of threads.

use muleteer_protocol::v1::{
    AdapterDoc, AnswerDoc, AnsweredByDoc, AttachedFile, AuthorDoc, ChoiceDoc, FileDoc, InboxDoc,
    Item, MeetingDoc, MeetingStart, MeetingTurnDoc, MessageDoc, OutboxDoc, Part, QuestionDoc,
    Reply, Request, ScheduleDoc, ScheduleStartDoc, Spawn, ThreadDoc, ThreadFollow, ThreadInFull,
    ThreadNew, ThreadPart, ThreadPlace, ThreadSend, ThreadTaskDoc, ToolCall, ToolResult, ToolTaken,
};

pub fn new() -> ThreadNew {
    let dispatch =
        Spawn { role: "product-analyst".into(), project: "/repo".into(), ..Spawn::default() };
    ThreadNew { id: "thrdabcd".into(), title: Some("Exports".into()), dispatch, push_env: vec![] }
}

pub fn sent() -> ThreadSend {
    ThreadSend {
        thread: "thrd".into(),
        key: "k1".into(),
        text: "Which formats do we support?".into(),
        name: "anna".into(),
        files: vec![AttachedFile { name: "notes.txt".into(), content: vec![0, 127, 255] }],
    }
}

pub fn thread() -> ThreadDoc {
    ThreadDoc {
        id: "thrdabcd".into(),
        title: Some("Exports".into()),
        adapter: "slack".into(),
        external: Some("C024BE91L/1767261600.000100".into()),
        role: "product-analyst".into(),
        project: "/repo".into(),
        state: "open".into(),
        created: "2026-01-02T03:04:05.678Z".into(),
        last_activity: "2026-01-02T03:04:06.000Z".into(),
        message_count: 2,
        open_questions: 0,
        dispatch_id: Some("k3f9abcd".into()),
    }
}

pub fn message() -> MessageDoc {
    MessageDoc {
        id: "msgabcde".into(),
        direction: "in".into(),
        author: AuthorDoc { kind: "person".into(), id: "operator".into(), name: "anna".into() },
        text: "Which formats do we support?".into(),
        at: "2026-01-02T03:04:05.678Z".into(),
        state: "queued".into(),
        reason: Some("queued behind turn 1 of product-analyst".into()),
        key: Some("k1".into()),
        files: vec![FileDoc { name: "notes.txt".into(), bytes: 11, sha256: "9f86d0".into() }],
        answers: vec!["msgbcdef".into()],
        dispatch_id: Some("k3f9abcd".into()),
    }
}

pub fn place() -> ThreadPlace {
    ThreadPlace {
        messages: 2,
        dispatch: "k3f9abcd".into(),
        epoch: 1,
        offset: 4096,
        skip: 7,
        parts: 3,
    }
}

pub fn follow() -> ThreadFollow {
    let open = vec!["msgabcde".into()];
    ThreadFollow { thread: "thrd".into(), history: 10, from: Some(place()), open }
}

fn adapter() -> AdapterDoc {
    AdapterDoc {
        name: "slack".into(),
        state: "running".into(),
        pid: Some(4711),
        restarts: 1,
        since: Some("2026-01-02T03:04:05.678Z".into()),
        connected: true,
        inbox: InboxDoc { accepted: 7, duplicates: 1 },
        outbox: OutboxDoc { pending: 1, posted: 6, refused: 0, oldest_age_s: Some(2) },
        capabilities: vec!["threads".into()],
        reason: Some("it exited with code 1".into()),
    }
}

fn schedule() -> ScheduleDoc {
    ScheduleDoc {
        name: "standup".into(),
        cron: "0 9 * * 1-5".into(),
        time_zone: Some("Europe/Berlin".into()),
        role: "product-analyst".into(),
        project: Some("shop".into()),
        enabled: true,
        next: Some("2026-01-02T08:00:00Z".into()),
        running: false,
        last: Some(ScheduleStartDoc {
            due: "2026-01-01T08:00:00Z".into(),
            state: "started".into(),
            reason: Some("a reason".into()),
            thread_id: Some("thrdabcd".into()),
            message_id: Some("msgabcde".into()),
            message_state: Some("answered".into()),
        }),
        // Absent in most documents.
        reason: None,
        retry_at: None,
    }
}

fn meeting_start() -> MeetingStart {
    MeetingStart {
        meeting: "meetabcd".into(),
        thread: "thrdabcd".into(),
        topic: "Exports".into(),
        roles: vec!["developer".into(), "reviewer".into()],
        chair: "round-robin".into(),
        max_turns: Some(6),
        budget_usd: Some(2.5),
        turn_limit_s: Some(600),
    }
}

fn meeting() -> MeetingDoc {
    MeetingDoc {
        id: "meetabcd".into(),
        thread_id: "thrdabcd".into(),
        topic: "Exports".into(),
        state: "ended".into(),
        reason: Some("max_turns".into()),
        started_by: "operator".into(),
        ended_by: Some("operator".into()),
        started: "2026-01-02T03:04:05.678Z".into(),
        ended: Some("2026-01-02T03:14:05.678Z".into()),
        roles: vec!["developer".into(), "reviewer".into()],
        left: vec!["reviewer".into()],
        chair: "mention".into(),
        turn_count: Some(6),
        max_turns: 6,
        spent_usd: 0.5,
        budget_usd: Some(2.5),
        turn_limit_s: 600,
        speaker: Some("developer".into()),
        minutes: Some("/repo/.agents/meetings/meetabcd.md".into()),
        turns: Some(vec![MeetingTurnDoc {
            number: 1,
            kind: "speak".into(),
            role: "developer".into(),
            outcome: "lost".into(),
            reason: Some("a reason".into()),
            message_id: "msgabcde".into(),
            text: "CSV first.".into(),
        }]),
    }
}

pub fn question() -> QuestionDoc {
    QuestionDoc {
        id: "qstnabcd".into(),
        kind: "permission".into(),
        state: "answered".into(),
        dispatch_id: Some("k3f9abcd".into()),
        thread_id: Some("thrdabcd".into()),
        asked_by: "developer".into(),
        text: "may it use Bash: make?".into(),
        options: vec![ChoiceDoc {
            id: "allow".into(),
            label: "allow".into(),
            description: "once".into(),
        }],
        multi: true,
        free_text: true,
        detail: serde_json::json!({"tool": "Bash"}),
        default: Some("deny".into()),
        deadline: Some("2026-01-02T04:04:05.678Z".into()),
        asked_at: "2026-01-02T03:04:05.678Z".into(),
        answered_at: Some("2026-01-02T03:05:05.678Z".into()),
        answered_by: Some(AnsweredByDoc { adapter: "slack".into(), user: "U0123ABCD".into() }),
        answer: Some(AnswerDoc { options: vec!["allow".into()], text: "once".into() }),
        reason: Some("its agent ended".into()),
    }
}

fn call() -> ToolCall {
    ToolCall {
        key: "a1b2c3d4-7".into(),
        tool: "ask_human".into(),
        arguments: r#"{"question":"Which colour?"}"#.into(),
        read_only: true,
        patience_ms: Some(50_000),
        env: vec![],
        directory: None,
        files: vec![],
    }
}

fn result() -> ToolResult {
    ToolResult {
        result: r#"{"answer":"blue"}"#.into(),
        refused: true,
        subject: Some("qstnabcd".into()),
    }
}

fn taken() -> ToolTaken {
    ToolTaken { tool: "ask_human".into(), subject: "qstnabcd".into(), ms: 1200 }
}

pub fn requests() -> [(&'static str, Request); 20] {
    [
        ("request_tools", Request::Tools { read_only: true }),
        ("request_tool", Request::Tool(Box::new(call()))),
        ("request_tool_taken", Request::ToolTaken(Box::new(taken()))),
        ("request_thread_new", Request::ThreadNew(Box::new(new()))),
        ("request_thread_send", Request::ThreadSend(Box::new(sent()))),
        (
            "request_thread_wait",
            Request::ThreadWait { thread: "thrdabcd".into(), message: "msgabcde".into() },
        ),
        ("request_thread_archive", Request::ThreadArchive { thread: "thrdabcd".into() }),
        (
            "request_config_set",
            Request::ConfigSet { key: "models.default".into(), value: Some("m1".into()) },
        ),
        ("request_threads", Request::Threads),
        ("request_thread_show", Request::ThreadShow { thread: "thrdabcd".into() }),
        ("request_thread_follow", Request::ThreadFollow(Box::new(follow()))),
        ("request_adapters", Request::Adapters),
        ("request_adapter", Request::Adapter { name: "slack".into(), act: "restart".into() }),
        ("request_schedules", Request::Schedules),
        (
            "request_schedule_run",
            Request::ScheduleRun { name: "standup".into(), key: "a-key".into() },
        ),
        ("request_questions", Request::Questions { all: true }),
        ("request_meetings", Request::Meetings { meeting: Some("meetabcd".into()) }),
        ("request_meeting_start", Request::MeetingStart(Box::new(meeting_start()))),
        ("request_meeting_end", Request::MeetingEnd { meeting: "meetabcd".into() }),
        ("request_meeting_wait", Request::MeetingWait { meeting: "meetabcd".into() }),
    ]
}

pub fn items() -> [(&'static str, Item); 4] {
    let part = ThreadPart { at: place(), part: Part::Text { text: "We support ".into() } };
    [
        ("item_thread", Item::Thread(Box::new(thread()))),
        ("item_message", Item::Message(Box::new(message()))),
        ("item_thread_part", Item::ThreadPart(Box::new(part))),
        ("item_question", Item::Question(Box::new(question()))),
    ]
}

pub fn replies() -> [(&'static str, Reply); 13] {
    let thread_id = || "thrdabcd".to_string();
    let task = ThreadTaskDoc {
        id: "taskabcd".into(),
        title: "Exports".into(),
        state: "active".into(),
        dispatches: vec!["k3f9abcd".into()],
    };
    let in_full = ThreadInFull {
        thread: thread(),
        messages: vec![message()],
        tasks: vec![task],
        // The sample is from before there were questions.
        questions: vec![],
    };
    let (message, answer) = (Box::new(message()), Some(Box::new(message())));
    [
        ("reply_tools", Reply::Tools { tools: vec!["ask_human".into()] }),
        ("reply_tool", Reply::Tool(Box::new(result()))),
        ("reply_thread_opened", Reply::ThreadOpened { thread_id: thread_id() }),
        (
            "reply_message_accepted",
            Reply::MessageAccepted {
                thread_id: thread_id(),
                message_id: "msgabcde".into(),
                state: "accepted".into(),
            },
        ),
        ("reply_message", Reply::Message { thread_id: thread_id(), message, answer }),
        ("reply_thread_archived", Reply::ThreadArchived { thread_id: thread_id() }),
        ("reply_config_set", Reply::ConfigSet { note: "`models.default` is m1.".into() }),
        ("reply_threads", Reply::Threads { threads: vec![thread()] }),
        ("reply_thread", Reply::Thread(Box::new(in_full))),
        ("reply_schedules", Reply::Schedules { schedules: vec![schedule()] }),
        ("reply_meetings", Reply::Meetings { meetings: vec![meeting()] }),
        ("reply_adapters", Reply::Adapters { adapters: vec![adapter()] }),
        ("reply_questions", Reply::Questions { questions: vec![question()] }),
    ]
}
