//! A model of folders and files with their synced and unsynced state, and the part that a power cut
//! leaves.

use crate::crash::Dice;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The file whose time is the beginning of a run. Programs that changed later are not run, and the
/// programs of a test are made after the boot.
const BEGUN: &str = "objects/info/alternates";

/// The part of the unsynced state that the disk keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    Nothing,
    /// The names; the files are empty or have their synced content.
    Names,
    Everything,
    /// A different part of each file and each directory.
    Some,
}

impl Kept {
    pub fn of(dice: &mut Dice) -> Self {
        [Self::Nothing, Self::Names, Self::Everything, Self::Some, Self::Some]
            [dice.below(5) as usize]
    }
}

/// A change of a file below a root, or an effect of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    Open {
        path: PathBuf,
        truncate: bool,
    },
    /// Writes at the file's end if `at` is none.
    Write {
        path: PathBuf,
        at: Option<u64>,
        bytes: Vec<u8>,
    },
    Truncate {
        path: PathBuf,
        len: u64,
    },
    Rename {
        from: PathBuf,
        to: PathBuf,
    },
    /// Exchanges the names of two files.
    Exchange {
        one: PathBuf,
        other: PathBuf,
    },
    Link {
        from: PathBuf,
        to: PathBuf,
    },
    Remove(PathBuf),
    Folder(PathBuf),
    Sync(PathBuf),
    /// Syncs the whole file system.
    SyncAll,
    /// Starts the write-back of a file's data, which the next sync of anything completes. git's
    /// `batch` relies on that.
    WriteBack(PathBuf),
    Effect(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    Folder(usize),
    File(usize),
}

#[derive(Debug, Clone, Default)]
struct File {
    now: Vec<u8>,
    synced: Vec<u8>,
    written_back: Option<Vec<u8>>,
}

type Change = (OsString, Option<Node>);

#[derive(Debug, Clone, Default)]
struct Folder {
    now: BTreeMap<OsString, Node>,
    synced: BTreeMap<OsString, Node>,
    /// The changes since the last sync, in order. Changes in one inner list happened atomically.
    changed: Vec<Vec<Change>>,
}

#[derive(Debug, Clone)]
struct Root {
    path: PathBuf,
    folder: usize,
    names: Names,
}

/// The moment at which names below a root are certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// When their directory is synced.
    Synced,
    /// With the next sync of anything, on which git relies.
    Journal,
    /// At once, together with the files' content: the root is on another machine. Its git notices
    /// that its caller is gone, and removes its lock files.
    Elsewhere,
}

#[derive(Debug, Clone, Default)]
pub struct Disk {
    files: Vec<File>,
    folders: Vec<Folder>,
    roots: Vec<Root>,
}

impl Disk {
    /// Adds a directory with everything that is in it now.
    ///
    /// A root that is below another one must be added after it.
    pub fn root(&mut self, path: &Path, names: Names) {
        let folder = self.load(path);
        self.roots.push(Root { path: path.into(), folder, names });
    }

    pub fn roots(&self) -> Vec<PathBuf> {
        self.roots.iter().map(|root| root.path.clone()).collect()
    }

    fn load(&mut self, path: &Path) -> usize {
        let at = self.folder();
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            let node = if entry.path().is_dir() {
                Node::Folder(self.load(&entry.path()))
            } else {
                let bytes = std::fs::read(entry.path()).expect("a file");
                self.files.push(File { now: bytes.clone(), synced: bytes, written_back: None });
                Node::File(self.files.len() - 1)
            };
            self.folders[at].now.insert(entry.file_name(), node);
        }
        self.folders[at].synced = self.folders[at].now.clone();
        at
    }

    fn folder(&mut self) -> usize {
        self.folders.push(Folder::default());
        self.folders.len() - 1
    }

    pub fn take(&mut self, step: &Step) {
        match step {
            Step::Open { path, truncate } => {
                let file = self.file(path);
                if *truncate {
                    self.files[file].now.clear();
                }
            }
            Step::Write { path, at, bytes } => {
                let file = self.file(path);
                let now = &mut self.files[file].now;
                let at = at.map_or(now.len(), |at| at as usize);
                now.resize(now.len().max(at + bytes.len()), 0);
                now[at..at + bytes.len()].copy_from_slice(bytes);
            }
            Step::Truncate { path, len } => {
                let file = self.file(path);
                self.files[file].now.resize(*len as usize, 0);
            }
            Step::Rename { from, to } => {
                let Some(node) = self.node(from) else { return };
                let ((to, new), (from, old)) = (self.place(to), self.place(from));
                if to == from {
                    self.change(to, vec![(new, Some(node)), (old, None)]);
                } else {
                    self.change(to, vec![(new, Some(node))]);
                    self.change(from, vec![(old, None)]);
                }
            }
            Step::Exchange { one, other } => {
                let (Some(first), Some(second)) = (self.node(one), self.node(other)) else {
                    return;
                };
                let ((one, here), (other, there)) = (self.place(one), self.place(other));
                if one == other {
                    self.change(one, vec![(here, Some(second)), (there, Some(first))]);
                } else {
                    self.change(other, vec![(there, Some(first))]);
                    self.change(one, vec![(here, Some(second))]);
                }
            }
            Step::Link { from, to } => {
                if let Some(node) = self.node(from) {
                    self.name(to, Some(node));
                }
            }
            Step::Remove(path) => self.name(path, None),
            Step::Folder(path) if self.node(path).is_none() => {
                let folder = self.folder();
                self.name(path, Some(Node::Folder(folder)));
            }
            Step::Folder(_) | Step::Effect(_) => {}
            Step::SyncAll => {
                self.files.iter_mut().for_each(|file| file.synced.clone_from(&file.now));
                self.folders.iter_mut().for_each(Folder::settle);
            }
            Step::WriteBack(path) => {
                if let Some(Node::File(file)) = self.node(path) {
                    let file = &mut self.files[file];
                    file.written_back = Some(file.now.clone());
                }
            }
            Step::Sync(path) => {
                for file in &mut self.files {
                    if let Some(written) = file.written_back.take() {
                        file.synced = written;
                    }
                }
                match self.node(path) {
                    Some(Node::File(file)) => {
                        let file = &mut self.files[file];
                        file.synced.clone_from(&file.now);
                    }
                    Some(Node::Folder(folder)) => self.folders[folder].settle(),
                    None => {}
                }
                for root in
                    self.roots.clone().into_iter().filter(|root| root.names == Names::Journal)
                {
                    self.settle_below(root.folder);
                }
            }
        }
    }

    fn settle_below(&mut self, folder: usize) {
        self.folders[folder].settle();
        for node in self.folders[folder].now.clone().into_values() {
            if let Node::Folder(below) = node {
                self.settle_below(below);
            }
        }
    }

    fn change(&mut self, folder: usize, changes: Vec<Change>) {
        let folder = &mut self.folders[folder];
        changes.iter().for_each(|(name, node)| put(&mut folder.now, name.clone(), *node));
        folder.changed.push(changes);
    }

    fn name(&mut self, path: &Path, node: Option<Node>) {
        let (folder, name) = self.place(path);
        self.change(folder, vec![(name, node)]);
    }

    /// Returns the steps down to a path from its root.
    fn way(&self, path: &Path) -> (usize, Vec<OsString>) {
        let fits = |root: &&Root| path.starts_with(&root.path);
        let root = self
            .roots
            .iter()
            .rfind(fits)
            .unwrap_or_else(|| panic!("{} is below no root", path.display()));
        let below = path.strip_prefix(&root.path).expect("it is below");
        (root.folder, below.iter().map(OsString::from).collect())
    }

    fn node(&self, path: &Path) -> Option<Node> {
        let (root, way) = self.way(path);
        way.iter().try_fold(Node::Folder(root), |at, name| match at {
            Node::Folder(folder) => self.folders[folder].now.get(name).copied(),
            Node::File(_) => None,
        })
    }

    /// Returns the folder of a path, created if it is unknown, and the path's name in it.
    fn place(&mut self, path: &Path) -> (usize, OsString) {
        let (mut at, mut way) = self.way(path);
        let last = way.pop().expect("a root is never named");
        for name in way {
            at = match self.folders[at].now.get(&name) {
                Some(Node::Folder(folder)) => *folder,
                _ => {
                    let made = self.folder();
                    self.change(at, vec![(name, Some(Node::Folder(made)))]);
                    made
                }
            };
        }
        (at, last)
    }

    /// Returns the file of this name, created if there is none.
    fn file(&mut self, path: &Path) -> usize {
        if let Some(Node::File(file)) = self.node(path) {
            return file;
        }
        self.files.push(File::default());
        let file = self.files.len() - 1;
        self.name(path, Some(Node::File(file)));
        file
    }

    /// Returns the synced content of the file that has this name now. A client that saw this
    /// content was promised that it stays.
    pub fn synced(&self, path: &Path) -> Vec<u8> {
        match self.node(path) {
            Some(Node::File(file)) => self.files[file].synced.clone(),
            _ => vec![],
        }
    }

    /// Replaces the real files by those that the power cut leaves.
    pub fn lay_out(&self, kept: Kept, dice: &mut Dice) {
        let mut laid = BTreeSet::new();
        for root in &self.roots {
            let _ = std::fs::remove_dir_all(&root.path);
            std::fs::create_dir_all(&root.path).expect("a directory");
            let kept = if root.names == Names::Elsewhere { Kept::Everything } else { kept };
            self.lay_out_folder(root.folder, &root.path, kept, dice, &mut laid);
            if root.names == Names::Elsewhere {
                remove_locks(&root.path);
            }
        }
    }

    fn lay_out_folder(
        &self,
        at: usize,
        path: &Path,
        kept: Kept,
        dice: &mut Dice,
        laid: &mut BTreeSet<usize>,
    ) {
        let folder = &self.folders[at];
        let mut names = folder.synced.clone();
        let count = match kept {
            Kept::Nothing => 0,
            Kept::Names | Kept::Everything => folder.changed.len(),
            Kept::Some => dice.below(folder.changed.len() as u64 + 1) as usize,
        };
        for (name, node) in folder.changed[..count].iter().flatten() {
            put(&mut names, name.clone(), *node);
        }
        for (name, node) in names {
            let path = path.join(name);
            match node {
                Node::File(file) => {
                    std::fs::write(&path, self.files[file].left(kept, dice)).expect("a file");
                    if path.ends_with(BEGUN) {
                        continue;
                    }
                    // The time is before the boot: a reader must see that no living process made
                    // the file.
                    let long_ago = std::time::SystemTime::UNIX_EPOCH
                        + std::time::Duration::from_secs(1_000_000_000);
                    let file = std::fs::File::options().append(true).open(&path).expect("a file");
                    file.set_modified(long_ago).expect("its time");
                }
                // A moved folder is in one place, whichever of the two names the disk knows.
                Node::Folder(below) if laid.insert(below) => {
                    std::fs::create_dir(&path).expect("a folder");
                    self.lay_out_folder(below, &path, kept, dice, laid);
                }
                Node::Folder(_) => {}
            }
        }
    }
}

/// Removes git's lock files below a folder.
fn remove_locks(folder: &Path) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if entry.file_type().expect("its type").is_dir() {
            remove_locks(&path);
        } else if path.extension().is_some_and(|extension| extension == "lock") {
            std::fs::remove_file(&path).expect("a file");
        }
    }
}

impl Folder {
    fn settle(&mut self) {
        for (name, node) in self.changed.drain(..).flatten() {
            put(&mut self.synced, name, node);
        }
    }
}

impl File {
    fn left(&self, kept: Kept, dice: &mut Dice) -> &[u8] {
        match kept {
            Kept::Nothing | Kept::Names => &self.synced,
            Kept::Everything => &self.now,
            Kept::Some => match dice.below(3) {
                0 => &self.synced,
                1 if self.now.starts_with(&self.synced) => {
                    let more = (self.now.len() - self.synced.len()) as u64;
                    &self.now[..self.synced.len() + dice.below(more + 1) as usize]
                }
                _ => &self.now,
            },
        }
    }
}

fn put(names: &mut BTreeMap<OsString, Node>, name: OsString, node: Option<Node>) {
    match node {
        Some(node) => drop(names.insert(name, node)),
        None => drop(names.remove(&name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synced_data_survives_and_the_rest_may_be_lost() {
        let root = tempfile::tempdir().expect("a folder");
        let state = root.path().join("state");
        let (old, new) = (state.join("f"), state.join("f.tmp"));
        let mut disk = Disk::default();
        disk.root(&state, Names::Synced);
        let write = |path: &Path, bytes: &[u8]| Step::Write {
            path: path.into(),
            at: None,
            bytes: bytes.into(),
        };
        let steps = [
            write(&old, b"old"),
            Step::Sync(old.clone()),
            Step::Sync(state.clone()),
            write(&new, b"new"),
            Step::Rename { from: new.clone(), to: old.clone() },
        ];
        steps.iter().for_each(|step| disk.take(step));
        let left = |disk: &Disk, kept: Kept| {
            disk.lay_out(kept, &mut Dice::new(1));
            std::fs::read_to_string(&old).expect("a file")
        };
        assert_eq!(left(&disk, Kept::Nothing), "old");
        assert_eq!(left(&disk, Kept::Names), "", "its name came before what is in it");
        assert_eq!(left(&disk, Kept::Everything), "new");
        disk.take(&Step::Sync(old.clone()));
        assert_eq!(
            (left(&disk, Kept::Nothing), left(&disk, Kept::Names)),
            ("old".into(), "new".into())
        );
        disk.take(&Step::Sync(state.clone()));
        assert_eq!(left(&disk, Kept::Nothing), "new");
    }

    /// A lock that stays would refuse each further push to that branch for ever.
    #[test]
    fn another_machine_keeps_what_it_received_and_removes_its_locks() {
        let root = tempfile::tempdir().expect("a folder");
        let remote = root.path().join("origin.git");
        std::fs::create_dir(&remote).expect("a folder");
        let mut disk = Disk::default();
        disk.root(&remote, Names::Elsewhere);
        let write = |path: PathBuf| Step::Write { path, at: None, bytes: b"x".into() };
        let heads = remote.join("heads");
        let steps = [
            Step::Folder(heads.clone()),
            write(heads.join("main")),
            write(heads.join("topic.lock")),
        ];
        steps.iter().for_each(|step| disk.take(step));
        disk.lay_out(Kept::Nothing, &mut Dice::new(1));
        assert_eq!(std::fs::read_to_string(heads.join("main")).expect("a file"), "x");
        assert!(!heads.join("topic.lock").exists());
    }

    #[test]
    fn moved_folder_exists_once_and_names_are_durable_before_contents() {
        let root = tempfile::tempdir().expect("a folder");
        let (state, repo) = (root.path().join("state"), root.path().join("repo"));
        std::fs::create_dir(&repo).expect("a folder");
        std::fs::write(repo.join("before"), "was there").expect("a file");
        let mut disk = Disk::default();
        disk.root(&state, Names::Synced);
        disk.root(&repo, Names::Journal);
        let write = |path: PathBuf| Step::Write { path, at: None, bytes: b"x".into() };
        let steps = [
            Step::Folder(repo.join("part")),
            write(repo.join("part/f")),
            Step::Rename { from: repo.join("part"), to: repo.join("whole") },
            Step::Link { from: repo.join("whole/f"), to: repo.join("linked") },
            write(state.join("log")),
        ];
        steps.iter().for_each(|step| disk.take(step));
        let left = |disk: &Disk, kept: Kept| {
            disk.lay_out(kept, &mut Dice::new(1));
            let read = |name: &str| std::fs::read_to_string(repo.join(name)).ok();
            (["before", "part/f", "whole/f", "linked"].map(read), state.join("log").exists())
        };
        let text = |text: &str| Some(text.to_string());
        assert_eq!(left(&disk, Kept::Nothing), ([text("was there"), None, None, None], false));
        assert_eq!(
            left(&disk, Kept::Everything),
            ([text("was there"), None, text("x"), text("x")], true)
        );
        disk.take(&Step::Sync(state.join("log")));
        assert_eq!(
            left(&disk, Kept::Nothing),
            ([text("was there"), None, text(""), text("")], false)
        );
        disk.take(&Step::Sync(repo.join("linked")));
        assert_eq!(
            left(&disk, Kept::Nothing),
            ([text("was there"), None, text("x"), text("x")], false)
        );
    }
}
