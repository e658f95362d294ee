//! The files and the memory of a run while this daemon hosts it.
//!
//! ```text
//! <repo>/.muleteer/runs/<id>/    frozen-spec.md checkpoint.yml run-log.yml events.jsonl
//!                                lock lock.json
//! <state>/runs/<id>/             run.json (private: the agents' environment) spec.md spec-<n>.md
//!                                hub.git keep.git clone/ bases/ heads/ live undone-<dispatch>
//!                                recovering keeping untold/
//! <state>/sealed/<id>/           acceptance/ judge-results/ homes/<dispatch>/
//! <cache>/<id>/acceptance/       the criteria
//! ```
//!
//! `live` exists while the run is under way: the next daemon resumes those runs.

use crate::daemon::context::keys::random_key;
use crate::daemon::paths::Paths;
use crate::ports::Slot;
use crate::ports::spec_run::RunMsg;
use jiff::Timestamp;
use muleteer_model::config::Beads;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Entry, Event, Record};
use muleteer_model::spec_run::Run;
use muleteer_process::lock::{self, LockGuard};
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1;
use muleteer_store::atomic::{create_dir_durable, write_atomic};
use muleteer_store::beads::Store;
use muleteer_store::events::EventLog;
use muleteer_store::{AppendError, StoreError};
use muleteer_vcs::spec_run::{RunPaths, RunRepos};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The file in a run's private directory that exists while the run is under way.
pub const LIVE: &str = "live";
/// The timeout for reading the log of a run that is taken over.
const LOG_PATIENCE: Duration = Duration::from_secs(60);
/// The timeout for the lock of a run whose work is no longer being fetched.
const RELEASE: Duration = Duration::from_secs(20);
/// The limit of `lock.json`, which has a few lines.
const NOTE_LIMIT: u64 = 64 * 1024;

/// Why the log of a run could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("the run's log is not open")]
    NotOpen,
    #[error("{}", crate::dispatch::error::chain(.0))]
    Read(#[from] StoreError),
    #[error("{}", crate::dispatch::error::chain(.0))]
    Append(#[from] AppendError),
    /// The blocking part of the work panicked, or the runtime is shutting down.
    #[error(transparent)]
    Task(#[from] JoinError),
}

/// All runs that this daemon hosts, by the key of their actor (the random part of their id).
#[derive(Debug, Default)]
pub struct Runs {
    hosted: Mutex<HashMap<DispatchId, Arc<Hosted>>>,
    begun: Mutex<BTreeMap<String, Places>>,
    /// The repositories of the runs with files, by the name of their folder. They never change.
    saved: Mutex<HashMap<OsString, PathBuf>>,
    /// Held while a run begins, so that two requests cannot start the same run.
    pub gate: tokio::sync::Mutex<()>,
    /// Held by the suspect that resumes now; see `begin::recovery`.
    pub trial: Arc<tokio::sync::Mutex<()>>,
    /// Runs that were set aside when this daemon started, and whose work is not in the repository
    /// yet.
    pub aside: Mutex<Vec<Hosted>>,
    /// The tasks that fetch the work of those runs into the user's repository, by run.
    pub keeping: Mutex<HashMap<String, Aside>>,
    /// The variables for the push of runs that rest for a person. They are never on disk.
    push_env: Mutex<HashMap<String, Vec<(String, String)>>>,
    /// The files with messages about ends that no thread has yet; see `question::run_end`.
    pub untold: watch::Sender<BTreeSet<PathBuf>>,
    /// Changes whenever one of the runs has progressed.
    pub moved: watch::Sender<u64>,
}

impl Runs {
    pub fn get(&self, key: &DispatchId) -> Option<Arc<Hosted>> {
        self.hosted.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    pub fn find(&self, run_id: &str) -> Option<Arc<Hosted>> {
        self.get(&key_of(run_id)?).filter(|hosted| hosted.run_id == run_id)
    }

    pub fn all(&self) -> Vec<Arc<Hosted>> {
        self.hosted.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Returns the runs that this daemon began to host since its telemetry export last took them.
    /// They may be over by then. Empty without an export.
    pub fn begun(&self) -> MutexGuard<'_, BTreeMap<String, Places>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a run. `told` says whether the telemetry export will ask for it; the export finds the
    /// run hosted unless it is over.
    pub fn insert(&self, hosted: Arc<Hosted>, told: bool) {
        let begun = told.then(|| (hosted.run_id.clone(), hosted.places.clone()));
        self.hosted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(hosted.key.clone(), hosted);
        self.begun().extend(begun);
    }

    pub fn remove(&self, key: &DispatchId) {
        self.hosted.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Keeps the variables for the push of a run that rests for a person.
    pub fn keep_push_env(&self, hosted: &Hosted) {
        let env = hosted.push_env.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut kept = self.push_env.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert(hosted.run_id.clone(), env);
    }

    /// Returns the variables for the push of a run that an answer resumes; empty after a restart of
    /// the daemon. They stay for a retry, until the run rests again.
    pub fn kept_push_env(&self, run_id: &str) -> Vec<(String, String)> {
        let kept = self.push_env.lock().unwrap_or_else(PoisonError::into_inner);
        kept.get(run_id).cloned().unwrap_or_default()
    }

    /// Removes the variables for the push of a run that no answer resumes any more.
    pub fn forget_push_env(&self, run_id: &str) {
        self.push_env.lock().unwrap_or_else(PoisonError::into_inner).remove(run_id);
    }

    /// Returns the repositories of all runs: of those that this daemon hosts, and of those that
    /// have files in its state directory.
    pub fn repositories(&self, paths: &Paths) -> BTreeSet<PathBuf> {
        let hosted = self.all().into_iter().map(|hosted| hosted.repo.clone());
        let mut known = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let mut saved = HashMap::new();
        for entry in std::fs::read_dir(paths.runs()).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let repo = known.remove(&name).or_else(|| {
                let bytes = std::fs::read(entry.path().join("run.json")).ok()?;
                let saved = serde_json::from_slice::<Saved>(&bytes).ok()?;
                Some(PathBuf::from(saved.request.repo))
            });
            saved.extend(repo.map(|repo| (name, repo)));
        }
        *known = saved;
        hosted.chain(known.values().cloned()).collect()
    }

    /// Returns the run that this dispatch belongs to. It waits for a run that this daemon has just
    /// taken over, because its agents connect as soon as there is a socket, and its log may not be
    /// read yet.
    pub async fn of_dispatch(&self, dispatch: &str) -> Option<(Arc<Hosted>, Arc<Run>)> {
        for hosted in self.all() {
            let rest = dispatch.strip_prefix(hosted.key.as_str());
            if !rest.is_some_and(|rest| rest.starts_with('x')) {
                continue;
            }
            let mut state = hosted.state.subscribe();
            let known = state.wait_for(Option::is_some);
            let Ok(Ok(run)) = tokio::time::timeout(LOG_PATIENCE, known).await else { return None };
            let run = run.clone()?;
            return run.job_by_dispatch(dispatch).is_some().then(|| (hosted.clone(), run));
        }
        None
    }
}

/// A task that fetches the work of a run into the user's repository.
#[derive(Debug)]
pub struct Aside {
    pub task: AbortOnDropHandle<()>,
    /// Closes when the run's lock is released.
    pub released: watch::Receiver<()>,
}

impl Aside {
    /// Aborts the task and waits until the run's lock is released. A blocking part of the task
    /// cannot be aborted, and holds the lock until it ends.
    pub async fn end(mut self) {
        self.task.abort();
        let _ = self.task.await;
        let _ = tokio::time::timeout(RELEASE, self.released.changed()).await;
    }
}

/// Returns the repository of this run.
pub fn repo_of(paths: &Paths, run_id: &str) -> Option<PathBuf> {
    let bytes = std::fs::read(paths.run(run_id).join("run.json")).ok()?;
    let saved: Saved = serde_json::from_slice(&bytes).ok()?;
    Some(PathBuf::from(saved.request.repo))
}

/// Returns the key of a run's actor: the hash of the id `run-<date>-<hash>`.
pub fn key_of(run_id: &str) -> Option<DispatchId> {
    let mut parts = run_id.splitn(2, '-');
    let fine = parts.next() == Some("run") && run_id.len() <= 40;
    let hash = run_id.rsplit('-').next()?;
    let clean = run_id
        .bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    (fine && clean).then(|| DispatchId::try_from(hash.to_string()).ok())?
}

/// The saved request. It is private, because the agents' environment may hold secrets.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Saved {
    pub v: u16,
    pub request: v1::Run,
    /// The secret variables of `extra_env` whose values were removed when the run rested.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    #[serde(default)]
    pub chosen: Chosen,
}

impl Saved {
    /// Returns the store of the run's beads.
    pub fn store(&self) -> Store {
        Store::new(
            &crate::daemon::settings::beads_home(Path::new(&self.request.repo)),
            &self.chosen.beads,
            Some(self.request.env.clone()),
        )
    }
}

/// Settings for the run's agents, read from the configuration when the run begins and when it
/// resumes. An agent that is not confined can write the repository's file meanwhile, and must not
/// choose the judge's program.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Chosen {
    pub command: Option<v1::Command>,
    pub judge_model: Option<String>,
    pub acceptance_model: Option<String>,
    pub guidelines: Vec<String>,
    /// No file of the configuration names the guidelines.
    pub guidelines_by_default: bool,
    pub completion_checks: Vec<String>,
    /// The paths that the sandbox also shows, and what else it allows.
    pub write: Vec<String>,
    pub show: Vec<String>,
    pub nested: bool,
    pub max_processes: u32,
    pub max_memory_mib: Option<u64>,
    pub max_home_mib: Option<u64>,
    /// Where its beads are. The kind of store stays as it was when the run began.
    pub beads: Beads,
}

/// One run that this daemon drives.
#[derive(Debug)]
pub struct Hosted {
    pub run_id: String,
    pub key: DispatchId,
    pub repo: PathBuf,
    pub places: Places,
    pub actor: Slot<RunMsg>,
    /// The newest folded state; `None` before the log is read.
    pub state: watch::Sender<Option<Arc<Run>>>,
    pub request: Mutex<v1::Run>,
    /// The last client's environment for the push. It is never written to disk.
    pub push_env: Mutex<Vec<(String, String)>>,
    pub chosen: Mutex<Chosen>,
    pub beads: Arc<tokio::sync::Mutex<Store>>,
    pub log: Mutex<Option<EventLog>>,
    /// Locked for reading while a worktree and a dispatch are made. Code that terminates agents
    /// locks it for writing, and then knows whether a dispatch exists.
    pub begins: tokio::sync::RwLock<()>,
    /// Its `halt` is cancelled when the run's agents are terminated: none may start any more. It is
    /// never reset, because a resumed run gets a new `Hosted`.
    pub repos: RunRepos,
    /// When the real remote was last asked, in awake time.
    pub remote_asked: Mutex<Option<Duration>>,
    /// Somebody started or resumed the run through this daemon, so another request is rejected.
    pub claimed: Mutex<bool>,
    _lock: LockGuard,
    /// Its receivers see it closed once the lock is released, because fields are dropped in order.
    released: watch::Sender<()>,
}

/// The paths of a run.
#[derive(Debug, Clone)]
pub struct Places {
    pub public: PathBuf,
    pub private: PathBuf,
    pub sealed: PathBuf,
    pub acceptance: PathBuf,
    pub worktrees: PathBuf,
}

impl Places {
    pub fn new(paths: &Paths, repo: &Path, run_id: &str) -> Self {
        Self {
            public: repo.join(".muleteer/runs").join(run_id),
            private: paths.run(run_id),
            sealed: paths.state_dir.join("sealed").join(run_id),
            acceptance: paths.cache_dir.join(run_id).join("acceptance"),
            worktrees: repo.join(".muleteer/worktrees").join(run_id),
        }
    }

    pub fn events(&self) -> PathBuf {
        self.public.join("events.jsonl")
    }

    pub fn frozen_spec(&self) -> PathBuf {
        self.public.join("frozen-spec.md")
    }

    /// Returns the paths of the run's repositories.
    pub fn repos(&self) -> RunPaths {
        RunPaths { private: self.private.clone() }
    }

    /// Returns the private copy of a version of the spec: the first one, or that of an amendment.
    pub fn spec(&self, version: u32) -> PathBuf {
        match version {
            0 => self.private.join("spec.md"),
            version => self.private.join(format!("spec-{version}.md")),
        }
    }

    pub fn live(&self) -> PathBuf {
        self.private.join(LIVE)
    }

    pub fn saved(&self) -> PathBuf {
        self.private.join("run.json")
    }

    /// Returns the folder for the homes of the CLI of an agent that judges.
    pub fn home_of(&self, dispatch: &DispatchId) -> PathBuf {
        self.sealed.join("homes").join(dispatch.as_str())
    }

    /// Returns the folder for prompts and answers that coding agents must not read.
    pub fn talk(&self) -> PathBuf {
        self.sealed.join("talk")
    }

    pub fn verdicts(&self) -> PathBuf {
        self.sealed.join("judge-results")
    }

    pub fn lock(&self) -> PathBuf {
        self.public.join("lock")
    }
}

/// The content of `lock.json`, which informs people. The flock decides.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LockNote {
    pub run_id: String,
    pub pid: u32,
    pub hostname: String,
    #[serde(default)]
    pub boot_id: String,
    pub started_at: Timestamp,
    pub heartbeat_at: Timestamp,
}

/// Returns the name of this machine, as written in `lock.json`.
pub fn hostname() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .map_or_else(|| "localhost".into(), |name| name.trim().to_string())
}

/// Whether a daemon drives the run of this folder. For a run on another machine only its note is
/// evidence.
pub fn is_hosted(folder: &Path) -> bool {
    let note: Option<LockNote> =
        muleteer_vcs::untrusted_path::read_file(&folder.join("lock.json"), NOTE_LIMIT)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    note.is_some_and(|note| !is_here(&note)) || lock::is_held(&folder.join("lock"))
}

/// Whether the lock is on this machine. A container that is made again has another name. On the
/// same kernel and file, the flock itself decides.
fn is_here(note: &LockNote) -> bool {
    let boot = muleteer_process::identity::boot_id();
    note.hostname == hostname() || (!note.boot_id.is_empty() && note.boot_id == boot)
}

/// Takes the run's lock.
///
/// # Errors
/// `E_RUN_LOCKED` with the holder, also if another machine holds the lock: such a lock is never
/// stolen.
pub fn take_lock(places: &Places, run_id: &str) -> Result<LockGuard, v1::WireError> {
    let note: Option<LockNote> =
        muleteer_vcs::untrusted_path::read_file(&places.public.join("lock.json"), NOTE_LIMIT)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let locked = |who: String| v1::WireError {
        run_id: Some(run_id.into()),
        ..crate::dispatch::error::fault(
            ErrorCode::RunLocked,
            &format!("run {run_id} is already in progress{who}"),
            "check it with `muleteer run --status`",
        )
    };
    if let Some(note) = note.as_ref().filter(|note| !is_here(note)) {
        return Err(v1::WireError {
            hint: Some(format!(
                "stop it there; if the host {} no longer exists (like a container's name), delete \
                 {} and resume again",
                note.hostname,
                places.public.join("lock.json").display()
            )),
            ..locked(format!(" on {} (pid {})", note.hostname, note.pid))
        });
    }
    let io = |error: std::io::Error| {
        crate::dispatch::error::internal(&format!("{}: {error}", places.lock().display()))
    };
    create_dir_durable(&places.public, 0o700)
        .map_err(|error| crate::dispatch::error::unwritten(&error))?;
    match lock::lock_within(&places.lock(), Duration::from_secs(2)).map_err(io)? {
        Some(guard) => Ok(guard),
        None => Err(locked(note.map(|note| format!(" (pid {})", note.pid)).unwrap_or_default())),
    }
}

impl Hosted {
    pub fn new(
        places: Places,
        run_id: &str,
        key: DispatchId,
        saved: Saved,
        lock: LockGuard,
    ) -> Self {
        let store = saved.store();
        let Saved { request, chosen, .. } = saved;
        let mut repos =
            RunRepos::new(run_id, &request.repo, places.repos(), CancellationToken::new());
        let path = request.env.iter().rev().find(|(name, _)| name == "PATH");
        repos.path = path.map(|(_, value)| value.clone());
        Self {
            run_id: run_id.into(),
            key,
            beads: Arc::new(tokio::sync::Mutex::new(store)),
            repo: PathBuf::from(&request.repo),
            repos,
            places,
            actor: Slot::default(),
            state: watch::Sender::new(None),
            request: Mutex::new(request),
            push_env: Mutex::default(),
            chosen: Mutex::new(chosen),
            log: Mutex::new(None),
            begins: tokio::sync::RwLock::default(),
            remote_asked: Mutex::new(None),
            claimed: Mutex::new(false),
            _lock: lock,
            released: watch::Sender::default(),
        }
    }

    /// Returns a receiver that closes when the run's lock is released.
    pub fn released(&self) -> watch::Receiver<()> {
        self.released.subscribe()
    }

    pub fn request(&self) -> v1::Run {
        self.request.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the environment for the push. A client that has none leaves the last one in place.
    pub fn give_for_push(&self, variables: &[(String, String)]) {
        if !variables.is_empty() {
            *self.push_env.lock().unwrap_or_else(PoisonError::into_inner) = variables.to_vec();
        }
    }

    /// Returns the environment of the last client. The variables that are given only for the push
    /// replace those of the same name.
    pub fn person_env(&self) -> Vec<(String, String)> {
        let given = self.push_env.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let is_given = |name: &str| given.iter().any(|(given, _)| given == name);
        let mut env = self.request().env;
        env.retain(|(name, _)| !is_given(name));
        env.extend(given);
        env
    }

    pub fn chosen(&self) -> Chosen {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Claims the run for a request; returns false if another one has it.
    pub fn claim(&self) -> bool {
        let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        !std::mem::replace(&mut *claimed, true)
    }

    pub fn run(&self) -> Option<Arc<Run>> {
        self.state.borrow().clone()
    }

    /// Opens the log if it is not open, and folds it. Blocks.
    pub fn open_log(&self) -> Result<Option<Run>, StoreError> {
        let mut slot = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        // It is opened again each time, because that is recovery. Only one handle may be open.
        *slot = None;
        let mut run: Option<Run> = None;
        let (log, _) = EventLog::open(&self.places.events(), 0, |record| match &mut run {
            Some(run) => run.apply(&record),
            None => run = Run::begin(&record),
        })?;
        *slot = Some(log);
        Ok(run)
    }

    /// Appends events durably, as one batch. Blocks.
    pub fn append(&self, events: Vec<Event>) -> Result<Vec<Record>, LogError> {
        let mut slot = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let log = slot.as_mut().ok_or(LogError::NotOpen)?;
        let last = events.len().saturating_sub(1);
        let entries: Vec<Entry> = events
            .into_iter()
            .enumerate()
            .map(|(at, event)| Entry {
                id: random_key(),
                dispatch_id: None,
                at: None,
                more: at < last,
                event,
            })
            .collect();
        loop {
            match log.append(&entries, Timestamp::now()) {
                // A full disk is a state, not a failure: the append is retried until there is room.
                Err(AppendError::Full { .. }) => std::thread::sleep(Duration::from_secs(1)),
                outcome => return Ok(outcome?),
            }
        }
    }

    pub fn write_lock_note(&self, since: Timestamp) {
        let note = LockNote {
            run_id: self.run_id.clone(),
            pid: std::process::id(),
            hostname: hostname(),
            boot_id: muleteer_process::identity::boot_id(),
            started_at: since,
            heartbeat_at: Timestamp::now(),
        };
        if let Ok(bytes) = serde_json::to_vec_pretty(&note) {
            // The note only informs people.
            let _ = write_atomic(&self.places.public.join("lock.json"), &bytes, 0o600);
        }
    }

    pub fn remove_lock_note(&self) {
        let _ = std::fs::remove_file(self.places.public.join("lock.json"));
    }
}

#[cfg(test)]
impl Hosted {
    /// Makes one for the repository `repo` below `root`; its other files are beside that.
    pub fn alone(root: &Path, run_id: &str) -> Self {
        let repo = root.join("repo");
        let places = Places {
            public: repo.join(".muleteer/runs").join(run_id),
            private: root.join("state"),
            sealed: root.join("sealed"),
            acceptance: root.join("acceptance"),
            worktrees: repo.join(".muleteer/worktrees").join(run_id),
        };
        std::fs::create_dir_all(&places.private).expect("a directory");
        let lock = lock::lock_within(&root.join("lock"), Duration::from_secs(5)).expect("a lock");
        let request = v1::Run { repo: repo.display().to_string(), ..v1::Run::default() };
        let saved = Saved { v: 1, request, removed: vec![], chosen: Chosen::default() };
        Self::new(
            places,
            run_id,
            key_of(run_id).expect("a key"),
            saved,
            lock.expect("no process has it"),
        )
    }
}
