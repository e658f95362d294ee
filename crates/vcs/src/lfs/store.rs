//! The folder in which git-lfs keeps files, each by the SHA-256 of its content.

use crate::command::own_config_of;
use crate::lfs::pointer::Pointer;
use crate::untrusted_path;
use muleteer_store::atomic::create_dir_durable;
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A larger object of an agent is not brought home.
pub(crate) const OBJECT_LIMIT: u64 = 16 << 30;
/// The number of bytes that are read at once.
const PIECE: usize = 1 << 20;

/// The objects of one repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Store(PathBuf);

/// The result of copying an object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Done,
    /// The source does not have it, or has something else under its name.
    Missing,
    TooLarge,
    /// Nobody waits for it any more.
    Stopped,
}

impl Store {
    /// Returns the store of a git directory without a configuration of its own.
    pub fn below(git_dir: &Path) -> Self {
        Self(git_dir.join("lfs/objects"))
    }

    /// Returns the store of a person's repository with this common git directory. The person may
    /// have chosen another place.
    pub async fn of_person(repo: &Path, common_dir: &Path) -> Self {
        let chosen = own_config_of(repo, &["--type=path", "lfs.storage"]).await;
        Self::chosen(common_dir, &chosen.unwrap_or_default())
    }

    /// Returns the store in the place that a person has configured; the usual one if it is empty.
    pub fn chosen(common_dir: &Path, place: &str) -> Self {
        match place {
            "" => Self::below(common_dir),
            place => Self(common_dir.join(place).join("objects")),
        }
    }

    /// Returns the path of an object in the store.
    fn name(pointer: &Pointer) -> PathBuf {
        let oid = pointer.oid.as_str();
        [&oid[..2], &oid[2..4], oid].iter().collect()
    }

    /// Returns the file of an object, if the store has it.
    pub fn find(&self, pointer: &Pointer) -> Option<PathBuf> {
        let path = self.0.join(Self::name(pointer));
        let is_whole = |meta: &std::fs::Metadata| meta.is_file() && meta.len() == pointer.size;
        std::fs::metadata(&path).is_ok_and(|meta| is_whole(&meta)).then_some(path)
    }

    /// Makes the folder, which shows that the repository keeps large files.
    pub fn make(&self) -> io::Result<()> {
        std::fs::create_dir_all(&self.0)
    }

    /// Puts an object that a store of the person or of ours has into a clone that nobody works in
    /// yet, and returns its file. It is copied: its agent may write to the file. `None` if the
    /// store has other content under that name. An agent may have put a link to a secret there.
    pub fn put_in_clone(&self, pointer: &Pointer, from: &Path) -> io::Result<Option<PathBuf>> {
        let path = self.0.join(Self::name(pointer));
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::copy(from, &path)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644))?;
        if has_hash(File::open(&path)?, pointer) {
            return Ok(Some(path));
        }
        std::fs::remove_file(&path)?;
        Ok(None)
    }

    /// Copies an object from the store of a git directory that an agent can write. The object gets
    /// its name only if its content has that hash, and durably.
    ///
    /// # Errors
    /// The object cannot be written here.
    pub fn take(
        &self,
        pointer: &Pointer,
        from: &Path,
        is_stopped: &dyn Fn() -> bool,
    ) -> io::Result<Taken> {
        let name = Path::new("lfs/objects").join(Self::name(pointer));
        let Ok(Some(source)) = untrusted_path::open(from, &name) else {
            return Ok(Taken::Missing);
        };
        if !source.metadata().is_ok_and(|meta| meta.len() == pointer.size) {
            return Ok(Taken::Missing);
        }
        if pointer.size > OBJECT_LIMIT {
            return Ok(Taken::TooLarge);
        }
        let path = self.0.join(Self::name(pointer));
        let Some(parent) = path.parent() else { return Ok(Taken::Missing) };
        create_dir_durable(parent, 0o777).map_err(io::Error::other)?;
        let temporary = Temporary::beside(parent, &pointer.oid);
        let mut to = OpenOptions::new().write(true).create_new(true).open(&temporary.0)?;
        match copy(source, &mut to, pointer, is_stopped)? {
            Taken::Done => {}
            other => return Ok(other),
        }
        to.sync_all()?;
        std::fs::rename(&temporary.0, &path)?;
        File::open(parent)?.sync_all()?;
        Ok(Taken::Done)
    }

    /// Takes every object of another store of ours.
    ///
    /// # Errors
    /// One cannot be read or written.
    pub fn take_all(&self, from: &Path) -> io::Result<()> {
        for pointer in objects_below(from) {
            if self.find(&pointer).is_none() {
                self.take(&pointer, from, &|| false)?;
            }
        }
        Ok(())
    }
}

/// Returns the objects in the store of a git directory, without a look at their content. Follows no
/// link.
pub(crate) fn objects_below(git_dir: &Path) -> impl Iterator<Item = Pointer> {
    let folders = |path: PathBuf| {
        let is_folder = std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir());
        let entries = is_folder.then(|| std::fs::read_dir(path)).into_iter().flatten();
        entries.flatten().flatten().map(|entry| entry.path())
    };
    let objects = folders(git_dir.join("lfs/objects")).flat_map(folders).flat_map(folders);
    objects.filter_map(|object| {
        let name = object.file_name()?.to_str()?;
        let size = std::fs::symlink_metadata(&object).ok().filter(|meta| meta.is_file())?.len();
        // A leftover of a killed copy has another name.
        let said =
            format!("version https://git-lfs.github.com/spec/v1\noid sha256:{name}\nsize {size}\n");
        Pointer::parse(said.as_bytes())
    })
}

/// A file that is removed on drop, if it still has that name.
struct Temporary(PathBuf);

impl Temporary {
    fn beside(parent: &Path, oid: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!(".{oid}.muleteer-{}-{number}", std::process::id()));
        // A file with this name is from a killed process that had our pid.
        drop(std::fs::remove_file(&path));
        Self(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

/// Copies the content, if it has the pointer's hash.
fn copy(
    source: File,
    to: &mut impl Write,
    pointer: &Pointer,
    is_stopped: &dyn Fn() -> bool,
) -> io::Result<Taken> {
    let mut source = source.take(pointer.size);
    let (mut hash, mut piece) = (Sha256::new(), vec![0; PIECE]);
    loop {
        if is_stopped() {
            return Ok(Taken::Stopped);
        }
        // A source that cannot be read is an agent's doing, and counts as missing.
        let Ok(length) = source.read(&mut piece) else { return Ok(Taken::Missing) };
        if length == 0 {
            break;
        }
        hash.update(&piece[..length]);
        to.write_all(&piece[..length])?;
    }
    Ok(if hex(hash) == pointer.oid { Taken::Done } else { Taken::Missing })
}

/// Whether a file has the content that the pointer names. `root` is a folder that an agent can
/// write.
pub(crate) fn has_content(root: &Path, name: &Path, pointer: &Pointer) -> bool {
    let Ok(Some(file)) = untrusted_path::open(root, name) else { return false };
    let is_long = file.metadata().is_ok_and(|meta| meta.len() == pointer.size);
    is_long && pointer.is_plain && pointer.size <= OBJECT_LIMIT && has_hash(file, pointer)
}

/// Whether a file has the pointer's hash.
fn has_hash(file: File, pointer: &Pointer) -> bool {
    copy(file, &mut io::sink(), pointer, &|| false).is_ok_and(|taken| taken == Taken::Done)
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
