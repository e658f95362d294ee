//! `hooks`: installs the hooks of the task-list harness in an agent CLI's settings, with a skill
//! that explains the protocol to the agent; and removes both.

mod files;
mod trace;

use crate::cli::context::{Context, absolute};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use muleteer_backends::claude_code::HOME;
use muleteer_model::task_list::settings::{self, HOOKS};
use muleteer_protocol::ErrorCode;
use muleteer_store::links::stay_within;
use serde_json::json;
use std::path::{Path, PathBuf};
use trace::Trace;

const SKILL: &str = include_str!("hooks/skill.md");

/// Install hooks that make Claude Code sessions work through a task list
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  muleteer hooks install\n  muleteer hooks install --user\n  \
        muleteer hooks status\n\nThe hooks do nothing without a .harness-active file. The rest of \
        the settings file is not changed.")]
pub struct Args {
    #[command(subcommand)]
    verb: Sub,
}

#[derive(Debug, clap::Subcommand)]
enum Sub {
    /// Install the hooks and the skill, each once
    #[command(after_help = "Example:\n  muleteer hooks install --project ../web")]
    Install(Where),
    /// Remove the hooks and the skill, and nothing else
    #[command(after_help = "Example:\n  muleteer hooks uninstall --user")]
    Uninstall(Where),
    /// Show which hooks are installed
    #[command(after_help = "Example:\n  muleteer hooks status --json")]
    Status(Where),
}

#[derive(Debug, clap::Args)]
struct Where {
    /// For every project of this user (~/.claude, or CLAUDE_CONFIG_DIR)
    #[arg(long, conflicts_with = "project")]
    user: bool,
    /// For this project [default: the current directory]
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
}

struct Place {
    settings: PathBuf,
    skill: PathBuf,
    /// The project, if these are not the user's own settings.
    project: Option<PathBuf>,
}

impl Place {
    /// Checks that no link of the project leads a change elsewhere. A user may keep the own
    /// settings behind any link.
    fn check_links(&self) -> Result<(), Failure> {
        let Some(project) = &self.project else { return Ok(()) };
        [&self.settings, &self.skill, &Trace::file(&self.skill)].into_iter().try_for_each(|path| {
            stay_within(project, path).map_err(|error| {
                Failure::new(ErrorCode::Io, format!("nothing was changed: {error}"))
                    .file(path)
                    .hint("the link came with the project: look where it leads")
            })
        })
    }
}

impl Where {
    fn place(&self) -> Result<Place, Failure> {
        let dir = if self.user {
            let own =
                std::env::var_os(HOME.variable).filter(|dir| !dir.is_empty()).map(PathBuf::from);
            let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(HOME.folder));
            own.or_else(home).ok_or_else(|| Failure::new(ErrorCode::Usage, "HOME is not set"))?
        } else {
            if let Some(dir) = self.project.as_ref().filter(|dir| !dir.is_dir()) {
                return Err(Failure::new(
                    ErrorCode::ProjectNotFound,
                    format!("{} is not a directory", dir.display()),
                ));
            }
            absolute(self.project.as_deref().unwrap_or(Path::new("."))).join(HOME.folder)
        };
        Ok(Place {
            settings: dir.join("settings.json"),
            skill: dir.join("skills/task-list/SKILL.md"),
            project: dir.parent().filter(|_| !self.user).map(Path::to_path_buf),
        })
    }
}

pub fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    match &args.verb {
        Sub::Install(at) => install(&at.place()?, context),
        Sub::Uninstall(at) => uninstall(&at.place()?, context),
        Sub::Status(at) => status(&at.place()?, context),
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    let fail = |error: String| {
        Failure::new(ErrorCode::Io, format!("cannot read the settings: {error}")).file(path)
    };
    let bytes = files::read(path).map_err(|error| fail(error.to_string()))?;
    let is_utf16 =
        |bytes: &Vec<u8>| bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff");
    if bytes.as_ref().is_some_and(is_utf16) {
        let message = "the settings were not changed: they are UTF-16";
        return Err(Failure::new(ErrorCode::BadInput, message)
            .file(path)
            .hint("save the file as UTF-8, which agent CLIs read, then try again"));
    }
    Ok(bytes)
}

fn refused(error: &settings::Refused, path: &Path) -> Failure {
    faulty(format!("the settings were not changed: {error}"), error, path)
}

fn unreadable(error: &settings::Refused, path: &Path) -> Failure {
    faulty(format!("cannot tell which hooks are installed: {error}"), error, path)
}

fn faulty(message: String, error: &settings::Refused, path: &Path) -> Failure {
    Failure::new(ErrorCode::BadInput, message)
        .file(path)
        .at(Some(error.line), Some(error.column))
        .hint("fix the file, then try again")
}

/// Writes a file. A symbolic link (for example to a dotfiles repository) is preserved, and its
/// target is replaced.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let fail =
        |error: String| Failure::new(ErrorCode::Io, format!("cannot write: {error}")).file(path);
    let place = || -> std::io::Result<PathBuf> {
        path.parent().map_or(Ok(()), files::create_folder)?;
        let real = files::target(path)?;
        real.parent().map_or(Ok(()), files::create_folder)?;
        Ok(real)
    };
    let real = place().map_err(|error| fail(error.to_string()))?;
    let mode = std::fs::metadata(&real)
        .map_or(0o644, |meta| std::os::unix::fs::PermissionsExt::mode(&meta.permissions()) & 0o777);
    muleteer_store::atomic::write_atomic(&real, bytes, mode)
        .map_err(|error| fail(error.to_string()))
}

/// Returns `muleteer` if the shell finds this program by that name, else its path.
fn program() -> String {
    let own = std::env::current_exe().unwrap_or_default();
    let on_path = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path)
            .map(|dir| dir.join("muleteer"))
            .find(|candidate| candidate.is_file())
    });
    let same = |found: &PathBuf| found.canonicalize().ok() == own.canonicalize().ok();
    if on_path.as_ref().is_some_and(same) {
        "muleteer".into()
    } else {
        format!("'{}'", own.display())
    }
}

fn install(at: &Place, context: &Context) -> Result<Exit, Failure> {
    let old = read(&at.settings)?;
    at.check_links()?;
    let trace = Trace::find(&at.skill).unwrap_or_else(|| Trace::before(old.as_deref(), &at.skill));
    let bytes = old.as_deref().unwrap_or_default();
    let new = settings::install(&settings::decode(bytes), &program());
    let new = settings::encode(&new.map_err(|error| refused(&error, &at.settings))?, bytes);
    // This comes first: after a kill in between, the settings would look like a person's.
    if Trace::find(&at.skill).as_ref() != Some(&trace) {
        write(&Trace::file(&at.skill), &trace.to_bytes())?;
    }
    if old.as_deref() != Some(&new) {
        write(&at.settings, &new)?;
    }
    match read(&at.skill)? {
        Some(text) if text == SKILL.as_bytes() => {}
        other => {
            // The existing skill is an older version or was changed by somebody; these cannot be
            // distinguished.
            if let Some(text) = other {
                let kept = at.skill.with_extension("md.old");
                write(&kept, &text)?;
                context.out.note(format!(
                    "the previous content of {} is in {}",
                    at.skill.display(),
                    kept.display()
                ));
            }
            write(&at.skill, SKILL.as_bytes())?;
        }
    }
    status(at, context)
}

fn uninstall(at: &Place, context: &Context) -> Result<Exit, Failure> {
    read(&at.settings)?;
    at.check_links()?;
    let trace = Trace::find(&at.skill).unwrap_or_default();
    let cannot_remove = |path: &Path| {
        let path = path.to_path_buf();
        move |error: std::io::Error| {
            Failure::new(ErrorCode::Io, format!("cannot remove: {error}")).file(&path)
        }
    };
    if let Some(old) = read(&at.settings)? {
        let new = settings::uninstall(&settings::decode(&old))
            .map_err(|error| refused(&error, &at.settings))?;
        match trace.original(&settings::encode(&new, &old)) {
            Some(new) if new == old => {}
            Some(new) => write(&at.settings, &new)?,
            // The target of a link is removed, and the link leads nowhere, as before.
            None => files::target(&at.settings)
                .and_then(std::fs::remove_file)
                .map_err(cannot_remove(&at.settings))?,
        }
    }
    match read(&at.skill)? {
        Some(text) if text == SKILL.as_bytes() => {
            std::fs::remove_file(&at.skill).map_err(cannot_remove(&at.skill))?;
        }
        Some(_) => context
            .out
            .note(format!("{} was changed by hand, so it was not removed", at.skill.display())),
        None => {}
    }
    trace.remove(&at.skill).map_err(cannot_remove(&Trace::file(&at.skill)))?;
    status(at, context)
}

fn status(at: &Place, context: &Context) -> Result<Exit, Failure> {
    let text = read(&at.settings)?.map(|bytes| settings::decode(&bytes));
    let there = match text.filter(|text| !text.trim_start_matches('\u{feff}').trim().is_empty()) {
        Some(text) => {
            settings::installed(&text).map_err(|error| unreadable(&error, &at.settings))?
        }
        None => vec![],
    };
    let skill = at.skill.exists();
    if context.out.json {
        let missing: Vec<_> =
            HOOKS.iter().map(|(.., hook)| *hook).filter(|hook| !there.contains(hook)).collect();
        context.out.document(&json!({
            "settings": at.settings, "installed": there, "missing": missing, "skill": skill,
            "skill_path": at.skill,
        }))?;
    } else {
        let what = if there.is_empty() { "none".into() } else { there.join(", ") };
        context.out.line(format!("{}: {what}", at.settings.display()))?;
        context.out.line(format!(
            "{}: {}",
            at.skill.display(),
            if skill { "there" } else { "missing" }
        ))?;
    }
    Ok(Exit::Done)
}
