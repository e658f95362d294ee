//! Acceptance criteria: read from the folder where a person or an agent wrote them, sealed, and
//! verified later.

use crate::daemon::context::Daemon;
use crate::spec_run::host::Hosted;
use crate::spec_run::steps::{self, io, stored};
use crate::spec_run::trouble::Trouble;
use muleteer_model::config::trust::is_below;
use muleteer_model::event::Event;
use muleteer_model::spec_run::judge::{Hidden, JudgeResult};
use muleteer_model::spec_run::{Input, Run, Sealed};
use muleteer_protocol::ErrorCode;
use muleteer_store::hash::sha256;
use muleteer_vcs::untrusted_path::read_file;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The limit for the size of all criteria. A person could read them; more is a mistake.
const SIZE_LIMIT: u64 = 16 * 1024 * 1024;
const FILES_LIMIT: usize = 2000;
/// The limit of nested folders.
const DEPTH_LIMIT: usize = 16;
/// At most this many rejected entries are named in a message.
const NAMED: usize = 20;

/// The content of a folder of criteria.
#[derive(Debug, Default)]
struct Found {
    /// The files, by their names below the folder.
    files: BTreeMap<String, Vec<u8>>,
    /// The other entries, each with the reason why it is no criterion.
    left: Vec<String>,
}

/// Whether links in the folder are followed, by the author of the folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links<'a> {
    /// A person wrote the folder, so its links are intended.
    Followed,
    /// The author of the repository at this canonical path wrote it. Its links are followed only
    /// within the repository.
    Within(&'a Path),
    /// An agent may have written it, and may link to any file.
    Left,
}

impl Links<'_> {
    fn leads_out(self, real: &Path) -> bool {
        matches!(self, Self::Within(repo) if !real.starts_with(repo))
    }
}

/// Hashes the criteria, and saves a second copy in the sealed folder.
pub async fn seal(hosted: &Hosted, folder: &Path, wanted: &[&str]) -> Result<Sealed, Trouble> {
    let files = find(folder, Links::Left)?.files;
    let missing: Vec<_> = wanted.iter().filter(|name| !files.contains_key(**name)).collect();
    if !missing.is_empty() {
        let message = format!("{} lacks {missing:?}", folder.display());
        return Err(Trouble::new(ErrorCode::AgentFailed, message));
    }
    if files.values().all(|bytes| bytes.iter().all(u8::is_ascii_whitespace)) {
        return Err(Trouble::new(
            ErrorCode::AgentFailed,
            format!("{} contains no criteria", folder.display()),
        ));
    }
    // An agent wrote them without a sync. Its other files there do not matter.
    let read =
        files.keys().try_for_each(|name| muleteer_store::atomic::sync_file(&folder.join(name)));
    let folders: BTreeSet<&Path> =
        files.keys().flat_map(|name| Path::new(name).ancestors().skip(1)).collect();
    read.and_then(|()| {
        folders
            .iter()
            .rev()
            .try_for_each(|name| muleteer_store::atomic::sync_dir(&folder.join(name)))
    })
    .map_err(|error| stored(&error))?;
    copy(&files, &hosted.places.sealed.join("acceptance"))?;
    Ok(crate::spec_run::job::sealed(folder, digest(&files)))
}

/// Seals criteria that a person wrote. The judge reads a copy, so that the folder in the repository
/// can be hidden from the coding agents.
pub async fn seal_given(
    daemon: &Daemon,
    hosted: &Arc<Hosted>,
    run: &Run,
) -> Result<Input, Trouble> {
    let path = run.settings.acceptance_path.clone().unwrap_or_default();
    let missing = |error: Trouble| Trouble::new(ErrorCode::AcceptanceMissing, error.message);
    let folder = &hosted.places.acceptance;
    let _ = muleteer_vcs::spec_run::clones::remove(folder).await;
    let repo = hosted.repo.canonicalize().map_err(io(&hosted.repo))?;
    let links = links_of(&path, run.settings.acceptance_links, &repo);
    let found = find(&hosted.repo.join(&path), links).map_err(missing)?;
    copy(&found.files, folder)?;
    if !found.left.is_empty() {
        let more = found.left.len().saturating_sub(NAMED);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        let left = found.left.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
        let message = format!("the judge does not see other files there: {left}{more}");
        daemon.note(Event::Fault { what: format!("the acceptance criteria in {path}"), message });
    }
    let sealed = seal(hosted, folder, &[]).await.map_err(missing)?;
    Ok(Input::Sealed(sealed))
}

/// A stranger may have written the links of a folder in the repository, so they must not lead to
/// files outside of it unless the user vouches for them.
fn links_of<'a>(path: &str, vouched: bool, repo: &'a Path) -> Links<'a> {
    if vouched || !is_below(path) { Links::Followed } else { Links::Within(repo) }
}

/// Checks that the criteria exist and are unchanged since they were sealed.
///
/// # Errors
/// `E_ACCEPTANCE_MISSING`.
pub async fn check(run: &Run) -> Result<(), Trouble> {
    let Some(sealed) = run.sealed.as_ref().filter(|sealed| !sealed.path.is_empty()) else {
        return Ok(());
    };
    let gone = |why: String| {
        Trouble::new(
            ErrorCode::AcceptanceMissing,
            format!("the acceptance criteria in {} {why}", sealed.path),
        )
    };
    let mut files = find(Path::new(&sealed.path), Links::Left)
        .map_err(|error| gone(format!("cannot be read: {}", error.message)))?
        .files;
    if digest(&files) == sealed.sha256 {
        return Ok(());
    }
    // An earlier version of Muleteer sealed only the top folder.
    files.retain(|name, _| !name.contains('/'));
    if digest(&files) != sealed.sha256 {
        return Err(gone("have changed since the run started".into()));
    }
    Ok(())
}

/// Returns the words that the beads of a verdict must not have: those of the sealed criteria and of
/// the criteria that the verdict names, without those of the spec.
///
/// # Errors
/// The sealed criteria cannot be read: their words would reach the beads.
pub fn hidden(hosted: &Hosted, run: &Run, result: &JudgeResult) -> Result<Hidden, Trouble> {
    let folder = run.sealed.as_ref().map(|sealed| Path::new(&sealed.path));
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty());
    let files = match folder {
        Some(folder) => find(folder, Links::Left)?.files,
        None => BTreeMap::new(),
    };
    let texts: Vec<_> = files.values().map(|bytes| String::from_utf8_lossy(bytes)).collect();
    let spec = steps::verified_spec(&hosted.places, run).unwrap_or_default();
    Ok(Hidden::new(texts.iter().map(|text| &**text), result.named_criteria(), &spec))
}

fn copy(files: &BTreeMap<String, Vec<u8>>, folder: &Path) -> Result<(), Trouble> {
    let make = |path: &Path| {
        muleteer_store::atomic::create_dir_durable(path, 0o700).map_err(|error| stored(&error))
    };
    make(folder)?;
    for (name, bytes) in files {
        let path = folder.join(name);
        make(path.parent().unwrap_or(folder))?;
        muleteer_store::atomic::write_atomic(&path, bytes, 0o400)
            .map_err(|error| stored(&error))?;
    }
    Ok(())
}

fn digest(files: &BTreeMap<String, Vec<u8>>) -> String {
    let lines: String =
        files.iter().map(|(name, bytes)| format!("{}  {name}\n", sha256(bytes))).collect();
    sha256(lines.as_bytes())
}

/// Finds all files in the folder and below it.
fn find(folder: &Path, links: Links<'_>) -> Result<Found, Trouble> {
    let over = |what: String| {
        Trouble::new(ErrorCode::AgentFailed, format!("{} has more than {what}", folder.display()))
    };
    let mut found = Found::default();
    let (mut size, mut looked_at) = (0, 0);
    let mut folders = vec![(folder.to_path_buf(), PathBuf::new(), vec![])];
    while let Some((at, below, mut above)) = folders.pop() {
        let real = at.canonicalize().map_err(io(&at))?;
        if links.leads_out(&real) {
            let message = format!("{} leads outside the repository", folder.display());
            return Err(Trouble::new(ErrorCode::AgentFailed, message));
        }
        if above.contains(&real) {
            found
                .left
                .push(format!("{} (it links to one of its own parent folders)", below.display()));
            continue;
        }
        if above.len() > DEPTH_LIMIT {
            return Err(over(format!("{DEPTH_LIMIT} nested folders")));
        }
        above.push(real);
        for entry in std::fs::read_dir(&at).map_err(io(&at))? {
            looked_at += 1;
            if looked_at > FILES_LIMIT {
                return Err(over(format!("{FILES_LIMIT} files")));
            }
            let entry = entry.map_err(io(&at))?;
            let name = below.join(entry.file_name());
            let mut leave = |why: &str| found.left.push(format!("{} ({why})", name.display()));
            let Some(text) = name.to_str() else {
                leave("its name is not valid UTF-8");
                continue;
            };
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                leave("it is hidden");
                continue;
            }
            let mut path = entry.path();
            let mut meta = entry.metadata().map_err(io(&path))?;
            if meta.is_symlink() {
                let led =
                    path.canonicalize().and_then(|real| Ok((std::fs::metadata(&real)?, real)));
                match led {
                    Ok((_, real)) if links.leads_out(&real) => {
                        leave("it is a link outside the repository");
                        continue;
                    }
                    Ok((there, real)) if links != Links::Left => (meta, path) = (there, real),
                    Ok(_) => {
                        leave("it is a link");
                        continue;
                    }
                    Err(error) => {
                        leave(&format!("it is a broken link: {error}"));
                        continue;
                    }
                }
            }
            if meta.is_dir() {
                folders.push((path, name, above.clone()));
                continue;
            }
            if !meta.is_file() {
                leave("it is not a file");
                continue;
            }
            size += meta.len();
            if size > SIZE_LIMIT {
                return Err(over(format!("{SIZE_LIMIT} bytes")));
            }
            let bytes = read_file(&path, SIZE_LIMIT).map_err(io(&path))?;
            found.files.insert(text.to_string(), bytes);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::symlink;

    /// Found by an audit: criteria in folders and behind links were silently left out.
    #[test]
    fn criteria_are_found_in_folders_and_links_and_skipped_files_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, elsewhere) = (dir.path().join("criteria"), dir.path().join("elsewhere"));
        std::fs::create_dir_all(folder.join("features/deep")).unwrap();
        std::fs::create_dir_all(&elsewhere).unwrap();
        for name in ["top.md", "features/login.feature", "features/deep/x.md", ".hidden"] {
            std::fs::write(folder.join(name), name).unwrap();
        }
        std::fs::write(elsewhere.join("shared.md"), "shared").unwrap();
        symlink("../elsewhere/shared.md", folder.join("linked.md")).unwrap();
        symlink("../elsewhere", folder.join("linked")).unwrap();
        symlink("nowhere", folder.join("broken.md")).unwrap();
        symlink("..", folder.join("features/up")).unwrap();
        symlink("/dev/zero", folder.join("zero.md")).unwrap();
        let found = find(&folder, Links::Followed).unwrap();
        let names: Vec<&str> = found.files.keys().map(String::as_str).collect();
        let own = ["features/deep/x.md", "features/login.feature", "top.md"];
        let linked = ["linked.md", "linked/shared.md"];
        assert_eq!(names, [&own[..2], &linked, &own[2..]].concat());
        for name in [
            ".hidden (it is hidden)",
            "broken.md (it is a ",
            "features/up (it links",
            "zero.md (it is no",
        ] {
            assert!(
                found.left.iter().any(|left| left.starts_with(name)),
                "{name} in {:?}",
                found.left
            );
        }
        // A clone may bring links to any file.
        let repo = dir.path().canonicalize().unwrap();
        assert_eq!(find(&folder, Links::Within(&repo)).unwrap().files, found.files);
        let within = find(&folder, Links::Within(&repo.join("criteria"))).unwrap();
        assert_eq!(within.files.into_keys().collect::<Vec<_>>(), own);
        assert!(
            within
                .left
                .iter()
                .any(|left| left == "linked.md (it is a link outside the repository)")
        );
        symlink("elsewhere", dir.path().join("led")).unwrap();
        assert!(find(&dir.path().join("led"), Links::Within(&repo.join("criteria"))).is_err());
        // The judge must not read files that an agent links to.
        assert_eq!(find(&folder, Links::Left).unwrap().files.into_keys().collect::<Vec<_>>(), own);
        // A copy has the hash of the original.
        let copied = dir.path().join("copy");
        copy(&found.files, &copied).unwrap();
        assert_eq!(digest(&find(&copied, Links::Left).unwrap().files), digest(&found.files));
    }

    #[test]
    fn external_links_need_trust_or_an_explicit_path() {
        let repo = Path::new("/repo");
        assert_eq!(links_of("criteria", false, repo), Links::Within(repo));
        assert_eq!(links_of("criteria", true, repo), Links::Followed);
        assert_eq!(links_of("/criteria", false, repo), Links::Followed);
    }

    #[test]
    fn oversized_criteria_are_not_read_in_part() {
        let dir = tempfile::tempdir().unwrap();
        let deep = (0..DEPTH_LIMIT + 2).fold(dir.path().join("deep"), |path, _| path.join("d"));
        std::fs::create_dir_all(&deep).unwrap();
        assert!(
            find(&dir.path().join("deep"), Links::Left)
                .is_err_and(|error| error.message.contains("folders"))
        );
        let many = dir.path().join("many");
        std::fs::create_dir_all(&many).unwrap();
        for at in 0..=FILES_LIMIT {
            std::fs::write(many.join(format!("{at}.md")), "x").unwrap();
        }
        assert!(find(&many, Links::Left).is_err_and(|error| error.message.contains("files")));
        let large = dir.path().join("large");
        std::fs::create_dir_all(&large).unwrap();
        std::fs::File::create(large.join("x")).unwrap().set_len(SIZE_LIMIT + 1).unwrap();
        assert!(find(&large, Links::Left).is_err_and(|error| error.message.contains("bytes")));
    }
}
