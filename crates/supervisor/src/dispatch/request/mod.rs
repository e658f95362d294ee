//! Makes a dispatch. Everything is decided and checked here, before anything is durable. Later
//! changes of configuration or roles do not affect the dispatch.

pub mod loaded;
pub(crate) mod place_warnings;
mod record;
mod resolve;
mod role_files;
pub(crate) mod sandbox;
mod workplace;

use crate::daemon::context::Daemon;
use crate::daemon::trust::claude::loaded_by;
pub use crate::dispatch::backend_choice::backend_of;
use crate::dispatch::confine::Confined;
use crate::dispatch::error::{fault, internal};
use crate::dispatch::pool::Reservation;
use crate::dispatch::saved::Saved;
pub(crate) use loaded::load;
use muleteer_backends::RepositorySettings;
use muleteer_model::config::{self, Ignored};
use muleteer_model::dispatch::child_limits;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Created, Entry, Event, PromptKind, Purse};
use muleteer_model::monitor::healing::{LIGHT_BY, RETRY_BY};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{self, WireError};
use record::Asked;
pub use resolve::check;
use resolve::means;
pub(crate) use resolve::{access_config, ignored};
pub(crate) use role_files::check_faulty;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The party that makes a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Asker {
    Operator,
    Agent(DispatchId),
    /// A thread, for the agent that answers in it.
    Thread(String),
    /// A task-list run, for one of its agents, with the list's repository.
    Tasks(PathBuf),
    /// A spec run, for one of its agents.
    Run(Box<Part>),
    /// The healing of a dispatch.
    Healing(Box<Care>),
}

/// The purpose for which the healing of a dispatch creates another one.
#[derive(Debug, Clone, PartialEq)]
pub struct Care {
    /// The dispatch in trouble.
    pub of: DispatchId,
    /// The budget of its light agents, if this is one; otherwise it does the task again.
    pub light: Option<Purse>,
}

/// The special properties of a run's agent.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    pub run: String,
    /// The run's repository, which has the run's clones in another folder.
    pub repo: PathBuf,
    /// The folder of its journal, if nobody else may read it.
    pub journals: Option<PathBuf>,
    /// The paths that it may see and write, if it is confined.
    pub confined: Option<Confined>,
    /// The run's budget, if it has one.
    pub purse: Option<Purse>,
    /// It must change nothing, and no sandbox enforces that, so its CLI is asked to.
    pub only_reads: bool,
    /// Rules in addition to its briefing.
    pub rules: String,
    /// The JSON schema of its answer.
    pub schema: Option<serde_json::Value>,
    /// The folder for the homes of its CLI, if it judges the work of others.
    pub home: Option<PathBuf>,
}

impl Asker {
    /// Whether the party has begun, and was checked then.
    fn goes_on(&self) -> bool {
        match self {
            Self::Operator | Self::Agent(_) => false,
            Self::Thread(_) | Self::Tasks(_) | Self::Run(_) | Self::Healing(_) => true,
        }
    }

    pub fn name(&self) -> String {
        match self {
            Self::Operator | Self::Tasks(_) => "operator".into(),
            Self::Agent(id) => format!("agent/{id}"),
            Self::Thread(id) => format!("{}{id}", muleteer_model::conversation::BY),
            Self::Run(part) => format!("run/{}", part.run),
            Self::Healing(care) if care.light.is_some() => format!("{LIGHT_BY}{}", care.of),
            Self::Healing(care) => format!("{RETRY_BY}{}", care.of),
        }
    }

    /// Returns the requesting agent, if an agent makes the request.
    fn parent(&self) -> Option<&DispatchId> {
        match self {
            Self::Agent(parent) => Some(parent),
            Self::Operator | Self::Thread(_) | Self::Tasks(_) | Self::Run(_) | Self::Healing(_) => {
                None
            }
        }
    }

    /// Returns the properties of a run's agent, if a run makes the request.
    fn part(&self) -> Option<&Part> {
        match self {
            Self::Run(part) => Some(part),
            Self::Operator
            | Self::Agent(_)
            | Self::Thread(_)
            | Self::Tasks(_)
            | Self::Healing(_) => None,
        }
    }

    /// Returns the budget of the light agents of a dispatch, if the request is for one of them.
    fn light(&self) -> Option<&Purse> {
        match self {
            Self::Healing(care) => care.light.as_ref(),
            Self::Operator | Self::Agent(_) | Self::Thread(_) | Self::Tasks(_) | Self::Run(_) => {
                None
            }
        }
    }

    /// Whether the agent must change nothing, and only its CLI can keep it from that.
    fn only_reads(&self) -> bool {
        self.light().is_some() || self.part().is_some_and(|part| part.only_reads)
    }
}

/// A dispatch that is checked and whose files are written.
#[derive(Debug)]
pub struct Prepared {
    /// They make it durable.
    pub entries: Vec<Entry>,
    /// The data for its start, if it starts at once.
    pub saved: Option<Box<Saved>>,
    /// Its slot in the pool if it starts at once, which must be held until the entries are
    /// appended.
    pub reservation: Reservation,
    /// The settings of the repository that do not count, because the user has not trusted them.
    pub ignored: Vec<Ignored>,
    /// The repository's settings that its agent loads.
    pub loaded: Option<RepositorySettings>,
}

/// Checks a request and writes the files of its dispatch.
///
/// # Errors
/// The fault of the request; then nothing was changed that has an effect.
pub async fn prepare(
    daemon: &Arc<Daemon>,
    spawn: &v1::Spawn,
    asker: &Asker,
    trace: Option<String>,
) -> Result<Prepared, WireError> {
    let id = DispatchId::try_from(spawn.id.clone())
        .map_err(|error| fault(ErrorCode::BadInput, &error.to_string(), ""))?;
    let project = Path::new(&spawn.project);
    check_work(spawn, project)?;
    // Its own clone is not made yet. Task-list and spec runs were checked when they began.
    let place = (!spawn.worktree
        && matches!(asker, Asker::Operator | Asker::Agent(_) | Asker::Thread(_)))
    .then_some(project);
    let fleet = daemon.snapshot();
    let above = asker.parent().and_then(|parent| fleet.get(parent));
    let held = above.map(|above| {
        child_limits::policy(&above.created, above.traits, &spawn.project, spawn.worktree)
    });
    let held = held.filter(|policy| !policy.is_open());
    let fingerprint = fingerprint(spawn);
    let spawn = &match above.filter(|_| held.is_some()) {
        Some(above) => resolve::of_parent(daemon, spawn, &above.id)?,
        None => spawn.clone(),
    };
    let asked = Asked { daemon, id: &id, spawn, asker, fleet: &fleet, above, held };
    let mut means = means(daemon, spawn, project, place, asked.holder(), asker.goes_on())?;
    let ignored = std::mem::take(&mut means.ignored);
    let setup = asked.setup(means)?;
    let created = asked.created(&setup, trace, fingerprint).await?;
    let saved = asked.saved(setup, &created);
    let loaded = loaded_by(&created.backend, &saved);
    let dir = daemon.paths.agent(id.as_str());
    let key = muleteer_model::dispatch::life::prompt_key(&id, PromptKind::Initial, 0);
    // Simultaneous requests share the wait for the disk.
    let written = tokio::task::spawn_blocking(move || saved.write(&dir).map(|()| saved));
    let mut entries = vec![
        named(&id, "created", Event::DispatchCreated(Box::new(created))),
        named(
            &id,
            "initial",
            Event::PromptQueued { key, kind: PromptKind::Initial, by: asker.name(), trace: None },
        ),
    ];
    let ((reservation, begun), written) =
        tokio::join!(Reservation::ask(daemon, &id, &entries), written);
    let saved = written.map_err(|error| internal(&error.to_string()))??;
    let saved = (!begun.is_empty()).then(|| Box::new(saved));
    entries.extend(
        begun.into_iter().enumerate().map(|(n, event)| named(&id, &format!("begun/{n}"), event)),
    );
    Ok(Prepared { entries, saved, reservation, ignored, loaded })
}

/// Checks that there is a directory and a prompt.
fn check_work(spawn: &v1::Spawn, project: &Path) -> Result<(), WireError> {
    if !project.is_absolute() || !project.is_dir() {
        let message = format!("the project {} is not a directory", project.display());
        return Err(fault(
            ErrorCode::ProjectNotFound,
            &message,
            "name an existing directory, or a configured project",
        ));
    }
    if spawn.prompt.trim().is_empty() {
        return Err(fault(
            ErrorCode::PromptMissing,
            "the prompt is empty",
            "give it as an argument, with --prompt-file, or on stdin",
        ));
    }
    Ok(())
}

/// Makes an entry with an id derived from the dispatch's, so that the ledger recognises a repeated
/// request.
fn named(id: &DispatchId, what: &str, event: Event) -> Entry {
    Entry {
        id: format!("{id}/{what}"),
        dispatch_id: Some(id.clone()),
        at: None,
        more: false,
        event,
    }
}

/// # Errors
/// The text cannot be the name of a model.
pub fn check_model(model: Option<&str>) -> Result<(), WireError> {
    match model.filter(|model| !config::is_model_name(model)) {
        None => Ok(()),
        Some(_) => Err(fault(
            ErrorCode::BadInput,
            "the name of the model is invalid",
            "omit it to use the default",
        )),
    }
}

/// Hashes the request, so that another request with the same id is recognised.
fn fingerprint(spawn: &v1::Spawn) -> String {
    let asked = (
        &spawn.role,
        &spawn.project,
        &spawn.prompt,
        &spawn.command,
        &spawn.backend,
        &spawn.feature,
        &spawn.model,
    );
    let mut text = format!("{asked:?}");
    // Without these the hash is that of an earlier version, whose requests may be repeated.
    if spawn.permissions.is_some() || spawn.sandbox {
        text.push_str(&format!("{:?}", (&spawn.permissions, spawn.sandbox)));
    }
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("{hash:016x}")
}

/// Whether this very request made the existing dispatch.
pub fn is_same(created: &Created, spawn: &v1::Spawn) -> bool {
    created.fingerprint == fingerprint(spawn)
}
