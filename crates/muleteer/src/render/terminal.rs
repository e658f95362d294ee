//! The size of the terminal that shows the output: this process's, or that of the host whose user
//! runs the verb here ([`far_screen`]).

use crate::cli::far_screen::{self, Screen};
use crate::cli::output::Output;
use std::io::{self, IsTerminal};

/// The narrowest width for which output is laid out. Narrower terminals wrap.
const NARROWEST: usize = 20;
/// Columns and rows of a terminal that does not report its size.
const UNKNOWN: (usize, usize) = (80, 24);

/// Returns whether stdout is a terminal on which the cursor can be moved.
pub fn is_screen() -> bool {
    if let Some(screen) = far_screen::get() {
        return screen.is_movable;
    }
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Returns the width in columns for output on stdout: `COLUMNS`, else that of the terminal. `None`
/// if stdout is no terminal: then a program reads it, and nothing is cut.
pub fn width() -> Option<usize> {
    if let Some(screen) = far_screen::get() {
        return screen.columns.map(|columns| columns.max(NARROWEST));
    }
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
    match far_screen::get() {
        Some(screen) => screen.rows,
        None => size().map(|(_, rows)| rows),
    }
}

/// Returns whether a person types on stdin.
pub fn is_typed() -> bool {
    far_screen::get().map_or_else(|| io::stdin().is_terminal(), |screen| screen.stdin_is_terminal)
}

/// Returns whether a person sees stdout.
pub fn is_seen() -> bool {
    far_screen::get().map_or_else(|| io::stdout().is_terminal(), |screen| screen.stdout_is_terminal)
}

/// Returns rows and columns of the terminal on stderr on which the cursor can be moved. `None` if
/// there is none.
pub fn errors() -> Option<(usize, usize)> {
    if let Some(screen) = far_screen::get() {
        return screen.errors;
    }
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    if dumb || !io::stderr().is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(io::stderr()).ok();
    let size = size.map(|size| (usize::from(size.ws_row), usize::from(size.ws_col)));
    let size = size.filter(|(rows, columns)| *rows > 0 && *columns > 0);
    Some(size.unwrap_or((UNKNOWN.1, UNKNOWN.0)))
}

/// Describes the terminal of this process, for a verb that runs on another host.
pub fn screen(out: Output) -> Screen {
    Screen {
        columns: width(),
        rows: height(),
        errors: errors(),
        stdin_is_terminal: is_typed(),
        stdout_is_terminal: is_seen(),
        is_movable: is_screen(),
        has_colors: out.color_on_stdout(),
        has_colors_for_errors: out.color_on_stderr(),
    }
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
