//! The monitors judge every stream of `tests/corpus` correctly, and do not read its label.

#![allow(clippy::unwrap_used)]

use muleteer_model::monitor::replay::{Label, Report, Score, Stream, score};
use muleteer_model::monitor::{Action, Monitor};
use std::collections::BTreeMap;
use std::path::Path;

/// Two agents that poll a task for 43 minutes, a dozen times each. A warning after forty minutes
/// would also hit an agent that was asked to watch something for so long.
const MISSED: [&str; 2] =
    ["looping-background-task-that-never-ends-01", "looping-background-task-that-never-ends-03"];

fn streams() -> BTreeMap<String, Stream> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus");
    let mut streams = BTreeMap::new();
    for label in std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
    {
        for file in std::fs::read_dir(label).unwrap().map(|entry| entry.unwrap().path()) {
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            let stream = Stream::parse(&std::fs::read_to_string(file).unwrap())
                .unwrap_or_else(|bad| panic!("{name}: {bad}"));
            assert_eq!(stream.header.id, name);
            streams.insert(name, stream);
        }
    }
    streams
}

#[test]
fn every_stream_is_judged_rightly() {
    let (mut report, mut wrong) = (Report::default(), Vec::new());
    let streams = streams();
    for (name, stream) in &streams {
        let decisions = stream.decisions();
        report.add(&stream.header, &decisions);
        let score = score(&stream.header, &decisions);
        let known = MISSED.contains(&name.as_str());
        if (score == Score::Missed) != known || score == Score::FalseAlarm {
            wrong.push(format!("{score:?} {name}: {decisions:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(
        streams.len() >= 360 && report.labels.len() == 7,
        "{} streams of {:?}",
        streams.len(),
        report.labels.keys()
    );
    assert!(report.monitors.values().all(|duty| duty.false_alarms == 0), "{:?}", report.monitors);
}

#[test]
fn a_label_changes_no_decision() {
    for (name, stream) in streams() {
        let mut unlabelled = stream.clone();
        unlabelled.header.label = Label::Healthy;
        (unlabelled.header.onset, unlabelled.header.archetype) = (None, String::new());
        assert_eq!(unlabelled.decisions(), stream.decisions(), "{name}");
    }
}

#[test]
fn a_budget_ends_an_agent_whatever_floods_are_to_do() {
    let beyond = streams().into_iter().filter(|(name, _)| name.starts_with("runaway-beyond"));
    for (name, stream) in beyond {
        let last = stream.decisions().pop().unwrap();
        assert_eq!(
            (last.finding.monitor, last.finding.action),
            (Monitor::Budget, Action::Stop),
            "{name}"
        );
    }
}
