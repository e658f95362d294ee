//! `cost`: a table of the bill's rows and their sum.

use crate::render::table::{Align, Cell, layout};
use crate::render::{BOLD, clip, count, usd};
use muleteer_model::dispatch::cost::{Bill, Row};

/// The width of a name. A path is cut at its beginning, because its end says more.
const NAME: usize = 48;

pub fn table(bill: &Bill, by: &str) -> String {
    let rows = bill.rows();
    if rows.is_empty() {
        return "no usage recorded\n".into();
    }
    let name = by.to_uppercase();
    let heads = [
        (name.as_str(), Align::Left),
        ("DISPATCHES", Align::Right),
        ("INPUT", Align::Right),
        ("OUTPUT", Align::Right),
        ("CACHE READ", Align::Right),
        ("CACHE WRITE", Align::Right),
        ("COST", Align::Right),
    ];
    let mut lines: Vec<_> =
        rows.into_iter().map(|(key, row)| line(end_of(key).into(), row)).collect();
    lines.push(line(Cell::colored("total", BOLD), bill.total()));
    layout(&heads, &lines)
}

fn line(name: Cell, row: &Row) -> Vec<Cell> {
    let tokens = [row.input, row.output, row.cache_read, row.cache_write];
    let mut cells = vec![name, row.dispatches.len().to_string().into()];
    cells.extend(tokens.map(|tokens| Cell::from(count(tokens))));
    cells.push(usd(row.cost_usd).into());
    cells
}

fn end_of(name: &str) -> String {
    let clean = clip(name, usize::MAX);
    match clean.chars().count().checked_sub(NAME) {
        Some(over) if over > 0 => format!("…{}", clean.chars().skip(over + 1).collect::<String>()),
        _ => clean,
    }
}
