//! The only place that creates a `std` command.
//!
//! Short-lived helpers (git, ps) and shims start here; agents start from [`crate::spawn`]. Every
//! descriptor of this program is close-on-exec, so a helper inherits only its own streams.

pub mod owned_child;
pub mod program;

use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// Returns a command with an empty stdin: a helper that asks for a password must fail, not hang.
#[allow(clippy::disallowed_methods, reason = "this is the place the lint points to")]
pub fn helper(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}
