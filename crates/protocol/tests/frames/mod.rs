//! One sample of every frame, with every field filled. A new variant does not compile until it has
//! a name here, and its test fails until it has a sample.

// Each test that shares this module uses another part of it.
#![allow(dead_code)]

mod conversation;

use muleteer_protocol::v1::*;

/// Generates the function that names a frame and the list of all names from one table.
macro_rules! names {
    ($name:ident, $all:ident, $frame:ty, { $($pattern:pat => $text:literal,)* }) => {
        pub const $all: &[&str] = &[$($text),*];
        pub fn $name(frame: &$frame) -> &'static str {
            match frame { $($pattern => $text,)* }
        }
    };
}

names!(client_name, CLIENT_NAMES, ClientFrame, {
    ClientFrame::Hello(_) => "hello",
    ClientFrame::Request { body: Request::Spawn(_), .. } => "request_spawn",
    ClientFrame::Request { body: Request::Status { .. }, .. } => "request_status",
    ClientFrame::Request { body: Request::Tree, .. } => "request_tree",
    ClientFrame::Request { body: Request::Events { .. }, .. } => "request_events",
    ClientFrame::Request { body: Request::Send { .. }, .. } => "request_send",
    ClientFrame::Request { body: Request::Interrupt { .. }, .. } => "request_interrupt",
    ClientFrame::Request { body: Request::Kill { .. }, .. } => "request_kill",
    ClientFrame::Request { body: Request::Close { .. }, .. } => "request_close",
    ClientFrame::Request { body: Request::Answer { .. }, .. } => "request_answer",
    ClientFrame::Request { body: Request::SetModel { .. }, .. } => "request_set_model",
    ClientFrame::Request { body: Request::Prune { .. }, .. } => "request_prune",
    ClientFrame::Request { body: Request::Clean(_), .. } => "request_clean",
    ClientFrame::Request { body: Request::Wait { .. }, .. } => "request_wait",
    ClientFrame::Request { body: Request::WaitAny { .. }, .. } => "request_wait_any",
    ClientFrame::Request { body: Request::Stop { .. }, .. } => "request_stop",
    ClientFrame::Request { body: Request::Ping, .. } => "request_ping",
    ClientFrame::Request { body: Request::Bead { .. }, .. } => "request_bead",
    ClientFrame::Request { body: Request::Run(_), .. } => "request_run",
    ClientFrame::Request { body: Request::RunAmend(_), .. } => "request_run_amend",
    ClientFrame::Request { body: Request::RunEvents { .. }, .. } => "request_run_events",
    ClientFrame::Request { body: Request::RunStop { .. }, .. } => "request_run_stop",
    ClientFrame::Request { body: Request::TasksRun(_), .. } => "request_tasks_run",
    ClientFrame::Request { body: Request::TasksWait { .. }, .. } => "request_tasks_wait",
    ClientFrame::Request { body: Request::TasksStop { .. }, .. } => "request_tasks_stop",
    ClientFrame::Request { body: Request::ThreadNew(_), .. } => "request_thread_new",
    ClientFrame::Request { body: Request::ThreadSend(_), .. } => "request_thread_send",
    ClientFrame::Request { body: Request::ThreadWait { .. }, .. } => "request_thread_wait",
    ClientFrame::Request { body: Request::ThreadArchive { .. }, .. } => "request_thread_archive",
    ClientFrame::Request { body: Request::ConfigSet { .. }, .. } => "request_config_set",
    ClientFrame::Request { body: Request::Threads, .. } => "request_threads",
    ClientFrame::Request { body: Request::ThreadShow { .. }, .. } => "request_thread_show",
    ClientFrame::Request { body: Request::ThreadFollow(_), .. } => "request_thread_follow",
    ClientFrame::Request { body: Request::Tools { .. }, .. } => "request_tools",
    ClientFrame::Request { body: Request::Tool(_), .. } => "request_tool",
    ClientFrame::Request { body: Request::ToolTaken(_), .. } => "request_tool_taken",
    ClientFrame::Request { body: Request::Adapters, .. } => "request_adapters",
    ClientFrame::Request { body: Request::Adapter { .. }, .. } => "request_adapter",
    ClientFrame::Request { body: Request::Schedules, .. } => "request_schedules",
    ClientFrame::Request { body: Request::ScheduleRun { .. }, .. } => "request_schedule_run",
    ClientFrame::Request { body: Request::Meetings { .. }, .. } => "request_meetings",
    ClientFrame::Request { body: Request::MeetingStart(_), .. } => "request_meeting_start",
    ClientFrame::Request { body: Request::MeetingEnd { .. }, .. } => "request_meeting_end",
    ClientFrame::Request { body: Request::MeetingWait { .. }, .. } => "request_meeting_wait",
    ClientFrame::Request { body: Request::Questions { .. }, .. } => "request_questions",
    ClientFrame::Request { body: Request::Unknown, .. } => "request_unknown",
    ClientFrame::Credit { .. } => "credit",
    ClientFrame::Cancel { .. } => "cancel",
    ClientFrame::Unknown => "client_unknown",
});

names!(server_name, SERVER_NAMES, ServerFrame, {
    ServerFrame::Welcome(_) => "welcome",
    ServerFrame::Refused { .. } => "refused",
    ServerFrame::Item { item: Item::Event { .. }, .. } => "item_event",
    ServerFrame::Item { item: Item::Dispatch(_), .. } => "item_dispatch",
    ServerFrame::Item { item: Item::Thread(_), .. } => "item_thread",
    ServerFrame::Item { item: Item::Message(_), .. } => "item_message",
    ServerFrame::Item { item: Item::ThreadPart(_), .. } => "item_thread_part",
    ServerFrame::Item { item: Item::Question(_), .. } => "item_question",
    ServerFrame::Item { item: Item::Unknown, .. } => "item_unknown",
    ServerFrame::Reply { body: Reply::Spawned { .. }, .. } => "reply_spawned",
    ServerFrame::Reply { body: Reply::Status(_), .. } => "reply_status",
    ServerFrame::Reply { body: Reply::Tree(_), .. } => "reply_tree",
    ServerFrame::Reply { body: Reply::Sent { .. }, .. } => "reply_sent",
    ServerFrame::Reply { body: Reply::Done { .. }, .. } => "reply_done",
    ServerFrame::Reply { body: Reply::Answered { .. }, .. } => "reply_answered",
    ServerFrame::Reply { body: Reply::Pruned { .. }, .. } => "reply_pruned",
    ServerFrame::Reply { body: Reply::Cleaned(_), .. } => "reply_cleaned",
    ServerFrame::Reply { body: Reply::Waited { .. }, .. } => "reply_waited",
    ServerFrame::Reply { body: Reply::Stopping { .. }, .. } => "reply_stopping",
    ServerFrame::Reply { body: Reply::EndOfEvents { .. }, .. } => "reply_end_of_events",
    ServerFrame::Reply { body: Reply::Pong, .. } => "reply_pong",
    ServerFrame::Reply { body: Reply::Beads { .. }, .. } => "reply_beads",
    ServerFrame::Reply { body: Reply::RunUp { .. }, .. } => "reply_run_up",
    ServerFrame::Reply { body: Reply::TasksStarted { .. }, .. } => "reply_tasks_started",
    ServerFrame::Reply { body: Reply::TasksEnded(_), .. } => "reply_tasks_ended",
    ServerFrame::Reply { body: Reply::ThreadOpened { .. }, .. } => "reply_thread_opened",
    ServerFrame::Reply { body: Reply::MessageAccepted { .. }, .. } => "reply_message_accepted",
    ServerFrame::Reply { body: Reply::Message { .. }, .. } => "reply_message",
    ServerFrame::Reply { body: Reply::ThreadArchived { .. }, .. } => "reply_thread_archived",
    ServerFrame::Reply { body: Reply::ConfigSet { .. }, .. } => "reply_config_set",
    ServerFrame::Reply { body: Reply::Threads { .. }, .. } => "reply_threads",
    ServerFrame::Reply { body: Reply::Thread(_), .. } => "reply_thread",
    ServerFrame::Reply { body: Reply::Schedules { .. }, .. } => "reply_schedules",
    ServerFrame::Reply { body: Reply::Meetings { .. }, .. } => "reply_meetings",
    ServerFrame::Reply { body: Reply::Adapters { .. }, .. } => "reply_adapters",
    ServerFrame::Reply { body: Reply::Tools { .. }, .. } => "reply_tools",
    ServerFrame::Reply { body: Reply::Tool(_), .. } => "reply_tool",
    ServerFrame::Reply { body: Reply::Questions { .. }, .. } => "reply_questions",
    ServerFrame::Reply { body: Reply::Unknown, .. } => "reply_unknown",
    ServerFrame::Error { .. } => "error",
    ServerFrame::Unknown => "server_unknown",
});

fn tasks_run() -> TasksRun {
    let dispatch = Spawn { role: "developer".into(), project: "/repo".into(), ..Spawn::default() };
    TasksRun {
        id: "lstabcde".into(),
        root: "/repo".into(),
        dispatch,
        concurrency: 4,
        max_tasks: Some(20),
    }
}

fn tasks_ended() -> TasksEnded {
    TasksEnded {
        id: "lstabcde".into(),
        root: "/repo".into(),
        status: "limit".into(),
        reason: "max_sessions reached".into(),
        code: text("E_TASKS_ENV"),
        session: Some(3),
    }
}

fn text(text: &str) -> Option<String> {
    Some(text.to_string())
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_string()).collect()
}

pub fn spawn() -> Spawn {
    Spawn {
        id: "k3f9abcd".into(),
        role: "developer".into(),
        project: "/home/u/web".into(),
        prompt: "Fix the flaky test\nand say why.".into(),
        feature: text("flaky"),
        model: text("claude-opus-4-6"),
        backend: text("subprocess"),
        command: Some(Command::Shell("cat; ls".into())),
        scenario: text("/home/u/scenario.yaml"),
        budget_usd: Some(2.5),
        max_turns: Some(40),
        timeout_s: Some(900),
        worktree: true,
        env: vec![("PATH".into(), "/bin".into())],
        extra_env: vec![("A".into(), "b=c".into())],
        config: text("/home/u/c.yaml"),
        // Added later.
        title: None,
        spec: None,
        permissions: None,
        sandbox: false,
    }
}

fn run() -> Run {
    Run {
        run_id: "run-2026-02-12-a1b2c3".into(),
        repo: "/home/u/web".into(),
        resume: true,
        spec: text("/home/u/web/plan.md"),
        target: text("main"),
        bead_label: text("v2"),
        concurrency: Some(4),
        backend: text("subprocess"),
        command: Some(Command::Argv(texts(&["sh", "agent.sh"]))),
        scenario: text("/home/u/scenario.yaml"),
        model: text("claude-opus-4-6"),
        budget_usd: Some(20.0),
        max_runtime_s: Some(3600),
        dry_run: true,
        preview_acceptance: false,
        review_spec: false,
        review: vec![],
        yes: true,
        from_phase: text("judge"),
        env: vec![("PATH".into(), "/bin".into())],
        extra_env: vec![("A".into(), "b=c".into())],
        config: text("/home/u/c.yaml"),
        thread: None,
        spec_shown: None,
        push_env: vec![],
    }
}

/// Returns an answer. A client that does not know keys sends none.
fn answer(answer: &str, request: Option<String>, key: &str) -> Request {
    Request::Answer {
        id: "k3f9".into(),
        request,
        answer: answer.into(),
        arguments: vec![],
        key: key.into(),
    }
}

pub fn client_samples() -> Vec<(&'static str, ClientFrame)> {
    let hello =
        Hello { versions: vec![1], client: "muleteer/0.1.0".into(), operator_key: text("00ff") };
    let mut samples = vec![
        ("hello", ClientFrame::Hello(hello)),
        ("credit", ClientFrame::Credit { id: 7, n: 32 }),
        ("cancel", ClientFrame::Cancel { id: 7 }),
        ("client_unknown", ClientFrame::Unknown),
    ];
    let argv = Spawn { command: Some(Command::Argv(texts(&["ls", "-l"]))), ..spawn() };
    let plain = Spawn {
        id: "k3f9abcd".into(),
        role: "developer".into(),
        project: "/p".into(),
        prompt: "Go".into(),
        ..Spawn::default()
    };
    let (id, key) = (String::from("k3f9"), String::from("m2mzcvqd"));
    let requests = [
        ("request_spawn", Request::Spawn(Box::new(spawn()))),
        ("request_spawn_argv", Request::Spawn(Box::new(argv))),
        ("request_spawn_plain", Request::Spawn(Box::new(plain))),
        ("request_status", Request::Status { id: text("k3f9"), archived: false }),
        ("request_tree", Request::Tree),
        ("request_events", Request::Events { from_seq: 1 << 40, follow: true }),
        (
            "request_send",
            Request::Send {
                id: id.clone(),
                key,
                text: "Now a test for it".into(),
                cli_command: false,
            },
        ),
        ("request_interrupt", Request::Interrupt { id: id.clone() }),
        ("request_kill", Request::Kill { id: id.clone(), reason: text("superseded") }),
        ("request_answer", answer("allow", text("r1"), "")),
        ("request_answer_keyed", answer("deny", None, "a1")),
        (
            "request_set_model",
            Request::SetModel { id: id.clone(), key: "m1".into(), model: "haiku".into() },
        ),
        ("request_prune", Request::Prune { older_than_s: 86_400, dry_run: true, from_seq: 4711 }),
        (
            "request_clean",
            Request::Clean(Clean {
                older_than_s: 86_400,
                apply: true,
                failed: true,
                from_seq: 4711,
            }),
        ),
        ("request_close", Request::Close { id: id.clone() }),
        ("request_wait", Request::Wait { ids: vec![id.clone(), "mmmm".into()] }),
        ("request_wait_any", Request::WaitAny { ids: vec![id, "mmmm".into()] }),
        ("request_stop", Request::Stop { agents: "keep".into() }),
        ("request_ping", Request::Ping),
        ("request_bead", Request::Bead { key: "m2mzcvqd".into(), op: r#"{"op":"ready"}"#.into() }),
        ("request_run", Request::Run(Box::new(run()))),
        ("request_run_amend", Request::RunAmend(Box::new(run()))),
        (
            "request_run_events",
            Request::RunEvents {
                run_id: "run-2026-02-12-a1b2c3".into(),
                from_seq: 3,
                follow: true,
            },
        ),
        ("request_run_stop", Request::RunStop { run_id: "run-2026-02-12-a1b2c3".into() }),
        ("request_tasks_run", Request::TasksRun(Box::new(tasks_run()))),
        ("request_tasks_wait", Request::TasksWait { id: "lstabcde".into() }),
        ("request_tasks_stop", Request::TasksStop { id: "/repo".into(), now: true }),
        ("request_unknown", Request::Unknown),
    ];
    let trace = text("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let requests = requests.into_iter().chain(conversation::requests());
    samples
        .extend(requests.map(|(name, body)| {
            (name, ClientFrame::Request { id: 7, trace: trace.clone(), body })
        }));
    samples
}

fn error() -> WireError {
    WireError {
        code: "E_CONFIG_INVALID".into(),
        message: "no key `modle`".into(),
        hint: text("did you mean `model`?"),
        dispatch_id: text("k3f9abcd"),
        run_id: None,
        file: text("/home/u/c.yaml"),
        line: Some(3),
        column: Some(5),
        // Added later: samples without it must still decode.
        snippet: None,
    }
}

pub fn status() -> DispatchStatus {
    DispatchStatus {
        id: "k3f9abcd".into(),
        role: "developer".into(),
        project: "/home/u/web".into(),
        feature: "flaky".into(),
        state: "success".into(),
        since: "2026-01-02T03:04:05.678Z".into(),
        backend: "claude-code".into(),
        model: text("claude-opus-4-6"),
        model_source: text("role"),
        session_id: text("0d2f8a34"),
        turns: 3,
        attempts: 2,
        last_activity: text("2026-01-02T03:04:04.000Z"),
        cost_usd: 0.42,
        tokens: Tokens { input: 1200, output: 340, cache_read: 56_000, cache_write: 7 },
        worktree: text("/home/u/web/.muleteer/worktrees/k3f9abcd"),
        journal: text("/home/u/web/.agents/journals/flaky/k3f9abcd.md"),
        pid: Some(4242),
        reason: text("turn limit"),
        // Added later.
        until: None,
        containment: text("cgroup"),
        waiting_for: vec![],
        result: Some(ResultDoc {
            status: "success".into(),
            summary: "Fixed".into(),
            changes: texts(&["tests/net.rs"]),
            issues: texts(&["slow"]),
            questions: texts(&["why?"]),
            pr_url: text("https://example.org/pr/1"),
        }),
        // Added later.
        work: None,
        title: None,
        spec: None,
        task: None,
        access: None,
    }
}

fn tree() -> TreeNode {
    let leaf = TreeNode {
        name: "life".into(),
        strategy: "-".into(),
        restart: "permanent".into(),
        restarts_in_window: 2,
        state: "running".into(),
        children: vec![],
        process: Some(ProcessStatus { pid: 4242, rss_bytes: 135_168, cpu_percent: 12.5 }),
    };
    TreeNode {
        name: "root".into(),
        strategy: "one-for-one".into(),
        restart: "permanent".into(),
        restarts_in_window: 0,
        state: "running".into(),
        children: vec![leaf],
        process: None,
    }
}

pub fn server_samples() -> Vec<(&'static str, ServerFrame)> {
    let welcome = Welcome {
        version: 1,
        daemon_pid: 4000,
        daemon_version: "0.1.0".into(),
        identity: "operator".into(),
        state_dir: "/home/u/.local/state/muleteer".into(),
        telemetry: None,
    };
    let exporting =
        |endpoint| Welcome { telemetry: Some(Telemetry { endpoint }), ..welcome.clone() };
    let (exports, exports_nothing) = (exporting(text("http://127.0.0.1:4318")), exporting(None));
    let daemon = DaemonStatus {
        running: true,
        pid: Some(4000),
        version: text("0.1.0"),
        socket: text("/run/user/1000/muleteer/x/daemon.sock"),
        config_faults: vec![],
        role_faults: vec![],
    };
    let line = r#"{"crc":"00000000","v":1,"seq":9}"#.to_string();
    let mut samples = vec![
        ("welcome_exports", ServerFrame::Welcome(exports)),
        ("welcome_exports_nothing", ServerFrame::Welcome(exports_nothing)),
        ("welcome", ServerFrame::Welcome(welcome)),
        ("refused", ServerFrame::Refused { error: error() }),
        ("item_event", ServerFrame::Item { id: 7, item: Item::Event { seq: 9, line } }),
        ("item_dispatch", ServerFrame::Item { id: 7, item: Item::Dispatch(Box::new(status())) }),
        ("item_unknown", ServerFrame::Item { id: 7, item: Item::Unknown }),
        ("error", ServerFrame::Error { id: 7, error: error() }),
        ("server_unknown", ServerFrame::Unknown),
    ];
    let items = conversation::items();
    samples.extend(items.map(|(name, item)| (name, ServerFrame::Item { id: 7, item })));
    let dispatch_id = String::from("k3f9abcd");
    let replies = [
        (
            "reply_spawned",
            Reply::Spawned { dispatch_id: dispatch_id.clone(), warnings: vec![], access: None },
        ),
        (
            "reply_status",
            Reply::Status(StatusReport {
                daemon,
                dispatches: vec![status()],
                archived: 0,
                run_questions: vec![],
            }),
        ),
        ("reply_tree", Reply::Tree(tree())),
        ("reply_sent", Reply::Sent { dispatch_id: dispatch_id.clone(), queued: true }),
        ("reply_done", Reply::Done { dispatch_id, note: text("it had ended") }),
        (
            "reply_answered",
            Reply::Answered {
                dispatch_id: "k3f9abcd".into(),
                request_id: "r1".into(),
                answer: "deny".into(),
            },
        ),
        (
            "reply_pruned",
            Reply::Pruned {
                dispatches: 200,
                bytes: 5 << 20,
                next_seq: Some(9),
                faults: vec!["abcdefgh: denied".into()],
                threads: 0,
            },
        ),
        ("reply_cleaned", Reply::Cleaned(cleaned())),
        ("reply_waited", Reply::Waited { dispatches: vec![status()] }),
        ("reply_stopping", Reply::Stopping { agents_alive: 2, lease_s: 28_800 }),
        ("reply_end_of_events", Reply::EndOfEvents { next_seq: 10 }),
        ("reply_pong", Reply::Pong),
        ("reply_beads", Reply::Beads { answer: r#"{"beads":[]}"#.into() }),
        ("reply_run_up", Reply::RunUp { run_id: "run-2026-02-12-a1b2c3".into(), warnings: vec![] }),
        (
            "reply_tasks_started",
            Reply::TasksStarted { id: "lstabcde".into(), from_seq: 7, warnings: vec![] },
        ),
        ("reply_tasks_ended", Reply::TasksEnded(tasks_ended())),
        ("reply_unknown", Reply::Unknown),
    ];
    let replies = replies.into_iter().chain(conversation::replies());
    samples.extend(replies.map(|(name, body)| (name, ServerFrame::Reply { id: 7, body })));
    samples
}

fn cleaned() -> Cleaned {
    Cleaned {
        removed: vec![Removed {
            path: "/repo/.muleteer/worktrees/abcdefgh".into(),
            bytes: 5 << 20,
            dispatch_id: text("abcdefgh"),
        }],
        archived: vec![Archived {
            path: "/repo/.agents/journals/login/abcdefgh.md".into(),
            to: "/repo/.agents/journals/archive/login/abcdefgh.md".into(),
            dispatch_id: text("abcdefgh"),
        }],
        kept: vec![Kept {
            path: "/repo/.muleteer/worktrees/tasks".into(),
            reason: "the workers of task lists use it again".into(),
            dispatch_id: None,
        }],
        next_seq: Some(9),
        faults: 2,
        // The sample is from before events could be removed, or output compressed.
        events: None,
        compressed: None,
    }
}
