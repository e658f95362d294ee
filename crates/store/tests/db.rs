//! The database is a projection: if it is ahead, behind, damaged or of another version, the events
//! decide.

use jiff::Timestamp;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::{Entry, Event, Record};
use muleteer_store::db::{Opened, Projection};
use muleteer_store::events::catalog::samples;
use muleteer_store::events::{EventLog, fold_fleet};
use rusqlite::Connection;
use std::fs;
use std::path::PathBuf;

struct Place {
    _dir: tempfile::TempDir,
    events: PathBuf,
    db: PathBuf,
}

fn place() -> Place {
    let dir = tempfile::tempdir().expect("a directory");
    let (events, db) = (dir.path().join("events.jsonl"), dir.path().join("muleteer.db"));
    Place { _dir: dir, events, db }
}

/// The samples, then usage over two days and two models.
fn entries() -> Vec<Entry> {
    let samples = samples();
    let id = samples.last().and_then(|record| record.entry.dispatch_id.clone());
    let usage = |n: u64, model: &str| Entry {
        id: format!("usage-{n}"),
        dispatch_id: id.clone(),
        at: None,
        more: false,
        event: Event::UsageRecorded {
            model: model.into(),
            input: n,
            output: 2 * n,
            cache_read: 1 << 60,
            cache_write: 0,
            cost_usd: 0.5,
            cumulative: false,
            total_usd: None,
        },
    };
    let mut entries: Vec<_> = samples.into_iter().map(|record| record.entry).collect();
    entries.extend([usage(1, "haiku"), usage(10, "haiku"), usage(100, "sonnet")]);
    entries
}

fn append(place: &Place) -> Vec<Record> {
    let (mut log, _) = EventLog::open(&place.events, 0, |_| {}).expect("opens");
    let entries = entries();
    let (first, second) = entries.split_at(entries.len() - 1);
    let day = |text: &str| text.parse::<Timestamp>().expect("a time");
    let mut records = log.append(first, day("2026-01-01T23:59:59.999Z")).expect("appends");
    records.extend(log.append(second, day("2026-01-02T00:00:00Z")).expect("appends"));
    records
}

fn fleet(place: &Place) -> Fleet {
    fold_fleet(&place.events).expect("folds").0
}

/// Returns all contents of the database for comparison.
fn contents(place: &Place) -> Vec<String> {
    let connection = Connection::open(&place.db).expect("opens");
    let mut all = vec![];
    for table in ["meta", "dispatches", "usage", "finished"] {
        let mut statement =
            connection.prepare(&format!("SELECT * FROM {table}")).expect("prepares");
        let columns = statement.column_count();
        let mut rows = statement.query([]).expect("asks");
        while let Some(row) = rows.next().expect("a row") {
            let cells: Vec<_> =
                (0..columns).map(|n| format!("{:?}", row.get_ref(n).expect("a cell"))).collect();
            all.push(format!("{table}: {}", cells.join(" ")));
        }
    }
    all
}

fn built(place: &Place) -> Projection {
    append(place);
    let (mut db, opened) = Projection::open(&place.db).expect("opens");
    assert_eq!(opened, Opened { created: true, ..Opened::default() });
    assert_eq!(
        db.catch_up(&place.events, &fleet(place)).expect("catches up"),
        entries().len() as u64
    );
    db
}

#[test]
fn usage_is_queried_by_dispatch_model_and_day() {
    let place = place();
    let db = built(&place);
    let id = samples().last().and_then(|record| record.entry.dispatch_id.clone()).expect("an id");
    let of = |list: Vec<muleteer_model::agent::event::ModelUsage>| -> Vec<_> {
        list.into_iter()
            .map(|usage| (usage.model, usage.input, usage.output, usage.cost_usd))
            .collect()
    };
    let usage = db.usage_of(&id).expect("answers");
    assert_eq!(usage[0].cache_read, 2 << 53, "an absurd claim is cut, not overflowed");
    assert_eq!(of(usage), [("haiku".into(), 11, 22, 1.0), ("sonnet".into(), 1300, 500, 0.5125)]);
    let use_since = |text: &str| {
        let mut found = vec![];
        let from = text.parse().expect("a time");
        db.use_since(from, |id, hour, used| {
            found.push(format!("{id} {hour} {} {}", used.model, used.input));
        })
        .expect("answers");
        found
    };
    let second = format!("{id} 2026-01-02T00:00:00Z sonnet 100");
    assert_eq!(use_since("2026-01-02T00:00:00Z"), std::slice::from_ref(&second));
    let first = ["haiku 11", "sonnet 1200"].map(|used| format!("{id} 2026-01-01T23:00:00Z {used}"));
    let all = [first.to_vec(), vec![second]].concat();
    assert_eq!(use_since("2026-01-01T23:00:00Z"), all);

    let looking = Projection::open_read_only(&place.db).expect("opens").expect("is there");
    assert_eq!(looking.applied_seq(), db.applied_seq());
    assert_eq!(looking.usage_of(&id).expect("answers").len(), 2);
}

#[test]
fn database_is_the_same_after_a_kill_at_any_record() {
    let whole = place();
    drop(built(&whole));
    let wanted = contents(&whole);
    let records = append(&place());
    for killed in 0..=records.len() {
        let place = place();
        append(&place);
        let mut so_far = Fleet::default();
        records[..killed].iter().for_each(|record| so_far.apply(record));
        let (mut db, _) = Projection::open(&place.db).expect("opens");
        db.apply(&records[..killed], &so_far).expect("applies");
        drop(db);

        let (mut db, opened) = Projection::open(&place.db).expect("opens");
        assert_eq!((opened, db.applied_seq()), (Opened::default(), killed as u64));
        db.catch_up(&place.events, &fleet(&place)).expect("catches up");
        db.apply(&records, &fleet(&place)).expect("applied ones are skipped");
        drop(db);
        assert_eq!(contents(&place), wanted, "killed after {killed}");
    }
}

#[test]
fn applied_events_are_not_read_again() {
    let place = place();
    let mut db = built(&place);
    let (mut log, _) = EventLog::open(&place.events, db.applied_seq(), |_| {}).expect("opens");
    let said = |id: &str| Entry {
        id: id.into(),
        dispatch_id: None,
        at: None,
        more: false,
        event: Event::Fault { what: "test".into(), message: id.into() },
    };
    let mut fleet = fleet(&place);
    // A reader that starts from the beginning would fail from now on.
    let first = fs::File::options().write(true).open(&place.events).expect("opens");
    std::os::unix::fs::FileExt::write_all_at(&first, b"?", 2).expect("writes");
    for round in 0..3 {
        let entries = [said(&format!("a{round}")), said(&format!("b{round}"))];
        let records = log.append(&entries, Timestamp::now()).expect("appends");
        assert_eq!(db.catch_up(&place.events, &fleet).expect("catches up"), 0, "not folded yet");
        records.iter().for_each(|record| fleet.apply(record));
        assert_eq!(db.catch_up(&place.events, &fleet).expect("catches up"), 2);
        assert_eq!(db.catch_up(&place.events, &fleet).expect("catches up"), 0);
    }
    assert_eq!(db.applied_seq(), entries().len() as u64 + 6);
    let (mut anew, _) = Projection::open(&place.db).expect("opens");
    assert_eq!(
        anew.catch_up(&place.events, &fleet).expect_err("it is damaged").code(),
        "E_EVENTS_CORRUPT"
    );
}

#[test]
fn a_gap_is_refused() {
    let place = place();
    let records = append(&place);
    let (mut db, _) = Projection::open(&place.db).expect("opens");
    let error = db.apply(&records[1..], &fleet(&place)).expect_err("the first is missing");
    assert_eq!(error.code(), "E_DB_GAP");
    assert_eq!(db.applied_seq(), 0);
}

#[test]
fn database_ahead_of_the_events_is_an_error() {
    let place = place();
    let mut db = built(&place);
    let applied = db.applied_seq();
    let bytes = fs::read(&place.events).expect("reads");
    let first = bytes.iter().position(|b| *b == b'\n').expect("a line") + 1;
    fs::write(&place.events, &bytes[..first]).expect("writes");
    fs::remove_file(place.events.with_extension("mark")).expect("removes");
    let error = db.catch_up(&place.events, &fleet(&place)).expect_err("ahead");
    assert_eq!((error.code().as_str(), error.file()), ("E_DB_AHEAD", place.events.as_path()));
    let said = error.to_string();
    let error = EventLog::open(&place.events, applied, |_| {}).expect_err("ahead");
    assert_eq!((error.code().as_str(), error.to_string()), ("E_DB_AHEAD", said));
    assert_eq!(fs::read(&place.events).expect("reads"), &bytes[..first]);
}

#[test]
fn damaged_database_is_moved_aside_and_rebuilt() {
    let place = place();
    drop(built(&place));
    let wanted = contents(&place);
    let whole = fs::read(&place.db).expect("reads");
    let mut flipped = whole.clone();
    flipped[100] ^= 0xff;
    let foreign = {
        let path = place.db.with_extension("other");
        Connection::open(&path)
            .expect("opens")
            .execute_batch("CREATE TABLE t (x)")
            .expect("creates");
        fs::read(path).expect("reads")
    };
    for (n, bytes) in [b"garbage".repeat(1000), whole[..whole.len() / 2].to_vec(), flipped, foreign]
        .iter()
        .enumerate()
    {
        fs::write(&place.db, bytes).expect("writes");
        let (mut db, opened) = Projection::open(&place.db).expect("opens");
        let (_, kept) = opened.moved_aside.unwrap_or_else(|| panic!("case {n} went unnoticed"));
        assert!(kept.to_string_lossy().ends_with(&format!("muleteer.db.corrupt-{}", n + 1)));
        assert_eq!(&fs::read(&kept).expect("reads"), bytes);
        assert_eq!(db.applied_seq(), 0);
        db.catch_up(&place.events, &fleet(&place)).expect("catches up");
        drop(db);
        assert_eq!(contents(&place), wanted);
    }
}

#[test]
fn database_is_the_same_after_a_truncation() {
    let place = place();
    drop(built(&place));
    let wanted = contents(&place);
    let whole = fs::read(&place.db).expect("reads");
    for cut in (0..whole.len()).step_by(1531) {
        fs::write(&place.db, &whole[..cut]).expect("writes");
        let (mut db, _) = Projection::open(&place.db).expect("opens");
        db.catch_up(&place.events, &fleet(&place)).expect("catches up");
        drop(db);
        assert_eq!(contents(&place), wanted, "cut at {cut}");
    }
}

#[test]
fn newer_schema_is_rejected_and_older_one_is_rebuilt() {
    let place = place();
    drop(built(&place));
    let wanted = contents(&place);
    let set = |version: i64| {
        let connection = Connection::open(&place.db).expect("opens");
        connection.pragma_update(None, "user_version", version).expect("sets");
    };
    set(99_999);
    let before = fs::read(&place.db).expect("reads");
    assert_eq!(Projection::open(&place.db).expect_err("newer").code(), "E_DB_VERSION");
    assert_eq!(Projection::open_read_only(&place.db).expect_err("newer").code(), "E_DB_VERSION");
    assert_eq!(fs::read(&place.db).expect("reads"), before);
    set(0);
    let (mut db, opened) = Projection::open(&place.db).expect("opens");
    assert_eq!((opened.emptied, db.applied_seq()), (true, 0));
    db.catch_up(&place.events, &fleet(&place)).expect("catches up");
    drop(db);
    assert_eq!(contents(&place), wanted);
    assert!(Projection::open_read_only(&place.db.with_extension("none")).expect("looks").is_none());
}
