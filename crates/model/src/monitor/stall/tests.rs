#![allow(clippy::unwrap_used)]
use crate::monitor::stall::*;
use proptest::prelude::*;
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(300);

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A watch that is polled at its own interval, in steps of one second.
struct Told {
    watch: Watch,
    now: u64,
    cpu_ms: u64,
    blocked: bool,
}

impl Told {
    fn new() -> Self {
        Self {
            watch: Watch::new(TIMEOUT, &Terms::default(), true, s(1000)),
            now: 1000,
            cpu_ms: 0,
            blocked: false,
        }
    }

    fn hear(&mut self, event: serde_json::Value) {
        let event: AgentEvent = serde_json::from_value(event).unwrap();
        let marks: Vec<_> = mark(&event, 0.0).into_iter().collect();
        self.watch.hear(&marks, s(self.now));
    }

    fn look(&mut self) -> Verdict {
        let cpu = Some(Duration::from_millis(self.cpu_ms));
        self.watch.look(Look { cpu, blocked_by_us: self.blocked }, s(self.now))
    }

    /// Lets seconds pass in which the processes use `permille` of one CPU. Returns the first second
    /// at which the agent counts as stalled.
    fn pass(&mut self, seconds: u64, permille: u64) -> Option<u64> {
        let interval = self.watch.interval().as_secs();
        for second in 1..=seconds {
            self.now += 1;
            self.cpu_ms += permille;
            if second % interval == 0 && matches!(self.look(), Verdict::Stalled(_)) {
                return Some(second);
            }
        }
        None
    }
}

/// The columns: events, CPU load of the processes, and the second of the following hour at which
/// the agent counts as stalled.
#[test]
fn the_table() {
    let call =
        json!({"type": "tool_call", "id": "t1", "name": "Bash", "input": {"command": "make"}});
    let returned = json!({"type": "tool_result", "id": "t1", "ok": true});
    let permission = json!({"type": "permission", "id": "p1"});
    let result = json!({"type": "result", "ok": true});
    let table: Vec<(&str, Vec<serde_json::Value>, u64, Option<u64>)> = vec![
        ("silent from the start", vec![], 0, Some(300)),
        ("a word, then silence", vec![json!({"type": "text", "text": "hm"})], 0, Some(300)),
        ("a heartbeat's worth of cpu", vec![], 10, Some(300)),
        ("a busy build", vec![], 900, None),
        ("a little work is work", vec![], 30, None),
        ("a tool call runs, silent and idle", vec![call.clone()], 0, None),
        ("the tool returned", vec![call.clone(), returned.clone()], 0, Some(300)),
        (
            "another tool returned",
            vec![call.clone(), json!({"type": "tool_result", "id": "t2", "ok": true})],
            0,
            None,
        ),
        (
            "one of two tools returned",
            vec![call.clone(), json!({"type": "tool_call", "id": "t2", "name": "Read"}), returned],
            0,
            None,
        ),
        ("the turn ended with a call open", vec![call, result.clone()], 0, Some(300)),
        ("a permission is pending", vec![permission.clone()], 0, None),
        (
            "it was answered",
            vec![permission.clone(), json!({"type": "permission_answer", "id": "p1"})],
            0,
            Some(300),
        ),
        (
            "an answer to something else",
            vec![permission, json!({"type": "answer", "id": "q1"})],
            0,
            None,
        ),
        (
            "a question is pending",
            vec![json!({"type": "question", "id": "q", "text": "which?"})],
            0,
            None,
        ),
        (
            "the API is tried again in 100 s",
            vec![json!({"type": "api_retry", "delay_s": 100.0})],
            0,
            Some(400 + 20),
        ),
        (
            "a rate limit of half an hour",
            vec![json!({"type": "rate_limit", "resets_in_s": 1800.0})],
            0,
            Some(2100),
        ),
        (
            "a limit that ends at a time",
            vec![json!({"type": "rate_limit", "resets_at": 900.0})],
            0,
            Some(1200),
        ),
        (
            "a limit that is only near",
            vec![json!({"type": "rate_limit", "resets_in_s": 1800.0, "warning": true})],
            0,
            Some(300),
        ),
        (
            "a limit that is over",
            vec![json!({"type": "rate_limit", "resets_in_s": -5.0, "resets_at": -3.0})],
            0,
            Some(300),
        ),
        (
            "the limit ended with its turn",
            vec![json!({"type": "rate_limit", "resets_in_s": 1800.0}), result],
            0,
            Some(300),
        ),
    ];
    for (what, events, permille, stalled) in table {
        let mut told = Told::new();
        told.look();
        for event in events {
            told.hear(event);
        }
        assert_eq!(told.pass(3600, permille), stalled, "{what}");
    }
}

/// A silent tool is never terminated, and is reported once until it shows activity again.
#[test]
fn hanging_tool_is_reported_once() {
    let call = |told: &mut Told| {
        told.hear(json!({"type": "tool_call", "id": "t1", "name": "Bash", "input": {}}))
    };
    let hangs = |told: &mut Told, seconds: u64, permille: u64| {
        let mut found = vec![];
        for second in (0..seconds).step_by(30) {
            told.now += 30;
            told.cpu_ms += permille * 30;
            match told.look() {
                Verdict::ToolHangs(quiet) => found.push((second + 30, quiet.as_secs())),
                verdict => assert!(matches!(verdict, Verdict::Alive(_)), "{verdict:?}"),
            }
        }
        found
    };
    let mut told = Told::new();
    told.look();
    call(&mut told);
    assert_eq!(hangs(&mut told, 4 * 3600, 0), [(5400, 5400)]);
    told.hear(json!({"type": "tool_output", "id": "t1", "bytes": 9}));
    assert_eq!(hangs(&mut told, 7200, 0), [(5400, 5400)], "it was heard, and is silent again");
    let mut told = Told::new();
    call(&mut told);
    assert_eq!(hangs(&mut told, 3 * 3600, 500), [], "a build in silence");
    told.hear(json!({"type": "permission", "id": "p"}));
    assert_eq!(hangs(&mut told, 3 * 3600, 0), [], "somebody is asked");
    let mut told = Told::new();
    call(&mut told);
    told.blocked = true;
    assert_eq!(hangs(&mut told, 3 * 3600, 0), [], "it is us who hold it back");
}

#[test]
fn rate_limit_with_an_end_time_delays_the_stall() {
    for (resets_in_s, resets_at, wait) in
        [(0.0, 1_900.0, 900), (60.0, 1_030.0, 60), (0.0, 400.0, 0)]
    {
        let limit =
            AgentEvent::RateLimit { resets_in_s, resets_at: Some(resets_at), warning: false };
        assert_eq!(
            mark(&limit, 1_000.0),
            Some(Mark::Api(Trouble::RateLimit, s(wait))),
            "{resets_in_s} {resets_at}"
        );
    }
}

#[test]
fn a_tool_between_two_polls_is_remembered_until_the_next() {
    let mut told = Told::new();
    told.look();
    assert!(!told.watch.tool_ran());
    told.hear(json!({"type": "tool_call", "id": "t", "name": "Bash", "input": {}}));
    assert!(told.watch.tool_ran() && told.watch.tool_runs());
    told.hear(json!({"type": "tool_result", "id": "t", "ok": true}));
    assert!(told.watch.tool_ran() && !told.watch.tool_runs());
    told.look();
    assert!(!told.watch.tool_ran());
    assert!(counts_own_cpu("subprocess") && !counts_own_cpu("acp"));
}

#[test]
fn streamed_pieces_of_text_are_not_messages() {
    let piece = |event| mark_of_piece(&serde_json::from_value(event).unwrap(), 0.0);
    assert_eq!(piece(json!({"type": "text", "text": "I be"})), None);
    assert_eq!(piece(json!({"type": "prompt", "text": "do it"})), Some(Mark::Prompted));
    let call = json!({"type": "tool_call", "id": "t", "name": "Bash", "input": {}});
    assert_eq!(piece(call), Some(Mark::ToolBegan("t".into())));
}

#[test]
fn any_output_restarts_the_silence() {
    let mut told = Told::new();
    for _ in 0..20 {
        assert_eq!(told.pass(290, 0), None);
        told.watch.hear(&[], s(told.now));
    }
    assert!(told.pass(331, 0).is_some());
}

#[test]
fn cpu_of_a_child_counts_from_its_end() {
    let mut told = Told::new();
    assert_eq!(told.pass(1000, 500), None);
    // The next poll counts ten seconds of CPU use by the busy child.
    assert_eq!(told.pass(600, 0), Some(330));
}

#[test]
fn our_own_back_pressure_is_no_silence() {
    let mut told = Told::new();
    told.blocked = true;
    assert_eq!(told.pass(3600, 0), None);
    told.blocked = false;
    assert!(told.pass(331, 0).is_some());
}

/// The daemon was stopped for an hour (by a debugger, or by a machine out of memory). The agent's
/// output of that hour is still unread.
#[test]
fn unobserved_time_is_not_silence() {
    let mut told = Told::new();
    assert_eq!(told.pass(120, 0), None);
    told.now += 3600;
    assert!(matches!(told.look(), Verdict::Quiet(_)));
    assert_eq!(told.pass(90, 0), None);
    assert!(told.pass(120, 0).is_some());
}

/// A tool may have been running, or a question pending, before this daemon began to watch.
#[test]
fn stall_takes_longer_after_a_daemon_restart() {
    let mut told =
        Told { watch: Watch::new(TIMEOUT, &Terms::default(), false, s(1000)), ..Told::new() };
    assert_eq!(told.pass(2990, 0), None);
    assert!(told.pass(30, 0).is_some());
    let mut told =
        Told { watch: Watch::new(TIMEOUT, &Terms::default(), false, s(1000)), ..Told::new() };
    told.hear(json!({"type": "text", "text": "still here"}));
    assert_eq!(told.pass(3600, 0), Some(300), "once heard, all is known");
}

/// A new daemon reconstructs the state of the turn from the events.
#[test]
fn pending_calls_stay_pending_after_a_restart() {
    let after = |known: Known| {
        let watch = Watch::new(TIMEOUT, &Terms::default(), false, s(1000)).knowing(known, s(1000));
        Told { watch, ..Told::new() }
    };
    let call = || Known { tools: vec!["t1".into()], ..Known::default() };
    let asked = || Known { asked: vec!["p1".into()], ..Known::default() };
    let limit = |since: u64, left: u64| Known {
        outage: Some((Some(s(since)), s(left))),
        ..Known::default()
    };
    assert_eq!(
        after(Known::default()).pass(3600, 0),
        Some(300),
        "nothing was pending, and that is known"
    );
    assert_eq!(after(call()).pass(3600, 0), None);
    assert_eq!(after(asked()).pass(3600, 0), None);
    assert_eq!(after(limit(900, 1800)).pass(3600, 0), Some(2100));
    let mut told = after(call());
    told.hear(json!({"type": "tool_result", "id": "t1", "ok": true}));
    assert_eq!(told.pass(3600, 0), Some(300));
    let mut told = after(asked());
    told.watch.hear(&answered("p1"), s(1000));
    assert_eq!(told.pass(3600, 0), Some(300));

    // Ten minutes of the fifteen have passed.
    for (since, left) in [(400, 300), (2000, 900)] {
        let mut told = after(limit(since, 1));
        let down = (1..=900).step_by(10).find(|_| {
            told.hear(
                json!({"type": "api_retry", "attempt": 1, "max": 9, "delay_s": 1, "status": 500}),
            );
            told.now += 10;
            matches!(told.look(), Verdict::ApiDown(Trouble::Error, _))
        });
        assert_eq!(down.map(|second| second + 9), Some(left), "since {since}");
    }
    let mut told = after(limit(1, 0));
    assert!(matches!(told.look(), Verdict::Quiet(_)), "it may have answered since");
}

#[test]
fn unknown_cpu_use_is_not_evidence() {
    let mut watch = Watch::new(s(10), &Terms::default(), true, s(0));
    let verdicts: Vec<_> = (1..=10).map(|second| watch.look(Look::default(), s(second))).collect();
    assert_eq!(verdicts[8], Verdict::Quiet(s(9)));
    assert_eq!(verdicts[9], Verdict::Stalled(s(10)));
}

#[test]
fn checks_are_neither_too_many_nor_too_few() {
    let interval = |seconds| Watch::new(s(seconds), &Terms::default(), true, s(0)).interval();
    assert_eq!([1, 2, 10, 60, 300, 420, 86_400].map(interval), [1, 1, 1, 6, 30, 30, 30].map(s));
}

#[test]
fn reported_waits_of_an_agent_are_bounded() {
    for seconds in [f64::INFINITY, f64::NAN, 1e300, -1e300] {
        let limit = AgentEvent::RateLimit {
            resets_in_s: seconds,
            resets_at: Some(seconds),
            warning: false,
        };
        let retry = AgentEvent::ApiRetry { attempt: 1, max: 1, delay_s: seconds, status: None };
        for mark in [mark(&limit, 0.0), mark(&retry, 0.0)].into_iter().flatten() {
            assert!(
                matches!(mark, Mark::Api(_, wait) if wait <= api_error::LONGEST_WAIT),
                "{mark:?}"
            );
        }
    }
    let mut watch = Watch::new(TIMEOUT, &Terms::default(), true, s(0));
    for n in 0..10_000 {
        watch.hear(&[Mark::ToolBegan(n.to_string()), Mark::Asked(n.to_string())], s(n));
    }
    assert!(watch.tools.len() <= MOST_PENDING && watch.asked.len() <= MOST_PENDING);
}

fn marks() -> impl Strategy<Value = Mark> {
    let id = || prop_oneof![Just("a".to_string()), Just("b".to_string())];
    prop_oneof![
        id().prop_map(Mark::ToolBegan),
        id().prop_map(Mark::ToolEnded),
        id().prop_map(Mark::Asked),
        id().prop_map(Mark::Answered),
        (0_u64..2000).prop_map(|wait| Mark::Api(Trouble::RateLimit, s(wait))),
        Just(Mark::Prompted),
        Just(Mark::Spoke),
        Just(Mark::TurnEnded),
    ]
}

/// A part of an agent's life: seconds until the next poll (0: output instead), CPU load in
/// permille, the output, and whether the daemon holds the output back.
fn stretches() -> impl Strategy<Value = Vec<(u64, u64, Vec<Mark>, bool)>> {
    let one = (
        0_u64..100,
        prop_oneof![Just(0_u64), 0_u64..1000],
        prop::collection::vec(marks(), 0..3),
        any::<bool>(),
    );
    prop::collection::vec(one, 1..200)
}

proptest! {
    /// A stalled agent gave no evidence of life within the timeout, and an agent without further
    /// evidence stalls in the end.
    #[test]
    fn never_with_evidence_and_always_without(story in stretches(), known in any::<bool>()) {
        let mut watch = Watch::new(TIMEOUT, &Terms::default(), known, s(0));
        let (mut now, mut cpu_ms) = (0, 0);
        // The model: pending tools and questions, the end of the API wait, and the last evidence.
        let (mut tools, mut asked, mut wait, mut last) = (BTreeSet::new(), BTreeSet::new(), 0, 0);
        for (seconds, permille, said, blocked) in story {
            if seconds == 0 {
                last = now;
                for mark in &said {
                    match mark {
                        Mark::ToolBegan(id) => drop(tools.insert(id.clone())),
                        Mark::ToolEnded(id) => drop(tools.remove(id)),
                        Mark::Asked(id) => drop(asked.insert(id.clone())),
                        Mark::Answered(id) => drop(asked.remove(id)),
                        Mark::Prompted | Mark::Spoke => {}
                        Mark::Api(_, more) => wait = wait.max(now + more.as_secs()),
                        Mark::TurnEnded => {
                            tools.clear();
                            asked.clear();
                            wait = 0;
                        }
                    }
                }
                watch.hear(&said, s(now));
                continue;
            }
            let first = now == 0;
            now += seconds;
            cpu_ms += permille * seconds;
            let look = Look { cpu: Some(Duration::from_millis(cpu_ms)), blocked_by_us: blocked };
            let pending = blocked || !tools.is_empty() || !asked.is_empty() || now < wait;
            if pending || (permille >= 10 * BUSY_PERCENT && !first && watch.cpu.is_some()) {
                last = now;
            }
            let verdict = watch.look(look, s(now));
            if matches!(verdict, Verdict::Stalled(_)) {
                prop_assert!(!pending);
                prop_assert!(now - last.max(wait.min(now)) >= TIMEOUT.as_secs(), "{now} {last} \
                    {wait}");
            }
        }
        watch.hear(&[Mark::TurnEnded], s(now));
        let mut stalled = false;
        for _ in 0..=11 {
            now += 30;
            let look = Look { cpu: Some(Duration::from_millis(cpu_ms)), blocked_by_us: false };
            stalled |= matches!(watch.look(look, s(now)), Verdict::Stalled(_));
        }
        prop_assert!(stalled);
    }
}

/// A CLI that retries is alive, but its retries are bounded.
#[test]
fn silent_api_ends_the_agent_while_its_cli_retries() {
    fn retry(status: Option<u16>) -> serde_json::Value {
        json!({"type": "api_retry", "attempt": 1, "max": 9, "delay_s": 1, "status": status})
    }
    for (status, trouble, after) in [
        (None, Trouble::NoAnswer, 15 * 60),
        (Some(500), Trouble::Error, 15 * 60),
        (Some(529), Trouble::Overload, 6 * 3600),
        (Some(429), Trouble::RateLimit, 6 * 3600),
    ] {
        let mut told = Told::new();
        told.hear(json!({"type": "prompt", "text": "do it"}));
        let end = 1000 + after;
        let down = loop {
            told.hear(retry(status));
            told.now += 60;
            if let down @ Verdict::ApiDown(..) = told.watch.look(Look::default(), s(told.now)) {
                break down;
            }
            assert!(told.now <= end, "{status:?}");
        };
        assert_eq!(down, Verdict::ApiDown(trouble, s(after)), "{status:?}");
    }
}

#[test]
fn an_answer_ends_the_trouble() {
    let mut told = Told::new();
    for _ in 0..100 {
        told.hear(
            json!({"type": "api_retry", "attempt": 1, "max": 9, "delay_s": 1, "status": 500}),
        );
        told.now += 60;
        told.hear(json!({"type": "thinking", "text": "well"}));
        assert!(matches!(told.watch.look(Look::default(), s(told.now)), Verdict::Alive(_)));
    }
}

/// The evidence names the model API where the model owed an answer.
#[test]
fn silence_after_a_request_is_the_models() {
    let prompt = || json!({"type": "prompt", "text": "do it"});
    let call = || json!({"type": "tool_call", "id": "t", "name": "Bash", "input": {}});
    let result = || json!({"type": "tool_result", "id": "t", "ok": true, "text": ""});
    let text = || json!({"type": "text", "text": "I begin"});
    for (story, model) in [
        (vec![json!({"type": "session", "model": "m"})], true),
        (vec![prompt()], true),
        (vec![prompt(), text()], false),
        (vec![prompt(), call(), result()], true),
        (vec![prompt(), call(), result(), text()], false),
        (vec![], false),
    ] {
        let mut told = Told::new();
        story.into_iter().for_each(|event| told.hear(event));
        assert!(told.pass(3000, 0).is_some());
        assert_eq!(told.watch.evidence().starts_with("the model API did not answer; "), model);
    }
}
