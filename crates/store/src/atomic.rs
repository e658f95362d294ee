//! Files that are replaced atomically, and directories that survive a power failure.

use crate::error::StoreError;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Temporary files are `.<name>.tmp-<pid>-<n>`.
const MARK: &str = ".tmp-";

/// Replaces `path` by `bytes` atomically: temporary file beside it, fsync, rename, fsync of the
/// directory. A reader of `path` sees all of the old file or all of the new one, also after a power
/// failure. `mode` is exact: the umask does not change it.
///
/// # Errors
/// `E_STORE_IO`. The old file is unchanged, unless only the directory's fsync failed: then the new
/// one is there, but may be gone after a power failure.
pub fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> Result<(), StoreError> {
    durable(path, bytes, mode)?.rename(path)
}

/// Works like [`write_atomic`], but asks `still` right before the rename, and replaces the file
/// only if it returns true. Returns whether it replaced the file.
///
/// # Errors
/// As [`write_atomic`].
pub fn write_atomic_if(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    still: impl FnOnce() -> bool,
) -> Result<bool, StoreError> {
    let temporary = durable(path, bytes, mode)?;
    if !still() {
        return Ok(false);
    }
    temporary.rename(path).map(|()| true)
}

/// Writes files in place with `mode` (less the umask), and makes them and the directories durable,
/// with one common wait for the disk. No reader may rely on the files before this returns. The
/// directories must exist and must include each one that got a new entry.
///
/// # Errors
/// `E_STORE_IO`. Any of the files may then exist, complete or in part, as after a kill: call it
/// again.
pub fn write_first(files: &[(&Path, &[u8])], dirs: &[&Path], mode: u32) -> Result<(), StoreError> {
    /// More threads would wait for one another in the kernel.
    const LANES: usize = 2;
    let mut lanes: [Vec<(&Path, File)>; LANES] = Default::default();
    let mut count = 0;
    let mut put = |path, file| {
        lanes[count % LANES].push((path, file));
        count += 1;
    };
    for &(path, bytes) in files {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(mode).open(path);
        let written = file.and_then(|mut file| file.write_all(bytes).map(|()| file));
        put(path, written.map_err(StoreError::io(path, "write"))?);
    }
    for &path in dirs {
        put(path, File::open(path).map_err(StoreError::io(path, "make durable"))?);
    }
    let sync = |lane: &Vec<(&Path, File)>| {
        lane.iter().try_for_each(|(path, file)| {
            file.sync_all().map_err(StoreError::io(path, "make durable"))
        })
    };
    together(&lanes, sync).into_iter().collect()
}

/// Replaces `path` atomically for readers, without waiting for the disk: after a power failure the
/// file may be old, new, empty or gone. For data that can be regenerated.
///
/// # Errors
/// `E_STORE_IO`; the old file is then unchanged.
pub fn write_whole(path: &Path, bytes: &[u8], mode: u32) -> Result<(), StoreError> {
    let (temporary, _) = filled(path, bytes, mode)?;
    fs::rename(&temporary.0, path).map_err(StoreError::io(path, "replace"))
}

/// Gives `path` these contents for the processes of this boot, without waiting for the disk. A
/// regular file that has them stays as it is; else as [`write_whole`].
///
/// # Errors
/// `E_STORE_IO`; the old file is then unchanged.
pub fn write_if_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), StoreError> {
    let has = || -> io::Result<bool> {
        let meta = fs::symlink_metadata(path)?;
        let fits = meta.is_file()
            && meta.len() == bytes.len() as u64
            && meta.permissions().mode() & 0o7777 == mode;
        Ok(fits && fs::read(path)? == bytes)
    };
    // A file that cannot be read is replaced.
    if has().unwrap_or(false) { Ok(()) } else { write_whole(path, bytes, mode) }
}

/// Writes the future contents of `path` to a temporary file beside it.
fn filled(path: &Path, bytes: &[u8], mode: u32) -> Result<(Temporary, File), StoreError> {
    let fail = |doing| StoreError::io(path, doing);
    let temporary = Temporary::beside(path).map_err(fail("write"))?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode & 0o600)
        .open(&temporary.0)
        .map_err(fail("write"))?;
    file.write_all(bytes).map_err(fail("write"))?;
    file.set_permissions(Permissions::from_mode(mode)).map_err(fail("set the mode of"))?;
    Ok((temporary, file))
}

/// Works like [`filled`], and makes the file durable.
fn durable(path: &Path, bytes: &[u8], mode: u32) -> Result<Temporary, StoreError> {
    let (temporary, file) = filled(path, bytes, mode)?;
    file.sync_all().map_err(StoreError::io(path, "make durable"))?;
    Ok(temporary)
}

/// Replaces several snapshots at once, each atomically, with one common wait for the disk. For data
/// that can be regenerated: after a power failure the old file may be back, because the directory
/// is not synced. The results are in the files' order; an error is as of [`write_atomic`].
pub fn replace_snapshots(files: &[(&Path, &[u8])], mode: u32) -> Vec<Result<(), StoreError>> {
    together(files, |(path, bytes)| {
        let temporary = durable(path, bytes, mode)?;
        fs::rename(&temporary.0, path).map_err(StoreError::io(path, "replace"))
    })
}

/// Does the same to each item concurrently, so that all wait for the disk at the same time. For few
/// items: each has a thread.
fn together<I: Sync, T: Send>(items: &[I], one: impl Fn(&I) -> T + Sync) -> Vec<T> {
    let Some((first, rest)) = items.split_first() else { return vec![] };
    let one = &one;
    std::thread::scope(|scope| {
        let start = |item| std::thread::Builder::new().spawn_scoped(scope, move || one(item));
        let others: Vec<_> = rest.iter().map(start).collect();
        let mut results = vec![one(first)];
        for (item, other) in rest.iter().zip(others) {
            results.push(match other {
                Ok(thread) => {
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                }
                // The system has no room for another thread, so this item is done here.
                Err(_) => one(item),
            });
        }
        results
    })
}

/// The temporary file of one replacement; removed on drop unless renamed.
pub(crate) struct Temporary(pub PathBuf);

impl Temporary {
    pub(crate) fn beside(path: &Path) -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let mut hidden = OsStr::new(".").to_os_string();
        hidden.push(name);
        hidden.push(format!(
            "{MARK}{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        ));
        let temporary = path.with_file_name(hidden);
        // A file with this name is from a killed process that had our pid.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(Self(temporary)),
        }
    }

    /// Renames it to `path`, durably.
    pub(crate) fn rename(self, path: &Path) -> Result<(), StoreError> {
        fs::rename(&self.0, path).map_err(StoreError::io(path, "replace"))?;
        sync_dir(parent(path))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename no file has this name.
        drop(fs::remove_file(&self.0));
    }
}

/// Creates `path` and its missing parents, each with `mode` (less the umask) and durable in its
/// parent. An existing directory is unchanged.
///
/// # Errors
/// `E_STORE_IO`, also if something other than a directory has that name.
pub fn create_dir_durable(path: &Path, mode: u32) -> Result<(), StoreError> {
    if path.is_dir() {
        return Ok(());
    }
    let above = parent(path);
    if above != path && !above.is_dir() {
        create_dir_durable(above, mode)?;
    }
    create_dir(path, mode)?;
    sync_dir(above)
}

/// Creates `path`, whose parent exists, with `mode` (less the umask). The caller must make it
/// durable. An existing directory is unchanged.
///
/// # Errors
/// `E_STORE_IO`, also if something other than a directory has that name.
pub fn create_dir(path: &Path, mode: u32) -> Result<(), StoreError> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        other => other.map_err(StoreError::io(path, "create")),
    }
}

/// Makes the entries of a directory durable: created, renamed and removed files.
///
/// # Errors
/// `E_STORE_IO`.
pub fn sync_dir(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|dir| dir.sync_all())
        .map_err(StoreError::io(path, "make durable"))
}

/// Renames a finished folder to its final name. A process that finds it there finds all of it, also
/// after a power failure. Each file and folder in it is synced, so it must be a small folder of our
/// own.
///
/// # Errors
/// `E_STORE_IO`. The folder has its final name then only if just the sync of its parent failed.
pub fn put_dir(made: &Path, place: &Path) -> Result<(), StoreError> {
    sync_all_below(made)?;
    fs::rename(made, place).map_err(StoreError::io(place, "create"))?;
    sync_dir(parent(place))
}

/// Makes a file durable that another program has written.
///
/// # Errors
/// `E_STORE_IO`.
pub fn sync_file(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(StoreError::io(path, "make durable"))
}

fn sync_all_below(dir: &Path) -> Result<(), StoreError> {
    for entry in fs::read_dir(dir).map_err(StoreError::io(dir, "list"))? {
        let entry = entry.map_err(StoreError::io(dir, "list"))?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(StoreError::io(dir, "list"))?);
        if kind.is_dir() {
            sync_all_below(&path)?;
        } else if kind.is_file() {
            sync_file(&path)?;
        }
    }
    sync_dir(dir)
}

/// Removes temporary files that a killed [`write_atomic`] left in `dir`; returns how many. Call it
/// only if no other process writes there, because it would remove a living writer's file.
///
/// # Errors
/// `E_STORE_IO`.
pub fn clean_leftovers(dir: &Path) -> Result<u32, StoreError> {
    let fail = |doing| StoreError::io(dir, doing);
    let mut removed = 0;
    for entry in fs::read_dir(dir).map_err(fail("list"))? {
        let entry = entry.map_err(fail("list"))?;
        if is_leftover(&entry.file_name()) && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            fs::remove_file(entry.path()).map_err(fail("clean"))?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn is_leftover(name: &OsStr) -> bool {
    let Some((stem, numbers)) = name.to_str().and_then(|name| name.rsplit_once(MARK)) else {
        return false;
    };
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    stem.len() > 1
        && stem.starts_with('.')
        && numbers.split_once('-').is_some_and(|(a, b)| digits(a) && digits(b))
}

/// Returns the directory that contains a path; `.` for a bare name.
fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(above) if above.as_os_str().is_empty() => Path::new("."),
        Some(above) => above,
        None => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_file_is_replaced_whole_with_its_mode() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("meta.json");
        write_atomic(&path, b"one", 0o600).expect("writes");
        write_atomic(&path, b"two", 0o644).expect("writes");
        assert_eq!(fs::read(&path).expect("reads"), b"two");
        assert_eq!(fs::metadata(&path).expect("is there").permissions().mode() & 0o7777, 0o644);
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 1, "nothing is left over");
    }

    /// A file of another kind, content or mode is replaced; one that fits is not written again.
    #[test]
    fn file_that_has_the_contents_already_is_not_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("file"), dir.path().join("other"));
        let inode = || fs::symlink_metadata(&path).unwrap().ino();
        write_if_new(&path, b"one", 0o600).unwrap();
        let first = inode();
        write_if_new(&path, b"one", 0o600).unwrap();
        assert_eq!(inode(), first, "it stays");
        fs::write(&other, "two").unwrap();
        let changes: [&dyn Fn(); 4] = [
            &|| fs::write(&path, "two").unwrap(),
            &|| fs::write(&path, "longer").unwrap(),
            &|| fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap(),
            &|| {
                fs::remove_file(&path).unwrap();
                fs::write(&other, "one").unwrap();
                std::os::unix::fs::symlink(&other, &path).unwrap();
            },
        ];
        for change in changes {
            change();
            write_if_new(&path, b"one", 0o600).unwrap();
            let meta = fs::symlink_metadata(&path).unwrap();
            assert!(meta.is_file() && meta.permissions().mode() & 0o7777 == 0o600);
            assert_eq!(fs::read(&path).unwrap(), b"one");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary file is left");
    }

    #[test]
    fn changed_file_is_not_replaced_and_leaves_no_temporary_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("journal.md");
        write_atomic(&path, b"one", 0o644).expect("writes");
        for (same, then) in [(false, b"one"), (true, b"two")] {
            assert_eq!(write_atomic_if(&path, b"two", 0o644, || same).expect("writes"), same);
            assert_eq!(fs::read(&path).expect("reads"), then);
            assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 1);
        }
    }

    #[test]
    fn a_failed_replacement_leaves_the_old_one_and_no_litter() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("taken");
        fs::create_dir_all(path.join("full")).expect("creates");
        let error = write_atomic(&path, b"x", 0o600).expect_err("a directory is in the way");
        assert_eq!((error.code().as_str(), error.file()), ("E_STORE_IO", path.as_path()));
        assert!(path.join("full").is_dir());
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 1);
    }

    #[test]
    fn several_files_are_replaced_independently_in_order() {
        let dir = tempfile::tempdir().expect("a directory");
        let paths = ["one", "taken", "two"].map(|name| dir.path().join(name));
        fs::create_dir_all(paths[1].join("full")).expect("creates");
        let files = [0, 1, 2].map(|at| (paths[at].as_path(), [b'a' + at as u8; 3]));
        let results =
            replace_snapshots(&files.each_ref().map(|(path, bytes)| (*path, &bytes[..])), 0o640);
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!(
            (fs::read(&paths[0]).expect("reads"), fs::read(&paths[2]).expect("reads")),
            (b"aaa".to_vec(), b"ccc".to_vec())
        );
        assert!(replace_snapshots(&[], 0o600).is_empty());
    }

    #[test]
    fn repeated_first_write_leaves_a_complete_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        fs::write(&one, "what a killed writer left, and longer").expect("writes");
        write_first(&[(&one, b"1"), (&two, b"2")], &[dir.path()], 0o600).expect("writes");
        let read = |path| fs::read_to_string(path).expect("reads");
        assert_eq!((read(&one), read(&two)), ("1".into(), "2".into()));
        assert_eq!(fs::metadata(&two).expect("is there").permissions().mode() & 0o777, 0o600);
        let taken = dir.path().join("taken");
        fs::create_dir(&taken).expect("creates");
        let error = write_first(&[(&one, b"3"), (&taken, b"4")], &[], 0o600)
            .expect_err("a directory is in the way");
        assert_eq!(error.file(), taken);
    }

    #[test]
    fn only_our_own_leftovers_are_cleaned() {
        let dir = tempfile::tempdir().expect("a directory");
        let keep = ["meta.json", ".meta.json.tmp-", ".x.tmp-12-a", "x.tmp-1-2", ".tmp-1-2"];
        for name in keep.iter().chain(&[".meta.json.tmp-12-0", ".a.tmp-b.tmp-1-2"]) {
            fs::write(dir.path().join(name), "").expect("writes");
        }
        assert_eq!(clean_leftovers(dir.path()).expect("cleans"), 2);
        assert!(keep.iter().all(|name| dir.path().join(name).exists()));
    }

    #[test]
    fn missing_parents_are_created_and_a_file_in_the_way_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        let deep = dir.path().join("a/b/c");
        create_dir_durable(&deep, 0o700).expect("creates");
        create_dir_durable(&deep, 0o700).expect("again");
        assert_eq!(fs::metadata(&deep).expect("is there").permissions().mode() & 0o777, 0o700);
        fs::write(deep.join("f"), "").expect("writes");
        assert!(create_dir_durable(&deep.join("f"), 0o700).is_err());
    }
}
