//! Verbs that no person types: processes of their own that happen to be in the same file.

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs a hidden verb, if that is what the arguments ask for. It must be the first word: its caller
/// is always Muleteer itself.
pub fn dispatch(args: &[OsString]) -> Option<ExitCode> {
    match args.get(1)?.to_str()? {
        "shim" => Some(shim(args)),
        "rehearse" => Some(rehearse(args)),
        "probe" => Some(probe(args)),
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

/// `doctor` tries in a child what would change a process for good.
fn probe(args: &[OsString]) -> ExitCode {
    let word = |at: usize| args.get(at).map(std::path::Path::new).unwrap_or_else(|| "".as_ref());
    let verdict = match args.get(2).and_then(|what| what.to_str()) {
        Some("namespaces") => muleteer_process::sandbox::probe::namespaces(),
        Some("inner") => muleteer_process::sandbox::probe::inner(),
        Some("landlock") => muleteer_process::sandbox::probe::landlock(word(3), word(4)),
        _ => return ExitCode::from(2),
    };
    // Nobody but the parent reads it; where it cannot be written, nothing was proven.
    let line = match verdict {
        Ok(what) => format!("ok {what}\n"),
        Err(why) => format!("no {why}\n"),
    };
    match std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
