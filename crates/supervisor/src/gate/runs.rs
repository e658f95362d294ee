//! Handles the requests about runs and their beads.

use crate::daemon::context::Daemon;
use crate::dispatch::error::{fault, internal};
use crate::dispatch::request::place_warnings::{self, Lfs};
use crate::gate::connection::{Answer, Connection, Heard};
use crate::gate::peer::Identity;
use crate::ports::spec_run::RunMsg;
use crate::spec_run::beads;
use crate::spec_run::host::Hosted;
use muleteer_model::spec_run::Input;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{self, Item, Reply, WireError};
use muleteer_store::events::tail;
use ractor::rpc::CallResult;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The time for terminating all agents at once (TERM, 10 s, KILL), with a margin.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

pub async fn bead(connection: &Connection, key: &str, op: &str) -> Result<Reply, WireError> {
    let Identity::Agent(id) = &connection.identity else {
        return Err(fault(
            ErrorCode::Forbidden,
            "only agents of a run get their beads from the daemon",
            "outside a run, use `muleteer bead` on the beads of the repository",
        ));
    };
    let answer = beads::ask(&connection.daemon, id, key, op).await?;
    let answer = serde_json::to_string(&answer).map_err(|error| internal(&error.to_string()))?;
    Ok(Reply::Beads { answer })
}

/// Starts or resumes a run, with warnings about the clones that its agents get. With `amend`, the
/// resumed run takes the spec of the request.
pub async fn begin(
    daemon: &Arc<Daemon>,
    run: &v1::Run,
    amend: bool,
    trace: Option<String>,
) -> Result<Reply, WireError> {
    let run_id = crate::spec_run::begin(daemon, run, amend, trace).await?;
    let warnings = match run.resume {
        true => vec![],
        false => {
            let spec = run.spec.as_ref().map(Path::new);
            let lfs = Lfs::for_agents(run.env.iter().chain(&run.extra_env));
            place_warnings::of_clones(Path::new(&run.repo), spec, lfs).await
        }
    };
    Ok(Reply::RunUp { run_id, warnings })
}

/// Stops the run: its agents are terminated, and it can be resumed.
pub async fn stop(daemon: &Arc<Daemon>, run_id: &str) -> Result<Reply, WireError> {
    let done = || Ok(Reply::RunUp { run_id: run_id.into(), warnings: vec![] });
    let Some(hosted) = daemon.runs.find(run_id) else { return done() };
    match tokio::time::timeout(STOP_PATIENCE, rest(&hosted)).await {
        Ok(()) => done(),
        // The run was not started after all.
        Err(_) if daemon.runs.find(run_id).is_none() => done(),
        Err(_) if hosted.run().is_some_and(|run| run.jobs.is_empty()) => {
            let message =
                "the run is stopping; its work is still being fetched into the repository";
            Err(fault(
                ErrorCode::Busy,
                message,
                "wait until `muleteer run --status` shows that it has stopped",
            ))
        }
        Err(_) => Err(fault(
            ErrorCode::Busy,
            "the run's agents did not end in time",
            "run `muleteer status` to list them, then try again",
        )),
    }
}

/// Returns when the run rests. Only its actor can stop it. A run that was just started or taken
/// over has no actor yet, and a failed actor is soon replaced, so each new actor gets the stop.
async fn rest(hosted: &Hosted) {
    let mut state = hosted.state.subscribe();
    let mut is_told = false;
    loop {
        let run = state.borrow_and_update().clone();
        if run.as_ref().is_some_and(|run| !run.is_live()) {
            return;
        }
        // A run that is stopping already also gets it once: a suspect must not wait for its trial
        // any longer.
        let is_due = run.is_some_and(|run| run.stopping().is_none() || !is_told);
        if let Some(actor) = hosted.actor.get().filter(|_| is_due) {
            let input = Box::new(Input::Stop { reason: "it was stopped".into() });
            let told =
                actor.call(|reply| RunMsg::Command(input, reply), Some(Duration::from_secs(10)));
            is_told |= matches!(told.await, Ok(CallResult::Success(_)));
        }
        if state.changed().await.is_err() {
            return;
        }
    }
}

pub async fn events(
    connection: &mut Connection,
    run_id: &str,
    from_seq: u64,
    follow: bool,
) -> Answer {
    let daemon = connection.daemon.clone();
    let hosted = daemon.runs.find(run_id);
    let path = match &hosted {
        Some(hosted) => hosted.places.events(),
        None => match places(&daemon, run_id) {
            Ok(path) => path,
            Err(error) => return Ok(Err(error)),
        },
    };
    let mut state = hosted.as_ref().map(|hosted| hosted.state.subscribe());
    let mut reader = match tail::Reader::follow(&path, tail::Start::Seq(from_seq)) {
        Ok(reader) => reader,
        Err(error) => return Ok(Err(internal(&error.to_string()))),
    };
    let mut next_seq = from_seq;
    loop {
        // This is read before the log, so that the log then has the event that ended the run.
        let live = state.as_mut().is_some_and(|state| {
            state.borrow_and_update().as_ref().is_none_or(|run| run.is_live())
        });
        loop {
            match reader.next_line() {
                Ok(Some(line)) => {
                    next_seq = line.record.seq + 1;
                    if !connection
                        .send(Item::Event { seq: line.record.seq, line: line.raw })
                        .await?
                    {
                        return Ok(Ok(None));
                    }
                }
                Ok(None) => break,
                Err(error) => return Ok(Err(internal(&error.to_string()))),
            }
        }
        let Some(state) = state.as_mut().filter(|_| live && follow) else {
            return Ok(Ok(Some(Reply::EndOfEvents { next_seq })));
        };
        tokio::select! {
            changed = state.changed() => {
                if changed.is_err() {
                    return Ok(Ok(Some(Reply::EndOfEvents { next_seq })));
                }
            }
            heard = connection.hear() => {
                if let Heard::Cancelled = heard? {
                    return Ok(Ok(None));
                }
            }
        }
    }
}

fn places(daemon: &Daemon, run_id: &str) -> Result<std::path::PathBuf, WireError> {
    let unknown = || WireError {
        run_id: Some(run_id.into()),
        ..fault(
            ErrorCode::NotFound,
            &format!("no run {run_id}"),
            "run `muleteer runs` to list them",
        )
    };
    crate::spec_run::host::key_of(run_id).ok_or_else(unknown)?;
    let saved = std::fs::read(daemon.paths.run(run_id).join("run.json")).map_err(|_| unknown())?;
    let saved: crate::spec_run::host::Saved =
        serde_json::from_slice(&saved).map_err(|error| internal(&error.to_string()))?;
    Ok(crate::spec_run::host::Places::new(
        &daemon.paths,
        std::path::Path::new(&saved.request.repo),
        run_id,
    )
    .events())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;
    use muleteer_model::spec_run::event::RunStatus;
    use muleteer_model::spec_run::{Run, RunStanding, Stopping};

    /// A daemon that was started to stop a run serves before it has read the run's state.
    #[tokio::test]
    async fn stop_before_the_driver_starts_takes_effect_at_its_start() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let samples = muleteer_store::events::catalog::samples();
        let mut run =
            Run::fold(samples.iter().filter(|record| record.entry.event.name() == "run_started"))
                .unwrap();
        assert!(run.is_live());
        let hosted = Arc::new(Hosted::alone(dir.path(), run.id()));
        daemon.runs.insert(hosted.clone(), false);

        let (id, waiting) = (run.id().to_string(), daemon.clone());
        let stopped = tokio::spawn(async move { stop(&waiting, &id).await });
        while hosted.state.receiver_count() == 0 {
            tokio::task::yield_now().await;
        }
        let (driver, mut heard) = test_daemon::stand_in().await;
        hosted.actor.set(driver);
        hosted.state.send_replace(Some(Arc::new(run.clone())));
        let told = tokio::time::timeout(Duration::from_secs(20), heard.recv()).await;
        let Ok(Some(RunMsg::Command(input, reply))) = told else {
            panic!("nobody was told: {told:?}")
        };
        assert!(matches!(*input, Input::Stop { .. }), "{input:?}");
        let stopping = Stopping { code: String::new(), message: "it was stopped".into() };
        run.standing = RunStanding::Stopping(stopping);
        hosted.state.send_replace(Some(Arc::new(run.clone())));
        reply.send(true).unwrap();
        run.standing = RunStanding::Resting {
            status: RunStatus::Partial,
            reason: String::new(),
            stopped: true,
            question: None,
        };
        hosted.state.send_replace(Some(Arc::new(run)));
        assert!(stopped.await.unwrap().is_ok());
        assert!(heard.try_recv().is_err(), "it was told once");
    }
}
