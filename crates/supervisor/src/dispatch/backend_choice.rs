//! Chooses the backend of a dispatch, and checks that its program exists.

use crate::dispatch::acp_program;
use crate::dispatch::error::fault;
use muleteer_backends::Backend;
use muleteer_backends::BackendError;
use muleteer_backends::Command;
use muleteer_backends::Program;
use muleteer_backends::subprocess;
use muleteer_model::agent::role;
use muleteer_model::config::{self, BackendChoice, Config};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{self, WireError};
use std::ffi::OsStr;
use std::path::Path;

/// The PATH of an agent whose requester has none.
pub(crate) const USUAL_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

pub type Chosen = (&'static dyn Backend, Option<config::Backend>);

pub(crate) fn choose_backend(
    spawn: &v1::Spawn,
    place: Option<&Path>,
    role: &role::Role,
    config: &Config,
    path: Option<&str>,
) -> Result<Chosen, WireError> {
    let otherwise = role.backend.unwrap_or(config.backend);
    backend_of(spawn.backend.as_deref(), otherwise, (spawn.command.as_ref(), place), config, path)
}

/// Returns the requested backend (`acp:NAME` too), or else the configured one, with its
/// configuration. It is rejected if its program is not on `path`, unless a command replaces the
/// program. Then the command's program is searched, a relative one from `place`. A relative one is
/// not searched if `place` does not exist yet.
///
/// # Errors
/// `E_BACKEND_UNAVAILABLE`; `E_CONFIG_INVALID` if a command is needed and there is none.
pub fn backend_of(
    asked: Option<&str>,
    otherwise: BackendChoice,
    (command, place): (Option<&v1::Command>, Option<&Path>),
    config: &Config,
    path: Option<&str>,
) -> Result<Chosen, WireError> {
    let choice = match asked {
        Some(name) => {
            acp_program::check_name(name)?;
            BackendChoice::parse(acp_program::split(name).0).map_err(|error| {
                fault(ErrorCode::BackendUnavailable, &error.to_string(), &error.hint)
            })?
        }
        None => otherwise,
    };
    let wire = |error: BackendError| fault(error.code(), &error.to_string(), &error.hint());
    let backend = match choice {
        BackendChoice::Auto => muleteer_backends::auto(path.map(OsStr::new)).map_err(wire)?,
        named => muleteer_backends::by_name(named.as_str()).map_err(wire)?,
    };
    let configured = config.backends.get(choice_of(backend));
    let own = || configured.as_ref().and_then(|backend| backend.command.clone()).map(from_config);
    if let Some(command) = command.cloned().map(from_wire).or_else(own) {
        let chosen = [
            configured.as_ref().and_then(|backend| backend.env.get("PATH")).map(String::as_str),
            path,
        ];
        let in_a_shell =
            backend.runs_command_in_shell(asked.and_then(|asked| acp_program::split(asked).1));
        check_program(backend.name(), (&command, in_a_shell), place, chosen).map_err(wire)?;
        return Ok((backend, configured));
    }
    let (program, install) = match backend.program() {
        Program::Command { hint } => {
            let message = format!("the {} backend has no command", backend.name());
            return Err(fault(ErrorCode::ConfigInvalid, &message, hint));
        }
        Program::OnPath { name, install } => (name, install),
        Program::Other => return Ok((backend, configured)),
    };
    if muleteer_backends::find_program(program, path.map(OsStr::new)).is_none() {
        let message =
            format!("the {} backend needs `{program}`, which is not on PATH", backend.name());
        let hint = format!("{install}, then make sure its directory is on PATH");
        return Err(fault(ErrorCode::BackendUnavailable, &message, &hint));
    }
    Ok((backend, configured))
}

/// Checks that a command's program exists, as far as that is known before its directory exists.
fn check_program(
    backend: &'static str,
    (command, in_a_shell): (&Command, bool),
    place: Option<&Path>,
    chosen: [Option<&str>; 2],
) -> Result<(), BackendError> {
    let Some(program) = muleteer_backends::named_program(command, in_a_shell) else {
        return Ok(());
    };
    let is_seen_from_there = program.contains('/') && !program.starts_with('/');
    // `muleteer` is on the PATH of every agent.
    if program == "muleteer" || (is_seen_from_there && place.is_none()) {
        return Ok(());
    }
    let name = muleteer_backends::seen_from(place.unwrap_or("/".as_ref()), program);
    let paths = chosen
        .into_iter()
        .flatten()
        .chain([USUAL_PATH].into_iter().filter(|_| chosen == [None, None]));
    if paths
        .into_iter()
        .any(|path| muleteer_backends::find_program(&name, Some(path.as_ref())).is_some())
    {
        return Ok(());
    }
    Err(BackendError::ProgramMissing { backend, program: program.into(), get: subprocess::GET })
}

pub(crate) fn choice_of(backend: &dyn Backend) -> BackendChoice {
    BackendChoice::parse(backend.name()).unwrap_or(BackendChoice::Auto)
}

pub(crate) fn from_wire(command: v1::Command) -> Command {
    match command {
        v1::Command::Shell(text) => Command::Shell(text),
        v1::Command::Argv(words) => Command::Argv(words),
    }
}

pub(crate) fn from_config(command: config::Command) -> Command {
    match command {
        config::Command::Text(text) => Command::Shell(text),
        config::Command::Argv(words) => Command::Argv(words),
    }
}
