//! Aligned columns. Only visible characters count as width, so a cell's colour is separate from its
//! text.

use crate::render::RESET;

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
}

/// Aligns `rows` under `heads`, with two spaces between columns and no trailing spaces.
pub fn layout(heads: &[(&str, Align)], rows: &[Vec<Cell>]) -> String {
    let width = |at: usize, head: &str| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.text.chars().count());
        cells.chain([head.chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = heads.iter().enumerate().map(|(at, (head, _))| width(at, head)).collect();
    let head: Vec<_> =
        heads.iter().map(|(head, _)| Cell::colored(*head, crate::render::DIM)).collect();
    let mut text = String::new();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(heads) {
            let padding = " ".repeat(width.saturating_sub(cell.text.chars().count()));
            let plain = cell.color.is_empty() || cell.text.is_empty();
            let shown = if plain {
                cell.text.clone()
            } else {
                format!("{}{}{RESET}", cell.color, cell.text)
            };
            line.push_str(&match align {
                Align::Left => format!("{shown}{padding}  "),
                Align::Right => format!("{padding}{shown}  "),
            });
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
