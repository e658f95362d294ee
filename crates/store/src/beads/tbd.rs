//! Beads in the real `tbd`, driven through its command line: one call at a time, each with a limit
//! of time and output. `model::beads::tbd` decides how its files are read and which calls are made.
//!
//! Every operation first reads all beads (`tbd save`), decides on them, and makes the missing
//! calls. So an interrupted operation can simply be repeated.

use crate::beads::embedded::BeadError;
use jiff::Timestamp;
use muleteer_model::beads::tbd::{self, Call, Known};
use muleteer_model::beads::{self, Answer, Beads, Op};
use muleteer_model::config::{self, Command as Program};
use muleteer_model::text::foreign_json;
use muleteer_process::bounded;
use muleteer_process::command;
use muleteer_process::fault;
use muleteer_process::lock::{self, LockGuard};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

/// How long a writer waits for another one, which may be in a call that hangs.
const LOCK_PATIENCE: Duration = Duration::from_secs(120);
/// How much of a call's output is kept, from its end.
const OUTPUT_LIMIT: usize = 256 * 1024;
/// The limits for all issue files together, and for one.
const FILES_LIMIT: u64 = 256 * 1024 * 1024;
const FILE_LIMIT: u64 = 2 * 1024 * 1024;
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
    known: Known,
    /// The stamp of tbd's files before they were last read. `known` is current only while the stamp
    /// is the same.
    stamp: Option<Stamp>,
}

/// Name, inode, length, seconds and nanoseconds of each file. tbd replaces files, so each change
/// gives another stamp.
type Stamp = Vec<(std::ffi::OsString, u64, u64, i64, i64)>;

impl Tbd {
    pub fn new(repo: &Path, settings: &config::Beads, env: Option<Vec<(String, String)>>) -> Self {
        let dir = repo.join(".muleteer/beads");
        Self {
            repo: repo.into(),
            dir,
            settings: settings.clone(),
            env,
            prefix: None,
            known: Known::default(),
            stamp: None,
        }
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
        let mut ids = BTreeMap::new();
        for call in calls {
            self.carry_out(&held, call, &mut ids)?;
        }
        let mut answer = change.answer;
        for bead in &mut answer.beads {
            if let Some(id) = ids.get(&bead.id) {
                bead.id.clone_from(id);
                bead.dependencies.iter_mut().for_each(|one| one.issue_id.clone_from(id));
            }
        }
        Ok(answer)
    }

    fn lock(&self) -> Result<LockGuard, BeadError> {
        let io = |source| BeadError::Io { path: self.dir.clone(), source };
        std::fs::create_dir_all(&self.dir).map_err(io)?;
        let path = self.dir.join("tbd.lock");
        let held = lock::lock_within(&path, LOCK_PATIENCE).map_err(io)?;
        held.ok_or_else(|| BeadError::Locked { path, seconds: LOCK_PATIENCE.as_secs() })
    }

    fn refresh(&mut self, held: &LockGuard) -> Result<(), BeadError> {
        let stamp = self.stamped();
        if stamp.is_some() && stamp == self.stamp {
            return Ok(());
        }
        let prefix = self.prefix(held)?;
        let to = self.scratch("saved")?;
        self.call(held, &["save".into(), "--dir".into(), shown(&to)])?;
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |source| BeadError::Io { path, source }
        };
        let mut files = Vec::new();
        let mut size = 0;
        let issues = to.join("issues");
        for entry in std::fs::read_dir(&issues).map_err(io(&issues))? {
            let path = entry.map_err(io(&issues))?.path();
            let length = path.metadata().map_err(io(&path))?.len();
            size += length;
            if length > FILE_LIMIT || size > FILES_LIMIT || files.len() > beads::BEADS_LIMIT {
                return Err(io(&path)(io::ErrorKind::FileTooLarge.into()));
            }
            if path.extension().is_some_and(|kind| kind == "md") {
                files.push((shown(&path), std::fs::read_to_string(&path).map_err(io(&path))?));
            }
        }
        files.sort();
        let ids = to.join("mappings/ids.yml");
        let ids = match std::fs::read_to_string(&ids) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(io(&ids)(error)),
        };
        self.known = tbd::read(&files, &ids, &prefix).map_err(|(file, why)| {
            BeadError::Failed(format!("tbd has an unreadable issue, {file}: {why}"))
        })?;
        self.stamp = stamp;
        let _ = std::fs::remove_dir_all(&to);
        Ok(())
    }

    /// Returns the stamp of tbd's files, which saves a call of tbd if it is unchanged. `None` if
    /// the files are elsewhere; then tbd is called each time.
    fn stamped(&self) -> Option<Stamp> {
        let data = self.repo.join(".git/tbd/data-sync-worktree/.tbd/data-sync");
        let mut stamp = Stamp::new();
        for folder in ["issues", "mappings"] {
            for entry in std::fs::read_dir(data.join(folder)).ok()? {
                let entry = entry.ok()?;
                let meta = entry.metadata().ok()?;
                stamp.push((
                    entry.file_name(),
                    meta.ino(),
                    meta.len(),
                    meta.mtime(),
                    meta.mtime_nsec(),
                ));
            }
        }
        stamp.sort();
        Some(stamp)
    }

    fn prefix(&mut self, held: &LockGuard) -> Result<String, BeadError> {
        if let Some(prefix) = &self.prefix {
            return Ok(prefix.clone());
        }
        let said =
            self.call(held, &["config", "get", "display.id_prefix", "--json"].map(String::from))?;
        let prefix =
            document(&said).and_then(|document| document["value"].as_str().map(str::to_string));
        let prefix = prefix.ok_or_else(|| strange("config get", &said))?;
        self.prefix = Some(prefix.clone());
        Ok(prefix)
    }

    fn carry_out(
        &mut self,
        held: &LockGuard,
        call: Call,
        ids: &mut BTreeMap<String, String>,
    ) -> Result<(), BeadError> {
        let mut args: Vec<String> =
            call.args.into_iter().map(|arg| ids.get(&arg).cloned().unwrap_or(arg)).collect();
        let written = |path: &Path, text: &str| {
            let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            made.and_then(|()| std::fs::write(path, text))
                .map_err(|source| BeadError::Io { path: path.into(), source })
        };
        if let Some(file) = &call.file {
            let path = self.scratch("given")?.join("text.md");
            written(&path, &file.text)?;
            args.insert(1, format!("{}={}", file.option, shown(&path)));
        }
        if !call.folder.is_empty() {
            let dir = self.scratch("given")?;
            for (name, text) in &call.folder {
                written(&dir.join(name), text)?;
            }
            args.push(shown(&dir));
        }
        args.insert(0, "--json".into());
        fault::point("tbd.before_call");
        let said = self.call(held, &args)?;
        fault::point("tbd.after_call");
        if let Some(id) = call.makes {
            let made =
                document(&said).and_then(|document| document["id"].as_str().map(str::to_string));
            ids.insert(id, made.ok_or_else(|| strange("create", &said))?);
        }
        Ok(())
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
