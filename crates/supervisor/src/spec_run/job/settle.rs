//! Reads the results of an agent that has ended, and settles its bead.

use crate::daemon::context::Daemon;
use crate::dispatch::confine::named_files;
use crate::dispatch::launch::sealed_home;
use crate::spec_run::host::Hosted;
use crate::spec_run::job::briefing::reasoning;
use crate::spec_run::job::{is_sealed, make_dir, workdir};
use crate::spec_run::output::Said;
use crate::spec_run::trouble::Trouble;
use crate::spec_run::{beads, output, repairs};
use muleteer_model::agent::event::cut;
use muleteer_model::beads::{OBSERVATION, Op, Status, run_label};
use muleteer_model::dispatch::{Dispatch, Stop};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{FinalState, Limit, Outcome};
use muleteer_model::spec_run::event::Purpose;
use muleteer_model::spec_run::spec::review;
use muleteer_model::spec_run::{self, Job, JobEnd, JudgeStage, Run, judge};
use muleteer_process::fault;
use muleteer_process::spawn::find_program;
use muleteer_protocol::ErrorCode;
use muleteer_shim::launch::Launch;
use muleteer_shim::run::CONFINE;
use muleteer_vcs::error::RepoError;
use muleteer_vcs::spec_run::hub;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The three files that an acceptance agent writes.
const CRITERIA: [&str; 3] = ["user-stories.md", "edge-cases.md", "negative-tests.md"];

/// Returns the name of the verdict's file: `iteration-1.yml`, then `iteration-1-2.yml` for a second
/// verdict of the same iteration.
fn verdict_name(run: &Run) -> String {
    let before =
        run.verdicts.iter().filter(|end| end.iteration == run.iteration && end.result.is_some());
    match before.count() {
        0 => format!("iteration-{}.yml", run.iteration),
        before => format!("iteration-{}-{}.yml", run.iteration, before + 1),
    }
}

/// The agent that has ended, and its results so far.
struct Ended<'a> {
    daemon: &'a Daemon,
    hosted: &'a Arc<Hosted>,
    run: &'a Arc<Run>,
    job: &'a Job,
    said: Said,
    /// The machine stopped before the agent's files were synced.
    outlived: bool,
    /// How its CLI was started the last time, if that is known.
    launch: Option<Launch>,
    end: JobEnd,
}

/// Returns the program of an agent's CLI, with or without a sandbox around it, and further programs
/// that its command line names, as that of a shell does.
fn programs(launch: &Launch) -> Vec<PathBuf> {
    // The sandbox has two arguments, and then the words of the agent.
    let confined = launch.argv.iter().take(3).position(|word| word == CONFINE);
    let own = launch.argv.get(confined.map_or(0, |at| at + 3)..).unwrap_or_default();
    let path = launch.env.iter().rev().find(|(name, _)| name == "PATH");
    let find = |name| find_program(name, path.map(|(_, value)| value.as_str()), &launch.cwd).ok();
    let may_run = |path: &PathBuf| rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    let named = named_files(own).map(PathBuf::from).filter(may_run);
    own.first().and_then(|name| find(name)).into_iter().chain(named).collect()
}

fn git(error: impl Into<RepoError>) -> Trouble {
    Trouble::new(ErrorCode::Git, error.into().to_string())
}

/// Collects the agent's results: all facts that the pipeline decides by.
pub(super) async fn settle(
    daemon: &Arc<Daemon>,
    hosted: &Arc<Hosted>,
    run: &Arc<Run>,
    job: &Job,
    id: &DispatchId,
) -> Result<JobEnd, Trouble> {
    // Before anything that may fail: no login outlives its agent.
    if is_sealed(job.start.purpose) {
        let home = hosted.places.home_of(id);
        tokio::task::spawn_blocking(move || sealed_home::leave(&home))
            .await
            .map_err(|error| Trouble::new(ErrorCode::Internal, error.to_string()))?;
    }
    let dispatch = daemon.snapshot().get(id).cloned().ok_or_else(|| {
        Trouble::new(ErrorCode::Internal, format!("dispatch {id} no longer exists"))
    })?;
    let mut end = outcome(&dispatch, job);
    if matches!(&dispatch.stop, Some(Stop::Limit { limit: Limit::Budget, .. })) {
        let spent = daemon.snapshot().purse_usd(&hosted.run_id);
        end.penniless = Some(spent)
            .filter(|spent| run.settings.budget_usd.is_some_and(|budget| *spent >= budget));
    }
    let said = {
        let (spool, backend) = (daemon.paths.spool(id.as_str()), dispatch.created.backend.clone());
        tokio::task::spawn_blocking(move || output::read(&spool, &backend))
            .await
            .map_err(|error| Trouble::new(ErrorCode::Internal, error.to_string()))?
    };
    end.last_lines = said.tail();
    let outlived = hub::outlived_the_machine(&hosted.repos, &workdir(hosted, job));
    let purpose = job.start.purpose;
    let only_word = matches!(
        purpose,
        Purpose::Acceptance | Purpose::Judge | Purpose::Structure | Purpose::Review
    );
    if outlived && only_word && end.outcome == Outcome::Success {
        // Its output and files were not synced, and nothing shows whether they are complete.
        (end.outcome, end.reason) =
            (Outcome::Failure, "the machine stopped before its work was inspected".into());
    }
    let succeeded = end.outcome == Outcome::Success;
    let launch = Launch::read(&daemon.paths.agent(id.as_str()), dispatch.epoch).ok();
    let mut ended = Ended { daemon, hosted, run, job, said, outlived, launch, end };
    match purpose {
        Purpose::Implement | Purpose::Maintain => ended.settle_work().await?,
        Purpose::Review if succeeded => ended.read_review(),
        Purpose::Acceptance if succeeded => ended.seal().await?,
        Purpose::Decompose if succeeded => ended.count_beads().await?,
        Purpose::Judge => ended.keep_reasoning().await?,
        Purpose::Structure if succeeded => ended.read_verdict(),
        _ => {}
    }
    Ok(ended.end)
}

impl Ended<'_> {
    fn fail(&mut self, reason: String) {
        (self.end.outcome, self.end.reason) = (Outcome::Failure, reason);
    }

    /// Brings the commits home, and settles the bead.
    async fn settle_work(&mut self) -> Result<(), Trouble> {
        let Self { hosted, run, job, .. } = *self;
        let dir = workdir(hosted, job);
        let bead = job.start.bead_id.clone().unwrap_or_default();
        hub::unlock(&hosted.repos, &run.target()).await;
        self.end.undone = hub::guard(&hosted.repos, &run.target(), Some(&job.start.dispatch))
            .await
            .map_err(git)?;
        repairs::report(self.daemon, hosted);
        let target = run.target();
        let (work, remote) = tokio::join!(
            hub::work(&hosted.repos, &dir, &target),
            crate::spec_run::publish::remote_lately(hosted, run)
        );
        let work = work.map_err(git)?;
        self.end.trespassed = crate::spec_run::publish::trespassed(hosted, run, remote).await;
        (self.end.commits, self.end.on_target, self.end.whole) =
            (work.commits, work.on_target, work.whole);
        if let Some(why) = work.unreadable {
            // The attempt has failed, not the run: another attempt gets another clone.
            self.fail(cut(&format!("its clone is broken: {why}"), 300));
        }
        if self.end.commits == 0 && job.start.attempt > 0 {
            // An attempt that failed before it closed the bead may have pushed all the work.
            self.end.pushed_before =
                hub::was_pushed(&hosted.repos, &bead, &run.target()).await.map_err(git)?;
        }
        settle_bead(hosted, run, job, &bead, &mut self.end).await?;
        self.end.titles = observations(hosted).await?;
        self.end.observations = self.end.titles.keys().cloned().collect();
        Ok(())
    }

    /// Seals the acceptance criteria.
    async fn seal(&mut self) -> Result<(), Trouble> {
        let hosted = self.hosted;
        let folder = hosted.places.acceptance.clone();
        match crate::spec_run::criteria::seal(hosted, &folder, &CRITERIA).await {
            Ok(sealed) => self.end.sealed = Some(sealed),
            Err(why) if why.is_disk_full => return Err(why),
            Err(why) => self.fail(why.message),
        }
        Ok(())
    }

    /// Fails a decomposition that created no beads.
    async fn count_beads(&mut self) -> Result<(), Trouble> {
        let Self { hosted, job, .. } = *self;
        let mark = beads::mark(&hosted.run_id, &job.start.dispatch);
        let made = beads::with_store(
            hosted,
            Op::List { labels: vec![], status: None, staged: Some(mark.clone()) },
            String::new(),
        )
        .await?
        .beads
        .into_iter()
        .filter(|bead| bead.staged.as_ref() == Some(&mark))
        .count();
        if made == 0 {
            self.fail("it succeeded without creating beads".into());
            self.end.empty = true;
        }
        Ok(())
    }

    /// Checks that the judge wrote nothing, and saves its reasoning.
    async fn keep_reasoning(&mut self) -> Result<(), Trouble> {
        let Self { hosted, run, job, .. } = *self;
        let dir = workdir(hosted, job);
        self.end.undone = hub::hold(&hosted.repos, &run.target(), Some(&job.start.dispatch))
            .await
            .map_err(git)?;
        repairs::report(self.daemon, hosted);
        // The judge is not to blame if the disk lost files.
        let dirty = !self.outlived && hub::is_dirty(&hosted.repos, &dir).await.map_err(git)?;
        self.end.wrote = dirty || self.end.undone.is_some();
        // A daemon that is restarted makes the link to its own program again.
        let is_ours = |path: &PathBuf| {
            path.starts_with(&self.daemon.paths.state_dir) || *path == self.daemon.settings.muleteer
        };
        let mut programs = self.launch.iter().flat_map(programs).filter(|path| !is_ours(path));
        self.end.cli_changed = programs.any(|path| hosted.repos.is_changed(&path));
        if self.end.outcome == Outcome::Success && !self.end.wrote {
            let round = match run.judge() {
                Some(JudgeStage::Reason { round }) => *round,
                Some(JudgeStage::Structure { .. } | JudgeStage::Apply(_)) | None => 1,
            };
            make_dir(&hosted.places.verdicts(), 0o700)?;
            let path = reasoning(hosted, run, round);
            muleteer_store::atomic::write_atomic(&path, self.said.answer().as_bytes(), 0o600)
                .map_err(|error| {
                    Trouble::new(ErrorCode::StoreIo, crate::dispatch::error::chain(&error))
                })?;
        }
        Ok(())
    }

    /// Reads the findings about the spec. Unreadable ones are a failure, not an empty review.
    fn read_review(&mut self) {
        let answer = review::read(&self.said.answer());
        match answer.or_else(|_| review::read(&self.said.everything())) {
            Ok(findings) => {
                self.end.reason = format!("{} findings", findings.len());
                self.end.findings = findings;
            }
            Err(error) => self.fail(error.to_string()),
        }
    }

    /// Reads the structured verdict, and saves it.
    fn read_verdict(&mut self) {
        let Self { hosted, run, .. } = *self;
        let ways = [self.said.document(), self.said.answer(), self.said.everything()];
        let verdict = judge::read(ways.iter().map(String::as_str));
        if let Ok(result) = &verdict
            && let Ok(text) = muleteer_model::spec_run::checkpoint::to_yaml(result)
        {
            let path = hosted.places.verdicts().join(verdict_name(run));
            let _ = muleteer_store::atomic::write_atomic(&path, text.as_bytes(), 0o600);
        }
        // The agent's own summary is the document, which people need not read.
        self.end.reason = match &verdict {
            Ok(result) => result.brief(),
            Err(error) => error.to_string(),
        };
        self.end.verdict = Some(verdict);
    }
}

/// Returns the outcome that the dispatch reports, before any file of the agent is read.
fn outcome(dispatch: &Dispatch, job: &Job) -> JobEnd {
    let reason = dispatch.reason.clone().unwrap_or_default();
    let state = match dispatch.phase {
        muleteer_model::dispatch::Phase::Finished { state } => state,
        _ => FinalState::Failed,
    };
    let timed_out = matches!(
        &dispatch.stop,
        Some(Stop::Limit { limit: Limit::Timeout, .. } | Stop::Stall { .. })
    ) || dispatch
        .ended
        .map_or_else(|| Limit::is_timeout(&reason), |ended| ended.outcome == Outcome::Timeout);
    let limited = matches!(&dispatch.stop, Some(Stop::Limit { .. }));
    let outcome = match state {
        _ if timed_out => Outcome::Timeout,
        FinalState::Success => Outcome::Success,
        // It ended by itself without a readable result: its files and commits decide.
        FinalState::Partial if !limited => Outcome::Success,
        _ => Outcome::Failure,
    };
    let said =
        dispatch.result.value.as_ref().map(|result| cut(&result.summary, 300)).unwrap_or_default();
    let why = [reason.as_str(), &said, state.as_str()].into_iter().find(|text| !text.is_empty());
    let mut end = JobEnd::new(outcome, why.unwrap_or_default());
    end.unknown = dispatch.ended.is_some_and(|ended| ended.is_unknown(state));
    // It waited as long as it was allowed to. The outage is no failure of the bead.
    end.rate_limited = outcome == Outcome::Failure
        && dispatch.outage.as_ref().is_some_and(|outage| outage.trouble.presses());
    end.cost_usd = dispatch.spend.cost_usd;
    let took = dispatch.since.as_millisecond() - job.started_at.as_millisecond();
    end.duration_ms = took.max(0) as u64;
    end
}

/// Closes, reopens or blocks the bead after its agent. If the work is pushed and the bead open, the
/// harness closes it. Unfinished work leaves the bead open, or blocked after its last attempt. The
/// store is changed before the run's log: a daemon that is killed in between repeats this.
async fn settle_bead(
    hosted: &Arc<Hosted>,
    run: &Arc<Run>,
    job: &Job,
    bead: &str,
    end: &mut JobEnd,
) -> Result<(), Trouble> {
    let purpose = job.start.purpose;
    let found = beads::with_store(hosted, Op::Show { id: bead.into() }, String::new()).await?;
    let Some(bead) = found.beads.into_iter().next() else { return Ok(()) };
    end.closed = bead.status == Status::Closed;
    end.no_change = bead.no_change;
    let pushed = end.whole;
    let maintained = purpose == Purpose::Maintain;
    let complete = end.closed && (end.has_pushed() || (end.no_change && end.commits == 0))
        || (maintained && end.closed);
    let finished = end.outcome == Outcome::Success || (end.unknown && !maintained);
    let close = !end.closed && finished && (pushed || maintained);
    // The run proceeds meanwhile.
    let newest = || hosted.run().unwrap_or_else(|| run.clone());
    fault::point("run.before_bead");
    let op = if close {
        let reason =
            if pushed { "its commits are on the target branch" } else { "maintenance has ended" };
        Some(Op::Close { id: bead.id.clone(), reason: reason.into(), no_change: !pushed })
    } else if !complete && maintained {
        // If the run was stopped, another maintenance bead will replace this one.
        let reason = if newest().stopping().is_some() {
            "the run was stopped"
        } else {
            "maintenance has failed"
        };
        Some(Op::Close { id: bead.id.clone(), reason: reason.into(), no_change: true })
    } else if !complete {
        Some(Op::Reopen { id: bead.id.clone() })
    } else {
        None
    };
    if let Some(op) = op {
        beads::with_store(hosted, op, String::new()).await?;
    }
    if spec_run::blocks(&newest(), &job.start.dispatch, end) {
        let blocked = Op::Update {
            id: bead.id.clone(),
            title: None,
            description: None,
            status: Some("blocked".into()),
            priority: None,
            issue_type: None,
            add_labels: vec![],
            remove_labels: vec![],
        };
        beads::with_store(hosted, blocked, String::new()).await?;
    }
    fault::point("run.after_bead");
    Ok(())
}

/// Returns the open observations of the run, with their titles.
async fn observations(hosted: &Arc<Hosted>) -> Result<BTreeMap<String, String>, Trouble> {
    let labels = vec![run_label(&hosted.run_id), OBSERVATION.into()];
    let list = Op::List { labels, status: Some("open".into()), staged: None };
    let found = beads::with_store(hosted, list, String::new()).await?;
    Ok(found.beads.into_iter().map(|bead| (bead.id, bead.title)).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The stopped run does not record the bead as blocked, so its store must not either.
    #[tokio::test]
    async fn stop_while_a_bead_is_reopened_does_not_block_it() {
        let dir = tempfile::tempdir().unwrap();
        let past =
            ["run_started", "beads_created", "beads_accepted", "bead_assigned", "agent_started"];
        let samples = muleteer_store::events::catalog::samples();
        let of =
            |name: &&str| samples.iter().find(|record| record.entry.event.name() == *name).unwrap();
        let mut run = Run::fold(past.iter().map(of)).unwrap();
        run.settings.max_retries = 0;
        let run = Arc::new(run);
        let hosted = Arc::new(Hosted::alone(dir.path(), run.id()));
        hosted.state.send_replace(Some(run.clone()));
        let job = run.jobs.values().next().cloned().unwrap();
        let id = job.start.bead_id.clone().unwrap();
        let make = Op::Create {
            title: "Parse the header".into(),
            description: String::new(),
            issue_type: "task".into(),
            priority: 1,
            labels: vec![],
            depends_on: vec![],
            key: None,
            staged: None,
        };
        beads::with_store(&hosted, make, id.clone()).await.unwrap();
        let mut end = JobEnd::new(Outcome::Failure, "exit code 1");
        assert!(spec_run::blocks(&run, &job.start.dispatch, &end), "it was its last try");
        let before = hosted.beads.lock().await;
        let settling = settle_bead(&hosted, &run, &job, &id, &mut end);
        let stopping = async {
            drop(before);
            // The store is locked in turn, so the bead has been shown by now.
            let between = hosted.beads.lock().await;
            while Arc::strong_count(&hosted.beads) == 1 {
                tokio::task::yield_now().await;
            }
            let mut stopped = Run::clone(&run);
            let stopping = spec_run::Stopping { code: String::new(), message: "enough".into() };
            stopped.standing = spec_run::RunStanding::Stopping(stopping);
            hosted.state.send_replace(Some(Arc::new(stopped)));
            drop(between);
        };
        tokio::join!(settling, stopping).0.unwrap();
        let found = beads::with_store(&hosted, Op::Show { id }, String::new()).await.unwrap();
        assert_eq!(found.beads[0].status, Status::Open);
    }
}
