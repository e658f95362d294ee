//! The surface that no refactoring may change, compared with files in `tests/frozen`.
//!
//! Here: events, agent events, frames, and files with a format of their own. `frozen_json.rs`
//! holds the documents of `--json`; `crates/muleteer/tests/frozen.rs` the verbs, flags, codes and
//! states.
//!
//! Other tests hold what is not repeated here: `help.rs` of the crate `muleteer` (texts of
//! `--help`), `contract.rs` there (docs/contract.md agrees with the code), `samples.rs` of `store`
//! (old events and databases load), `samples.rs` and `shim_v1.rs` of `protocol` (old frames decode
//! to the same values), `spool.rs` of `shim` (an old spool loads), and the schema test of `model`
//! (config/schema.json agrees with the code). They all compare the code with a file that the same
//! change may rewrite, which is why these files are frozen here too. Texts for people (`message`,
//! `hint`, `reason`, `note`) are masked: only their keys and types are recorded.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_model::agent::event::{AgentEvent, Timed};
use muleteer_model::dispatch::fleet::{FOLD_VERSION, Fleet};
use muleteer_model::event::{Entry, Event, Record};
use muleteer_protocol::codec::decode;
use muleteer_protocol::v1::{ClientFrame, Request, ServerFrame};
use muleteer_store::events::catalog;
use muleteer_tests::{frozen, probe};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns the files below a folder with this ending, sorted.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = vec![];
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_str().unwrap().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// A snapshot holds folded states. One that an older fold made would give another state than the
/// log, so that each change of the fold needs another version.
#[test]
fn fold_matches_its_version() {
    let mut fleet = Fleet::default();
    let mut lines = BTreeSet::new();
    for record in catalog::samples() {
        fleet.apply(&record);
        let state = serde_json::to_vec(&fleet).unwrap();
        let (name, sum) = (record.entry.event.name(), crc32c::crc32c(&state));
        lines.insert(format!("{:03} {name} {sum:08x}", record.seq));
    }
    let version = format!("version {FOLD_VERSION}");
    let frozen = frozen::read("fold.txt");
    let is_same = frozen.iter().filter(|line| **line != version).eq(&lines);
    assert!(
        is_same || frozen::is_update() || !frozen.contains(&version),
        "the fold of the events has changed, or the sample events have: raise FOLD_VERSION in \
         crates/model/src/dispatch/fleet/mod.rs (once for each release), and run with \
         UPDATE_FROZEN=1"
    );
    lines.insert(version);
    frozen::check("fold.txt", &lines);
}

#[test]
fn events_match_the_frozen_list() {
    let mut lines = BTreeSet::new();
    for record in catalog::samples() {
        let event = record.entry.event;
        let name = event.name().to_string();
        lines.insert(format!("{name}: event"));
        probe::describe(&name, &event, |read| *read != Event::Unknown, &mut lines);
    }
    let at = json!({"epoch": 1, "offset": 2, "skip": 3});
    let whole = json!({"v": 1, "seq": 1, "ts": "2026-02-12T10:00:00Z", "id": "k1",
        "dispatch_id": "abcdefgh",
        "at": at, "more": true, "event": "log_recovered", "cut_bytes": 1});
    let record: Record = serde_json::from_value(whole).unwrap();
    let is_known = |entry: &Entry| entry.event != Event::Unknown;
    probe::describe("(line)", &record, |read| is_known(&read.entry), &mut lines);
    frozen::check("events.txt", &lines);
}

/// One line of each kind, with every field. An indented line continues the one above it.
const AGENT_EVENTS: &str = r#"
{"type":"session","model":"m","cwd":"/p","session_id":"s"}
{"type":"prompt","text":"x","key":"k","repeated":true}
{"type":"thinking","chars":1,"text":"x"}
{"type":"text","chars":1,"text":"x"}
{"type":"tool_call","id":"t","name":"Bash","input":{}}
{"type":"tool_output","id":"t","bytes":1}
{"type":"tool_result","id":"t","ok":true,"text":"x","exit_code":0}
{"type":"usage","input":1,"output":1,"cost_usd":0.5,"cache_read":1,"cache_write":1,
  "model":"m","call":"c","total_usd":0.5}
{"type":"compaction","before":1,"after":1}
{"type":"api_retry","attempt":1,"max":2,"delay_s":0.5,"status":529}
{"type":"rate_limit","resets_in_s":0.5,"resets_at":0.5,"warning":true}
{"type":"permission","id":"r","kind":"permission","call_id":"t","tool":"Bash",
  "target":"ls","text":"x","input":{"command":"ls"},"input_cut":true,
  "options":[{"id":"a","name":"Allow","kind":"allow_once"}]}
{"type":"permission_answer","id":"r"}
{"type":"request","id":"r","what":"x"}
{"type":"notice","text":"x"}
{"type":"reply","id":"r","ok":true,"text":"x"}
{"type":"question","id":"q","text":"x"}
{"type":"answer","id":"q","text":"x"}
{"type":"process","cpu_s":0.5,"children":1}
{"type":"backpressure","on":true}
{"type":"result","ok":false,"error":"auth","status":401,"cost_usd":0.5,"session_id":"s","text":"x",
  "structured":{},
  "per_model":[
    {"model":"m","input":1,"output":1,"cache_read":1,"cache_write":1,"cost_usd":0.5}],
  "per_model_turn":[
    {"model":"m","input":1,"output":1,"cache_read":1,"cache_write":1,"cost_usd":0.5}],
  "per_session":[
    {"model":"m","input":1,"output":1,"cache_read":1,"cache_write":1,"cost_usd":0.5}],
  "num_turns":1,"session_lost":true,"keys":["k"],"damage":"x"}
{"type":"exit","code":0}
{"type":"output","text":"x"}
{"type":"unknown","raw":"x"}
"#;

#[test]
fn agent_events_match_the_frozen_list() {
    let mut lines = BTreeSet::new();
    for line in AGENT_EVENTS.replace("\n  ", "").trim().lines() {
        let mut value: Value = serde_json::from_str(line).unwrap();
        value["t"] = json!(1.5);
        value["parent"] = json!("t0");
        let read: Timed = serde_json::from_value(value.clone()).unwrap();
        let again = serde_json::to_value(&read).unwrap();
        assert_eq!(again, value, "every field of the line is one of the event");
        probe::describe(value["type"].as_str().unwrap(), &read, |_| true, &mut lines);
    }
    // A kind without a line above would be missing silently.
    let error = serde_json::from_value::<AgentEvent>(json!({"type": "no such kind"})).unwrap_err();
    let error = error.to_string();
    lines.extend(error.split('`').skip(3).step_by(2).map(|kind| format!("{kind}: agent event")));
    frozen::check("agent-events.txt", &lines);
}

fn fingerprint(bytes: &[u8]) -> String {
    format!("{} bytes, crc32c {:08x}", bytes.len(), crc32c::crc32c(bytes))
}

#[test]
fn frames_match_the_frozen_list() {
    let mut lines = BTreeSet::new();
    let shared = |body: &Request| *body != Request::Unknown;
    for path in files("crates/protocol/samples", ".bin") {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let folder = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
        lines.insert(format!("{folder}/{name}: {}", fingerprint(&bytes)));
        if folder != "v1" || name.ends_with("_unknown") {
            continue;
        }
        let (prefix, body) = (format!("{folder}/{name}"), &bytes[4..]);
        if ["hello", "credit", "cancel"].contains(&name) || name.starts_with("request_") {
            let frame: ClientFrame = decode(body).unwrap();
            let is_known = |frame: &ClientFrame| match frame {
                ClientFrame::Request { body, .. } => shared(body),
                other => *other != ClientFrame::Unknown,
            };
            probe::describe(&prefix, &frame, is_known, &mut lines);
        } else {
            let frame: ServerFrame = decode(body).unwrap();
            probe::describe(&prefix, &frame, |frame| *frame != ServerFrame::Unknown, &mut lines);
        }
    }
    frozen::check("frames.txt", &lines);
}

/// Databases and spools are binary; the sample's events may only grow.
#[test]
fn file_samples_match_the_frozen_list() {
    let mut lines = BTreeSet::new();
    for folder in ["crates/shim/samples", "crates/store/samples"] {
        for path in files(folder, "") {
            let name = path.strip_prefix(root()).unwrap().to_str().unwrap();
            let bytes = std::fs::read(&path).unwrap();
            if name.ends_with(".jsonl") {
                for (at, line) in (1..)
                    .zip(bytes.split(|byte| *byte == b'\n'))
                    .filter(|(_, line)| !line.is_empty())
                {
                    lines.insert(format!("{name}:{at:04}: {}", fingerprint(line)));
                }
            } else {
                lines.insert(format!("{name}: {}", fingerprint(&bytes)));
            }
        }
    }
    frozen::check("samples.txt", &lines);
}

#[test]
fn configuration_matches_the_frozen_list() {
    let text = std::fs::read_to_string(root().join("config/schema.json")).unwrap();
    let mut lines = BTreeSet::new();
    leaves("", &serde_json::from_str(&text).unwrap(), &mut lines);
    frozen::check("config-schema.txt", &lines);
}

/// Adds every leaf of a JSON schema except its texts for people.
fn leaves(path: &str, value: &Value, lines: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            // A property may have the same name as such a text.
            let is_list_of_names = path.ends_with(".properties") || path.ends_with(".$defs");
            for (name, value) in fields {
                if is_list_of_names || !["description", "title"].contains(&name.as_str()) {
                    leaves(&format!("{path}.{name}"), value, lines);
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            // The order of required keys and of words has no meaning.
            let all: BTreeSet<_> =
                items.iter().filter(|item| !item.is_object()).map(Value::to_string).collect();
            if !all.is_empty() {
                lines.insert(format!("{path}: {}", all.into_iter().collect::<Vec<_>>().join(" ")));
            }
            for (at, item) in items.iter().enumerate().filter(|(_, item)| item.is_object()) {
                leaves(&format!("{path}[{at}]"), item, lines);
            }
        }
        _ => {
            lines.insert(format!("{path}: {value}"));
        }
    }
}
