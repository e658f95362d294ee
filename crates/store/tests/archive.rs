//! The archive: dispatches that left the fleet are found in the database, which is made from the
//! events alone.

use jiff::Timestamp;
use muleteer_model::agent::backend::TraitsOf;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::{Fleet, LookupError};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Archived, Entry, Event, FinalState, PromptKind, Restored};
use muleteer_store::archive::{Archive, ArchiveError, Reader};
use muleteer_store::db::Projection;
use muleteer_store::events::catalog::samples;
use muleteer_store::events::{
    EventLog, fold_everything, fold_fleet, fold_with, part, read, snapshot,
};
use rusqlite::Connection;
use std::fs;
use std::path::PathBuf;

struct Place {
    _dir: tempfile::TempDir,
    events: PathBuf,
    db: PathBuf,
    log: EventLog,
}

fn id(text: &str) -> DispatchId {
    DispatchId::try_from(text.to_string()).expect("an id")
}

fn created(parent: Option<&str>) -> Event {
    let made = samples().into_iter().find_map(|record| match record.entry.event {
        Event::DispatchCreated(created) => Some(created),
        _ => None,
    });
    let mut made = made.expect("a sample");
    made.parent = parent.map(id);
    Event::DispatchCreated(made)
}

fn finished() -> Event {
    let state = FinalState::Success;
    Event::DispatchFinished { state, reason: String::new(), result: None }
}

impl Place {
    /// Makes a log of a family of two, which is archived if `archived`, and of a third dispatch.
    fn new(archived: bool) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (events, db) = (dir.path().join("events.jsonl"), dir.path().join("muleteer.db"));
        let (log, _) = EventLog::open(&events, 0, |_| {}).expect("opens");
        let mut place = Self { _dir: dir, events, db, log };
        place.add(Some("aaaa2222"), created(None));
        place.add(Some("aaaa3333"), created(Some("aaaa2222")));
        place.add(Some("bbbb2222"), created(None));
        for of in ["aaaa3333", "aaaa2222", "bbbb2222"] {
            place.add(Some(of), finished());
        }
        if archived {
            let one = |of, last_seq| Archived { id: id(of), last_seq };
            let families = vec![vec![one("aaaa2222", 5), one("aaaa3333", 4)]];
            place.add(None, Event::DispatchesArchived { families });
        }
        place
    }

    fn add(&mut self, of: Option<&str>, event: Event) {
        let entry = Entry {
            id: format!("e{}", self.log.last_seq()),
            dispatch_id: of.map(id),
            at: None,
            more: false,
            event,
        };
        let now = Timestamp::from_second(1_767_261_600).expect("a time");
        self.log.append(&[entry], now).expect("appends");
    }

    fn fleet(&self) -> Fleet {
        fold_fleet(&self.events).expect("folds").0
    }

    fn caught_up(&self) -> Projection {
        let mut db = Projection::open(&self.db).expect("opens").0;
        db.catch_up(&self.events, &self.fleet()).expect("catches up");
        db
    }

    fn find(&self, prefix: &str) -> Result<String, ArchiveError> {
        let found = Archive::new(&self.fleet(), &self.db, TraitsOf::default()).find(prefix)?;
        Ok(found.id.to_string())
    }

    /// Returns all finished dispatches of the database.
    fn rows(&self) -> Vec<Dispatch> {
        let mut rows = vec![];
        self.caught_up()
            .each_finished(0, None, |dispatch| {
                rows.push(dispatch);
                true
            })
            .expect("reads");
        rows
    }
}

#[test]
fn archived_dispatch_is_found_by_id_and_prefix() {
    let place = Place::new(true);
    place.caught_up();
    assert_eq!((place.fleet().iter().count(), place.fleet().archived()), (1, 2));
    for whole in ["aaaa2222", "aaaa3333", "bbbb2222"] {
        assert_eq!(place.find(whole).expect("found"), whole);
    }
    assert_eq!(place.find("aaaa3").expect("found"), "aaaa3333");
    assert_eq!(place.find("b").expect("found"), "bbbb2222");
    match place.find("aaaa") {
        Err(ArchiveError::Lookup(LookupError::Ambiguous { ids, .. })) => {
            assert_eq!(ids, ["aaaa2222", "aaaa3333"]);
        }
        other => panic!("{other:?}"),
    }
    for unknown in ["aaaa4", "", "cccc2222", "aaaa22223"] {
        let found = place.find(unknown);
        let is_unknown = matches!(found, Err(ArchiveError::Lookup(LookupError::Unknown(_))));
        assert!(is_unknown, "{unknown}: {found:?}");
    }
}

/// A missing row must not look like an unknown dispatch.
#[test]
fn database_that_lacks_archived_dispatches_is_not_asked() {
    let place = Place::new(true);
    let is_behind = |place: &Place| matches!(place.find("aaaa2222"), Err(ArchiveError::Behind(_)));
    assert!(is_behind(&place), "there is none");
    drop(Projection::open(&place.db).expect("opens"));
    assert!(is_behind(&place), "it is empty");
    drop(place.caught_up());
    assert!(!is_behind(&place));
    let connection = Connection::open(&place.db).expect("opens");
    connection.execute("UPDATE meta SET complete = 0", []).expect("marks");
    assert!(is_behind(&place), "a daemon was killed while it filled it");
    fs::write(&place.db, "no database, but long enough to have a header of some kind").expect("ok");
    assert!(is_behind(&place), "it is damaged");
    assert_eq!(place.find("bbbb2222").expect("it is in the fleet"), "bbbb2222");
    assert_eq!(fold_everything(&place.events).expect("folds").iter().count(), 3);
}

/// A database that stays open between two looks answers as a fresh one: after more records, after
/// another file took its name, while it is filled again, and without a file.
#[test]
fn database_that_stays_open_answers_as_a_fresh_one() {
    let mut place = Place::new(true);
    drop(place.caught_up());
    let reader = Reader::default();
    let get = |place: &Place, of: &str| {
        let fleet = place.fleet();
        let found =
            Archive::new(&fleet, &place.db, TraitsOf::default()).get_through(&id(of), &reader);
        found.map(|found| found.map(|dispatch| dispatch.last_seq))
    };
    let is_behind = |place: &Place| matches!(get(place, "aaaa2222"), Err(ArchiveError::Behind(_)));
    assert_eq!(get(&place, "aaaa2222").expect("reads"), Some(5));
    assert_eq!(get(&place, "cccc2222").expect("reads"), None);

    place.add(Some("bbbb2222"), finished());
    let last = place.log.last_seq();
    let families = vec![vec![Archived { id: id("bbbb2222"), last_seq: last }]];
    place.add(None, Event::DispatchesArchived { families });
    assert!(is_behind(&place), "the database lacks what was archived since");
    drop(place.caught_up());
    assert_eq!(get(&place, "bbbb2222").expect("reads"), Some(last));

    let connection = Connection::open(&place.db).expect("opens");
    connection.execute("UPDATE meta SET complete = 0", []).expect("writes");
    assert!(is_behind(&place), "it is being filled again");
    connection.execute("UPDATE meta SET complete = 1", []).expect("writes");
    assert_eq!(get(&place, "aaaa2222").expect("reads"), Some(5));
    drop(connection);

    for part in ["", "-wal", "-shm"] {
        let file = format!("{}{part}", place.db.display());
        let _ = std::fs::rename(&file, format!("{file}.old"));
    }
    assert!(is_behind(&place), "there is none");
    drop(place.caught_up());
    assert_eq!(get(&place, "bbbb2222").expect("reads"), Some(last));
    let connection = Connection::open(&place.db).expect("opens");
    connection.execute("DELETE FROM finished WHERE id = 'bbbb2222'", []).expect("writes");
    assert_eq!(get(&place, "bbbb2222").expect("reads"), None, "it asks the new file");
}

#[test]
fn unfinished_dispatch_is_found_by_prefix_without_the_archive() {
    let mut place = Place::new(true);
    place.add(Some("bbbb3333"), created(None));
    place.add(Some("cccc2222"), created(None));
    place.add(Some("cccc3333"), created(None));
    for prefix in ["bbbb3", "bbbb", "bbbb3333"] {
        assert_eq!(place.find(prefix).expect("one is unfinished"), "bbbb3333", "{prefix}");
    }
    for prefix in ["cccc", "aaaa", "bbbb2", ""] {
        let found = place.find(prefix);
        assert!(matches!(found, Err(ArchiveError::Behind(_))), "{prefix}: {found:?}");
    }
}

#[test]
fn database_made_again_has_the_archived_dispatches() {
    let place = Place::new(false);
    let before = place.rows();
    assert_eq!(before.len(), 3);
    let mut place = Place::new(true);
    assert_eq!(place.rows(), before, "made again from the beginning");
    // Removed, damaged, and left incomplete by a process that was killed.
    fs::remove_file(&place.db).expect("removes");
    assert_eq!(place.rows(), before);
    fs::write(&place.db, [7; 4096]).expect("damages");
    assert_eq!(place.rows(), before);
    let connection = Connection::open(&place.db).expect("opens");
    connection
        .execute_batch("UPDATE meta SET complete = 0; DELETE FROM finished WHERE first_seq = 1")
        .expect("changes");
    drop(connection);
    assert_eq!(place.rows(), before);
    // An event after the archival changes the row, and is not lost when it is made again.
    place.add(Some("aaaa2222"), Event::FilesRemoved { by: "operator".into() });
    let late = place.rows();
    assert!(late[0].files.removed && !late[1].files.removed);
    fs::remove_file(&place.db).expect("removes");
    assert_eq!(place.rows(), late);
}

/// The thread of the ledger must not read the log while all appends wait.
#[test]
fn restoration_with_a_given_part_reads_no_log() {
    let mut place = Place::new(true);
    let mut fleet = place.fleet();
    let restored = place.caught_up().restoring(&id("aaaa2222")).expect("reads").expect("is known");
    place.add(None, Event::DispatchesRestored(restored.clone()));
    let mut last = None;
    read(&place.events, |record| last = Some(record)).expect("reads");
    let given = part(&place.events, &restored).expect("folds");
    fs::remove_file(&place.events).expect("removes");
    fold_with(&mut fleet, &last.expect("a record"), |of| {
        assert_eq!(*of, restored);
        Ok(given)
    })
    .expect("folds");
    assert_eq!((fleet.iter().count(), fleet.archived()), (3, 0));
}

#[test]
fn restored_family_is_folded_from_its_events() {
    let mut place = Place::new(true);
    place.add(Some("aaaa3333"), Event::FilesRemoved { by: "operator".into() });
    let whole = fold_everything(&place.events).expect("folds");
    let restored = place.caught_up().restoring(&id("aaaa2222")).expect("reads").expect("is known");
    let ids = vec![id("aaaa2222"), id("aaaa3333")];
    let wanted = Restored { ids, first_seq: 1, last_seq: 8, boot_id: String::new() };
    assert_eq!(restored, wanted);
    assert_eq!(place.caught_up().restoring(&id("cccc2222")).expect("reads"), None);
    // A snapshot from before the restoration has none of their events.
    snapshot::write(&place.events, &place.fleet()).expect("writes");
    place.add(None, Event::DispatchesRestored(restored));
    let queued = Event::PromptQueued {
        key: "again".into(),
        kind: PromptKind::Send,
        by: "operator".into(),
        trace: None,
    };
    place.add(Some("aaaa2222"), queued);
    let fleet = place.fleet();
    let order: Vec<_> = fleet.iter().map(|dispatch| dispatch.id.to_string()).collect();
    assert_eq!(order, ["aaaa2222", "aaaa3333", "bbbb2222"]);
    assert_eq!(fleet.get(&id("aaaa3333")), whole.get(&id("aaaa3333")));
    assert_eq!(fleet.unfinished().count(), 1);
    assert_eq!(place.find("aaaa2222").expect("it is in the fleet"), "aaaa2222");
    fs::remove_file(snapshot::path_of(&place.events)).expect("removes");
    assert_eq!(
        serde_json::to_value(place.fleet()).expect("JSON"),
        serde_json::to_value(&fleet).expect("JSON"),
        "with and without a snapshot"
    );
}

#[test]
fn restoration_without_its_events_is_a_named_error() {
    let mut place = Place::new(true);
    let ids = vec![id("aaaa2222")];
    let restored = Restored { ids, first_seq: 5, last_seq: 5, boot_id: String::new() };
    place.add(None, Event::DispatchesRestored(restored));
    let error = fold_fleet(&place.events).expect_err("they are missing");
    assert_eq!(error.code().as_str(), "E_EVENTS_SHORT");
}
