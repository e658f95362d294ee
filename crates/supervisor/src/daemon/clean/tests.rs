use super::*;
use crate::daemon::context::test_daemon;
use muleteer_model::config::Pool;
use muleteer_model::event::FinalState;

/// Makes a dispatch that has ended, with a journal and a directory for its clone.
fn make(daemon: &Daemon, dir: &Path, id: &str, state: FinalState) -> DispatchId {
    let id = test_daemon::id(id);
    let Event::DispatchCreated(mut created) = test_daemon::sample("dispatch_created") else {
        unreachable!()
    };
    let clone = dir.join(".muleteer/worktrees").join(id.as_str());
    let journal = dir.join(".agents/journals/login").join(format!("{id}.md"));
    for folder in [&clone, &journal.parent().expect("a folder").to_owned()] {
        std::fs::create_dir_all(folder).expect("a directory");
    }
    std::fs::write(&journal, "Status: completed\n\n## Log\n\n").expect("a file");
    created.by = "operator".into();
    created.project = dir.display().to_string();
    created.worktree = Some(clone.display().to_string());
    created.journal = journal.display().to_string();
    daemon.fold(&id, Event::DispatchCreated(created));
    let finished = Event::DispatchFinished { state, reason: "exit 1".into(), result: None };
    daemon.fold(&id, finished);
    id
}

async fn would(daemon: &Arc<Daemon>, failed: bool, from_seq: u64) -> Cleaned {
    let asked = Clean { older_than_s: 0, apply: false, failed, from_seq };
    match clean(daemon, asked, "operator").await {
        Ok(Reply::Cleaned(report)) => report,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn failed_and_stalled_dispatches_are_flagged() {
    let dir = tempfile::tempdir().expect("a directory");
    let daemon = test_daemon::daemon(dir.path(), Pool::default());
    make(&daemon, dir.path(), "abcd2345", FinalState::Stalled);
    let report = would(&daemon, false, 0).await;
    let reasons: Vec<_> = report.kept.iter().map(|kept| kept.reason.as_str()).collect();
    let why = "the dispatch ended as stalled: exit 1 (look at it, then remove it with `muleteer \
               clean --failed`)";
    assert_eq!(reasons, [why, why]);
    // The directory is in no repository, so no git can fetch its work.
    let report = would(&daemon, true, 0).await;
    assert!(report.removed.is_empty(), "{report:?}");
    assert!(report.kept[0].reason.contains("git does not work"), "{report:?}");
}

#[tokio::test]
async fn directories_without_a_dispatch_are_kept_and_named() {
    let dir = tempfile::tempdir().expect("a directory");
    let daemon = test_daemon::daemon(dir.path(), Pool::default());
    make(&daemon, dir.path(), "abcd2345", FinalState::Success);
    let folder = dir.path().join(".muleteer/worktrees");
    for name in ["tasks", "run-2026-01-01-aaaaaa", "other", ".abcd2345.left", ".abcd2345.removed"] {
        std::fs::create_dir_all(folder.join(name)).expect("a directory");
    }
    let report = would(&daemon, false, 0).await;
    let mut named: Vec<_> = report
        .kept
        .iter()
        .filter(|kept| kept.dispatch_id.is_none())
        .map(|kept| kept.path.rsplit('/').next().unwrap_or_default())
        .collect();
    named.sort_unstable();
    assert_eq!(named, ["other", "run-2026-01-01-aaaaaa", "tasks"]);
}

#[tokio::test]
async fn large_clean_returns_a_continuation() {
    let dir = tempfile::tempdir().expect("a directory");
    let daemon = test_daemon::daemon(dir.path(), Pool::default());
    for _ in 0..BATCH + 3 {
        let id = crate::daemon::context::random_key();
        make(&daemon, dir.path(), &id[..8], FinalState::Failed);
    }
    let first = would(&daemon, false, 0).await;
    let rest = would(&daemon, false, first.next_seq.expect("there is more")).await;
    assert_eq!((first.kept.len(), rest.kept.len()), (2 * BATCH, 6));
    assert_eq!(rest.next_seq, None);
}
