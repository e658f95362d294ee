//! The size of the terminal that shows the output.

use std::io::{self, IsTerminal};

/// The narrowest width for which output is laid out. Narrower terminals wrap.
const NARROWEST: usize = 20;
/// Columns and rows of a terminal that does not report its size.
const UNKNOWN: (usize, usize) = (80, 24);

/// Returns whether stdout is a terminal on which the cursor can be moved.
pub fn is_screen() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns the width in columns for output on stdout: `COLUMNS`, else that of the terminal. `None`
/// if stdout is no terminal: then a program reads it, and nothing is cut.
pub fn width() -> Option<usize> {
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    pick(asked, size().map(|(columns, _)| columns))
}

/// Returns the columns of a line that must not wrap, so that the rows of a screen can be counted:
/// [`width`], but no more than the terminal has. `COLUMNS` may be older than the terminal's size.
pub fn columns() -> Option<usize> {
    Some(width()?.min(size()?.0))
}

/// Returns the height in rows of the terminal on stdout.
pub fn height() -> Option<usize> {
    size().map(|(_, rows)| rows)
}

fn pick(asked: Option<usize>, terminal: Option<usize>) -> Option<usize> {
    asked.filter(|columns| *columns > 0).or(terminal).map(|columns| columns.max(NARROWEST))
}

/// Returns columns and rows; those of [`UNKNOWN`] for a terminal that does not report them.
fn size() -> Option<(usize, usize)> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok();
    let size = size.map(|size| (usize::from(size.ws_col), usize::from(size.ws_row)));
    Some(size.filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or(UNKNOWN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_is_that_of_the_variable_then_of_the_terminal() {
        assert_eq!(pick(Some(120), Some(80)), Some(120));
        assert_eq!(pick(Some(0), Some(80)), Some(80));
        assert_eq!(pick(None, Some(3)), Some(NARROWEST));
        assert_eq!(pick(None, None), None);
    }
}
