//! Finds and reads the transcript of an agent whose process is gone. It changes nothing, so it can
//! be repeated. An unreadable transcript is reported, never taken for an absent one.

use crate::daemon::context::Daemon;
use crate::dispatch::confine;
use muleteer_backends::Backend;
use muleteer_backends::Place;
use muleteer_backends::Transcripts;
use muleteer_model::agent::transcript::{Reading, Seen, Session};
use muleteer_model::dispatch::life;
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_shim::launch::Launch;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The limit of folders and files in a search.
const ENTRIES: usize = 200_000;
/// The limit of transcripts that are read if the session's name is unknown.
const CANDIDATES: usize = 1_000;
/// The tolerated difference between two clocks about the start of a dispatch.
const SLACK: Duration = Duration::from_secs(24 * 3600);

/// Returns the evidence about the prompt `key` in the transcript of the dispatch's last process.
pub async fn probe(
    daemon: &Daemon,
    dispatch: &Arc<Dispatch>,
    backend: &'static dyn Backend,
    key: &str,
) -> Reading {
    let Some(transcripts) = backend.transcripts() else {
        return Reading::unread(format!("{} has no transcript", backend.name()));
    };
    let (dir, dispatch, key) =
        (daemon.paths.agent(dispatch.id.as_str()), dispatch.clone(), key.to_string());
    let reading =
        tokio::task::spawn_blocking(move || look(&dir, &dispatch, transcripts, &key)).await;
    reading
        .unwrap_or_else(|error| Reading::unread(format!("failed to read its transcript: {error}")))
}

fn look(dir: &Path, dispatch: &Dispatch, transcripts: &dyn Transcripts, key: &str) -> Reading {
    if let Phase::Gone { exit, .. } = &dispatch.phase
        && transcripts.says_lost(&exit.stderr_tail)
    {
        return Reading { session: Session::Lost, ..Reading::missing() };
    }
    let launch = match Launch::read(dir, dispatch.epoch) {
        Ok(launch) => launch,
        Err(error) => return Reading::unread(format!("failed to read its launch file: {error}")),
    };
    let place = match transcripts.place(&launch.env) {
        Ok(place) => place,
        Err(error) => return Reading::unread(error.to_string()),
    };
    let place = match confine::outside(dir, dispatch.epoch, &place.root) {
        Ok(root) => Place { root, ..place },
        Err(error) => return Reading::unread(error.to_string()),
    };
    let chosen = || transcripts.chooses_session().then(|| life::new_session_id(dispatch));
    let session = dispatch.session.id.clone().or_else(chosen);
    let since =
        SystemTime::from(dispatch.created_at).checked_sub(SLACK).unwrap_or(SystemTime::UNIX_EPOCH);
    match find(&place, session.as_deref(), since) {
        Ok(files) => read(&files, transcripts, key),
        Err(error) => Reading::unread(error.to_string()),
    }
}

/// Why the transcripts of an agent cannot be searched.
#[derive(Debug, thiserror::Error)]
enum SearchError {
    #[error("{}: {source}", .folder.display())]
    Read { folder: PathBuf, source: io::Error },
    #[error("{} has more than {ENTRIES} files", .root.display())]
    TooManyFiles { root: PathBuf },
    #[error("{} has an unknown format", .path.display())]
    UnknownFormat { path: PathBuf },
    #[error("{count} transcripts match it")]
    TooManyMatches { count: usize },
}

/// Returns the files to read. It is the session's own, or, if its name is unknown, all candidates,
/// the oldest first (a fork repeats its origin).
fn find(
    place: &Place,
    session: Option<&str>,
    since: SystemTime,
) -> Result<Vec<PathBuf>, SearchError> {
    let mut files = vec![];
    let mut folders = vec![(place.root.clone(), 0)];
    let mut seen = 0;
    while let Some((folder, depth)) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(SearchError::Read { folder, source }),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(source) => return Err(SearchError::Read { folder, source }),
            };
            seen += 1;
            if seen > ENTRIES {
                return Err(SearchError::TooManyFiles { root: place.root.clone() });
            }
            let path = entry.path();
            if depth < place.depth {
                if path.is_dir() {
                    folders.push((path, depth + 1));
                }
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            let wanted = match session {
                Some(session) => name.contains(session) && path.is_file(),
                None => name.ends_with(".jsonl") && changed_since(&path, since),
            };
            if !wanted {
                continue;
            }
            if !name.ends_with(".jsonl") {
                return Err(SearchError::UnknownFormat { path });
            }
            files.push(path);
        }
    }
    if files.len() > CANDIDATES {
        return Err(SearchError::TooManyMatches { count: files.len() });
    }
    files.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    Ok(files)
}

fn changed_since(path: &Path, since: SystemTime) -> bool {
    path.metadata().and_then(|meta| meta.modified()).is_ok_and(|changed| changed >= since)
}

/// Searches the files for the prompt. A file that has it decides; an unreadable one leaves the
/// question open.
fn read(files: &[PathBuf], transcripts: &dyn Transcripts, key: &str) -> Reading {
    let mut best: Option<Reading> = None;
    for path in files {
        let read = File::open(path)
            .and_then(|file| transcripts.read(&mut BufReader::with_capacity(1 << 16, file), key));
        let reading = match read {
            Ok(reading) => reading,
            Err(error) => Reading::unread(format!("{}: {error}", path.display())),
        };
        match (&reading.prompt, best.as_ref().map(|best| &best.prompt)) {
            (Seen::Present(_), _) => return reading,
            (Seen::Unclear(_), _) | (_, None) => best = Some(reading),
            (Seen::Absent, Some(_)) => {}
        }
    }
    best.unwrap_or_else(Reading::missing)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use muleteer_backends::by_name;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn place(root: &Path, depth: u32) -> Place {
        Place { root: root.into(), depth }
    }

    #[test]
    fn transcript_is_found_in_any_folder() {
        let root = tempfile::tempdir().unwrap();
        for (folder, name) in [("a", "s-1.jsonl"), ("b", "s-2.jsonl"), ("b/s-1", "s-1.jsonl")] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
            std::fs::write(root.path().join(folder).join(name), "").unwrap();
        }
        assert_eq!(
            find(&place(root.path(), 1), Some("s-1"), NOW).unwrap(),
            [root.path().join("a/s-1.jsonl")]
        );
        assert_eq!(find(&place(root.path(), 1), Some("s-3"), NOW).unwrap(), [] as [PathBuf; 0]);
        assert_eq!(find(&place(root.path(), 1), None, NOW).unwrap().len(), 2);
        assert_eq!(
            find(&place(&root.path().join("none"), 1), None, NOW).unwrap(),
            [] as [PathBuf; 0]
        );
    }

    #[test]
    fn unreadable_transcript_is_not_absent() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a")).unwrap();
        std::fs::write(root.path().join("a/s-1.jsonl.zst"), "").unwrap();
        assert!(matches!(
            find(&place(root.path(), 1), Some("s-1"), NOW),
            Err(SearchError::UnknownFormat { .. })
        ));
        std::fs::write(root.path().join("file"), "").unwrap();
        assert!(find(&place(&root.path().join("file"), 1), Some("s-1"), NOW).is_err());
        let codex = by_name("codex").unwrap().transcripts().unwrap();
        let reading = read(&[root.path().join("a")], codex, "k");
        assert!(matches!(reading.prompt, Seen::Unclear(_)), "{reading:?}");
    }

    #[test]
    fn transcript_with_the_prompt_is_used() {
        let root = tempfile::tempdir().unwrap();
        let meta =
            |id: &str| format!("{{\"type\":\"session_meta\",\"payload\":{{\"id\":\"{id}\"}}}}\n");
        let asked = "{\"type\":\"response_item\",\"payload\":{\"type\":\"message\",\
                     \"role\":\"user\",\"content\":[{\"type\":\"input_text\",\
                     \"text\":\"do\\n\\n[muleteer:prompt:k]\\n\"}]}}\n";
        let files = ["1.jsonl", "2.jsonl", "3.jsonl"].map(|name| root.path().join(name));
        std::fs::write(&files[0], meta("other")).unwrap();
        std::fs::write(&files[1], meta("ours") + asked).unwrap();
        std::fs::write(&files[2], meta("fork") + asked).unwrap();
        let codex = by_name("codex").unwrap().transcripts().unwrap();
        assert_eq!(read(&files, codex, "k").session_id.as_deref(), Some("ours"));
        assert_eq!(read(&files, codex, "another").prompt, Seen::Absent);
        assert_eq!(read(&[], codex, "k"), Reading::missing());
    }
}
