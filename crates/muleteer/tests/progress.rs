//! Tests what a terminal shows of a run that is under way.

#[path = "support/tale.rs"]
mod tale;

use anstream::adapter::strip_str;
use jiff::Timestamp;
use muleteer_cli::render::progress::picture;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event, Record};
use muleteer_model::spec_run::event::{Planned, Purpose};
use muleteer_model::spec_run::report::live::AtWork;
use tale::{Tale, planned};
use unicode_width::UnicodeWidthStr;

fn plain(lines: &[String]) -> String {
    lines.iter().map(|line| format!("{}\n", strip_str(line))).collect()
}

/// Returns a run with two done beads and `agents` agents at work; the first of them waits for a
/// command.
fn under_way(agents: u32) -> (Tale, AtWork) {
    let mut tale = Tale::new("Under way");
    let mut beads: Vec<Planned> = (0..agents + 4)
        .map(|at| planned(&format!("b{at:02}"), &format!("Bead {at}"), &[]))
        .collect();
    beads[2].title = "A title\x1b[2J that goes on 漢字 and on, further than any terminal is wide, \
         or so it seems"
        .into();
    tale.beads(&beads);
    for at in 0..2 {
        tale.start(1, Purpose::Implement, Some(&format!("b{at:02}")), 0);
        tale.pass(100 + i64::from(at) * 100);
        tale.done(1, 0.4);
    }
    for at in 0..agents {
        tale.start(at + 1, Purpose::Implement, Some(&format!("b{:02}", at + 2)), at % 2);
    }
    let mut at_work = AtWork::default();
    let dispatch =
        tale.chronicle.run.jobs.get(&1).map(|job| job.start.dispatch.clone()).unwrap_or_default();
    let dispatch = DispatchId::try_from(dispatch).expect("an id");
    let mut tell = |event: Event| {
        let entry = Entry {
            id: String::new(),
            dispatch_id: Some(dispatch.clone()),
            at: None,
            more: false,
            event,
        };
        at_work.apply(&Record { v: 1, seq: 1, ts: tale.now, entry });
    };
    let (tool, target) =
        ("Bash".into(), "cargo test --workspace --all-features -- --nocapture\x07".into());
    tell(Event::ToolCalled { call_id: "c".into(), tool, target, parent: None });
    tell(Event::UsageRecorded {
        model: "m".into(),
        input: 1,
        output: 1,
        cache_read: 0,
        cache_write: 0,
        cost_usd: 0.25,
        cumulative: false,
        total_usd: None,
    });
    tale.pass(30);
    (tale, at_work)
}

#[test]
fn progress_shows_beads_agents_tools_time_and_cost() {
    let (tale, at_work) = under_way(3);
    insta::assert_snapshot!(
        "progress",
        plain(&picture(&tale.chronicle, &at_work, tale.now, 110, 24))
    );
    insta::assert_snapshot!(
        "progress_narrow",
        plain(&picture(&tale.chronicle, &at_work, tale.now, 40, 24))
    );
}

#[test]
fn it_fits_whatever_there_is_to_fit_into() {
    let (tale, at_work) = under_way(40);
    for columns in [1, 2, 10, 39, 60, 200] {
        for rows in [1, 2, 5, 8, 24, 100] {
            let lines = picture(&tale.chronicle, &at_work, tale.now, columns, rows);
            assert!(lines.len() <= rows.max(1), "{} lines in {rows}", lines.len());
            for line in &lines {
                let seen = strip_str(line).to_string();
                assert!(seen.width() <= columns, "{} columns in {columns}: {seen}", seen.width());
                assert!(!seen.contains(char::is_control));
            }
        }
    }
    let shown = plain(&picture(&tale.chronicle, &at_work, tale.now, 100, 24));
    assert!(shown.contains("and 29 more agents"), "{shown}");
}

#[test]
fn progress_without_data_shows_no_estimate() {
    let tale = Tale::new("Begun");
    let shown = plain(&picture(&tale.chronicle, &AtWork::default(), tale.now, 80, 24));
    assert!(shown.contains("no beads yet") && !shown.contains("left"), "{shown}");
    let mut tale = Tale::new("First");
    tale.beads(&[planned("a", "A", &[])]);
    tale.start(1, Purpose::Implement, Some("a"), 0);
    let shown = plain(&picture(&tale.chronicle, &AtWork::default(), tale.now, 80, 24));
    assert!(shown.contains("unknown until a bead is done"), "{shown}");
    // A clock that was set back must not cause negative times.
    let early: Timestamp = "2020-01-01T00:00:00Z".parse().expect("a time");
    assert!(
        plain(&picture(&tale.chronicle, &AtWork::default(), early, 80, 24))
            .contains("implement a  0s")
    );
}
