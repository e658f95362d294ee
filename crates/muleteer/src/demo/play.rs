//! The play, act by act. It waits for states, never for a fixed time: the agents wait at gates
//! (`hold.sh`) while something is done to them, so it works the same way on a slow machine.

use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::client::file_watch::FileWatch;
use crate::client::run_files::new_id;
use crate::demo::cast::{ADOPTED, CRASH, OUTAGE, VICTIM, survivors};
use crate::demo::follower::{Follower, News};
use crate::demo::log::Log;
use crate::demo::place::{Place, text};
use crate::demo::screen::Screen;
use crate::render::page::{Setting, page};
use crate::render::status;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use muleteer_model::event::{Event, Record};
use muleteer_process::identity::ProcessId;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{DispatchStatus, Reply, Request, Run, StatusReport};
use muleteer_store::events;
use std::ffi::OsString;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The limit for steps that usually take a second or two, so that a loaded machine does not fail.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);
/// The time limit of the run in seconds. It ends the agents if the demo itself is killed.
const RUN_TIMEOUT: u64 = 180;

#[derive(Debug)]
pub struct Play<'a> {
    place: &'a mut Place,
    log: &'a mut Log,
    screen: &'a Screen,
}

impl<'a> Play<'a> {
    pub fn new(place: &'a mut Place, log: &'a mut Log, screen: &'a Screen) -> Self {
        Self { place, log, screen }
    }

    /// Plays to the end; the daemon is stopped then.
    ///
    /// # Errors
    /// When an expected state does not arrive. The log contains everything seen until then.
    pub async fn run(mut self) -> Result<(), Failure> {
        self.screen.act(
            "creating a git repository with a spec, and a private daemon, in a temporary \
                  folder",
        )?;
        self.start_daemon().await?;
        self.screen.act(
            "muleteer run --spec plan.md: criteria, beads, then an agent for each bead that is \
                ready",
        )?;
        self.begin().await?;
        let context = self.place.context.clone();
        let mut stage = Stage {
            follower: Follower::start(context, self.log.run_id.clone()),
            // The daemon's events are watched too, because they report the death and the adoption
            // of an agent.
            files: FileWatch::on(&[&self.place.gates(), &self.place.context.paths.state_dir])?,
        };
        self.kill_the_agent(&mut stage).await?;
        self.kill_the_daemon(&mut stage).await?;
        self.adopt(&mut stage).await?;
        self.end(&mut stage).await
    }

    async fn start_daemon(&mut self) -> Result<(), Failure> {
        let pid = self.place.start_daemon().await?;
        self.log.daemons.push(pid);
        Ok(())
    }

    async fn begin(&mut self) -> Result<(), Failure> {
        let plain = |(name, value): (OsString, OsString)| (text(&name), text(&value));
        self.log.run_id = new_id()?;
        let run = Run {
            run_id: self.log.run_id.clone(),
            repo: self.place.repo().display().to_string(),
            spec: Some(self.place.spec().display().to_string()),
            backend: Some(muleteer_backends::rehearsal::NAME.into()),
            scenario: Some(self.place.scenario().display().to_string()),
            max_runtime_s: Some(RUN_TIMEOUT),
            env: self.place.variables().into_iter().map(plain).collect(),
            extra_env: vec![("DEMO".into(), self.place.stage().display().to_string())],
            ..Run::default()
        };
        match self.place.ask(Request::Run(Box::new(run))).await? {
            Reply::RunUp { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn kill_the_agent(&mut self, stage: &mut Stage) -> Result<(), Failure> {
        let there = |log: &Log, place: &Place| {
            log.job(VICTIM).is_some() && place.has_reached(VICTIM, CRASH)
        };
        self.until(stage, "the agent at slug to be at work", there).await?;
        let dispatch =
            self.log.job(VICTIM).map(|job| job.start.dispatch.clone()).unwrap_or_default();
        let pid = self.pid(&dispatch).await?;
        self.screen
            .act(format!("kill -9 {pid}: the agent at slug, between writing and committing"))?;
        self.log.killed = Some((dispatch, pid, self.place.kill(pid)));
        let retried = |log: &Log, _: &Place| {
            log.events().any(|event| matches!(event, Event::BeadRetried { .. }))
        };
        self.until(stage, "the daemon to notice its death", retried).await?;
        self.place.open(CRASH)?;
        let at_work = |log: &Log, place: &Place| {
            survivors()
                .all(|part| log.job(part.key).is_some() && place.has_reached(part.key, OUTAGE))
        };
        self.until(stage, "slug to restart, and both beads to be in progress", at_work).await
    }

    async fn kill_the_daemon(&mut self, stage: &mut Stage) -> Result<(), Failure> {
        for part in survivors() {
            let dispatch =
                self.log.job(part.key).map(|job| job.start.dispatch.clone()).unwrap_or_default();
            if let Some(process) = ProcessId::of(self.pid(&dispatch).await?) {
                self.log.processes.push((part.key, process, false));
            }
        }
        let pid = self.log.daemons.last().copied().unwrap_or_default();
        self.screen.act(format!("kill -9 {pid}: the daemon, with two agents at work"))?;
        self.log.daemon_killed = self.place.kill_daemon();
        self.until(stage, "the stream of events to end", |log, _| log.lost > 0).await?;
        self.place.open(OUTAGE)?;
        let worked =
            |_: &Log, place: &Place| survivors().all(|part| place.has_reached(part.key, ADOPTED));
        self.until(stage, "the agents to continue without a daemon", worked).await?;
        self.log.unattended = survivors()
            .map(|part| part.key)
            .filter(|key| self.place.has_reached(key, ADOPTED))
            .collect();
        self.screen.remark("no daemon is running, and each agent has continued and committed")
    }

    async fn adopt(&mut self, stage: &mut Stage) -> Result<(), Failure> {
        self.screen.act("a new daemon on the same state directory: it continues the run")?;
        self.start_daemon().await?;
        let adopted =
            |log: &Log, place: &Place| log.back > 0 && adoptions(place) >= survivors().count();
        self.until(stage, "the agents to be adopted", adopted).await?;
        let statuses = self.statuses().await?;
        let pid_now = |log: &Log, key: &str| {
            let dispatch = &log.job(key)?.start.dispatch;
            statuses.iter().find(|one| one.id == *dispatch)?.pid
        };
        let now: Vec<_> =
            self.log.processes.iter().map(|(key, ..)| pid_now(self.log, key)).collect();
        for ((_, process, same), pid) in self.log.processes.iter_mut().zip(now) {
            *same = process.is_alive() && pid == Some(process.pid);
        }
        self.screen.act("muleteer status, now")?;
        let active: Vec<DispatchStatus> =
            statuses.into_iter().filter(|one| one.pid.is_some()).collect();
        self.screen.block(&status::table(&active, Timestamp::now()))?;
        self.screen.act("to the end: maintenance after two beads, then the judge")?;
        self.place.open(ADOPTED)
    }

    async fn end(&mut self, stage: &mut Stage) -> Result<(), Failure> {
        self.until(stage, "the run to be judged", |log, _| log.ended && log.outcome().is_some())
            .await?;
        self.log.statuses = self.statuses().await?;
        self.place.stop_daemon().await?;
        let branch = format!("muleteer/{}", self.log.run_id);
        self.screen.act(format!("git merge {branch}"))?;
        self.log.merged =
            Some(self.place.git(&["merge", "--quiet", "--no-edit", "--ff-only", &branch])?);
        if let Some(chronicle) = &self.log.chronicle {
            let setting = Setting { zone: TimeZone::system(), judge_results: None };
            self.place.keep_page(&page(chronicle, &setting))?;
        }
        Ok(())
    }

    async fn statuses(&self) -> Result<Vec<DispatchStatus>, Failure> {
        match self.place.ask(Request::Status { id: None, archived: false }).await? {
            Reply::Status(StatusReport { dispatches, .. }) => Ok(dispatches),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the pid of a running dispatch. The daemon may learn of its process a moment later
    /// than we do.
    async fn pid(&self, dispatch: &str) -> Result<u32, Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.statuses().await?.into_iter().find(|one| one.id == dispatch);
            if let Some(pid) = found.and_then(|one| one.pid) {
                return Ok(pid);
            }
            if Instant::now() > deadline {
                return Err(Failure::new(
                    ErrorCode::Demo,
                    format!("dispatch {dispatch} has no process"),
                ));
            }
            sleep_until(Instant::now() + PAUSE).await;
        }
    }

    /// Shows the events until `there` holds.
    async fn until(
        &mut self,
        stage: &mut Stage,
        what: &str,
        there: impl Fn(&Log, &Place) -> bool,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if there(self.log, self.place) {
                return Ok(());
            }
            if let Some(how) = self.log.failed() {
                return Err(Failure::new(
                    ErrorCode::Demo,
                    format!("while waiting for {what}: {how}"),
                ));
            }
            tokio::select! {
                news = stage.follower.next() => self.take(news)?,
                () = stage.files.changed() => {}
                () = sleep_until(deadline) => {
                    let waited = PATIENCE.as_secs();
                    let message = format!("timed out after {waited}s while waiting for {what}");
                    return Err(Failure::new(ErrorCode::Demo, message));
                }
            }
        }
    }

    fn take(&mut self, news: News) -> Result<(), Failure> {
        match news {
            News::Event { line, record: Some(record) } => {
                self.log.take((*record).clone());
                self.screen.event(&line, &record, &self.who(&record.entry.event))?;
            }
            // An unknown event cannot come from our own daemon's version; the checks will notice
            // its absence from the stream.
            News::Event { record: None, .. } => {}
            News::Lost => {
                self.log.lost += 1;
                self.screen.remark("the stream of events ended: the daemon is dead")?;
            }
            News::Ended => self.log.ended = true,
            News::Back { next } => {
                self.log.back += 1;
                self.screen
                    .remark(format!("connected again: the stream continues at event {next}"))?;
            }
        }
        Ok(())
    }

    fn who(&self, event: &Event) -> String {
        let bead = |id: &str| self.log.part(id).map_or("-", |part| part.key);
        let who = match event {
            Event::AgentStarted(start) => self.log.who(start),
            Event::AgentFinished(end) => {
                let part = end.bead_id.as_deref().and_then(|id| self.log.part(id));
                part.map_or(end.purpose.as_str(), |part| part.key)
            }
            Event::BeadCompleted { bead_id, .. } | Event::BeadRetried { bead_id, .. } => {
                bead(bead_id)
            }
            _ => "run",
        };
        who.into()
    }
}

/// The sources that the play listens to while it waits.
#[derive(Debug)]
struct Stage {
    follower: Follower,
    files: FileWatch,
}

/// Returns the daemon's own events that are on disk.
pub fn ledger(place: &Place) -> Vec<Record> {
    let mut records = vec![];
    // Unreadable events are read again later, and the checks notice any that stay missing.
    drop(events::read(&place.context.paths.events(), |record| records.push(record)));
    records
}

fn adoptions(place: &Place) -> usize {
    let ledger = ledger(place);
    ledger.iter().filter(|record| is_adopted(&record.entry.event)).count()
}

pub fn is_adopted(event: &Event) -> bool {
    matches!(event, Event::AgentAdopted { .. })
}
