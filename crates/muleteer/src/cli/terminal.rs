//! The size of the terminal that shows the output.

use std::io::{self, IsTerminal};

/// The narrowest width for which output is laid out. Narrower terminals wrap.
const NARROWEST: usize = 20;

/// Returns the width in columns for output on stdout: `COLUMNS`, else that of the terminal. `None`
/// if stdout is no terminal: then a program reads it, and nothing is cut.
pub fn width() -> Option<usize> {
    let asked = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    pick(asked, size().map(|(columns, _)| columns))
}

/// Returns the height in rows of the terminal on stdout.
pub fn height() -> Option<usize> {
    size().map(|(_, rows)| rows)
}

fn pick(asked: Option<usize>, terminal: Option<usize>) -> Option<usize> {
    asked.filter(|columns| *columns > 0).or(terminal).map(|columns| columns.max(NARROWEST))
}

/// Returns columns and rows. A terminal that does not know its size reports zeros.
fn size() -> Option<(usize, usize)> {
    let stdout = io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
    let (columns, rows) = (usize::from(size.ws_col), usize::from(size.ws_row));
    (columns > 0 && rows > 0).then_some((columns, rows))
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
