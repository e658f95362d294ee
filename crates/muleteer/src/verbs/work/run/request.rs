//! The request for a run, from the arguments and the configuration.

use super::Args;
use crate::cli::context::{Context, absolute};
use crate::cli::failure::Failure;
use crate::cli::settings;
use crate::client::env_pass;
use crate::client::run_files::{Runs, new_id, utf8};
use crate::verbs::agents::spawn;
use muleteer_model::config::trust::is_below;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1;
use std::path::Path;

/// Returns whether symbolic links lead from a path of the repository to a file outside it.
fn leads_out(name: &str, repo: &Path) -> bool {
    let real = repo.join(name).canonicalize().ok().zip(repo.canonicalize().ok());
    is_below(name) && real.is_some_and(|(path, repo)| !path.starts_with(repo))
}

pub(super) fn request(args: &Args, context: &Context, runs: &Runs) -> Result<v1::Run, Failure> {
    let config = settings::config(context, Some(&runs.repo))?;
    settings::warn(context, config.ignored(), "");
    let resumed = match (&args.resume, &args.judge_only) {
        (Some(id), _) => Some(runs.resolve(id.as_deref())?),
        (None, Some(id)) => Some(runs.resolve(Some(id))?),
        (None, None) => None,
    };
    let spec = match (&args.spec, &config.run.spec) {
        _ if resumed.is_some() => None,
        (Some(path), _) => Some(absolute(path)),
        (None, Some(path)) => Some(runs.repo.join(path)),
        (None, None) => {
            return Err(Failure::new(ErrorCode::SpecNotFound, "no spec given").hint(
                "give one with `muleteer run --spec plan.md`, or set run.spec in \
                 .muleteer/config.yaml",
            ));
        }
    };
    if let (None, Some(name), Some(path)) = (&args.spec, &config.run.spec, &spec)
        && !config.follows_links("run.spec")
        && leads_out(name, &runs.repo)
    {
        // The spec's text becomes part of prompts, and a clone may contain a link to any file.
        return Err(Failure::new(
            ErrorCode::SpecNotFound,
            format!("run.spec `{name}` is a link to a file outside the repository"),
        )
        .hint("name the spec with --spec, or run `muleteer trust` if its own file names the spec")
        .file(path));
    }
    if let Some(path) = spec.as_ref().filter(|path| !path.is_file()) {
        let what = if path.exists() { "not a file" } else { "missing" };
        return Err(Failure::new(
            ErrorCode::SpecNotFound,
            format!("the spec {} is {what}", path.display()),
        )
        .file(path));
    }
    let backend = spawn::implied_backend(
        args.backend.as_deref(),
        args.command.is_some(),
        args.scenario.is_some(),
    );
    Ok(v1::Run {
        resume: resumed.is_some(),
        run_id: resumed.map_or_else(new_id, Ok)?,
        repo: utf8(&runs.repo)?,
        spec: spec.as_deref().map(utf8).transpose()?,
        target: args.target.clone(),
        bead_label: args.bead_label.clone(),
        concurrency: args.concurrency,
        backend,
        command: args.command.as_deref().map(spawn::command),
        scenario: spawn::scenario(args.scenario.as_deref())?,
        model: args.model.clone(),
        budget_usd: args.budget_usd,
        max_runtime_s: args.max_runtime,
        dry_run: args.dry_run,
        preview_acceptance: args.preview_acceptance,
        yes: args.yes,
        from_phase: args
            .judge_only
            .as_ref()
            .map(|_| "judge-only".to_string())
            .or_else(|| args.from_phase.clone()),
        env: spawn::passed_env(&config),
        extra_env: args.env.clone(),
        push_env: env_pass::for_push(spawn::vars()),
        config: context.config.as_deref().map(utf8).transpose()?,
    })
}
