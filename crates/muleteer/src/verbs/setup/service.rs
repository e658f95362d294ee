//! `service`: installs Muleteer as a service of systemd or launchd.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::on_demand::own_program;
use crate::render::{GREEN, RED, RESET, safe};
use crate::service::apply::{Did, apply};
use crate::service::plan::{self, Present};
use crate::service::{Manager, Scope, Service, state, unit};
use muleteer_protocol::ErrorCode;
use serde_json::json;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  muleteer service install                for your user: starts at login
  sudo muleteer service install --system  for the machine: starts at boot
  muleteer service install --dry-run      only prints what it would do
  muleteer service status

A service of your user starts at boot if lingering is enabled. Agents survive a restart and a \
`kill -9` of the service.";

/// Run the daemon as a service of systemd or launchd
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    verb: Sub,
}

#[derive(Debug, clap::Subcommand)]
enum Sub {
    /// Install or update the service, and start it
    #[command(after_help = "Example:\n  muleteer service install && loginctl enable-linger")]
    Install {
        #[command(flatten)]
        options: Options,
        /// Only print what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Stop and remove the service; running agents continue until their lease ends
    #[command(after_help = "Example:\n  muleteer service uninstall")]
    Uninstall {
        #[command(flatten)]
        options: Options,
        /// Only print what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Show the state of the service; exits 3 unless it runs
    #[command(after_help = "Example:\n  muleteer service status --json | jq .active")]
    Status {
        #[command(flatten)]
        options: Options,
    },
}

#[derive(Debug, clap::Args)]
struct Options {
    /// Use the machine's service, not the user's; changing it needs root
    #[arg(long)]
    system: bool,
    /// The user for whom a system service runs agents [default: the user who called sudo]
    #[arg(long, value_name = "USER", requires = "system")]
    run_as: Option<String>,
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    match &args.verb {
        Sub::Install { options, dry_run } => {
            change(options, *dry_run, Verb::Install, context).await
        }
        Sub::Uninstall { options, dry_run } => {
            change(options, *dry_run, Verb::Uninstall, context).await
        }
        Sub::Status { options } => status(options, context).await,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Install,
    Uninstall,
}

async fn change(
    options: &Options,
    dry_run: bool,
    verb: Verb,
    context: &Context,
) -> Result<Exit, Failure> {
    let service = service(options, context)?;
    if !dry_run {
        may(&service)?;
    }
    let present = present(&service).await;
    let steps = match verb {
        Verb::Install => plan::install(&service, &present),
        Verb::Uninstall => plan::uninstall(&service, &present),
    };
    let done = apply(&steps, dry_run).await?;
    if context.out.json {
        context.out.document(&json!({
            "action": if verb == Verb::Install { "install" } else { "uninstall" },
            "manager": service.manager.as_str(),
            "scope": service.scope.as_str(),
            "unit": service.path().display().to_string(),
            "dry_run": dry_run,
            "steps": done,
        }))?;
        return Ok(Exit::Done);
    }
    for did in &done {
        context.out.line(sentence(did, dry_run))?;
    }
    match verb {
        _ if dry_run => {}
        Verb::Install => context.out.line("the service runs")?,
        Verb::Uninstall if done.is_empty() => context.out.line("the service is not installed")?,
        Verb::Uninstall => {
            context.out.line("the service was removed; the work of its agents is kept")?
        }
    }
    Ok(Exit::Done)
}

fn sentence(did: &Did, dry_run: bool) -> String {
    let (would, done) = match did.action {
        "write" => ("would write", "wrote"),
        "keep" => ("would keep", "kept"),
        "remove" => ("would remove", "removed"),
        _ => ("would run", "ran"),
    };
    format!("{} {}", if dry_run { would } else { done }, safe(&did.what))
}

async fn status(options: &Options, context: &Context) -> Result<Exit, Failure> {
    let service = service(options, context)?;
    let path = service.path();
    let file = std::fs::read_to_string(&path).ok();
    let current = file.as_deref().map(|text| text == unit::render(&service));
    let found = if state::runs(service.manager) {
        state::unit(service.manager, service.scope).await
    } else {
        None
    };
    let running = found.as_ref().is_some_and(|unit| unit.active == "active");
    if context.out.json {
        let unit = found.clone().unwrap_or_default();
        context.out.document(&json!({
            "manager": service.manager.as_str(),
            "scope": service.scope.as_str(),
            "unit": path.display().to_string(),
            "installed": file.is_some(),
            "current": current,
            "active": found.as_ref().map_or("inactive", |unit| unit.active.as_str()),
            "sub": unit.sub,
            "enabled": unit.enabled,
            "pid": unit.pid,
            "status": unit.text,
        }))?;
    } else {
        let place = path.display();
        match (&found, file.is_some()) {
            (Some(unit), _) => {
                let color = if running { GREEN } else { RED };
                let pid = unit.pid.map(|pid| format!(", pid {pid}")).unwrap_or_default();
                let text = unit
                    .text
                    .as_deref()
                    .map(|text| format!(": {}", safe(text)))
                    .unwrap_or_default();
                context
                    .out
                    .line(format!("{color}{}{RESET} ({}{pid}){text}", unit.active, unit.sub))?;
                context.out.line(format!(
                    "{place}{}",
                    if unit.enabled { ", enabled" } else { ", not enabled" }
                ))?;
            }
            (None, true) => context.out.line(format!(
                "{place} exists, but {} has not loaded it",
                service.manager.as_str()
            ))?,
            (None, false) => {
                context.out.line("not installed; a verb that needs a daemon starts one")?
            }
        }
        if current == Some(false) {
            context.out.note(
                "the unit differs from the one of this version: update it with `muleteer service \
                    install`",
            );
        }
    }
    Ok(if running { Exit::Done } else { Exit::Precondition })
}

/// Determines the service to act on, and its user.
fn service(options: &Options, context: &Context) -> Result<Service, Failure> {
    let scope = if options.system { Scope::System } else { Scope::User };
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let uid = rustix::process::getuid().as_raw();
    let own_name = users(|_, id| id == uid).map(|user| user.name).or_else(|| variable("USER"));
    let sudo = variable("SUDO_USER").filter(|_| uid == 0);
    let user = match scope {
        Scope::System => options.run_as.clone().or(sudo).or_else(|| own_name.clone()),
        Scope::User => own_name.clone(),
    };
    let user = user.unwrap_or_else(|| uid.to_string());
    let known = users(|name, _| name == user);
    let mine = own_name.as_deref() == Some(&user);
    let home = known
        .filter(|_| !mine)
        .map(|user| user.home)
        .or_else(|| variable("HOME").map(PathBuf::from));
    let home = home.unwrap_or_else(|| "/".into());
    // Another user's environment determines that user's directories, and we cannot know it.
    let places = ["XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"]
        .into_iter()
        .filter(|_| mine)
        .filter_map(|name| {
            Some((name.to_string(), variable(name).filter(|value| value.starts_with('/'))?))
        })
        .collect();
    Ok(Service {
        manager: Manager::of_host(),
        scope,
        program: own_program(),
        config: context.config.clone(),
        places,
        user,
        uid,
        config_home: context
            .paths
            .config_dir
            .parent()
            .map_or_else(|| home.join(".config"), Into::into),
        home,
    })
}

struct User {
    name: String,
    home: PathBuf,
}

/// Searches the user list on disk; users of a directory service are not in it.
fn users(wanted: impl Fn(&str, u32) -> bool) -> Option<User> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    text.lines().find_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        let (name, uid, home) = (*fields.first()?, fields.get(2)?.parse().ok()?, *fields.get(5)?);
        wanted(name, uid).then(|| User { name: name.into(), home: home.into() })
    })
}

/// Checks that the service can be changed.
///
/// # Errors
/// When no service manager runs, or it would reject this user.
fn may(service: &Service) -> Result<(), Failure> {
    let manager = service.manager.as_str();
    if !state::runs(service.manager) {
        return Err(Failure::new(ErrorCode::ServiceManager, format!("{manager} is not running"))
            .hint("work without a service: a verb that needs a daemon starts one"));
    }
    if service.scope == Scope::System && service.uid != 0 {
        return Err(Failure::new(
            ErrorCode::Forbidden,
            "installing or removing a system service needs root",
        )
        .hint("run it with sudo, or omit --system"));
    }
    Ok(())
}

async fn present(service: &Service) -> Present {
    let unit = if state::runs(service.manager) {
        state::unit(service.manager, service.scope).await
    } else {
        None
    };
    Present {
        file: std::fs::read_to_string(service.path()).ok(),
        active: unit.as_ref().is_some_and(state::UnitState::is_active),
    }
}
