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
//! - the dispatch comes to an end, the same one if it had ended.
//!
//! The database is left out: it is made anew from the log where it is missing.

use super::{Dice, Scene, syscalls};
use crate::{PATIENCE, events, wait_until};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

const AGENT: &str = r#"
echo "start $$" >> effects
echo one; sleep 0.05; echo two
echo end >> effects
echo '{"type":"result","status":"success","summary":"done"}'
"#;

const CALLS: &str = "trace=openat,creat,write,pwrite64,writev,pwritev,ftruncate,rename,renameat,renameat2,unlink,unlinkat,\
                     mkdir,mkdirat,fsync,fdatasync,chdir";

/// A dispatch from before its daemon began until it had ended, as a list of what was done to its files.
#[derive(Debug)]
pub struct Recorded {
    scene: Scene,
    steps: Vec<Step>,
    /// All trials have the one place: the events name it.
    turn: Mutex<()>,
}

impl Recorded {
    /// Runs a dispatch under `strace`.
    ///
    /// # Panics
    /// When it does not come to its end.
    pub fn new() -> Self {
        let scene = Scene::new();
        let traces = scene.world.path().join("traces");
        std::fs::create_dir(&traces).expect("a folder");
        let output = traces.join("of").display().to_string();
        let words =
            ["env", "MULETEER_FAULT_BOOT=one", "strace", "-D", "-qq", "-ff", "-ttt", "-T", "-y", "-s", "1000000"];
        let words = [&words[..], &["-e", "signal=none", "-o", &output, "-e", CALLS]].concat();
        let mut daemon = scene.world.daemon_under(&words.into_iter().map(String::from).collect::<Vec<_>>());
        daemon.answers_or_ends(&scene.world);
        let ran = scene.world.spawn(&scene.repo, AGENT, &["--wait"]).run();
        assert_eq!(ran.code, Some(0), "{ran:?}\n{}", daemon.log());
        scene.world.expect_clean_end(Some(daemon));
        let steps = read(&traces, &scene.world.state(), &scene.repo_path("effects"));
        let count = |wanted: fn(&Step) -> bool| steps.iter().filter(|step| wanted(step)).count();
        assert_eq!(count(|step| matches!(step, Step::Effect(_))), 2, "the agent's effects are in the recording");
        assert!(count(|step| matches!(step, Step::Sync(_))) > 5, "so is what was synced: {} steps", steps.len());
        Self { scene, steps, turn: Mutex::default() }
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
        let mut disk = Disk::default();
        let mut effects = String::new();
        for step in &self.steps[..at] {
            match step {
                Step::Effect(line) => effects.push_str(line),
                other => disk.take(other),
            }
        }
        let kept = Kept::of(&mut dice);
        eprintln!("power seed {seed}: after {at} of {} steps, {kept:?}", self.steps.len());
        let (state, log) = (world.state(), world.state().join("events.jsonl"));
        let promised = disk.synced(&log);
        for made in [&state, &self.scene.repo_path(".agents")] {
            let _ = std::fs::remove_dir_all(made);
        }
        std::fs::write(self.scene.repo_path("effects"), &effects).expect("the effects so far");
        disk.lay_out(&state, kept, &mut dice);

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
            }
        }
        events::check(&log);
        world.expect_clean_end(Some(daemon));
    }
}

impl Default for Recorded {
    fn default() -> Self {
        Self::new()
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
    Remove(PathBuf),
    Folder(PathBuf),
    Sync(PathBuf),
    Effect(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Node {
    Folder,
    File(usize),
}

#[derive(Debug, Default)]
struct File {
    now: Vec<u8>,
    synced: Vec<u8>,
}

#[derive(Debug, Default)]
struct Disk {
    files: Vec<File>,
    names: BTreeMap<PathBuf, Node>,
    synced: BTreeMap<PathBuf, Node>,
    /// Of each directory, the names that changed since it was synced, in order.
    changed: BTreeMap<PathBuf, Vec<(PathBuf, Option<Node>)>>,
}

impl Disk {
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
                let node = self.names.get(from).copied();
                self.name(to, node);
                self.name(from, None);
            }
            Step::Remove(path) => self.name(path, None),
            Step::Folder(path) => self.name(path, Some(Node::Folder)),
            Step::Sync(path) => {
                if let Some(Node::File(file)) = self.names.get(path) {
                    let file = &mut self.files[*file];
                    file.synced.clone_from(&file.now);
                }
                for (name, node) in self.changed.remove(path).unwrap_or_default() {
                    put(&mut self.synced, name, node);
                }
            }
            Step::Effect(_) => {}
        }
    }

    /// The file of this name, made if there is none.
    fn file(&mut self, path: &Path) -> usize {
        if let Some(Node::File(file)) = self.names.get(path) {
            return *file;
        }
        self.files.push(File::default());
        let file = self.files.len() - 1;
        self.name(path, Some(Node::File(file)));
        file
    }

    fn name(&mut self, path: &Path, node: Option<Node>) {
        put(&mut self.names, path.into(), node);
        let folder = path.parent().unwrap_or(path).to_owned();
        self.changed.entry(folder).or_default().push((path.into(), node));
    }

    /// What was synced of the file that has this name now: whoever was told of it was told that it stays.
    fn synced(&self, path: &Path) -> Vec<u8> {
        match self.names.get(path) {
            Some(Node::File(file)) => self.files[*file].synced.clone(),
            _ => vec![],
        }
    }

    /// Writes what is left of it below `state`.
    fn lay_out(&self, state: &Path, kept: Kept, dice: &mut Dice) {
        let mut names = self.synced.clone();
        for changes in self.changed.values() {
            let count = match kept {
                Kept::Nothing => 0,
                Kept::Names | Kept::Everything => changes.len(),
                Kept::Some => dice.below(changes.len() as u64 + 1) as usize,
            };
            for (name, node) in &changes[..count] {
                put(&mut names, name.clone(), *node);
            }
        }
        std::fs::create_dir_all(state).expect("the state directory");
        // A folder comes before what is in it, and what is in none is gone with it.
        for (path, node) in &names {
            if !path.parent().is_some_and(Path::is_dir) {
                continue;
            }
            let written = match node {
                Node::Folder => std::fs::create_dir(path),
                Node::File(file) => std::fs::write(path, self.files[*file].left(kept, dice)),
            };
            written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
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

fn put(names: &mut BTreeMap<PathBuf, Node>, name: PathBuf, node: Option<Node>) {
    match node {
        Some(node) => drop(names.insert(name, node)),
        None => drop(names.remove(&name)),
    }
}

/// Everything in the traces that concerns files below `state` or the agent's `effects`, in the order it was done.
fn read(traces: &Path, state: &Path, effects: &Path) -> Vec<Step> {
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
        path.starts_with(state) && path != state && !name.starts_with("muleteer.db") && !name.ends_with(" (deleted)")
    };
    let kept = |step: &Step| match step {
        Step::Open { path, .. } | Step::Write { path, .. } | Step::Truncate { path, .. } => ours(path),
        Step::Remove(path) | Step::Folder(path) => ours(path),
        Step::Rename { from, to } => ours(from) && ours(to),
        Step::Sync(path) => ours(path) || path == state,
        Step::Effect(_) => true,
    };
    let effect = |step: Step| match step {
        Step::Write { path, bytes, .. } if path == effects => Step::Effect(String::from_utf8_lossy(&bytes).into()),
        other => other,
    };
    calls.iter().filter_map(Call::step).map(effect).filter(kept).collect()
}

/// One call that succeeded.
#[derive(Debug, PartialEq)]
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
            "renameat" | "renameat2" => Some(Step::Rename { from: self.named(1), to: self.named(3) }),
            "unlink" => Some(Step::Remove(self.named(0))),
            "unlinkat" => Some(Step::Remove(self.named(1))),
            "mkdir" => Some(Step::Folder(self.named(0))),
            "mkdirat" => Some(Step::Folder(self.named(1))),
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
            let _ = std::fs::remove_dir_all(&state);
            disk.lay_out(&state, kept, &mut Dice::new(1));
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
}
