//! Files that a person keeps with git-lfs: their way into the clones of agents, and home.
//!
//! A commit has only a pointer in place of such a file. The content is in the git directory, by its
//! SHA-256, and a filter of git-lfs exchanges the two. No filter runs for the harness, and git-lfs
//! itself never does, so the harness copies the objects itself:
//!
//! - [`bring_in`] writes them into a new clone, and the files in place of their pointers;
//! - [`unchanged`] says which of these files an agent has not changed;
//! - [`wanted`] lists the objects that commits need, and [`take`] copies them from a clone.

mod pointer;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use pointer::{LONGEST, Pointer};
pub(crate) use store::Store;

use crate::command::{git, run, run_bytes};
use crate::error::{FileError, RepoError};
use crate::untrusted_path;
use muleteer_model::agent::event::cut;
use muleteer_process::spawn::find_program;
use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use store::Taken;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// The blobs that git is asked for at once.
const AT_ONCE: usize = 10_000;
/// The objects of one clone that are brought home have at most this many bytes together.
const TOTAL_LIMIT: u64 = 64 << 30;
/// A file of this length has a pointer of the same length, one for each version of pointers.
const IS_AS_LONG: [u64; 3] = [117, 127, 128];
/// At most this many objects of a clone are listed.
const OBJECTS_LIMIT: usize = 1_000_000;
/// No pointer is shorter.
const SHORTEST: u64 = 100;
/// At most this many files are named in a message.
const NAMED: usize = 3;
const ALTERNATES_LIMIT: u64 = 64 * 1024;
const ATTRIBUTES_LIMIT: u64 = 1 << 20;

/// The filter as `git lfs install` configures it. A commit whose files are on no machine that
/// git-lfs reaches is checked out with pointers, where the filter would otherwise fail.
const FILTER: [(&str, &str); 5] = [
    ("filter.lfs.clean", "git-lfs clean -- %f"),
    ("filter.lfs.smudge", "git-lfs smudge -- %f"),
    ("filter.lfs.process", "git-lfs filter-process"),
    ("filter.lfs.required", "true"),
    ("lfs.skipdownloaderrors", "true"),
];

/// The hook of git-lfs in a clone that pushes to a hub, from where the other agents' git-lfs gets
/// the files. Muleteer takes the objects from the clone too, so a failure blocks no push.
const PRE_PUSH: &str = "#!/bin/sh
command -v git-lfs >/dev/null 2>&1 || exit 0
git lfs pre-push \"$@\" || exit 0
";

/// Returns the git directory from which a repository of ours borrows its objects first.
pub(crate) fn lender(git_dir: &Path) -> Option<PathBuf> {
    let name = Path::new("objects/info/alternates");
    let text = untrusted_path::read(git_dir, name, ALTERNATES_LIMIT).ok()??;
    let first = text.split(|byte| *byte == b'\n').next()?;
    Path::new(OsStr::from_bytes(first)).parent().map(Path::to_owned)
}

/// Whether git-lfs has kept files for the repository with this git directory.
pub(crate) fn has_kept(git_dir: &Path) -> bool {
    git_dir.join("lfs").is_dir()
}

/// Whether the files of a new clone may be kept with git-lfs.
fn may_be_used(lender: &Path, clone: &Path) -> bool {
    let attributes = || {
        untrusted_path::read(clone, Path::new(".gitattributes"), ATTRIBUTES_LIMIT).ok().flatten()
    };
    let names_it = |text: Vec<u8>| text.windows(10).any(|part| part == b"filter=lfs");
    has_kept(lender) || attributes().is_some_and(names_it)
}

/// Whether the agents of a clone find git-lfs on their `PATH`.
pub(crate) fn is_installed(path: Option<&str>, cwd: &Path) -> bool {
    find_program("git-lfs", path, cwd).is_ok()
}

/// Gives a new clone the content of the files that the person keeps with git-lfs, and its filter.
/// Nobody works in the clone yet. `ours` is a git directory of ours with more objects, and `path`
/// is the `PATH` of the agent. Returns a message if the agent will see pointers.
///
/// Without git-lfs the files stay pointers: git would take their content for a change.
///
/// # Errors
/// The files cannot be listed or written.
pub(crate) async fn bring_in(
    repo: &Path,
    clone: &Path,
    ours: Option<&Path>,
    path: Option<&str>,
) -> Result<Option<String>, RepoError> {
    let git_dir = clone.join(".git");
    let person = lender(ours.unwrap_or(&git_dir));
    let Some(person) = person.filter(|person| may_be_used(person, clone)) else { return Ok(None) };
    let mut list = git(clone);
    list.args(["ls-files", "-z", "--", ":(top,attr:filter=lfs)"]);
    let names = run_bytes(&mut list, "cannot list the files that git-lfs keeps").await?;
    let (top, listed) = (clone.to_owned(), names.clone());
    let pointers = tokio::task::spawn_blocking(move || pointers_in(&top, &listed)).await?;
    if !is_installed(path, clone) {
        return Ok((!pointers.is_empty()).then(|| {
            format!(
                "the clone has pointers in place of {}: git-lfs, which keeps their content, is \
                 not installed. Install it and put it on the PATH",
                named(pointers.iter().map(|(name, _)| name.to_string_lossy()))
            )
        }));
    }
    if names.is_empty() {
        return Ok(None);
    }
    for (key, value) in FILTER {
        run(git(clone).args(["config", key, value]), "cannot configure the clone").await?;
    }
    if ours.is_some() {
        write_hook(&git_dir).map_err(FileError::at(&git_dir))?;
    }
    let mut stores: Vec<_> = ours.map(Store::below).into_iter().collect();
    stores.push(Store::of_person(repo, &person).await);
    let top = clone.to_owned();
    let filling = tokio::task::spawn_blocking(move || fill(&top, &stores, &pointers));
    let missing = filling.await??;
    Ok((!missing.is_empty()).then(|| {
        format!(
            "the clone has pointers of git-lfs in place of {}: their content is not on this \
             machine. Run `git lfs fetch` in {}",
            named(missing.iter().map(|name| name.to_string_lossy())),
            repo.display()
        )
    }))
}

fn write_hook(git_dir: &Path) -> std::io::Result<()> {
    let hook = git_dir.join("hooks/pre-push");
    std::fs::create_dir_all(git_dir.join("hooks"))?;
    std::fs::write(&hook, PRE_PUSH)?;
    std::fs::set_permissions(&hook, PermissionsExt::from_mode(0o755))
}

/// Returns those files that are pointers.
fn pointers_in(clone: &Path, names: &[u8]) -> Vec<(PathBuf, Pointer)> {
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let pointer = |name: &[u8]| {
        let name = Path::new(OsStr::from_bytes(name));
        let bytes = untrusted_path::read(clone, name, pointer::LONGEST).ok()??;
        Some((name.to_owned(), Pointer::parse(&bytes)?))
    };
    names.filter_map(pointer).collect()
}

/// Writes the content of these files, and returns those whose content no store has.
fn fill(
    clone: &Path,
    stores: &[Store],
    pointers: &[(PathBuf, Pointer)],
) -> Result<Vec<PathBuf>, FileError> {
    let own = Store::below(&clone.join(".git"));
    own.make().map_err(FileError::at(clone))?;
    let mut missing = vec![];
    for (name, pointer) in pointers {
        let path = clone.join(name);
        let mut object = None;
        for from in stores.iter().filter_map(|store| store.find(pointer)) {
            object = own.put_in_clone(pointer, &from).map_err(FileError::at(&path))?;
            if object.is_some() {
                break;
            }
        }
        let Some(object) = object else {
            missing.push(name.clone());
            continue;
        };
        if pointer.is_plain {
            let write = || {
                let mode = std::fs::metadata(&path)?.permissions();
                std::fs::copy(&object, &path)?;
                std::fs::set_permissions(&path, mode)
            };
            write().map_err(FileError::at(&path))?;
        }
    }
    Ok(missing)
}

/// Returns the names of the first files, for a message.
fn named<S: AsRef<str>>(names: impl ExactSizeIterator<Item = S>) -> String {
    let count = names.len();
    let first: Vec<_> = names.take(NAMED).map(|name| cut(name.as_ref(), 200)).collect();
    let more = count.saturating_sub(first.len());
    let more = if more > 0 { format!(" and {more} more files") } else { String::new() };
    format!("{}{more}", first.join(", "))
}

/// Returns those files of a working directory that have the content that their pointer in a commit
/// names. `tracked` is the list of `ls-tree -r -z -l`, and `git` works in a repository with the
/// commit. An agent may have written the files.
///
/// # Errors
/// git cannot read the pointers.
pub(crate) async fn unchanged(
    git: &(impl Fn() -> Command + Sync),
    dir: &Path,
    tracked: &[u8],
) -> Result<HashSet<Vec<u8>>, RepoError> {
    let (top, listed) = (dir.to_owned(), tracked.to_vec());
    let candidates = tokio::task::spawn_blocking(move || replaced(&top, &listed)).await?;
    let blobs: Vec<String> = candidates.iter().map(|(blob, _)| blob.clone()).collect();
    let pointers = parse(git, &blobs).await?;
    let top = dir.to_owned();
    let comparing = tokio::task::spawn_blocking(move || {
        let names = candidates.into_iter().map(|(_, name)| name).zip(pointers);
        names
            .filter(|(name, pointer)| {
                let name = Path::new(OsStr::from_bytes(name));
                pointer.as_ref().is_some_and(|of| store::has_content(&top, name, of))
            })
            .map(|(name, _)| name)
            .collect()
    });
    Ok(comparing.await?)
}

/// Returns the files that may be in place of a pointer, each with the blob of its commit: the blob
/// is as long as a pointer, and the file has another length, or the one that its pointer would have
/// too.
fn replaced(dir: &Path, tracked: &[u8]) -> Vec<(String, Vec<u8>)> {
    let entry = |entry: &[u8]| {
        let tab = entry.iter().position(|byte| *byte == b'\t')?;
        let (about, name) = (std::str::from_utf8(&entry[..tab]).ok()?, &entry[tab + 1..]);
        let mut about = about.split_ascii_whitespace();
        let (mode, _, blob) = (about.next()?, about.next()?, about.next()?);
        let size: u64 = about.next()?.parse().ok()?;
        let may_be = mode.starts_with("100") && (SHORTEST..=pointer::LONGEST).contains(&size);
        let path = dir.join(OsStr::from_bytes(name));
        let is_other = may_be
            && std::fs::symlink_metadata(path).is_ok_and(|meta| {
                meta.is_file() && (meta.len() != size || IS_AS_LONG.contains(&size))
            });
        is_other.then(|| (blob.to_string(), name.to_vec()))
    };
    tracked.split(|byte| *byte == 0).filter_map(entry).collect()
}

/// Returns the pointers in these blobs: `None` for a blob that is no pointer.
async fn parse(
    git: &(impl Fn() -> Command + Sync),
    blobs: &[String],
) -> Result<Vec<Option<Pointer>>, RepoError> {
    let mut found = vec![];
    for some in blobs.chunks(AT_ONCE) {
        let mut parsed = pointers_of(&contents(git(), some).await?);
        parsed.resize(some.len(), None);
        found.extend(parsed);
    }
    Ok(found)
}

/// Returns the output of `git cat-file --batch` for these blobs.
async fn contents(mut command: Command, blobs: &[String]) -> Result<Vec<u8>, RepoError> {
    let failed = |error| FileError::at(Path::new("a pipe to git"))(error);
    let text = format!("{}\n", blobs.join("\n"));
    let (reader, mut writer) = std::io::pipe().map_err(failed)?;
    command.args(["cat-file", "--batch"]).stdin(reader);
    // git may end before it has read everything.
    let writing = tokio::task::spawn_blocking(move || drop(writer.write_all(text.as_bytes())));
    let said = run_bytes(&mut command, "cannot read the pointers of git-lfs").await;
    // The command holds the other end of the pipe.
    drop(command);
    writing.await?;
    Ok(said?)
}

pub(crate) fn pointers_of(mut said: &[u8]) -> Vec<Option<Pointer>> {
    let mut found = vec![];
    while let Some(end) = said.iter().position(|byte| *byte == b'\n') {
        let header = String::from_utf8_lossy(&said[..end]).into_owned();
        said = &said[end + 1..];
        let mut fields = header.split(' ').skip(1);
        let (kind, size) = (fields.next(), fields.next().and_then(|size| size.parse().ok()));
        let Some(content) = size.and_then(|size: usize| said.get(..size)) else {
            found.push(None);
            continue;
        };
        found.push(Pointer::parse(content).filter(|_| kind == Some("blob")));
        said = said.get(content.len() + 1..).unwrap_or_default();
    }
    found
}

/// Returns the objects that the commits `tips` need and `known` commits do not, each with a name of
/// its file.
///
/// # Errors
/// git cannot read the commits.
pub(crate) async fn wanted(
    repo: &Path,
    tips: &[String],
    known: &[&str],
) -> Result<BTreeMap<Pointer, String>, RepoError> {
    if tips.is_empty() {
        return Ok(BTreeMap::new());
    }
    let longest = format!("--filter=blob:limit={}", pointer::LONGEST + 1);
    let mut list = git(repo);
    list.args(["rev-list", "--objects", &longest, "--filter=object:type=blob"]);
    list.args(tips).arg("--not").args(known);
    let said = run_bytes(&mut list, "cannot list the files of the commits").await?;
    let said = String::from_utf8_lossy(&said).into_owned();
    let listed: Vec<(&str, &str)> = said.lines().filter_map(|line| line.split_once(' ')).collect();
    let blobs: Vec<String> = listed.iter().map(|(blob, _)| (*blob).to_string()).collect();
    let pointers = parse(&|| git(repo), &blobs).await?;
    let names = listed.iter().map(|(_, name)| (*name).to_string());
    Ok(pointers.into_iter().zip(names).filter_map(|(one, name)| Some((one?, name))).collect())
}

/// Copies objects that none of the stores has into the first of them. They come from git
/// directories that agents can write, so each is hashed. Returns the files whose content is not
/// there.
///
/// # Errors
/// An object cannot be written.
pub(crate) async fn take(
    wanted: BTreeMap<Pointer, String>,
    stores: Vec<Store>,
    from: Vec<PathBuf>,
    stop: CancellationToken,
) -> Result<Vec<String>, RepoError> {
    let taking = tokio::task::spawn_blocking(move || {
        let Some(to) = stores.first() else { return Ok(vec![]) };
        let (mut missing, mut total) = (vec![], 0_u64);
        let is_stopped = || stop.is_cancelled();
        for (pointer, name) in wanted {
            if stores.iter().any(|store| store.find(&pointer).is_some()) {
                continue;
            }
            total = total.saturating_add(pointer.size);
            let mut is_there = false;
            for git_dir in from.iter().filter(|_| total <= TOTAL_LIMIT) {
                let taken = to.take(&pointer, git_dir, &is_stopped);
                is_there = taken.map_err(FileError::at(git_dir))? == Taken::Done;
                if is_there {
                    break;
                }
            }
            if !is_there {
                missing.push(name);
            }
        }
        Ok::<_, FileError>(missing)
    });
    Ok(taking.await??)
}

/// Copies all objects of a clone that the person's store lacks, before the clone is removed: also
/// those that no commit needs. Returns what stays. An object whose content has another hash is no
/// object, and does not count.
///
/// # Errors
/// An object cannot be written.
pub(crate) async fn take_rest(
    to: Store,
    git_dir: PathBuf,
    stop: CancellationToken,
) -> Result<Option<String>, RepoError> {
    let place = git_dir.clone();
    let (store, mut total) = (to.clone(), 0_u64);
    let listing = tokio::task::spawn_blocking(move || {
        let is_large = |pointer: &Pointer| {
            total = total.saturating_add(pointer.size);
            pointer.size > store::OBJECT_LIMIT || total > TOTAL_LIMIT
        };
        let lacking = store::objects_below(&place).take(OBJECTS_LIMIT + 1);
        lacking.filter(|pointer| store.find(pointer).is_none()).partition::<Vec<_>, _>(is_large)
    });
    let (large, rest): (Vec<_>, Vec<_>) = listing.await?;
    if !large.is_empty() || rest.len() > OBJECTS_LIMIT {
        let large: Vec<_> = large.iter().chain(rest.first()).map(|one| one.oid.as_str()).collect();
        return Ok(Some(format!("objects of git-lfs (too large): {}", named(large.iter()))));
    }
    let rest = rest.into_iter().map(|pointer| (pointer, String::new())).collect();
    let damaged = take(rest, vec![to], vec![git_dir], stop).await?;
    tracing::debug!(count = damaged.len(), "damaged objects of git-lfs");
    Ok(None)
}

/// Describes files whose content did not come home.
pub(crate) fn describe_missing(missing: &[String]) -> Option<String> {
    (!missing.is_empty()).then(|| {
        format!("the content of {}, which git-lfs keeps and the clone lacks", named(missing.iter()))
    })
}
