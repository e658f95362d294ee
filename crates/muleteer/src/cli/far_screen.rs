//! The terminal of the person who runs a verb from another host.

use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

static SCREEN: OnceLock<Screen> = OnceLock::new();

/// The terminal that shows the output of a verb that runs on another host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Screen {
    /// The width for which output is laid out, if stdout is a terminal.
    pub columns: Option<usize>,
    pub rows: Option<usize>,
    /// The rows and columns of the terminal on stderr.
    pub errors: Option<(usize, usize)>,
    pub stdin_is_terminal: bool,
    pub stdout_is_terminal: bool,
    /// The cursor can be moved on stdout.
    pub is_movable: bool,
    pub has_colors: bool,
    pub has_colors_for_errors: bool,
}

/// Makes it the terminal of this process. Only the first call counts.
pub fn set(screen: Screen) {
    let _ = SCREEN.set(screen);
}

/// Returns it; `None` if the verb was started on this host.
pub fn get() -> Option<&'static Screen> {
    SCREEN.get()
}
