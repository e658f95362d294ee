//! Exports traces and metrics, made from the durable events (`model::telemetry`), to an OTLP collector.
//!
//! The log is the queue: this actor reads it at its own pace and keeps how far it has been exported in
//! `telemetry.json`. So nothing waits for a collector, memory holds one batch, a collector that was away
//! gets what it missed, and a daemon that was killed goes on where it was; what it had sent without noting
//! it is sent again under the same ids. Only what a collector refuses is dropped, and counted.

pub mod http;

use crate::context::Daemon;
use crate::owned::{own, survive};
use http::PostError;
use jiff::Timestamp;
use muleteer_model::event::Event;
use muleteer_model::telemetry::metrics::Meter;
use muleteer_model::telemetry::trace::{Span, Tracer};
use muleteer_model::telemetry::{Settings, otlp};
use muleteer_store::tail::{Reader, Start};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

/// Spans of one post.
const BATCH: usize = 512;
/// Lines read at a time: between two of these the task can be ended.
const LINES: usize = 5_000;
/// Between two looks, so that a burst of events becomes one post.
const PAUSE: Duration = Duration::from_millis(500);
/// After a collector was not reached: growing up to the last.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// Metrics that were refused are offered again after twice as long each time, up to this: a collector may
/// be mended while the daemon lives.
const LAST_OFFER: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub enum TelemetryMsg {
    Failed(String),
}

pub struct Telemetry;

pub struct State {
    _task: AbortOnDropHandle<()>,
}

impl Actor for Telemetry {
    type Msg = TelemetryMsg;
    type State = State;
    type Arguments = Arc<Daemon>;

    async fn pre_start(
        &self,
        myself: ActorRef<TelemetryMsg>,
        daemon: Arc<Daemon>,
    ) -> Result<State, ActorProcessingErr> {
        let task = own(async move {
            let Some(settings) = daemon.telemetry.clone() else { return };
            if let Err(error) = survive(export(daemon, settings)).await.and_then(|outcome| outcome) {
                let _ = myself.cast(TelemetryMsg::Failed(error));
            }
        });
        Ok(State { _task: task })
    }

    async fn handle(
        &self,
        _: ActorRef<TelemetryMsg>,
        message: TelemetryMsg,
        _: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            TelemetryMsg::Failed(error) => Err(error.into()),
        }
    }
}

async fn export(daemon: Arc<Daemon>, settings: Settings) -> Result<(), String> {
    let mut changes = daemon.fleet.subscribe();
    let mut worker = Worker::new(&daemon, settings)?;
    let mut retry = FIRST_RETRY;
    let mut away = false;
    loop {
        // A thread of its own, and none of the runtime's: a daemon that stops does not wait for a collector
        // that holds a post.
        let (done, step) = tokio::sync::oneshot::channel();
        let work = move || {
            let outcome = worker.step();
            drop(done.send((worker, outcome)));
        };
        std::thread::Builder::new()
            .name("telemetry".into())
            .spawn(work)
            .map_err(|error| error.to_string())?;
        let (back, outcome) = step.await.map_err(|_| "the export's thread has died".to_string())?;
        worker = back;
        match outcome? {
            Step::More => {}
            Step::Done => {
                if std::mem::take(&mut away) {
                    tracing::info!("the collector takes spans again");
                }
                retry = FIRST_RETRY;
                tokio::time::sleep(PAUSE).await;
                tokio::select! {
                    outcome = changes.changed() => if outcome.is_err() { return Ok(()) },
                    () = tokio::time::sleep_until(worker.metrics_at.into()) => {}
                }
            }
            Step::Refused(message) => daemon.note(Event::Fault { what: "telemetry".into(), message }),
            Step::Away(message) => {
                if !away {
                    // Once for each time it is away, however long that is.
                    let message = format!("{message}; spans wait in the log until it answers");
                    daemon.note(Event::Fault { what: "telemetry".into(), message });
                }
                away = true;
                tokio::time::sleep(retry).await;
                retry = (retry * 2).min(LAST_RETRY);
            }
        }
    }
}

enum Step {
    /// There is more to read at once.
    More,
    /// All that happened is exported.
    Done,
    /// The collector cannot be reached; the batch is kept.
    Away(String),
    /// The collector will never take this batch; it was dropped and counted.
    Refused(String),
}

/// How far the events have been exported.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Mark {
    v: u16,
    seq: u64,
    /// Spans dropped since the log began.
    dropped: u64,
}

struct Worker {
    settings: Settings,
    reader: Reader,
    tracer: Tracer,
    meter: Meter,
    mark: Mark,
    mark_file: PathBuf,
    /// Of the newest record read.
    read: u64,
    /// Ended, and not yet taken by the collector. At most a batch and what one record ends.
    waiting: Vec<Span>,
    metrics_at: Instant,
    /// Of metrics, since they were last taken.
    refusals: u32,
}

/// How long after the `refusals + 1`st refusal in a row metrics are offered again.
fn offer_again(every: Duration, refusals: u32) -> Duration {
    every.saturating_mul(2u32.saturating_pow(refusals + 1)).min(LAST_OFFER).max(every)
}

impl Worker {
    fn new(daemon: &Daemon, settings: Settings) -> Result<Self, String> {
        let mark_file = daemon.paths.state_dir.join("telemetry.json");
        // Where telemetry was just switched on, what happened before is nobody's business.
        let mark = std::fs::read(&mark_file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let mark: Mark = mark.unwrap_or(Mark { v: 1, seq: daemon.snapshot().seq, dropped: 0 });
        let reader = Reader::follow(&daemon.paths.events(), Start::Beginning).map_err(|error| error.to_string())?;
        let worker = Self {
            settings,
            reader,
            tracer: Tracer::default(),
            meter: Meter::default(),
            mark,
            mark_file,
            read: 0,
            waiting: vec![],
            metrics_at: Instant::now(),
            refusals: 0,
        };
        // Written at once: a daemon killed before its first export must not begin later than this one.
        worker.write_mark()?;
        Ok(worker)
    }

    /// Reads on, and posts what has ended. Blocking.
    fn step(&mut self) -> Result<Step, String> {
        let mut lines = 0;
        let mut at_end = false;
        while self.waiting.len() < BATCH && lines < LINES {
            let Some(line) = self.reader.next_line().map_err(|error| error.to_string())? else {
                at_end = true;
                break;
            };
            lines += 1;
            let record = line.record;
            let ended = self.tracer.apply(&record);
            self.meter.apply(&record);
            self.read = record.seq;
            if record.seq > self.mark.seq && self.settings.traces {
                self.waiting.extend(ended);
            }
        }
        let posted = if self.waiting.is_empty() { None } else { Some(self.post_spans()) };
        let trouble = match posted {
            Some(Err(error)) if !error.is_final() => return Ok(Step::Away(error.to_string())),
            Some(Err(error)) => {
                self.mark.dropped += self.waiting.len() as u64;
                Some(format!("{} spans were refused: {error}", self.waiting.len()))
            }
            Some(Ok(rejected)) => {
                self.mark.dropped += rejected;
                (rejected > 0).then(|| format!("the collector rejected {rejected} spans"))
            }
            None => None,
        };
        let had_spans = !self.waiting.is_empty();
        self.waiting.clear();
        if self.read > self.mark.seq {
            self.mark.seq = self.read;
            // Records that end nothing may be read again: that costs nothing but the reading.
            if had_spans {
                self.write_mark()?;
            }
        }
        if let Some(message) = trouble {
            return Ok(Step::Refused(message));
        }
        if !at_end {
            return Ok(Step::More);
        }
        if self.settings.metrics && Instant::now() >= self.metrics_at {
            match self.post_metrics() {
                Err(error) if !error.is_final() => return Ok(Step::Away(error.to_string())),
                // A collector for traces alone refuses metrics, and that is its right.
                Err(error) => {
                    let again = offer_again(self.settings.metrics_every, self.refusals);
                    self.metrics_at = Instant::now() + again;
                    self.refusals += 1;
                    if self.refusals == 1 {
                        return Ok(Step::Refused(format!(
                            "metrics are refused, and offered again ever later: {error}"
                        )));
                    }
                }
                Ok(_) => {
                    if std::mem::take(&mut self.refusals) > 0 {
                        tracing::info!("the collector takes metrics again");
                    }
                    self.metrics_at = Instant::now() + self.settings.metrics_every;
                }
            }
        }
        if !self.settings.metrics {
            self.metrics_at = Instant::now() + LAST_OFFER;
        }
        Ok(Step::Done)
    }

    fn post_spans(&self) -> Result<u64, PostError> {
        let body = otlp::traces(&self.settings.resource, env!("CARGO_PKG_VERSION"), &self.waiting);
        http::post(&self.settings, "/v1/traces", &body)
    }

    fn post_metrics(&self) -> Result<u64, PostError> {
        let (version, dropped) = (env!("CARGO_PKG_VERSION"), self.mark.dropped);
        let body = otlp::metrics(&self.settings.resource, version, &self.meter, dropped, Timestamp::now());
        http::post(&self.settings, "/v1/metrics", &body)
    }

    fn write_mark(&self) -> Result<(), String> {
        let bytes = serde_json::to_vec(&self.mark).map_err(|error| error.to_string())?;
        muleteer_store::atomic::write_atomic(&self.mark_file, &bytes, 0o600).map_err(|error| error.to_string())
    }
}
