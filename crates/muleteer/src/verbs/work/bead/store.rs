//! The store of the verb: the repository's own one, or the daemon's for an agent of a run.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::client::connect::random;
use crate::render::safe;
use crate::verbs::work::bead::QUIET;
use jiff::Timestamp;
use muleteer_model::beads::{Answer, Op, named};
use muleteer_model::event::id;
use muleteer_process::clock::awake;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{self, Reply, Request};
use muleteer_store::beads;
use muleteer_store::beads::embedded::{self, BeadError};
use muleteer_store::beads::records::Records;
use muleteer_store::beads::tbd::progress::Watcher;
use muleteer_supervisor::daemon::settings;
use muleteer_vcs::worktree;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The place of the beads.
#[derive(Debug)]
pub(super) enum Store {
    /// For an agent of a run.
    Daemon,
    Here(Box<beads::Store>, Records),
}

impl Store {
    pub async fn find(context: &Context) -> Result<Self, Failure> {
        let in_run = std::env::var_os("MULETEER_RUN_ID").is_some_and(|run| !run.is_empty());
        if context.is_agent && in_run {
            return Ok(Self::Daemon);
        }
        let here = crate::cli::context::here(ErrorCode::Io)?;
        let top = settings::outermost(&here);
        let home = settings::beads_home(&top);
        let git = worktree::git_dir(&top).await;
        if git.is_none() && !top.join(".muleteer").is_dir() {
            return Err(Failure::new(
                ErrorCode::NotARepository,
                format!("{} is not in a git repository", here.display()),
            )
            .hint("run `git init` first, or change to a repository"));
        }
        let dir = home.join(".muleteer/beads");
        if !dir.exists()
            && let Some(git) = git
        {
            worktree::exclude(&git)
                .map_err(|error| Failure::new(ErrorCode::Io, error.to_string()))?;
        }
        let config = crate::cli::settings::config(context, Some(&top))?;
        crate::cli::settings::warn(context, config.ignored(), "run.beads");
        let mut store = beads::Store::new(&home, &config.run.beads, None);
        store.watch(watcher(context));
        Ok(Self::Here(Box::new(store), Records::new(&home)))
    }

    /// Keeps the records of an imported text that are not issues. Returns a warning about them.
    pub fn keep_others(&self, text: &str) -> Result<Option<String>, Failure> {
        let others = embedded::other_records(text);
        if others.is_empty() {
            return Ok(None);
        }
        let mut kinds = BTreeMap::new();
        for (kind, _) in &others {
            *kinds.entry(kind).or_insert(0) += 1;
        }
        let kinds: Vec<_> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let what = match self {
            Self::Daemon => "not imported",
            Self::Here(_, records) => {
                records.keep(others.iter().map(|(_, line)| *line)).map_err(|error| told(&error))?;
                "kept for exports only"
            }
        };
        Ok(Some(format!("records that are not issues are {what}: {}", kinds.join(", "))))
    }

    /// Returns the records of a file that is exported to, and the kept ones that it does not have.
    pub fn with_kept(&self, there: &str) -> Result<String, Failure> {
        match self {
            Self::Daemon => Ok(there.into()),
            Self::Here(_, records) => records.after(there).map_err(|error| told(&error)),
        }
    }

    pub async fn ask(&mut self, op: &Op, context: &Context) -> Result<Answer, Failure> {
        match self {
            Self::Daemon => {
                let op = serde_json::to_string(op)
                    .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))?;
                let key = id::encode(&random()?);
                let reply = context.ask(Request::Bead { key, op }).await?;
                let Reply::Beads { answer } = reply else {
                    return Err(crate::client::connect::unexpected(&reply));
                };
                serde_json::from_str(&answer)
                    .map_err(|error| Failure::new(ErrorCode::Protocol, error.to_string()))
            }
            Self::Here(store, _) => {
                let fresh = id::encode(&random()?);
                store.apply(op, Timestamp::now(), &fresh).map_err(|error| told(&error))
            }
        }
    }
}

/// Prints the progress of an operation that takes long, every few seconds.
fn watcher(context: &Context) -> Watcher {
    let (out, printed_at) = (context.out, Mutex::new(awake()));
    Watcher(Some(Box::new(move |calls| {
        let mut printed_at = printed_at.lock().unwrap_or_else(PoisonError::into_inner);
        if awake() >= *printed_at + QUIET {
            *printed_at = awake();
            out.note(calls.to_string());
        }
    })))
}

impl Store {
    /// Returns beads with their titles, as far as the store has them.
    pub async fn names<'a>(
        &mut self,
        ids: impl Iterator<Item = &'a str>,
        context: &Context,
    ) -> Vec<String> {
        let mut names = vec![];
        for id in ids {
            let found = self.ask(&Op::Show { id: id.into() }, context).await;
            let bead = found.ok().and_then(|answer| answer.beads.into_iter().next());
            names.push(safe(&named(id, bead.as_ref().map(|bead| bead.title.as_str()))));
        }
        names
    }
}

fn told(error: &BeadError) -> Failure {
    let (place, hint) = (error.place(), error.hint());
    Failure::from(v1::WireError {
        code: error.code().into(),
        message: error.to_string(),
        hint: (!hint.is_empty()).then_some(hint),
        file: place.map(|(path, _)| path.display().to_string()),
        line: place.and_then(|(_, line)| line),
        ..v1::WireError::default()
    })
}
