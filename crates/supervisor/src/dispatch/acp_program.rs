//! Chooses the agent of a dispatch to `acp`, and checks that it exists.

use crate::dispatch::error::fault;
use muleteer_backends::Backend;
use muleteer_backends::BackendError;
use muleteer_backends::acp::{self, Known};
use muleteer_backends::by_name;
use muleteer_backends::find_program;
use muleteer_model::config::{self, Config};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Spawn, WireError};
use std::ffi::OsStr;

/// Splits the name of a known agent off: `acp:NAME`.
pub fn split(backend: &str) -> (&str, Option<&str>) {
    match backend.split_once(':') {
        Some((backend, agent)) => (backend, Some(agent)),
        None => (backend, None),
    }
}

/// Returns the known agent to run; `None` if there is only a command. A thread, list or run that
/// has begun `goes_on` with an agent that a later version refuses.
///
/// # Errors
/// An unknown or refused name, or a program that is not on `path`.
pub fn agent(
    spawn: &Spawn,
    config: &Config,
    path: Option<&str>,
    goes_on: bool,
) -> Result<Option<Known>, WireError> {
    let wire = |error: BackendError| fault(error.code(), &error.to_string(), &error.hint());
    let path = path.map(OsStr::new);
    let asked = spawn.backend.as_deref().and_then(|backend| split(backend).1);
    let configured = &config.backends.acp;
    let name = match asked {
        Some(name) => Some(name),
        // A request with a command of its own does not mean the configured agent.
        None if spawn.command.is_some() => None,
        None => configured.agent.as_deref(),
    };
    let has_command = spawn.command.is_some() || configured.command.is_some();
    let known = match name {
        Some(name) if goes_on => acp::known(name).map_err(wire)?,
        Some(name) => acp::to_start(name).map_err(wire)?,
        None if has_command => return Ok(None),
        None => acp::installed(path).ok_or_else(|| wire(BackendError::NoAgent))?,
    };
    if !has_command && find_program(known.program, path).is_none() {
        let message =
            format!("the ACP agent {} needs `{}`, which is not on PATH", known.name, known.program);
        let hint = format!("{}, then make sure its directory is on PATH", known.get);
        return Err(fault(ErrorCode::BackendUnavailable, &message, &hint));
    }
    Ok(Some(known))
}

/// Returns the timeout for an answer of the agent, in awake seconds.
pub fn call_timeout_s(config: &Config) -> u64 {
    let configured = config.backends.acp.call_timeout.map(config::Span::as_secs);
    configured.unwrap_or(muleteer_model::agent::acp_handshake::CALL_TIMEOUT_S)
}

/// Rejects an agent name for any backend but `acp`.
///
/// # Errors
/// Another backend with an agent's name.
pub fn check_name(backend: &str) -> Result<(), WireError> {
    match split(backend) {
        (name, Some(agent)) if !by_name(name).is_ok_and(Backend::has_agents) => {
            let message = format!("the backend `{name}` has no named agents");
            let hint = format!("omit `:{agent}`; only `acp:NAME` names an agent");
            Err(fault(ErrorCode::BackendUnavailable, &message, &hint))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use muleteer_protocol::v1::Command;

    #[test]
    fn refused_agent_starts_only_for_what_goes_on() {
        let config = Config::defaults().unwrap();
        let spawn = Spawn {
            backend: Some("acp:pi".into()),
            command: Some(Command::Shell("mine".into())),
            ..Spawn::default()
        };
        let refused = agent(&spawn, &config, None, false).unwrap_err();
        assert_eq!(refused.code, "E_BACKEND_UNAVAILABLE");
        let known = agent(&spawn, &config, None, true).unwrap();
        assert_eq!(known.map(|known| known.name), Some("pi"));
    }
}
