//! Hidden verbs that only Muleteer calls: separate processes that use the same executable file.

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs a hidden verb if the first argument names one. It must be the first argument, because the
/// caller is always Muleteer itself.
pub fn dispatch(args: &[OsString]) -> Option<ExitCode> {
    match args.get(1)?.to_str()? {
        "shim" => Some(shim(args)),
        "rehearse" => Some(rehearse(args)),
        "probe" => Some(probe(args)),
        "adapter-run" => Some(adapter_run(args)),
        _ => None,
    }
}

/// Runs the shim of an agent, if the shim's own binary is not installed beside this one.
fn shim(args: &[OsString]) -> ExitCode {
    muleteer_shim::main(args.iter().skip(2).cloned())
}

/// Runs the agent of the rehearsal backend.
fn rehearse(args: &[OsString]) -> ExitCode {
    crate::rehearse::main(&args[2..])
}

/// Runs a built-in adapter. This version has none.
fn adapter_run(args: &[OsString]) -> ExitCode {
    let name = args.get(2).map(|name| name.to_string_lossy()).unwrap_or_default();
    eprintln!("no adapter `{name}` is built in: set adapters.{name}.command");
    ExitCode::from(2)
}

/// Runs a probe of `doctor` in a child process, because it would change its process permanently.
fn probe(args: &[OsString]) -> ExitCode {
    let word = |at: usize| args.get(at).map(std::path::Path::new).unwrap_or_else(|| "".as_ref());
    let verdict = match args.get(2).and_then(|what| what.to_str()) {
        Some("namespaces") => muleteer_process::sandbox::probe::namespaces(),
        Some("overlays") => muleteer_process::sandbox::probe::overlays(word(3), word(4), word(5)),
        Some("landlock") => muleteer_process::sandbox::probe::landlock(word(3), word(4)),
        _ => return ExitCode::from(2),
    };
    // Only the parent reads the verdict; if it cannot be written, nothing was proven.
    let line = match verdict {
        Ok(what) => format!("ok {what}\n"),
        Err(why) => format!("no {why}\n"),
    };
    match std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
