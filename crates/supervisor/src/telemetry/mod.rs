//! Exports traces and metrics, made from the durable events (`muleteer_telemetry`), to an OTLP
//! collector.
//!
//! The logs of the ledger and of runs are the queue: this actor reads them at its own pace, and
//! saves in a `telemetry.json` how far each has been exported. So nothing waits for a collector,
//! and memory holds one batch. A collector that was away gets what it missed, and a restarted
//! daemon resumes where the last one was. Spans that were sent but not saved as sent are sent again
//! under the same ids. Only batches that a collector rejects are dropped, and counted.
//!
//! The daemon's own spans ([`own_spans`]) are the exception: they wait in memory ([`mod@outbox`]).

pub mod error;
pub mod exporter;
pub mod http;
pub mod mark;
pub mod outbox;
pub mod own_spans;
pub mod provider;

use crate::daemon::context::{Daemon, random_key};
use crate::daemon::owned_task::{own, survive};
use crate::spec_run::host::{self, Places};
use error::ExportError;
use exporter::Exporter;
use jiff::Timestamp;
use mark::Mark;
use muleteer_backends::TRAITS;
use muleteer_model::event::{Event, Record};
use muleteer_store::StoreError;
use muleteer_store::events::tail::{Reader, Start};
use muleteer_telemetry::metrics::Meter;
use muleteer_telemetry::run::RunTracer;
use muleteer_telemetry::run::metrics::RunSums;
use muleteer_telemetry::trace::{Span, Tracer};
use muleteer_telemetry::{Settings, otlp};
use opentelemetry_sdk::trace::SpanData;
use outbox::outbox;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

/// The maximum number of spans in one post.
const BATCH: usize = 512;
/// The maximum number of lines per step; between two steps the task can be aborted.
const LINES: usize = 5_000;
/// The pause between two steps, so that a burst of events becomes one post.
const PAUSE: Duration = Duration::from_millis(500);
/// The delays before a retry after a collector was not reached, growing from the first to the last.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);
/// The longest delay, whatever the collector demands.
const LONGEST_RETRY: Duration = Duration::from_secs(600);
/// The longest delay before rejected metrics are offered again. It doubles each time, because a
/// collector may be repaired while the daemon lives.
const LAST_OFFER: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub enum TelemetryMsg {
    Failed(ExportError),
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
            let Some(settings) = daemon.settings.telemetry.clone() else { return };
            let outcome = survive(export(daemon, settings)).await;
            if let Err(error) = outcome.unwrap_or_else(|panicked| Err(panicked.into())) {
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

async fn export(daemon: Arc<Daemon>, settings: Settings) -> Result<(), ExportError> {
    let (mut changes, mut moves) = (daemon.fleet.subscribe(), daemon.runs.moved.subscribe());
    let mut worker = Worker::new(&daemon, settings)?;
    let mut retry = FIRST_RETRY;
    let mut away = false;
    loop {
        // The step runs on a thread of its own, outside of the runtime, so that a daemon that stops
        // does not wait for a collector that delays a post.
        let (done, step) = tokio::sync::oneshot::channel();
        let work = move || {
            let outcome = worker.step();
            drop(done.send((worker, outcome)));
        };
        std::thread::Builder::new().name("telemetry".into()).spawn(work)?;
        let (back, outcome) = step.await.map_err(|_| ExportError::ThreadDied)?;
        worker = back;
        match outcome? {
            Step::More => {}
            Step::Done => {
                if std::mem::take(&mut away) {
                    tracing::info!("the collector accepts spans again");
                }
                retry = FIRST_RETRY;
                tokio::time::sleep(PAUSE).await;
                tokio::select! {
                    outcome = changes.changed() => if outcome.is_err() { return Ok(()) },
                    outcome = moves.changed() => if outcome.is_err() { return Ok(()) },
                    () = outbox().added() => {}
                    () = tokio::time::sleep_until(worker.metrics_at.into()) => {}
                }
            }
            Step::Refused(message) => {
                daemon.note(Event::Fault { what: "telemetry".into(), message })
            }
            Step::Away(message, after) => {
                if !away {
                    // The fault is recorded once for each absence, however long that is.
                    let message =
                        format!("{message}; spans stay in the event log until it answers");
                    daemon.note(Event::Fault { what: "telemetry".into(), message });
                }
                away = true;
                tokio::time::sleep(retry.max(after.min(LONGEST_RETRY))).await;
                retry = (retry * 2).min(LAST_RETRY);
            }
        }
    }
}

enum Step {
    /// More can be read at once.
    More,
    /// All events are exported.
    Done,
    /// The collector cannot be reached, or demands a pause of at least this duration. The batch
    /// stays.
    Away(String, Duration),
    /// The collector will never accept this batch. It was dropped and counted.
    Refused(String),
}

/// A log that is read, and the fold of its records.
struct Source<F> {
    reader: Reader,
    fold: F,
    mark: Mark,
    mark_file: PathBuf,
    /// The sequence number of the newest record that was read.
    read: u64,
    /// The rest of the log cannot be read.
    lost: bool,
}

/// Converts records to the spans that each of them ends.
trait Fold {
    fn take(&mut self, record: &Record) -> Vec<Span>;
}

/// The folds of one run's records.
#[derive(Default)]
struct RunLog {
    tracer: RunTracer,
    sums: RunSums,
}

impl Fold for RunLog {
    fn take(&mut self, record: &Record) -> Vec<Span> {
        self.sums.apply(record);
        self.tracer.apply(record)
    }
}

impl Source<RunLog> {
    /// Returns the metrics of the run, which never fall below the saved ones.
    fn sums(&self) -> RunSums {
        match &self.mark.sums {
            Some(before) => self.fold.sums.at_least(before),
            None => self.fold.sums.clone(),
        }
    }
}

/// The folds of the ledger's records.
struct Ledger {
    tracer: Tracer,
    meter: Meter,
}

impl Fold for Ledger {
    fn take(&mut self, record: &Record) -> Vec<Span> {
        self.meter.apply(record);
        self.tracer.apply(record)
    }
}

impl<F: Fold> Source<F> {
    /// Reads until there is a batch, or enough lines, or no more. Returns whether it reached the
    /// end.
    fn read(&mut self, lines: &mut usize, waiting: &mut Vec<Span>) -> Result<bool, StoreError> {
        while waiting.len() < BATCH && *lines < LINES {
            let Some(line) = self.reader.next_line()? else { return Ok(true) };
            *lines += 1;
            let ended = self.fold.take(&line.record);
            self.read = line.record.seq;
            if self.read > self.mark.seq {
                waiting.extend(ended);
            }
        }
        Ok(false)
    }

    /// Saves the position: all that was read is exported or dropped. Records that end no span may
    /// be read again, which is harmless.
    fn settle(&mut self, had_spans: bool) -> Result<(), ExportError> {
        if self.read <= self.mark.seq {
            return Ok(());
        }
        self.mark.seq = self.read;
        if had_spans { self.mark.write(&self.mark_file) } else { Ok(()) }
    }
}

struct Worker {
    daemon: Arc<Daemon>,
    settings: Settings,
    exporter: Exporter,
    ledger: Source<Ledger>,
    /// The running runs, and the ended ones that are not exported yet, by id.
    runs: BTreeMap<String, Source<RunLog>>,
    /// The metrics of the runs that are exported to their ends, by id.
    ended: BTreeMap<String, RunSums>,
    /// Ended spans that the collector has not accepted yet: at most a batch and the spans that one
    /// record ends.
    waiting: Vec<Span>,
    /// The daemon's own spans that the collector has not accepted yet.
    own: Vec<SpanData>,
    metrics_at: Instant,
    /// The number of rejections of metrics since they were last accepted.
    refusals: u32,
}

/// Returns the delay before metrics are offered again after rejection number `refusals + 1` in a
/// row.
fn offer_again(every: Duration, refusals: u32) -> Duration {
    every.saturating_mul(2u32.saturating_pow(refusals + 1)).min(LAST_OFFER).max(every)
}

impl Worker {
    fn new(daemon: &Arc<Daemon>, mut settings: Settings) -> Result<Self, ExportError> {
        let mark_file = daemon.paths.state_dir.join(Mark::FILE);
        // If telemetry was just switched on, earlier events are not exported.
        let mut mark = Mark::read(&mark_file).unwrap_or_else(|| Mark::at(daemon.snapshot().seq));
        settings.of_instance(mark.instance.get_or_insert_with(random_key));
        // The mark is written at once, so that a daemon that is killed before its first export does
        // not make the next one start later.
        mark.write(&mark_file)?;
        let reader = Reader::follow(&daemon.paths.events(), Start::Beginning)?;
        let exporter = Exporter::new(&settings)?;
        let mut worker = Self {
            daemon: daemon.clone(),
            settings,
            exporter,
            ledger: Source {
                reader,
                fold: Ledger { tracer: Tracer::new(TRAITS), meter: Meter::default() },
                mark,
                mark_file,
                read: 0,
                lost: false,
            },
            runs: BTreeMap::new(),
            ended: BTreeMap::new(),
            waiting: vec![],
            own: vec![],
            metrics_at: Instant::now(),
            refusals: 0,
        };
        worker.find_ended_runs();
        Ok(worker)
    }

    /// Finds runs that ended under an earlier daemon. Those that it exported to their ends count
    /// in the metrics only.
    fn find_ended_runs(&mut self) {
        for entry in std::fs::read_dir(self.daemon.paths.runs()).into_iter().flatten().flatten() {
            let Some(mark) = Mark::read(&entry.path().join(Mark::FILE)) else { continue };
            let Ok(run_id) = entry.file_name().into_string() else { continue };
            if mark.done {
                self.ended.extend(mark.sums.map(|sums| (run_id, sums)));
                continue;
            }
            if let Some(repo) = host::repo_of(&self.daemon.paths, &run_id) {
                self.follow_run(&run_id, &Places::new(&self.daemon.paths, &repo, &run_id));
            }
        }
    }

    /// Follows a run's log. A log that cannot be followed has no spans, and stops nothing.
    fn follow_run(&mut self, run_id: &str, places: &Places) {
        if self.runs.contains_key(run_id) {
            return;
        }
        let mark_file = places.private.join(Mark::FILE);
        let before = Mark::read(&mark_file);
        let marked = before.as_ref().is_some_and(|mark| !mark.done);
        let mut mark = Mark { done: false, ..before.unwrap_or_else(|| Mark::at(0)) };
        // The log is in a user's repository: opening a pipe there might block for ever.
        let opened = match std::fs::symlink_metadata(places.events()) {
            Ok(meta) if meta.is_file() => {
                Reader::follow(&places.events(), Start::Beginning).map_err(ExportError::from)
            }
            Ok(_) => Err(ExportError::NoFile),
            Err(error) => Err(error.into()),
        };
        let written =
            |reader| if marked { Ok(reader) } else { mark.write(&mark_file).map(|()| reader) };
        match opened.and_then(written) {
            Ok(reader) => {
                let source = Source {
                    reader,
                    fold: RunLog::default(),
                    mark,
                    mark_file,
                    read: 0,
                    lost: false,
                };
                // The source has them from now on.
                self.ended.remove(run_id);
                self.runs.insert(run_id.into(), source);
            }
            Err(error) => {
                self.note_lost(run_id, &error);
                self.ended.extend(mark.sums.clone().map(|sums| (run_id.into(), sums)));
                mark.done = true;
                // Otherwise the next daemon would only repeat the fault.
                let _ = mark.write(&mark_file);
            }
        }
    }

    fn note_lost(&self, run_id: &str, error: &dyn Error) {
        let message = format!("the rest of its spans are lost: {error}");
        self.daemon.note(Event::Fault { what: format!("telemetry of {run_id}"), message });
    }

    /// Marks a run as done, because all its records are exported, unless it was resumed during the
    /// post.
    fn finish_run(&mut self, run_id: &str) -> Result<(), ExportError> {
        let daemon = self.daemon.clone();
        let begun = daemon.runs.begun();
        if begun.contains_key(run_id) || daemon.runs.find(run_id).is_some() {
            return Ok(());
        }
        let Some(source) = self.runs.remove(run_id) else { return Ok(()) };
        let sums = source.sums();
        self.ended.insert(run_id.into(), sums.clone());
        // The run is about to start, or was killed before it started.
        if source.read == 0 && !source.lost {
            return Ok(());
        }
        Mark { done: true, sums: Some(sums), ..source.mark }.write(&source.mark_file)
    }

    /// Reads more records and posts the ended spans. Blocking.
    fn step(&mut self) -> Result<Step, ExportError> {
        let begun = std::mem::take(&mut *self.daemon.runs.begun());
        for (run_id, places) in begun {
            self.follow_run(&run_id, &places);
        }
        // This comes before reading, so that a run that has ended by now has written all its
        // records.
        let hosted = self.daemon.runs.all();
        let mut lines = 0;
        let mut at_end = self.ledger.read(&mut lines, &mut self.waiting)?;
        let (mut over, mut lost) = (vec![], vec![]);
        for (run_id, source) in &mut self.runs {
            let outcome =
                if source.lost { Ok(true) } else { source.read(&mut lines, &mut self.waiting) };
            match outcome {
                Ok(true) if hosted.iter().all(|run| run.run_id != *run_id) => {
                    over.push(run_id.clone())
                }
                Ok(whole) => at_end &= whole,
                Err(error) => {
                    source.lost = true;
                    lost.push((run_id.clone(), error));
                }
            }
        }
        for (run_id, error) in lost {
            self.note_lost(&run_id, &error);
        }
        if self.settings.traces.is_none() {
            self.waiting.clear();
        }
        self.take_own();
        let mut spans = otlp::spans(&self.waiting);
        spans.extend(self.own.iter().cloned());
        let count = spans.len();
        let trouble = match self.exporter.spans(spans) {
            Err(error) if !error.is_final() => {
                return Ok(Step::Away(error.to_string(), error.after()));
            }
            Err(error) => {
                self.ledger.mark.dropped += count as u64;
                Some(format!("the collector refused {count} spans: {error}"))
            }
            Ok(rejected) => {
                self.ledger.mark.dropped += rejected;
                (rejected > 0).then(|| format!("the collector rejected {rejected} spans"))
            }
        };
        let had_spans = !self.waiting.is_empty();
        self.waiting.clear();
        self.own.clear();
        self.ledger.settle(had_spans)?;
        for source in self.runs.values_mut() {
            source.settle(had_spans)?;
        }
        for run_id in over {
            self.finish_run(&run_id)?;
        }
        if let Some(message) = trouble {
            return Ok(Step::Refused(message));
        }
        if !at_end {
            return Ok(Step::More);
        }
        Ok(self.offer_metrics())
    }

    /// Takes the daemon's own spans, unless earlier ones still wait here: then more wait in the
    /// outbox, which is bounded.
    fn take_own(&mut self) {
        if self.own.is_empty() {
            let (spans, dropped) = outbox().take();
            self.own = spans;
            self.ledger.mark.dropped += dropped;
        }
    }

    fn offer_metrics(&mut self) -> Step {
        if self.settings.metrics.is_none() {
            self.metrics_at = Instant::now() + LAST_OFFER;
            return Step::Done;
        }
        if Instant::now() < self.metrics_at {
            return Step::Done;
        }
        let (version, dropped) = (env!("CARGO_PKG_VERSION"), self.ledger.mark.dropped);
        let mut runs = RunSums::default();
        self.ended.values().for_each(|sums| runs.add(sums));
        self.runs.values().for_each(|source| runs.add(&source.sums()));
        let meters = (&self.ledger.fold.meter, &runs);
        let document =
            otlp::metrics(&self.settings.resource, version, meters, dropped, Timestamp::now());
        match self.exporter.metrics(&document) {
            // A collector for traces alone may reject metrics. Whatever the failure is, spans do
            // not wait for them.
            Err(error) => {
                let again = offer_again(self.settings.metrics_every, self.refusals);
                self.metrics_at = Instant::now() + again;
                self.refusals += 1;
                if self.refusals == 1 {
                    return Step::Refused(format!(
                        "failed to export metrics; retrying with back-off: {error}"
                    ));
                }
            }
            Ok(_) => {
                if std::mem::take(&mut self.refusals) > 0 {
                    tracing::info!("the collector accepts metrics again");
                }
                self.metrics_at = Instant::now() + self.settings.metrics_every;
            }
        }
        Step::Done
    }
}
