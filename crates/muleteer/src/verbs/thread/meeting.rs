//! `meeting`: several roles and people in one thread, whose turns a chair gives.

use crate::cli::context::Context;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::client::connect::unexpected;
use crate::client::{interrupt, offline};
use crate::render::table::{Align, Cell, layout};
use crate::render::{BOLD, DIM, RESET, clip, local_time, safe};
use crate::verbs::agents::spawn;
use crate::verbs::thread::new::{self, Agent};
use crate::verbs::thread::send::target;
use jiff::Timestamp;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::v1::{MeetingDoc, MeetingStart, MeetingTurnDoc, Reply, Request};
use muleteer_supervisor::conversation::meeting::view;
use serde_json::json;

const EXAMPLES: &str = "\
Examples:
  muleteer meeting start --topic \"The export\" --role developer --role reviewer
  muleteer meeting list
  muleteer meeting end k3f9 --wait";

const START_EXAMPLES: &str = "\
Examples:
  muleteer meeting start --topic \"The export\" --role developer --role tester
  muleteer meeting start --topic \"The export\" --role developer --role tester \\
      --chair product-analyst --max-turns 20 --budget 3 --wait
  muleteer thread send THREAD \"@tester what do you think?\"

Prints the ids of the meeting and its thread. Write to the thread to take part:
the next speaker hears you, and a role that you mention with @ROLE speaks next.
At the end a role writes the minutes: a file in .agents/meetings of the project
and a message in the thread. With --wait the exit code is 4 if every role
failed.";

const END_EXAMPLES: &str = "\
Examples:
  muleteer meeting end k3f9
  muleteer meeting end k3f9 --wait

Lets the present turn end, and asks for the minutes. With --wait it returns when
they are written, and prints their path.";

const LIST_EXAMPLES: &str = "\
Examples:
  muleteer meeting list
  muleteer meeting list --json | jq '.meetings[] | select(.state == \"talking\")'

Without a running daemon, shows the last state recorded on disk.";

const SHOW_EXAMPLES: &str = "\
Examples:
  muleteer meeting show k3f9

Shows the turns that were taken, and the path of the minutes. What was said is
in the thread: `muleteer thread show`.";

/// Hold meetings: roles and people take turns in one thread
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Start(Box<StartArgs>),
    End(EndArgs),
    List(ListArgs),
    Show(ShowArgs),
}

/// Start a meeting; prints its id and that of its thread
#[derive(Debug, clap::Args)]
#[command(after_help = START_EXAMPLES)]
pub struct StartArgs {
    /// The topic
    #[arg(long, value_name = "TEXT")]
    topic: String,
    /// A role that takes turns; may be repeated
    #[arg(long = "role", value_name = "ROLE", required = true)]
    roles: Vec<String>,
    /// Give turns by `round-robin`, by `mention`, or as the agent of this role decides
    #[arg(long, value_name = "RULE|ROLE", default_value = "round-robin")]
    chair: String,
    /// End after so many turns [default: 12]
    #[arg(long, value_name = "N")]
    max_turns: Option<u32>,
    /// End when the agents of the thread have used so many US dollars
    #[arg(long, value_name = "USD", value_parser = spawn::budget)]
    budget: Option<f64>,
    /// Take a turn away that has no answer after this time [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = spawn::seconds)]
    turn_limit: Option<u64>,
    /// Hold it in this thread [default: a new one]
    #[arg(long, value_name = "THREAD", conflicts_with_all = ["project", "model", "backend",
        "scenario", "env", "permissions"])]
    thread: Option<String>,
    /// The project: a directory, or a configured name [default: the current directory]
    #[arg(long, value_name = "DIR")]
    project: Option<String>,
    /// Wait until the meeting is over
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    agent: Agent,
}

/// End a meeting; its minutes follow
#[derive(Debug, clap::Args)]
#[command(after_help = END_EXAMPLES)]
pub struct EndArgs {
    /// The meeting or its thread: its id, or the beginning of it
    meeting: String,
    /// Wait until the minutes are written
    #[arg(long)]
    wait: bool,
}

/// List the meetings, the newest first
#[derive(Debug, clap::Args)]
#[command(after_help = LIST_EXAMPLES)]
pub struct ListArgs {}

/// Show a meeting with its turns
#[derive(Debug, clap::Args)]
#[command(after_help = SHOW_EXAMPLES)]
pub struct ShowArgs {
    /// The meeting or its thread: its id, or the beginning of it
    meeting: String,
}

impl Args {
    /// Whether the verb changes something.
    pub fn acts(&self) -> bool {
        matches!(self.what, What::Start(_) | What::End(_))
    }
}

pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    match &args.what {
        What::Start(args) => start(args, context).await,
        What::End(args) => end(args, context).await,
        What::List(_) => list(context).await,
        What::Show(args) => show(args, context).await,
    }
}

async fn start(args: &StartArgs, context: &Context) -> Result<Exit, Failure> {
    let thread = match &args.thread {
        Some(thread) => target(context, thread).await?,
        None => open(args, context).await?,
    };
    let asked = MeetingStart {
        meeting: spawn::new_id()?,
        thread,
        topic: args.topic.clone(),
        roles: args.roles.clone(),
        chair: args.chair.clone(),
        max_turns: args.max_turns,
        budget_usd: args.budget,
        turn_limit_s: args.turn_limit,
    };
    // A client that loses its daemon asks the next one again, with the same id.
    let meeting = one(context.ask(Request::MeetingStart(Box::new(asked))).await?)?;
    if args.wait {
        return over(context, &meeting.id).await;
    }
    if context.out.json {
        context.out.document(&meeting)?;
    } else {
        context.out.line(format!("{} in thread {}", meeting.id, meeting.thread_id))?;
    }
    Ok(Exit::Done)
}

/// Opens the thread of a meeting. The chair answers in it, or the first role.
async fn open(args: &StartArgs, context: &Context) -> Result<String, Failure> {
    let chair = Some(&args.chair).filter(|chair| !["round-robin", "mention"].contains(&&***chair));
    let Agent { model, backend, scenario, env, permissions } = &args.agent;
    let thread = new::Args {
        role: chair.or(args.roles.first()).cloned(),
        project: args.project.clone(),
        title: muleteer_model::event::title(None, &args.topic),
        agent: Agent {
            model: model.clone(),
            backend: backend.clone(),
            scenario: scenario.clone(),
            env: env.clone(),
            permissions: permissions.clone(),
        },
    };
    new::open_within(&thread, args.budget, context).await
}

async fn end(args: &EndArgs, context: &Context) -> Result<Exit, Failure> {
    let id = known(context, &args.meeting).await?;
    let meeting = one(context.ask(Request::MeetingEnd { meeting: id }).await?)?;
    if args.wait {
        return over(context, &meeting.id).await;
    }
    if context.out.json {
        context.out.document(&meeting)?;
    } else {
        context.out.note(format!("{}: {}", meeting.id, state(&meeting)));
    }
    Ok(Exit::Done)
}

/// Resolves the id of a meeting. Without a running daemon it is looked up on disk first, so that a
/// mistyped id does not start a daemon.
async fn known(context: &Context, id: &str) -> Result<String, Failure> {
    if context.is_agent || context.connect_if_running().await?.is_some() {
        return Ok(id.to_string());
    }
    let fleet = offline::fleet(context)?;
    Ok(view::find(&fleet, id)?.1.id().to_string())
}

/// Waits until a meeting is over, and prints the path of its minutes.
async fn over(context: &Context, id: &str) -> Result<Exit, Failure> {
    let message = "stopped waiting for the end of the meeting, which goes on";
    let left = Failure::new(ErrorCode::Cancelled, message)
        .hint(format!("see it later with `muleteer meeting show {id}`"));
    interrupt::or_left(context, left, async {
        let meeting = one(context.ask(Request::MeetingWait { meeting: id.into() }).await?)?;
        if context.out.json {
            Failure::unless_closed(context.out.document(&meeting))?;
        } else {
            context.out.note(format!("{}: {}", meeting.id, state(&meeting)));
            if let Some(place) = &meeting.minutes {
                Failure::unless_closed(context.out.line(place))?;
            }
        }
        let failed = meeting.reason.as_deref() == Some("every_role_failed");
        Ok(if failed { Exit::Failed } else { Exit::Done })
    })
    .await
}

async fn list(context: &Context) -> Result<Exit, Failure> {
    let meetings = fetch(context, None).await?;
    if context.out.json {
        context.out.document(&json!({ "meetings": meetings }))?;
    } else if meetings.is_empty() {
        context.out.line("no meetings")?;
    } else {
        context.out.text(table(&meetings))?;
    }
    Ok(Exit::Done)
}

async fn show(args: &ShowArgs, context: &Context) -> Result<Exit, Failure> {
    let found = fetch(context, Some(&args.meeting)).await?;
    let Some(meeting) = found.first() else { return Ok(Exit::Failed) };
    if context.out.json {
        context.out.document(meeting)?;
    } else {
        context.out.text(page(meeting))?;
    }
    Ok(Exit::Done)
}

/// Gets all meetings or one: from the daemon if one runs, else from disk.
async fn fetch(context: &Context, id: Option<&str>) -> Result<Vec<MeetingDoc>, Failure> {
    if let Some(mut client) = context.connect_if_running().await? {
        match client.call(Request::Meetings { meeting: id.map(String::from) }).await {
            Ok(Reply::Meetings { meetings }) => return Ok(meetings),
            Ok(other) => return Err(unexpected(&other)),
            // The daemon died between the handshake and the answer.
            Err(error) if error.is_lost() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let fleet = offline::fleet(context)?;
    let meetings = match id {
        Some(id) => vec![view::in_full(&view::find(&fleet, id)?.1)],
        None => view::meetings(&fleet),
    };
    offline::say_so(context);
    Ok(meetings)
}

fn one(reply: Reply) -> Result<MeetingDoc, Failure> {
    match reply {
        Reply::Meetings { mut meetings } if meetings.len() == 1 => Ok(meetings.remove(0)),
        other => Err(unexpected(&other)),
    }
}

/// Returns the state, with the reason of an end or the role whose turn it is.
fn state(meeting: &MeetingDoc) -> String {
    let detail = meeting.reason.as_ref().or(meeting.speaker.as_ref());
    let detail = detail.map(|detail| format!(" ({detail})")).unwrap_or_default();
    format!("{}{detail}", meeting.state)
}

fn table(meetings: &[MeetingDoc]) -> String {
    let heads = ["MEETING", "THREAD", "STATE", "ROLES", "TURNS", "COST", "STARTED", "TOPIC"]
        .map(|head| (head, if head == "TOPIC" { Align::Main(24) } else { Align::Left }));
    let rows: Vec<Vec<Cell>> = meetings
        .iter()
        .map(|meeting| {
            let count = meeting.turn_count.map_or("-".into(), |count| count.to_string());
            vec![
                Cell::colored(&meeting.id, BOLD),
                meeting.thread_id.as_str().into(),
                state(meeting).into(),
                clip(&meeting.roles.join(","), 40).into(),
                format!("{count}/{}", meeting.max_turns).into(),
                format!("${:.2}", meeting.spent_usd).into(),
                time(&meeting.started).into(),
                clip(&meeting.topic, 60).into(),
            ]
        })
        .collect();
    layout(&heads, &rows, &["STARTED", "COST", "ROLES"])
}

fn page(meeting: &MeetingDoc) -> String {
    let mut text = format!(
        "{BOLD}{}{RESET} {} · {} · thread {}\nroles {} · chair {} · at most {} turns · ${:.2}\n",
        meeting.id,
        safe(&meeting.topic),
        state(meeting),
        meeting.thread_id,
        meeting.roles.join(", "),
        meeting.chair,
        meeting.max_turns,
        meeting.spent_usd,
    );
    if !meeting.left.is_empty() {
        text.push_str(&format!("takes no more turns: {}\n", meeting.left.join(", ")));
    }
    for turn in meeting.turns.iter().flatten() {
        text.push_str(&format!("{BOLD}{}{RESET} {}\n", turn.number, line(turn)));
    }
    if let Some(place) = &meeting.minutes {
        text.push_str(&format!("minutes: {}\n", safe(place)));
    }
    text
}

fn line(turn: &MeetingTurnDoc) -> String {
    let kind = match turn.kind.as_str() {
        "speak" => String::new(),
        kind => format!(" ({kind})"),
    };
    let what = match &turn.reason {
        Some(reason) => format!("{DIM}lost: {}{RESET}", safe(reason)),
        None => safe(&clip(&turn.text, 100)).to_string(),
    };
    format!("{}{kind}: {what}", turn.role)
}

fn time(text: &str) -> String {
    text.parse::<Timestamp>().map_or_else(|_| text.to_string(), local_time)
}
