//! Checks of agent CLIs, git, the configuration and telemetry.

use crate::agent::capability::{self, Features};
use crate::doctor::{
    BackendFacts, Cause, Check, DaemonFacts, Exports, Facts, IdentityFacts, NotifyFacts, Program,
    Status, TelemetryFacts, TrustFacts,
};
use std::path::Path;

/// The first version with `rev-parse --path-format`.
const GIT_WANTED: (u32, u32) = (2, 31);
/// The first version that can sync to disk (`core.fsync`).
const GIT_SYNCS: (u32, u32) = (2, 36);

/// The state of all agent CLIs together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clis {
    /// At least one is usable.
    Any,
    /// None is usable, and at least one is missing; the missing ones fail.
    Missing,
    /// None is missing and none works; all fail.
    Broken,
}

/// Returns one check for each backend. A missing CLI is no problem if another one is usable;
/// without any, no agent can be dispatched.
pub(super) fn backends(all: &[BackendFacts]) -> Vec<Check> {
    let is_usable = |backend: &BackendFacts| {
        matches!(backend.found, Program::Answered { .. } | Program::NotAsked { .. })
    };
    let clis = match all {
        all if all.iter().any(is_usable) => Clis::Any,
        all if all.iter().any(|backend| backend.found == Program::Missing) => Clis::Missing,
        _ => Clis::Broken,
    };
    let programs: Vec<_> = all.iter().map(|backend| backend.program.as_str()).collect();
    let checks = all.iter().map(|backend| Check {
        capabilities: capabilities(backend),
        ..one(backend, clis, &programs.join(", "))
    });
    checks.collect()
}

/// Returns the capabilities of the agent that was found.
fn capabilities(backend: &BackendFacts) -> Option<Features> {
    match backend.found {
        Program::Answered { .. } | Program::NotAsked { .. } => {
            let agent = capability::of_program(&backend.name, &backend.program)?;
            Some(agent.features())
        }
        Program::Missing
        | Program::Silent { .. }
        | Program::Failed { .. }
        | Program::Unknown(_) => None,
    }
}

/// `programs` are the names of all agent CLIs that were looked up.
fn one(backend: &BackendFacts, clis: Clis, programs: &str) -> Check {
    let check =
        |status, message: String| Check::new(format!("backend.{}", backend.name), status, message);
    // A CLI that the configuration names must exist; the others are optional.
    let wanted = !backend.named_by.is_empty();
    let broken = if wanted || clis == Clis::Broken { Status::Fail } else { Status::Warn };
    let in_a_terminal = |path: &Path| format!("run `{} --version` in a terminal", path.display());
    match &backend.found {
        Program::Answered { path, said, ms } if version(said).is_some() => {
            check(Status::Ok, format!("{said} ({}, answered in {ms} ms)", path.display()))
        }
        // It may be a working wrapper, or any other program.
        Program::Answered { path, said, .. } => check(
            Status::Warn,
            format!("{} printed `{said}`, which is not a version", path.display()),
        )
        .hint(format!("{}, and check that it is the right program", in_a_terminal(path))),
        Program::NotAsked { path, why } => check(
            Status::Ok,
            format!("{} exists; its version was not checked: {why}", path.display()),
        ),
        Program::Missing if wanted => {
            let message = format!(
                "{}, and {} names it",
                absent(&backend.program),
                backend.named_by.join(", ")
            );
            check(Status::Fail, message).hint(&backend.get)
        }
        Program::Missing if clis == Clis::Any => check(Status::Skip, absent(&backend.program)),
        Program::Missing => {
            let message = format!("no agent CLI found ({programs}): nothing can run");
            check(Status::Fail, message).hint(&backend.get)
        }
        Program::Unknown(error) => check(broken, error.clone()).hint(&backend.get),
        Program::Silent { path, after_s } => check(
            broken,
            format!("{} did not print its version within {after_s} s", path.display()),
        )
        .hint(format!("{}; reinstall it if it hangs there too", in_a_terminal(path))),
        Program::Failed { path, error } => {
            check(broken, format!("{} cannot print its version: {error}", path.display()))
                .hint(format!("{}; {}", in_a_terminal(path), backend.get))
        }
    }
}

/// A name without a slash is looked up on PATH.
fn absent(program: &str) -> String {
    if program.contains('/') {
        format!("`{program}` is missing or not executable")
    } else {
        format!("`{program}` is not on PATH")
    }
}

pub(super) fn git(git: &Program) -> Check {
    let get = "install git 2.31 or newer";
    match git {
        Program::Answered { path, said, .. } => match version(said) {
            Some(found) if found >= GIT_WANTED => {
                let check = Check::new("git", Status::Ok, format!("{said} ({})", path.display()));
                let risk = "it does not flush files to disk, so a power cut may lose recent work; \
                            git 2.36 does";
                if found >= GIT_SYNCS { check } else { check.best_effort(risk) }
            }
            Some(_) => {
                Check::new("git", Status::Fail, format!("{said} is too old for worktrees and runs"))
                    .hint(get)
            }
            None => Check::new(
                "git",
                Status::Warn,
                format!("{} printed `{said}`, which is not a version", path.display()),
            ),
        },
        Program::Missing => {
            Check::new("git", Status::Fail, "`git` is not on PATH: no worktrees, no runs").hint(get)
        }
        Program::Silent { path, after_s } => Check::new(
            "git",
            Status::Fail,
            format!("{} did not answer within {after_s} s", path.display()),
        )
        .hint("run `git --version` in a terminal"),
        Program::Failed { path, error } => {
            Check::new("git", Status::Fail, format!("{}: {error}", path.display())).hint(get)
        }
        Program::NotAsked { path, why } => {
            Check::new("git", Status::Warn, format!("{}: {why}", path.display()))
        }
        Program::Unknown(error) => Check::new("git", Status::Fail, error).hint(get),
    }
}

/// Agents commit with the user's identity.
pub(super) fn identity(identity: &IdentityFacts) -> Check {
    let check = |status, message: String| Check::new("git_identity", status, message);
    match identity {
        IdentityFacts::Is(who) => check(Status::Ok, who.clone()),
        IdentityFacts::None(why) => check(
            Status::Warn,
            format!(
                "git has no name or address for \
            you: {why}"
            ),
        )
        .hint(
            "run `git config --global user.name \"Your Name\"` and `git config --global user.email \
             you@example.com`",
        ),
        IdentityFacts::Unknown => check(Status::Skip, "git did not answer".into()),
    }
}

/// Returns `None` if the repository's configuration has no key that needs trust.
pub(super) fn trust(trust: &TrustFacts) -> Option<Check> {
    let named = |keys: &[String]| keys.join(", ");
    if !trust.ignored.is_empty() {
        let message = format!(
            "you have not trusted the configuration of this repository: ignoring {}",
            named(&trust.ignored)
        );
        let hint = "run `muleteer trust --dry-run` to show its settings, and `muleteer trust` to \
                    allow them";
        return Some(Check::new("trust", Status::Warn, message).hint(hint));
    }
    let message = || {
        format!(
            "the configuration of this repository is trusted; this check does not run {}",
            named(&trust.not_run)
        )
    };
    (!trust.not_run.is_empty()).then(|| Check::new("trust", Status::Ok, message()))
}

/// Returns the first two numbers of `git version 2.39.5 (…)`, `codex-cli 0.46.0` or `v1.2.3`.
pub(super) fn version(said: &str) -> Option<(u32, u32)> {
    said.split_whitespace().find_map(|word| {
        let mut numbers = word.strip_prefix('v').unwrap_or(word).splitn(3, '.');
        let (major, minor) = (numbers.next()?, numbers.next()?);
        let end = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
        Some((major.parse().ok()?, minor[..end].parse().ok()?))
    })
}

/// Returns the line of an answer with the version or, without one, the first non-empty line.
pub fn answer(said: &str) -> Option<&str> {
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    lines().find(|line| version(line).is_some()).or_else(|| lines().next())
}

pub(super) fn config(config: &Result<Vec<String>, Cause>) -> Check {
    match config {
        Ok(files) if files.is_empty() => {
            Check::new("config", Status::Ok, "built-in defaults only; no configuration file")
        }
        Ok(files) => Check::new("config", Status::Ok, files.join(", ")),
        Err(error) => Check::new("config", Status::Fail, error.to_string())
            .hint("run `muleteer config check` to list every fault with its place"),
    }
}

/// Judges the channels of notifications by their newest tries.
pub(super) fn notify(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new("notify", status, message);
    let NotifyFacts { channels, failing } = &facts.notify;
    let known = |name: &&(String, String)| channels.contains(&name.0);
    match failing.iter().find(known) {
        Some((name, error)) => check(Status::Warn, format!("notify.{name} fails: {error}"))
            .hint("fix the channel, then run `muleteer notify test`"),
        None if channels.is_empty() => {
            check(Status::Skip, "no channel is configured: nobody is notified".into())
        }
        None => check(Status::Ok, format!("notifications by {}", channels.join(", "))),
    }
}

pub(super) fn telemetry(facts: &Facts) -> Check {
    let check = |status, message: String| Check::new("telemetry", status, message);
    let again = "run `muleteer daemon stop`: the next verb starts a daemon, which reads the \
                 endpoint at its start; under a service manager set `telemetry.endpoint` in the \
                 configuration";
    let exports = match &facts.daemon {
        DaemonFacts::Answers { exports, .. } => exports.as_ref(),
        _ => None,
    };
    if let Some(wrong) = exports.and_then(|exports| other_than_meant(&facts.telemetry, exports)) {
        return check(Status::Warn, wrong).hint(again);
    }
    match &facts.telemetry {
        TelemetryFacts::Off => check(
            Status::Skip,
            "neither OTEL_EXPORTER_OTLP_ENDPOINT nor telemetry.endpoint is set: telemetry is off"
                .into(),
        ),
        TelemetryFacts::Disabled => {
            check(Status::Skip, "OTEL_SDK_DISABLED is true: telemetry is off".into())
        }
        TelemetryFacts::Reached { endpoint, ms, unheeded } if unheeded.is_empty() => {
            check(Status::Ok, format!("{endpoint} accepts connections ({ms} ms)"))
        }
        TelemetryFacts::Reached { endpoint, unheeded, .. } => {
            check(Status::Warn, format!("{endpoint} accepts connections; {}", unheeded.join("; ")))
                .hint("read the page `tracing` of the documentation for the supported variables")
        }
        TelemetryFacts::Unreachable { endpoint, error } => {
            check(Status::Warn, format!("{endpoint} cannot be reached: {error}"))
                .hint("start the collector, or unset the endpoint")
                .best_effort(
                    "agents are not affected; spans stay in the event log until the \
                              collector answers",
                )
        }
        TelemetryFacts::BadEndpoint { endpoint, error } => {
            check(Status::Fail, format!("`{endpoint}` is not a valid endpoint: {error}"))
                .hint("write it as http://HOST:4318 (OTLP over HTTP)")
        }
    }
}

/// Describes how the running daemon's export differs from the caller's settings.
fn other_than_meant(meant: &TelemetryFacts, exports: &Exports) -> Option<String> {
    let endpoint = match meant {
        TelemetryFacts::Reached { endpoint, .. } | TelemetryFacts::Unreachable { endpoint, .. } => {
            endpoint
        }
        TelemetryFacts::Disabled => {
            let Exports::To(daemons) = exports else { return None };
            return Some(format!(
                "OTEL_SDK_DISABLED is true, but the running daemon exports to {daemons}"
            ));
        }
        TelemetryFacts::Off | TelemetryFacts::BadEndpoint { .. } => return None,
    };
    match exports {
        Exports::Nothing => {
            Some(format!("{endpoint} is set, but the running daemon exports nothing"))
        }
        Exports::To(daemons) if daemons != endpoint => {
            Some(format!("{endpoint} is set, but the running daemon exports to {daemons}"))
        }
        Exports::To(_) => None,
    }
}
