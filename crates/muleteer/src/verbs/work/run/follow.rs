//! Following a run on the screen, across restarts of the daemon.

use super::{stop, up};
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::client::interrupt;
use crate::client::live_run::{LiveRun, TICK};
use crate::client::run_files::Runs;
use muleteer_model::event::Record;
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::report::history::Chronicle;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::client::{Client, ClientError, Next};
use muleteer_protocol::v1::{self, Item, Request};
use muleteer_supervisor::daemon::service::signals::AsyncSignals;
use muleteer_supervisor::daemon::settings::beads_home;
use rustix::process::Signal;
use std::cell::RefCell;
use std::time::Duration;

/// How long a client that only follows waits for something else to start the next daemon.
const NEXT_DAEMON: Duration = Duration::from_secs(5);

/// Follows the run until it rests or ends. If the daemon dies it is started again, and continues
/// the run. The first Ctrl-C stops the run, the second only stops following it.
pub(super) async fn follow(
    context: &Context,
    runs: &Runs,
    request: &v1::Run,
    known: Option<Chronicle>,
) -> Result<(), Failure> {
    let mut signals = AsyncSignals::catch(&[Signal::INT, Signal::TERM]).map_err(Failure::from)?;
    let mut stopped = false;
    let run_id = &request.run_id;
    let mut next = known.as_ref().map_or(0, |known| known.run.seq + 1);
    let live = RefCell::new(LiveRun::new(context, known, beads_home(&runs.repo)));
    loop {
        let client = context.connect_or_start().await?;
        let watching = watch(context, client, run_id, &mut next, &live);
        tokio::pin!(watching);
        let ended = loop {
            tokio::select! {
                ended = &mut watching => break ended?,
                _ = signals.next() => {}
            }
            if stopped {
                live.borrow_mut().clear();
                context
                    .out
                    .note(format!("detached; check it with `muleteer run --status {run_id}`"));
                return Ok(());
            }
            stopped = true;
            live.borrow_mut().note(format!(
                "stopping the run and its agents; resume it with `muleteer run --resume {run_id}`"
            ));
            stop(context, run_id).await?;
        };
        let under_way = runs.read(run_id).is_ok_and(|run| run.is_live());
        if ended && !under_way {
            return Ok(());
        }
        if stopped {
            stop(context, run_id).await?;
            continue;
        }
        // The daemon is gone. The next one continues the run by itself; this request makes sure
        // that there is one.
        let again = v1::Run { resume: false, ..request.clone() };
        up(context, &again).await?;
    }
}

/// Follows the run until it rests or ends, across daemon restarts, without starting or stopping
/// anything. Returns false if the user interrupts.
///
/// # Errors
/// `E_NO_DAEMON`: without a daemon the run does not end.
pub(super) async fn attend(context: &Context, runs: &Runs, run: &Run) -> Result<bool, Failure> {
    if !run.is_live() {
        return Ok(true);
    }
    let mut client = attended(context, run, Duration::ZERO).await?;
    let known = runs.chronicle(run.id())?;
    let mut next = known.run.seq + 1;
    let live = RefCell::new(LiveRun::new(context, Some(known), beads_home(&runs.repo)));
    live.borrow_mut().draw();
    let watching = async {
        while !watch(context, client, run.id(), &mut next, &live).await?
            && runs.read(run.id())?.is_live()
        {
            live.borrow_mut().clear();
            client = attended(context, run, NEXT_DAEMON).await?;
        }
        Ok::<_, Failure>(())
    };
    let (mut ending, mut interrupted) = (interrupt::endings()?, false);
    tokio::select! {
        ended = watching => ended?,
        _ = ending.next() => interrupted = true,
    }
    live.borrow_mut().clear();
    if interrupted {
        context.out.note(format!(
            "stopped following; the run continues (check it with `muleteer run --status {}`)",
            run.id()
        ));
    }
    Ok(!interrupted)
}

/// Connects to a daemon that hosts the run or will do so; waits at most `patience` for one.
async fn attended(context: &Context, run: &Run, patience: Duration) -> Result<Client, Failure> {
    context.dial_within(patience).await.map_err(|error| {
        if !error.is_lost() {
            return error.into();
        }
        let (message, hint) = match context.is_held() {
            true => (
                format!(
                    "{}: a daemon is running but cannot be reached at {}",
                    run.id(),
                    context.socket.display()
                ),
                format!(
                    "run `muleteer doctor`, or `muleteer run --status {}` without --follow",
                    run.id()
                ),
            ),
            false => (
                format!(
                    "{} has not ended, but no daemon is running: the next daemon continues it",
                    run.id()
                ),
                format!(
                    "start a daemon with `muleteer run --resume {}`, or use --status without \
                     --follow",
                    run.id()
                ),
            ),
        };
        Failure::new(ErrorCode::NoDaemon, message).run(run.id()).hint(hint)
    })
}

/// Returns true when the stream has ended, false when the daemon is gone.
async fn watch(
    context: &Context,
    mut client: Client,
    run_id: &str,
    next: &mut u64,
    live: &RefCell<LiveRun<'_>>,
) -> Result<bool, Failure> {
    let request = Request::RunEvents { run_id: run_id.into(), from_seq: *next, follow: true };
    let mut stream = match client.stream(request).await {
        Ok(stream) => stream,
        Err(error) if error.is_lost() => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    loop {
        let item = drawn(stream.next(), live).await;
        match item {
            Ok(Next::Item(Item::Event { seq, line })) => {
                *next = (*next).max(seq + 1);
                if context.out.json {
                    Failure::unless_closed(context.out.line(&line))?;
                } else if let Ok(record) = serde_json::from_str::<Record>(&line) {
                    live.borrow_mut().take(&record);
                }
            }
            Ok(Next::Item(_)) => {}
            Ok(Next::End(_)) => return Ok(true),
            Err(ClientError::Lost) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Waits, and updates the times on the screen meanwhile.
async fn drawn<T>(waiting: impl Future<Output = T>, live: &RefCell<LiveRun<'_>>) -> T {
    tokio::pin!(waiting);
    loop {
        tokio::select! {
            done = &mut waiting => return done,
            () = tokio::time::sleep(TICK) => live.borrow_mut().draw(),
        }
    }
}
