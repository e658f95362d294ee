//! Configuration and roles for the verbs. The supervisor reads the files and the model merges them;
//! this module converts their errors to [`Failure`].

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::client::offline;
use muleteer_model::agent::role::RoleSource;
use muleteer_model::config::{Config, ConfigError, Ignored, Layer, Source, Trust, load};
use muleteer_protocol::ErrorCode;
use muleteer_supervisor::daemon::settings::{self, Unreadable};
use std::path::Path;

/// Loads the configuration in effect for a project. Its layers are the embedded defaults, the
/// user's file, the project's, `--config`, and `MULETEER_CONFIG__…` variables.
///
/// # Errors
/// `E_CONFIG_INVALID` with every fault and its location.
pub fn config(context: &Context, project: Option<&Path>) -> Result<Config, Failure> {
    load(&sources(context, project)?, &env()).map_err(invalid)
}

/// As [`config`], with the settings that were changed at run time.
///
/// # Errors
/// As [`config`], and when the events cannot be read.
pub fn config_in_force(context: &Context, project: Option<&Path>) -> Result<Config, Failure> {
    let mut sources = sources(context, project)?;
    if context.paths.events().exists() {
        sources.extend(offline::fleet(context)?.runtime.sources());
    }
    load(&sources, &env()).map_err(invalid)
}

/// As [`config`], without the programs that the project's file names, even if the user trusts that
/// file.
///
/// # Errors
/// As [`config`].
pub fn config_that_runs_nothing(
    context: &Context,
    project: Option<&Path>,
) -> Result<Config, Failure> {
    let held = |source: Source| {
        let trust = source.trust.min(Trust::RunsNothing);
        if source.layer == Layer::Project { source.trusted(trust) } else { source }
    };
    let sources: Vec<_> = sources(context, project)?.into_iter().map(held).collect();
    load(&sources, &env()).map_err(invalid)
}

fn env() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Warns about settings of a repository's files that are ignored. `below` restricts the warnings to
/// one key and the keys below it.
pub fn warn(context: &Context, ignored: &[Ignored], below: &str) {
    let wanted = |one: &&Ignored| {
        one.key.strip_prefix(below).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let ignored: Vec<_> =
        ignored.iter().filter(|one| below.is_empty() || wanted(one)).cloned().collect();
    for warning in Ignored::warnings(&ignored) {
        context.out.note(format!("warning: {warning}"));
    }
}

/// Lists the existing configuration files, from the lowest to the highest precedence.
///
/// # Errors
/// When a file cannot be read; only the file of `--config` has to exist.
pub fn sources(context: &Context, project: Option<&Path>) -> Result<Vec<Source>, Failure> {
    let top = project.map(settings::repository);
    settings::sources(&context.paths, top.as_deref(), context.config.as_deref())
        .map_err(|error| unreadable(&error))
}

/// Lists the existing role files, without the built-in roles.
///
/// # Errors
/// When an existing file cannot be read.
pub fn role_sources(context: &Context, project: Option<&Path>) -> Result<Vec<RoleSource>, Failure> {
    let top = project.map(settings::repository);
    settings::roles(&context.paths, top.as_deref()).map_err(|error| unreadable(&error))
}

/// Combines configuration errors into one failure: the first, with the others added.
pub fn invalid(errors: Vec<ConfigError>) -> Failure {
    let mut failures = errors.into_iter().map(|error| {
        let failure = Failure::new(error.code, error.message)
            .at(error.line.map(u64::from), error.column.map(u64::from))
            .snippet(error.snippet.map(|text| text.to_string()));
        let failure = error.file.into_iter().fold(failure, Failure::file);
        error.hint.into_iter().fold(failure, Failure::hint)
    });
    let first = failures
        .next()
        .unwrap_or_else(|| Failure::new(ErrorCode::ConfigInvalid, "the configuration is invalid"));
    first.and(failures.collect::<Vec<_>>())
}

pub fn unreadable(error: &Unreadable) -> Failure {
    Failure::of(ErrorCode::ConfigInvalid, error).file(&error.path)
}
