//! `schedule`: the messages that Muleteer writes at configured times.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::render::table::{Align, Cell, layout};
use crate::render::{BOLD, clip};
use crate::verbs::thread::send::new_key;
use muleteer_protocol::v1::{Reply, Request, ScheduleDoc};
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  muleteer schedule list
  muleteer schedule run standup

A schedule is an entry of `schedules` in config.yaml: a cron pattern, a role and
a prompt. The daemon reads the file again when you change it.";

/// Show and start the messages that Muleteer writes at configured times
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// List the schedules with their next and last starts
    #[command(after_help = "Example:\n  muleteer schedule list --json")]
    List,
    /// Start a schedule now, also a disabled one
    #[command(after_help = "Example:\n  muleteer schedule run standup")]
    Run(Name),
}

#[derive(Debug, clap::Args)]
struct Name {
    /// The name of the schedule
    name: String,
}

impl Args {
    /// Whether the verb changes something.
    pub fn acts(&self) -> bool {
        !matches!(self.what, What::List)
    }
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let What::Run(Name { name }) = &args.what else { return list(context).await };
    // A client that loses its daemon asks the next one again, with the same key.
    let request = Request::ScheduleRun { name: name.clone(), key: new_key()? };
    let schedules = schedules(context.ask(request).await?)?;
    let last = schedules.first().and_then(|schedule| schedule.last.as_ref());
    if context.out.json {
        context.out.document(&json!({ "schedules": schedules }))?;
    } else if let Some(last) = last {
        let thread = last.thread_id.as_deref();
        let place = thread.map(|thread| format!(" in thread {thread}")).unwrap_or_default();
        let reason = last.reason.as_ref().map(|reason| format!(": {reason}"));
        let reason = reason.unwrap_or_default();
        context.out.line(format!("{name}: {}{place}{reason}", last.state))?;
    }
    Ok(if last.is_some_and(|last| last.state == "failed") { Exit::Failed } else { Exit::Done })
}

async fn list(context: &Context) -> Result<Exit, Failure> {
    let schedules = schedules(context.ask(Request::Schedules).await?)?;
    if context.out.json {
        context.out.document(&json!({ "schedules": schedules }))?;
    } else if schedules.is_empty() {
        context.out.line("no schedules")?;
    } else {
        context.out.text(table(&schedules))?;
    }
    Ok(Exit::Done)
}

fn schedules(reply: Reply) -> Result<Vec<ScheduleDoc>, Failure> {
    match reply {
        Reply::Schedules { schedules } => Ok(schedules),
        other => Err(unexpected(&other)),
    }
}

fn table(schedules: &[ScheduleDoc]) -> String {
    let heads = ["SCHEDULE", "CRON", "ZONE", "ROLE", "NEXT", "LAST", "STATE", "THREAD", "REASON"]
        .map(|head| (head, if head == "REASON" { Align::Main(24) } else { Align::Left }));
    let rows: Vec<Vec<Cell>> = schedules
        .iter()
        .map(|schedule| {
            let last = schedule.last.as_ref();
            let state = match (schedule.running, last) {
                (true, _) if schedule.reason.is_some() => "waiting",
                (true, _) => "starting",
                (false, Some(last)) => last.message_state.as_deref().unwrap_or(&last.state),
                (false, None) => "-",
            };
            let next = if schedule.enabled { schedule.next.as_deref() } else { Some("disabled") };
            let of_last = last.and_then(|last| last.reason.as_deref());
            let reason = schedule.reason.as_deref().or(of_last).unwrap_or("-");
            vec![
                Cell::colored(&schedule.name, BOLD),
                schedule.cron.as_str().into(),
                schedule.time_zone.as_deref().unwrap_or("system").into(),
                schedule.role.as_str().into(),
                next.unwrap_or("-").into(),
                last.map_or("-", |last| &last.due).into(),
                state.into(),
                last.and_then(|last| last.thread_id.as_deref()).unwrap_or("-").into(),
                clip(reason, 60).into(),
            ]
        })
        .collect();
    layout(&heads, &rows, &["REASON", "ZONE", "ROLE"])
}
