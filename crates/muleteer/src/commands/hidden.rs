//! Verbs that no person types: processes of their own that happen to be in the same file.

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs a hidden verb, if that is what the arguments ask for. It must be the first word: its caller is
/// always Muleteer itself.
pub fn dispatch(args: &[OsString]) -> Option<ExitCode> {
    match args.get(1)?.to_str()? {
        "shim" => Some(shim(args)),
        "rehearse" => Some(rehearse(args)),
        _ => None,
    }
}

/// The per-agent shim, where its own binary is not installed beside this one.
fn shim(args: &[OsString]) -> ExitCode {
    muleteer_shim::main(args.iter().skip(2).cloned())
}

/// The rehearsal backend's agent.
fn rehearse(args: &[OsString]) -> ExitCode {
    crate::rehearse::main(&args[2..])
}
