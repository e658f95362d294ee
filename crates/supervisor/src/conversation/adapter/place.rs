//! The place of an adapter's threads: the role, project, backend and environment of their agents.

use crate::conversation::rights::own_config;
use crate::daemon::context::Daemon;
use crate::dispatch::error::fault;
use crate::dispatch::request;
use muleteer_model::config::{BackendChoice, Config, ENV_PREFIX};
use muleteer_model::conversation::DEFAULT_ROLE;
use muleteer_model::conversation::adapter::settings::{AdapterSettings, addressed};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Spawn, WireError};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The scenario of the rehearsal backend.
const SCENARIO: &str = "MULETEER_SCENARIO";

/// Returns the variables of this process that are UTF-8.
pub(in crate::conversation) fn variables() -> Vec<(String, String)> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// Returns the environment of agents that begin from an adapter: those variables of the daemon that
/// pass to agents.
pub(in crate::conversation) fn environment(config: &Config) -> Vec<(String, String)> {
    let mut env = muleteer_backends::passing::filter(variables(), &config.env.pass);
    env.extend(variables().into_iter().filter(|(name, _)| name.starts_with(ENV_PREFIX)));
    env
}

/// Returns the directory of new threads of a channel.
///
/// # Errors
/// None is configured, or it does not exist.
pub(super) fn project(
    config: &Config,
    name: &str,
    settings: &AdapterSettings,
    channel: Option<&str>,
) -> Result<String, WireError> {
    let Some(word) = settings.channel(channel).project else {
        let message = format!("the adapter `{name}` has no project for new threads");
        let hint =
            format!("set adapters.{name}.project in config.yaml to a directory or a project");
        return Err(fault(ErrorCode::ProjectNotFound, &message, &hint));
    };
    directory(config, &word)
}

/// Returns the template of the dispatches of a new thread, and the text for its agent. `@role` at
/// the beginning of the text chooses the role, if it is the name of one.
///
/// # Errors
/// No project is configured, or the role, project or backend cannot be used.
pub(in crate::conversation) fn template(
    daemon: &Daemon,
    name: &str,
    settings: &AdapterSettings,
    channel: Option<&str>,
    text: &str,
) -> Result<(Spawn, String), WireError> {
    let config = own_config(daemon)?;
    let spawn = unchecked(daemon, &config, name, settings, channel)?;
    // The environment is not in the template, which outlives this daemon and its keys.
    let env = environment(&config);
    let check =
        |spawn: &Spawn| request::check(daemon, &Spawn { env: env.clone(), ..spawn.clone() });
    if let Some((role, rest)) = addressed(text) {
        let other = Spawn { role: role.into(), ..spawn.clone() };
        match check(&other) {
            Ok(()) => return Ok((other, rest.into())),
            // It is a text that begins with the name of a person.
            Err(error) if error.code == ErrorCode::RoleUnknown.as_str() => {}
            Err(error) => return Err(error),
        }
    }
    check(&spawn)?;
    Ok((spawn, text.into()))
}

/// Returns the same without a check whether an agent can begin: a thread that shows questions needs
/// none.
///
/// # Errors
/// No project is configured, or it does not exist.
pub(in crate::conversation) fn unchecked(
    daemon: &Daemon,
    config: &Config,
    name: &str,
    settings: &AdapterSettings,
    channel: Option<&str>,
) -> Result<Spawn, WireError> {
    let place = settings.channel(channel);
    let given = daemon.settings.config_file.as_ref().and_then(|path| path.to_str());
    Ok(Spawn {
        project: project(config, name, settings, channel)?,
        role: place.role.unwrap_or_else(|| DEFAULT_ROLE.into()),
        scenario: scenario(config, place.backend.as_deref()),
        backend: place.backend,
        config: given.map(String::from),
        ..Spawn::default()
    })
}

/// Returns the directory of a project: of a path, or of a configured name.
///
/// # Errors
/// `E_PROJECT_NOT_FOUND`.
pub(in crate::conversation) fn directory(config: &Config, word: &str) -> Result<String, WireError> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let named = config.project_path(word, home.as_deref());
    let path = named.or_else(|| match (word.strip_prefix("~/"), &home) {
        (Some(rest), Some(home)) => Some(home.join(rest)),
        _ => Path::new(word).is_absolute().then(|| PathBuf::from(word)),
    });
    let found = path.and_then(|path| path.canonicalize().ok()).filter(|path| path.is_dir());
    found.and_then(|path| path.to_str().map(String::from)).ok_or_else(|| {
        let message = format!(
            "`{word}` is neither an absolute directory nor the name of a configured project"
        );
        fault(ErrorCode::ProjectNotFound, &message, "run `muleteer config show projects`")
    })
}

/// Returns the scenario of the daemon's environment, for threads with the rehearsal backend.
pub(in crate::conversation) fn scenario(config: &Config, backend: Option<&str>) -> Option<String> {
    let is_played = match backend {
        Some(name) => BackendChoice::parse(name).is_ok_and(|it| it == BackendChoice::Rehearsal),
        None => config.backend == BackendChoice::Rehearsal,
    };
    let file = std::env::var(SCENARIO).ok().filter(|file| Path::new(file).is_absolute());
    file.filter(|_| is_played)
}
