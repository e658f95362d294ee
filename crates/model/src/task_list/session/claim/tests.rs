use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().expect("an instant")
}

fn list(mode: Mode) -> TaskList {
    let mut list = TaskList::new(at("2025-07-01T10:00:00Z"));
    list.mode = mode;
    list.tasks = ["a", "b"].map(|id| Task::new(id, id)).into();
    list.tasks[1].depends_on = vec!["a".into()];
    list
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn a_longer_lease_is_not_cut_short_by_progress() {
    let now = at("2025-07-01T10:00:00Z");
    let mut list = list(Mode::Concurrent);
    claim(&mut list, "a", "me", "abc", now, 2 * LEASE).expect("claimed");
    let end = list.tasks[0].lease_expires_at;
    renew(&mut list, "a", "me", now, LEASE).expect("renewed");
    claim(&mut list, "a", "me", "abc", now, LEASE).expect("once more");
    assert_eq!(list.tasks[0].lease_expires_at, end);
    renew(&mut list, "a", "me", now, 3 * LEASE).expect("renewed");
    assert!(list.tasks[0].lease_expires_at > end);
    set_lease(&mut list, "a", "me", now, MINUTE).expect("as it was said");
    assert_eq!(list.tasks[0].lease_expires_at, Some(at("2025-07-01T10:01:00Z")));
}

#[test]
fn harness_fields_of_a_running_task_are_restored() {
    let now = at("2025-07-01T10:00:00Z");
    for mode in [Mode::Exclusive, Mode::Concurrent] {
        let mut list = list(mode);
        claim(&mut list, "a", "me", "abc", now, LEASE).expect("claimed");
        let begun = list.tasks[0].clone();
        crate::task_list::outcome::checkpoint(&mut list.tasks[0], 1, 2, "half", None, now);
        assert!(is_kept(&list, &begun, "me"), "its agent may do that");
        assert_eq!(put_back(&mut list, &begun, "me", now), Ok(vec![]));
        let kept = list.clone();
        for status in [Status::Completed, Status::Failed, Status::Pending, Status::InProgress] {
            let task = &mut list.tasks[0];
            (task.status, task.attempts, task.completed_at) = (status, 7, Some("now".into()));
            task.command = Some("true".into());
            assert!(!is_kept(&list, &begun, "me"));
            let said = put_back(&mut list, &begun, "me", now).expect("it is still ours");
            assert!(said[0].contains("attempts, completed_at in harness-tasks.json"), "{said:?}");
            assert!(said[1].contains("validation.command"), "{said:?}");
            list.tasks[0].command = None;
            assert_eq!(list.tasks, kept.tasks, "{status:?}");
        }
        release(&mut list.tasks[0]);
        let said = put_back(&mut list, &begun, "me", now).expect("ours");
        assert_eq!((said.len(), said[0].contains("no longer said")), (1, true), "{said:?}");
        // A concurrent list keeps the claim of another worker. An exclusive list has no other
        // worker.
        list.tasks[0].claimed_by = Some("other".into());
        assert_eq!(put_back(&mut list, &begun, "me", now).is_ok(), mode == Mode::Exclusive);
    }
    let mut list = list(Mode::Concurrent);
    claim(&mut list, "a", "me", "abc", now, MINUTE).expect("claimed");
    let begun = list.tasks[0].clone();
    let later = at("2025-07-01T11:00:00Z");
    expire(&mut list, "other", later, &[]);
    let mut again = list.clone();
    assert!(
        put_back(&mut again, &begun, "me", later)
            .is_ok_and(|said| said[0].contains("claim expired"))
    );
    assert_eq!((again.tasks[0].status, again.tasks[0].attempts), (Status::InProgress, 1));
    claim(&mut list, "a", "other", "abc", later, MINUTE).expect("its turn");
    crate::task_list::outcome::complete(&mut list.tasks[0], later);
    assert_eq!(put_back(&mut list, &begun, "me", later), Err(Refused::Completed("a".into())));
}

#[test]
fn times_are_whole_seconds_and_round_trip() {
    let now = at("2025-07-01T10:00:00.987654321Z");
    let mut list = list(Mode::Concurrent);
    claim(&mut list, "a", "me", "abc", now, MINUTE).expect("claimed");
    assert_eq!(list.tasks[0].lease_expires_at, Some(at("2025-07-01T10:01:00Z")));
    assert!(
        list.to_text().contains("\"lease_expires_at\": \"2025-07-01T10:01:00Z\""),
        "{}",
        list.to_text()
    );
    crate::task_list::outcome::fail(&mut list.tasks[0], Category::TaskExec, "x", now);
    list.tasks[1].lease_expires_at = Some(now);
    let text = list.to_text();
    assert!(
        text.contains("\"failed_at\": \"2025-07-01T10:00:00Z\"") && !text.contains(".98"),
        "{text}"
    );
    assert_eq!(TaskList::parse(&text).expect("reads").tasks[0].failed_at, list.tasks[0].failed_at);
    // The spelling of another tool is preserved.
    let other = text.replace("10:00:00Z", "10:00:00.5Z");
    assert_eq!(TaskList::parse(&other).expect("reads").to_text(), other);
}

#[test]
fn exclusive_list_allows_one_claim_at_a_time() {
    let now = at("2025-07-01T10:00:00Z");
    let mut exclusive = list(Mode::Exclusive);
    exclusive.tasks.push(Task::new("c", "c"));
    assert_eq!(in_hand(&exclusive, Some("c"), now), None);
    claim(&mut exclusive, "a", "me", "abc", now, MINUTE).expect("claimed");
    assert_eq!(in_hand(&exclusive, Some("a"), now), None);
    for id in [Some("c"), None] {
        assert!(matches!(in_hand(&exclusive, id, now),
                Some(Refused::Held { task, .. }) if task == "a"));
        let later = at("2025-07-01T10:02:00Z");
        assert_eq!(in_hand(&exclusive, id, later), Some(Refused::Interrupted("a".into())));
    }
    // Other tools may have left an interrupted task; the live worker is named first.
    exclusive.tasks[1].status = Status::InProgress;
    exclusive.tasks.swap(0, 1);
    assert!(matches!(in_hand(&exclusive, None, now),
            Some(Refused::Held { task, .. }) if task == "a"));
    exclusive.mode = Mode::Concurrent;
    assert_eq!(in_hand(&exclusive, Some("c"), now), None);
}

#[test]
fn task_claimed_by_another_worker_is_not_recovered() {
    let now = at("2025-07-01T10:00:00Z");
    let later = at("2025-07-01T10:01:00Z");
    for mode in [Mode::Exclusive, Mode::Concurrent] {
        let mut list = list(mode);
        assert!(
            matches!(recoverable(&list, "a", "w2", now), Err(Refused::NotYours { .. })),
            "nobody began it"
        );
        assert!(matches!(recoverable(&list, "c", "w2", now), Err(Refused::Unknown(_))));
        claim(&mut list, "a", "w1", "x", now, MINUTE).expect("claims");
        assert!(matches!(recoverable(&list, "a", "w2", now),
                Err(Refused::Held { by, .. }) if by == "w1"));
        assert_eq!(recoverable(&list, "a", "w1", now), Ok(()), "its own");
        assert_eq!(recoverable(&list, "a", "w2", later), Ok(()), "its lease is over");
        list.tasks[1].status = Status::InProgress;
        let beside = recoverable(&list, "b", "w2", now);
        assert_eq!(
            beside.is_err(),
            mode == Mode::Exclusive,
            "in the directory of another: {beside:?}"
        );
    }
}

#[test]
fn a_claim_sets_status_worker_lease_and_base() {
    let mut list = list(Mode::Concurrent);
    let now = at("2025-07-01T10:00:00Z");
    claim(&mut list, "a", "w1", "def5678", now, LEASE).expect("claims");
    let task = &list.tasks[0];
    assert_eq!((task.status, task.claimed_by.as_deref()), (Status::InProgress, Some("w1")));
    assert_eq!(task.started_at_commit.as_deref(), Some("def5678"));
    assert_eq!(task.lease_expires_at, Some(at("2025-07-01T10:15:00Z")), "fifteen minutes");
    claim(&mut list, "a", "w1", "other", now, LEASE).expect("its own claim again");
    assert_eq!(list.tasks[0].started_at_commit.as_deref(), Some("def5678"), "the base stays");
}

#[test]
fn if_the_claim_fails_another_task_is_to_be_picked() {
    let mut list = list(Mode::Concurrent);
    let now = at("2025-07-01T10:00:00Z");
    claim(&mut list, "a", "w1", "x", now, LEASE).expect("claims");
    let before = list.clone();
    assert!(matches!(claim(&mut list, "a", "w2", "x", now, LEASE), Err(Refused::Held { .. })));
    assert!(matches!(claim(&mut list, "b", "w2", "x", now, LEASE), Err(Refused::Waits { .. })));
    assert!(matches!(claim(&mut list, "c", "w2", "x", now, LEASE), Err(Refused::Unknown(_))));
    assert_eq!(list, before, "a refused claim changes nothing");
    let later = at("2025-07-01T11:00:00Z");
    assert!(matches!(claim(&mut list, "a", "w2", "x", later, LEASE), Err(Refused::Interrupted(_))));
}

#[test]
fn only_the_holder_renews_and_a_release_leaves_no_trace() {
    let mut list = list(Mode::Concurrent);
    let now = at("2025-07-01T10:00:00Z");
    claim(&mut list, "a", "w1", "x", now, MINUTE).expect("claims");
    assert!(matches!(renew(&mut list, "a", "w2", now, MINUTE), Err(Refused::NotYours { .. })));
    renew(&mut list, "a", "w1", at("2025-07-01T10:00:30Z"), MINUTE).expect("renews");
    assert_eq!(list.tasks[0].lease_expires_at, Some(at("2025-07-01T10:01:30Z")));
    release(&mut list.tasks[0]);
    assert_eq!((list.tasks[0].status, list.tasks[0].is_held(now)), (Status::Pending, false));
}

#[test]
fn concurrent_recovers_only_its_own_and_stale_ones_exclusive_all() {
    let now = at("2025-07-01T10:00:00Z");
    let later = at("2025-07-01T10:30:00Z");
    for (mode, worker, when, found) in [
        (Mode::Exclusive, "w2", now, 1),
        (Mode::Concurrent, "w2", now, 0),
        (Mode::Concurrent, "w1", now, 1),
        (Mode::Concurrent, "w2", later, 1),
    ] {
        let mut list = list(mode);
        claim(&mut list, "a", "w1", "x", now, LEASE).expect("claims");
        assert_eq!(interrupted(&list, worker, when, &[]).len(), found, "{mode:?} {worker} {when}");
        assert!(
            interrupted(&list, worker, when, &["a".into()]).is_empty(),
            "what lives was not interrupted"
        );
    }
}

#[test]
fn exclusive_claim_ends_with_its_worker() {
    let now = at("2025-07-01T10:00:00.5Z");
    for mode in [Mode::Exclusive, Mode::Concurrent] {
        let mut list = list(mode);
        claim(&mut list, "a", "w1", "x", now, LEASE).expect("claims");
        end_leases(&mut list, &["w2".into()], now);
        assert!(list.tasks[0].is_held(now), "somebody else is gone");
        end_leases(&mut list, &["w1".into()], now);
        assert_eq!(list.tasks[0].is_held(now), mode == Mode::Concurrent);
        assert_eq!(recoverable(&list, "a", "w2", now).is_ok(), mode == Mode::Exclusive);
    }
}

#[test]
fn reclaimed_task_is_not_supervised() {
    let (now, later) = (at("2025-07-01T10:00:00Z"), at("2025-07-01T11:00:00Z"));
    let mut list = list(Mode::Concurrent);
    claim(&mut list, "a", "gone", "abc", now, LEASE).expect("claims");
    let seen = list.tasks[0].clone();
    assert!(matches!(is_stale(&seen, &seen, "us", now), Err(Refused::Held { .. })));
    assert_eq!(is_stale(&seen, &seen, "us", later), Ok(()));
    renew(&mut list, "a", "gone", later, LEASE).expect("alive after all");
    assert!(is_stale(&list.tasks[0], &seen, "us", later).is_err());
    list.tasks[0].claimed_by = Some("us".into());
    assert_eq!(
        is_stale(&list.tasks[0], &seen, "us", later),
        Ok(()),
        "a predecessor of ours took it over"
    );
    crate::task_list::outcome::complete(&mut list.tasks[0], later);
    assert!(matches!(is_stale(&list.tasks[0], &seen, "us", later), Err(Refused::NotYours { .. })));
}

#[test]
fn claim_ends_with_its_process() {
    let mut list = list(Mode::Concurrent);
    let now = at("2025-07-01T10:00:00Z");
    claim(&mut list, "a", "w1", "x", now, LEASE).expect("claims");
    assert!(expire(&mut list, "w2", at("2025-07-01T10:14:59Z"), &[]).is_empty());
    let later = at("2025-07-01T10:15:00Z");
    assert!(expire(&mut list, "w1", later, &[]).is_empty(), "its own is recovered, not expired");
    assert_eq!(expire(&mut list, "w2", later, &[]), ["a"]);
    assert_eq!(list.tasks[0].error_log, ["[SESSION_TIMEOUT] the claim of w1 has expired"]);
    claim(&mut list, "a", "w2", "x", later, LEASE).expect("it may be tried again");
}
