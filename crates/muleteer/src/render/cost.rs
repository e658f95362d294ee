//! `cost`: a table of the bill's rows and their sum, and a summary for a report.

use crate::render::table::{Align, Cell, fit};
use crate::render::terminal;
use crate::render::{BOLD, YELLOW, clip, count, usd};
use muleteer_model::dispatch::cost::{Bill, Row};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// The width of a name. A path is cut at its beginning, because its end says more.
const NAME: usize = 48;
/// The width of a name on a narrow terminal.
const NARROW_NAME: usize = 24;
/// The columns that a narrow terminal leaves out, the first one first.
const EXPENDABLE: [&str; 4] = ["DISPATCHES", "CACHE WRITE", "CACHE READ", "INPUT"];
/// The text if nothing was used.
const NOTHING: &str = "no usage recorded\n";
/// The cost of use that has tokens and no price.
const NO_PRICE: &str = "no price";

/// Returns the table of a bill within the width of the terminal.
pub fn table(bill: &Bill, by: &str) -> String {
    table_within(bill, by, terminal::width())
}

/// Returns the table of a bill within `width` columns.
pub fn table_within(bill: &Bill, by: &str, width: Option<usize>) -> String {
    let rows = bill.rows();
    if rows.is_empty() {
        return NOTHING.into();
    }
    let name = by.to_uppercase();
    let heads = [
        (name.as_str(), Align::MainEnd(NARROW_NAME)),
        ("DISPATCHES", Align::Right),
        ("INPUT", Align::Right),
        ("OUTPUT", Align::Right),
        ("CACHE READ", Align::Right),
        ("CACHE WRITE", Align::Right),
        ("COST", Align::Right),
    ];
    let mut lines: Vec<_> =
        rows.into_iter().map(|(key, row)| line(end_of(key).into(), bill, row)).collect();
    lines.push(line(Cell::colored("total", BOLD), bill, bill.total()));
    let mut text = fit(&heads, &lines, width, &EXPENDABLE);
    if let Some(note) = note(bill) {
        let _ = writeln!(text, "{note}");
    }
    text
}

/// Returns a summary in Markdown: the total, and a table for each bill. `since` is the day from
/// which use counts.
pub fn report(bills: &[(&str, Bill)], since: Option<&str>) -> String {
    let Some((_, first)) = bills.first() else { return String::new() };
    let mut text = String::from("# Cost of agents\n\n");
    if first.rows().is_empty() {
        let since = since.map(|since| format!("Since {since}: ")).unwrap_or_default();
        return format!("{text}{since}{NOTHING}");
    }
    let total = first.total();
    let tokens = [total.input, total.output, total.cache_read, total.cache_write];
    let _ = writeln!(
        text,
        "{}{} for {} dispatch{} and {} tokens.",
        since.map(|since| format!("Since {since}: ")).unwrap_or_default(),
        cost(first, total),
        total.dispatches(),
        if total.dispatches() == 1 { "" } else { "es" },
        count(tokens.into_iter().fold(0, u64::saturating_add)),
    );
    if let Some(note) = note(first) {
        let _ = writeln!(text, "\n{note}");
    }
    for (by, bill) in bills {
        let of_agents = *by == "agent";
        let _ = writeln!(text, "\n## By {by}\n");
        let (head, rule) = if of_agents { (" role |", " --- |") } else { ("", "") };
        let _ = writeln!(
            text,
            "| {by} |{head} dispatches | input | output | cache read | cache write | cost |"
        );
        let _ = writeln!(text, "| --- |{rule} ---: | ---: | ---: | ---: | ---: | ---: |");
        for (key, row) in bill.rows() {
            let role = bill.dispatch(key).filter(|_| of_agents).map(|(role, _)| role);
            let role = match of_agents {
                true => format!(" {} |", cell(role.unwrap_or("unknown"))),
                false => String::new(),
            };
            let _ = writeln!(
                text,
                "| {} |{role} {} | {} | {} | {} | {} | {} |",
                cell(key),
                row.dispatches(),
                count(row.input),
                count(row.output),
                count(row.cache_read),
                count(row.cache_write),
                cost(bill, row),
            );
        }
    }
    text
}

/// Returns a text as a cell of a Markdown table.
fn cell(text: &str) -> String {
    clip(text, usize::MAX).replace('\\', "\\\\").replace('|', "\\|")
}

fn line(name: Cell, bill: &Bill, row: &Row) -> Vec<Cell> {
    let tokens = [row.input, row.output, row.cache_read, row.cache_write];
    let mut cells = vec![name, row.dispatches().to_string().into()];
    cells.extend(tokens.map(|tokens| Cell::from(count(tokens))));
    let color = if bill.unpriced(row).tokens > 0 { YELLOW } else { "" };
    cells.push(Cell::colored(cost(bill, row), color));
    cells
}

/// Returns the cost of a row, with a mark if a part of its use has no price.
fn cost(bill: &Bill, row: &Row) -> String {
    match bill.unpriced(row).tokens {
        0 => usd(row.cost_usd),
        _ if row.cost_usd > 0.0 => format!("{}+", usd(row.cost_usd)),
        _ => NO_PRICE.into(),
    }
}

/// Says which models have no price, if there are any.
fn note(bill: &Bill) -> Option<String> {
    let unpriced = bill.unpriced(bill.total());
    (unpriced.tokens > 0).then(|| {
        format!(
            "The cost does not include {} tokens without a price ({}): set models.prices in the \
             configuration.",
            count(unpriced.tokens),
            names(&unpriced.models),
        )
    })
}

fn names(models: &BTreeSet<String>) -> String {
    const NAMED: usize = 5;
    let named: Vec<_> = models.iter().take(NAMED).map(|model| clip(model, NAME)).collect();
    match models.len().saturating_sub(NAMED) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

fn end_of(name: &str) -> String {
    let clean = clip(name, usize::MAX);
    match clean.chars().count().checked_sub(NAME) {
        Some(over) if over > 0 => format!("…{}", clean.chars().skip(over + 1).collect::<String>()),
        _ => clean,
    }
}
