//! Start-up, which *is* recovery, and the few preparations before the tree runs.

pub mod clean;
pub mod container;
pub mod context;
pub(crate) mod disk_reserve;
pub mod file_watch;
pub mod heartbeat;
pub mod owned_task;
pub mod paths;
pub mod projection;
pub mod service;
pub mod settings;
pub(crate) mod start;
pub mod trust;

use crate::daemon::context::{Backlog, Boot, Daemon, random_key};
use crate::daemon::owned_task::own;
use crate::daemon::paths::Paths;
use crate::daemon::service::sd_notify;
use crate::daemon::service::signals::AsyncSignals;
pub use crate::daemon::start::error::{Note, StartError};
use crate::daemon::start::private_dir::{keep_private, make_private, private_dir};
use crate::dispatch::launch::secrets::put_away_left;
use crate::ledger::log::Opened;
use crate::ledger::parts::Parts;
use crate::telemetry::outbox::outbox;
use crate::telemetry::own_spans;
use crate::tree::ROOT;
use crate::tree::supervisor_actor::{Args, Branch};
use jiff::Timestamp;
use muleteer_model::config::notify::Notify;
use muleteer_model::config::{Config, ConfigError, InForce, Source};
use muleteer_model::doctor;
use muleteer_model::event::{Entry, Event};
use muleteer_process::host::descriptors;
use muleteer_process::identity;
use muleteer_process::lock;
use muleteer_shim::start::ShimProgram;
use muleteer_store::db::Projection;
use muleteer_store::{AppendError, StoreError};
use muleteer_telemetry::{Settings, VARIABLE};
use ractor::Actor;
use rustix::process::Signal;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// After a kill -9 a dead daemon's lock may outlive its sockets by a moment.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// Without a daemon's heartbeat a shim terminates its agent after this much awake time.
const LEASE: Duration = Duration::from_secs(3600);
/// The number of allocator arenas. Each thread has a cache of its own before them.
const ARENAS: u8 = 1;

#[derive(Debug)]
pub struct DaemonOptions {
    pub paths: Paths,
    pub config: Option<PathBuf>,
    /// Ends the daemon when it has been idle for this long.
    pub idle_exit: Option<Duration>,
    /// Any running daemon will do: if another one serves already, this one ends. If it waited for
    /// the lock instead, it would take over from a daemon that is told to stop.
    pub on_demand: bool,
}

/// Runs the daemon until it is told to stop.
///
/// # Errors
/// Before it serves: the reason why it cannot start; if another daemon runs, nothing was changed.
/// Afterwards: the failure of the tree.
pub fn run(options: DaemonOptions) -> Result<(), StartError> {
    // The daemon has many small objects that live as long as an agent, and each arena would keep
    // free space between them.
    muleteer_process::host::memory::share_arenas(ARENAS);
    let paths = options.paths;
    keep_private(&paths.state_dir)?;
    for folder in [&paths.agents(), &paths.logs()] {
        private_dir(folder).map_err(|source| StartError::Io { path: folder.clone(), source })?;
    }
    make_private(&paths.runtime_dir)?;
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| StartError::Io { path, source }
    };
    let lock_path = paths.daemon_lock();
    let served = || options.on_demand && muleteer_protocol::socket::answers(&paths.socket);
    let held = lock::lock_unless(&lock_path, LOCK_PATIENCE, served).map_err(io(&lock_path))?;
    let Some(_held) = held else {
        return Err(StartError::Running {
            state_dir: paths.state_dir.clone(),
            note: lock::read_note(&lock_path),
        });
    };
    let note = Note {
        pid: std::process::id(),
        started: format!("{:.0}", Timestamp::now()),
        version: env!("CARGO_PKG_VERSION").into(),
        boot_id: identity::boot_id(),
        socket: Some(paths.socket.clone()),
    };
    disk_reserve::at_need(&paths.reserve(), muleteer_store::is_full, || {
        lock::write_note(&lock_path, &note)
    })
    .map_err(io(&lock_path))?;
    let recovery = own_spans::recovery();
    let Configured { mut log, settings, endpoint, notify, fault } =
        configured(&paths, options.config.as_deref())?;
    descriptors::make_room(doctor::open_files_for(settings.max_agents));
    operator_key(&paths.operator_key()).map_err(io(&paths.operator_key()))?;
    let muleteer = std::env::current_exe().map_err(io(Path::new("/proc/self/exe")))?;
    link_program(&paths.state_dir.join("bin"), &muleteer).map_err(io(&paths.state_dir))?;
    let shim = ShimProgram::locate().map_err(io(&muleteer))?;
    muleteer_vcs::command::find_git();
    if let Err(error) = muleteer_vcs::command::renew_configuration(&paths.git()) {
        tracing::warn!(%error, "git obeys the person's changing configuration");
    }
    let telemetry = telemetry(endpoint.as_deref());
    log.begin(&paths, &note, settings)?;
    let Log { opened, backlog, .. } = log;
    disk_reserve::keep(&paths.reserve());
    let settings = context::Settings {
        generation: opened.fleet.generation,
        muleteer,
        lease_ms: LEASE.as_millis() as u64,
        pool_limits: settings.pool(),
        retention: settings.retention(),
        config_file: options.config.clone(),
        notify,
        telemetry,
    };
    let boot = Boot { opened: Some(opened), backlog, shim, settings };
    let daemon = Arc::new(Daemon::new(paths, boot));
    if let Some(error) = fault {
        let message = without_configuration(&error);
        tracing::error!("{message}");
        daemon.note(Event::Fault { what: "configuration".into(), message });
    }
    let crashed = muleteer_process::crash::watch(&daemon.paths.crashed()).unwrap_or_else(|error| {
        tracing::warn!(%error, "failed to watch for crashes");
        false
    });
    for (run, error) in crate::spec_run::boot(&daemon, crashed) {
        let message = format!("{}; retry with `muleteer run --resume {run}`", error.message);
        daemon.note(Event::Fault { what: format!("run {run}"), message });
    }
    own_spans::recovered(recovery, daemon.settings.generation, daemon.snapshot().seq);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(io(Path::new("tokio")))?;
    let outcome = runtime.block_on(serve(daemon, options.idle_exit));
    runtime.shutdown_timeout(Duration::from_secs(2));
    outcome
}

/// The opened log, and the settings that the daemon starts with.
struct Configured {
    log: Log,
    settings: InForce,
    endpoint: Option<String>,
    notify: Notify,
    fault: Option<StartError>,
}

/// Opens the log, and reads the configuration with the settings that people changed at run time.
fn configured(paths: &Paths, file: Option<&Path>) -> Result<Configured, StartError> {
    match configuration(paths, file, vec![]) {
        Ok(config) => {
            let log = Log::open(paths)?;
            let runtime = log.opened.fleet.runtime.sources();
            let (config, fault) = match with_runtime(paths, file, runtime) {
                Ok(changed) => (changed.unwrap_or(config), None),
                Err(error) => (config, Some(error)),
            };
            let (endpoint, notify) = (config.telemetry.endpoint.clone(), config.notify.clone());
            Ok(Configured { log, settings: InForce::of(&config), endpoint, notify, fault })
        }
        // Agents must be supervised, and must be killable, even if that file is broken.
        Err(error) => {
            let log = Log::open(paths)?;
            let defaults = Config::defaults().map_err(StartError::Config)?;
            let Some(settings) = log.opened.fleet.settings_left(InForce::of(&defaults)) else {
                return Err(log.given_up(error));
            };
            let (endpoint, notify) = (None, Notify::default());
            Ok(Configured { log, settings, endpoint, notify, fault: Some(error) })
        }
    }
}

/// Returns the settings of the export, or `None` if nothing is exported. A wrong endpoint must not
/// keep agents from being supervised.
fn telemetry(endpoint: Option<&str>) -> Option<Settings> {
    let settings = Settings::with_default(endpoint, &|name| std::env::var(name).ok())
        .unwrap_or_else(|error| {
            let message = "telemetry is off: its endpoint is invalid";
            tracing::warn!(%error, "{message} ({VARIABLE} or telemetry.endpoint)");
            None
        })?;
    for what in &settings.unheeded {
        tracing::warn!("telemetry: {what}");
    }
    if settings.traces.is_some() {
        outbox().open(settings.sampler);
    }
    Some(settings)
}

/// Loads the daemon's own configuration, without that of any project.
fn configuration(
    paths: &Paths,
    given: Option<&Path>,
    runtime: Vec<Source>,
) -> Result<Config, StartError> {
    let mut sources = settings::sources(paths, None, given)?;
    sources.extend(runtime);
    // A variable that is not UTF-8 is no setting.
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let env: Vec<(String, String)> = std::env::vars_os().filter_map(text).collect();
    settings::config(&sources, &env).map_err(StartError::Config)
}

/// Loads the configuration with the settings of run time; `None` if there are none.
fn with_runtime(
    paths: &Paths,
    given: Option<&Path>,
    runtime: Vec<Source>,
) -> Result<Option<Config>, StartError> {
    if runtime.is_empty() {
        return Ok(None);
    }
    configuration(paths, given, runtime).map(Some)
}

/// Returns the fault message of a daemon that runs without its intended configuration.
fn without_configuration(error: &StartError) -> String {
    let what = match error {
        StartError::Config(errors) => errors.first().map(ConfigError::brief).unwrap_or_default(),
        other => other.to_string(),
    };
    format!(
        "{what}; until it is fixed the daemon starts nothing new, and until its restart it uses \
         the settings of the previous daemon (run `muleteer config check` to list every fault)"
    )
}

/// The log as the daemon finds it when it starts.
struct Log {
    opened: Opened,
    backlog: Backlog,
    cut_bytes: u64,
}

impl Log {
    /// Reads every event, and truncates a torn tail.
    fn open(paths: &Paths) -> Result<Self, StartError> {
        // The projection applied only durable events: a log that ends before them has lost
        // something.
        let applied = applied(&paths.database())?;
        let mut backlog = Backlog::default();
        let (opened, recovery) =
            Opened::open(&paths.events(), applied, |fleet, record| backlog.take(fleet, record))?;
        Ok(Self { opened, backlog, cut_bytes: recovery.cut_bytes })
    }

    /// Starts a new generation.
    fn begin(&mut self, paths: &Paths, note: &Note, settings: InForce) -> Result<(), StartError> {
        let generation = self.opened.fleet.generation + 1;
        let started = Event::DaemonStarted {
            pid: note.pid,
            generation,
            version: note.version.clone(),
            boot_id: note.boot_id.clone(),
            settings: Some(settings),
        };
        let entries: Vec<_> = self.recovered().into_iter().chain([started]).map(unasked).collect();
        let no_room = |error: &AppendError| matches!(error, AppendError::Full { .. });
        disk_reserve::at_need(&paths.reserve(), no_room, || {
            self.opened.append(&entries, &Parts::default())
        })
        .map_err(|error| StartError::Append(error.to_string()))?;
        tracing::info!(
            generation,
            seq = self.opened.fleet.seq,
            cut_bytes = self.cut_bytes,
            "recovered"
        );
        Ok(())
    }

    fn recovered(&self) -> Option<Event> {
        (self.cut_bytes > 0).then_some(Event::LogRecovered { cut_bytes: self.cut_bytes })
    }

    /// Starts nothing, but records the bytes that opening the log has truncated.
    fn given_up(mut self, why: StartError) -> StartError {
        let entries: Vec<_> = self.recovered().into_iter().map(unasked).collect();
        match self.opened.append(&entries, &Parts::default()) {
            Ok(_) => why,
            Err(error) => StartError::Append(error.to_string()),
        }
    }
}

/// Returns the seq of the newest record in the database. It is opened for writing, which checks all
/// of it, only if it must be made again.
fn applied(database: &Path) -> Result<u64, StoreError> {
    match Projection::open_read_only(database) {
        Ok(Some(found)) => Ok(found.applied_seq()),
        Ok(None) | Err(StoreError::DbCorrupt { .. }) => {
            Ok(Projection::open(database)?.0.applied_seq())
        }
        Err(error) => Err(error),
    }
}

fn unasked(event: Event) -> Entry {
    Entry { id: random_key(), dispatch_id: None, at: None, more: false, event }
}

async fn serve(daemon: Arc<Daemon>, idle_exit: Option<Duration>) -> Result<(), StartError> {
    let args = Args { daemon: daemon.clone(), node: &ROOT, id: None };
    // This is the one actor without a supervisor; the process that started this one supervises it.
    #[allow(clippy::disallowed_methods)]
    let (root, mut ended) = Branch::spawn(None, Branch, args)
        .await
        .map_err(|error| StartError::Tree(error.to_string()))?;
    daemon.ports.root.set(root.clone());
    crate::spec_run::keep_set_aside(&daemon);
    let fail = |source| StartError::Io { path: "signals".into(), source };
    let mut end = AsyncSignals::catch(&[Signal::TERM, Signal::INT]).map_err(fail)?;
    let mut child = AsyncSignals::catch(&[Signal::CHILD]).map_err(fail)?;
    let _manager = own(sd_notify::tell(daemon.clone()));
    let _retention = own(clean::retention::run(daemon.clone()));
    let _archive = own({
        let daemon = daemon.clone();
        async move {
            // It looks for them in the fleet.
            put_away_left(&daemon).await;
            crate::ledger::archive::keep(daemon).await;
        }
    });
    let _zygote = own({
        let daemon = daemon.clone();
        async move { daemon.shims.warm().await }
    });
    let idle = idle(&daemon, idle_exit);
    tokio::pin!(idle);
    loop {
        tokio::select! {
            () = daemon.lifecycle.stop.cancelled() => break,
            _ = end.next() => break,
            () = &mut idle => break,
            _ = child.next() => daemon.shims.reap(),
            outcome = &mut ended => {
                let why = match outcome {
                    Ok(_) => "the root supervisor has ended".to_string(),
                    Err(error) => error.to_string(),
                };
                return Err(StartError::Tree(why));
            }
        }
    }
    daemon.lifecycle.stop.cancel();
    sd_notify::stopping();
    // No run is to blame for an orderly end.
    for hosted in daemon.runs.all() {
        crate::spec_run::outlived(&hosted.places);
    }
    // Agents live on in their shims, which get no message.
    let _ = root.stop_and_wait(None, Some(Duration::from_secs(10))).await;
    let _ = std::fs::remove_file(&daemon.paths.socket);
    daemon.shims.close();
    Ok(())
}

/// Returns when there has been no work, no open deadline and no client for `limit`.
async fn idle(daemon: &Daemon, limit: Option<Duration>) {
    let Some(limit) = limit else { return std::future::pending().await };
    let mut fleet = daemon.fleet.subscribe();
    let mut connections = daemon.lifecycle.connections.subscribe();
    loop {
        let busy = {
            let fleet = fleet.borrow_and_update();
            fleet.unfinished().next().is_some()
                || fleet.task_lists.active().next().is_some()
                || fleet.conversations.busy().next().is_some()
                // A question's default is taken at its deadline.
                || fleet.questions.open().any(|question| question.deadline.is_some())
                // Messages from outside must find a daemon.
                || daemon.adapters.any_enabled()
                // Nothing else starts a daemon at a due moment.
                || fleet.conversations.schedules().is_followed()
                || fleet.is_healing()
        };
        let talking = *connections.borrow_and_update() > 0;
        let quiet = async {
            if busy || talking {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(limit).await;
        };
        tokio::select! {
            () = quiet => return,
            _ = fleet.changed() => {}
            _ = connections.changed() => {}
        }
    }
}

fn operator_key(path: &Path) -> io::Result<()> {
    let key = format!("{}{}\n", random_key(), random_key());
    let is_key = |text: &str| {
        text.trim().len() == key.trim().len()
            && text.trim().bytes().all(|b| b.is_ascii_alphanumeric())
    };
    match std::fs::read(path) {
        Ok(bytes) if str::from_utf8(&bytes).is_ok_and(is_key) => return Ok(()),
        Ok(bytes) if !bytes.is_empty() => {
            tracing::warn!(
                path = %path.display(),
                bytes = bytes.len(),
                "the operator key was invalid: created a new one"
            );
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    muleteer_store::atomic::write_atomic(path, key.as_bytes(), 0o600).map_err(io::Error::other)
}

/// Links `muleteer` into the directory that is on every agent's PATH and holds nothing else.
fn link_program(bin: &Path, program: &Path) -> io::Result<()> {
    private_dir(bin)?;
    let link = bin.join("muleteer");
    if std::fs::read_link(&link).is_ok_and(|target| target == program) {
        return Ok(());
    }
    let fresh = bin.join(".muleteer.new");
    let _ = std::fs::remove_file(&fresh);
    std::os::unix::fs::symlink(program, &fresh)?;
    std::fs::rename(&fresh, &link)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;
    use muleteer_model::event::Event;
    use muleteer_model::question::{Choice, Kind, QuestionAsked, State};

    #[tokio::test(start_paused = true)]
    async fn open_deadline_keeps_an_idle_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let limit = Duration::from_secs(5);
        let ends = || tokio::time::timeout(limit * 10, idle(&daemon, Some(limit)));
        assert!(ends().await.is_ok(), "nothing is open");
        let question = "q2345678".to_string();
        daemon.fold_plain(Event::QuestionAsked(Box::new(QuestionAsked {
            question: question.clone(),
            kind: Kind::Approval,
            text: "Go on?".into(),
            options: vec![Choice::new("yes", "")],
            multi: false,
            free_text: false,
            detail: serde_json::Value::Null,
            default: Some("yes".into()),
            deadline: Some(jiff::Timestamp::MAX),
            thread: None,
            shown_in: vec![],
            dispatch: None,
            asked_by: "muleteer".into(),
            subject: String::new(),
        })));
        assert!(ends().await.is_err(), "its default is to be taken");
        let state = State::Withdrawn;
        daemon.fold_plain(Event::QuestionState { question, state, reason: String::new() });
        assert!(ends().await.is_ok(), "it is closed");
    }
}
