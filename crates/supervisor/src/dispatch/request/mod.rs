//! Makes a dispatch. Everything is decided and checked here, before anything is durable. Later
//! changes of configuration or roles do not affect the dispatch.

mod resolve;

use crate::daemon::context::Daemon;
use crate::daemon::settings;
use crate::dispatch::acp_program;
pub use crate::dispatch::backend_choice::backend_of;
use crate::dispatch::backend_choice::{choice_of, from_config, from_wire};
use crate::dispatch::confine::Confined;
use crate::dispatch::error::{fault, internal};
use crate::dispatch::pool::Reservation;
use crate::dispatch::saved::{SAVED_VERSION, Saved};
use muleteer_backends::variables::is_of_another;
use muleteer_model::admission;
use muleteer_model::admission::api_error::Terms;
use muleteer_model::agent::acp_handshake::Calls;
use muleteer_model::agent::prompt;
use muleteer_model::agent::prompt::{Briefing, ResultForm};
use muleteer_model::config::{self, Pool};
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::child_limits;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Created, Entry, Event, PromptKind, Purse};
use muleteer_model::monitor;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{self, WireError};
use muleteer_vcs::worktree;
use muleteer_vcs::worktree::Repository;
pub use resolve::check;
use resolve::{Means, means, permissions, terms};
pub(crate) use resolve::{ignored, load};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The party that makes a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Asker {
    Operator,
    Agent(DispatchId),
    /// A task-list run, for one of its agents, with the list's repository.
    Tasks(PathBuf),
    /// A spec run, for one of its agents.
    Run(Box<Part>),
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
}

impl Asker {
    pub fn name(&self) -> String {
        match self {
            Self::Operator | Self::Tasks(_) => "operator".into(),
            Self::Agent(id) => format!("agent/{id}"),
            Self::Run(part) => format!("run/{}", part.run),
        }
    }
}

/// Checks a request and writes the files of its dispatch. Returns the entries that make it durable,
/// and its pool slot if it starts at once. The slot must be held until the entries are appended.
///
/// # Errors
/// The fault of the request; then nothing was changed that has an effect.
pub async fn prepare(
    daemon: &Arc<Daemon>,
    spawn: &v1::Spawn,
    asker: &Asker,
    trace: Option<String>,
) -> Result<(Vec<Entry>, Reservation), WireError> {
    let id = DispatchId::try_from(spawn.id.clone())
        .map_err(|error| fault(ErrorCode::BadInput, &error.to_string(), ""))?;
    let project = PathBuf::from(&spawn.project);
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
    // Its own clone is not made yet. Task-list and spec runs were checked when they began.
    let place = (!spawn.worktree && matches!(asker, Asker::Operator | Asker::Agent(_)))
        .then_some(project.as_path());
    let parent = match asker {
        Asker::Agent(parent) => Some(parent.clone()),
        Asker::Operator | Asker::Tasks(_) | Asker::Run(_) => None,
    };
    let fleet = daemon.snapshot();
    let above = parent.as_ref().and_then(|parent| fleet.get(parent));
    let held = above.map(|above| {
        child_limits::policy(&above.created, above.traits, &spawn.project, spawn.worktree)
    });
    let held = held.filter(|policy| !policy.is_open());
    let holder = above.map(|above| &*above.created).filter(|_| held.is_some());
    let fingerprint = fingerprint(spawn);
    let spawn = &match above.filter(|_| held.is_some()) {
        Some(above) => resolve::of_parent(daemon, spawn, &above.id)?,
        None => spawn.clone(),
    };
    let Means { config, role, backend, configured, agent } =
        means(daemon, spawn, &project, place, holder)?;
    let category = config
        .category(&role.category)
        .map_err(|error| fault(ErrorCode::ConfigInvalid, &error.to_string(), &error.hint))?;
    let parent_of = |id: &DispatchId| fleet.get(id)?.created.parent.clone();
    // The configuration comes with the request, so an agent could choose it. It can only lower the
    // daemon's limit.
    let max_depth = config.pool.max_depth.min(daemon.settings.pool_limits.max_depth);
    admission::depth(Pool { max_depth, ..daemon.settings.pool_limits }, parent.as_ref(), parent_of)
        .map_err(|error| {
            let hint = "do the task without another dispatch, or raise pool.max_depth in the \
                        daemon's configuration";
            fault(ErrorCode::TooDeep, &error.to_string(), hint)
        })?;

    let command = spawn.command.clone().map(from_wire).or_else(|| {
        configured.as_ref().and_then(|backend| backend.command.clone()).map(from_config)
    });
    let (model, source) = config::resolve_model(
        spawn.model.as_deref(),
        role.model.as_deref(),
        &role.category,
        &config,
    );
    let capabilities = backend.capabilities();
    let mut limits = category.limits();
    limits.budget_usd = match asker {
        // The run's remaining budget. The category's limit also applies, so that one agent does not
        // use all of it.
        Asker::Run(_) => spawn.budget_usd.into_iter().chain(limits.budget_usd).reduce(f64::min),
        Asker::Operator | Asker::Agent(_) | Asker::Tasks(_) => {
            spawn.budget_usd.or(limits.budget_usd)
        }
    };
    limits.max_turns = spawn.max_turns.or(limits.max_turns);
    limits.timeout_s = spawn.timeout_s.or(limits.timeout_s);

    if let Some(above) = above {
        let asked = limits.budget_usd;
        limits.budget_usd = child_limits::budget(&fleet, &above.id, asked);
        if limits.budget_usd != asked {
            tracing::info!(
                dispatch = %id,
                parent = %above.id,
                ?asked,
                left = ?limits.budget_usd,
                "raise the parent's budget: a child can only use the rest of it"
            );
        }
    }
    let permissions = permissions(backend, &role, &config, category, (spawn, agent), held)?;
    let mut own = passed(daemon, spawn, asker);
    own.retain(|(name, _)| !name.starts_with(config::ENV_PREFIX));
    let keeps = |name: &str| {
        config.env.pass.iter().any(|named| named == name) || !is_of_another(backend, name)
    };
    let (env, withheld): (Vec<_>, Vec<_>) = own.into_iter().partition(|(name, _)| keeps(name));
    let part = match asker {
        Asker::Run(part) => Some(part),
        _ => None,
    };
    if part.is_some() {
        // The run restarts its agents by its own rules.
        limits.max_restarts = 0;
    }
    let feature = spawn.feature.clone().unwrap_or_else(|| id.to_string());
    check_feature(&feature)?;
    // A run's agents have their models from the configuration that the run began with.
    if part.is_none() {
        check_model(spawn.model.as_deref())?;
    }
    let repository = daemon.caches.repositories.of(&project).await;
    let top = repository.as_ref().map_or(&project, |repository| &repository.top);
    let open = || {
        settings::main_checkout(part.map_or(top, |part| &part.repo))
            .join(".agents/journals")
            .join(&feature)
    };
    let journal =
        part.and_then(|part| part.journals.clone()).unwrap_or_else(open).join(format!("{id}.md"));
    let clone = top.join(".muleteer/worktrees").join(id.as_str());
    if let Some(Repository { git_dir, .. }) = &repository {
        worktree::exclude(git_dir).map_err(|error| {
            internal(&format!("{}: {error}", git_dir.join("info/exclude").display()))
        })?;
    } else if spawn.worktree {
        if let Some(why) = worktree::refusal(&project).await {
            let message = format!(
                "--worktree needs a git repository, but that of {}: {why}",
                project.display()
            );
            return Err(fault(ErrorCode::NotARepository, &message, ""));
        }
        let message =
            format!("--worktree needs a git repository, but {} is not in one", project.display());
        return Err(fault(
            ErrorCode::NotARepository,
            &message,
            "run `git init` there, or omit --worktree",
        ));
    }
    if spawn.worktree {
        worktree::lends(top).map_err(|why| {
            fault(ErrorCode::NotARepository, &format!("--worktree: {why}"), worktree::RENAME)
        })?;
    }
    if spawn.worktree && worktree::head(top).await.is_none() {
        let message = format!("--worktree clones a commit, but {} has no commit", top.display());
        return Err(fault(
            ErrorCode::NotARepository,
            &message,
            "commit something first, or omit --worktree",
        ));
    }
    if spawn.worktree {
        check_branch(top, &id).await?;
    }
    let checked_out = repository.as_ref().and_then(|repository| repository.branch.clone());
    let branch = if spawn.worktree { Some(format!("muleteer/{id}")) } else { checked_out };
    let wants_result =
        part.is_none() && category.result && (capabilities.multi_turn || capabilities.resumable);
    let clone = spawn.worktree.then(|| clone.display().to_string());
    let briefing = Briefing {
        role: &role.name,
        body: &role.body,
        limits: &limits,
        journal: &journal.display().to_string(),
        worktree: clone.as_deref(),
        result: match (wants_result, capabilities.structured) {
            (false, _) => ResultForm::None,
            (true, true) => ResultForm::Enforced,
            (true, false) => ResultForm::InText,
        },
    };
    let mut args =
        config.backends.get(choice_of(backend)).map(|backend| backend.args).unwrap_or_default();
    if part.is_some_and(|part| part.only_reads) {
        backend.keep_from_writing(&mut args);
    }
    let price = model.as_ref().and_then(|model| config.models.prices.get(model)).copied();
    let created = Created {
        role: role.name.clone(),
        category: role.category.clone(),
        project: spawn.project.clone(),
        repository: repository_of(asker, &fleet, &project),
        feature,
        backend: backend.name().into(),
        model_source: model.is_some().then(|| source.as_str().to_string()),
        model,
        limits,
        purse: part.map_or_else(
            || above.and_then(|above| above.created.purse.clone()),
            |part| part.purse.clone(),
        ),
        worktree: clone.clone(),
        branch,
        journal: journal.display().to_string(),
        parent,
        by: asker.name(),
        multi_turn: capabilities.multi_turn,
        resumable: capabilities.resumable,
        calls: backend
            .by_calls()
            .then(|| Calls { timeout_s: acp_program::call_timeout_s(&config) }),
        program: backend
            .by_calls()
            .then(|| muleteer_backends::acp::program(agent, command.as_ref(), &args))
            .flatten(),
        wants_result,
        transcripts: backend.transcripts().is_some(),
        folds: capabilities.folds,
        trace,
        api: Terms {
            price,
            ..terms(
                backend,
                (spawn, &env),
                configured.as_ref(),
                category,
                (&args, command.as_ref()),
            )
        },
        watched: watched(category, &role.scope, part.is_some()),
        ask_on_crash: part.is_none() && category.on_crash == config::OnCrash::Ask,
        permissions,
        can_ask: capabilities.asks,
        unattended_s: is_unattended(asker, above).then(|| category.answer_timeout.as_secs()),
        fingerprint,
    };
    let saved = Saved {
        v: SAVED_VERSION,
        env,
        withheld,
        extra_env: spawn.extra_env.clone(),
        program_path: holder.and_then(|_| resolve::program_path(resolve::path_of(spawn))),
        backend_env: configured
            .map(|backend| backend.env.into_iter().collect())
            .unwrap_or_default(),
        agent: agent.map(|agent| agent.name.to_string()),
        command,
        args,
        scenario: spawn.scenario.clone(),
        system_prompt: Some(
            match part.map(|part| part.rules.trim()).filter(|rules| !rules.is_empty()) {
                Some(rules) => format!(
                    "{}\n\n## Guidelines\n\n{rules}\n",
                    prompt::system_append(&briefing).trim_end()
                ),
                None => prompt::system_append(&briefing),
            },
        ),
        confined: part.and_then(|part| part.confined.clone()),
        schema: part.and_then(|part| part.schema.clone()),
    };
    let dir = daemon.paths.agent(id.as_str());
    let key = muleteer_model::dispatch::life::prompt_key(&id, PromptKind::Initial, 0);
    let (prompt_key, text) = (key.clone(), spawn.prompt.clone());
    // Simultaneous requests share the wait for the disk.
    let written = tokio::task::spawn_blocking(move || saved.write(&dir, &prompt_key, &text));
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
    written.map_err(|error| internal(&error.to_string()))??;
    entries.extend(
        begun.into_iter().enumerate().map(|(n, event)| named(&id, &format!("begun/{n}"), event)),
    );
    Ok((entries, reservation))
}

/// Whether nobody watches the agent, because it or an ancestor belongs to a run or a task list.
fn is_unattended(asker: &Asker, above: Option<&Arc<Dispatch>>) -> bool {
    match asker {
        Asker::Run(_) | Asker::Tasks(_) => true,
        Asker::Operator | Asker::Agent(_) => {
            above.is_some_and(|above| above.created.unattended_s.is_some())
        }
    }
}

/// Returns the monitors for an agent of this category and scope.
fn watched(category: &config::Category, scope: &[String], in_a_run: bool) -> monitor::Terms {
    let mut responses = category.monitors;
    if in_a_run && scope.is_empty() {
        // The agent also gets files outside of its directory, and the sandbox hides everything
        // else.
        responses.drift = monitor::Response::Ignore;
    }
    monitor::Terms { responses, scope: scope.to_vec() }
}

/// Returns the repository that a directory is a clone of, if it was made for the work.
fn repository_of(asker: &Asker, fleet: &Fleet, dir: &Path) -> Option<String> {
    let whole = match asker {
        Asker::Operator => None,
        Asker::Agent(id) => fleet.get(id)?.created.repository_of(dir).map(String::from),
        Asker::Tasks(repo) => Some(repo.display().to_string()),
        Asker::Run(part) => Some(part.repo.display().to_string()),
    };
    whole.filter(|whole| Path::new(whole) != dir)
}

/// Returns the requester's environment, with the keys that were withheld from a requesting agent.
fn passed(daemon: &Daemon, spawn: &v1::Spawn, asker: &Asker) -> Vec<(String, String)> {
    let mut env = spawn.env.clone();
    if let Asker::Agent(parent) = asker
        && let Ok(saved) = Saved::read(&daemon.paths.agent(parent.as_str()))
    {
        let has = |name: &str| spawn.env.iter().any(|(known, _)| known == name);
        env.extend(saved.withheld.into_iter().filter(|(name, _)| !has(name)));
    }
    env
}

/// Checks that the branch for the work can be made. Otherwise this would fail only once the work is
/// done.
async fn check_branch(top: &Path, id: &DispatchId) -> Result<(), WireError> {
    let name = format!("muleteer/{id}");
    let Some(other) = worktree::branch_in_the_way(top, &name).await else { return Ok(()) };
    let message = format!(
        "--worktree creates the branch {name}, but git cannot create it beside the branch {other}"
    );
    let hint = format!("rename that branch: git branch -m {other} {}-old", other.replace('/', "-"));
    Err(fault(ErrorCode::BranchInTheWay, &message, &hint))
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

/// Checks a feature name, which becomes a directory's name.
fn check_feature(feature: &str) -> Result<(), WireError> {
    let ok = !feature.is_empty()
        && feature.len() <= 100
        && !feature.starts_with('.')
        && feature.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if ok {
        return Ok(());
    }
    Err(fault(
        ErrorCode::BadInput,
        &format!("`{feature}` cannot be the name of a feature"),
        "use letters, digits, `-`, `_` and `.`, at most 100, not beginning with `.`",
    ))
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
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in format!("{asked:?}").bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("{hash:016x}")
}

/// Whether this very request made the existing dispatch.
pub fn is_same(created: &Created, spawn: &v1::Spawn) -> bool {
    created.fingerprint == fingerprint(spawn)
}
