//! The request for a run, from the arguments and the configuration.

use super::Wanted;
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

/// The verbs of `muleteer run`.
const VERBS: [&str; 6] = ["status", "resume", "amend", "list", "report", "stop"];

/// Returns whether symbolic links lead from a path of the repository to a file outside it.
fn leads_out(name: &str, repo: &Path) -> bool {
    let real = repo.join(name).canonicalize().ok().zip(repo.canonicalize().ok());
    is_below(name) && real.is_some_and(|(path, repo)| !path.starts_with(repo))
}

pub(super) fn request(
    wanted: &Wanted<'_>,
    context: &Context,
    runs: &Runs,
) -> Result<v1::Run, Failure> {
    let config = settings::config(context, Some(&runs.repo))?;
    settings::warn(context, config.ignored(), "");
    let options = wanted.options;
    let resumed = match (wanted.resume, wanted.judge_only) {
        (Some(id), _) => Some(runs.resolve(id)?),
        (None, Some(id)) => Some(runs.resolve(Some(id))?),
        (None, None) => None,
    };
    let spec = match (wanted.spec, &config.run.spec) {
        _ if wanted.amend.is_some() => wanted.amend.map(absolute),
        _ if resumed.is_some() => None,
        (Some(path), _) => Some(absolute(path)),
        (None, Some(path)) => Some(runs.repo.join(path)),
        (None, None) => {
            return Err(Failure::new(ErrorCode::SpecNotFound, "no spec given").hint(
                "give one with `muleteer run plan.md`, or set run.spec in \
                 .muleteer/config.yaml",
            ));
        }
    };
    if let (None, Some(name), Some(path)) = (wanted.spec.or(wanted.amend), &config.run.spec, &spec)
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
        let hint = match wanted.spec.and_then(Path::to_str).filter(|word| VERBS.contains(word)) {
            // clap takes a word behind an option for the spec.
            Some(verb) => format!("name the verb first: `muleteer run {verb} …`"),
            None => "name a markdown file: `muleteer run plan.md`".into(),
        };
        return Err(Failure::new(
            ErrorCode::SpecNotFound,
            format!("the spec {} is {what}", path.display()),
        )
        .hint(hint)
        .file(path));
    }
    let backend = spawn::implied_backend(
        options.backend.as_deref(),
        options.command.is_some(),
        options.scenario.is_some(),
    );
    Ok(v1::Run {
        resume: resumed.is_some(),
        run_id: resumed.map_or_else(new_id, Ok)?,
        repo: utf8(&runs.repo)?,
        spec: spec.as_deref().map(utf8).transpose()?,
        target: wanted.target.map(str::to_string),
        bead_label: wanted.bead_label.map(str::to_string),
        concurrency: options.concurrency,
        backend,
        command: options.command.as_deref().map(spawn::command),
        scenario: spawn::scenario(options.scenario.as_deref())?,
        model: options.model.clone(),
        budget_usd: options.budget_usd,
        max_runtime_s: options.max_runtime,
        dry_run: options.dry_run,
        preview_acceptance: options.preview_acceptance,
        review_spec: options.review_spec,
        review: options.review.clone(),
        yes: options.yes,
        from_phase: wanted
            .judge_only
            .map(|_| "judge-only")
            .or(wanted.from_phase)
            .map(str::to_string),
        env: spawn::passed_env(&config),
        extra_env: options.env.clone(),
        push_env: env_pass::for_push(spawn::vars()),
        config: context.config.as_deref().map(utf8).transpose()?,
        thread: wanted.thread.map(str::to_string),
        spec_shown: None,
    })
}
