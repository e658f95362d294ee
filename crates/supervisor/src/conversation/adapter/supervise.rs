//! Supervises the process of one adapter.
//!
//! ```text
//!  sweep of an earlier process ─▶ hold ─▶ adapter_started (durable) ─▶ release ─▶ exits
//!        ▲                                                                          │
//!        └──── pause (backoff) ◀── adapter_lost ◀───────────────────────────────────┤
//!                                  adapter_set_aside ◀── more often than allowed ◀──┘
//! ```

use crate::conversation::adapter::registry::LiveState;
use crate::conversation::deliver::entries;
use crate::daemon::context::{Daemon, random_key};
use crate::ledger::append;
use crate::tree::ADAPTER;
use muleteer_model::config::Command;
use muleteer_model::conversation::adapter::event::{AdapterLost, AdapterSetAside, AdapterStarted};
use muleteer_model::conversation::adapter::settings::AdapterSettings;
use muleteer_model::event::Event;
use muleteer_model::restart::{Backoff, Decision, Intensity, Window};
use muleteer_process::clock::awake_ms;
use muleteer_process::command::owned_child::{self, Ended, Leash, Log, Owner};
use muleteer_process::fault::point;
use muleteer_process::group::{self, Before};
use muleteer_process::identity::NONCE_VAR;
use muleteer_process::spawn::{Program, find_program};
use muleteer_store::atomic;
use rustix::fs::Mode;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// The most bytes of an adapter's log, and of the one before it.
const LOG_BYTES: u64 = 1 << 20;
/// The time limit for ending the processes of an earlier start.
const SWEEP: Duration = Duration::from_secs(10);

/// An adapter that is to run.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub name: String,
    pub settings: AdapterSettings,
    /// Its settings as the configuration has them, with the keys that only it knows.
    pub raw: Value,
    pub stop: CancellationToken,
}

/// Why an adapter's process could not be started, or ended.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("failed to start its program: {0}")]
    Start(#[source] io::Error),
    #[error("processes of its earlier start cannot be ended: {0:?}")]
    Left(Vec<u32>),
    #[error("it exited with code {0}")]
    Exited(i32),
    #[error("signal {0} ended it")]
    Signalled(i32),
    #[error("{0}")]
    Other(String),
}

/// Runs an adapter until it is told to stop or is set aside. Cancel-safe: dropping it ends the
/// process.
pub(super) async fn supervise(daemon: &Arc<Daemon>, plan: Plan, started: oneshot::Sender<()>) {
    let intensity = Intensity {
        max: plan.settings.max_restarts.unwrap_or(ADAPTER.intensity.max),
        ..ADAPTER.intensity
    };
    let backoff = Backoff {
        max: plan.settings.max_backoff.map_or(ADAPTER.backoff.max, |span| span.as_duration()),
        ..ADAPTER.backoff
    };
    let mut window = Window::new(intensity, backoff, seed());
    let mut started = Some(started);
    loop {
        let failure = match run_once(daemon, &plan, &mut started).await {
            Ok(()) => return,
            Err(failure) => failure,
        };
        let (adapter, reason) = (plan.name.clone(), failure.to_string());
        match window.record(awake_ms()) {
            Decision::RestartAfter(delay) => {
                let lost = AdapterLost {
                    adapter,
                    reason: reason.clone(),
                    delay_ms: delay.as_millis() as u64,
                };
                daemon.adapters.enter(&plan.name, LiveState::Backoff, Some(reason));
                daemon.note(Event::AdapterLost(Box::new(lost)));
                daemon.adapters.change(&plan.name, |live| live.restarts += 1);
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = plan.stop.cancelled() => return,
                }
            }
            Decision::Escalate => {
                let aside = AdapterSetAside { adapter, reason: reason.clone() };
                daemon.adapters.enter(&plan.name, LiveState::SetAside, Some(reason));
                daemon.note(Event::AdapterSetAside(Box::new(aside)));
                return plan.stop.cancelled().await;
            }
        }
    }
}

/// Runs the process once. Returns `Ok` when it was told to stop and has ended.
async fn run_once(
    daemon: &Arc<Daemon>,
    plan: &Plan,
    started: &mut Option<oneshot::Sender<()>>,
) -> Result<(), Failure> {
    daemon.adapters.enter(&plan.name, LiveState::Starting, None);
    let (key, nonce) = (format!("{}{}", random_key(), random_key()), random_key());
    let (owner, leash) = owned_child::owner().map_err(Failure::Start)?;
    let (recorded, pid) = oneshot::channel();
    let (release, released) = mpsc::sync_channel(1);
    let job = Job {
        daemon: daemon.clone(),
        plan: plan.clone(),
        key: key.clone(),
        nonce,
        leash,
        recorded,
        released,
    };
    let (done, mut ended) = oneshot::channel();
    let thread = std::thread::Builder::new().name(format!("adapter-{}", plan.name));
    // The kernel ends the process when this thread ends, so it must be a thread of its own.
    thread.spawn(move || drop(done.send(job.run()))).map_err(Failure::Start)?;
    let pid = tokio::select! {
        pid = pid => pid.ok(),
        () = plan.stop.cancelled() => return finish(owner, ended).await,
    };
    if let Some(pid) = pid {
        let restarts = daemon.adapters.get(&plan.name).map_or(0, |live| live.restarts as u32);
        let event = AdapterStarted { adapter: plan.name.clone(), pid, restarts };
        append(daemon, entries(vec![Event::AdapterStarted(Box::new(event))]))
            .await
            .map_err(|error| Failure::Other(error.to_string()))?;
        point("adapter.started");
        daemon.adapters.running(&plan.name, pid, key);
        let _ = release.send(());
        if let Some(started) = started.take() {
            let _ = started.send(());
        }
    }
    tokio::select! {
        outcome = &mut ended => match outcome {
            Ok(Ok(Ended::Alone(exit))) => Err(match (exit.code, exit.signal) {
                (Some(code), _) => Failure::Exited(code),
                (None, signal) => Failure::Signalled(signal.unwrap_or_default()),
            }),
            Ok(Ok(Ended::Stopped)) => Err(Failure::Other("it was not released".into())),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(Failure::Other("its thread ended".into())),
        },
        () = plan.stop.cancelled() => finish(owner, ended).await,
    }
}

/// Ends the process and waits until nothing of it is left.
async fn finish(
    owner: Owner,
    ended: oneshot::Receiver<Result<Ended, Failure>>,
) -> Result<(), Failure> {
    drop(owner);
    let _ = ended.await;
    Ok(())
}

/// The work of the thread that has the process as its child.
struct Job {
    daemon: Arc<Daemon>,
    plan: Plan,
    key: String,
    nonce: String,
    leash: Leash,
    recorded: oneshot::Sender<u32>,
    released: mpsc::Receiver<()>,
}

impl Job {
    fn run(self) -> Result<Ended, Failure> {
        let io = |error: &dyn std::fmt::Display| Failure::Other(error.to_string());
        let folder = self.daemon.paths.adapter(&self.plan.name);
        atomic::create_dir_durable(&folder, 0o700).map_err(|error| io(&error))?;
        // A daemon that was killed may have left processes. They end before the next ones start.
        let file = folder.join("nonce");
        if let Ok(before) = std::fs::read_to_string(&file) {
            let report = group::sweep(&[before.trim()], None, Before::Nobody, SWEEP);
            if !report.clean {
                return Err(Failure::Left(report.survivors));
            }
        }
        atomic::write_atomic(&file, self.nonce.as_bytes(), 0o600).map_err(|error| io(&error))?;
        let name = format!("adapter-{}.log", self.plan.name);
        let mut log =
            Log::open(&self.daemon.paths.logs().join(name), LOG_BYTES).map_err(Failure::Start)?;
        let program = self.program(&folder).map_err(Failure::Start)?;
        let Self { nonce, leash, recorded, released, .. } = self;
        let record = |pid| recorded.send(pid).is_ok() && released.recv().is_ok();
        owned_child::run(&program, &nonce, &leash, &mut log, record).map_err(Failure::Start)
    }

    fn program(&self, folder: &Path) -> io::Result<Program> {
        let (path, argv) = self.words()?;
        let env = self.environment();
        let env = env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let argv = argv.iter().map(String::as_str);
        Program::new(&path, argv, env, folder, Mode::from_raw_mode(0o077))
    }

    /// Returns the program and its words. One without a command is built in.
    fn words(&self) -> io::Result<(PathBuf, Vec<String>)> {
        let path = std::env::var("PATH").ok();
        let root = Path::new("/");
        Ok(match &self.plan.settings.command {
            Some(Command::Text(text)) => {
                let words = ["sh", "-c", text].map(String::from);
                (find_program("sh", path.as_deref(), root)?, words.to_vec())
            }
            Some(Command::Argv(words)) => {
                let name = words.first().map(String::as_str).unwrap_or_default();
                (find_program(name, path.as_deref(), root)?, words.clone())
            }
            None => {
                let program = self.daemon.settings.muleteer.clone();
                let words = ["muleteer", "adapter-run", &self.plan.name].map(String::from);
                (program, words.to_vec())
            }
        })
    }

    /// Returns the environment: that of the daemon, the configured variables, then Muleteer's.
    fn environment(&self) -> Vec<(String, String)> {
        let mut env: std::collections::BTreeMap<String, String> =
            super::place::variables().into_iter().collect();
        env.retain(|name, _| !muleteer_backends::variables::is_nesting(name));
        env.extend(self.plan.settings.env.clone());
        let socket = self.daemon.paths.socket.display().to_string();
        for (name, value) in [
            ("MULETEER_SOCKET", socket),
            ("MULETEER_ADAPTER", self.plan.name.clone()),
            ("MULETEER_ADAPTER_KEY", self.key.clone()),
            ("MULETEER_ADAPTER_SETTINGS", self.plan.raw.to_string()),
            (NONCE_VAR, self.nonce.clone()),
        ] {
            env.insert(name.into(), value);
        }
        env.into_iter().collect()
    }
}

fn seed() -> u64 {
    let mut bytes = [0; 8];
    // Without randomness all adapters have the same jitter, which is harmless.
    let _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}
