//! The rights of the author of a message, and the projects that a command names.

use crate::daemon::context::Daemon;
use crate::daemon::settings;
use crate::dispatch::error::fault;
use crate::dispatch::request::load;
use muleteer_model::config::{Config, ENV_PREFIX};
use muleteer_model::conversation::route;
use muleteer_model::conversation::thread::{Message, Thread};
use muleteer_model::people::{self, Action, LOCAL, Refusal, Right};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Spawn, WireError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The person who gave a command.
#[derive(Debug, Clone)]
pub(super) struct Author {
    pub adapter: String,
    pub user: String,
    pub name: String,
}

impl Author {
    pub fn of(thread: &Thread, message: &Message) -> Self {
        Self {
            adapter: route::adapter_of(thread, message).into(),
            user: message.author.id.clone(),
            name: message.author.name.clone(),
        }
    }

    /// Returns the user of an adapter who makes a request.
    pub fn of_adapter(adapter: &str, user: &str) -> Self {
        Self { adapter: adapter.into(), user: user.into(), name: user.into() }
    }

    /// Returns the author of an answer, as `AnsweredBy` reads it.
    pub fn answered_by(&self) -> String {
        match self.is_local() {
            true => "operator".into(),
            false => format!("{}:{}", self.adapter, self.user),
        }
    }

    pub fn is_local(&self) -> bool {
        self.adapter == LOCAL
    }

    /// Checks that the person is listed at all, before anything is looked up for the person.
    ///
    /// # Errors
    /// Those of [`Self::permit`].
    pub fn listed(&self, daemon: &Daemon) -> Result<(), WireError> {
        self.stranger(daemon)?.map_or(Ok(()), |refusal| Err(forbidden(&refusal)))
    }

    /// Returns the refusal of a person who is not listed.
    ///
    /// # Errors
    /// `E_CONFIG_INVALID` while nobody can tell.
    pub fn stranger(&self, daemon: &Daemon) -> Result<Option<Refusal>, WireError> {
        if self.is_local() {
            return Ok(None);
        }
        let config = own_config(daemon)?;
        let known = people::known_as(&config.people, &self.adapter, &self.user);
        Ok(known.is_none().then(|| people::unlisted(&self.adapter, &self.user)))
    }

    /// Checks a right for dispatches in this directory and of this role. A right that is checked
    /// without both is the right to change what is everybody's.
    ///
    /// # Errors
    /// `E_FORBIDDEN`, with the rule to add. `E_CONFIG_INVALID` while nobody can tell.
    pub fn permit(
        &self,
        daemon: &Daemon,
        right: Right,
        place: Option<&Path>,
        role: Option<&str>,
    ) -> Result<(), WireError> {
        let refused = self.refusal(daemon, right, place, role)?;
        refused.map_or(Ok(()), |refusal| Err(forbidden(&refusal)))
    }

    /// Returns the refusal of an action, if the person may not take it.
    ///
    /// # Errors
    /// `E_CONFIG_INVALID` while nobody can tell.
    pub fn refusal(
        &self,
        daemon: &Daemon,
        right: Right,
        place: Option<&Path>,
        role: Option<&str>,
    ) -> Result<Option<Refusal>, WireError> {
        if self.is_local() {
            return Ok(None);
        }
        let config = own_config(daemon)?;
        let names = place.map(|place| names_of(&config, place)).unwrap_or_default();
        let projects: Vec<_> = names.iter().map(String::as_str).collect();
        let (adapter, user) = (self.adapter.as_str(), self.user.as_str());
        let action = Action { adapter, user, right, projects: &projects, role };
        Ok(people::check(&config.people, action).err())
    }
}

/// Converts a refusal.
pub(super) fn forbidden(refusal: &Refusal) -> WireError {
    fault(ErrorCode::Forbidden, &refusal.message, &refusal.hint)
}

/// Loads the configuration of the daemon itself: the user's file, the daemon's `--config` file, its
/// variables, and the settings that were changed at run time.
///
/// # Errors
/// `E_CONFIG_INVALID`.
pub(crate) fn own_config(daemon: &Daemon) -> Result<Arc<Config>, WireError> {
    let given = daemon.settings.config_file.as_ref().and_then(|path| path.to_str());
    load(daemon, given, None, own_variables())
}

/// Returns the daemon's variables that set configuration keys.
pub(crate) fn own_variables() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os()
        .filter_map(text)
        .filter(|(name, _)| name.starts_with(ENV_PREFIX))
        .collect()
}

/// Returns the names of the configured projects with this directory.
fn names_of(config: &Config, place: &Path) -> Vec<String> {
    let home = home(&[]);
    let leads_there = |name: &&String| {
        let path = config.project_path(name, home.as_deref());
        path.and_then(|path| path.canonicalize().ok()).is_some_and(|path| path == place)
    };
    config.projects.keys().filter(leads_there).cloned().collect()
}

/// Returns the HOME of a request, or the daemon's.
fn home(env: &[(String, String)]) -> Option<PathBuf> {
    let given = env.iter().rev().find(|(name, _)| name == "HOME");
    given.map(|(_, home)| home.into()).or_else(|| std::env::var_os("HOME").map(PathBuf::from))
}

/// Finds the directory of a project that a command names: a configured name, a path from the
/// thread's project, or an absolute one. `by_agent` is a coordinator's command, which may not name
/// a path, nor a project of a configuration file that agents can change: only the thread's project
/// or another configured one.
///
/// # Errors
/// `E_PROJECT_NOT_FOUND`.
pub(super) fn project(
    daemon: &Daemon,
    thread: &Thread,
    template: &Spawn,
    (word, by_agent): (&str, bool),
) -> Result<PathBuf, WireError> {
    let own = Path::new(&thread.opened.project);
    let env: Vec<_> = template.env.iter().chain(&template.extra_env).cloned().collect();
    let home = home(&env);
    let top = settings::repository(own);
    let top = (!by_agent).then_some(&*top);
    let config = load(daemon, template.config.as_deref(), top, env)?;
    let configured = config.project_path(word, home.as_deref());
    let path = configured.clone().unwrap_or_else(|| own.join(word));
    let found = path.canonicalize().ok().filter(|path| path.is_dir());
    let found = found.filter(|path| !by_agent || configured.is_some() || path == own);
    found.ok_or_else(|| {
        let message = match configured {
            Some(path) => format!(
                "the project `{word}` is configured as {}, which is not a directory",
                path.display()
            ),
            None if by_agent => format!("`{word}` is no configured project"),
            None => format!("`{word}` is neither a directory nor a configured project"),
        };
        let known: Vec<_> = config.projects.keys().map(String::as_str).collect();
        let hint = match known[..] {
            [] if by_agent => "leave the project out for the one of the thread".to_string(),
            [] => "name a directory".to_string(),
            _ => format!("the configured projects are {}", known.join(", ")),
        };
        fault(ErrorCode::ProjectNotFound, &message, &hint)
    })
}
