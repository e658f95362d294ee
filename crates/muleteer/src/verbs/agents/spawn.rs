//! `spawn`: creates a dispatch.

use crate::cli::arg_error::ArgError;
use crate::cli::context::{self, Context, absolute};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::settings;
use crate::client::connect::{random, unexpected};
use crate::client::env_pass;
use crate::client::history;
use crate::render::{safe, terminal};
use crate::verbs::agents::follow;
use muleteer_backends::rehearsal::{self, SCENARIO_VARIABLE};
use muleteer_backends::subprocess;
use muleteer_model::config::{Config, ENV_PREFIX, Span, is_model_name};
use muleteer_model::event::id::DispatchId;
use muleteer_model::text::bom::unmarked;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::codec::PROMPT_LIMIT;
use muleteer_protocol::v1::{Command, Reply, Request, Spawn};
use serde_json::json;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  muleteer spawn developer . \"Fix the flaky test in tests/net.rs\"
  muleteer spawn tester web --prompt-file plan.md --wait --json
  git diff HEAD~1 | muleteer spawn reviewer . --feature review-42
  muleteer spawn developer . \"Fix it\" --worktree --permissions ask --sandbox on
  muleteer spawn developer . \"list\" --backend subprocess --command 'cat; ls'

A single argument after the role is the project, a directory or a configured name. The task is \
then read from --prompt-file or stdin. Prints the id of the dispatch, and on stderr what the agent \
may do and where. By default it may do everything without asking, and works on the checked-out \
branch of the project: --permissions, --sandbox and --worktree limit it. Exit codes with --wait: 0 \
success; 4 partial, failed, blocked or stalled; 6 killed; 130 Ctrl-C. --follow has the same \
codes, but 0 at Ctrl-C. Ctrl-C does not stop the agent.";

/// Start an agent on a task; prints the id of the dispatch
#[derive(Debug, Default, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The role of the agent (`muleteer roles` lists them)
    role: String,
    /// The project: a directory, or a configured name [default: the current directory]
    project: Option<String>,
    /// The task [default: read from --prompt-file, or stdin]
    #[arg(conflicts_with = "prompt_file")]
    prompt: Option<String>,
    /// Read the prompt from a file (`-` is stdin)
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// The model [default: the role's, its category's, the configured default]
    #[arg(long, value_parser = model_name)]
    model: Option<String>,
    /// The agent's backend: auto, claude-code, codex, acp, acp:NAME, opencode, pi, subprocess,
    /// rehearsal
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// The command of the `subprocess` backend, for `sh -c`; a JSON list runs without a shell
    #[arg(long, value_name = "CMD", value_parser = command_line)]
    command: Option<String>,
    /// The scenario of the `rehearsal` backend [default: MULETEER_SCENARIO]
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// Stop the agent when it has cost this much
    #[arg(long, value_name = "USD", value_parser = budget)]
    budget_usd: Option<f64>,
    /// Stop the agent after this many turns of the model
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_turns: Option<u32>,
    /// Stop the agent after this time: 15m, 300s or bare seconds; time asleep does not count
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    timeout: Option<u64>,
    /// Set an environment variable for the agent, regardless of `env.pass`
    #[arg(long, value_name = "K=V", value_parser = variable)]
    env: Vec<(String, String)>,
    /// Give the agent a private clone; its commits come back as the branch `muleteer/<id>`
    #[arg(long)]
    worktree: bool,
    /// Set the decision where no permission rule matches [default: as configured, or allow]
    #[arg(long, value_name = "MODE", value_parser = ["allow", "ask", "deny"])]
    permissions: Option<String>,
    /// Let the agent write only to its directory or clone, HOME and TMPDIR [default: off]
    #[arg(long, value_name = "SWITCH", value_parser = ["on", "off"])]
    sandbox: Option<String>,
    /// The title of the task in tables and journals [default: the first line of the prompt]
    #[arg(long, value_name = "TEXT", value_parser = title)]
    title: Option<String>,
    /// The folder of the journal in `.agents/journals` [default: the id of the dispatch]
    #[arg(long, value_name = "NAME")]
    feature: Option<String>,
    /// Wait until the dispatch has ended; the exit code is its outcome
    #[arg(long)]
    wait: bool,
    /// Print events until the dispatch has ended; the exit code is its outcome
    #[arg(long)]
    follow: bool,
}

/// Creates a dispatch and optionally waits for it.
///
/// # Errors
/// Bad input before anything was created, or the daemon's error.
pub async fn run(args: &Args, context: &Context) -> Result<Exit, Failure> {
    let spawn = request(args, context)?;
    let id = spawn.id.clone();
    let reply = context.ask(Request::Spawn(Box::new(spawn))).await?;
    let Reply::Spawned { dispatch_id, warnings, access } = reply else {
        return Err(unexpected(&reply).dispatch(&id));
    };
    if access.is_none() && (args.permissions.is_some() || args.wants_sandbox()) {
        return Err(unlimited(context, dispatch_id).await);
    }
    if let Some(access) = &access {
        context.out.note(format!("the agent {}", safe(access)));
    }
    print_warnings(context, &warnings);
    let mut made = json!({ "dispatch_id": dispatch_id });
    if let Some(access) = &access {
        made["access"] = json!(access);
    }
    if !warnings.is_empty() {
        made["warnings"] = json!(warnings);
    }
    let out = &context.out;
    match (out.json, args.follow, args.wait) {
        (true, false, true) => {}
        (true, true, _) => out.json_line(&made)?,
        (true, false, false) => out.document(&made)?,
        (false, ..) => out.line(&dispatch_id)?,
    }
    let from = history::last_seqs(context, 1000);
    follow::until_asked(context, &dispatch_id, from, (args.wait, args.follow)).await
}

/// Prints the warnings of a daemon's answer.
pub fn print_warnings(context: &Context, warnings: &[String]) {
    for warning in warnings {
        context.out.note(format!("warning: {}", safe(warning)));
    }
}

/// Kills an agent that an older daemon started without the limits that were asked for.
async fn unlimited(context: &Context, id: String) -> Failure {
    let reason = Some("the daemon does not know --permissions and --sandbox".to_string());
    let killed = context.ask(Request::Kill { id: id.clone(), reason }).await;
    let end = if killed.is_ok() { "was killed" } else { "could not be killed" };
    let message = format!(
        "the daemon is older than this client and ignored --permissions and --sandbox: the agent \
         {end}"
    );
    Failure::new(ErrorCode::Unsupported, message)
        .hint("restart the daemon (`muleteer daemon stop`), then try again")
        .dispatch(&id)
}

impl Args {
    fn wants_sandbox(&self) -> bool {
        self.sandbox.as_deref() == Some("on")
    }
}

/// Returns the prompt's file as the journal names it: relative to the project, if it is in there.
fn spec(file: Option<&Path>, project: &Path) -> Option<String> {
    let path = file.filter(|path| *path != Path::new("-") && path.is_file()).map(absolute)?;
    let real = path.canonicalize().unwrap_or(path);
    let shown = real.strip_prefix(project).unwrap_or(&real);
    Some(shown.display().to_string())
}

fn request(args: &Args, context: &Context) -> Result<Spawn, Failure> {
    let project = project(args, context)?;
    let config = settings::config(context, Some(&project))?;
    let prompt = prompt(args)?;
    let backend =
        implied_backend(args.backend.as_deref(), args.command.is_some(), args.scenario.is_some());
    let spec = spec(args.prompt_file.as_deref(), &project);
    Ok(Spawn {
        id: new_id()?,
        role: args.role.clone(),
        project: utf8(project)?,
        prompt,
        feature: args.feature.clone(),
        model: args.model.clone(),
        backend,
        command: args.command.as_deref().map(command),
        scenario: scenario(args.scenario.as_deref())?,
        budget_usd: args.budget_usd,
        max_turns: args.max_turns,
        timeout_s: args.timeout,
        worktree: args.worktree,
        env: passed_env(&config),
        extra_env: args.env.clone(),
        config: context.config.clone().map(utf8).transpose()?,
        title: args.title.clone(),
        spec,
        permissions: args.permissions.clone(),
        sandbox: args.wants_sandbox(),
    })
}

/// Returns the backend that the command line chooses. `MULETEER_SCENARIO` alone must not turn a
/// real agent into a rehearsal.
pub fn implied_backend(said: Option<&str>, command: bool, scenario: bool) -> Option<String> {
    let implied = [(command, subprocess::NAME), (scenario, rehearsal::NAME)];
    let implied = || implied.into_iter().find(|(given, _)| *given).map(|(_, name)| name);
    said.or_else(implied).map(String::from)
}

/// Returns the scenario: `--scenario`, else `MULETEER_SCENARIO`.
pub fn scenario(said: Option<&Path>) -> Result<Option<String>, Failure> {
    let variable =
        || std::env::var_os(SCENARIO_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    said.map(Path::to_path_buf)
        .or_else(variable)
        .as_deref()
        .map(absolute)
        .map(utf8)
        .transpose()
}

fn project(args: &Args, context: &Context) -> Result<PathBuf, Failure> {
    let hint = || match &args.prompt {
        None => format!("name the project before the prompt: muleteer spawn {} . \"…\"", args.role),
        Some(_) => "run `muleteer config show projects` to list the configured projects".into(),
    };
    project_path(args.project.as_deref(), context, hint)
}

/// Returns the directory of a project: of a path, or of a configured name.
///
/// # Errors
/// `E_PROJECT_NOT_FOUND`, with the hint.
pub fn project_path(
    word: Option<&str>,
    context: &Context,
    hint: impl FnOnce() -> String,
) -> Result<PathBuf, Failure> {
    let here = || context::here(ErrorCode::ProjectNotFound);
    let Some(word) = word else { return here() };
    // The path is canonical, so that the daemon and the agent use the same directory regardless of
    // links.
    let directory =
        |path: &Path| path.is_dir().then(|| path.canonicalize().unwrap_or_else(|_| absolute(path)));
    if let Some(path) = directory(Path::new(word)) {
        return Ok(path);
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let config = settings::config(context, Some(&here()?))?;
    if let Some(path) = config.project_path(word, home.as_deref()) {
        return directory(&path).ok_or_else(|| {
            let message = format!(
                "the project `{word}` is configured as {}, which is not a directory",
                path.display()
            );
            Failure::new(ErrorCode::ProjectNotFound, message)
        });
    }
    let message =
        format!("`{}` is neither a directory nor the name of a configured project", shorten(word));
    Err(Failure::new(ErrorCode::ProjectNotFound, message).hint(hint()))
}

fn prompt(args: &Args) -> Result<String, Failure> {
    let text = match (&args.prompt, &args.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) if path != Path::new("-") => {
            let unreadable = |error| {
                Failure::new(ErrorCode::NotFound, format!("cannot read the prompt: {error}"))
                    .file(path)
            };
            let file = std::fs::File::open(path).map_err(unreadable)?;
            if file.metadata().is_ok_and(|meta| meta.is_dir()) {
                return Err(Failure::new(ErrorCode::NotFound, "the prompt file is a directory")
                    .file(path)
                    .hint("name a file"));
            }
            read_prompt(file).map_err(|failure| failure.file(path))?
        }
        (None, file) => {
            if file.is_none() && terminal::is_typed() {
                let failure = Failure::new(ErrorCode::PromptMissing, "the prompt is missing");
                return Err(failure.hint(format!(
                    "give it as the last argument (muleteer spawn {} . \"…\"), with --prompt-file \
                     FILE, or on stdin",
                    args.role
                )));
            }
            read_prompt(io::stdin().lock())?
        }
    };
    if text.trim().is_empty() {
        return Err(Failure::new(ErrorCode::PromptMissing, "the prompt is empty"));
    }
    check_prompt(text)
}

/// Reads a prompt, but no more than [`check_prompt`] needs to reject it.
///
/// # Errors
/// `E_IO`; `E_BAD_INPUT` when the input is not UTF-8.
pub fn read_prompt(source: impl Read) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    source
        .take(PROMPT_LIMIT as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Failure::new(ErrorCode::Io, format!("cannot read the prompt: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|error| {
        // The limit may have split a character.
        if error.as_bytes().len() > PROMPT_LIMIT && error.utf8_error().error_len().is_none() {
            return too_long();
        }
        let at = error.utf8_error().valid_up_to();
        Failure::new(
            ErrorCode::BadInput,
            format!("the prompt is not valid UTF-8: byte {} is invalid", at + 1),
        )
        .hint("convert it (`iconv -f latin1 -t utf-8`), or name the file in the prompt")
    })?;
    Ok(unmarked(&text).to_string())
}

/// Rejects a prompt that is too long; the daemon would close the connection.
pub fn check_prompt(text: String) -> Result<String, Failure> {
    if text.len() > PROMPT_LIMIT {
        return Err(too_long());
    }
    Ok(text)
}

fn too_long() -> Failure {
    let message = format!("the prompt is longer than {} MiB", PROMPT_LIMIT >> 20);
    Failure::new(ErrorCode::PromptTooLong, message)
        .hint("put the text in a file, and name the file in the prompt")
}

pub fn passed_env(config: &Config) -> Vec<(String, String)> {
    let mut env = env_pass::filter(vars(), &config.env.pass);
    if !env.iter().any(|(name, _)| name == "TRACESTATE") {
        env.extend(env_pass::trace_state(vars()));
    }
    // Variables of the configuration layer are merged when the agent is created; the agent does not
    // get them.
    env.extend(vars().filter(|(name, _)| name.starts_with(ENV_PREFIX)));
    env
}

/// Returns the environment variables that are UTF-8.
pub fn vars() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// Returns a new id. The client chooses it, so that the daemon recognises a request that is resent
/// after a lost answer.
pub fn new_id() -> Result<String, Failure> {
    Ok(DispatchId::from_random(random()?).to_string())
}

/// Checks a command line, so that an unusable one is rejected before anything is created.
pub fn command_line(text: &str) -> Result<String, ArgError> {
    let nothing = match serde_json::from_str::<Vec<serde_json::Value>>(text) {
        Ok(words) => {
            if let Some(other) = words.iter().find(|word| !word.is_string()) {
                return Err(ArgError::NotAWord(other.clone()));
            }
            words
                .first()
                .and_then(|program| program.as_str())
                .is_none_or(|program| program.trim().is_empty())
        }
        Err(_) => text.trim().is_empty(),
    };
    if nothing { Err(ArgError::NoCommand) } else { Ok(text.into()) }
}

/// Parses a command: `["a", "b"]` is a list of words, anything else is a line for the shell.
pub fn command(text: &str) -> Command {
    match serde_json::from_str::<Vec<String>>(text) {
        Ok(words) if !words.is_empty() => Command::Argv(words),
        _ => Command::Shell(text.to_string()),
    }
}

pub fn utf8(path: PathBuf) -> Result<String, Failure> {
    path.into_os_string().into_string().map_err(|path| {
        Failure::new(
            ErrorCode::Usage,
            format!("the path {} is not UTF-8", Path::new(&path).display()),
        )
    })
}

fn shorten(word: &str) -> String {
    let line = word.lines().next().unwrap_or_default();
    muleteer_model::agent::event::cut(line, 60)
}

pub fn budget(text: &str) -> Result<f64, ArgError> {
    match text.trim_start_matches('$').parse::<f64>() {
        Ok(usd) if usd.is_finite() && usd > 0.0 => Ok(usd),
        _ => Err(ArgError::Budget),
    }
}

pub fn seconds(text: &str) -> Result<u64, ArgError> {
    let span: Span = text.parse()?;
    Some(span.as_secs())
        .filter(|seconds| *seconds > 0)
        .ok_or(ArgError::Wanted("at least 1 second"))
}

pub fn title(text: &str) -> Result<String, ArgError> {
    let says = text.chars().any(|c| !c.is_whitespace() && !c.is_control());
    if says { Ok(text.into()) } else { Err(ArgError::Wanted("a text that is not empty")) }
}

pub fn model_name(text: &str) -> Result<String, ArgError> {
    let name = Some(text).filter(|name| is_model_name(name));
    name.map(str::to_string).ok_or(ArgError::Wanted("the name of a model"))
}

pub fn variable(text: &str) -> Result<(String, String), ArgError> {
    match text.split_once('=') {
        Some((name, _)) if env_pass::is_ours(name) => Err(ArgError::OwnVariable(name.into())),
        Some((name, value)) if !name.is_empty() && !value.contains('\0') => {
            Ok((name.into(), value.into()))
        }
        _ => Err(ArgError::Wanted("NAME=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_a_line_for_the_shell_unless_it_is_a_list() {
        assert_eq!(command("[ -f x ] && ls"), Command::Shell("[ -f x ] && ls".into()));
        assert_eq!(command(r#"["ls","-l"]"#), Command::Argv(vec!["ls".into(), "-l".into()]));
    }

    #[test]
    fn meaningless_values_are_rejected() {
        assert!(budget("0").is_err() && budget("nan").is_err() && budget("$2.5") == Ok(2.5));
        assert!(seconds("0").is_err() && seconds("soon").is_err() && seconds("15m") == Ok(900));
        for nothing in ["", "  ", "[]", "[\"\"]", "[\"ls\", 1]", "[[\"ls\"]]"] {
            assert!(command_line(nothing).is_err(), "{nothing:?}");
        }
        assert!(command_line("[ -f x ]").is_ok() && command_line("[\"ls\"]").is_ok());
        assert!(variable("=x").is_err() && variable("X").is_err());
        assert_eq!(variable("A=b=c"), Ok(("A".into(), "b=c".into())));
        for ours in ["MULETEER_ROLE=x", "TRACEPARENT=", "MULETEER_BEAD_ID=b1"] {
            let (name, _) = ours.split_once('=').expect("a name");
            assert!(variable(ours) == Err(ArgError::OwnVariable(name.into())), "{ours}");
        }
        assert!(variable("MULETEER_SCENARIO=s.yaml").is_ok(), "which is the person's to say");
    }

    #[test]
    fn prompt_file_in_the_project_is_named_from_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let project = dir.path().canonicalize().expect("a path");
        std::fs::create_dir(project.join("docs")).expect("a directory");
        let (inside, elsewhere) = (project.join("docs/plan.md"), project.join("other.md"));
        for path in [&inside, &elsewhere] {
            std::fs::write(path, "Plan").expect("a file");
        }
        assert_eq!(spec(Some(&inside), &project).as_deref(), Some("docs/plan.md"));
        let outside = spec(Some(&elsewhere), &project.join("docs"));
        assert_eq!(outside.as_deref(), elsewhere.to_str());
        for none in [None, Some(Path::new("-")), Some(project.as_path())] {
            assert_eq!(spec(none, &project), None, "{none:?}");
        }
        assert!(title(" \n").is_err() && title("x").is_ok());
    }

    #[test]
    fn an_endless_prompt_is_read_no_further_than_the_limit() {
        let text = read_prompt(io::repeat(b'x')).expect("text");
        assert!(check_prompt(text).is_err());
    }

    #[test]
    fn a_prompt_that_is_no_text_is_bad_and_not_missing() {
        let code = |bytes: &[u8]| read_prompt(bytes).expect_err("not text").code().to_string();
        assert_eq!(code(b"gr\xfc\xdfe"), "E_BAD_INPUT");
        let long = [b"x".repeat(PROMPT_LIMIT), "\u{fc}".into()].concat();
        assert_eq!(code(&long), "E_PROMPT_TOO_LONG", "its last letter is cut in two by us");
    }
}
