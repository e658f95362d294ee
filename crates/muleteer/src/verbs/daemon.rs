//! `daemon`: runs the supervisor in the foreground; `daemon stop` stops it.

use crate::block_on;
use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::settings;
use crate::client::connect::unexpected;
use crate::client::offline;
use crate::client::on_demand::Waiting;
use crate::render;
use clap::ValueEnum;
use muleteer_model::config::{BadSpan, Span};
use muleteer_process::identity::Pinned;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{Reply, Request};
use muleteer_supervisor::daemon::paths::Paths;
use muleteer_supervisor::daemon::{self, DaemonOptions, StartError};
use muleteer_supervisor::telemetry::{outbox, provider};
use serde_json::json;
use std::time::Duration;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// An on-demand daemon exits after this much idle time.
const IDLE_EXIT: Duration = Duration::from_secs(600);

/// How long `daemon stop` waits for the daemon's exit after the daemon has accepted the request.
const STOP_PATIENCE: Duration = Duration::from_secs(15);

const EXAMPLES: &str = "\
Examples:
  muleteer daemon                      in the foreground
  muleteer daemon stop                 its agents continue in their shims
  muleteer daemon stop --agents stop   stops its agents too

Killing the daemon, even with -9, loses no work: the next daemon adopts its agents.";

const STOP_EXAMPLES: &str = "\
Example:
  muleteer daemon stop --agents keep";

/// Run the supervisor in the foreground, or stop it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Sub>,
    /// Stop the running daemon first, and take over its agents
    #[arg(long)]
    replace: bool,
    /// Started by a verb that needed a daemon: leave its session, and exit when idle
    #[arg(long, hide = true)]
    on_demand: bool,
    /// Exit after this long without agents and clients
    #[arg(long, hide = true, value_name = "TIME", value_parser = span)]
    idle_exit: Option<Duration>,
}

#[derive(Debug, clap::Subcommand)]
enum Sub {
    /// Stop the daemon; by default its agents continue in their shims
    #[command(after_help = STOP_EXAMPLES)]
    Stop {
        /// Keep the agents running for the next daemon to adopt, or stop them too
        #[arg(long, value_enum, default_value_t)]
        agents: Agents,
    },
}

#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Agents {
    #[default]
    Keep,
    Stop,
}

pub fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    match &args.verb {
        Some(Sub::Stop { agents }) => block_on(stop(*agents, context)),
        None => host(args, context),
    }
}

async fn stop(agents: Agents, context: &Context) -> Result<Exit, Failure> {
    let mut client = context.connect().await?;
    let word = match agents {
        Agents::Keep => "keep",
        Agents::Stop => "stop",
    };
    let pid = client.welcome().daemon_pid;
    // The process is pinned before it exits, so that its pid cannot be reused by another process.
    let process = Pinned::open(pid).ok();
    let reply = client.call(Request::Stop { agents: word.into() }).await?;
    // The reply only means that the daemon will stop; "stopped" is printed after it has.
    let closed = tokio::time::timeout(STOP_PATIENCE, client.closed()).await.is_ok();
    if !closed || process.is_some_and(|process| !process.wait(STOP_PATIENCE)) {
        context.out.note(format!("the daemon (pid {pid}) has not exited yet"));
    }
    match reply {
        Reply::Stopping { agents_alive, lease_s } if context.out.json => {
            context.out.document(&json!({
                "pid": pid, "agents": word, "agents_alive": agents_alive, "lease_s": lease_s,
            }))?;
        }
        Reply::Stopping { agents_alive: 0, .. } => {
            context.out.line("daemon stopped; no agents were running")?
        }
        Reply::Stopping { agents_alive, lease_s } => {
            let lease = render::span(Duration::from_secs(lease_s));
            let agents = if agents_alive == 1 {
                "1 agent continues".to_string()
            } else {
                format!("{agents_alive} agents continue")
            };
            context.out.line(format!(
                "daemon stopped; {agents} without a daemon for up to {lease}: the next daemon \
                 adopts them"
            ))?;
        }
        other => return Err(unexpected(&other)),
    }
    Ok(Exit::Done)
}

fn host(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let mut waiting = None;
    if args.on_demand {
        // Leave the caller's session, so that closing its terminal does not kill the daemon. This
        // fails only if we lead a session already, which is just as good.
        let _ = rustix::process::setsid();
        let left = leave_behind().and_then(|()| Waiting::take());
        let cannot = |error| {
            Failure::new(
                ErrorCode::DaemonStart,
                format!("cannot detach from the caller's files: {error}"),
            )
        };
        waiting = Some(left.map_err(cannot)?);
    }
    let idle_exit = args.idle_exit.or(args.on_demand.then_some(IDLE_EXIT));
    log_to_stderr(context);
    end_on_panic();
    if args.replace {
        block_on(step_aside(context))?;
    }
    let paths = Paths { socket: context.socket.clone(), ..context.paths.clone() };
    let options = DaemonOptions {
        paths,
        config: context.config.clone(),
        idle_exit,
        on_demand: args.on_demand,
    };
    let done = daemon::run(options).map(|()| Exit::Done).map_err(refused);
    if let (Some(waiting), Err(failure)) = (waiting, &done) {
        waiting.tell(failure);
    }
    done
}

/// Aborts the process if the main thread panics. Nothing restarts that thread, which holds the
/// supervision tree. Unwinding through a runtime that did not come up waits for its threads forever
/// while the lock is held; this was seen when no thread could be created. A dead daemon is started
/// again.
fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        if std::thread::current().name() == Some("main") {
            std::process::abort();
        }
    }));
}

/// Asks a running daemon to stop and to leave its agents to us. If it cannot be asked, taking the
/// lock fails later.
async fn step_aside(context: &Context) -> Result<(), Failure> {
    let Ok(mut client) = context.dial().await else { return Ok(()) };
    let pid = client.welcome().daemon_pid;
    let process = Pinned::open(pid).ok();
    tracing::info!(pid, "stopping the running daemon; its agents continue");
    if client.call(Request::Stop { agents: "keep".into() }).await.is_ok() {
        let _ = process.map(|process| process.wait(STOP_PATIENCE));
    }
    Ok(())
}

/// Sets up the daemon's log for a terminal, a service manager, or an on-demand daemon's file.
fn log_to_stderr(context: &Context) {
    let level = match (context.out.quiet, context.out.verbose) {
        (true, _) => "warn",
        (false, 0) => "info",
        (false, 1) => "debug",
        (false, _) => "trace",
    };
    let wanted =
        std::env::var("MULETEER_LOG").ok().and_then(|filter| EnvFilter::try_new(filter).ok());
    // Only our own crates log at this level: at `debug` libraries print details for their authors.
    let ours = || {
        EnvFilter::new(format!(
            "warn,muleteer={level},muleteer_supervisor={level},muleteer_store={level}"
        ))
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    // The journal adds its own times.
    let in_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let lines = if in_journal && !context.out.json {
        lines.without_time().with_ansi(false).boxed()
    } else if context.out.json {
        lines.json().boxed()
    } else {
        lines.with_ansi(context.out.color_on_stderr()).boxed()
    };
    // Exported spans would only lengthen the lines.
    let logged = filter_fn(|metadata| !provider::is_exported(metadata));
    let lines = lines.with_filter(wanted.unwrap_or_else(ours).and(logged));
    // A subscriber that was set before is used instead.
    drop(tracing_subscriber::registry().with(lines).with(outbox::layer()).try_init());
}

/// Closes inherited descriptors. Otherwise a script that reads our caller's output to its end would
/// wait as long as the daemon lives.
fn leave_behind() -> std::io::Result<()> {
    muleteer_process::spawn::close_others(&std::fs::File::open("/dev/null")?);
    Ok(())
}

/// Converts the reason why the daemon did not start or could not continue.
fn refused(error: StartError) -> Failure {
    match error {
        StartError::Running { .. } => Failure::of(ErrorCode::AlreadyRunning, &error)
            .hint("run `muleteer status` to see its work, or `muleteer daemon stop` to stop it"),
        StartError::Config(errors) => settings::invalid(errors),
        StartError::Unreadable(error) => settings::unreadable(&error),
        StartError::Events(error) => offline::stored(error),
        StartError::Io { ref path, .. } => Failure::of(ErrorCode::DaemonStart, &error)
            .file(path)
            .hint("run `muleteer doctor` to check the directories"),
        StartError::NotPrivate { ref path, variable, .. } => {
            Failure::of(ErrorCode::NotPrivate, &error).file(path).hint(format!(
                "set {variable} to a directory that you own, or have its owner or an \
                 administrator remove it"
            ))
        }
        other => Failure::of(ErrorCode::DaemonStart, &other),
    }
}

fn span(text: &str) -> Result<Duration, BadSpan> {
    text.parse::<Span>().map(Span::as_duration)
}
