//! The effects of a run that start no agent: freezing the spec, reading and accepting beads,
//! carrying out a verdict.

use crate::daemon::context::Daemon;
use crate::spec_run::beads::{with_store, with_store_all};
use crate::spec_run::host::{Hosted, Places};
use crate::spec_run::repairs;
use crate::spec_run::trouble::Trouble;
use muleteer_model::beads::graph::Graph;
use muleteer_model::beads::{Bead, OBSERVATION, Op, Status, named, run_label};
use muleteer_model::event::Event;
use muleteer_model::spec_run::Input;
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::Stage;
use muleteer_model::spec_run::event::{Purpose, Triage};
use muleteer_model::spec_run::judge::promotion;
use muleteer_model::spec_run::judge::{self, JudgeResult};
use muleteer_process::fault;
use muleteer_protocol::ErrorCode;
use muleteer_store::hash::sha256;
use muleteer_vcs::command::is_full;
use muleteer_vcs::error::RepoError;
use muleteer_vcs::spec_run::{hub, publish};
use muleteer_vcs::untrusted_path::read_file;
use muleteer_vcs::worktree::{self, exclude};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tokio::task::JoinSet;

/// The limit of files that agents may be able to replace.
const SPEC_LIMIT: u64 = 16 * 1024 * 1024;

pub(super) fn io(path: &Path) -> impl Fn(std::io::Error) -> Trouble {
    let path = path.display().to_string();
    move |error| Trouble {
        is_disk_full: is_full(&error),
        ..Trouble::new(ErrorCode::Io, format!("{path}: {error}"))
    }
}

pub(super) fn stored(error: &muleteer_store::StoreError) -> Trouble {
    let is_disk_full = match error {
        muleteer_store::StoreError::Io { source, .. } => is_full(source),
        _ => false,
    };
    let message = crate::dispatch::error::chain(error);
    Trouble { is_disk_full, ..Trouble::new(ErrorCode::StoreIo, message) }
}

/// Makes the integration branch, the hub, and the frozen copy of the spec with its hash.
pub async fn freeze(daemon: &Daemon, hosted: &Arc<Hosted>, run: &Run) -> Result<Input, Trouble> {
    fault::point("run.before_freeze");
    let path = hosted.places.spec(run.versions.current);
    let spec = std::fs::read(&path).map_err(io(&path))?;
    if run.versions.sha256.as_ref().is_some_and(|amended| *amended != sha256(&spec)) {
        let message = format!("{} differs from the amended spec", path.display());
        return Err(Trouble::new(ErrorCode::SpecHashMismatch, message));
    }
    let (base_branch, base_commit) = match &run.frozen {
        // An amendment keeps the branch with the work so far.
        Some(frozen) => (frozen.base_branch.clone(), frozen.base_commit.clone()),
        None => make_hub(daemon, hosted, run).await?,
    };
    withdraw(hosted, run).await?;
    muleteer_store::atomic::write_atomic(&hosted.places.frozen_spec(), &spec, 0o444)
        .map_err(|error| stored(&error))?;
    fault::point("run.after_freeze");
    let target_branch = run.target();
    Ok(Input::Frozen { sha256: sha256(&spec), base_branch, base_commit, target_branch })
}

/// Closes the beads that an amendment of the spec, or a person who wants another plan, has
/// withdrawn. May be repeated.
pub async fn withdraw(hosted: &Arc<Hosted>, run: &Run) -> Result<(), Trouble> {
    if run.versions.withdrawn.is_empty() {
        return Ok(());
    }
    let beads = crate::spec_run::beads::all(hosted).await?;
    let is_open = |id: &&String| beads.get(*id).is_some_and(|bead| !bead.status.is_over());
    let close = |id: &String| Op::Close {
        id: id.clone(),
        reason: match run.is_amending() {
            true => format!("withdrawn by amendment {} of the spec", run.versions.current),
            false => "withdrawn: a person asked for another plan".into(),
        },
        no_change: true,
    };
    let ops = run.versions.withdrawn.keys().filter(is_open).map(close).collect();
    with_store_all(hosted, ops).await?;
    fault::point("amend.withdrawn");
    Ok(())
}

/// Makes the integration branch and the hub, and returns the base branch with its commit. May be
/// repeated.
pub async fn make_hub(
    daemon: &Daemon,
    hosted: &Arc<Hosted>,
    run: &Run,
) -> Result<(String, String), Trouble> {
    let failed = |error: RepoError| Trouble::new(ErrorCode::Git, error.to_string());
    let repo = &hosted.repo;
    crate::spec_run::publish::copy_git_configuration(daemon, hosted).await;
    if let Some(dir) = worktree::git_dir(repo).await {
        exclude(&dir).map_err(io(&dir))?;
    }
    let (base_branch, base_commit) =
        base(hosted, &run.started.target, configured(daemon, hosted)).await?;
    let target = run.target();
    // The run's own repositories borrow objects from this one. A person may rewrite the branch, and
    // git may then delete its old commits.
    keep_base(hosted, Some(&base_commit)).await;
    hub::ensure(&hosted.repos, &base_commit, &target).await.map_err(failed)?;
    hub::guard(&hosted.repos, &target, None).await.map_err(failed)?;
    repairs::report(daemon, hosted);
    crate::spec_run::publish::remember_remote(hosted, &base_branch).await;
    // An earlier try may have made the branch: it stays where it was.
    let base_commit = hub::commit(&hosted.repos, &target).await.unwrap_or(base_commit);
    Ok((base_branch, base_commit))
}

/// Sets a ref for the run's start commit in the person's repository, or removes it. It is removed
/// once the run's branch is there. A failure does not fail the run: it only matters if the person
/// rewrites history.
pub async fn keep_base(hosted: &Hosted, commit: Option<&str>) {
    if let Err(error) = publish::keep_base(&hosted.repos, commit).await {
        tracing::warn!(%error, "failed to update refs/muleteer/base of the run");
    }
}

/// Returns `run.worktree.base_branch`, merged from all layers of the configuration.
fn configured(daemon: &Daemon, hosted: &Hosted) -> Option<String> {
    let request = hosted.request();
    let given = request.config.as_deref().map(Path::new);
    let top = crate::daemon::settings::repository(&hosted.repo);
    let sources = crate::daemon::settings::sources(&daemon.paths, Some(&top), given).ok()?;
    crate::daemon::settings::config(&sources, &request.env)
        .ok()?
        .run
        .worktree
        .base_branch
        .clone()
}

/// Returns the branch that the run begins from, and its commit. It is the target if the repository
/// has it, else the configured branch, else the checked-out one.
pub async fn base(
    hosted: &Hosted,
    target: &str,
    configured: Option<String>,
) -> Result<(String, String), Trouble> {
    if target != "auto"
        && let Some(found) = worktree::tip(&hosted.repo, target).await
    {
        return Ok((target.to_string(), found));
    }
    let checked_out = worktree::branch(&hosted.repo).await;
    let Some(name) = configured.or(checked_out) else {
        let none =
            || Trouble::new(ErrorCode::ConfigInvalid, "no commit is checked out".to_string());
        return worktree::head(&hosted.repo)
            .await
            .map(|head| ("HEAD".into(), head))
            .ok_or_else(none);
    };
    match worktree::tip(&hosted.repo, &name).await {
        Some(found) => Ok((name, found)),
        None => Err(Trouble::new(
            ErrorCode::ConfigInvalid,
            format!("the repository has no branch {name} to start from"),
        )),
    }
}

/// Returns the frozen spec if it is unchanged; empty if the current version is not frozen yet.
pub fn verified_spec(places: &Places, run: &Run) -> Result<String, Trouble> {
    let Some(frozen) = run.frozen.as_ref().filter(|_| !run.is_unfrozen()) else {
        return Ok(String::new());
    };
    let path = places.frozen_spec();
    let changed = |what: String| {
        let message =
            format!("{what}: the frozen copy is {}", places.spec(run.versions.current).display());
        Trouble::new(ErrorCode::SpecHashMismatch, message)
    };
    let bytes = read_file(&path, SPEC_LIMIT)
        .map_err(|error| changed(format!("{}: {error}", path.display())))?;
    if sha256(&bytes) != frozen.sha256 {
        return Err(changed(format!("{} differs from the frozen spec", path.display())));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn list(labels: Vec<String>, staged: Option<String>) -> Op {
    Op::List { labels, status: None, staged }
}

/// Returns the beads of the run, and looks up the beads that they wait for. A dependency on a
/// missing bead is rejected.
pub async fn gather(hosted: &Arc<Hosted>, run: &Run, made: bool) -> Result<Input, Trouble> {
    let beads: Vec<Bead> = if made {
        staged(hosted).await?
    } else if run.rereads_beads() {
        // Blocked beads stay blocked, because a person has set them aside at the approval.
        let found =
            with_store(hosted, list(vec![run_label(&hosted.run_id)], None), String::new()).await?;
        found.beads.into_iter().filter(|bead| bead.status != Status::Blocked).collect()
    } else {
        let label = run.started.bead_label.clone().unwrap_or_default();
        let found = with_store(hosted, list(vec![label.clone()], None), String::new()).await?;
        let own = run_label(&hosted.run_id);
        let free: Vec<Bead> = found.beads.into_iter().filter(|bead| bead.is_free(&own)).collect();
        let others = |bead: &&Bead| {
            bead.labels.iter().any(|label| *label != own && is_under_way(hosted, label))
        };
        if let Some(taken) = free.iter().find(others) {
            let message = format!(
                "another run is working on bead {}, which has the label `{label}`",
                named(&taken.id, Some(&taken.title))
            );
            return Err(Trouble::new(ErrorCode::BeadScopeAmbiguous, message));
        }
        free
    };
    let graph = Graph::of_beads(&beads);
    let mut closed_outside = Vec::new();
    for (id, on) in graph.outside() {
        match with_store(hosted, Op::Show { id: on.into() }, String::new()).await {
            Ok(answer) if answer.beads.iter().any(|bead| bead.id == on) => {
                if !answer.beads[0].status.is_blocking() {
                    closed_outside.push(on.to_string());
                }
            }
            _ => {
                let title = beads.iter().find(|bead| bead.id == id).map(|bead| bead.title.as_str());
                let bead = named(id, title);
                let message = format!("bead {bead} depends on {on}, which does not exist");
                return Err(Trouble::new(ErrorCode::GraphDangling, message));
            }
        }
    }
    drop(graph);
    Ok(Input::Gathered { beads, closed_outside })
}

/// Whether this is the label of a run that is under way, here or under another daemon.
fn is_under_way(hosted: &Hosted, label: &str) -> bool {
    let Some(run) = label.strip_prefix(&run_label("")) else { return false };
    crate::spec_run::host::key_of(run).is_some()
        && hosted.repo.join(".muleteer/runs").join(run).join("lock.json").exists()
}

async fn staged(hosted: &Arc<Hosted>) -> Result<Vec<Bead>, Trouble> {
    let prefix = format!("{}:", hosted.run_id);
    let beads = crate::spec_run::beads::all(hosted).await?;
    let mut found: Vec<Bead> = beads
        .into_values()
        .filter(|bead| bead.staged.as_ref().is_some_and(|mark| mark.starts_with(&prefix)))
        .collect();
    found.sort_by_cached_key(Bead::age);
    Ok(found)
}

/// Turns staged beads into beads of the run. Existing ones get its label and are opened.
pub async fn accept(hosted: &Arc<Hosted>, run: &Run) -> Result<Input, Trouble> {
    let mut marks: Vec<String> =
        staged(hosted).await?.into_iter().filter_map(|bead| bead.staged).collect();
    marks.dedup();
    fault::point("run.before_accept");
    let mut ops: Vec<Op> = marks.into_iter().map(|staged| Op::Accept { staged }).collect();
    if run.started.bead_label.is_some() {
        let own = || vec![run_label(&hosted.run_id)];
        ops.extend(run.beads.keys().map(|id| relabel(id, own(), vec![])));
    }
    with_store_all(hosted, ops).await?;
    fault::point("run.after_accept");
    Ok(Input::BeadsAccepted)
}

fn relabel(id: &str, add_labels: Vec<String>, remove_labels: Vec<String>) -> Op {
    Op::Update {
        id: id.into(),
        title: None,
        description: None,
        status: None,
        priority: None,
        issue_type: None,
        add_labels,
        remove_labels,
    }
}

pub async fn look_outside(hosted: &Arc<Hosted>, run: &Run) -> Result<Input, Trouble> {
    let mut closed = Vec::new();
    for on in run.beads.values().flat_map(|task| &task.outside) {
        if let Ok(answer) = with_store(hosted, Op::Show { id: on.clone() }, String::new()).await
            && answer.beads.iter().any(|bead| !bead.status.is_blocking())
        {
            closed.push(on.clone());
        }
    }
    Ok(Input::Outside { closed })
}

/// Makes the verdict's new beads and triages observations. Each bead has its own key, so a
/// repetition makes no second one.
pub async fn apply_verdict(
    daemon: &Daemon,
    hosted: &Arc<Hosted>,
    run: &Run,
    iteration: u32,
    verdict: u32,
    result: &JudgeResult,
) -> Result<Input, Trouble> {
    let mut triage = Triage::default();
    let mut beads: Vec<Bead> = vec![];
    let hidden = crate::spec_run::criteria::hidden(hosted, run, result)?;
    fault::point("run.before_verdict");
    for (at, remedy) in result.remedies_without(&hidden).iter().enumerate() {
        let kind = if ["bug", "task", "feature", "chore"].contains(&remedy.kind.as_str()) {
            &remedy.kind
        } else {
            "task"
        };
        let make = Op::Create {
            title: remedy.title.clone(),
            description: remedy.description.clone(),
            issue_type: kind.to_string(),
            priority: 1,
            labels: vec![run_label(&hosted.run_id)],
            depends_on: vec![],
            key: Some(judge::remedy_key(&hosted.run_id, verdict, at)),
            staged: None,
        };
        let id = judge::remedy_id(run.hash(), verdict, at);
        beads.extend(with_store(hosted, make, id).await?.beads);
    }
    for one in run.triaged(result) {
        let Ok(found) =
            with_store(hosted, Op::Show { id: one.bead_id.clone() }, String::new()).await
        else {
            continue;
        };
        let Some(bead) =
            found.beads.into_iter().find(|bead| bead.has_label(&run_label(&hosted.run_id)))
        else {
            continue;
        };
        if one.action == "promote" {
            let answer = with_store(
                hosted,
                relabel(&bead.id, vec![], vec![OBSERVATION.into()]),
                String::new(),
            )
            .await?;
            beads.extend(answer.beads);
            triage.promoted.push(bead.id);
        } else {
            let reason = hidden.withhold(&one.closing()).into_owned();
            with_store(
                hosted,
                Op::Close { id: bead.id.clone(), reason, no_change: true },
                String::new(),
            )
            .await?;
            triage.dismissed.push(bead.id);
        }
    }
    let mut strangers = BTreeMap::new();
    for on in promotion::strangers(run, &beads) {
        if let Ok(answer) = with_store(hosted, Op::Show { id: on.clone() }, String::new()).await {
            strangers.extend(answer.beads.first().map(|bead| (on, !bead.status.is_blocking())));
        }
    }
    let (planned, left_out) = promotion::plan(run, &beads, &strangers);
    triage.beads = planned;
    for message in left_out {
        daemon
            .note(Event::Fault { what: format!("the verdict of run {}", hosted.run_id), message });
    }
    fault::point("run.after_verdict");
    Ok(Input::Applied { iteration, triage })
}

/// Cleans up after a recorded event. Nothing depends on it.
pub fn tidy(
    daemon: &Arc<Daemon>,
    hosted: &Arc<Hosted>,
    run: &Run,
    event: &Event,
    tasks: &mut JoinSet<()>,
) {
    let target = run.target();
    let worktree = |name: String| hosted.places.worktrees.join(name);
    let gone = match event {
        Event::BeadCompleted { bead_id, .. } | Event::BeadRetried { bead_id, reuse: false, .. } => {
            run.beads
                .get(bead_id)
                .map(|task| worktree(format!("bead-{bead_id}-{}", task.worktrees)))
        }
        Event::MaintenanceFinished { maintenance, .. } => Some(worktree(maintenance.clone())),
        Event::AgentFinished(end)
            if !matches!(end.purpose, Purpose::Implement | Purpose::Maintain) =>
        {
            Some(worktree(format!("{}-{}", end.purpose.as_str(), run.spawns)))
        }
        _ => None,
    };
    debug_assert!(run.count(Stage::Taken) <= run.beads.len());
    if let Some(dir) = gone.filter(|_| run.settings.cleanup) {
        let (daemon, hosted) = (daemon.clone(), hosted.clone());
        tasks.spawn(async move {
            match hub::discard(&hosted.repos, &dir, &target).await {
                Ok(Some(kept)) => {
                    tracing::info!(
                        dir = %dir.display(),
                        %kept,
                        "saved uncommitted changes in the hub"
                    )
                }
                Ok(None) => {}
                Err(error) => {
                    let (what, message) =
                        (format!("worktree {}", dir.display()), error.to_string());
                    daemon.note(Event::Fault { what, message });
                }
            }
        });
    }
}
