//! Power cuts: what a disk may hold when the machine dies, worked out from the calls that a real daemon and its shims
//! made on their files.
//!
//! A dispatch is recorded under `strace`. A seed chooses how far that had come, and what of it the disk keeps: data
//! that was not synced is gone, cut short or there; names that were made, renamed or removed since their directory was
//! synced are known up to any of them, in the order they came. What was synced is there, and nothing more is assumed
//! than that. A daemon of another boot begins on the result. Then it must hold:
//!
//! - what was synced of the log is there, byte for byte, and goes on;
//! - the agent was not started twice, and not before its dispatch was durable;
//! - the dispatch comes to an end, the same one if it had ended;
//! - of one that worked in a clone, the branch is in the repository if it had ended well.
//!
//! Below the state directory a name is certain only once its directory was synced. git never syncs one, and counts on a
//! journal: in the repository, and in the clone below it, names are certain with whatever is synced next anywhere.
//!
//! The database is left out: it is made anew from the log where it is missing.

mod tasks;

pub use tasks::RecordedTasks;

use super::{Dice, Scene, syscalls};
use crate::{Daemon, PATIENCE, World, events, wait_until};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

const AGENT: &str = r#"
echo "start $$" >> effects
echo one; sleep 0.05; echo two
echo end >> effects
echo '{"type":"result","status":"success","summary":"done"}'
"#;

const CALLS: &str = "trace=openat,creat,write,pwrite64,writev,pwritev,ftruncate,rename,renameat,renameat2,unlink,unlinkat,\
                     mkdir,mkdirat,rmdir,link,linkat,fsync,fdatasync,syncfs,sync_file_range,chdir";

/// What an agent commits, where it has a clone.
const WORK: &str = "echo new > b.txt && git add b.txt && git commit --quiet -m 'Add b' && ";

/// A dispatch from before its daemon began until it had ended, as a list of what was done to its files.
#[derive(Debug)]
pub struct Recorded {
    scene: Scene,
    /// The agent worked in a clone.
    clone: bool,
    /// What there was before.
    disk: Disk,
    steps: Vec<Step>,
    /// All trials have the one place: the events name it.
    turn: Mutex<()>,
}

impl Recorded {
    /// Runs a dispatch under `strace`.
    ///
    /// # Panics
    /// When it does not come to its end.
    pub fn new(clone: bool) -> Self {
        let scene = Scene::new();
        let mut disk = Disk::default();
        disk.root(&scene.world.state(), false);
        disk.root(&scene.repo.path, true);
        let (traces, mut daemon) = under_strace(&scene.world);
        daemon.answers_or_ends(&scene.world);
        let effects = scene.repo_path("effects");
        let script = AGENT.replace("effects", &effects.display().to_string());
        let (script, more) = if clone {
            (script.replace("echo one;", &format!("{WORK} echo one;")), &["--wait", "--worktree"][..])
        } else {
            (script, &["--wait"][..])
        };
        let ran = scene.world.spawn(&scene.repo, &script, more).run();
        assert_eq!(ran.code, Some(0), "{ran:?}\n{}", daemon.log());
        scene.world.expect_clean_end(Some(daemon));
        let roots = [scene.world.state(), scene.repo.path.clone()];
        let steps = read(&traces, &roots, &effects);
        let count = |wanted: fn(&Step) -> bool| steps.iter().filter(|step| wanted(step)).count();
        assert_eq!(count(|step| matches!(step, Step::Effect(_))), 2, "the agent's effects are in the recording");
        assert!(count(|step| matches!(step, Step::Sync(_))) > 5, "so is what was synced: {} steps", steps.len());
        Self { scene, clone, disk, steps, turn: Mutex::default() }
    }

    /// How many places there are to cut at.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Cuts the power as `seed` chooses, and lets a daemon begin on what is left.
    ///
    /// # Panics
    /// When something that must hold does not.
    pub fn cut(&self, seed: u64) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let Scene { world, repo } = &self.scene;
        let mut dice = Dice::new(seed);
        let at = dice.below(self.steps.len() as u64 + 1) as usize;
        let mut disk = self.disk.clone();
        let mut effects = String::new();
        for step in &self.steps[..at] {
            match step {
                Step::Effect(line) => effects.push_str(line),
                other => disk.take(other),
            }
        }
        let kept = Kept::of(&mut dice);
        eprintln!("power seed {seed}: after {at} of {} steps, {kept:?}", self.steps.len());
        let log = world.state().join("events.jsonl");
        let promised = disk.synced(&log);
        disk.lay_out(kept, &mut dice);
        std::fs::write(self.scene.repo_path("effects"), &effects).expect("the effects so far");

        let daemon = world.daemon_with(&[("MULETEER_FAULT_BOOT", "two")]);
        let now = std::fs::read(&log).expect("the log");
        assert!(now.starts_with(&promised), "what was synced of the log is not there any more");
        let created = world.events().into_iter().find(|event| event["event"] == "dispatch_created");
        match created.as_ref().and_then(|event| event["dispatch_id"].as_str()) {
            None => assert_eq!(effects, "", "an agent ran whose dispatch is not known"),
            Some(id) => {
                let had = String::from_utf8_lossy(&promised).contains("\"event\":\"dispatch_finished\"");
                let entry = world.wait_for_end(id);
                let after = repo.effects("effects");
                let starts = after.iter().filter(|line| line.starts_with("start ")).count();
                assert!(starts <= 1, "started twice: {after:?}\n{entry}");
                assert!(!had || entry["state"] == "success", "it had ended otherwise: {entry}");
                let ended = after.last().is_some_and(|line| line == "end");
                assert!(entry["state"] != "success" || ended, "{after:?}\n{entry}");
                let known = ["success", "failed"].iter().any(|state| entry["state"] == *state);
                assert!(known, "nothing of it can be alive, and nothing else is wrong: {entry}");
                if self.clone && entry["state"] == "success" {
                    // What its agent's own git did not sync may be lost, and then that is said.
                    let said = world.events().iter().any(|event| event["what"] == format!("work of {id}"));
                    if had || !said {
                        assert_eq!(repo.git(&["show", &format!("muleteer/{id}:b.txt")]), "new", "{entry}");
                    }
                }
            }
        }
        events::check(&log);
        world.expect_clean_end(Some(daemon));
    }
}

/// A daemon of the boot `one` whose calls, and those of all that it starts, are written into the folder that is given.
fn under_strace(world: &World) -> (PathBuf, Daemon) {
    let traces = world.path().join("traces");
    std::fs::create_dir(&traces).expect("a folder");
    let output = traces.join("of").display().to_string();
    let words = ["env", "MULETEER_FAULT_BOOT=one", "strace", "-D", "-qq", "-ff", "-ttt", "-T", "-y", "-s", "1000000"];
    let words = [&words[..], &["-e", "signal=none", "-o", &output, "-e", CALLS]].concat();
    let daemon = world.daemon_under(&words.into_iter().map(String::from).collect::<Vec<_>>());
    (traces, daemon)
}

impl Default for Recorded {
    fn default() -> Self {
        Self::new(false)
    }
}

/// What the disk keeps of what was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Nothing,
    /// Files that have a name and are empty, or as they were.
    Names,
    Everything,
    /// Of each file and each directory another part.
    Some,
}

impl Kept {
    fn of(dice: &mut Dice) -> Self {
        [Self::Nothing, Self::Names, Self::Everything, Self::Some, Self::Some][dice.below(5) as usize]
    }
}

/// Something done to a file below the state directory; or an effect of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Open {
        path: PathBuf,
        truncate: bool,
    },
    /// At its end where no place is given.
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
    Link {
        from: PathBuf,
        to: PathBuf,
    },
    Remove(PathBuf),
    Folder(PathBuf),
    Sync(PathBuf),
    /// All of the file system.
    SyncAll,
    /// Its data is on its way, and there with whatever is synced next: what git's `batch` counts on.
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
    /// Since it was synced, in order; what is in one list happened at once.
    changed: Vec<Vec<Change>>,
}

#[derive(Debug, Clone)]
struct Root {
    path: PathBuf,
    folder: usize,
    /// Its names are certain with whatever is synced next.
    journal: bool,
}

#[derive(Debug, Clone, Default)]
struct Disk {
    files: Vec<File>,
    folders: Vec<Folder>,
    roots: Vec<Root>,
}

impl Disk {
    /// Adds a directory with all that is in it now.
    fn root(&mut self, path: &Path, journal: bool) {
        let folder = self.load(path);
        self.roots.push(Root { path: path.into(), folder, journal });
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

    fn take(&mut self, step: &Step) {
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
                for root in self.roots.clone().into_iter().filter(|root| root.journal) {
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

    /// The steps down to a path from the root it is below.
    fn way(&self, path: &Path) -> (usize, Vec<OsString>) {
        let fits = |root: &&Root| path.starts_with(&root.path);
        let root = self
            .roots
            .iter()
            .find(fits)
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

    /// The folder that a path is in, made if it is not known, and its name there.
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

    /// The file of this name, made if there is none.
    fn file(&mut self, path: &Path) -> usize {
        if let Some(Node::File(file)) = self.node(path) {
            return file;
        }
        self.files.push(File::default());
        let file = self.files.len() - 1;
        self.name(path, Some(Node::File(file)));
        file
    }

    /// What was synced of the file that has this name now: whoever was told of it was told that it stays.
    fn synced(&self, path: &Path) -> Vec<u8> {
        match self.node(path) {
            Some(Node::File(file)) => self.files[file].synced.clone(),
            _ => vec![],
        }
    }

    /// Writes what is left of it in place of what is there.
    fn lay_out(&self, kept: Kept, dice: &mut Dice) {
        let mut laid = BTreeSet::new();
        for root in &self.roots {
            let _ = std::fs::remove_dir_all(&root.path);
            std::fs::create_dir_all(&root.path).expect("a directory");
            self.lay_out_folder(root.folder, &root.path, kept, dice, &mut laid);
        }
    }

    fn lay_out_folder(&self, at: usize, path: &Path, kept: Kept, dice: &mut Dice, laid: &mut BTreeSet<usize>) {
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
                    // Of the time before: whoever looks must see that nobody alive has made it.
                    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
                    let file = std::fs::File::options().append(true).open(&path).expect("a file");
                    file.set_modified(long_ago).expect("its time");
                }
                // One that was moved is in one place, whichever of the two the disk knows.
                Node::Folder(below) if laid.insert(below) => {
                    std::fs::create_dir(&path).expect("a folder");
                    self.lay_out_folder(below, &path, kept, dice, laid);
                }
                Node::Folder(_) => {}
            }
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

/// Everything in the traces that concerns files below the `roots` or the agent's `effects`, in the order it was done.
fn read(traces: &Path, roots: &[PathBuf], effects: &Path) -> Vec<Step> {
    // Whoever is traced may end a moment before its tracer has written that down.
    let texts = wait_until("the traces to be written", PATIENCE, || {
        let texts: Option<Vec<String>> = std::fs::read_dir(traces)
            .ok()?
            .flatten()
            .map(|entry| {
                std::fs::read_to_string(entry.path())
                    .ok()
                    .filter(|text| text.is_empty() || text.ends_with('\n'))
            })
            .collect();
        texts.filter(|texts| !texts.is_empty())
    });
    let mut calls: Vec<_> = texts.iter().flat_map(|text| calls(text)).collect();
    calls.sort_by(|one, other| one.done.total_cmp(&other.done));
    let ours = |path: &Path| {
        let name = path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let below = roots.iter().any(|root| path.starts_with(root) && path != root);
        below && path != effects && !name.starts_with("muleteer.db") && !name.ends_with(" (deleted)")
    };
    let kept = |step: &Step| match step {
        Step::Open { path, .. } | Step::Write { path, .. } | Step::Truncate { path, .. } => ours(path),
        Step::Remove(path) | Step::Folder(path) => ours(path),
        Step::Rename { from, to } | Step::Link { from, to } => ours(from) && ours(to),
        Step::Sync(path) | Step::WriteBack(path) => ours(path) || roots.contains(path),
        Step::Effect(_) | Step::SyncAll => true,
    };
    let effect = |step: Step| match step {
        Step::Write { path, bytes, .. } if path == effects => Step::Effect(String::from_utf8_lossy(&bytes).into()),
        other => other,
    };
    calls.iter().filter_map(Call::step).map(effect).filter(kept).collect()
}

/// One call that succeeded.
#[derive(Debug, Default, PartialEq)]
struct Call {
    /// Seconds since 1970, when it returned.
    done: f64,
    name: String,
    args: Vec<String>,
    returned: String,
    /// Where names without a leading slash begin.
    folder: PathBuf,
}

/// The calls of one thread.
fn calls(text: &str) -> Vec<Call> {
    let mut folder = PathBuf::from("/");
    let mut found = vec![];
    for line in text.lines() {
        let Some(mut call) = parse(line) else { continue };
        if let Some(at) = call.args.iter().find(|arg| arg.starts_with("AT_FDCWD<")).and_then(|arg| path_of(arg)) {
            folder = at;
        }
        call.folder.clone_from(&folder);
        if call.name == "chdir" {
            folder = call.named(0);
        }
        found.push(call);
    }
    found
}

fn parse(line: &str) -> Option<Call> {
    let (begun, rest) = line.split_once(' ')?;
    let (name, rest) = rest.split_once('(')?;
    let (args, rest) = arguments(rest)?;
    let (returned, took) = rest.strip_prefix(" = ")?.rsplit_once(" <")?;
    if returned.starts_with(['-', '?']) {
        return None;
    }
    let done = begun.parse::<f64>().ok()? + took.strip_suffix('>')?.parse::<f64>().ok()?;
    Some(Call { done, name: name.into(), args, returned: returned.into(), folder: PathBuf::new() })
}

/// Splits what stands between the parentheses of a call, and gives what follows them.
fn arguments(text: &str) -> Option<(Vec<String>, &str)> {
    let (mut args, mut arg, mut depth) = (vec![], String::new(), 0);
    let mut chars = text.char_indices();
    let mut quoted = false;
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' if quoted => {
                arg.push(c);
                arg.push(chars.next()?.1);
                continue;
            }
            '"' => quoted = !quoted,
            _ if quoted => {}
            '[' | '{' | '<' | '(' => depth += 1,
            ')' if depth == 0 => {
                args.push(arg.trim().to_string());
                return Some((args, &text[at + 1..]));
            }
            ']' | '}' | '>' | ')' => depth -= 1,
            ',' if depth == 0 => {
                args.push(arg.trim().to_string());
                arg.clear();
                continue;
            }
            _ => {}
        }
        arg.push(c);
    }
    None
}

/// The path in `5</path>` or `AT_FDCWD</path>`.
fn path_of(arg: &str) -> Option<PathBuf> {
    Some(arg.split_once('<')?.1.strip_suffix('>')?.into())
}

/// The bytes of every string in `arg`, one after the other.
fn bytes_of(arg: &str) -> Vec<u8> {
    let mut bytes = vec![];
    let mut left: VecDeque<u8> = arg.bytes().collect();
    let mut quoted = false;
    while let Some(byte) = left.pop_front() {
        match byte {
            b'"' => quoted = !quoted,
            b'\\' if quoted => match left.pop_front() {
                Some(b'n') => bytes.push(b'\n'),
                Some(b't') => bytes.push(b'\t'),
                Some(b'r') => bytes.push(b'\r'),
                Some(b'v') => bytes.push(11),
                Some(b'f') => bytes.push(12),
                Some(digit @ b'0'..=b'7') => {
                    let mut value = u32::from(digit - b'0');
                    for _ in 0..2 {
                        let Some(next @ b'0'..=b'7') = left.front().copied() else { break };
                        value = value * 8 + u32::from(next - b'0');
                        left.pop_front();
                    }
                    bytes.push(value as u8);
                }
                Some(other) => bytes.push(other),
                None => {}
            },
            _ if quoted => bytes.push(byte),
            _ => {}
        }
    }
    bytes
}

impl Call {
    /// The file that an argument names.
    fn named(&self, at: usize) -> PathBuf {
        let name = String::from_utf8_lossy(&bytes_of(&self.args[at])).into_owned();
        let whole = self.folder.join(name);
        whole.components().filter(|part| *part != std::path::Component::CurDir).collect()
    }

    /// The file that an argument names, from the directory of the one before it.
    fn named_from(&self, at: usize) -> PathBuf {
        let from = path_of(&self.args[at - 1]).unwrap_or_else(|| self.folder.clone());
        Self { folder: from, args: self.args.clone(), ..Self::default() }.named(at)
    }

    /// The file behind the descriptor that is the first argument.
    fn open(&self) -> Option<PathBuf> {
        path_of(self.args.first()?)
    }

    fn number(&self, at: usize) -> Option<u64> {
        self.args.get(at)?.parse().ok()
    }

    /// So many bytes were written.
    fn written(&self, at: usize) -> Vec<u8> {
        let mut bytes = bytes_of(&self.args[at]);
        bytes.truncate(self.returned.parse().unwrap_or(0));
        bytes
    }

    fn step(&self) -> Option<Step> {
        let at_end = || Some(Step::Write { path: self.open()?, at: None, bytes: self.written(1) });
        let in_place = || Some(Step::Write { path: self.open()?, at: self.number(3), bytes: self.written(1) });
        match self.name.as_str() {
            "openat" if self.args.get(2)?.contains("O_CREAT") || self.args[2].contains("O_TRUNC") => {
                Some(Step::Open { path: path_of(&self.returned)?, truncate: self.args[2].contains("O_TRUNC") })
            }
            "creat" => Some(Step::Open { path: path_of(&self.returned)?, truncate: true }),
            "write" | "writev" => at_end(),
            "pwrite64" | "pwritev" => in_place(),
            "ftruncate" => Some(Step::Truncate { path: self.open()?, len: self.number(1)? }),
            "rename" => Some(Step::Rename { from: self.named(0), to: self.named(1) }),
            "renameat" | "renameat2" => Some(Step::Rename { from: self.named_from(1), to: self.named_from(3) }),
            "link" => Some(Step::Link { from: self.named(0), to: self.named(1) }),
            "linkat" => Some(Step::Link { from: self.named_from(1), to: self.named_from(3) }),
            "unlink" | "rmdir" => Some(Step::Remove(self.named(0))),
            "unlinkat" => Some(Step::Remove(self.named_from(1))),
            "mkdir" => Some(Step::Folder(self.named(0))),
            "mkdirat" => Some(Step::Folder(self.named_from(1))),
            "syncfs" => Some(Step::SyncAll),
            "sync_file_range" => Some(Step::WriteBack(self.open()?)),
            "fsync" | "fdatasync" => Some(Step::Sync(self.open()?)),
            _ => None,
        }
    }
}

/// Whether it can be tried here.
///
/// # Errors
/// What stands in the way.
pub fn available() -> Result<(), String> {
    syscalls::available()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_as_it_is_printed() {
        let text = "10.5 chdir(\"/s/agents/a\") = 0 <0.000010>\n\
                    11.0 openat(AT_FDCWD</s/agents/a>, \"./m.tmp\", O_WRONLY|O_CREAT|O_EXCL|O_CLOEXEC, 0600) = 7</s/agents/a/m.tmp> <0.000100>\n\
                    11.1 write(7</s/agents/a/m.tmp>, \"{\\n \\\"v\\\": 1, \\0\\1772)\", 14) = 12 <0.000010>\n\
                    11.2 rename(\"./m.tmp\", \"./m\") = 0 <0.000010>\n\
                    11.3 pwritev(8</s/spool>, [{iov_base=\"ab\", iov_len=2}, {iov_base=\"c, d\", iov_len=4}], 2, 32) = 6 <0.000010>\n\
                    11.4 rename(\"gone\", \"m\") = -1 ENOENT (No such file or directory) <0.000010>\n\
                    11.5 fsync(9</s/agents/a>) = 0 <0.5>\n";
        let found = calls(text);
        assert!((found.last().map(|call| call.done).unwrap_or_default() - 12.0).abs() < 1e-9);
        let m = |name: &str| PathBuf::from(format!("/s/agents/a/{name}"));
        let steps: Vec<_> = found.iter().filter_map(Call::step).collect();
        assert_eq!(
            steps,
            [
                Step::Open { path: m("m.tmp"), truncate: false },
                Step::Write { path: m("m.tmp"), at: None, bytes: b"{\n \"v\": 1, \0".to_vec() },
                Step::Rename { from: m("m.tmp"), to: m("m") },
                Step::Write { path: "/s/spool".into(), at: Some(32), bytes: b"abc, d".to_vec() },
                Step::Sync("/s/agents/a".into()),
            ]
        );
    }

    #[test]
    fn what_is_synced_stays_and_the_rest_may_go() {
        let root = tempfile::tempdir().expect("a folder");
        let state = root.path().join("state");
        let (old, new) = (state.join("f"), state.join("f.tmp"));
        let mut disk = Disk::default();
        disk.root(&state, false);
        let write = |path: &Path, bytes: &[u8]| Step::Write { path: path.into(), at: None, bytes: bytes.into() };
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
        assert_eq!((left(&disk, Kept::Nothing), left(&disk, Kept::Names)), ("old".into(), "new".into()));
        disk.take(&Step::Sync(state.clone()));
        assert_eq!(left(&disk, Kept::Nothing), "new");
    }

    #[test]
    fn a_folder_that_was_moved_is_in_one_place_and_a_journal_knows_names_before_what_is_in_them() {
        let root = tempfile::tempdir().expect("a folder");
        let (state, repo) = (root.path().join("state"), root.path().join("repo"));
        std::fs::create_dir(&repo).expect("a folder");
        std::fs::write(repo.join("before"), "was there").expect("a file");
        let mut disk = Disk::default();
        disk.root(&state, false);
        disk.root(&repo, true);
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
        assert_eq!(left(&disk, Kept::Everything), ([text("was there"), None, text("x"), text("x")], true));
        disk.take(&Step::Sync(state.join("log")));
        assert_eq!(left(&disk, Kept::Nothing), ([text("was there"), None, text(""), text("")], false));
        disk.take(&Step::Sync(repo.join("linked")));
        assert_eq!(left(&disk, Kept::Nothing), ([text("was there"), None, text("x"), text("x")], false));
    }
}
