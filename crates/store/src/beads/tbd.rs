//! Beads in the real `tbd`, driven through its command line, each call with a limit of time and
//! output. `model::beads::tbd` decides how its files are read and which calls are made.
//!
//! Every operation first reads what has changed, decides on all beads, and makes the missing calls.
//! So an interrupted operation can simply be repeated. The beads are read with `tbd save` once, and
//! later from the files in tbd's own worktree that have changed: a `save` for each change would
//! make the time grow with the square of the beads. Calls that change different beads are made
//! beside each other; tbd itself lets only one of them write at a time.

mod files;
pub mod progress;

use crate::beads::embedded::BeadError;
use crate::beads::stay_in_repository;
use crate::beads::tbd::files::{FILE_LIMIT, FILES_LIMIT, Stamp};
use crate::beads::tbd::progress::{Progress, Watcher};
use jiff::Timestamp;
use muleteer_model::beads::tbd::{self, Call, Issues, Known};
use muleteer_model::beads::{self, Answer, Beads, Change, Op};
use muleteer_model::config::{self, Command as Program};
use muleteer_model::text::foreign_json;
use muleteer_process::bounded;
use muleteer_process::command;
use muleteer_process::fault;
use muleteer_process::lock::{self, LockGuard};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a writer waits for another one, which may be in a call that hangs.
const LOCK_PATIENCE: Duration = Duration::from_secs(120);
/// How much of a call's output is kept, from its end.
const OUTPUT_LIMIT: usize = 256 * 1024;
/// The most calls at once, and at most one for each processor. While one call holds tbd's lock, the
/// next one starts its process. A call that finds the lock taken sleeps for a quarter of a second,
/// so more of them take longer: four took 7.1 s where two took 4.2 s.
const BESIDE: usize = 2;
const INSTALL: &str = "install it with `npm install --global get-tbd`, name another command in \
    `run.beads.command`, or set `run.beads.store: embedded`";

/// The beads of one repository's `tbd`.
#[derive(Debug)]
pub struct Tbd {
    repo: PathBuf,
    /// Our directory: the lock, and files that we exchange with tbd.
    dir: PathBuf,
    settings: config::Beads,
    /// The environment of tbd; `None` means that of this process.
    env: Option<Vec<(String, String)>>,
    /// The prefix of its ids; read once.
    prefix: Option<String>,
    issues: Issues,
    known: Known,
    /// The stamp of tbd's files before they were last read. `known` is current only while the stamp
    /// is the same.
    stamp: Option<Stamp>,
    watcher: Watcher,
}

impl Tbd {
    pub fn new(repo: &Path, settings: &config::Beads, env: Option<Vec<(String, String)>>) -> Self {
        let dir = repo.join(".muleteer/beads");
        Self {
            repo: repo.into(),
            dir,
            settings: settings.clone(),
            env,
            prefix: None,
            issues: Issues::default(),
            known: Known::default(),
            stamp: None,
            watcher: Watcher::default(),
        }
    }

    /// Sets the function that gets the progress of an operation with many calls.
    pub fn watch(&mut self, watcher: Watcher) {
        self.watcher = watcher;
    }

    /// Reads all beads. Blocks for as long as tbd takes.
    ///
    /// # Errors
    /// `E_BEADS_UNAVAILABLE`, `E_BEADS_FAILED`, `E_BUSY`.
    pub fn read(&mut self) -> Result<&Beads, BeadError> {
        let held = self.lock()?;
        self.refresh(&held)?;
        Ok(&self.known.beads)
    }

    /// Carries out `op` and returns its answer. `fresh` is a placeholder for the id of a created
    /// bead until tbd has chosen one.
    ///
    /// # Errors
    /// Says what is wrong with `op`; or as [`Tbd::read`], after which it is unknown how far the
    /// operation came (a retry is safe).
    pub fn apply(&mut self, op: &Op, now: Timestamp, fresh: &str) -> Result<Answer, BeadError> {
        let held = self.lock()?;
        self.refresh(&held)?;
        let change = beads::apply(&self.known.beads, op, now, fresh)?;
        tbd::check(&change)?;
        let calls = match op {
            Op::Import { .. } => {
                let prefix = self.prefix(&held)?;
                let mut fresh = Vec::with_capacity(change.put.len());
                for _ in &change.put {
                    fresh.push(ulid(now, random()?));
                }
                tbd::import(&self.known, &change, &prefix, &mut fresh.into_iter(), now)?
            }
            _ => tbd::calls(&self.known, &change),
        };
        let ids = self.carry_out(&held, calls)?;
        let mut answer = change.answer;
        for bead in &mut answer.beads {
            if let Some(id) = ids.get(&bead.id) {
                bead.id.clone_from(id);
                bead.dependencies.iter_mut().for_each(|one| one.issue_id.clone_from(id));
            }
        }
        Ok(answer)
    }

    /// Carries out operations that neither create nor import beads, as one change: each bead is
    /// changed once, whatever the number of operations. Returns their answers.
    ///
    /// # Errors
    /// As [`Tbd::apply`].
    pub fn apply_all(&mut self, ops: &[Op], now: Timestamp) -> Result<Vec<Answer>, BeadError> {
        let held = self.lock()?;
        self.refresh(&held)?;
        let mut after = self.known.beads.clone();
        let (mut answers, mut changed, mut delete) = (vec![], BTreeSet::new(), vec![]);
        for op in ops {
            let change = beads::apply(&after, op, now, "")?;
            tbd::check(&change)?;
            for bead in change.put {
                changed.insert(bead.id.clone());
                after.insert(bead.id.clone(), bead);
            }
            for id in change.delete {
                after.remove(&id);
                delete.push(id);
            }
            answers.push(change.answer);
        }
        let put = changed.iter().filter_map(|id| after.get(id).cloned()).collect();
        let change = Change { put, delete, ..Change::default() };
        self.carry_out(&held, tbd::calls(&self.known, &change))?;
        Ok(answers)
    }

    fn lock(&self) -> Result<LockGuard, BeadError> {
        let io = |source| BeadError::Io { path: self.dir.clone(), source };
        stay_in_repository(&self.dir).map_err(io)?;
        std::fs::create_dir_all(&self.dir).map_err(io)?;
        let path = self.dir.join("tbd.lock");
        let held = lock::lock_within(&path, LOCK_PATIENCE).map_err(io)?;
        held.ok_or_else(|| BeadError::Locked { path, seconds: LOCK_PATIENCE.as_secs() })
    }

    fn refresh(&mut self, held: &LockGuard) -> Result<(), BeadError> {
        let data = files::folder(&self.repo);
        let stamp = files::stamp(&data);
        if stamp.is_some() && stamp == self.stamp {
            return Ok(());
        }
        if let (Some(before), Some(now), Some(prefix)) = (&self.stamp, &stamp, &self.prefix)
            && files::reread(&mut self.issues, &data, before, now)
        {
            self.known = self.issues.known(prefix);
            self.stamp = stamp;
            return Ok(());
        }
        // A part of the issues is not used.
        (self.issues, self.stamp) = (Issues::default(), None);
        let to = self.scratch("saved")?;
        let save = ["save".into(), "--dir".into(), shown(&to)];
        if self.prefix.is_some() {
            self.call(held, &save)?;
        } else {
            let this = &*self;
            let (prefix, saved) = std::thread::scope(|scope| {
                let prefix = scope.spawn(|| this.read_prefix(held));
                let saved = this.call(held, &save);
                (prefix.join(), saved)
            });
            saved?;
            let panicked = |_| BeadError::Failed("the reader of tbd's prefix panicked".into());
            self.prefix = Some(prefix.map_err(panicked)??);
        }
        let prefix = self.prefix(held)?;
        self.issues = self.saved(&to)?;
        self.known = self.issues.known(&prefix);
        self.stamp = stamp;
        let _ = std::fs::remove_dir_all(&to);
        Ok(())
    }

    /// Reads the files that `tbd save` has written to a directory.
    fn saved(&self, to: &Path) -> Result<Issues, BeadError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |source| BeadError::Io { path, source }
        };
        let unreadable = |file: &str, why: &str| {
            BeadError::Failed(format!("tbd has an unreadable issue, {file}: {why}"))
        };
        let mut found = Issues::default();
        let (mut size, mut count) = (0, 0);
        let issues = to.join("issues");
        for entry in std::fs::read_dir(&issues).map_err(io(&issues))? {
            let entry = entry.map_err(io(&issues))?;
            let path = entry.path();
            let length = path.metadata().map_err(io(&path))?.len();
            size += length;
            if length > FILE_LIMIT || size > FILES_LIMIT || count > beads::BEADS_LIMIT {
                return Err(io(&path)(io::ErrorKind::FileTooLarge.into()));
            }
            if path.extension().is_some_and(|kind| kind == "md") {
                count += 1;
                let text = std::fs::read_to_string(&path).map_err(io(&path))?;
                let name = entry.file_name();
                let put = found.put(&name.to_string_lossy(), &text);
                put.map_err(|why| unreadable(&shown(&path), &why.to_string()))?;
            }
        }
        let ids = to.join("mappings/ids.yml");
        let text = match std::fs::read_to_string(&ids) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(io(&ids)(error)),
        };
        found.set_ids(&text).map_err(|why| unreadable("ids.yml", &why.to_string()))?;
        Ok(found)
    }

    fn prefix(&mut self, held: &LockGuard) -> Result<String, BeadError> {
        if let Some(prefix) = &self.prefix {
            return Ok(prefix.clone());
        }
        let prefix = self.read_prefix(held)?;
        self.prefix = Some(prefix.clone());
        Ok(prefix)
    }

    fn read_prefix(&self, held: &LockGuard) -> Result<String, BeadError> {
        let said =
            self.call(held, &["config", "get", "display.id_prefix", "--json"].map(String::from))?;
        let prefix =
            document(&said).and_then(|document| document["value"].as_str().map(str::to_string));
        prefix.ok_or_else(|| strange("config get", &said))
    }

    /// Makes the calls, and returns the ids that tbd has chosen for new beads. Beads are created
    /// first; the other calls are made beside each other, those of one chain in their order.
    fn carry_out(
        &self,
        held: &LockGuard,
        calls: Vec<Call>,
    ) -> Result<BTreeMap<String, String>, BeadError> {
        let mut ids = BTreeMap::new();
        if calls.is_empty() {
            return Ok(ids);
        }
        let progress = Progress::begin(&self.dir, calls.len(), &self.watcher);
        let (first, then): (Vec<Call>, Vec<Call>) = calls.into_iter().partition(Call::is_first);
        for calls in [first, then] {
            let mut chains: BTreeMap<usize, Vec<Call>> = BTreeMap::new();
            for call in calls {
                chains.entry(call.chain).or_default().push(call);
            }
            let chains: Vec<Vec<Call>> = chains.into_values().collect();
            let made = self.beside(held, &chains, &ids, &progress)?;
            ids.extend(made);
        }
        Ok(ids)
    }

    /// Makes the calls of each chain in order, and those of different chains beside each other.
    /// After an error no other call begins.
    fn beside(
        &self,
        held: &LockGuard,
        chains: &[Vec<Call>],
        ids: &BTreeMap<String, String>,
        progress: &Progress<'_>,
    ) -> Result<Vec<(String, String)>, BeadError> {
        let next = AtomicUsize::new(0);
        let outcome: Mutex<Result<Vec<(String, String)>, BeadError>> = Mutex::new(Ok(vec![]));
        let lock = || outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let work = |worker: usize| {
            while let Some(chain) = chains.get(next.fetch_add(1, Ordering::Relaxed)) {
                for call in chain {
                    if lock().is_err() {
                        return;
                    }
                    match (self.make(held, call, ids, worker), &mut *lock()) {
                        (Ok(id), Ok(made)) => made.extend(id),
                        (Err(error), outcome @ Ok(_)) => *outcome = Err(error),
                        (_, Err(_)) => {}
                    }
                    progress.step();
                }
            }
        };
        let processors = std::thread::available_parallelism().map_or(1, Into::into);
        let workers = chains.len().min(BESIDE).min(processors);
        std::thread::scope(|scope| {
            for worker in 1..workers {
                let work = &work;
                scope.spawn(move || work(worker));
            }
            work(0);
        });
        outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one call. Returns the id of a bead that it creates, with the id that tbd has chosen.
    fn make(
        &self,
        held: &LockGuard,
        call: &Call,
        ids: &BTreeMap<String, String>,
        worker: usize,
    ) -> Result<Option<(String, String)>, BeadError> {
        let args = call.args.iter();
        let mut args: Vec<String> = args.map(|arg| ids.get(arg).unwrap_or(arg).clone()).collect();
        let written = |path: &Path, text: &str| {
            let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            made.and_then(|()| std::fs::write(path, text))
                .map_err(|source| BeadError::Io { path: path.into(), source })
        };
        let given = format!("given-{worker}");
        if let Some(file) = &call.file {
            let path = self.scratch(&given)?.join("text.md");
            written(&path, &file.text)?;
            args.insert(1, format!("{}={}", file.option, shown(&path)));
        }
        if !call.folder.is_empty() {
            let dir = self.scratch(&given)?;
            for (name, text) in &call.folder {
                written(&dir.join(name), text)?;
            }
            args.push(shown(&dir));
        }
        args.insert(0, "--json".into());
        fault::point("tbd.before_call");
        let said = self.call(held, &args)?;
        fault::point("tbd.after_call");
        let Some(id) = &call.makes else { return Ok(None) };
        let made = document(&said).and_then(|document| document["id"].as_str().map(str::to_string));
        made.map(|made| Some((id.clone(), made))).ok_or_else(|| strange("create", &said))
    }

    /// Creates an empty directory of that name and removes files that a killed process left in it.
    fn scratch(&self, name: &str) -> Result<PathBuf, BeadError> {
        let path = self.dir.join(format!("tbd-{name}"));
        let made = match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => std::fs::create_dir_all(&path),
        };
        made.map_err(|source| BeadError::Io { path: path.clone(), source })?;
        Ok(path)
    }

    fn call(&self, held: &LockGuard, args: &[String]) -> Result<String, BeadError> {
        let mut command = self.command(args);
        let share =
            held.share().map_err(|source| BeadError::Io { path: self.dir.clone(), source })?;
        command
            // The lock file is empty, so it serves as stdin. The child holds the lock until the
            // call ends, even if we die, so that nobody decides on data that the call is about to
            // change.
            .stdin(share)
            .current_dir(&self.repo)
            // Nobody can answer a prompt, and the output is not for a terminal.
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("NO_COLOR", "1");
        let nonce = format!("{:032x}", u128::from_le_bytes(random()?));
        let limit = self.settings.timeout.as_duration();
        let bounds = bounded::Bounds { limit, tail: OUTPUT_LIMIT, nonce: &nonce };
        let verb = args.iter().find(|arg| !arg.starts_with('-')).cloned().unwrap_or_default();
        let ran = bounded::run(command, bounds, &|| false).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => BeadError::Unavailable {
                message: "`tbd` is not on PATH".into(),
                hint: INSTALL.into(),
            },
            _ => BeadError::Unavailable {
                message: format!("failed to start `tbd`: {error}"),
                hint: INSTALL.into(),
            },
        })?;
        if ran.passed() {
            return Ok(ran.output);
        }
        if ran.timed_out {
            return Err(BeadError::Failed(format!(
                "`tbd {verb}` did not finish within {} s and was killed",
                limit.as_secs()
            )));
        }
        let told = document(&ran.output);
        let told =
            |name: &str| told.as_ref().and_then(|told| told[name].as_str().map(str::to_string));
        if told("type").as_deref() == Some("NotInitializedError")
            || ran.output.contains("Not a tbd repository")
        {
            let message = format!("tbd is not set up in {}", self.repo.display());
            return Err(BeadError::Unavailable {
                message,
                hint: "set it up with `tbd init --prefix=NAME`".into(),
            });
        }
        if ran.code == Some(127) {
            return Err(BeadError::Unavailable {
                message: last(&ran.output),
                hint: INSTALL.into(),
            });
        }
        let why = told("error").unwrap_or_else(|| last(&ran.output));
        let how = match (ran.code, ran.signal) {
            (_, Some(signal)) => format!("was killed by signal {signal}"),
            (code, _) => format!("failed with exit code {}", code.unwrap_or_default()),
        };
        Err(BeadError::Failed(format!("`tbd {verb}` {how}: {why}")))
    }

    fn command(&self, args: &[String]) -> process::Command {
        let mut command = match &self.settings.command {
            Some(Program::Argv(words)) if !words.is_empty() => {
                let mut command = command::helper(&words[0]);
                command.args(&words[1..]);
                command
            }
            Some(Program::Text(text)) => {
                let mut command = command::helper("sh");
                command.args(["-c", &format!("{text} \"$@\""), "tbd"]);
                command
            }
            _ => command::helper("tbd"),
        };
        command.args(args);
        if let Some(env) = &self.env {
            command.env_clear().envs(env.iter().map(|(name, value)| (name, value)));
        }
        command
    }
}

/// Finds the first JSON document in the output; notices may precede it.
fn document(said: &str) -> Option<Value> {
    let starts = said.match_indices(['{', '[']).map(|(at, _)| at);
    starts
        .filter(|at| *at == 0 || said.as_bytes()[at - 1] == b'\n')
        .find_map(|at| foreign_json::prefix(&said[at..]).0.undamaged().ok())
        .map(|document| document.value)
}

fn strange(verb: &str, said: &str) -> BeadError {
    BeadError::Failed(format!("`tbd {verb}` printed unexpected output: {}", last(said)))
}

fn last(said: &str) -> String {
    let line =
        said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing");
    line.chars().take(300).collect()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn random() -> Result<[u8; 16], BeadError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| BeadError::Failed(format!("failed to get random bytes: {error}")))?;
    Ok(bytes)
}

/// Formats 48 bits of time and 80 random bits in the alphabet of ULIDs.
fn ulid(now: Timestamp, chance: [u8; 16]) -> String {
    let time = (now.as_millisecond().max(0) as u128) << 80;
    let mut value = time | (u128::from_le_bytes(chance) >> 48);
    let mut text = [0u8; 26];
    for place in text.iter_mut().rev() {
        *place = b"0123456789abcdefghjkmnpqrstvwxyz"[(value & 31) as usize];
        value >>= 5;
    }
    text.iter().map(|byte| char::from(*byte)).collect()
}
