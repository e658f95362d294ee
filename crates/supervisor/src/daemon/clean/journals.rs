//! The journals of dispatches: which are archived, and how.

use crate::daemon::clean::clones::blocking;
use crate::daemon::clean::{Outcome, Pass, is_folder, is_there, kept};
use crate::dispatch::error::chain;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::Event;
use muleteer_model::journal::{FILE_LIMIT, archived, status_of, summarize};
use muleteer_process::fault;
use muleteer_protocol::v1::WireError;
use muleteer_vcs::untrusted_path;
use std::io;
use std::path::{Path, PathBuf};

/// A journal gets its last lines within this many seconds after the end of its dispatch.
const LAST_LINES_S: i64 = 30;

/// Whether the journal of a dispatch exists and is not archived.
pub(super) fn exists(dispatch: &Dispatch) -> bool {
    is_there(Path::new(&dispatch.created.journal))
}

/// Archives the journal of a dispatch if it may go and the pass applies its decisions.
///
/// # Errors
/// The move cannot be recorded.
pub(super) async fn clean(pass: &Pass<'_>, dispatch: &Dispatch) -> Result<Outcome, WireError> {
    let journal = PathBuf::from(&dispatch.created.journal);
    let Some(to) = archived(&journal).filter(|_| is_there(&journal)) else {
        return Ok(Outcome::Nothing);
    };
    if let Err(why) = pass.check(dispatch) {
        return Ok(kept(&why));
    }
    let is_young = pass.now.duration_since(dispatch.since).as_secs() < LAST_LINES_S;
    let (path, status) = (journal.clone(), status_of(dispatch).to_string());
    let looked = blocking(move || Ok(obstacle(&path, &status, is_young))).await;
    match looked {
        Ok(None) => {}
        Ok(Some(why)) => return Ok(Outcome::Kept(why)),
        Err(error) => return Ok(Outcome::Failed(chain(&error))),
    }
    if !pass.asked.apply {
        return Ok(Outcome::Archived { to });
    }
    let path = to.display().to_string();
    let event = Event::JournalArchived { path, by: pass.by.into() };
    pass.record(&dispatch.id, None, event).await?;
    fault::point("clean.archive_recorded");
    let target = to.clone();
    Ok(match blocking(move || archive(&journal, &target)).await {
        Ok(()) => Outcome::Archived { to },
        Err(error) => Outcome::Failed(format!("it cannot be archived: {}", chain(&error))),
    })
}

/// Returns the reason why a journal cannot be moved now. Blocks.
fn obstacle(journal: &Path, status: &str, is_young: bool) -> Option<String> {
    // A link would lead to files of somebody else.
    let folders = journal.ancestors().skip(1).take(3);
    if let Some(link) = folders.filter(|folder| !is_folder(folder)).last() {
        return Some(format!("{} is a link", link.display()));
    }
    if !std::fs::symlink_metadata(journal).is_ok_and(|meta| meta.is_file()) {
        return Some("it is no regular file".into());
    }
    let is_complete = || {
        let text = untrusted_path::read_file(journal, FILE_LIMIT).unwrap_or_default();
        summarize(&String::from_utf8_lossy(&text)).status.as_deref() == Some(status)
    };
    (is_young && !is_complete()).then(|| "its last lines are not written yet".into())
}

/// Moves a journal into the archive. An archived journal of the same dispatch, from before it was
/// sent another message, gets another name. Blocks.
fn archive(journal: &Path, to: &Path) -> io::Result<()> {
    let folder = to.parent().ok_or(io::ErrorKind::InvalidInput)?;
    if folder.parent().is_some_and(|archive| is_there(archive) && !is_folder(archive)) {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "the archive is a link"));
    }
    std::fs::create_dir_all(folder)?;
    if !is_folder(folder) {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "its archive is a link"));
    }
    if is_there(to) {
        let mut number = 1_u32;
        let older = |number: u32| to.with_extension(format!("{number}.md"));
        while is_there(&older(number)) {
            number += 1;
        }
        std::fs::rename(to, older(number))?;
    }
    std::fs::rename(journal, to)?;
    // Other dispatches of the feature may have journals there.
    if let Some(feature) = journal.parent() {
        let _ = std::fs::remove_dir(feature);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: &Path) -> (PathBuf, PathBuf) {
        let journal = dir.join(".agents/journals/login/abcd2345.md");
        std::fs::create_dir_all(journal.parent().expect("a folder")).expect("a directory");
        std::fs::write(&journal, "Status: completed\n\n## Log\n\n").expect("a file");
        let to = archived(&journal).expect("a place");
        (journal, to)
    }

    #[test]
    fn second_archived_journal_keeps_the_first() {
        let dir = tempfile::tempdir().expect("a directory");
        for text in ["one", "two", "three"] {
            let (journal, to) = place(dir.path());
            std::fs::write(&journal, text).expect("a file");
            archive(&journal, &to).expect("it moves");
            assert!(!journal.parent().expect("a folder").exists());
            assert_eq!(std::fs::read_to_string(&to).expect("a file"), text);
        }
        let to = place(dir.path()).1;
        let older = [1, 2].map(|number| to.with_extension(format!("{number}.md")));
        let texts = older.map(|path| std::fs::read_to_string(path).expect("a file"));
        assert_eq!(texts, ["one", "two"]);
    }

    #[test]
    fn journal_without_its_last_lines_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let (journal, _) = place(dir.path());
        assert_eq!(obstacle(&journal, "completed", true), None);
        assert!(obstacle(&journal, "killed", true).is_some());
        assert_eq!(obstacle(&journal, "killed", false), None, "it will not change any more");
    }

    #[test]
    fn journal_behind_a_link_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let (journal, _) = place(dir.path());
        let folder = journal.parent().expect("a folder");
        std::fs::rename(folder, dir.path().join("elsewhere")).expect("it moves");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), folder).expect("a link");
        let why = obstacle(&journal, "completed", false).expect("a reason");
        assert!(why.ends_with("is a link"), "{why}");
    }
}
