//! Tests `cost` with events on disk.

#![allow(clippy::unwrap_used)]

mod support;

use anstream::adapter::strip_str;
use muleteer_cli::render::cost::{report, table, table_within};
use muleteer_model::dispatch::cost::{Bill, By};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event, Record, VERSION};
use support::User;

fn used(at: &str, id: &str, model: &str, cost_usd: f64) -> Record {
    let usage = Event::UsageRecorded {
        model: model.into(),
        input: 12_400,
        output: 3_100,
        cache_read: 1_250_000,
        cache_write: 48_000,
        cost_usd,
        cumulative: false,
        total_usd: None,
    };
    let entry = Entry {
        id: String::new(),
        dispatch_id: Some(DispatchId::try_from(id.to_string()).unwrap()),
        at: None,
        more: false,
        event: usage,
    };
    Record { v: VERSION, seq: 1, ts: at.parse().unwrap(), entry }
}

#[test]
fn the_table() {
    let long = format!("/a/path/{}/that/is/long", "deep/".repeat(12));
    let mut bill = Bill::new(By::Model, None);
    for (id, model, cost) in [
        ("k3f9abcd", "claude-opus-4-6", 12.3),
        ("m2mzcvqd", "claude-opus-4-6", 0.04),
        ("m2mzcvqd", "claude-haiku\x1b[2J", 0.0012),
        ("m2mzcvqd", long.as_str(), 0.0),
    ] {
        bill.add(&used("2026-01-02T12:00:00Z", id, model, cost));
    }
    insta::assert_snapshot!("cost", strip_str(&table(&bill, "model")).to_string());
    assert_eq!(table(&Bill::new(By::Day, None), "day"), "no usage recorded\n");
}

#[test]
fn empty_cost_report_says_no_usage() {
    let user = User::new();
    let said = user.run(&["cost"]);
    assert_eq!((said.code, said.stdout.as_str()), (0, "no usage recorded\n"), "{said:?}");
    let json = user.run(&["cost", "--by", "day", "--json"]).json();
    assert_eq!(json["running"], false);
    assert_eq!(
        (&json["by"], json["rows"].as_array().map(Vec::len)),
        (&"day".into(), Some(0)),
        "{json}"
    );
    assert_eq!(json["total"]["cost_usd"], 0.0);
    assert_eq!(user.run(&["cost", "--since", "yesterday"]).code, 2);
    assert_eq!(user.run(&["cost", "--by", "colour"]).code, 2);
    assert!(!user.state().join("daemon.lock").exists(), "a verb that reads starts no daemon");
}

/// The money is what a person looks for, so it stays however long the names are.
#[test]
fn table_fits_into_a_narrow_terminal_and_keeps_the_cost() {
    let mut bill = Bill::new(By::Model, None);
    for (model, cost) in [("claude-sonnet-4-5-20250929", 12.3), ("a/long/path/of/a/model/v9", 0.5)]
    {
        bill.add(&used("2026-01-02T12:00:00Z", "k3f9abcd", model, cost));
    }
    for width in [40, 60, 80, 120] {
        let shown = strip_str(&table_within(&bill, "model", Some(width))).to_string();
        assert!(shown.lines().all(|line| line.chars().count() <= width), "{width}: {shown}");
        assert!(shown.contains("COST") && shown.contains("$12.80"), "{width}: {shown}");
        assert!(shown.contains("model/v9"), "{width}: {shown}");
    }
}

#[test]
fn report_without_usage_says_so_and_counts_one_dispatch_as_one() {
    let mut bills = [("agent", Bill::new(By::Agent, None))];
    assert_eq!(
        report(&bills, Some("2026-01-01")),
        "# Cost of agents\n\nSince 2026-01-01: no usage recorded\n"
    );
    bills[0].1.add(&used("2026-01-02T12:00:00Z", "k3f9abcd", "opus", 1.0));
    let shown = report(&bills, None);
    assert!(shown.contains("$1.00 for 1 dispatch and 1.3M tokens."), "{shown}");
}

/// A person pastes it into a report, so a name must not break the table.
#[test]
fn report_has_a_table_for_each_grouping_and_marks_what_has_no_price() {
    let mut bills =
        [("agent", By::Agent), ("role", By::Role), ("model", By::Model), ("day", By::Day)]
            .map(|(name, by)| (name, Bill::new(by, None)));
    for (id, model, cost) in [
        ("k3f9abcd", "claude-opus-4-6", 12.3),
        ("m2mzcvqd", "gpt|odd\n", 0.0),
        ("m2mzcvqd", "claude-opus-4-6", 0.5),
    ] {
        let record = used("2026-01-02T12:00:00Z", id, model, cost);
        bills.iter_mut().for_each(|(_, bill)| bill.add(&record));
    }
    insta::assert_snapshot!("cost_report", report(&bills, Some("2026-01-01")));
}
