//! The effect of single events on the state, where no decision shows it; other code reads that
//! state directly.

use crate::dispatch::life::tests::*;

fn asked(key: &str, model: &str) -> Event {
    Event::ModelRequested { key: key.into(), model: model.into(), by: "operator".into() }
}

fn refused(key: &str) -> Event {
    Event::ModelRefused { key: key.into(), reason: "no".into() }
}

fn called(call_id: &str, parent: Option<&str>) -> Event {
    Event::ToolCalled {
        call_id: call_id.into(),
        tool: "Bash".into(),
        target: String::new(),
        parent: parent.map(String::from),
    }
}

fn between_turns() -> Phase {
    let (turn, process) = (Turn::None, Box::default());
    Phase::Working { attempt: 1, epoch: 1, pid: 2, shim_pid: 1, turn, process }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

#[test]
fn records_before_the_position_are_ignored() {
    let mut told = Told::busy();
    let before = told.d.position;
    let ahead = told.next();
    assert!(told.feed(Input::Read { at: ahead }));
    assert_eq!(told.d.position, ahead);
    assert!(!told.feed(Input::Read { at: ahead }) && !told.feed(Input::Read { at: before }));
    let line = |at| Input::Line { at, events: vec![AgentEvent::Result(well())] };
    assert!(!told.feed(line(ahead)) && !told.feed(line(before)));
    assert_eq!(told.d.position, ahead);
    let next = told.next();
    assert!(told.feed(line(next)));
}

#[test]
fn only_a_running_process_has_a_pid() {
    let mut told = Told::new(MULTI);
    assert_eq!(told.d.pid(), None);
    told.admit();
    assert_eq!(told.d.pid(), None, "not yet");
    told.spawn();
    assert_eq!(told.d.pid(), Some(2));
    told.exit(1);
    assert_eq!(told.d.pid(), None, "no more");
}

#[test]
fn refused_model_keeps_the_previous_choice() {
    let mut told = Told::busy();
    told.fold(None, asked("m1", "large"));
    assert_eq!(told.d.model.wanted.as_deref(), Some("large"));
    told.fold(None, Event::ModelChanged { key: "m1".into(), model: "large".into() });
    assert_eq!((told.d.session.model.as_deref(), &told.d.model.change), (Some("large"), &None));
    told.fold(None, asked("m2", "huge"));
    told.fold(None, refused("m1"));
    assert_eq!(
        told.d.model.wanted.as_deref(),
        Some("huge"),
        "that answer was to an earlier request"
    );
    told.fold(None, Event::ModelChanged { key: "m1".into(), model: "large".into() });
    assert!(told.d.model.change.is_some(), "and so was this one");
    told.fold(None, refused("m2"));
    assert_eq!((told.d.model.wanted.as_deref(), &told.d.model.change), (Some("large"), &None));
}

/// The CLI's answer decides which model it uses from now on.
#[test]
fn answer_to_a_model_change_is_recorded() {
    for (ok, event) in [
        (true, Event::ModelChanged { key: "m1".into(), model: "large".into() }),
        (false, Event::ModelRefused { key: "m1".into(), reason: "no such model".into() }),
    ] {
        let mut told = Told::busy();
        told.fold(None, asked("m1", "large"));
        let reply =
            |id: &str| vec![AgentEvent::Reply { id: id.into(), ok, text: "no such model".into() }];
        assert!(!told.line(reply("i1")), "that was another request");
        assert!(told.line(reply("m1")));
        assert_eq!(told.log.last(), Some(&event));
        assert!(!told.line(reply("m1")), "it has been answered");
    }
}

#[test]
fn finished_dispatch_ignores_kills_and_waits() {
    let late = [
        Event::KillRequested { reason: "late".into(), by: "operator".into() },
        Event::ApiGivenUp { trouble: Trouble::Error, status: None, reason: "late".into() },
        Event::ApiWaiting {
            trouble: Trouble::RateLimit,
            status: None,
            until: at(100),
            told: true,
            waits: 1,
            spent_ms: 0,
        },
    ];
    for event in late {
        let mut told = Told::spawned(ONE_SHOT);
        told.exit(0);
        told.fold(None, event);
        assert_eq!(
            (told.finished(), &told.d.stop, &told.d.outage),
            (FinalState::Success, &None, &None)
        );
    }
}

/// Two reasons to stop may be decided at once: the first one is reported. A kill overrides both.
#[test]
fn first_stop_is_the_reason_unless_a_kill_follows() {
    let stops = || {
        [
            Event::LimitReached { limit: Limit::Budget, detail: "spent".into() },
            Event::StallDetected { silent_s: 300, evidence: "no output".into() },
            Event::ApiGivenUp { trouble: Trouble::Error, status: None, reason: "no answer".into() },
        ]
    };
    for first in stops() {
        let mut told = Told::busy();
        told.fold(None, first);
        let why = told.d.stop.clone();
        assert!(why.is_some());
        stops().into_iter().for_each(|later| told.fold(None, later));
        assert_eq!(told.d.stop, why);
        told.fold(None, Event::KillRequested { reason: "enough".into(), by: "operator".into() });
        assert_eq!(told.d.stop, Some(Stop::Kill { reason: "enough".into() }));
    }
}

/// Use that is reported as a sum, or for a process that is gone, does not prove that the API
/// answered.
#[test]
fn only_fresh_usage_ends_an_outage() {
    let used = |cumulative| Event::UsageRecorded {
        model: "m".into(),
        input: 1,
        output: 1,
        cache_read: 0,
        cache_write: 0,
        cost_usd: 0.1,
        cumulative,
        total_usd: None,
    };
    for (cumulative, gone, goes_on) in
        [(false, false, false), (true, false, true), (false, true, true), (true, true, true)]
    {
        let mut told = Told::busy();
        told.fold(
            None,
            Event::ApiRetried {
                attempt: 1,
                max: 9,
                status: Some(529),
                delay_s: 1.0,
                awake_ms: None,
            },
        );
        if gone {
            told.exit(1);
        }
        told.fold(None, used(cumulative));
        assert_eq!(told.d.outage.is_some(), goes_on, "cumulative: {cumulative}, gone: {gone}");
    }
}

/// A prompt that was sent and never received counts as unsent for the next process.
#[test]
fn a_prompt_without_a_receipt_waits_for_the_next_process() {
    let mut told = Told::spawned(MULTI);
    let state = |told: &Told| told.d.prompt("p1").unwrap().state;
    told.fold(None, Event::PromptSent { key: "p1".into() });
    assert_eq!(state(&told), PromptState::Sent);
    told.exit(1);
    assert_eq!(state(&told), PromptState::Sent);
    let Phase::Backoff { until, .. } = told.d.phase else { panic!("no pause: {:?}", told.d.phase) };
    told.now = until;
    told.settle();
    assert_eq!(
        (state(&told), &told.d.phase),
        (PromptState::Queued, &Phase::Starting { attempt: 2, epoch: 2, rebooted: false })
    );
}

/// To send the prompt again would do the work twice: the session has it, or the transcript decides.
#[test]
fn acknowledged_prompt_waits_only_for_a_new_session() {
    for (resume, transcripts, state) in [
        (None, false, PromptState::Queued),
        (None, true, PromptState::Taken),
        (Some("s1"), false, PromptState::Taken),
        (Some("s1"), true, PromptState::Taken),
    ] {
        let mut told = Told::busy();
        Arc::make_mut(&mut told.d.created).transcripts = transcripts;
        told.fold(
            None,
            Event::AttemptStarted { attempt: 2, epoch: 2, resume: resume.map(String::from) },
        );
        assert_eq!(
            told.d.prompt("p1").unwrap().state,
            state,
            "resumes {resume:?}, transcripts: {transcripts}"
        );
    }
}

#[test]
fn starts_that_failed_are_counted_but_not_those_that_never_could_succeed() {
    let mut told = Told::new(MULTI);
    let failed = |permanent| Event::StartFailed { epoch: 1, error: "no".into(), permanent };
    for (attempt, count) in [(1, 1), (2, 2), (3, 3)] {
        told.fold(None, Event::AttemptStarted { attempt, epoch: 1, resume: None });
        told.fold(None, failed(false));
        assert_eq!(told.d.retries.start_failures, count);
    }
    told.fold(None, Event::AttemptStarted { attempt: 4, epoch: 1, resume: None });
    told.fold(None, failed(true));
    assert_eq!(told.d.retries.start_failures, 3);
}

#[test]
fn tool_calls_are_open_from_start_to_end_once() {
    let mut told = Told::busy();
    let of = |told: &Told| {
        let calls = &told.d.process().calls;
        (calls.open.clone(), calls.by_subagents.clone())
    };
    for event in [
        called("a", None),
        called("a", None),
        called("", None),
        called("b", Some("a")),
        called("c", Some("a")),
    ] {
        told.fold(None, event);
    }
    assert_eq!(of(&told), (vec!["a".into(), "b".into(), "c".into()], vec!["b".into(), "c".into()]));
    told.fold(None, Event::ToolFinished { call_id: "b".into() });
    assert_eq!(of(&told), (vec!["a".into(), "c".into()], vec!["c".into()]));
    told.fold(None, Event::ToolFailed { call_id: "c".into(), text: String::new() });
    assert_eq!(of(&told), (vec!["a".into()], vec![]));
}

/// Open calls and requests end with the turn, and with the process.
#[test]
fn open_requests_close_with_the_turn_and_the_process() {
    let ends = [
        Event::TurnFinished { turn: 1, ok: false, error: None, status: None, text: String::new() },
        Event::AttemptStarted { attempt: 2, epoch: 2, resume: None },
        Event::AgentExited {
            epoch: 1,
            code: None,
            signal: Some(9),
            cause: ExitCause::Exited,
            stderr_tail: String::new(),
            used_ms: 0,
            left: vec![],
        },
        Event::StartFailed { epoch: 1, error: String::new(), permanent: false },
        Event::ApiWaiting {
            trouble: Trouble::Overload,
            status: None,
            until: at(9),
            told: false,
            waits: 1,
            spent_ms: 0,
        },
        Event::DispatchClosing { state: FinalState::Failed, reason: String::new() },
    ];
    for end in ends {
        let mut told = Told::busy();
        told.fold(None, called("a", None));
        told.fold(None, called("b", Some("a")));
        let ask = Box::new(crate::agent::ask::Ask::tool("Bash", json!({})));
        told.fold(
            None,
            Event::PermissionRequested {
                request_id: "r".into(),
                answered: false,
                question: true,
                ask,
            },
        );
        assert!(told.d.waits_for_an_answer());
        told.fold(None, end.clone());
        assert_eq!(told.d.process().calls, crate::dispatch::OpenCalls::new(), "{end:?}");
        assert_eq!(told.d.asks.open().count(), 0, "{end:?}");
    }
}

/// The end of a limit that the API named overrides the CLI's guesses, and a newer one replaces it.
#[test]
fn rate_limit_ends_at_the_reported_time() {
    let mut told = Told::busy();
    let said = |second| Event::RateLimited { until: Some(at(second)), wait_s: 0.0, awake_ms: None };
    let retried = |delay_s| Event::ApiRetried {
        attempt: 1,
        max: 9,
        status: Some(429),
        delay_s,
        awake_ms: None,
    };
    let of =
        |told: &Told| told.d.outage.as_ref().map(|outage| (outage.until, outage.told)).unwrap();
    told.fold(None, retried(10.0));
    assert_eq!(of(&told), (at(10), false));
    told.fold(None, said(100));
    told.fold(None, retried(10.0));
    assert_eq!(of(&told), (at(100), true), "a guess that ends sooner");
    told.fold(None, retried(100.0));
    assert_eq!(of(&told), (at(100), true), "a guess that says the same");
    told.fold(None, retried(200.0));
    assert_eq!(of(&told), (at(200), false), "whoever waits longer does no harm");
    told.fold(None, said(100));
    told.fold(None, said(50));
    assert_eq!(of(&told), (at(50), true), "its own next word");
}

#[test]
fn worktree_is_recorded() {
    let mut told = Told::new(MULTI);
    let made =
        |base: &str, again| Input::WorktreeMade { path: "/w".into(), base: base.into(), again };
    let noted = |base: &str| Event::WorktreeCreated { path: "/w".into(), base: base.into() };
    assert!(told.feed(made("abc", false)));
    assert_eq!(told.log.last(), Some(&noted("abc")));
    assert!(!told.feed(made("abc", false)), "once");
    assert!(told.feed(made("def", true)), "another one, in its place");
    assert_eq!(told.log.last(), Some(&noted("def")));
}

#[test]
fn repeated_and_late_events_change_nothing() {
    let mut told = Told::busy();
    let blocked = |told: &mut Told, epoch, on| {
        let at = Position { epoch, ..told.next() };
        told.feed(Input::Blocked { at, on })
    };
    assert!(!blocked(&mut told, 1, false), "it was not");
    assert!(blocked(&mut told, 1, true) && !blocked(&mut told, 1, true));
    assert!(!blocked(&mut told, 2, false), "of another process");
    let fetched = |told: &mut Told| told.feed(Input::WorkFetched(WorkHome::default()));
    assert!(!fetched(&mut told), "its work is not over");
    assert!(told.feed(Input::Kill { reason: "enough".into(), by: "operator".into() }));
    assert!(
        !told.feed(Input::Kill { reason: "enough".into(), by: "operator".into() }),
        "it is being killed"
    );
    told.exit(1);
    assert_eq!(told.finished(), FinalState::Killed);
    assert!(!fetched(&mut told), "it has ended");
    assert!(
        !told.feed(Input::Kill { reason: "enough".into(), by: "operator".into() }),
        "there is nothing to kill"
    );
}

/// Events of another process may be read late, when a daemon restarts. They do not change the
/// state.
#[test]
fn events_of_another_epoch_change_nothing() {
    let mut told = Told::new(MULTI);
    told.admit();
    let late = Position { epoch: 7, offset: 1, skip: 0 };
    let spawned =
        |at| Input::Spawned { at, pid: 2, shim_pid: 1, containment: "none".into(), awake_ms: 0 };
    let failed =
        |epoch| Input::StartFailed { at: None, epoch, error: "no".into(), permanent: false };
    assert!(!told.feed(spawned(late)) && !told.feed(failed(7)));
    let said = String::new();
    assert!(!told.feed(Input::ShimLost {
        epoch: 7,
        spawned: true,
        killed: 0,
        clean: true,
        awake_ms: 0,
        said,
        left: vec![],
    }));
    assert_eq!(told.d.phase, Phase::Starting { attempt: 1, epoch: 1, rebooted: false });
    assert!(told.spawn());
    assert!(!told.feed(failed(7)) && !told.feed(Input::Adopted { shim_pid: 1, epoch: 7 }));
    assert!(
        !told.feed(Input::Read { at: late })
            && !told.feed(Input::Line { at: late, events: vec![] })
    );
    assert_eq!(told.d.pid(), Some(2));
    assert!(told.feed(Input::Adopted { shim_pid: 1, epoch: 1 }));
    assert!(told.feed(failed(1)), "an exec that failed is told after the process was there");
}

/// The last allowed turn may finish what it began, and nothing new begins.
#[test]
fn a_limit_of_turns_lets_the_last_one_end() {
    let mut told = Told::busy();
    Arc::make_mut(&mut told.d.created).limits.max_turns = Some(2);
    let over = |told: &mut Told, turns| {
        told.d.usage.model_turns = turns;
        limit_reached(&told.d).is_some()
    };
    assert_eq!([1, 2, 3].map(|turns| over(&mut told, turns)), [false, false, true], "in a turn");
    told.d.phase = between_turns();
    assert_eq!(
        [1, 2].map(|turns| over(&mut told, turns)),
        [false, false],
        "nothing waits to begin"
    );
    told.send("more");
    assert_eq!([1, 2].map(|turns| over(&mut told, turns)), [false, true], "something does");
}

/// A newer daemon continues what an older one began: its keys are part of the log's format.
#[test]
fn keys_of_our_own_are_the_same_in_every_version() {
    let told = Told::new(MULTI);
    let key = |kind, n| prompt_key(&told.d.id, kind, n);
    assert_eq!(key(PromptKind::Continue, 2), "2df53254-363d-8996-a5da-a37b5f0b31aa");
    assert_eq!(key(PromptKind::Repair, 1), "a9fb0f65-ff56-8597-addd-ad6c7f4a6585");
    assert_eq!(new_session_id(&told.d), "970c999e-af0d-87cd-a2df-13c9183d74b2");
}

/// This holds even before the reached limit is recorded.
#[test]
fn stopping_or_limited_agent_gets_no_prompts() {
    let waiting = || {
        let mut told = Told::busy();
        told.fold(
            None,
            Event::PromptQueued {
                key: "p2".into(),
                kind: PromptKind::Send,
                by: "operator".into(),
                trace: None,
            },
        );
        told.d.prompts[0].state = PromptState::Done;
        told.d.phase = between_turns();
        told.d
    };
    let says = |d: &Dispatch| advance(d, Timestamp::UNIX_EPOCH);
    assert_eq!(says(&waiting()), [Event::PromptSent { key: "p2".into() }]);
    let mut stopped = waiting();
    stopped.stop = Some(Stop::Limit { limit: Limit::Timeout, detail: String::new() });
    assert_eq!(says(&stopped), []);
    let mut spent = waiting();
    spent.spend.cost_usd = 10.0;
    assert_eq!(says(&spent), []);
}
