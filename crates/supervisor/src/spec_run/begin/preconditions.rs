//! Checks the preconditions of a run: its spec, branch, backend and settings.

use crate::conversation::view;
use crate::daemon::context::Daemon;
use crate::dispatch::acp_program;
use crate::dispatch::confine;
use crate::dispatch::error::{fault, internal};
use crate::dispatch::request::{backend_of, check_model};
use crate::spec_run::host::Chosen;
use muleteer_model::beads::graph::Graph;
use muleteer_model::beads::{Bead, Scope};
use muleteer_model::config::{
    self, BackendChoice, Config, MaintainTrigger, OnComplete, SandboxHome, WorktreeStrategy,
};
use muleteer_model::spec_run::event::RunSettings;
use muleteer_model::spec_run::{self, Gate};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{self, WireError};
use muleteer_store::beads::Store;
use muleteer_vcs::worktree;
use std::path::Path;
use std::sync::Arc;

/// The most bytes of a spec. Every prompt has it.
pub(crate) const SPEC_LIMIT: u64 = 2 * 1024 * 1024;

pub(super) fn load_config(
    daemon: &Daemon,
    request: &v1::Run,
    repo: &Path,
) -> Result<Arc<Config>, WireError> {
    crate::dispatch::request::load(
        daemon,
        request.config.as_deref(),
        Some(&crate::daemon::settings::repository(repo)),
        request.env.iter().chain(&request.extra_env).cloned().collect(),
    )
}

/// Returns the request with the whole id of the thread that it names. A thread that a client names
/// must be open. The answer to a sign-off starts its run in the thread of its question.
///
/// # Errors
/// `E_NOT_FOUND`, `E_AMBIGUOUS`; `E_BAD_INPUT` if the thread is archived.
pub(super) fn in_thread(daemon: &Daemon, request: &v1::Run) -> Result<v1::Run, WireError> {
    let Some(named) = &request.thread else { return Ok(request.clone()) };
    let thread = view::find(daemon, named)?;
    if thread.archived && request.spec_shown.is_none() {
        let message = format!("thread {} is archived, so nobody would see the run", thread.id());
        let hint = "name another thread, or write to this one first: that opens it again";
        return Err(fault(ErrorCode::BadInput, &message, hint));
    }
    Ok(v1::Run { thread: Some(thread.id().into()), ..request.clone() })
}

/// Checks that a run can start in this repository.
pub(super) async fn check_repository(repo: &Path) -> Result<(), WireError> {
    worktree::lends(repo)
        .map_err(|why| fault(ErrorCode::NotARepository, &why.to_string(), worktree::RENAME))?;
    let top = worktree::top(repo).await;
    if top.is_none()
        && let Some(why) = worktree::refusal(repo).await
    {
        return Err(fault(ErrorCode::NotARepository, &format!("{}: {why}", repo.display()), ""));
    }
    if top.is_none_or(|top| top != repo) {
        let message = format!("{} is not the top directory of a git repository", repo.display());
        return Err(fault(
            ErrorCode::NotARepository,
            &message,
            "create a git repository with `git init`: a run needs one",
        ));
    }
    if worktree::head(repo).await.is_none() {
        let message = format!("{} has no commit", repo.display());
        return Err(fault(
            ErrorCode::NotARepository,
            &message,
            "commit something first: agents start from a commit",
        ));
    }
    Ok(())
}

/// Reads a spec. Returns its text and title.
///
/// # Errors
/// `E_SPEC_NOT_FOUND`: it is no file with a text, or too long.
pub(crate) fn read_spec(path: &str) -> Result<(String, String), WireError> {
    let bad = |why: String| WireError {
        file: Some(path.into()),
        ..fault(ErrorCode::SpecNotFound, &why, "--spec names a markdown file")
    };
    let meta = std::fs::metadata(path)
        .map_err(|error| bad(format!("cannot read the spec {path}: {error}")))?;
    if !meta.is_file() || meta.len() > SPEC_LIMIT {
        return Err(bad(format!("the spec {path} is not a file of at most {SPEC_LIMIT} bytes")));
    }
    let text = std::fs::read_to_string(path)
        .map_err(|error| bad(format!("cannot read the spec {path}: {error}")))?;
    titled(path, text)
}

/// Returns the text of a spec and its title.
///
/// # Errors
/// `E_SPEC_NOT_FOUND`: it has no text.
pub(crate) fn titled(path: &str, text: String) -> Result<(String, String), WireError> {
    if spec_run::spec::is_blank(&text) {
        return Err(WireError {
            file: Some(path.into()),
            ..fault(ErrorCode::SpecNotFound, &format!("the spec {path} is empty"), "")
        });
    }
    let title = spec_run::spec::title(&text);
    Ok((text, title))
}

pub(super) fn shown(repo: &Path, spec: &str) -> String {
    Path::new(spec)
        .strip_prefix(repo)
        .map_or_else(|_| spec.to_string(), |path| path.display().to_string())
}

/// Rejects open beads that no label selects, because they belong to somebody else. Selected ones
/// become the run's work.
pub(super) async fn scope(
    mut store: Store,
    label: Option<String>,
    auto: bool,
) -> Result<(), WireError> {
    let asked = label.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let beads = store.read()?;
        let own: Vec<&Bead> = match &asked {
            Some(label) => {
                beads.values().filter(|bead| bead.has_label(label) && bead.is_free("")).collect()
            }
            None => vec![],
        };
        let circle = spec_run::circle(&Graph::of_beads(own.iter().copied()), &own);
        Ok((Scope::of(beads, asked.as_deref()), circle))
    });
    let looked = looked.await.map_err(|error| internal(&error.to_string()))?;
    let (count, circle) = looked.map_err(|error| crate::spec_run::beads::wire(&error))?;
    if let Some(message) = circle {
        let hint = "remove one of these dependencies with `muleteer bead dep rm ID DEPENDS_ON`";
        return Err(fault(ErrorCode::GraphCycle, &message, hint));
    }
    match label {
        Some(label) if count.selected == 0 => Err(fault(
            ErrorCode::NotFound,
            &format!("no open bead has the label `{label}`"),
            "run `muleteer bead list`, or omit --bead-label to let an agent create beads from the \
             spec",
        )),
        None if count.unscoped > 0 => Err(fault(
            ErrorCode::BeadScopeAmbiguous,
            &unscoped(count.unscoped),
            "give --bead-label LABEL (or run.phases.decompose.existing_selector), or close them",
        )),
        None if !auto => Err(fault(
            ErrorCode::ConfigInvalid,
            "run.phases.decompose.auto is false, but no label selects the beads of the run",
            "give --bead-label LABEL",
        )),
        _ => Ok(()),
    }
}

fn unscoped(count: usize) -> String {
    match count {
        1 => "a bead is open, and no label says whether it belongs to the run".into(),
        _ => format!("{count} beads are open, and no label says whether they belong to the run"),
    }
}

/// Adds the place of the faulty key to an error.
fn placed(config: &Config, key: &str, error: WireError) -> WireError {
    let Some(origin) = config.origin(key) else { return error };
    let (file, line, column) =
        (origin.file.clone(), origin.line.map(u64::from), origin.column.map(u64::from));
    WireError { file, line, column, ..error }
}

/// Checks at the start that the configured base branch exists. Otherwise only a later git would
/// fail.
pub(super) async fn check_base(repo: &Path, config: &Config) -> Result<(), WireError> {
    let Some(name) = &config.run.worktree.base_branch else { return Ok(()) };
    if worktree::tip(repo, name).await.is_some() {
        return Ok(());
    }
    let message =
        format!("run.worktree.base_branch is `{name}`, which is not a branch of the repository");
    let hint = "name a branch that `git branch` lists, or omit the key";
    Err(placed(config, "run.worktree.base_branch", fault(ErrorCode::ConfigInvalid, &message, hint)))
}

pub(super) async fn check_branch(repo: &Path, target: &str) -> Result<(), WireError> {
    if target == "auto" || worktree::is_branch_name(repo, target).await {
        return Ok(());
    }
    Err(fault(
        ErrorCode::BadInput,
        &format!("`{target}` cannot be the name of a branch"),
        "use `auto` to create a branch for the run",
    ))
}

/// Returns the backend of a run's agents, as each of them requests it: `acp:NAME` keeps its agent.
fn backend(request: &v1::Run, config: &Config) -> Result<String, WireError> {
    let path = request.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_str());
    let otherwise = match config.run.agent.backend {
        BackendChoice::Auto => config.backend,
        own => own,
    };
    let command = request.command.clone().or_else(|| own_command(config));
    let asked = request.backend.as_deref();
    let (backend, _) = backend_of(asked, otherwise, (command.as_ref(), None), config, path)?;
    let name = match asked {
        Some(name) if acp_program::split(name).1.is_some() => name,
        _ => backend.name(),
    };
    if backend.by_calls() {
        let spawn = v1::Spawn { backend: Some(name.into()), command, ..v1::Spawn::default() };
        acp_program::agent(&spawn, config, path, false)?;
    }
    Ok(name.into())
}

fn own_command(config: &Config) -> Option<v1::Command> {
    config.run.agent.command.clone().map(|command| match command {
        config::Command::Text(text) => v1::Command::Shell(text),
        config::Command::Argv(words) => v1::Command::Argv(words),
    })
}

pub(super) fn run_settings(request: &v1::Run, config: &Config) -> Result<RunSettings, WireError> {
    let run = &config.run;
    let (maintain, judge) = (run.phases.maintain, &run.phases.judge);
    if maintain.max_concurrency > 1 {
        let message = format!(
            "run.phases.maintain.max_concurrency is {}: at most 1 is supported",
            maintain.max_concurrency
        );
        return Err(fault(
            ErrorCode::ConfigInvalid,
            &message,
            "set it to 1: triggers during a maintenance run are combined",
        ));
    }
    for name in &run.phases.implement.guidelines {
        if crate::spec_run::job::guideline(Path::new(&request.repo), name).is_none() {
            let message = format!(
                "run.phases.implement.guidelines names `{name}`, but these guidelines do not exist"
            );
            let hint = format!("create .muleteer/guidelines/{name}.md in the repository");
            return Err(placed(
                config,
                "run.phases.implement.guidelines",
                fault(ErrorCode::ConfigInvalid, &message, &hint),
            ));
        }
    }
    // Agents that share a branch without clones of their own must work one after the other.
    let places = match run.worktree.strategy {
        WorktreeStrategy::PerAgent => {
            request.concurrency.unwrap_or(run.agent.max_concurrency).max(1)
        }
        WorktreeStrategy::Shared => 1,
    };
    check_model(request.model.as_deref())?;
    let reviews = |gate: Gate| request.review.iter().any(|name| name == gate.as_str());
    // A run that begins with `--yes` asks nothing.
    let asks = request.resume || !request.yes;
    Ok(RunSettings {
        backend: backend(request, config)?,
        model: request.model.clone(),
        max_concurrency: places,
        max_retries: run.agent.max_retries_per_bead,
        timeout_s: run.agent.timeout_per_bead.as_secs().max(1),
        canary: run.phases.implement.canary,
        maintain_every: if maintain.trigger == MaintainTrigger::EveryNBeads {
            maintain.n
        } else {
            0
        },
        maintain_after_all: maintain.trigger == MaintainTrigger::AfterAll,
        maintain_parallel: maintain.parallel,
        judge: judge.enabled,
        spec_drift: judge.spec_drift,
        acceptance: judge.acceptance && (run.acceptance.generate || run.acceptance.path.is_some()),
        acceptance_path: run.acceptance.path.clone(),
        acceptance_links: config.follows_links("run.acceptance.path"),
        max_iterations: judge.max_iterations.max(1),
        judge_only: false,
        human_review: (run.phases.decompose.human_review || reviews(Gate::Plan)) && asks,
        review_merge: (run.phases.finish.human_review || reviews(Gate::Merge)) && asks,
        preview_acceptance: request.preview_acceptance && !request.yes,
        review_spec: request.review_spec || run.review_spec,
        review_approved: request.yes && (request.review_spec || run.review_spec),
        dry_run: request.dry_run,
        pull_request: judge.on_complete == OnComplete::Pr,
        push: judge.on_complete == OnComplete::Push,
        cleanup: run.worktree.cleanup,
        budget_usd: request.budget_usd,
        max_runtime_s: request.max_runtime_s,
        confined: false,
        unconfined: String::new(),
        exposed: String::new(),
        private_home: false,
        weakened: String::new(),
    })
}

/// Returns the settings that the run's agents start with, whatever the files say later.
pub(super) fn chosen(config: &Config) -> Chosen {
    let exceptions = config.sandbox.exceptions().unwrap_or_default();
    Chosen {
        command: own_command(config),
        judge_model: config.run.phases.judge.model.clone(),
        acceptance_model: config.run.acceptance.model.clone(),
        guidelines: config.run.phases.implement.guidelines.clone(),
        guidelines_by_default: config
            .origin("run.phases.implement.guidelines")
            .is_none_or(|origin| origin.layer == config::Layer::Default),
        completion_checks: config.run.phases.implement.completion_checks.clone(),
        write: exceptions.write,
        show: exceptions.show,
        nested: exceptions.nested,
        max_processes: exceptions.max_processes,
        max_memory_mib: exceptions.max_memory_mib,
        max_home_mib: exceptions.max_home_mib,
        beads: config.run.beads.clone(),
    }
}

/// Decides whether the kernel confines the agents, or the harness only checks their work
/// afterwards.
pub(super) async fn confine(
    daemon: &Daemon,
    request: &v1::Run,
    config: &Config,
    settings: RunSettings,
) -> RunSettings {
    let repo = Path::new(&request.repo);
    let unconfined = match config.sandbox.exceptions() {
        None => "the configuration says `sandbox: off`".into(),
        Some(_) => match confine::possible(daemon).await {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        },
    };
    let confined = unconfined.is_empty();
    // Committed criteria are in every clone, where they cannot be hidden.
    let committed = match &settings.acceptance_path {
        Some(path) if confined && worktree::has(repo, path).await => {
            format!("the criteria in {path} are committed, so every agent's clone contains them")
        }
        _ => unconfined,
    };
    let is_private =
        config.sandbox.exceptions().is_some_and(|sandbox| sandbox.home == SandboxHome::Private);
    // A repository that is HOME cannot be shown beside a private one.
    let private_home =
        confined && is_private && !homes(request, config).any(|home| confine::is_home(repo, &home));
    let (mut exposed, mut weakened) = (String::new(), String::new());
    if confined && !private_home {
        exposed = exposure(request, config);
    }
    if confined {
        weakened = weaknesses(&settings.backend, rustix::process::geteuid().is_root()).join("; ");
    }
    RunSettings { confined, unconfined: committed, exposed, private_home, weakened, ..settings }
}

/// Returns the reasons why a full sandbox still guarantees less than it could.
fn weaknesses(backend: &str, is_root: bool) -> Vec<&'static str> {
    let root = "the agents run as root, whom file permissions do not stop";
    let unsealed = "the judge's CLI may load settings, hooks or instructions of the repository \
                    that it judges";
    let sealed = muleteer_backends::sealed::is_sealed(backend);
    [is_root.then_some(root), (!sealed).then_some(unsealed)].into_iter().flatten().collect()
}

/// Returns why the run's agents may write files of its repository: a HOME of one of them may be
/// there.
fn exposure(request: &v1::Run, config: &Config) -> String {
    let repo = Path::new(&request.repo);
    match homes(request, config).any(|home| confine::holds(repo, &home)) {
        true => format!("HOME, which agents may write, is in the repository {}", repo.display()),
        false => String::new(),
    }
}

/// Returns the HOMEs that the run's agents may get.
fn homes(request: &v1::Run, config: &Config) -> impl Iterator<Item = String> {
    let asked = request.env.iter().chain(&request.extra_env).rev().find(|(name, _)| name == "HOME");
    let of_backends = BackendChoice::ALL
        .into_iter()
        .filter_map(|name| config.backends.get(name)?.env.get("HOME").cloned());
    asked.map(|(_, home)| home.clone()).into_iter().chain(of_backends)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn one_bead_is_no_beads() {
        assert!(
            unscoped(1).starts_with("a bead is open, ")
                && unscoped(1).ends_with("belongs to the run")
        );
        assert!(unscoped(2).starts_with("2 beads are open, "));
    }

    /// A HOME counts wherever it is configured, because the agents can write it.
    #[test]
    fn home_inside_the_repository_is_detected_in_every_source() {
        let elsewhere = Config::defaults().unwrap();
        let source = config::Source::new(
            config::Layer::User,
            "config.yaml",
            "backends: {codex: {env: {HOME: /repo/h}}}\n",
        );
        let of_a_backend = config::load(&[source], &[]).unwrap();
        let home = |path: Option<&str>| {
            path.map(|path| ("HOME".into(), path.into())).into_iter().collect()
        };
        for (env, extra, config, expected) in [
            (Some("/home/p"), None, &elsewhere, false),
            (Some("/repo"), None, &elsewhere, true),
            (Some("/home/p"), Some("/repo/h"), &elsewhere, true),
            (Some("/repo"), Some("/home/p"), &elsewhere, false),
            (None, None, &elsewhere, false),
            (Some("/home/p"), None, &of_a_backend, true),
        ] {
            let request = v1::Run {
                repo: "/repo".into(),
                env: home(env),
                extra_env: home(extra),
                ..v1::Run::default()
            };
            assert_eq!(!exposure(&request, config).is_empty(), expected, "{env:?} {extra:?}");
        }
    }

    #[test]
    fn a_run_asks_for_a_model_by_its_name() {
        let config = Config::defaults().unwrap();
        let asked = |model: &str| {
            let (backend, command) =
                (Some("subprocess".into()), Some(v1::Command::Shell("true".into())));
            let request =
                v1::Run { backend, command, model: Some(model.into()), ..v1::Run::default() };
            run_settings(&request, &config)
                .map(|settings| settings.model)
                .map_err(|error| error.code)
        };
        assert_eq!(asked("haiku").unwrap().as_deref(), Some("haiku"));
        assert_eq!(asked(" ").unwrap_err(), "E_BAD_INPUT");
    }

    /// An agent that is chosen by name stays that agent when the run's agents are dispatched.
    #[test]
    fn backend_of_a_run_is_used_for_its_agents() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("gemini");
        std::fs::write(&program, "").unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let config = Config::defaults().unwrap();
        let asked = |name: &str, command: Option<&str>| {
            let request = v1::Run {
                backend: Some(name.into()),
                command: command.map(|text| v1::Command::Shell(text.into())),
                env: vec![("PATH".into(), dir.path().display().to_string())],
                ..v1::Run::default()
            };
            backend(&request, &config).map_err(|error| error.code)
        };
        assert_eq!(asked("acp:gemini", None).unwrap(), "acp:gemini");
        assert_eq!(asked("acp", Some("mine")).unwrap(), "acp");
        assert_eq!(asked("claude_code", Some("gemini")).unwrap(), "claude-code");
        assert_eq!(asked("claude_code", Some("mine")).unwrap_err(), "E_BACKEND_UNAVAILABLE");
        for name in ["telepathy", "acp:telepathy", "codex:gemini", "codex"] {
            assert_eq!(asked(name, None).unwrap_err(), "E_BACKEND_UNAVAILABLE", "{name}");
        }
        assert_eq!(asked("subprocess", None).unwrap_err(), "E_CONFIG_INVALID");
    }
}
