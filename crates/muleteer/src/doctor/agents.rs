//! Determines which agent programs the configuration needs, and what to ask them.

use crate::doctor::ask::Question;
use muleteer_backends::acp;
use muleteer_backends::{Backend, BackendError, Program};
use muleteer_model::config::{BackendChoice, Command, Config};
use std::ffi::OsStr;

/// Why the program of a backend cannot be determined.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnknownProgram {
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("no command is configured: `spawn` and `run` need --command")]
    NoCommand,
}

/// One backend with the program that it needs.
pub(super) struct Sought {
    pub(super) name: &'static str,
    /// `Err` says why the program cannot be determined.
    pub(super) question: Result<Question, UnknownProgram>,
    pub(super) get: String,
    /// The configuration keys that name this backend.
    pub(super) named_by: Vec<String>,
}

/// Lists the agent CLIs, and the backends that are used only if somebody names them. On `path` an
/// `acp` backend without an agent's name finds its program.
pub(super) fn sought(config: Option<&Config>, path: Option<&OsStr>) -> Vec<Sought> {
    // A scripted agent is Muleteer itself.
    let all = muleteer_backends::all().into_iter().filter(|backend| !backend.traits().scripted);
    all.filter_map(|backend| one(backend, config, path)).collect()
}

fn one(backend: &dyn Backend, config: Option<&Config>, path: Option<&OsStr>) -> Option<Sought> {
    let name = backend.name();
    let choice = BackendChoice::parse(name).ok()?;
    let key = format!("backends.{}", name.replace('-', "_"));
    let chosen = config.map(|config| by_choice(choice, config)).unwrap_or_default();
    let command = config.and_then(|config| command(choice, &key, config));
    let agent = config
        .filter(|_| backend.has_agents())
        .and_then(|config| config.backends.acp.agent.as_deref());
    let mut named_by = chosen;
    named_by.extend(command.as_ref().map(|(key, _)| key.clone()));
    named_by.extend(agent.map(|_| format!("{key}.agent")));
    let found = |program: &'static str, get: &str, question: fn(&str) -> Question| match &command {
        None => (Ok(question(program)), get.to_string()),
        Some((key, command)) => {
            (Ok(of_command(command, program)), format!("correct {key}, or remove it and {get}"))
        }
    };
    let is_on_path = |program: &str| muleteer_backends::find_program(program, path).is_some();
    let (question, get) = match backend.program() {
        // Nobody misses a CLI that only its name chooses.
        Program::OnPath { name, .. }
            if named_by.is_empty() && !backend.is_automatic() && !is_on_path(name) =>
        {
            return None;
        }
        Program::OnPath { name, install } => found(name, install, Question::version),
        // No key names this backend, but one of its agents can still be used if it is installed.
        Program::Other if named_by.is_empty() => {
            let known = acp::installed(path)?;
            found(known.program, known.get, agent_program)
        }
        Program::Other => match (agent, &command) {
            (Some(name), _) => match acp::to_start(name) {
                Ok(known) => found(known.program, known.get, agent_program),
                Err(error) => {
                    let hint = error.hint();
                    (Err(error.into()), hint)
                }
            },
            (None, Some((key, command))) => (Ok(of_command(command, "")), format!("correct {key}")),
            (None, None) => match acp::installed(path) {
                Some(known) => found(known.program, known.get, agent_program),
                None => (Err(BackendError::NoAgent.into()), BackendError::NoAgent.hint()),
            },
        },
        Program::Command { .. } if named_by.is_empty() => return None,
        Program::Command { .. } => match &command {
            Some((key, command)) => (Ok(of_command(command, "")), format!("correct {key}")),
            None => {
                // Users mostly pass `--command`, so a missing key is no problem.
                named_by.clear();
                (Err(UnknownProgram::NoCommand), format!("set {key}.command"))
            }
        },
    };
    Some(Sought { name, question, get, named_by })
}

/// Returns the keys that choose this backend, for dispatches and for runs.
fn by_choice(choice: BackendChoice, config: &Config) -> Vec<String> {
    let (own, run) = (config.backend, &config.run.agent);
    let keys = [
        (own == choice, "backend"),
        // A run with a command of its own needs no program on PATH.
        (run.backend == choice && run.command.is_none(), "run.agent.backend"),
    ];
    keys.into_iter().filter(|(chosen, _)| *chosen).map(|(_, key)| key.to_string()).collect()
}

/// Returns the configured command that replaces the program on PATH, and its key. The backend's
/// command takes precedence over that of runs.
fn command(choice: BackendChoice, key: &str, config: &Config) -> Option<(String, Command)> {
    let of_backend = config.backends.get(choice).and_then(|backend| backend.command);
    let run = &config.run.agent;
    let runs = if run.backend == BackendChoice::Auto { config.backend } else { run.backend };
    let of_run = || run.command.clone().filter(|_| runs == choice);
    of_backend
        .map(|command| (format!("{key}.command"), command))
        .or_else(|| Some(("run.agent.command".into(), of_run()?)))
}

/// Looks up an ACP agent without asking its version. Not every agent has `--version`: an older
/// claude-agent-acp ignores it and starts to serve.
fn agent_program(program: &str) -> Question {
    Question::whereabouts(program, "not every ACP agent can print its version")
}

/// Builds the question for a configured command. A command of several words belongs to its author,
/// so nobody knows how it would treat our `--version`. The same holds for a program that is no CLI
/// we know.
fn of_command(command: &Command, program: &str) -> Question {
    let words: Vec<String> = match command {
        // Only the shell can tell which program such a line runs.
        Command::Text(text) if !begins_with_a_program(text) => vec!["sh".into(), text.clone()],
        Command::Text(text) => text.split_whitespace().map(str::to_string).collect(),
        Command::Argv(words) => words.clone(),
    };
    let first = words.first().cloned().unwrap_or_default();
    let is_cli = |backend: &dyn Backend| match backend.program() {
        Program::OnPath { name, .. } => name == program,
        Program::Command { .. } | Program::Other => false,
    };
    let known = muleteer_backends::all().into_iter().any(is_cli);
    match words.len() {
        0 | 1 if known => Question::version(&first),
        _ => Question::whereabouts(&first, "the configuration names this command"),
    }
}

/// Returns whether a shell line begins with the name of a program, not with shell syntax or a shell
/// builtin.
fn begins_with_a_program(line: &str) -> bool {
    const THE_SHELL_S: [&str; 18] = [
        ".", "case", "cd", "command", "eval", "exec", "export", "for", "if", "set", "source",
        "time", "trap", "ulimit", "umask", "unset", "until", "while",
    ];
    let first = line.split_whitespace().next().unwrap_or_default();
    let plain = |c: char| c.is_alphanumeric() || "._/+-@:,".contains(c);
    first.chars().all(plain) && !THE_SHELL_S.contains(&first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_acp_agent_is_checked_without_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let programs = || {
            let sought = sought(None, Some(dir.path().as_os_str()));
            sought
                .into_iter()
                .map(|one| (one.name, one.question.unwrap().program))
                .collect::<Vec<_>>()
        };
        assert!(!programs().iter().any(|(name, _)| *name == "acp"), "none is installed");
        for program in ["gemini", "opencode", "codex-acp"] {
            let path = dir.path().join(program);
            std::fs::write(&path, "#!/bin/sh\n").unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&path, mode).unwrap();
            assert!(programs().contains(&("acp", program.to_string())), "{program}");
            let own = (program, program.to_string());
            assert_eq!(programs().contains(&own), program == "opencode", "{program}");
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn only_the_program_of_a_shell_line_is_looked_up() {
        let asked = |line: &str| of_command(&Command::Text(line.into()), "").program;
        for (line, wanted) in [
            ("./agent.sh --fast", "./agent.sh"),
            ("my-agent", "my-agent"),
            ("cd work && ./agent", "sh"),
            ("exec agent", "sh"),
            ("A=1 agent", "sh"),
            ("\"$HOME/agent\" x", "sh"),
            ("(agent; agent)", "sh"),
            ("~/bin/agent", "sh"),
        ] {
            assert_eq!(asked(line), wanted, "{line}");
        }
    }
}
