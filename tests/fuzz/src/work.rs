//! Oracles for beads, task lists and their files, which other tools and people write too, and for
//! the answers of a run's agents: an input is accepted and reads the same after it was written
//! again, or an error says what is wrong with it.

use jiff::Timestamp;
use muleteer_model::agent::result;
use muleteer_model::beads::tbd;
use muleteer_model::spec_run::{checkpoint, judge};
use muleteer_model::task_list::document::{TaskList, Unreadable};
use muleteer_model::task_list::{import, log, settings};
use muleteer_store::beads::embedded::{BeadError, BeadStore};
use serde_json::Value;
use std::fs;

pub fn beads(data: &[u8]) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut store = BeadStore::new(dir.path());
    fs::write(store.file(), data).expect("writes");
    match store.read().cloned() {
        Ok(beads) => assert_eq!(store.read().expect("reads again"), &beads),
        Err(BeadError::Corrupt { line, why, .. }) => {
            let lines = data.split(|byte| *byte == b'\n').count() as u64;
            assert!(
                (1..=lines).contains(&line) && !why.is_empty(),
                "line {line} of {lines}: {why}"
            );
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    assert_eq!(fs::read(store.file()).expect("reads"), data, "reading changes nothing");
}

pub fn tbd(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let files = [("one.md".to_string(), text.into_owned())];
    match tbd::read(&files, "a1b2: 01hx5zzkbkactav9wevgemmvrz\n", "app") {
        Ok(known) => assert!(known.beads.len() <= 1),
        Err((file, why)) => assert!(file == "one.md" && !why.is_empty()),
    }
    drop(tbd::read(&[], &files[0].1, "app"));
}

pub fn task_list(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let lines = text.lines().count() as u64 + 1;
    match TaskList::parse(&text) {
        Ok(list) => {
            let written = list.to_text();
            let again = TaskList::parse(&written).expect("what was written can be read");
            assert_eq!(again.to_text(), written, "written again it is another one");
        }
        Err(Unreadable::Corrupt { line, why, .. }) => assert!(line <= lines && !why.is_empty()),
        Err(Unreadable::Invalid(faults)) => {
            assert!(!faults.is_empty(), "refused without a reason");
            assert!(
                faults
                    .iter()
                    .all(|fault| fault.line.is_none_or(|line| (1..=lines).contains(&line))),
                "{faults:?}"
            );
        }
    }
}

pub fn task_log(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.lines() {
        if let Some(read) = log::parse(line) {
            let written = read.to_string();
            assert_eq!(
                log::parse(&written).as_ref(),
                Some(&read),
                "{line:?} reads back as another one"
            );
        }
    }
    drop(log::failure_times(text.lines()));
}

pub fn task_import(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (lines, now) = (text.lines().count() as u64, Timestamp::UNIX_EPOCH);
    let tasks = if import::is_jsonl(&text) {
        import::beads(&text, now).map_err(|bad| assert!((1..=lines).contains(&bad.line), "{bad}"))
    } else {
        Ok(import::checklist(&text, 1, now))
    };
    let mut list = TaskList::new(now);
    let merged = tasks.ok().and_then(|tasks| import::merge(&mut list, tasks).ok());
    let added = merged.map_or(0, |merged| merged.added.len());
    assert_eq!(list.tasks.len(), added);
    let written = list.to_text();
    let again = TaskList::parse(&written)
        .unwrap_or_else(|error| panic!("what was imported is no list: {error:?}"));
    assert_eq!(again.to_text(), written);
}

/// Checks that our hooks can be added to another program's file and removed from it, and that
/// nothing else changes.
pub fn hook_settings(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(with) = settings::install(&text, "muleteer") else {
        assert!(settings::uninstall(&text).is_err());
        return;
    };
    assert_eq!(
        settings::installed(&with).unwrap_or_default().len(),
        settings::HOOKS.len(),
        "{with}"
    );
    assert_eq!(settings::install(&with, "muleteer").as_deref(), Ok(&*with), "once more is no more");
    let without = settings::uninstall(&with).expect("it was a settings file");
    assert!(settings::installed(&without).unwrap_or_default().is_empty(), "{without}");
    let others = |text: &str| match serde_json::from_str(text) {
        Ok(Value::Object(mut all)) => {
            all.remove("hooks");
            all
        }
        _ => serde_json::Map::new(),
    };
    assert_eq!(
        (others(&with), others(&without)),
        (others(&text), others(&text)),
        "what is not ours has changed"
    );
}

pub fn checkpoint(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match checkpoint::parse(&text) {
        Ok(read) => {
            let written = checkpoint::to_yaml(&read).expect("it can be written");
            assert_eq!(checkpoint::parse(&written).expect("it is valid"), read, "{written}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub fn verdict(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match judge::parse(&text) {
        Ok(verdict) => {
            let written = serde_json::to_string(&verdict).expect("it can be written");
            assert_eq!(judge::parse(&written).as_ref(), Ok(&verdict), "{written}");
            drop(verdict.remedies());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub fn result(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Some(found) = result::find_in_text(&text) else { return };
    match result::validate(&found) {
        Ok(valid) => {
            let written = serde_json::to_value(&valid).expect("it can be written");
            assert_eq!(result::validate(&written).as_ref(), Ok(&valid), "{written}");
        }
        Err(faults) => assert!(!faults.is_empty() && faults.iter().all(|fault| !fault.is_empty())),
    }
}
