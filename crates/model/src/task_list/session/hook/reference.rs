//! Tests of the rules that the hooks have from the reference's.

use super::*;
use crate::task_list::outcome;

fn now() -> Timestamp {
    "2025-07-01T10:00:00Z".parse().expect("an instant")
}

fn list(text: &str) -> TaskList {
    TaskList::parse(text).expect("a list")
}

fn is_refused(answer: &Answer) -> bool {
    matches!(answer, Answer::Refuse(_))
}

#[test]
fn attempts_of_an_unseen_session_count_towards_its_limit() {
    let mut list = list(
        r#"{"session_count":2,"session_config":{"max_tasks_per_session":1},"tasks":[
            {"id":"a","status":"completed","attempts":9},{"id":"b"},{"id":"c"}]}"#,
    );
    let stops = |list: &TaskList, logged| {
        let mut memory = Memory::uncounted(list, logged);
        !is_refused(&stop(list, &mut memory, false, Some("w"), &FailureTimes::new(), now()))
    };
    assert!(!stops(&list, 0), "the attempts of earlier sessions are not this session's");
    assert!(stops(&list, 1), "the log has one attempt of this session");
    list.mode = Mode::Concurrent;
    assert!(!stops(&list, 1), "in a concurrent list nobody knows whose attempts they are");
}

#[test]
fn session_that_is_not_counted_stops_when_no_session_is_left() {
    let list =
        list(r#"{"session_count":5,"session_config":{"max_sessions":5},"tasks":[{"id":"a"}]}"#);
    let stops = |mut memory| {
        !is_refused(&stop(&list, &mut memory, false, Some("w"), &FailureTimes::new(), now()))
    };
    assert!(stops(Memory::uncounted(&list, 0)));
    assert!(!stops(Memory::counted(&list)), "the fifth session works");
}

#[test]
fn stop_without_a_session_is_refused_while_any_task_is_in_progress() {
    for mode in ["exclusive", "concurrent"] {
        let list = list(&format!(
            r#"{{"session_config":{{"concurrency_mode":"{mode}"}},"tasks":[
                {{"id":"a","status":"in_progress","claimed_by":"x",
                  "lease_expires_at":"2025-07-01T11:00:00Z"}}]}}"#
        ));
        let answer = |worker| {
            let mut memory = Memory::default();
            stop(&list, &mut memory, true, worker, &FailureTimes::new(), now())
        };
        assert!(is_refused(&answer(None)), "{mode}");
        assert!(!is_refused(&answer(Some("y"))), "{mode}: it is another worker's");
    }
}

#[test]
fn subagent_stop_is_refused_once_while_nobody_knows_whose_a_task_is() {
    let claimed = |mode: &str, by: &str| {
        list(&format!(
            r#"{{"session_config":{{"concurrency_mode":"{mode}"}},"tasks":[
                {{"id":"a","title":"Mine","status":"in_progress","claimed_by":{by}}}]}}"#
        ))
    };
    let names = ["w".to_string()];
    let answer = |list: &TaskList, is_named, is_repeated| {
        let subagent = Subagent { names: &names, is_named, is_repeated };
        subagent_stop(list, &mut Memory::default(), is_repeated, subagent)
    };
    for (mode, by, is_named, wanted) in [
        ("exclusive", "null", true, true),
        ("exclusive", "\"x\"", true, false),
        ("concurrent", "null", true, false),
        ("concurrent", "\"x\"", true, false),
        ("concurrent", "\"x\"", false, true),
        ("exclusive", "\"x\"", false, true),
    ] {
        let list = claimed(mode, by);
        let first = answer(&list, is_named, false);
        assert_eq!(is_refused(&first), wanted, "{mode} {by} {is_named}");
        assert_eq!(answer(&list, is_named, true), Answer::Silent, "{mode} {by} {is_named}");
        if !is_named {
            assert!(format!("{first:?}").contains("worker identity"), "{first:?}");
        }
    }
    let own = claimed("concurrent", "\"w\"");
    assert!(is_refused(&answer(&own, true, false)) && is_refused(&answer(&own, true, true)));
}

#[test]
fn teammate_with_a_task_may_not_idle() {
    let of = |by: &str, lease: &str| {
        list(&format!(
            r#"{{"session_count":9,"session_config":{{"max_sessions":9}},"tasks":[
                {{"id":"a","title":"Mine","status":"in_progress","claimed_by":"{by}",
                  "lease_expires_at":{lease}}}]}}"#
        ))
    };
    let names = ["ann".to_string(), "w-123".to_string()];
    let answer = |list: &TaskList| {
        let mut memory = Memory::counted(list);
        teammate_idle(list, &mut memory, "ann", &names, &FailureTimes::new(), now())
    };
    for by in ["ann", "w-123", "w-123/sub"] {
        for lease in ["null", "\"2025-07-01T11:00:00Z\"", "\"2025-07-01T09:00:00Z\""] {
            let Answer::Refuse(text) = answer(&of(by, lease)) else { panic!("{by} {lease}") };
            assert!(text.contains("You have claimed a (Mine)"), "{text}");
        }
    }
    for (by, lease, wanted) in [
        ("bob", "null", false),
        ("bob", "\"2025-07-01T11:00:00Z\"", false),
        ("bob", "\"2025-07-01T09:00:00Z\"", true),
        ("annabel", "null", false),
    ] {
        assert_eq!(is_refused(&answer(&of(by, lease))), wanted, "{by} {lease}");
    }
}

#[test]
fn abandoned_task_of_a_concurrent_list_keeps_workers_at_work() {
    let of = |by: &str, lease: &str| {
        list(&format!(
            r#"{{"session_config":{{"concurrency_mode":"concurrent"}},"tasks":[
                {{"id":"a","status":"in_progress","claimed_by":{by},"lease_expires_at":{lease}}},
                {{"id":"b","depends_on":["a"]}}]}}"#
        ))
    };
    for (by, lease, wanted) in [
        ("\"x\"", "\"2025-07-01T09:00:00Z\"", true),
        ("\"x\"", "\"2025-07-01T11:00:00Z\"", false),
        ("\"x\"", "null", false),
        ("null", "null", true),
    ] {
        let list = of(by, lease);
        let failures = FailureTimes::new();
        let mut memory = Memory::counted(&list);
        let stops = stop(&list, &mut memory, false, Some("w"), &failures, now());
        let names = ["ann".to_string()];
        let idles = teammate_idle(&list, &mut memory, "ann", &names, &failures, now());
        assert_eq!(is_refused(&stops), wanted, "{by} {lease}: {stops:?}");
        assert_eq!(is_refused(&idles), wanted, "{by} {lease}: {idles:?}");
    }
}

#[test]
fn stop_that_is_allowed_with_work_left_is_no_silent_one() {
    let list = list(r#"{"tasks":[{"id":"a"}]}"#);
    let mut memory = Memory::counted(&list);
    let answers: Vec<_> = (0..7)
        .map(|at| stop(&list, &mut memory, at > 0, Some("w"), &FailureTimes::new(), now()))
        .collect();
    assert!(answers[..5].iter().all(is_refused), "{answers:?}");
    assert_eq!(answers[5..], [Answer::GiveUp, Answer::GiveUp]);
}

#[test]
fn number_of_reviews_is_configurable() {
    let mut list = list(r#"{"tasks":[{"id":"a"}]}"#);
    outcome::complete(&mut list.tasks[0], now());
    for most in [0, 1, 7] {
        let mut memory = Memory::default();
        let given = (0..9).filter(|_| self_reflect(&list, &mut memory, most) != Answer::Silent);
        assert_eq!(given.count(), most as usize);
    }
}
