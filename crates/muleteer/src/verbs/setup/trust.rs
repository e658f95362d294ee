//! `trust`: decides which repositories' configuration may run programs and loosen restrictions of
//! agents.

use crate::cli::context::{Context, seen_from};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::settings;
use crate::render::safe;
use muleteer_process::identity::caller;
use muleteer_process::lock;
use muleteer_protocol::ErrorCode;
use muleteer_supervisor::daemon::Note;
use muleteer_supervisor::daemon::trust::{self, Candidate, Examined, Record, TrustError};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  muleteer trust --dry-run      only show what would be allowed
  muleteer trust                show it and allow it
  muleteer trust --revoke ../web
  muleteer trust --list

A cloned repository may contain a `.muleteer/config.yaml` and roles written by a stranger. Until \
you trust them, Muleteer ignores settings that name a program or loosen a restriction of agents. \
Claude Code starts without the settings of a repository whose `.claude/settings.json`, \
`.claude/settings.local.json` or `.mcp.json` you have not trusted. Trust is kept for the content \
of each file: a file that changes is untrusted again. The programs that the configuration names \
are not looked into: trust a repository whose scripts you would run yourself.";

/// Trust a repository's configuration, so that all its settings take effect
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A directory of the repository [default: the current one]
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Only print what would be allowed
    #[arg(long, short = 'n', conflicts_with_all = ["list", "revoke"])]
    dry_run: bool,
    /// List the repositories that you trust
    #[arg(long, conflicts_with_all = ["revoke", "dir"])]
    list: bool,
    /// Stop trusting the repository
    #[arg(long)]
    revoke: bool,
}

/// Trusts, lists or revokes.
///
/// # Errors
/// `E_FORBIDDEN` for an agent. `E_CONFIG_INVALID` if a file cannot be read, so that nobody can be
/// shown what it allows. `E_STORE_IO`.
pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    if args.list {
        return list(context);
    }
    if !args.dry_run {
        check_user(context).await?;
    }
    if args.revoke {
        return revoke(context, args.dir.as_deref());
    }
    let examined =
        trust::examine(&context.paths, &seen_from(args.dir.as_deref())?).map_err(failure)?;
    let is_new = !examined.is_trusted();
    if !args.dry_run && examined.has_trustable() {
        trust::record(&context.paths, &examined, jiff::Timestamp::now().to_string())
            .map_err(failure)?;
    }
    show(context, &examined, args.dry_run, is_new)
}

/// Rejects every caller except the user. A running daemon identifies this process. Without a daemon
/// the system does, by the marker that agents and validations carry.
async fn check_user(context: &Context) -> Result<(), Failure> {
    let dispatched = std::env::var_os("MULETEER_DISPATCH_ID").is_some_and(|id| !id.is_empty());
    let is_user = match context {
        context if context.is_agent || dispatched => false,
        context if context.is_held() => identity(context).await? == "operator",
        _ => !caller::is_for_an_agent(),
    };
    if is_user {
        return Ok(());
    }
    Err(Failure::new(
        ErrorCode::Forbidden,
        "agents and validations may not change which repositories are trusted",
    )
    .hint("ask the user to run `muleteer trust` in a terminal that no agent started"))
}

/// Returns the identity that the daemon of this state directory assigns to this process. `--socket`
/// and environment variables are ignored: another daemon's answer would not count here.
async fn identity(context: &Context) -> Result<String, Failure> {
    let note: Option<Note> = lock::read_note(&context.paths.daemon_lock());
    let socket = note.and_then(|note| note.socket).unwrap_or_else(|| context.paths.socket.clone());
    let context = Context { socket, ..context.clone() };
    let client = context.dial_living().await.map_err(|error| {
        Failure::from(error)
            .hint("run `muleteer doctor`: the running daemon does not identify the caller")
    })?;
    Ok(client.welcome().identity.clone())
}

fn show(
    context: &Context,
    examined: &Examined,
    dry_run: bool,
    is_new: bool,
) -> Result<Exit, Failure> {
    let root = examined.root.display().to_string();
    let trusted = examined.has_trustable() && (!dry_run || !is_new);
    if context.out.json {
        let document = json!({
            "root": root, "trusted": trusted, "dry_run": dry_run, "files": examined.files,
        });
        return context.out.document(&document).map(|()| Exit::Done);
    }
    if examined.files.is_empty() {
        context
            .out
            .line(format!("{root} has no configuration of Muleteer or Claude Code to trust"))?;
        return Ok(Exit::Done);
    }
    for file in &examined.files {
        show_file(context, file)?;
    }
    if !examined.has_trustable() {
        context.out.line(format!("nothing of {root} can be trusted"))?;
        return Ok(Exit::Done);
    }
    let said = match (dry_run, is_new) {
        (false, true) => format!("{root} is trusted now, until one of these files changes"),
        (_, false) => format!("{root} is trusted, until one of these files changes"),
        (true, true) => format!("{root} is not trusted; `muleteer trust` allows this"),
    };
    context.out.line(said)?;
    Ok(Exit::Done)
}

fn show_file(context: &Context, file: &Candidate) -> Result<(), Failure> {
    if let Some(why) = &file.untrustable {
        return context.out.line(safe(&format!("{}: cannot be trusted: {why}", file.file)));
    }
    let nothing =
        if file.allows.is_empty() { ": names no program and loosens no restriction" } else { "" };
    context.out.line(safe(&format!("{}{nothing}", file.file)))?;
    for one in &file.allows {
        let line = one.line.map(|line| format!(" (line {line})")).unwrap_or_default();
        let effect = format!("{}:", one.effect);
        let said = match (&one.value, one.line) {
            (Value::Null, None) => format!("leaves out {}", one.key),
            (value, _) => format!("{} = {value}", one.key),
        };
        context.out.line(safe(&format!("  {effect:<9} {said}{line}")))?;
    }
    Ok(())
}

fn revoke(context: &Context, dir: Option<&Path>) -> Result<Exit, Failure> {
    let dir = crate::cli::context::absolute(dir.unwrap_or(Path::new(".")));
    let (root, revoked) = trust::revoke(&context.paths, &dir).map_err(failure)?;
    let root = root.display().to_string();
    if context.out.json {
        context.out.document(&json!({ "root": root, "revoked": revoked }))?;
    } else if revoked {
        context.out.line(format!("{root} is no longer trusted"))?;
    } else {
        context.out.line(format!("{root} was not trusted"))?;
    }
    Ok(Exit::Done)
}

/// Returns whether the files are unchanged since the user trusted them.
fn state(context: &Context, record: &Record) -> &'static str {
    if !record.root.is_dir() {
        return "gone";
    }
    match trust::examine(&context.paths, &record.root) {
        Ok(examined) if examined.root == record.root && examined.is_trusted() => "current",
        _ => "changed",
    }
}

fn list(context: &Context) -> Result<Exit, Failure> {
    let records = trust::list(&context.paths).map_err(failure)?;
    if context.out.json {
        let entry = |record: &Record| {
            let state = state(context, record);
            json!({ "root": record.root, "state": state, "trusted_at": record.trusted_at })
        };
        let repositories: Vec<_> = records.iter().map(entry).collect();
        return context.out.document(&json!({ "repositories": repositories })).map(|()| Exit::Done);
    }
    if records.is_empty() {
        context.out.line("no repository is trusted")?;
    }
    for record in &records {
        context.out.line(safe(&format!(
            "{:<8} {}",
            state(context, record),
            record.root.display()
        )))?;
    }
    Ok(Exit::Done)
}

fn failure(error: TrustError) -> Failure {
    match error {
        TrustError::Unreadable(error) => settings::unreadable(&error),
        TrustError::Config(errors) => settings::invalid(errors),
        TrustError::Store(error) => Failure::of(ErrorCode::StoreIo, &error),
        TrustError::Io { path, source } => {
            Failure::new(ErrorCode::StoreIo, format!("{} cannot be used: {source}", path.display()))
                .file(path)
        }
    }
}
