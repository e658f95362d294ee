//! Resolves symbolic links. A plan asks for the same folders hundreds of times, so each name is
//! read once for each plan.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The most links on the way to a path, as in the kernel.
const LINKS: usize = 40;

/// The answer of the file system about a path whose parent has no links.
#[derive(Debug, Clone)]
enum Name {
    Link(PathBuf),
    /// It is there, and is no link.
    Other,
    Missing,
}

/// The most entries of a folder that is listed.
const ENTRIES: usize = 4096;

/// The answers so far.
#[derive(Debug, Default)]
struct Known {
    names: HashMap<PathBuf, Name>,
    /// Whole paths, and their forms without links.
    paths: HashMap<PathBuf, Option<PathBuf>>,
    /// The names in folders that are asked for many names that do not exist.
    listed: HashMap<PathBuf, HashSet<OsString>>,
}

impl Known {
    /// Whether a listing says that the name does not exist.
    fn is_absent(&self, path: &Path) -> bool {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return false };
        self.listed.get(folder).is_some_and(|names| !names.contains(name))
    }
}

thread_local! {
    /// The answers of the plan that this thread makes; `None` outside of a plan.
    static READ: RefCell<Option<Known>> = const { RefCell::new(None) };
}

/// While it lives, this thread reads each name once.
pub(super) struct ReadOnce;

impl ReadOnce {
    pub(super) fn begin() -> Self {
        READ.set(Some(Known::default()));
        Self
    }
}

impl Drop for ReadOnce {
    fn drop(&mut self) {
        READ.set(None);
    }
}

/// Lists a folder without links, so that absent names in it need no further look. A HOME is asked
/// for some 130 names.
pub(super) fn list(folder: &Path) {
    let names = || {
        let entries = std::fs::read_dir(folder).ok()?.take(ENTRIES + 1);
        let names: HashSet<_> =
            entries.map(|entry| Some(entry.ok()?.file_name())).collect::<Option<_>>()?;
        (names.len() <= ENTRIES).then_some(names)
    };
    READ.with_borrow_mut(|known| {
        if let (Some(known), Some(names)) = (known, names()) {
            known.listed.insert(folder.to_owned(), names);
        }
    });
}

fn read(path: &Path) -> Name {
    match std::fs::read_link(path) {
        Ok(to) => Name::Link(to),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            Name::Other
        }
        Err(_) => Name::Missing,
    }
}

/// Reads a name, or returns the earlier answer. A plan can make a missing folder, so an earlier
/// `Missing` counts only if `absence` says so.
fn read_once(path: &Path, absence: bool) -> Name {
    READ.with_borrow_mut(|known| {
        let Some(known) = known else { return read(path) };
        match known.names.get(path) {
            Some(Name::Missing) if !absence => {}
            Some(answer) => return answer.clone(),
            None if absence && known.is_absent(path) => return Name::Missing,
            None => {}
        }
        let answer = read(path);
        known.names.insert(path.to_owned(), answer.clone());
        answer
    })
}

/// Returns the links on the way to `path`, and the target. A process that can write beside a link
/// could redirect it. If the target is missing, returns the folder where it would be made.
pub(super) fn followed(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    let at = walk(path, false, |link| found.push(link));
    found.extend(at.map(|(at, _)| at));
    found
}

/// Returns the path without links; `None` if it does not exist.
pub(super) fn canonical(path: &Path) -> Option<PathBuf> {
    if !path.is_absolute() {
        return std::fs::canonicalize(path).ok();
    }
    let earlier = |known: &Option<Known>| known.as_ref()?.paths.get(path).cloned();
    if let Some(found) = READ.with_borrow(earlier) {
        return found;
    }
    let found = match (path.parent(), path.file_name()) {
        (None, _) => Some(path.to_owned()),
        (Some(parent), Some(name)) => canonical(parent).and_then(|parent| {
            let next = parent.join(name);
            match read_once(&next, true) {
                Name::Other => Some(next),
                Name::Link(_) => whole(&next),
                Name::Missing => None,
            }
        }),
        // It ends in `..`.
        (Some(_), None) => whole(path),
    };
    READ.with_borrow_mut(|known| {
        let Some(known) = known else { return };
        known.paths.insert(path.to_owned(), found.clone());
    });
    found
}

fn whole(path: &Path) -> Option<PathBuf> {
    walk(path, true, |_| ()).and_then(|(at, is_whole)| is_whole.then_some(at))
}

/// Resolves links in the existing part of a path: mounts follow links, so hidden paths must not
/// have any.
pub(in crate::dispatch::confine) fn real(path: PathBuf) -> PathBuf {
    let mut rest = vec![];
    let mut at = path.as_path();
    loop {
        if let Some(found) = canonical(at) {
            return rest.iter().rev().fold(found, |path: PathBuf, name| path.join(name));
        }
        let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { return path };
        rest.push(name.to_owned());
        at = parent;
    }
}

/// Follows `path` name by name, and calls `link` for each link. Returns the end, and whether that
/// is all of the path; `None` if there are too many links.
fn walk(path: &Path, absence: bool, mut link: impl FnMut(PathBuf)) -> Option<(PathBuf, bool)> {
    let mut links = 0;
    let mut at = PathBuf::from("/");
    let mut rest: Vec<OsString> =
        path.components().rev().map(|part| part.as_os_str().to_owned()).collect();
    while let Some(name) = rest.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        // An absolute link starts at the root again.
        let next = at.join(name);
        if next.parent().is_none() {
            at = next;
            continue;
        }
        match read_once(&next, absence) {
            Name::Link(_) if links == LINKS => return None,
            Name::Link(to) => {
                rest.extend(to.components().rev().map(|part| part.as_os_str().to_owned()));
                links += 1;
                link(next);
            }
            Name::Other => at = next,
            Name::Missing => return Some((at, false)),
        }
    }
    Some((at, true))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn resolution_is_that_of_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::write(top.join("a/file"), "").unwrap();
        symlink("b/../file", top.join("a/relative")).unwrap();
        symlink(top.join("a"), top.join("absolute")).unwrap();
        symlink("missing", top.join("dangling")).unwrap();
        symlink("loop", top.join("loop")).unwrap();
        for (known, listed) in [(false, false), (true, false), (true, true)] {
            let _read_once = known.then(ReadOnce::begin);
            if listed {
                list(&top);
            }
            for name in
                ["a/b", "absolute/relative", "absolute/b/..", "dangling", "loop", "a/file/x", "no"]
            {
                let path = top.join(name);
                for _ in 0..2 {
                    assert_eq!(canonical(&path), fs::canonicalize(&path).ok(), "{name}");
                }
            }
            assert_eq!(real(top.join("absolute/no/more")), top.join("a/no/more"));
            assert_eq!(real(top.join("dangling/x")), top.join("dangling/x"));
            assert_eq!(canonical(Path::new("/")), Some("/".into()));
        }
    }

    #[test]
    fn folder_that_is_made_during_a_plan_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let top = fs::canonicalize(dir.path()).unwrap();
        let path = top.join("made");
        let _read_once = ReadOnce::begin();
        list(&top);
        assert_eq!(real(path.clone()), path);
        assert_eq!(followed(&path), [top]);
        fs::create_dir(&path).unwrap();
        assert_eq!(real(path.clone()), path);
        assert_eq!(followed(&path), [path]);
    }
}
