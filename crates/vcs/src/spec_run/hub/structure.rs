//! Checks whether git can work with a hub. The hub is read as plain files, because no git may run
//! in a place that agents can write.

use crate::spec_run::RunPaths;
use crate::spec_run::hub::repair::{FIXED, FIXED_LIMIT, is_known};
use crate::spec_run::private_repo::{self, SHALLOW};
use crate::untrusted_path;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tokio_util::sync::CancellationToken;

pub(super) const PACKED: &str = "packed-refs";
/// Grafts give commits other parents, so a push would be verified against a false history.
const GRAFTS: &str = "info/grafts";
/// Files that a hub may have, and locks that git creates as files.
const FILES: [&str; 9] = [
    PACKED,
    SHALLOW,
    "description",
    "HEAD.lock",
    "packed-refs.lock",
    "packed-refs.new",
    "config.lock",
    "index.lock",
    "shallow.lock",
];
const FOLDERS: [&str; 7] =
    ["objects", "refs", "refs/heads", "objects/info", "objects/pack", "hooks", "info"];
/// At most this many objects are checked.
const OBJECTS_LIMIT: usize = 20_000;
/// The limit of entries. A hub has one branch and 256 folders of objects.
const ENTRIES_LIMIT: usize = 10_000;
/// The limit for the size of `packed-refs` and `shallow`. No hub's files are longer.
pub(super) const REFS_LIMIT: u64 = 8 << 20;

/// Returns a description of the damage that keeps git from working with the hub, if any.
pub(super) fn damage(paths: &RunPaths, target: &str) -> Option<String> {
    let hub = paths.hub();
    let at = |name: &str| std::fs::symlink_metadata(hub.join(name));
    match std::fs::symlink_metadata(&hub) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Some("it is not a directory".into()),
        Err(error) => return Some(error.to_string()),
    }
    let name = format!("refs/heads/{target}");
    let above = name.match_indices('/').map(|(at, _)| name[..at].to_string());
    for folder in FOLDERS.map(String::from).into_iter().chain(above) {
        let needed = folder == "objects" || folder == "refs";
        match at(&folder) {
            Ok(meta) if !meta.is_dir() => return Some(format!("{folder} is not a directory")),
            Err(error) if needed => return Some(format!("{folder}: {error}")),
            _ => {}
        }
    }
    let is_odd = |meta: std::io::Result<Metadata>| meta.is_ok_and(|meta| !meta.is_file());
    let known = is_known(paths);
    let fixed = FIXED.iter().map(|(name, _)| *name);
    let lock = format!("{name}.lock");
    for file in FILES.into_iter().chain(fixed).chain([name.as_str(), lock.as_str()]) {
        if is_odd(at(file)) {
            return Some(format!("{file} is not a file"));
        }
    }
    // A hub of an earlier version has no reference copies to compare with.
    if !known && at("HEAD").is_err() {
        return Some("HEAD is missing".into());
    }
    if let Ok(Some(text)) = untrusted_path::read(&hub, Path::new(&name), FIXED_LIMIT)
        && private_repo::hash(&text).is_none()
    {
        return Some(format!("{name} is not a commit"));
    }
    misplaced(&hub).or_else(|| unreadable(&hub))
}

/// Describes an entry that must not exist, or that has another file type than git expects.
fn misplaced(hub: &Path) -> Option<String> {
    let entries = |name: &str| std::fs::read_dir(hub.join(name)).into_iter().flatten().flatten();
    // git runs hooks for the agent that pushes, and only that agent's own sandbox confines them.
    if let Some(hook) = entries("hooks").next() {
        return Some(format!("hooks/{} exists", hook.file_name().to_string_lossy()));
    }
    if std::fs::symlink_metadata(hub.join(GRAFTS)).is_ok() {
        return Some(format!("{GRAFTS} exists"));
    }
    for entry in entries("objects").take(ENTRIES_LIMIT) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_fan_out(&name) && !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            return Some(format!("objects/{name} is not a directory"));
        }
    }
    let (mut folders, mut seen) = (vec![PathBuf::from("refs")], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(hub.join(&folder)).into_iter().flatten().flatten() {
            let path = folder.join(entry.file_name());
            seen += 1;
            if seen > ENTRIES_LIMIT {
                return Some("it has too many refs".into());
            }
            // An entry that has disappeared meanwhile was a lock.
            let Ok(kind) = entry.file_type() else { continue };
            let is_lock = path.extension().is_some_and(|kind| kind == "lock");
            match kind {
                kind if kind.is_dir() && !is_lock => folders.push(path),
                kind if kind.is_file() => {}
                _ => return Some(format!("{} is not a file", path.display())),
            }
        }
    }
    None
}

/// Describes a list of commits that git cannot parse. git reads nothing in such a hub.
fn unreadable(hub: &Path) -> Option<String> {
    let is_list = |name: &str, is_line: fn(&[u8]) -> bool| {
        let text =
            untrusted_path::read(hub, Path::new(name), REFS_LIMIT).map(Option::unwrap_or_default);
        let whole = text.as_ref().is_ok_and(|text| text.is_empty() || text.ends_with(b"\n"));
        whole
            && text.is_ok_and(|text| {
                text.split(|byte| *byte == b'\n').all(|line| line.is_empty() || is_line(line))
            })
    };
    type IsReadable = fn(&[u8]) -> bool;
    let lists: [(&str, IsReadable); 2] =
        [(PACKED, is_packed), (SHALLOW, |line| private_repo::hash(line).is_some())];
    let broken = lists.into_iter().find(|(name, is_line)| !is_list(name, *is_line));
    broken.map(|(name, _)| format!("{name} cannot be read"))
}

/// Whether a line of `packed-refs` is a comment, a ref, or the commit that the tag before it leads
/// to.
fn is_packed(line: &[u8]) -> bool {
    match line {
        [b'#', ..] => true,
        [b'^', hash @ ..] => private_repo::hash(hash).is_some(),
        line => packed(line).is_some(),
    }
}

/// Returns the commit and the name of a ref in a line of `packed-refs`.
pub(super) fn packed(line: &[u8]) -> Option<(String, &[u8])> {
    let space = line.iter().position(|byte| *byte == b' ')?;
    let name = &line[space + 1..];
    let is_name = name.starts_with(b"refs/")
        && !name.iter().any(|byte| byte.is_ascii_control() || *byte == b' ');
    private_repo::hash(&line[..space]).filter(|_| is_name).map(|hash| (hash, name))
}

fn is_fan_out(name: &str) -> bool {
    name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Describes a broken object file: no regular file, or one without git's header. The check stops
/// when the run is stopped.
pub(super) fn broken_object(hub: &Path, halt: &CancellationToken) -> Option<String> {
    let folder = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
    let objects = hub.join("objects");
    let mut seen = 0;
    for entry in folder(objects).take(OBJECTS_LIMIT) {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_fan_out(&name) && name != "pack" {
            continue;
        }
        for object in folder(entry.path()) {
            seen += 1;
            if seen > OBJECTS_LIMIT || halt.is_cancelled() {
                return None;
            }
            let file = object.file_name().to_string_lossy().into_owned();
            let whole = match file.rsplit_once('.') {
                // git has such temporary files while a push is under way.
                _ if file.starts_with("tmp_") || file.starts_with(".tmp") => true,
                Some((_, "pack")) => begins(&object.path(), |bytes| bytes.starts_with(b"PACK")),
                Some((_, "idx")) => begins(&object.path(), |bytes| bytes.starts_with(b"\xfftOc")),
                Some(_) => true,
                None if name == "pack" => true,
                None => begins(&object.path(), is_zlib),
            };
            if !whole {
                return Some(format!("objects/{name}/{file} is not an object"));
            }
        }
    }
    None
}

/// Checks the header of RFC 1950, section 2.2.
fn is_zlib(bytes: &[u8]) -> bool {
    let [method, flags, ..] = bytes else { return false };
    method & 0x0f == 8 && u16::from_be_bytes([*method, *flags]).is_multiple_of(31)
}

/// Whether a file begins as it should. A file that has disappeared meanwhile counts as whole.
fn begins(path: &Path, is_right: impl Fn(&[u8]) -> bool) -> bool {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let mut options = std::fs::OpenOptions::new();
    let file = match options.read(true).custom_flags(flags.bits().cast_signed()).open(path) {
        Ok(file) => file,
        Err(error) => return error.kind() == std::io::ErrorKind::NotFound,
    };
    let mut bytes = vec![];
    let is_file = file.metadata().is_ok_and(|meta| meta.is_file());
    is_file && file.take(8).read_to_end(&mut bytes).is_ok() && is_right(&bytes)
}
