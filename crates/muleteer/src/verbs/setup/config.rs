//! `config`: the configuration in effect, with the file and line of each value.

use crate::cli::context::{Context, seen_from};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::settings;
use crate::client::connect::unexpected;
use crate::render::{DIM, RESET, safe};
use muleteer_model::agent::role::Catalog;
use muleteer_model::config::{Origin, schema};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, Request};
use serde_json::{Value, json};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  muleteer config show                    every value and its source
  muleteer config show pool               only the keys below one key
  muleteer config check --config ci.yaml  exits 2 if it has a fault
  muleteer config schema > schema.json    for an editor

A later layer overrides an earlier one: built-in defaults, the user's config.yaml, the project's \
.muleteer/config.yaml, --config, variables like MULETEER_CONFIG__POOL__MAX_AGENTS=4, flags.";

const SET_EXAMPLES: &str = "\
Examples:
  muleteer config set models.default claude-opus-4-6
  muleteer config set categories.coding.budget_usd 5

The change is checked like a file, is durable, and holds for later dispatches until it is
withdrawn. It is stronger than the files and the environment.";

/// Show, check or change the effective configuration
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    verb: Sub,
}

#[derive(Debug, clap::Subcommand)]
enum Sub {
    /// Show every effective value with the file and line it comes from
    #[command(after_help = "Example:\n  muleteer config show categories.coding")]
    Show {
        /// Show only this key and the keys below it
        key: Option<String>,
        /// Read the configuration that applies in this directory [default: the current one]
        #[arg(long, value_name = "DIR")]
        project: Option<PathBuf>,
    },
    /// Change a setting while the daemon runs
    #[command(after_help = SET_EXAMPLES)]
    Set {
        /// The dotted key
        key: String,
        /// The value, as YAML
        value: String,
    },
    /// Withdraw a change that was made while the daemon runs
    #[command(after_help = "Example:\n  muleteer config unset models.default")]
    Unset {
        /// The dotted key
        key: String,
    },
    /// Check every configuration and role file that applies
    #[command(after_help = "Example:\n  muleteer config check --project ../web")]
    Check {
        /// Read the configuration that applies in this directory [default: the current one]
        #[arg(long, value_name = "DIR")]
        project: Option<PathBuf>,
    },
    /// Print the JSON schema of a configuration file
    #[command(after_help = "Example:\n  muleteer config schema > schema.json")]
    Schema,
}

impl Args {
    pub fn needs_no_state(&self) -> bool {
        matches!(self.verb, Sub::Schema)
    }
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    match &args.verb {
        Sub::Set { key, value } => set(context, key, Some(value.clone())).await,
        Sub::Unset { key } => set(context, key, None).await,
        Sub::Show { key, project } => {
            show(context, key.as_deref(), &seen_from(project.as_deref())?)
        }
        Sub::Check { project } => check(context, &seen_from(project.as_deref())?),
        Sub::Schema => context.out.document(&schema()).map(|()| Exit::Done),
    }
}

async fn set(context: &Context, key: &str, value: Option<String>) -> Result<Exit, Failure> {
    let request = Request::ConfigSet { key: key.into(), value: value.clone() };
    match context.ask(request).await? {
        Reply::ConfigSet { .. } if context.out.json => {
            context.out.document(&json!({ "key": key, "value": value }))?;
        }
        Reply::ConfigSet { note } => context.out.note(note),
        other => return Err(unexpected(&other)),
    }
    Ok(Exit::Done)
}

const IN_VAIN: &str = "is a setting of the daemon, which ignores project files";

/// Returns the value at `key`, within the keys above it.
fn only(whole: &Value, key: &str) -> Value {
    let (first, rest) =
        key.split_once('.').map_or((key, None), |(first, rest)| (first, Some(rest)));
    match whole.get(first) {
        Some(below) => json!({ first: rest.map_or(below.clone(), |rest| only(below, rest)) }),
        // A name may contain a dot; then the whole level is shown.
        None => whole.clone(),
    }
}

fn show(context: &Context, key: Option<&str>, project: &std::path::Path) -> Result<Exit, Failure> {
    let kept = settings::config_in_force(context, Some(project))?;
    let below = |origin: &&Origin| {
        key.is_none_or(|key| {
            origin
                .key
                .strip_prefix(key)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let origins: Vec<_> = kept.origins().iter().filter(below).collect();
    let role_sources = settings::role_sources(context, Some(project))?;
    let role_faults: Vec<_> =
        Catalog::new(&role_sources).errors().map(ToString::to_string).collect();
    if let Some(key) = key.filter(|_| origins.is_empty()) {
        return Err(Failure::new(ErrorCode::NotFound, format!("no value is set at `{key}`"))
            .hint("run `muleteer config show` to list all keys"));
    }
    if context.out.json {
        let whole = kept.to_json();
        let config = key.map_or(whole.clone(), |key| only(&whole, key));
        let ignored = kept.ignored();
        let mut shown = json!({ "config": config, "origins": origins, "ignored": ignored });
        if !role_faults.is_empty() {
            shown["role_faults"] = json!(role_faults);
        }
        context.out.document(&shown)?;
        return Ok(Exit::Done);
    }
    let lines: Vec<_> = origins
        .iter()
        .map(|origin| (format!("{}: {}", origin.key, plain(&origin.value)), place(origin)))
        .collect();
    let width = lines
        .iter()
        .map(|(left, _)| left.chars().count())
        .filter(|width| *width <= 60)
        .max()
        .unwrap_or(0);
    for (left, place) in lines {
        let padding = " ".repeat(width.saturating_sub(left.chars().count()));
        context.out.line(format!("{}{padding}  {DIM}# {place}{RESET}", safe(&left)))?;
    }
    for origin in origins.iter().filter(|origin| origin.is_in_vain()) {
        context.out.note(format!("{}: {} {IN_VAIN}", place(origin), origin.key));
    }
    settings::warn(context, kept.ignored(), key.unwrap_or_default());
    for fault in role_faults {
        context.out.note(format!(
            "warning: a role file is invalid: {fault}; a daemon that has read a valid version of \
             it keeps that one in force (`muleteer status` says so)"
        ));
    }
    Ok(Exit::Done)
}

/// Formats an origin: `user ~/.config/muleteer/config.yaml:3`.
fn place(origin: &Origin) -> String {
    let file = origin.file.as_deref().map(|file| format!(" {file}")).unwrap_or_default();
    let line = origin
        .line
        .filter(|_| origin.file.is_some())
        .map(|line| format!(":{line}"))
        .unwrap_or_default();
    format!("{}{file}{line}", origin.layer)
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn check(context: &Context, project: &std::path::Path) -> Result<Exit, Failure> {
    let sources = settings::sources(context, Some(project))?;
    let role_sources = settings::role_sources(context, Some(project))?;
    let config = settings::config(context, Some(project));
    let catalog = Catalog::new(&role_sources);
    let mut role_errors: Vec<_> = catalog.errors().cloned().collect();
    if let Ok(config) = &config {
        role_errors.extend(
            catalog.without_category(config, &role_sources).into_iter().map(|(_, error)| error),
        );
    }
    match config {
        Err(failure) if role_errors.is_empty() => return Err(failure),
        Err(failure) => return Err(failure.and([settings::invalid(role_errors)])),
        Ok(_) if !role_errors.is_empty() => return Err(settings::invalid(role_errors)),
        Ok(_) => {}
    }
    let config = settings::config(context, Some(project))?;
    for origin in config.origins().iter().filter(|origin| origin.is_in_vain()) {
        context.out.note(format!("{}: {} {IN_VAIN}", place(origin), origin.key));
    }
    let of_roles = catalog
        .roles()
        .filter_map(|role| catalog.in_force(&role.name, &config, &role_sources).ok());
    let of_roles = of_roles.flat_map(|found| found.ignored);
    settings::warn(
        context,
        &config.ignored().iter().cloned().chain(of_roles).collect::<Vec<_>>(),
        "",
    );
    let files: Vec<_> = sources
        .iter()
        .filter_map(|source| source.file.clone())
        .chain(role_sources.iter().map(|role| role.file.clone()))
        .collect();
    if context.out.json {
        context.out.document(&json!({ "ok": true, "files": files }))?;
    } else if files.is_empty() {
        context.out.line("ok: no files, only the built-in configuration")?;
    } else {
        for file in files {
            context.out.line(format!("ok  {file}"))?;
        }
    }
    Ok(Exit::Done)
}
