//! Exports traces and metrics, made from the durable events (`model::telemetry`), to an OTLP
//! collector.
//!
//! The logs are the queue, the ledger's and those of runs: this actor reads them at its own pace
//! and keeps how far each has been exported in a `telemetry.json`. So nothing waits for a
//! collector, memory holds one batch, a collector that was away gets what it missed, and a daemon
//! that was killed goes on where it was; what it had sent without noting it is sent again under the
//! same ids. Only what a collector refuses is dropped, and counted.

pub mod http;
pub mod mark;

use crate::daemon::context::{Daemon, random_key};
use crate::daemon::owned_task::{own, survive};
use crate::spec_run::host::{self, Places};
use http::PostError;
use jiff::Timestamp;
use mark::Mark;
use muleteer_model::event::{Event, Record};
use muleteer_store::StoreError;
use muleteer_store::events::tail::{Reader, Start};
use muleteer_telemetry::metrics::Meter;
use muleteer_telemetry::run::RunTracer;
use muleteer_telemetry::trace::{Span, Tracer};
use muleteer_telemetry::{Settings, otlp};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::BTreeMap;
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
/// No collector is left alone for longer, whatever it says.
const LONGEST_RETRY: Duration = Duration::from_secs(600);
/// Metrics that were refused are offered again after twice as long each time, up to this: a
/// collector may be mended while the daemon lives.
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
            if let Err(error) = survive(export(daemon, settings)).await.and_then(|outcome| outcome)
            {
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
    let (mut changes, mut moves) = (daemon.fleet.subscribe(), daemon.runs.moved.subscribe());
    let mut worker = Worker::new(&daemon, settings)?;
    let mut retry = FIRST_RETRY;
    let mut away = false;
    loop {
        // A thread of its own, and none of the runtime's: a daemon that stops does not wait for a
        // collector that holds a post.
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
                    outcome = moves.changed() => if outcome.is_err() { return Ok(()) },
                    () = tokio::time::sleep_until(worker.metrics_at.into()) => {}
                }
            }
            Step::Refused(message) => {
                daemon.note(Event::Fault { what: "telemetry".into(), message })
            }
            Step::Away(message, after) => {
                if !away {
                    // Once for each time it is away, however long that is.
                    let message = format!("{message}; spans wait in the log until it answers");
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
    /// There is more to read at once.
    More,
    /// All that happened is exported.
    Done,
    /// The collector cannot be reached, or wants to be left alone for at least so long; the batch
    /// is kept.
    Away(String, Duration),
    /// The collector will never take this batch; it was dropped and counted.
    Refused(String),
}

/// A log that is read, and what becomes of it.
struct Source<F> {
    reader: Reader,
    fold: F,
    mark: Mark,
    mark_file: PathBuf,
    /// Of the newest record read.
    read: u64,
    /// It cannot be read any further.
    lost: bool,
}

/// What records become: the spans that each ends.
trait Fold {
    fn take(&mut self, record: &Record) -> Vec<Span>;
}

impl Fold for RunTracer {
    fn take(&mut self, record: &Record) -> Vec<Span> {
        self.apply(record)
    }
}

/// What the ledger's records are folded into.
#[derive(Default)]
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
    /// Reads until there is a batch, or enough lines, or no more: whether it was the last.
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

    /// All that was read is taken, or never will be. Records that end nothing may be read again:
    /// that costs nothing but the reading.
    fn settle(&mut self, had_spans: bool) -> Result<(), String> {
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
    ledger: Source<Ledger>,
    /// By id: those that are under way, and those whose end is not exported yet.
    runs: BTreeMap<String, Source<RunTracer>>,
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
    fn new(daemon: &Arc<Daemon>, mut settings: Settings) -> Result<Self, String> {
        let mark_file = daemon.paths.state_dir.join(Mark::FILE);
        // Where telemetry was just switched on, what happened before is nobody's business.
        let mut mark = Mark::read(&mark_file).unwrap_or_else(|| Mark::at(daemon.snapshot().seq));
        settings.of_instance(mark.instance.get_or_insert_with(random_key));
        // Written at once: a daemon killed before its first export must not begin later than this
        // one.
        mark.write(&mark_file)?;
        let reader = Reader::follow(&daemon.paths.events(), Start::Beginning)
            .map_err(|error| error.to_string())?;
        let mut worker = Self {
            daemon: daemon.clone(),
            settings,
            ledger: Source {
                reader,
                fold: Ledger::default(),
                mark,
                mark_file,
                read: 0,
                lost: false,
            },
            runs: BTreeMap::new(),
            waiting: vec![],
            metrics_at: Instant::now(),
            refusals: 0,
        };
        worker.find_ended_runs();
        Ok(worker)
    }

    /// Runs that ended under an earlier daemon, which did not come to tell of it.
    fn find_ended_runs(&mut self) {
        for entry in std::fs::read_dir(self.daemon.paths.runs()).into_iter().flatten().flatten() {
            let unfinished =
                Mark::read(&entry.path().join(Mark::FILE)).is_some_and(|mark| !mark.done);
            let Some(run_id) = entry.file_name().into_string().ok().filter(|_| unfinished) else {
                continue;
            };
            if let Some(repo) = host::repo_of(&self.daemon, &run_id) {
                self.follow_run(&run_id, &Places::new(&self.daemon, &repo, &run_id));
            }
        }
    }

    /// A log that cannot be followed has no spans, and stops nobody.
    fn follow_run(&mut self, run_id: &str, places: &Places) {
        if self.runs.contains_key(run_id) {
            return;
        }
        let mark_file = places.private.join(Mark::FILE);
        let before = Mark::read(&mark_file);
        let marked = before.as_ref().is_some_and(|mark| !mark.done);
        let mut mark = Mark { done: false, ..before.unwrap_or_else(|| Mark::at(0)) };
        // It lies in somebody's repository: what is no file might never open.
        let opened = match std::fs::symlink_metadata(places.events()) {
            Ok(meta) if meta.is_file() => {
                Reader::follow(&places.events(), Start::Beginning).map_err(|e| e.to_string())
            }
            Ok(_) => Err("it is no file".into()),
            Err(error) => Err(error.to_string()),
        };
        let written =
            |reader| if marked { Ok(reader) } else { mark.write(&mark_file).map(|()| reader) };
        match opened.and_then(written) {
            Ok(reader) => {
                let source = Source {
                    reader,
                    fold: RunTracer::default(),
                    mark,
                    mark_file,
                    read: 0,
                    lost: false,
                };
                self.runs.insert(run_id.into(), source);
            }
            Err(error) => {
                self.note_lost(run_id, &error);
                mark.done = true;
                // The next daemon would only say it again.
                let _ = mark.write(&mark_file);
            }
        }
    }

    fn note_lost(&self, run_id: &str, error: &str) {
        let message = format!("the rest of its spans are lost: {error}");
        self.daemon.note(Event::Fault { what: format!("telemetry of {run_id}"), message });
    }

    /// All that it will say is exported, unless it was gone on with while that was posted.
    fn finish_run(&mut self, run_id: &str) -> Result<(), String> {
        let daemon = self.daemon.clone();
        let begun = daemon.runs.begun();
        if begun.contains_key(run_id) || daemon.runs.find(run_id).is_some() {
            return Ok(());
        }
        match self.runs.remove(run_id) {
            // It is about to begin, or was killed before it had.
            Some(source) if source.read == 0 && !source.lost => Ok(()),
            Some(source) => Mark { done: true, ..source.mark }.write(&source.mark_file),
            None => Ok(()),
        }
    }

    /// Reads on, and posts what has ended. Blocking.
    fn step(&mut self) -> Result<Step, String> {
        let begun = std::mem::take(&mut *self.daemon.runs.begun());
        for (run_id, places) in begun {
            self.follow_run(&run_id, &places);
        }
        // Before anything is read: whoever has ended by now has said all it will.
        let hosted = self.daemon.runs.all();
        let mut lines = 0;
        let mut at_end =
            self.ledger.read(&mut lines, &mut self.waiting).map_err(|error| error.to_string())?;
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
                    lost.push((run_id.clone(), error.to_string()));
                }
            }
        }
        for (run_id, error) in lost {
            self.note_lost(&run_id, &error);
        }
        if self.settings.traces.is_none() {
            self.waiting.clear();
        }
        let trouble = match self.post_spans() {
            Err(error) if !error.is_final() => {
                return Ok(Step::Away(error.to_string(), error.after()));
            }
            Err(error) => {
                self.ledger.mark.dropped += self.waiting.len() as u64;
                Some(format!("{} spans were refused: {error}", self.waiting.len()))
            }
            Ok(rejected) => {
                self.ledger.mark.dropped += rejected;
                (rejected > 0).then(|| format!("the collector rejected {rejected} spans"))
            }
        };
        let had_spans = !self.waiting.is_empty();
        self.waiting.clear();
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
        self.offer_metrics()
    }

    fn offer_metrics(&mut self) -> Result<Step, String> {
        let Some(target) = &self.settings.metrics else {
            self.metrics_at = Instant::now() + LAST_OFFER;
            return Ok(Step::Done);
        };
        if Instant::now() < self.metrics_at {
            return Ok(Step::Done);
        }
        let (version, dropped) = (env!("CARGO_PKG_VERSION"), self.ledger.mark.dropped);
        let meter = &self.ledger.fold.meter;
        let body =
            otlp::metrics(&self.settings.resource, version, meter, dropped, Timestamp::now());
        match http::post(target, self.settings.timeout, &body) {
            // A collector for traces alone refuses metrics, and that is its right; and whatever is
            // the matter with them now, spans do not wait for it.
            Err(error) => {
                let again = offer_again(self.settings.metrics_every, self.refusals);
                self.metrics_at = Instant::now() + again;
                self.refusals += 1;
                if self.refusals == 1 {
                    return Ok(Step::Refused(format!(
                        "metrics are not taken, and offered again ever later: {error}"
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
        Ok(Step::Done)
    }

    /// How many of them the collector rejected.
    fn post_spans(&self) -> Result<u64, PostError> {
        let Some(target) = self.settings.traces.as_ref().filter(|_| !self.waiting.is_empty())
        else {
            return Ok(0);
        };
        let body = otlp::traces(&self.settings.resource, env!("CARGO_PKG_VERSION"), &self.waiting);
        http::post(target, self.settings.timeout, &body)
    }
}
