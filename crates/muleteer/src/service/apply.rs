//! Executes a plan and reports its steps.

use crate::cli::failure::Failure;
use crate::doctor::ask::{RunError, run};
use crate::service::plan::Step;
use crate::service::state;
use muleteer_protocol::ErrorCode;
use serde::Serialize;
use std::io;
use std::path::Path;
use std::time::Duration;

/// Starting waits until the daemon is ready, and recovery of a long log takes time.
const PATIENCE: Duration = Duration::from_secs(120);

/// A step that was done, or with `dry_run` would be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Did {
    /// `write`, `keep` (the file has this content already), `remove`, `run`.
    pub action: &'static str,
    pub what: String,
}

/// Executes the steps in order; with `dry_run` it only describes them.
///
/// # Errors
/// The first step that failed. Earlier steps are not undone; the next attempt leaves a file alone
/// that is already right.
pub async fn apply(steps: &[Step], dry_run: bool) -> Result<Vec<Did>, Failure> {
    let mut done = Vec::new();
    for step in steps {
        let did = describe(step);
        if !dry_run && did.action != "keep" {
            carry_out(step).await?;
        }
        done.push(did);
    }
    Ok(done)
}

fn describe(step: &Step) -> Did {
    match step {
        Step::Write { path, contents } => {
            let same = std::fs::read_to_string(path).is_ok_and(|there| there == *contents);
            Did { action: if same { "keep" } else { "write" }, what: path.display().to_string() }
        }
        Step::Remove { path } => Did { action: "remove", what: path.display().to_string() },
        Step::Run { argv, .. } => Did { action: "run", what: argv.join(" ") },
    }
}

async fn carry_out(step: &Step) -> Result<(), Failure> {
    match step {
        Step::Write { path, contents } => {
            let write = || -> io::Result<()> {
                if let Some(folder) = path.parent() {
                    std::fs::create_dir_all(folder)?;
                }
                muleteer_store::atomic::write_atomic(path, contents.as_bytes(), 0o644)
                    .map_err(io::Error::other)
            };
            write().map_err(|error| file_failure(path, "written", &error))
        }
        Step::Remove { path } => match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(file_failure(path, "removed", &error))
            }
            _ => Ok(()),
        },
        Step::Run { argv, may_fail } => match command(argv).await {
            Err(_) if *may_fail => Ok(()),
            outcome => outcome,
        },
    }
}

fn file_failure(path: &Path, what: &str, error: &io::Error) -> Failure {
    let code = if error.kind() == io::ErrorKind::PermissionDenied {
        ErrorCode::Forbidden
    } else {
        ErrorCode::Io
    };
    Failure::new(code, format!("{} cannot be {what}: {error}", path.display())).file(path)
}

async fn command(argv: &[String]) -> Result<(), Failure> {
    let said = argv.join(" ");
    let Some((program, args)) = argv.split_first() else { return Ok(()) };
    let path = state::find(program).ok_or_else(|| {
        Failure::new(ErrorCode::ServiceManager, format!("`{program}` is not on PATH"))
    })?;
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    run(&path, &args, PATIENCE).await.map(drop).map_err(|error| {
        let why = match error {
            RunError::Late => format!("no answer within {} s", PATIENCE.as_secs()),
            RunError::Failed(error) => error,
        };
        Failure::new(ErrorCode::ServiceManager, format!("`{said}` failed: {why}"))
            .hint("run `muleteer service status`, or read the log of the service manager")
    })
}
