//! `muleteer rehearse`: the agent of the `rehearsal` backend, a process that plays a scenario
//! (docs/guides/rehearsal.md).
//!
//! A shim starts it like any agent CLI, and it shares nothing with the daemon. It reads prompts on
//! stdin and writes events to stdout, both as JSON lines. When stdin ends it finishes its turn and
//! exits.

use crate::cli;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::output::Output;
use clap::Parser;
use muleteer_backends::rehearsal::{DIR_VARIABLE, SCENARIO_VARIABLE};
use muleteer_protocol::ErrorCode;
use muleteer_rehearsal::Vars;
use muleteer_rehearsal::player::{self, DEFAULT_MODEL};
use muleteer_rehearsal::scenario::{DEFAULT, Scenario};
use serde_json::json;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Plays a scenario as an agent would.
#[derive(Debug, Parser)]
#[command(
    name = "muleteer rehearse",
    after_help = "Example:\n  echo 'write the parser' | muleteer rehearse --scenario scenario.yaml"
)]
struct Args {
    /// The scenario [default: MULETEER_SCENARIO, else a small file is written and committed]
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Go on with the session of an agent that died
    #[arg(long, value_name = "SESSION", conflicts_with = "session_id")]
    resume: Option<String>,
    /// The id of a new session
    #[arg(long, value_name = "SESSION")]
    session_id: Option<String>,
    /// The model that the agent reports
    #[arg(long)]
    model: Option<String>,
    /// Only read the scenario, and say what is wrong with it
    #[arg(long)]
    check: bool,
    /// Errors, and what `--check` found, as JSON on stdout
    #[arg(long)]
    json: bool,
    /// Be the grandchild that a scenario leaks
    #[arg(long, hide = true, value_name = "MILLISECONDS")]
    leaked: Option<u64>,
}

/// Plays a scenario; `args` are the arguments after the verb.
pub fn main(args: &[OsString]) -> ExitCode {
    let name = OsString::from("muleteer rehearse");
    let args = match Args::try_parse_from(std::iter::once(&name).chain(args)) {
        Ok(args) => args,
        Err(error) if error.use_stderr() && args.iter().any(|arg| arg == "--json") => {
            Output { json: true, ..Output::default() }.failure(&cli::usage(&error, None));
            return Exit::BadInput.into();
        }
        Err(error) => {
            // A failure to print the error must not start the scenario.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let out = Output { json: args.json, ..Output::default() };
    if let Some(life) = args.leaked {
        return player::linger(std::time::Duration::from_millis(life));
    }
    let scenario = match read(args.scenario.clone()) {
        Ok(scenario) => scenario,
        Err(failure) => {
            out.failure(&failure);
            return failure.exit().into();
        }
    };
    if args.check {
        let (turns, steps) = (
            scenario.turns.len(),
            scenario.turns.iter().map(|turn| turn.steps.len()).sum::<usize>(),
        );
        let told = match out.json {
            true => out.document(&json!({ "turns": turns, "steps": steps })),
            false => out.line(format!("ok: {turns} turns, {steps} steps")),
        };
        return match Failure::unless_closed(told) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                out.failure(&failure);
                failure.exit().into()
            }
        };
    }
    let part = player::Part {
        model: args
            .model
            .or_else(|| scenario.model.clone())
            .unwrap_or_else(|| DEFAULT_MODEL.to_string()),
        vars: Vars::from_env(
            std::env::vars_os()
                .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))),
        ),
        scenario,
        folder: std::env::var_os(DIR_VARIABLE).map(PathBuf::from),
        resume: args.resume,
        session_id: args.session_id,
    };
    player::play(part)
}

fn read(asked: Option<PathBuf>) -> Result<Scenario, Failure> {
    let named = asked.or_else(|| {
        std::env::var_os(SCENARIO_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from)
    });
    let (text, file) = match named {
        None => (DEFAULT.to_string(), "the built-in scenario".to_string()),
        Some(path) => {
            let file = path.display().to_string();
            let unreadable = |error| invalid(format!("cannot read {file}: {error}")).file(&path);
            (std::fs::read_to_string(&path).map_err(unreadable)?, file)
        }
    };
    Scenario::parse(&text, &file).map_err(|fault| {
        let [line, column] =
            [fault.line, fault.column].map(|number| Some(number).filter(|number| *number > 0));
        invalid(fault.message).file(&file).at(line, column).snippet(fault.snippet)
    })
}

fn invalid(message: String) -> Failure {
    Failure::new(ErrorCode::ScenarioInvalid, message)
        .hint("read the page `rehearsal` of the documentation for the format")
}
