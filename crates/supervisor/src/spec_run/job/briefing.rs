//! Writes the briefing of a run's agent: its prompt, its rules and its variables.

use crate::daemon::context::{Daemon, random_key};
use crate::daemon::settings;
use crate::spec_run::beads;
use crate::spec_run::host::Hosted;
use crate::spec_run::job::typescript::is_typescript;
use crate::spec_run::job::{make_dir, workdir};
use crate::spec_run::trouble::Trouble;
use muleteer_backends::Briefed;
use muleteer_model::agent::event::cut;
use muleteer_model::beads::{Op, run_label};
use muleteer_model::spec_run::event::Purpose;
use muleteer_model::spec_run::prompts::{self, Amended, Commands, Scene};
use muleteer_model::spec_run::spec::amendment;
use muleteer_model::spec_run::{Job, JudgeStage, Run, Stage};
use muleteer_model::text::data_block::DataBlocks;
use muleteer_model::text::foreign_json;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1;
use std::path::{Path, PathBuf};

/// The limit of guidelines, because every prompt has them. Longer ones are cut.
const GUIDELINES_LIMIT: usize = 64 * 1024;

pub(super) fn variables(
    hosted: &Hosted,
    run: &Run,
    job: &Job,
    request: &v1::Run,
) -> Vec<(String, String)> {
    let purpose = job.start.purpose;
    let mut variables = request.extra_env.clone();
    let mut set = |name: &str, value: String| variables.push((name.into(), value));
    set("MULETEER_PURPOSE", purpose.as_str().into());
    set("MULETEER_RUN_ID", hosted.run_id.clone());
    set("MULETEER_ITERATION", run.iteration.to_string());
    set("MULETEER_ATTEMPT", job.start.attempt.to_string());
    set("MULETEER_TARGET_BRANCH", run.target());
    set("MULETEER_REMOTE", hosted.repos.paths.hub().display().to_string());
    if purpose != Purpose::Review {
        set("MULETEER_SPEC_FILE", hosted.places.frozen_spec().display().to_string());
    }
    if let (Purpose::Implement | Purpose::Maintain, Some(bead)) = (purpose, &job.start.bead_id) {
        set("MULETEER_BEAD_ID", bead.clone());
    }
    if purpose == Purpose::Acceptance {
        set("MULETEER_ACCEPTANCE_DIR", hosted.places.acceptance.display().to_string());
    }
    if purpose == Purpose::Judge {
        if let Some(sealed) = run.sealed.as_ref().filter(|sealed| !sealed.path.is_empty()) {
            set("MULETEER_ACCEPTANCE_DIR", sealed.path.clone());
        }
        set(
            "MULETEER_OBSERVATIONS",
            run.observations.pending.iter().cloned().collect::<Vec<_>>().join(","),
        );
    }
    variables
}

pub(super) async fn prompt(
    daemon: &Daemon,
    hosted: &Hosted,
    run: &Run,
    job: &Job,
    spec: &str,
) -> Result<String, Trouble> {
    let purpose = job.start.purpose;
    let muleteer = daemon.paths.state_dir.join("bin/muleteer").display().to_string();
    let task = job.start.bead_id.as_ref().and_then(|id| run.beads.get(id));
    let complaint = run.complaint(purpose).to_string();
    let target = run.target();
    let scene = Scene {
        run_id: &hosted.run_id,
        title: &run.started.title,
        spec,
        target: &target,
        muleteer: &muleteer,
        note: task.map_or(complaint.as_str(), |task| task.note.as_str()),
        data: &DataBlocks::new(&random_key()),
    };
    match (purpose, &job.start.bead_id) {
        (Purpose::Review, _) => Ok(prompts::review(&scene)),
        (Purpose::Acceptance, _) => {
            let folder = &hosted.places.acceptance;
            // An earlier attempt may have left the folder; its agent is gone.
            let _ = muleteer_vcs::spec_run::clones::remove(folder).await;
            make_dir(folder, 0o700)?;
            Ok(prompts::acceptance(&scene, &folder.display().to_string()))
        }
        (Purpose::Decompose, _) => {
            let keep = Some(beads::mark(&hosted.run_id, &job.start.dispatch));
            let discard = Op::Discard { run: hosted.run_id.clone(), keep };
            beads::with_store(hosted, discard, String::new()).await?;
            replan(hosted, run, &scene)
        }
        (Purpose::Implement, Some(id)) => implement(hosted, run, job, &scene, id).await,
        (Purpose::Maintain, Some(id)) => maintain(hosted, run, job, &scene, id).await,
        (Purpose::Judge, _) => judge(hosted, run, &scene).await,
        (Purpose::Structure, _) => structure(hosted, run, &scene),
        _ => Err(Trouble::new(ErrorCode::Internal, "an agent with an unknown purpose")),
    }
}

/// Returns the prompt of the agent that plans the beads: all, or those of an amendment.
fn replan(hosted: &Hosted, run: &Run, scene: &Scene<'_>) -> Result<String, Trouble> {
    let Some(planned) = run.versions.planned.filter(|_| run.is_amending()) else {
        return Ok(prompts::decompose(scene, None));
    };
    let path = hosted.places.spec(planned);
    let before = std::fs::read_to_string(&path).map_err(crate::spec_run::steps::io(&path))?;
    let tasks = || {
        run.order
            .iter()
            .filter_map(|id| run.beads.get(id))
            .map(|task| (task, (task.planned.id.clone(), task.planned.title.clone())))
    };
    let open: Vec<_> =
        tasks().filter(|(task, _)| task.stage != Stage::Done).map(|(_, named)| named).collect();
    let done: Vec<_> = tasks()
        .filter(|(task, _)| run.versions.outdated.contains(&task.planned.id))
        .map(|(_, named)| named)
        .collect();
    let differences = amendment::differences(&before, scene.spec);
    let withdrawn: Vec<_> = run.versions.withdrawn.clone().into_iter().collect();
    let amended =
        Amended { differences: &differences, open: &open, done: &done, withdrawn: &withdrawn };
    Ok(prompts::decompose(scene, Some(&amended)))
}

/// Takes the bead, and returns the prompt of the agent that works on it.
async fn implement(
    hosted: &Hosted,
    run: &Run,
    job: &Job,
    scene: &Scene<'_>,
    id: &str,
) -> Result<String, Trouble> {
    let take = Op::Update {
        id: id.into(),
        title: None,
        description: None,
        status: Some("in_progress".into()),
        priority: None,
        issue_type: None,
        add_labels: vec![],
        remove_labels: vec![],
    };
    let answer = beads::with_store(hosted, take, String::new()).await?;
    let bead = answer
        .beads
        .into_iter()
        .next()
        .ok_or_else(|| Trouble::new(ErrorCode::NotFound, format!("no bead {id}")))?;
    let mut blockers = vec![];
    for on in bead.blockers() {
        if let Ok(answer) =
            beads::with_store(hosted, Op::Show { id: on.into() }, String::new()).await
        {
            blockers.extend(
                answer.beads.iter().map(|bead| (bead.id.clone(), bead.status.as_str().to_string())),
            );
        }
    }
    let chosen = hosted.chosen();
    let guidelines = match apart(run) {
        true => String::new(),
        false => guidelines(&hosted.repo, &always(hosted, job), &bead.labels),
    };
    let commands = commands(&workdir(hosted, job));
    let work = prompts::Work {
        bead: &bead,
        blockers: &blockers,
        guidelines: &guidelines,
        commands: &commands,
        checks: &chosen.completion_checks,
        reuse: job.start.reuse,
    };
    Ok(prompts::implement(scene, &work))
}

/// Makes the bead of the maintenance, and returns the prompt of its agent.
async fn maintain(
    hosted: &Hosted,
    run: &Run,
    job: &Job,
    scene: &Scene<'_>,
    id: &str,
) -> Result<String, Trouble> {
    let make = Op::Create {
        title: format!("Maintenance of {}", hosted.run_id),
        description: "Repair the damage of merges.".into(),
        issue_type: "chore".into(),
        priority: 1,
        labels: vec![run_label(&hosted.run_id), "maintenance".into()],
        depends_on: vec![],
        // The run's own id of the bead is the idempotency key, whatever id the store
        // assigns.
        key: Some(id.into()),
        staged: None,
    };
    beads::with_store(hosted, make, id.into()).await?;
    let own = run.maintenance.runs.iter().find(|one| one.bead_id == id);
    let failures = own.map(|one| one.failures.clone()).unwrap_or_default();
    Ok(prompts::maintain(scene, id, &commands(&workdir(hosted, job)), &failures))
}

/// Returns the prompt of the judge, if the criteria are as they were sealed.
async fn judge(hosted: &Hosted, run: &Run, scene: &Scene<'_>) -> Result<String, Trouble> {
    crate::spec_run::criteria::check(run).await?;
    let mut observations = vec![];
    for id in &run.observations.pending {
        if let Ok(answer) =
            beads::with_store(hosted, Op::Show { id: id.clone() }, String::new()).await
        {
            observations.extend(answer.beads);
        }
    }
    let folder =
        run.sealed.as_ref().map(|sealed| sealed.path.as_str()).filter(|path| !path.is_empty());
    Ok(prompts::judge(scene, run.settings.spec_drift, folder, &observations))
}

/// Returns the prompt of the agent that structures the judge's reasoning.
fn structure(hosted: &Hosted, run: &Run, scene: &Scene<'_>) -> Result<String, Trouble> {
    let Some(&JudgeStage::Structure { round, .. }) = run.judge() else {
        return Err(Trouble::new(ErrorCode::Internal, "the reasoning of the judge is missing"));
    };
    let path = reasoning(hosted, run, round);
    let text = std::fs::read_to_string(&path)
        .map_err(|error| Trouble::new(ErrorCode::Io, format!("{}: {error}", path.display())))?;
    Ok(prompts::structure(scene, &run.observations.pending, &text))
}

/// Returns the file for the judge's reasoning. One iteration can be judged more than once
/// (`--from-phase judge`), and no file is overwritten.
pub(super) fn reasoning(hosted: &Hosted, run: &Run, round: u32) -> PathBuf {
    let (iteration, judging) = (run.iteration, run.judgings);
    hosted
        .places
        .verdicts()
        .join(format!("iteration-{iteration}-judging-{judging}-round-{round}.md"))
}

/// Whether the guidelines go into the system prompt, if the backend supports that. They are rules,
/// not a task, and must outlive a compaction. Otherwise they are part of the prompt.
fn apart(run: &Run) -> bool {
    muleteer_backends::by_name(crate::dispatch::acp_program::split(&run.settings.backend).0)
        .is_ok_and(|backend| backend.capabilities().briefed == Briefed::InSystemPrompt)
}

/// Returns the rules for an agent that works on a bead.
pub(super) async fn rules(hosted: &Hosted, run: &Run, job: &Job) -> Result<String, Trouble> {
    let Some(id) = job
        .start
        .bead_id
        .as_ref()
        .filter(|_| job.start.purpose == Purpose::Implement && apart(run))
    else {
        return Ok(String::new());
    };
    let answer = beads::with_store(hosted, Op::Show { id: id.clone() }, String::new()).await?;
    let labels = answer.beads.into_iter().next().map(|bead| bead.labels).unwrap_or_default();
    Ok(guidelines(&hosted.repo, &always(hosted, job), &labels))
}

/// The guidelines for TypeScript, which are a default.
const TYPESCRIPT: &str = "typescript-rules";

/// Returns the names of the guidelines that every agent gets. Those for TypeScript are a default
/// for TypeScript projects only. If the configuration names them, or the repository has its own,
/// they are used in any project.
fn always(hosted: &Hosted, job: &Job) -> Vec<String> {
    let chosen = hosted.chosen();
    let dir = workdir(hosted, job);
    let dir = if dir.is_dir() { dir } else { hosted.repo.clone() };
    fitting(chosen.guidelines, chosen.guidelines_by_default, &hosted.repo, &dir)
}

fn fitting(mut names: Vec<String>, by_default: bool, repo: &Path, dir: &Path) -> Vec<String> {
    let own = repo.join(".muleteer/guidelines").join(format!("{TYPESCRIPT}.md"));
    if by_default && !own.exists() && !is_typescript(dir) {
        names.retain(|name| name != TYPESCRIPT);
    }
    names
}

/// Guidelines that are part of Muleteer. A repository's own of the same name take precedence.
const SHIPPED: [(&str, &str); 2] = [
    (TYPESCRIPT, include_str!("../../../../../config/guidelines/typescript-rules.md")),
    (
        "general-tdd-guidelines",
        include_str!("../../../../../config/guidelines/general-tdd-guidelines.md"),
    ),
];

/// Returns guidelines by their name.
pub fn guideline(repo: &Path, name: &str) -> Option<String> {
    let fine = !name.is_empty()
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
    let path = repo.join(".muleteer/guidelines").join(format!("{name}.md"));
    let shipped =
        || SHIPPED.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_string());
    settings::read_if_there(&path).ok().flatten().filter(|_| fine).or_else(shipped)
}

/// Joins the repository's guidelines that are always used, and those that are named like a label of
/// the bead.
fn guidelines(repo: &Path, always: &[String], labels: &[String]) -> String {
    let mut text = String::new();
    for name in always.iter().chain(labels) {
        if let Some(found) = guideline(repo, name) {
            text.push_str(found.trim());
            text.push_str("\n\n");
        }
    }
    match text.len() > GUIDELINES_LIMIT {
        true => format!(
            "{}\n\n(cut: they are longer than {GUIDELINES_LIMIT} bytes)",
            cut(&text, GUIDELINES_LIMIT)
        ),
        false => text,
    }
}

/// Finds the commands that test, build and lint the repository, in its files.
fn commands(dir: &Path) -> Commands {
    let mut commands = Commands::default();
    let has = |name: &str| dir.join(name).is_file();
    if has("Cargo.toml") {
        commands.test.push("cargo test".into());
        commands.build.push("cargo build".into());
        commands.lint.push("cargo clippy".into());
    }
    if let Some(scripts) = settings::read_if_there(&dir.join("package.json"))
        .ok()
        .flatten()
        .and_then(|text| foreign_json::whole(text.as_bytes()).ok())
        .and_then(|package| package.get("scripts").cloned())
    {
        let runner = ["pnpm", "yarn", "npm"]
            .into_iter()
            .zip(["pnpm-lock.yaml", "yarn.lock", "package.json"])
            .find(|(_, lock)| has(lock))
            .map_or("npm", |(runner, _)| runner);
        for (name, list) in [
            ("test", &mut commands.test),
            ("build", &mut commands.build),
            ("lint", &mut commands.lint),
        ] {
            if scripts.get(name).is_some() {
                list.push(format!("{runner} run {name}"));
            }
        }
        if scripts.get("typecheck").is_some() {
            commands.build.push(format!("{runner} run typecheck"));
        }
    }
    if has("go.mod") {
        commands.test.push("go test ./...".into());
        commands.build.push("go build ./...".into());
        commands.lint.push("go vet ./...".into());
    }
    if has("pyproject.toml") || has("pytest.ini") || has("setup.cfg") {
        commands.test.push("python -m pytest".into());
    }
    // Agents can replace this file by a link to an endless one.
    if let Ok(Some(text)) = settings::read_if_there(&dir.join("Makefile")) {
        let target = |name: &str| text.lines().any(|line| line.starts_with(&format!("{name}:")));
        for (name, list) in [
            ("test", &mut commands.test),
            ("build", &mut commands.build),
            ("lint", &mut commands.lint),
        ] {
            if target(name) {
                list.push(format!("make {name}"));
            }
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn repository_guidelines_precede_the_built_in_ones_and_cuts_are_marked() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(".muleteer/guidelines");
        std::fs::create_dir_all(&folder).unwrap();
        assert!(
            guideline(dir.path(), "typescript-rules").is_some_and(|text| text.contains("unknown"))
        );
        assert_eq!(
            (guideline(dir.path(), "../../etc/passwd"), guideline(dir.path(), "nope")),
            (None, None)
        );
        std::fs::write(folder.join("typescript-rules.md"), "ours\n").unwrap();
        std::fs::write(folder.join("long.md"), "x".repeat(GUIDELINES_LIMIT + 1)).unwrap();
        assert_eq!(guidelines(dir.path(), &["typescript-rules".into()], &[]).trim(), "ours");
        assert!(guidelines(dir.path(), &[], &["long".into()]).contains("(cut:"));
    }

    #[test]
    fn typescript_guidelines_are_a_default_for_typescript_projects_only() {
        let dir = tempfile::tempdir().unwrap();
        let names = || vec![TYPESCRIPT.to_string(), "general-tdd-guidelines".into()];
        let count = |by_default| fitting(names(), by_default, dir.path(), dir.path()).len();
        assert_eq!((count(true), count(false)), (1, 2));
        std::fs::write(dir.path().join("tsconfig.json"), "{}").unwrap();
        assert_eq!(count(true), 2);
        std::fs::remove_file(dir.path().join("tsconfig.json")).unwrap();
        let folder = dir.path().join(".muleteer/guidelines");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("typescript-rules.md"), "ours").unwrap();
        assert_eq!(count(true), 2);
    }

    /// The daemon reads files that an agent commits: a link to an endless file must not exhaust its
    /// memory.
    #[test]
    fn build_commands_are_found_and_endless_files_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("Makefile"), "test:\n\ttrue\n").unwrap();
        assert_eq!(commands(dir.path()).test.len(), 1);
        std::fs::remove_file(dir.path().join("Makefile")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("Makefile")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("package.json")).unwrap();
        assert!(commands(dir.path()).test.is_empty());
    }
}
