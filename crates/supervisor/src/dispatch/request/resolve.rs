//! Resolves a request: its configuration, role, backend, API channel and permissions.

use crate::daemon::context::Daemon;
use crate::daemon::settings;
use crate::dispatch::acp_program;
use crate::dispatch::backend_choice::{choice_of, choose_backend, from_config, from_wire};
use crate::dispatch::error::{fault, internal};
use crate::dispatch::request::loaded::load;
use crate::dispatch::request::role_files::{Found, find_role};
use crate::dispatch::saved::Saved;
use muleteer_backends::Access;
use muleteer_backends::Backend;
use muleteer_backends::Command;
use muleteer_backends::acp::Known;
use muleteer_backends::flag_words;
use muleteer_backends::traits;
use muleteer_backends::variables;
use muleteer_model::admission::api_error::{self, Terms};
use muleteer_model::agent::permission::{Mode, PermissionMode, Permissions, Policy};
use muleteer_model::agent::role::{InForce, Role};
use muleteer_model::config::{self, Config, Ignored};
use muleteer_model::dispatch::child_limits;
use muleteer_model::event::Created;
use muleteer_model::event::id::DispatchId;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{self, WireError};
use muleteer_rehearsal::scenario::Scenario;
use muleteer_store::hash::sha256;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The hint for a scenario that cannot be read.
const FORMAT: &str = "read the page `rehearsal` of the documentation for the format";

/// The configuration, role and backend that will do the work.
pub(super) struct Means {
    pub config: Arc<Config>,
    pub role: Role,
    /// The fault of the role's file, if the last valid file is in force instead.
    pub role_fault: Option<String>,
    /// The settings of the repository that do not count, because the user has not trusted them.
    pub ignored: Vec<Ignored>,
    pub backend: &'static dyn Backend,
    pub configured: Option<config::Backend>,
    pub agent: Option<Known>,
}

/// Resolves who does the work. `place` is the agent's directory, if it exists already. `holder` is
/// the requesting agent, if a permission policy holds it. `goes_on` as for [`acp_program::agent`].
pub(super) fn means(
    daemon: &Daemon,
    spawn: &v1::Spawn,
    project: &Path,
    place: Option<&Path>,
    holder: Option<&Created>,
    goes_on: bool,
) -> Result<Means, WireError> {
    let top = settings::repository(project);
    let base = load_config(daemon, spawn, &top)?;
    let mut config = base.clone();
    if holder.is_some() {
        // Another program or another flag could bypass the policy, so only the user may choose
        // them.
        if spawn.command.is_some() {
            return Err(unheld("an agent may not choose the program of a child dispatch"));
        }
        let own = load(daemon, None, None, vec![])?;
        config = Arc::new(config.with_backends_of(&own));
    }
    let Found { found: InForce { role, ignored }, fault: role_fault } =
        find_role(daemon, &spawn.role, &top, &config)?;
    let ignored = base.ignored().iter().cloned().chain(ignored).collect();
    let held = holder.and_then(|_| program_path(path_of(spawn)));
    let path = held.as_deref().or_else(|| path_of(spawn));
    let (backend, configured) = choose_backend(spawn, place, &role, &config, path)?;
    // A rehearsal follows its scenario, and asks only if the scenario does.
    let scripted = backend.traits().scripted;
    if scripted && holder.is_some_and(|holder| !traits(&holder.backend).scripted) {
        return Err(unheld("a rehearsal cannot enforce a permission policy"));
    }
    let capabilities = backend.capabilities();
    if spawn.max_turns.is_some() && !(capabilities.multi_turn || capabilities.resumable) {
        let message =
            format!("--max-turns cannot be enforced: the {} backend has no turns", backend.name());
        return Err(fault(
            ErrorCode::Usage,
            &message,
            "omit --max-turns, and limit the command with --timeout",
        ));
    }
    let agent = match backend.by_calls() {
        true => acp_program::agent(spawn, &config, path, goes_on)?,
        false => None,
    };
    if scripted && let Some(scenario) = &spawn.scenario {
        check_scenario(scenario)?;
    }
    Ok(Means { config, role, role_fault, ignored, backend, configured, agent })
}

/// Returns the PATH of a request.
pub(super) fn path_of(spawn: &v1::Spawn) -> Option<&str> {
    let all = spawn.env.iter().chain(&spawn.extra_env).rev();
    all.into_iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_str())
}

/// Returns the search path for the program of a child whose parent a policy holds. It is the
/// daemon's PATH, then the one that the parent was given. A PATH that the parent sets itself is
/// ignored.
pub(super) fn program_path(given: Option<&str>) -> Option<String> {
    let own = std::env::var("PATH").ok().filter(|path| !path.is_empty());
    match (own, given.filter(|path| !path.is_empty())) {
        (Some(own), Some(given)) => Some(format!("{own}:{given}")),
        (own, given) => own.or_else(|| given.map(String::from)),
    }
}

/// Replaces, in the request of an agent that a policy holds, the variables that decide which code a
/// child runs. Through them a child could run forbidden code before anybody is asked.
///
/// # Errors
/// `E_FORBIDDEN` if the agent sets such a variable explicitly.
pub(super) fn of_parent(
    daemon: &Daemon,
    spawn: &v1::Spawn,
    parent: &DispatchId,
) -> Result<v1::Spawn, WireError> {
    if let Some((name, _)) = spawn.extra_env.iter().find(|(name, _)| loads_code(name)) {
        let message = format!(
            "{name} decides which code a child runs, and {parent} has a permission policy: it may \
             not set this variable"
        );
        return Err(fault(
            ErrorCode::Forbidden,
            &message,
            "omit the variable: the child inherits its parent's value",
        ));
    }
    let own = Saved::read(&daemon.paths.agent(parent.as_str()))
        .map_err(|error| internal(&error.to_string()))?;
    let mut spawn = spawn.clone();
    spawn.env.retain(|(name, _)| !loads_code(name));
    for (name, value) in own.env.iter().chain(&own.extra_env).filter(|(name, _)| loads_code(name)) {
        spawn.env.retain(|(known, _)| known != name);
        spawn.env.push((name.clone(), value.clone()));
    }
    Ok(spawn)
}

/// Whether a variable decides which code a child runs.
fn loads_code(name: &str) -> bool {
    child_limits::loads_code(name, variables::loads_code)
}

/// Checks that dispatches like this one could be made, before there is a prompt.
///
/// # Errors
/// Those of [`crate::dispatch::request::prepare`], except the ones about a prompt.
pub fn check(daemon: &Daemon, spawn: &v1::Spawn) -> Result<(), WireError> {
    means(daemon, spawn, Path::new(&spawn.project), None, None, false).map(drop)
}

/// The longest value of `TZ` that is recorded.
const ZONE_LIMIT: usize = 256;

/// Derives the API channel from the environment. It uses the names of variables, never their
/// values, for credentials.
pub(super) fn terms(
    backend: &dyn Backend,
    (spawn, env): (&v1::Spawn, &[(String, String)]),
    configured: Option<&config::Backend>,
    category: &config::Category,
    (args, command): (&[String], Option<&Command>),
) -> Terms {
    let find = |name: &str| {
        let given = spawn
            .extra_env
            .iter()
            .chain(env)
            .find(|(known, _)| known == name)
            .map(|(_, value)| value);
        given.or_else(|| configured?.env.get(name)).filter(|value| !value.is_empty()).cloned()
    };
    let config = access_config(backend.access_file(&find));
    let Access { credential, address, by_command } = backend.access(&find, &config, args);
    let mut channel = api_error::channel(backend.name(), &credential, address.as_deref());
    if let Some(command) = command.filter(|_| by_command) {
        // The limits that one command prints do not apply to another. Only a hash is stored,
        // because the command may have a secret.
        let hash = sha256(format!("{command:?}").as_bytes());
        channel = format!("{channel}, command {}", &hash[..8]);
    }
    Terms {
        channel,
        credential,
        zone: find("TZ").filter(|zone| zone.len() <= ZONE_LIMIT),
        patience_s: category.api_patience.as_secs(),
        timeout_s: category.api_timeout.as_secs(),
        ..Terms::default()
    }
}

/// Reads a CLI's own configuration file; empty if it cannot be read.
pub(crate) fn access_config(path: Option<PathBuf>) -> String {
    const LONGEST: u64 = 1024 * 1024;
    // A pipe or a device might block, or never end.
    let path = path.filter(|path| path.is_absolute() && path.is_file());
    let file = path.and_then(|path| std::fs::File::open(path).ok());
    let mut text = String::new();
    match file.map(|file| file.take(LONGEST).read_to_string(&mut text)) {
        Some(Ok(_)) => text,
        _ => String::new(),
    }
}

/// Returns the agent's permission policy, and checks that its backend can enforce it. `held` is the
/// policy that its ancestors impose.
pub(super) fn permissions(
    backend: &dyn Backend,
    role: &Role,
    config: &Config,
    category: &config::Category,
    (spawn, agent): (&v1::Spawn, Option<Known>),
    held: Option<Policy>,
) -> Result<Policy, WireError> {
    // A rehearsal's permission requests are part of its scenario, so they are asked.
    let otherwise = if backend.traits().scripted { Mode::Ask } else { Mode::Allow };
    let asked = Permissions { mode: asked_mode(spawn)?, ..Permissions::default() };
    let mut policy = Policy::of(
        &[&asked, &role.permissions, &category.permissions, &config.permissions],
        otherwise,
    );
    policy.restrict(role.tools.as_deref(), &role.disallowed_tools, role.permission_mode);
    let env = spawn.env.iter().chain(&spawn.extra_env).rev();
    if let Some((_, home)) =
        env.into_iter().find(|(name, home)| name == "HOME" && home.starts_with('/'))
    {
        policy.at_home(home);
    }
    if let Some(held) = held {
        policy.hold_within(held);
    }
    if !policy.is_open() {
        check_arguments(backend, &policy, config, (spawn, role))?;
    }
    let lacks_mode = policy.permission_mode == Some(PermissionMode::Auto)
        && !backend.capabilities().judges_actions;
    let never_asks = (backend.by_calls() && !policy.is_open())
        .then(|| never_asks(agent, config, spawn))
        .flatten();
    if let Some(why) = never_asks {
        if policy.is_held() {
            return Err(unheld(&why));
        }
        let hint = "name an agent that asks for permission (`--backend acp:claude-agent-acp`) and \
                    remove settings that make it act without asking (backends.acp.command, \
                    backends.acp.args, backends.acp.env or --command), or give its role, category \
                    or the configuration an open policy (`permissions: {mode: allow}` without \
                    `ask` and `deny`)";
        return Err(fault(ErrorCode::Unsupported, &why, hint));
    }
    if backend.keeps(&policy) && !lacks_mode {
        return Ok(policy);
    }
    let message = format!("the {} backend does not support permission requests", backend.name());
    if policy.is_held() {
        return Err(unheld(&message));
    }
    if let Some(mode) = &spawn.permissions {
        let message = format!("--permissions {mode} cannot be enforced: {message}");
        let hint = "name a backend that supports permission requests (claude-code or acp), or \
                    restrict the agent with --sandbox on";
        return Err(fault(ErrorCode::Unsupported, &message, hint));
    }
    if let Some(keys) = role.restricts() {
        let message =
            format!("the {} backend cannot enforce {keys} of role `{}`", backend.name(), role.name);
        let hint = format!(
            "name a backend that can (`--backend claude-code`), or remove {keys} from {}",
            role.file
        );
        return Err(fault(ErrorCode::Unsupported, &message, &hint));
    }
    Err(fault(
        ErrorCode::Unsupported,
        &message,
        "give the role, its category or the configuration `permissions: {mode: allow}` without \
         `ask` and `deny`, and restrict the agent with options of its CLI (backends.<name>.args)",
    ))
}

/// Returns the mode that the request names.
///
/// # Errors
/// `E_BAD_INPUT` for an unknown one, which must not count as none.
fn asked_mode(spawn: &v1::Spawn) -> Result<Option<Mode>, WireError> {
    Ok(Some(match spawn.permissions.as_deref() {
        None => return Ok(None),
        Some("allow") => Mode::Allow,
        Some("ask") => Mode::Ask,
        Some("deny") => Mode::Deny,
        Some(other) => {
            let message = format!("`{other}` is not a permission mode");
            return Err(fault(ErrorCode::BadInput, &message, "use allow, ask or deny"));
        }
    }))
}

/// Rejects a configured argument by which the agent could bypass its policy.
fn check_arguments(
    backend: &dyn Backend,
    policy: &Policy,
    config: &Config,
    (spawn, role): (&v1::Spawn, &Role),
) -> Result<(), WireError> {
    let choice = choice_of(backend);
    let configured = config.backends.get(choice);
    let own = || configured.as_ref()?.command.clone().map(from_config);
    let section = format!("backends.{}", choice.as_str().replace('-', "_"));
    let command_key =
        if spawn.command.is_some() { "--command".into() } else { format!("{section}.command") };
    let command = spawn.command.clone().map(from_wire).or_else(own);
    let args = configured.as_ref().map(|backend| backend.args.clone()).unwrap_or_default();
    for (key, words) in [
        (format!("{section}.args"), flag_words(None, &args)),
        (command_key, flag_words(command.as_ref(), &[])),
    ] {
        let Some(found) = backend.loosened_by(policy, &words) else { continue };
        let name = &role.name;
        let message = format!("`{found}` in {key} would bypass the permissions of role `{name}`");
        if policy.is_held() {
            return Err(unheld(&message));
        }
        let hint = format!(
            "remove it from {key}, or give the role, its category and the configuration an open \
             policy (`permissions: {{mode: allow}}` without `ask` and `deny`)"
        );
        return Err(fault(ErrorCode::Unsupported, &message, &hint));
    }
    Ok(())
}

/// Returns why an ACP agent with this configuration never asks for permission, as far as that is
/// known.
fn never_asks(agent: Option<Known>, config: &Config, spawn: &v1::Spawn) -> Option<String> {
    let configured = &config.backends.acp;
    let own = || configured.command.clone().map(from_config);
    let command = spawn.command.clone().map(from_wire).or_else(own);
    let env = spawn
        .env
        .iter()
        .chain(&spawn.extra_env)
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let env = configured.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).chain(env);
    muleteer_backends::acp::refusal(agent, command.as_ref(), &configured.args, env)
}

/// Returns the error for a request that would bypass the policy of the requesting agent.
fn unheld(message: &str) -> WireError {
    let hint = "the parent has a permission policy, so its child needs a backend that supports \
                permission requests: claude-code or acp";
    fault(ErrorCode::Unsupported, message, hint)
}

fn load_config(daemon: &Daemon, spawn: &v1::Spawn, top: &Path) -> Result<Arc<Config>, WireError> {
    let env = spawn.env.iter().chain(&spawn.extra_env).cloned().collect();
    load(daemon, spawn.config.as_deref(), Some(top), env)
}

/// Returns the settings of the repository that are ignored, because the user has not trusted them.
pub(crate) fn ignored(daemon: &Daemon, spawn: &v1::Spawn) -> Vec<Ignored> {
    let top = settings::repository(Path::new(&spawn.project));
    let Ok(config) = load_config(daemon, spawn, &top) else { return vec![] };
    let of_role = find_role(daemon, &spawn.role, &top, &config).map(|known| known.found.ignored);
    config.ignored().iter().cloned().chain(of_role.unwrap_or_default()).collect()
}

/// Checks a scenario, so that its author gets its faults, and not the journal of an agent that
/// cannot start.
fn check_scenario(path: &str) -> Result<(), WireError> {
    let in_file = |error: WireError| WireError { file: Some(path.into()), ..error };
    let unreadable = |why: &dyn std::fmt::Display| {
        in_file(fault(ErrorCode::ScenarioInvalid, &format!("cannot read {path}: {why}"), FORMAT))
    };
    let text = settings::read_if_there(Path::new(path))
        .map_err(|error| unreadable(&error.source))?
        .ok_or_else(|| unreadable(&"the file does not exist"))?;
    match Scenario::parse(&text, path) {
        Ok(_) => Ok(()),
        Err(error) => Err(in_file(WireError {
            line: Some(error.line).filter(|line| *line > 0),
            column: Some(error.column).filter(|column| *column > 0),
            snippet: error.snippet.clone(),
            ..fault(
                ErrorCode::ScenarioInvalid,
                &error.message,
                error.hint.as_deref().unwrap_or(FORMAT),
            )
        })),
    }
}
