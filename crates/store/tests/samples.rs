//! Files of older versions must load for ever, and the documentation must be right.
//!
//! `UPDATE_DOCS=1` writes `docs/events.md`. `UPDATE_SAMPLES=1` *adds* events that the sample lacks;
//! existing contents of a released sample are never changed.

use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::{self, Event};
use muleteer_store::db::Projection;
use muleteer_store::events::catalog::{events_doc, samples};
use muleteer_store::events::{EventLog, read};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("samples").join(name)
}

/// Returns a writable copy.
fn copy(name: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(name);
    if sample(name).exists() {
        fs::copy(sample(name), &path).expect("copies");
    }
    (dir, path)
}

fn update() -> bool {
    std::env::var_os("UPDATE_SAMPLES").is_some()
}

/// Adds missing events to the sample, once, before any test needs them.
fn update_events() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if !update() {
            return;
        }
        let (_dir, path) = copy("events-v1.jsonl");
        let (mut log, _) = EventLog::open(&path, 0, |_| {}).expect("opens");
        let known = names(&path);
        let missing: Vec<_> = samples()
            .into_iter()
            .filter(|record| !known.contains(&record.entry.event.name()))
            .collect();
        let now = missing.first().map(|record| record.ts).unwrap_or_default();
        let entries: Vec<_> = missing.into_iter().map(|record| record.entry).collect();
        log.append(&entries, now).expect("appends");
        fs::create_dir_all(sample("")).expect("creates");
        fs::copy(&path, sample("events-v1.jsonl")).expect("copies");
    });
}

fn names(path: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    read(path, |record| names.extend([record.entry.event.name()])).expect("reads");
    names
}

#[test]
fn every_event_has_a_sample_in_order_and_survives_the_round_trip() {
    let samples = samples();
    for (n, record) in (1..).zip(&samples) {
        assert_eq!(record.seq, n);
        assert_ne!(record.entry.event, Event::Unknown);
        let text = serde_json::to_string(record).expect("serializes");
        assert_eq!(
            &serde_json::from_str::<muleteer_model::event::Record>(&text).expect("reads"),
            record
        );
    }
    let names: BTreeSet<_> = samples.iter().map(|record| record.entry.event.name()).collect();
    assert_eq!(names.len(), samples.len(), "each once");
    let schema = event::schema();
    let variants = schema["oneOf"].as_array().expect("variants");
    let all: BTreeSet<_> = variants.iter().map(|variant| name(variant).to_string()).collect();
    assert_eq!(names, all, "write a sample of each event in crates/store/src/events/catalog");
}

/// Returns the name of a variant of the schema.
fn name(variant: &Value) -> &str {
    variant["properties"]["event"]["const"].as_str().expect("a name")
}

/// docs/events.md consists of these descriptions.
#[test]
fn every_event_field_and_word_has_a_comment() {
    let schema = event::schema();
    let mut missing = vec![];
    for variant in schema["oneOf"].as_array().expect("variants") {
        collect_undescribed(name(variant), variant, &mut missing);
    }
    for (name, of_type) in schema["$defs"].as_object().expect("types") {
        collect_undescribed(name, of_type, &mut missing);
    }
    assert_eq!(missing, Vec::<String>::new(), "write a doc comment");
}

fn collect_undescribed(name: &str, of_type: &Value, missing: &mut Vec<String>) {
    let fields = of_type["properties"].as_object().into_iter().flatten();
    let fields = fields.filter(|(field, _)| *field != "event");
    let fields = fields.map(|(field, schema)| (format!("{name}.{field}"), schema));
    let words = of_type["oneOf"].as_array().into_iter().flatten();
    let words = words.map(|word| (format!("{name}: {word}"), word));
    for (name, schema) in fields.chain(words).chain([(name.to_string(), of_type)]) {
        if schema["description"].as_str().is_none_or(str::is_empty) {
            missing.push(name);
        }
    }
}

#[test]
fn events_v1_still_load() {
    let file = "events-v1.jsonl";
    update_events();
    let (_dir, path) = copy(file);
    let before = fs::read(&path).expect("reads");
    let mut fleet = Fleet::default();
    let mut unknown = vec![];
    let recovery = read(&path, |record| {
        fleet.apply(&record);
        if record.entry.event == Event::Unknown {
            unknown.push(record.seq);
        }
    });
    let recovery = recovery.expect("loads");
    assert_eq!((recovery.cut_bytes, unknown), (0, vec![]));
    assert_eq!(fleet.iter().count(), 1);
    assert!(fleet.iter().all(|dispatch| dispatch.is_finished()));
    assert!(
        fleet.iter().all(|dispatch| dispatch.created.project_name() == "/repo"),
        "from before it was told apart"
    );
    drop(EventLog::open(&path, 0, |_| {}).expect("opens"));
    assert_eq!(fs::read(&path).expect("reads"), before);

    let all: BTreeSet<_> = samples().iter().map(|record| record.entry.event.name()).collect();
    let missing: Vec<_> = all.difference(&names(&path)).cloned().collect();
    assert_eq!(missing, Vec::<String>::new(), "add them with UPDATE_SAMPLES=1");
}

#[test]
fn v1_database_still_loads() {
    let file = "muleteer-v1.db";
    update_events();
    let (_events_dir, events) = copy("events-v1.jsonl");
    let mut fleet = Fleet::default();
    let last = read(&events, |record| fleet.apply(&record)).expect("reads").last_seq;
    if update() && !sample(file).exists() {
        let (_dir, path) = copy(file);
        let (mut db, _) = Projection::open(&path).expect("opens");
        db.catch_up(&events, &fleet).expect("catches up");
        // Closing the database merges the WAL into it.
        drop(db);
        fs::copy(&path, sample(file)).expect("copies");
    }
    let (_dir, path) = copy(file);
    let (mut db, opened) = Projection::open(&path).expect("opens");
    assert_eq!(opened.moved_aside, None);
    assert!(db.applied_seq() > 0 || opened.emptied);
    db.catch_up(&events, &fleet).expect("catches up");
    assert_eq!(db.applied_seq(), last);
    let id = fleet.iter().next().map(|dispatch| dispatch.id.clone()).expect("a dispatch");
    let usage = db.usage_of(&id).expect("answers");
    assert_eq!(
        (usage[0].model.as_str(), usage[0].input, usage[0].cost_usd),
        ("sonnet", 1200, 0.0125)
    );
}

#[test]
fn events_doc_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/events.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, events_doc()).expect("writes");
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == events_doc(),
        "docs/events.md is old: UPDATE_DOCS=1 cargo test -p muleteer-store events_doc"
    );
}
