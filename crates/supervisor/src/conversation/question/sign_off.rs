//! The sign-off of a spec: it is asked with the text of the file. [`approved`] carries it out, the
//! texts that were shown are in [`copies`], and the rules are in `model::question::sign_off`.
//!
//! [`approved`]: crate::question::approved

use crate::conversation::view;
use crate::daemon::context::Daemon;
use crate::dispatch::error::fault;
use crate::question::copies::{self, blocking, missing};
use crate::question::credentials;
use crate::question::serve::ask;
use crate::spec_run::begin::preconditions::{SPEC_LIMIT, titled};
use muleteer_model::conversation::thread::Thread;
use muleteer_model::event::id;
use muleteer_model::question::sign_off::{self, START_RUN, Spec};
use muleteer_model::question::{Answer, Question};
use muleteer_process::fault::point;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::WireError;
use muleteer_store::hash::sha256;
use muleteer_vcs::{untrusted_path, worktree};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Asks for the sign-off of a spec, and returns the question's id and the path. `id` is the id of a
/// new question: the same request has the same one.
///
/// # Errors
/// The file is no spec, or is outside the thread's project.
pub async fn request(
    daemon: &Arc<Daemon>,
    thread: &Thread,
    (path, asked_by, id): (&str, &str, &str),
) -> Result<(String, String), WireError> {
    let project = PathBuf::from(&thread.opened.project);
    let top = worktree::top(&project).await;
    let named = path.to_string();
    let (spec, text) = blocking(move || find(&project, top, &named)).await?;
    let shown = spec.path.clone();
    let asked = put(daemon, thread.id(), spec, text, (asked_by, id)).await?;
    Ok((asked, shown))
}

/// Finds and reads the spec that a person named. Blocks.
fn find(project: &Path, top: Option<PathBuf>, path: &str) -> Result<(Spec, String), WireError> {
    let repo = match top {
        Some(top) => top,
        None => project.canonicalize().map_err(|error| missing(path, &error))?,
    };
    let found = project.join(path).canonicalize().map_err(|error| missing(path, &error))?;
    match found.starts_with(&repo) {
        true => read(&found, &repo),
        false => Err(outside(path)),
    }
}

/// Makes a copy of the spec and its question durable, in this order.
async fn put(
    daemon: &Arc<Daemon>,
    thread: &str,
    spec: Spec,
    text: String,
    (asked_by, id): (&str, &str),
) -> Result<String, WireError> {
    let _alone = copies::alone(daemon, thread).await;
    let question = sign_off::question(&spec, &text, thread, asked_by, id.into());
    copies::write(copies::path_of(daemon, thread, &spec.sha256), text).await?;
    point("signoff.saved");
    let asked = ask(daemon, &question).await;
    // The question may have failed, or be known with an earlier text.
    copies::remove_unneeded(daemon, thread).await;
    asked
}

/// Reads a spec below the repository. An agent can put a link or a pipe in place of the file or of
/// one of its folders, so neither is followed or waited for. Blocks.
fn read(path: &Path, repo: &Path) -> Result<(Spec, String), WireError> {
    let utf8 = |path: &Path| {
        let message = format!("the path {} is not UTF-8", path.display());
        path.to_str().map(String::from).ok_or_else(|| fault(ErrorCode::BadInput, &message, ""))
    };
    let shown = utf8(path)?;
    let inside = path.strip_prefix(repo).map_err(|_| outside(&shown))?;
    let found = untrusted_path::read(repo, inside, SPEC_LIMIT);
    let bytes = found.map_err(|error| missing(&shown, &error))?;
    let bytes = bytes.ok_or_else(|| missing(&shown, &ErrorKind::NotFound.into()))?;
    let text =
        String::from_utf8(bytes).map_err(|_| missing(&shown, &ErrorKind::InvalidData.into()));
    let (text, title) = titled(&shown, text?)?;
    let (sha256, bytes) = (sha256(text.as_bytes()), text.len() as u64);
    Ok((Spec { path: shown, repo: utf8(repo)?, title, sha256, bytes }, text))
}

fn outside(path: &str) -> WireError {
    let message = format!("the spec {path} is outside the project of the thread");
    fault(ErrorCode::SpecNotFound, &message, "name a file of the repository")
}

/// Checks before an approval is recorded that the file still has the text that was shown. Otherwise
/// the question is withdrawn, and asked again with the new text.
///
/// # Errors
/// `E_SPEC_HASH_MISMATCH`, the file cannot be read, or a run would lack keys.
pub async fn check(
    daemon: &Arc<Daemon>,
    question: &Question,
    answer: &Answer,
) -> Result<(), WireError> {
    let Some(shown) = Spec::of(question).filter(|_| sign_off::approves(answer)) else {
        return Ok(());
    };
    if answer.is(START_RUN)
        && let Some(thread) = &question.thread
    {
        credentials::check(daemon, &*view::find(daemon, thread)?).await?;
    }
    let (path, repo) = (PathBuf::from(&shown.path), PathBuf::from(&shown.repo));
    let (now, text) = blocking(move || read(&path, &repo)).await?;
    if now.sha256 == shown.sha256 {
        return Ok(());
    }
    let thread = question.thread.as_deref().unwrap_or_default();
    // The new question is durable. It withdraws the older one, also in the next daemon.
    let id = derived(&format!("{}/{}", question.id, now.sha256));
    let again = put(daemon, thread, now, text, (&question.asked_by, &id)).await?;
    point("signoff.asked_again");
    let message =
        format!("the spec {} changed after question {} was asked", shown.path, question.id);
    let hint = format!("read its new text in question {again}, and answer that one");
    Err(fault(ErrorCode::SpecHashMismatch, &message, &hint))
}

/// Returns an id that follows from a text.
pub(super) fn derived(of: &str) -> String {
    let hash = sha256(of.as_bytes());
    id::encode(&hash.as_bytes()[..id::ID_BYTES * 2])
}
