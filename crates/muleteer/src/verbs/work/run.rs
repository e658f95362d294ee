//! `run`: from a written spec to judged, merged code. The daemon hosts the run; this client follows
//! it.

use crate::cli::context::{Context, absolute};
use crate::cli::exit::{self, Exit};
use crate::cli::failure::{Failure, chain};
use crate::cli::settings;
use crate::client::connect::unexpected;
use crate::client::env_pass;
use crate::client::interrupt;
use crate::client::live_run::{LiveRun, TICK};
use crate::client::offline;
use crate::client::run_files::{Runs, new_id, utf8};
use crate::render::{page, run as show, safe};
use crate::verbs::agents::spawn;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use muleteer_model::config::trust::is_below;
use muleteer_model::event::Record;
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::checkpoint::{self, document, document_at};
use muleteer_model::spec_run::event::{Phase, RunStatus};
use muleteer_model::spec_run::report::history::Chronicle;
use muleteer_model::spec_run::report::status::Standing;
use muleteer_process::clock::awake;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::client::{Client, ClientError, Next};
use muleteer_protocol::v1::{self, Item, Reply, Request};
use muleteer_store::atomic::write_atomic;
use muleteer_supervisor::signals::AsyncSignals;
use muleteer_supervisor::spec_run::is_hosted;
use rustix::process::Signal;
use serde_json::json;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limits for displaying acceptance criteria: three files of a few pages are usual.
const CRITERIA_FILES: usize = 20;
const CRITERIA_LIMIT: u64 = 64 * 1024;

/// How long a client that only follows waits for something else to start the next daemon.
const NEXT_DAEMON: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  muleteer run --spec plan.md                     freeze, plan, implement, judge, make a branch
  muleteer run --spec plan.md --dry-run           only freeze and plan: shows the beads in order
  muleteer run --status                           the state of the newest run, from any terminal
  muleteer run --status --follow                  the same, live; Ctrl-C does not stop the run
  muleteer run --resume                           continue it after a stop, a crash or a review
  muleteer run --spec plan.md --backend subprocess --command ./agent.sh

Ctrl-C stops the run and its agents; --resume continues it. With --detach the daemon continues it \
until `muleteer run stop`.
Exit codes: 0 the judge passed it, 2 bad input, 3 locked or something is missing, 4 failed, 5 the \
judge found something in every iteration there may be.";

const STOP: &str = "\
Examples:
  muleteer run stop                               the only running run of this repository
  muleteer run stop a1b2c3

Stops its agents, like Ctrl-C while following the run. `muleteer run --resume` continues it.";

const REPORT: &str = "\
Examples:
  muleteer run report run-2026-02-12-a1b2c3
  muleteer run report --html run.html             one file for a browser

The page is made from the run's files in any state of the run, and loads nothing from the \
network. Before the run has ended it omits the acceptance criteria, as the run's agents must not \
read them.";

/// Run a spec: agents plan, implement and judge it until it is merged
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    verb: Option<Sub>,
    /// The spec: a markdown file [default: run.spec of the configuration]
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Resume a run [default: the newest]
    #[arg(long, value_name = "RUN", num_args = 0..=1, conflicts_with = "spec")]
    resume: Option<Option<String>>,
    /// Show the state of a run [default: the newest]
    #[arg(long, value_name = "RUN", num_args = 0..=1, conflicts_with_all = ["spec", "resume"])]
    status: Option<Option<String>>,
    /// With --status: follow the run until it pauses or ends; exits with the run's exit code
    #[arg(short, long, requires = "status")]
    follow: bool,
    /// Stop after freezing and decomposing the spec; continue with `--resume`
    #[arg(long)]
    dry_run: bool,
    /// Print the acceptance criteria and wait for approval before planning; approve with
    /// `--resume --yes`
    #[arg(long)]
    preview_acceptance: bool,
    /// The most coding agents at the same time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    concurrency: Option<u32>,
    /// The agents' backend: auto, claude-code, codex, acp, acp:NAME, subprocess, rehearsal
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// The command of the `subprocess` backend, for `sh -c`; a JSON list runs without a shell
    #[arg(long, value_name = "CMD", value_parser = spawn::command_line)]
    command: Option<String>,
    /// The scenario of the `rehearsal` backend [default: MULETEER_SCENARIO]
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// The model of the agents
    #[arg(long, value_parser = spawn::model_name)]
    model: Option<String>,
    /// The branch that the agents push to; `auto` creates one for the run
    #[arg(long, value_name = "BRANCH", conflicts_with = "resume")]
    target: Option<String>,
    /// Use the existing beads with this label instead of decomposing the spec
    #[arg(long, value_name = "LABEL", conflicts_with = "resume")]
    bead_label: Option<String>,
    /// Print the run's id and return; the daemon continues the run
    #[arg(long)]
    detach: bool,
    /// Run the judge again on a run that has ended
    #[arg(long, value_name = "RUN", conflicts_with_all = ["spec", "resume", "status"])]
    judge_only: Option<String>,
    /// With --resume: continue from this phase
    #[arg(
        long,
        value_name = "PHASE",
        requires = "resume",
        value_parser = ["implement", "maintain", "judge"]
    )]
    from_phase: Option<String>,
    /// Stop when the run has cost this much
    #[arg(long, value_name = "USD", value_parser = spawn::budget)]
    budget_usd: Option<f64>,
    /// Stop after this running time: 2h, 90m, bare seconds
    #[arg(long, value_name = "TIME", value_parser = spawn::seconds)]
    max_runtime: Option<u64>,
    /// Approve the acceptance criteria or beads that wait for approval
    #[arg(long)]
    yes: bool,
    /// Set an environment variable for the agents, regardless of `env.pass`
    #[arg(long, value_name = "K=V", value_parser = spawn::variable)]
    env: Vec<(String, String)>,
}

#[derive(Debug, clap::Subcommand)]
enum Sub {
    /// Show the work and the result of a run
    #[command(after_help = REPORT)]
    Report {
        /// The run [default: the newest]
        run: Option<String>,
        /// Write an HTML page with graph, timeline, cost and findings; `-` is stdout
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
    },
    /// Stop a running run; `muleteer run --resume` continues it
    #[command(after_help = STOP)]
    Stop {
        /// The run [default: the only one that is running]
        run: Option<String>,
    },
}

impl Args {
    /// Returns whether the verb starts or continues work, and does not only show it.
    pub fn acts(&self) -> bool {
        self.verb.is_none() && self.status.is_none()
    }
}

/// Executes the verb.
///
/// # Errors
/// Bad input before anything was created, or the error that ended the run.
pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let runs = Runs::here()?;
    match &args.verb {
        Some(Sub::Report { run, html }) => {
            let id = runs.resolve(run.as_deref())?;
            return report(context, &runs, &id, html.as_deref());
        }
        Some(Sub::Stop { run }) => return halt(context, &runs, run.as_deref()).await,
        None => {}
    }
    if let Some(id) = &args.status {
        let id = runs.resolve(id.as_deref())?;
        let run = runs.read(&id)?;
        if args.follow && attend(context, &runs, &run).await? {
            return conclude(context, &runs, &runs.read(&id)?);
        }
        match context.out.json {
            true => context.out.document(&document_at(&run, &standing(context, &runs, &run)))?,
            false => context.out.text(show::status(
                &run,
                &standing(context, &runs, &run),
                Timestamp::now(),
            ))?,
        }
        // 0 would mean that the judge has passed the run.
        return Ok(if args.follow { Exit::Interrupted } else { Exit::Done });
    }
    let request = request(args, context, &runs)?;
    let run_id = request.run_id.clone();
    let known = if request.resume { Some(runs.chronicle(&run_id)?) } else { None };
    up(context, &request).await?;
    if args.detach {
        match context.out.json {
            true => context.out.document(&json!({ "run_id": run_id }))?,
            false => context.out.line(&run_id)?,
        }
        return Ok(Exit::Done);
    }
    context.out.note(format!("run {run_id} ({})", runs.folder().join(&run_id).display()));
    follow(context, &runs, &request, known).await?;
    let run = runs.read(&run_id)?;
    conclude(context, &runs, &run)
}

fn report(context: &Context, runs: &Runs, id: &str, html: Option<&Path>) -> Result<Exit, Failure> {
    let Some(file) = html else {
        let run = runs.read(id)?;
        match context.out.json {
            true => {
                context.out.document(&checkpoint::report(&run, &standing(context, runs, &run)))?
            }
            false => context.out.text(show::report(&run, &standing(context, runs, &run)))?,
        }
        return Ok(Exit::Done);
    };
    let chronicle = runs.chronicle(id)?;
    let results = context.paths.state_dir.join("sealed").join(id).join("judge-results");
    let setting = page::Setting {
        zone: TimeZone::system(),
        judge_results: results.is_dir().then(|| results.display().to_string()),
    };
    let text = page::page(&chronicle, &setting);
    if file == Path::new("-") {
        return context.out.bytes(text.as_bytes()).map(|()| Exit::Done);
    }
    // A pipe or a device is written to, not replaced.
    let special = std::fs::metadata(file).is_ok_and(|meta| !meta.is_file());
    let written = if special {
        std::fs::write(file, text)
            .map_err(|error| format!("cannot write {}: {error}", file.display()))
    } else {
        write_atomic(file, text.as_bytes(), 0o600).map_err(|error| chain(&error))
    };
    written.map_err(|error| Failure::new(ErrorCode::Io, error).file(file))?;
    match context.out.json {
        true => context.out.document(&json!({ "run_id": id, "html": absolute(file) }))?,
        false => context.out.line(file.display().to_string())?,
    }
    Ok(Exit::Done)
}

/// Stops a run that nobody has to be following, and shows its state afterwards. A resting run is
/// left alone.
async fn halt(context: &Context, runs: &Runs, given: Option<&str>) -> Result<Exit, Failure> {
    let id = match given {
        Some(_) => runs.resolve(given)?,
        None => runs.under_way()?,
    };
    if runs.read(&id)?.is_live() {
        stop(context, &id).await?;
    }
    let run = runs.read(&id)?;
    let standing = standing(context, runs, &run);
    match context.out.json {
        true => context.out.document(&document_at(&run, &standing))?,
        false => context.out.text(show::status(&run, &standing, Timestamp::now()))?,
    }
    Ok(Exit::Done)
}

/// A starting daemon has taken the locks of its runs within this time.
pub(super) const BOOTING: Duration = Duration::from_secs(2);

/// Returns whether a daemon hosts a run that was live just now. The run's own lock decides, because
/// the daemon of the state directory may be unable to host this run. The function waits until
/// `deadline` for a daemon that is starting.
pub(super) fn is_carried_on(context: &Context, runs: &Runs, id: &str, deadline: Duration) -> bool {
    let folder = runs.folder().join(id);
    loop {
        let is_held = context.is_held();
        // A run that has ended since then was hosted until its end.
        if is_hosted(&folder) || runs.read(id).is_ok_and(|now| !now.is_live()) {
            return true;
        }
        if !is_held || awake() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Determines the state of the run from files alone, so that a hanging daemon cannot hide it.
fn standing(context: &Context, runs: &Runs, run: &Run) -> Standing {
    let hosted = run.is_live() && is_carried_on(context, runs, run.id(), awake() + BOOTING);
    // Without the fleet nothing is known about what the agents wait for.
    let fleet = run.is_live().then(|| offline::fleet(context).ok()).flatten();
    let standing = Standing::of(run, fleet.as_ref(), hosted, Timestamp::now());
    standing.with_obstacle(run, obstacle(context, run, hosted))
}

/// Returns why a running daemon does not host this run, as far as files tell.
pub(super) fn obstacle(context: &Context, run: &Run, hosted: bool) -> Option<String> {
    let is_due = run.is_live() && !hosted && context.is_held();
    is_due.then(|| muleteer_supervisor::spec_run::obstacle(&context.paths, run.id()))
}

async fn up(context: &Context, request: &v1::Run) -> Result<(), Failure> {
    match context.ask(Request::Run(Box::new(request.clone()))).await? {
        Reply::RunUp { .. } => Ok(()),
        other => Err(unexpected(&other)),
    }
}

/// Returns whether symbolic links lead from a path of the repository to a file outside it.
fn leads_out(name: &str, repo: &Path) -> bool {
    let real = repo.join(name).canonicalize().ok().zip(repo.canonicalize().ok());
    is_below(name) && real.is_some_and(|(path, repo)| !path.starts_with(repo))
}

fn request(args: &Args, context: &Context, runs: &Runs) -> Result<v1::Run, Failure> {
    let config = settings::config(context, Some(&runs.repo))?;
    settings::warn(context, config.ignored(), "");
    let resumed = match (&args.resume, &args.judge_only) {
        (Some(id), _) => Some(runs.resolve(id.as_deref())?),
        (None, Some(id)) => Some(runs.resolve(Some(id))?),
        (None, None) => None,
    };
    let spec = match (&args.spec, &config.run.spec) {
        _ if resumed.is_some() => None,
        (Some(path), _) => Some(absolute(path)),
        (None, Some(path)) => Some(runs.repo.join(path)),
        (None, None) => {
            return Err(Failure::new(ErrorCode::SpecNotFound, "no spec given").hint(
                "give one with `muleteer run --spec plan.md`, or set run.spec in \
                       .muleteer/config.yaml",
            ));
        }
    };
    if let (None, Some(name), Some(path)) = (&args.spec, &config.run.spec, &spec)
        && !config.follows_links("run.spec")
        && leads_out(name, &runs.repo)
    {
        // The spec's text becomes part of prompts, and a clone may contain a link to any file.
        return Err(Failure::new(
            ErrorCode::SpecNotFound,
            format!("run.spec `{name}` is a link to a file outside the repository"),
        )
        .hint("name the spec with --spec, or run `muleteer trust` if its own file names the spec")
        .file(path));
    }
    if let Some(path) = spec.as_ref().filter(|path| !path.is_file()) {
        let what = if path.exists() { "not a file" } else { "missing" };
        return Err(Failure::new(
            ErrorCode::SpecNotFound,
            format!("the spec {} is {what}", path.display()),
        )
        .file(path));
    }
    let backend = spawn::implied_backend(
        args.backend.as_deref(),
        args.command.is_some(),
        args.scenario.is_some(),
    );
    Ok(v1::Run {
        resume: resumed.is_some(),
        run_id: resumed.map_or_else(new_id, Ok)?,
        repo: utf8(&runs.repo)?,
        spec: spec.as_deref().map(utf8).transpose()?,
        target: args.target.clone(),
        bead_label: args.bead_label.clone(),
        concurrency: args.concurrency,
        backend,
        command: args.command.as_deref().map(spawn::command),
        scenario: spawn::scenario(args.scenario.as_deref())?,
        model: args.model.clone(),
        budget_usd: args.budget_usd,
        max_runtime_s: args.max_runtime,
        dry_run: args.dry_run,
        preview_acceptance: args.preview_acceptance,
        yes: args.yes,
        from_phase: args
            .judge_only
            .as_ref()
            .map(|_| "judge-only".to_string())
            .or_else(|| args.from_phase.clone()),
        env: spawn::passed_env(&config),
        extra_env: args.env.clone(),
        push_env: env_pass::for_push(spawn::vars()),
        config: context.config.as_deref().map(utf8).transpose()?,
    })
}

/// Follows the run until it rests or ends. If the daemon dies it is started again, and continues
/// the run. The first Ctrl-C stops the run, the second only stops following it.
async fn follow(
    context: &Context,
    runs: &Runs,
    request: &v1::Run,
    known: Option<Chronicle>,
) -> Result<(), Failure> {
    let mut signals = AsyncSignals::catch(&[Signal::INT, Signal::TERM]).map_err(Failure::from)?;
    let mut stopped = false;
    let run_id = &request.run_id;
    let mut next = known.as_ref().map_or(0, |known| known.run.seq + 1);
    let live = RefCell::new(LiveRun::new(context, known));
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
async fn attend(context: &Context, runs: &Runs, run: &Run) -> Result<bool, Failure> {
    if !run.is_live() {
        return Ok(true);
    }
    let mut client = attended(context, run, Duration::ZERO).await?;
    let known = runs.chronicle(run.id())?;
    let mut next = known.run.seq + 1;
    let live = RefCell::new(LiveRun::new(context, Some(known)));
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
    let mut interrupted = false;
    tokio::select! {
        ended = watching => ended?,
        waited = interrupt::wait() => { waited?; interrupted = true; }
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

async fn stop(context: &Context, run_id: &str) -> Result<(), Failure> {
    context.ask(Request::RunStop { run_id: run_id.into() }).await.map(|_| ())
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
    if !live.borrow().is_on_screen() {
        return waiting.await;
    }
    loop {
        tokio::select! {
            done = &mut waiting => return done,
            () = tokio::time::sleep(TICK) => live.borrow_mut().draw(),
        }
    }
}

/// Returns the acceptance criteria that an agent wrote for the judge, so that the user can approve
/// them.
fn criteria(run: &Run) -> String {
    let folder = run.sealed.as_ref().map(|sealed| PathBuf::from(&sealed.path)).unwrap_or_default();
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    names.sort();
    let mut text = String::new();
    for path in names.iter().filter(|path| path.is_file()).take(CRITERIA_FILES) {
        let mut said = String::new();
        // The name of an unreadable file is printed without its content.
        let _ = std::fs::File::open(path)
            .and_then(|file| file.take(CRITERIA_LIMIT).read_to_string(&mut said));
        let name =
            path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let _ = writeln!(text, "{}", safe(&name));
        for line in said.lines() {
            let _ = writeln!(text, "  {}", safe(line));
        }
    }
    let _ = writeln!(
        text,
        "\napprove them with `muleteer run --resume {} --yes`; they are in {}",
        run.id(),
        folder.display()
    );
    text
}

/// Prints the final report and returns the exit code.
fn conclude(context: &Context, runs: &Runs, run: &Run) -> Result<Exit, Failure> {
    if context.out.json {
        Failure::unless_closed(context.out.json_line(&document(run)))?;
    } else {
        if run.phase() == Phase::Freeze && run.status() == RunStatus::AwaitingApproval {
            Failure::unless_closed(context.out.text(criteria(run)))?;
        }
        let is_plan = run.settings.dry_run && run.outcome().is_none();
        let report = if is_plan {
            show::plan(run)
        } else {
            show::report(run, &standing(context, runs, run))
        };
        Failure::unless_closed(context.out.text(report))?;
    }
    Ok(match (run.status(), checkpoint::shortfall(run)) {
        (RunStatus::Completed | RunStatus::AwaitingApproval, _) => Exit::Done,
        (RunStatus::Pending, None) if run.settings.dry_run => Exit::Done,
        (_, Some(error)) => {
            if !context.out.json {
                context.out.failure(&Failure::from(v1::WireError {
                    code: error.code.clone(),
                    message: error.message,
                    run_id: Some(error.run_id),
                    ..v1::WireError::default()
                }));
            }
            exit::of_code(&error.code)
        }
        _ => Exit::Failed,
    })
}
