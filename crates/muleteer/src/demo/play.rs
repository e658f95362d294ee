//! The play, act by act. It waits for states, never for a time: the agents stand at gates
//! (`hold.sh`) while something is done to them, so it goes the same way on a slow machine.

use crate::commands::spawn::random;
use crate::connect::unexpected;
use crate::demo::cast::{ADOPTED, CAST, CRASH, OUTAGE, Part, VICTIM};
use crate::demo::follower::{Follower, News};
use crate::demo::log::Log;
use crate::demo::place::{Place, text};
use crate::demo::screen::Screen;
use crate::failure::Failure;
use crate::file_watch::FileWatch;
use crate::render::status;
use jiff::Timestamp;
use muleteer_model::event::Event;
use muleteer_model::id::DispatchId;
use muleteer_process::identity::ProcessId;
use muleteer_protocol::v1::{DispatchStatus, Reply, Request, Spawn, StatusReport};
use rustix::process::Signal;
use std::ffi::OsString;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// For what takes well under a second; a loaded machine is no reason to fail.
const PATIENCE: Duration = Duration::from_secs(20);
/// Ends what a demo that was itself killed leaves behind, in seconds.
const DISPATCH_TIMEOUT: u64 = 120;

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

    /// Plays to the end, with the daemon stopped.
    ///
    /// # Errors
    /// At the first thing that does not come; what was seen until then is in the log.
    pub async fn run(mut self) -> Result<(), Failure> {
        self.screen.act("a git repository and a private daemon, in a folder of their own")?;
        self.start_daemon().await?;
        let mut stage = Stage {
            follower: Follower::start(self.place.context.clone()),
            gates: FileWatch::on(&[&self.place.gates()])?,
        };
        self.screen.act("three agents, each in a worktree of its own")?;
        for part in &CAST {
            self.spawn(part).await?;
        }
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

    async fn spawn(&mut self, part: &'static Part) -> Result<(), Failure> {
        let id = DispatchId::from_random(random()?);
        let plain = |(name, value): (OsString, OsString)| (text(&name), text(&value));
        let spawn = Spawn {
            id: id.to_string(),
            role: part.role.into(),
            project: self.place.repo().display().to_string(),
            prompt: part.prompt.into(),
            feature: Some("demo".into()),
            backend: Some("rehearsal".into()),
            scenario: Some(self.place.scenario(part.role).display().to_string()),
            timeout_s: Some(DISPATCH_TIMEOUT),
            worktree: true,
            env: self.place.variables().into_iter().map(plain).collect(),
            extra_env: vec![("DEMO".into(), self.place.root.display().to_string())],
            ..Spawn::default()
        };
        // Known before it is asked for: its first events may come before the answer.
        self.log.agents.push((id, part));
        match self.place.ask(Request::Spawn(Box::new(spawn))).await? {
            Reply::Spawned { .. } => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    async fn kill_the_agent(&mut self, stage: &mut Stage) -> Result<(), Failure> {
        self.until(stage, "the developer to be in the middle of its work", |log, _| log.waits_at(VICTIM, CRASH))
            .await?;
        let pid = self.log.dispatch(VICTIM).and_then(|dispatch| dispatch.pid()).unwrap_or_default();
        self.screen
            .act(format!("kill -9 {pid}: the developer's agent, between writing and committing"))?;
        self.log.killed = Some((pid, self.place.kill(pid)));
        let died = |log: &Log, _: &Place| log.count(VICTIM, is_killed) > 0;
        self.until(stage, "its death to be noticed", died).await?;
        self.place.open(CRASH)?;
        let resumed = |log: &Log, _: &Place| log.all(|role| log.waits_at(role, OUTAGE));
        self.until(stage, "the developer to be resumed, and all three to be at work", resumed)
            .await
    }

    async fn kill_the_daemon(&mut self, stage: &mut Stage) -> Result<(), Failure> {
        for (_, part) in &self.log.agents {
            let pid = self.log.dispatch(part.role).and_then(|dispatch| dispatch.pid());
            if let Some(process) = pid.and_then(ProcessId::of) {
                self.log.processes.push((part.role, process, false));
            }
        }
        let pid = self.log.daemons.last().copied().unwrap_or_default();
        self.screen.act(format!("kill -9 {pid}: the daemon, with three agents at work"))?;
        self.log.daemon_killed = self.place.kill_daemon();
        self.until(stage, "the stream of events to break off", |log, _| log.lost > 0).await?;
        self.place.open(OUTAGE)?;
        let worked = |_: &Log, place: &Place| CAST.iter().all(|part| place.has_reached(part.role, ADOPTED));
        self.until(stage, "the agents to go on without a daemon", worked).await?;
        let reached = CAST.iter().map(|part| part.role).filter(|role| self.place.has_reached(role, ADOPTED));
        self.log.unattended = reached.collect();
        self.screen.remark("no daemon lives, and each agent has gone on and committed")
    }

    async fn adopt(&mut self, stage: &mut Stage) -> Result<(), Failure> {
        self.screen.act("a new daemon, on the same state directory")?;
        self.start_daemon().await?;
        let adopted = |log: &Log, _: &Place| {
            log.back > 0
                && log.all(|role| log.waits_at(role, ADOPTED))
                && log.all(|role| log.count(role, is_adopted) > 0)
        };
        self.until(stage, "the agents to be adopted", adopted).await?;
        for (role, process, same) in &mut self.log.processes {
            let now = self
                .log
                .fleet
                .iter()
                .find(|dispatch| dispatch.created.role == *role)
                .and_then(|dispatch| dispatch.pid());
            *same = process.is_alive() && now == Some(process.pid);
        }
        let statuses = self.statuses().await?;
        self.screen.act("muleteer status, now")?;
        self.screen.block(&status::table(&statuses, Timestamp::now()))?;
        self.place.open(ADOPTED)
    }

    async fn end(&mut self, stage: &mut Stage) -> Result<(), Failure> {
        self.screen.act("the three finish")?;
        let finished = |log: &Log, _: &Place| {
            log.all(|role| log.count(role, |event| matches!(event, Event::DispatchFinished { .. })) > 0)
        };
        self.until(stage, "the three to finish", finished).await?;
        self.log.statuses = self.statuses().await?;
        self.place.stop_daemon().await
    }

    async fn statuses(&self) -> Result<Vec<DispatchStatus>, Failure> {
        match self.place.ask(Request::Status { id: None }).await? {
            Reply::Status(StatusReport { dispatches, .. }) => Ok(dispatches),
            other => Err(unexpected(&other)),
        }
    }

    /// Shows what happens until `there` holds.
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
                return Err(Failure::new("E_DEMO", format!("while waiting for {what}: {how}")));
            }
            tokio::select! {
                news = stage.follower.next() => self.take(news)?,
                () = stage.gates.changed() => {}
                () = sleep_until(deadline) => {
                    return Err(Failure::new("E_DEMO", format!("waited {}s in vain for {what}", PATIENCE.as_secs())));
                }
            }
        }
    }

    fn take(&mut self, news: News) -> Result<(), Failure> {
        match news {
            News::Event { line, record: Some(record) } => {
                let role = record.entry.dispatch_id.as_ref().and_then(|id| self.log.role(id));
                self.screen.event(&line, &record, role)?;
                self.log.take(*record);
            }
            // Ours cannot say what we do not know: the checks will miss it in the stream.
            News::Event { record: None, .. } => {}
            News::Lost => {
                self.log.lost += 1;
                self.screen.remark("the stream of events broke off: the daemon is gone")?;
            }
            News::Back { next } => {
                self.log.back += 1;
                self.screen.remark(format!("connected again: the stream goes on with event {next}"))?;
            }
        }
        Ok(())
    }
}

/// What is listened to while the play waits.
#[derive(Debug)]
struct Stage {
    follower: Follower,
    gates: FileWatch,
}

pub fn is_killed(event: &Event) -> bool {
    matches!(event, Event::AgentExited { signal: Some(signal), .. } if *signal == Signal::KILL.as_raw())
}

pub fn is_adopted(event: &Event) -> bool {
    matches!(event, Event::AgentAdopted { .. })
}
