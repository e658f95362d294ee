//! `roles`: lists the roles and their origin.

use crate::cli::context::{Context, seen_from};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::settings;
use crate::render::table::{Align, Cell, layout};
use crate::render::{BOLD, clip, safe};
use muleteer_model::agent::role::{Catalog, Role, RoleError};
use muleteer_model::config::Config;
use muleteer_protocol::ErrorCode;
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  muleteer roles
  muleteer roles developer              one role in full
  muleteer roles --project ../web --json

Roles are markdown files with YAML front matter: built in, in the user's configuration \
(roles/*.md), in a project's .claude/agents and .muleteer/roles. Later ones override earlier \
ones.";

/// List the roles, or show one
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Show this role in full
    name: Option<String>,
    /// Read the configuration that applies in this directory [default: the current one]
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
}

pub fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let project = seen_from(args.project.as_deref())?;
    let sources = settings::role_sources(context, Some(&project))?;
    let catalog = Catalog::new(&sources);
    if let Some(name) = &args.name {
        // A configuration that cannot be read must not hide a role.
        let config = settings::config(context, Some(&project))
            .or_else(|_| Config::defaults().map_err(settings::invalid))?;
        let found = catalog.in_force(name, &config, &sources).map_err(|error| match error {
            RoleError::Unknown(error) => {
                Failure::of(ErrorCode::RoleUnknown, &error).hint(&error.hint)
            }
            RoleError::Invalid(error) => settings::invalid(vec![error]),
        })?;
        if context.out.json {
            context.out.document(&document(&found.role))?
        } else {
            context.out.text(full(&found.role))?
        }
        settings::warn(context, &found.ignored, "");
        return Ok(Exit::Done);
    }
    let mut errors: Vec<_> = catalog.errors().cloned().collect();
    // Errors of the configuration itself are left to `config check`.
    if let Ok(config) = settings::config(context, Some(&project)) {
        errors.extend(
            catalog.without_category(&config, &sources).into_iter().map(|(_, error)| error),
        );
    }
    if context.out.json {
        context.out.document(&json!({
            "roles": catalog.roles().map(document).collect::<Vec<_>>(), "errors": errors,
        }))?;
        return Ok(Exit::Done);
    }
    let heads = ["ROLE", "CATEGORY", "MODEL", "FROM", "DESCRIPTION"]
        .map(|head| (head, if head == "DESCRIPTION" { Align::Main(24) } else { Align::Left }));
    let rows: Vec<_> = catalog.roles().map(row).collect();
    context.out.text(layout(&heads, &rows, &["MODEL", "FROM"]))?;
    if !errors.is_empty() {
        context.out.note(settings::invalid(errors).text());
    }
    Ok(Exit::Done)
}

/// Returns a role as JSON. `no_tools` distinguishes an empty list of tools from a missing one.
fn document(role: &Role) -> serde_json::Value {
    let mut document = json!(role);
    document["no_tools"] = role.tools.as_ref().is_some_and(Vec::is_empty).into();
    document
}

fn row(role: &Role) -> Vec<Cell> {
    vec![
        Cell::colored(role.name.as_str(), BOLD),
        clip(&role.category, 20).into(),
        clip(role.model.as_deref().unwrap_or("-"), 30).into(),
        role.layer.as_str().into(),
        clip(role.description.as_deref().unwrap_or_default(), 80).into(),
    ]
}

fn full(role: &Role) -> String {
    let backend = role.backend.map(|backend| backend.as_str().to_string());
    let named = |tools: &[String]| Some(tools.join(", ")).filter(|names| !names.is_empty());
    // An empty list is a restriction; a role without a list has none.
    let tools = role.tools.as_ref().map(|tools| named(tools).unwrap_or_else(|| "none".into()));
    let facts = [
        ("name", Some(role.name.clone())),
        ("shown as", role.display_name.clone()),
        ("category", Some(role.category.clone())),
        ("model", role.model.clone()),
        ("backend", backend),
        ("tools", tools),
        ("not its tools", named(&role.disallowed_tools)),
        ("permissions", role.permission_mode.map(|mode| mode.as_str().to_string())),
        ("description", role.description.clone()),
        ("from", Some(format!("{} ({})", role.file, role.layer))),
    ];
    let facts = facts
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name:<14}{}\n", safe(&value?))));
    facts.chain([format!("\n{}\n", safe(role.body.trim()))]).collect()
}
