//! Aligned columns that fit into the width of the terminal. Only visible characters count as width,
//! so a cell's colour is separate from its text.

use crate::render::terminal;
use crate::render::{DIM, RESET, clip_start, clip_to_width};
use unicode_width::UnicodeWidthStr;

/// The spaces between two columns.
const GAP: usize = 2;
/// The width to which a column of text shrinks before a whole column is left out.
const NARROW: usize = 12;

#[derive(Debug, Clone, Default)]
pub struct Cell {
    pub text: String,
    /// An escape sequence, or an empty string.
    pub color: &'static str,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, color: "" }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_string().into()
    }
}

impl Cell {
    pub fn colored(text: impl Into<String>, color: &'static str) -> Self {
        Self { text: text.into(), color }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
    /// As [`Align::Left`], for the text that a person looks for: columns go before it shrinks to
    /// less than this width.
    Main(usize),
    /// As [`Align::Main`], and cut at its beginning: the end of a path says more.
    MainEnd(usize),
}

/// Aligns `rows` under `heads` within the width of the terminal, if stdout is one, as [`fit`] does.
pub fn layout(heads: &[(&str, Align)], rows: &[Vec<Cell>], expendable: &[&str]) -> String {
    fit(heads, rows, terminal::width(), expendable)
}

/// Aligns `rows` under `heads`, with two spaces between columns and no trailing spaces.
///
/// If the rows are wider than `width`, columns of text shrink, the widest first. If that is not
/// enough, the columns named in `expendable` are left out in this order, then others from the
/// right. The first column identifies the row: it never goes, and shrinks only if its alignment
/// says to which width.
pub fn fit(
    heads: &[(&str, Align)],
    rows: &[Vec<Cell>],
    width: Option<usize>,
    expendable: &[&str],
) -> String {
    let natural = |at: usize, head: &str| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.text.width());
        cells.chain([head.width()]).max().unwrap_or(0)
    };
    let mut columns: Vec<Column<'_>> = heads
        .iter()
        .enumerate()
        .map(|(at, &(head, align))| Column { at, head, align, width: natural(at, head) })
        .collect();
    if let Some(width) = width {
        narrow(&mut columns, width, expendable);
    }
    let head: Vec<_> = heads.iter().map(|(head, _)| Cell::colored(*head, DIM)).collect();
    std::iter::once(&head).chain(rows).map(|row| line(row, &columns)).collect()
}

struct Column<'a> {
    /// The place of its cells in a row.
    at: usize,
    head: &'a str,
    align: Align,
    width: usize,
}

impl Column<'_> {
    /// The width to which it may shrink. Numbers are never cut.
    fn least(&self) -> usize {
        match self.align {
            Align::Left if self.at > 0 => self.width.min(NARROW.max(self.head.width())),
            Align::Main(least) | Align::MainEnd(least) => {
                self.width.min(least.max(self.head.width()))
            }
            Align::Left | Align::Right => self.width,
        }
    }
}

fn sum(columns: &[Column<'_>], of: impl Fn(&Column<'_>) -> usize) -> usize {
    columns.iter().map(of).sum::<usize>() + GAP * columns.len().saturating_sub(1)
}

/// Leaves columns out until the others can shrink to `width`, and shrinks them.
fn narrow(columns: &mut Vec<Column<'_>>, width: usize, expendable: &[&str]) {
    let mut names = expendable.iter();
    while columns.len() > 1 && sum(columns, |column| column.least()) > width {
        let named = names.by_ref().find_map(|name| {
            columns.iter().position(|column| column.at > 0 && column.head == *name)
        });
        columns.remove(named.unwrap_or(columns.len() - 1));
    }
    while sum(columns, |column| column.width) > width {
        let can_shrink = |column: &&mut Column<'_>| column.width > column.least();
        let widest = columns.iter_mut().filter(can_shrink).max_by_key(|column| column.width);
        let Some(widest) = widest else { return };
        widest.width -= 1;
    }
}

fn line(row: &[Cell], columns: &[Column<'_>]) -> String {
    let mut line = String::new();
    for column in columns {
        let Some(cell) = row.get(column.at) else { continue };
        let text = match column.align {
            Align::MainEnd(_) => clip_start(&cell.text, column.width),
            Align::Left | Align::Main(_) | Align::Right => clip_to_width(&cell.text, column.width),
        };
        let padding = " ".repeat(column.width.saturating_sub(text.width()));
        let is_plain = cell.color.is_empty() || text.is_empty();
        let shown = if is_plain { text } else { format!("{}{text}{RESET}", cell.color) };
        line.push_str(&match column.align {
            Align::Left | Align::Main(_) | Align::MainEnd(_) => format!("{shown}{padding}  "),
            Align::Right => format!("{padding}{shown}  "),
        });
    }
    format!("{}\n", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anstream::adapter::strip_str;

    const HEADS: [(&str, Align); 5] = [
        ("ID", Align::Left),
        ("ROLE", Align::Left),
        ("TURNS", Align::Right),
        ("COST", Align::Right),
        ("", Align::Left),
    ];

    fn rows() -> Vec<Vec<Cell>> {
        let long = "a reason that is much longer than the column that is left for it on a line";
        let row = |id: &str, role: &str, why: &str| -> Vec<Cell> {
            vec![id.into(), role.into(), "12".into(), "$1.23".into(), Cell::colored(why, DIM)]
        };
        vec![
            row("k3f9abcd", "developer-of-the-frontend", long),
            row("m2mzcvqd", "tester", "日本語の理由はここにとても長く書かれている理由です"),
        ]
    }

    fn shown(width: Option<usize>) -> Vec<String> {
        let text = fit(&HEADS, &rows(), width, &["TURNS"]);
        strip_str(&text).to_string().lines().map(String::from).collect()
    }

    #[test]
    fn rows_fit_into_every_width_and_keep_the_first_column() {
        for width in 20..200 {
            for line in shown(Some(width)) {
                assert!(line.width() <= width, "{width}: {} columns: {line}", line.width());
            }
            assert!(shown(Some(width))[1].starts_with("k3f9abcd"), "{width}");
        }
    }

    #[test]
    fn text_shrinks_before_a_column_goes_and_the_expendable_goes_first() {
        let wide = shown(Some(80));
        assert!(wide[0].contains("TURNS") && wide[1].ends_with('…'), "{wide:?}");
        let less = shown(Some(48));
        assert!(!less[0].contains("TURNS") && less[0].contains("COST"), "{less:?}");
        assert!(shown(Some(20))[0] == "ID", "{:?}", shown(Some(20)));
    }

    #[test]
    fn columns_go_before_the_main_text_becomes_unreadable() {
        let heads = [("ID", Align::MainEnd(6)), ("N", Align::Right), ("WHAT", Align::Main(20))];
        let what = "a text of more than twenty columns";
        let rows = [vec!["/home/u/web".into(), "1234567".into(), what.into()]];
        let shown = |width| strip_str(&fit(&heads, &rows, Some(width), &["N"])).to_string();
        let row = |width| shown(width).lines().nth(1).map(String::from).unwrap_or_default();
        assert_eq!(row(60), "/home/u/web  1234567  a text of more than twenty columns");
        assert_eq!(row(42), "/home/u/web  1234567  a text of more than…");
        assert_eq!(row(28), "…u/web  a text of more than…");
        assert!(shown(36).lines().all(|line| line.width() <= 36 && !line.contains("1234")));
    }

    #[test]
    fn nothing_is_cut_without_a_terminal() {
        assert!(shown(None)[1].ends_with("left for it on a line"));
    }
}
