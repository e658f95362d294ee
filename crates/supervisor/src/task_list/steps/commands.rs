//! The commands that the harness runs: validations, health checks and clean-ups.

use crate::task_list::steps::{Place, StepError};
use muleteer_backends::variables::is_for_agents;
use muleteer_model::task_list::Category;
use muleteer_model::task_list::Task;
use muleteer_model::task_list::log::Entry;
use muleteer_model::task_list::outcome::failure_diff;
use muleteer_process::bounded::{self, Bounds, Ran};
use muleteer_process::group::{self, Before};
use std::path::Path;
use std::time::Duration;

/// The limit of a validation's output that is saved.
const TAIL: usize = 16 * 1024;
/// The timeout of `harness-init.sh` and clean-ups, for which the list has none.
const SCRIPT_LIMIT: Duration = Duration::from_secs(30 * 60);

/// The result of a validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Passed {
        output: String,
    },
    Failed {
        code: Option<i32>,
        signal: Option<i32>,
        output: String,
    },
    TimedOut {
        seconds: u64,
        output: String,
    },
    /// The task has no command. A person must add one (`CONFIG`).
    NoCommand,
    /// The command's program does not exist (`ENV_SETUP`).
    NoProgram(String),
    /// The validation was stopped.
    Stopped,
}

/// The reason why no task can be worked on.
#[derive(Debug, PartialEq, Eq)]
pub enum Unhealthy {
    Broken(String),
    CalledOff,
}

impl Place {
    fn command(&self, program: &Path, args: &[&str]) -> std::io::Result<std::process::Command> {
        if let Some(confine) = &self.confine {
            let words = args.iter().map(|arg| (*arg).to_string());
            let argv: Vec<_> = [program.display().to_string()].into_iter().chain(words).collect();
            return confine.command(&argv, &self.dir, &self.env);
        }
        let mut command = muleteer_process::command::helper(program);
        command
            .args(args)
            .current_dir(&self.dir)
            .env_clear()
            .envs(self.env.iter().map(|(k, v)| (k, v)));
        Ok(command)
    }

    fn shell(&self, text: &str, limit: Duration, stop: &dyn Fn() -> bool) -> std::io::Result<Ran> {
        let bounds = Bounds { limit, tail: TAIL, nonce: &self.nonce };
        bounded::run(self.command(Path::new("/bin/sh"), &["-c", text])?, bounds, stop)
    }

    /// Terminates processes that a killed predecessor's validation may have left.
    pub fn sweep(&self) {
        group::sweep(&[&self.nonce], None, Before::Nobody, Duration::from_secs(10));
    }

    /// Runs a task's validation. The harness runs it itself, because an agent's claim proves
    /// nothing.
    pub fn validate(&self, task: &Task, stop: &dyn Fn() -> bool) -> Result<Verdict, StepError> {
        let Some(command) = &task.command else { return Ok(Verdict::NoCommand) };
        if let Some(program) = self.missing_program(command)? {
            return Ok(Verdict::NoProgram(program));
        }
        let seconds = task.timeout();
        let ran = self.shell(command, Duration::from_secs(seconds), stop).map_err(|error| {
            StepError::Other(format!("failed to start the validation of {}: {error}", task.id))
        })?;
        Ok(match ran {
            Ran { stopped: true, .. } => Verdict::Stopped,
            Ran { timed_out: true, output, .. } => Verdict::TimedOut { seconds, output },
            ran if ran.passed() => Verdict::Passed { output: ran.output },
            Ran { code, signal, output, .. } => Verdict::Failed { code, signal, output },
        })
    }

    /// Returns the program of a command if `command -v` does not find it. A path is never reported,
    /// because the task may be to write that script.
    pub fn missing_program(&self, command: &str) -> Result<Option<String>, StepError> {
        let Some(program) = program(command) else { return Ok(None) };
        let words = ["-c", "command -v -- \"$1\"", "sh", &program];
        let found = self.command(Path::new("/bin/sh"), &words).and_then(|mut ask| {
            ask.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).status()
        });
        let found = found.map_err(|error| StepError::Other(format!("cannot run sh: {error}")))?;
        Ok((!found.success()).then_some(program))
    }

    /// Saves the end of an output for the next attempt's prompt, and for people.
    pub fn keep_output(&self, task: &str, which: &str, output: &str) {
        let path = self.root.output(task, which);
        let kept = std::fs::create_dir_all(self.root.private())
            .and_then(|()| std::fs::write(&path, output));
        if let Err(error) = kept {
            tracing::warn!(
                path = %path.display(),
                %error,
                "failed to store the output of a validation"
            );
        }
    }

    pub fn kept_output(&self, task: &str, which: &str) -> Option<String> {
        std::fs::read_to_string(self.root.output(task, which)).ok()
    }

    /// Runs `harness-init.sh` if it exists, and once more if it fails.
    ///
    /// # Errors
    /// The end of its output if it failed twice: the environment is broken. Or that it was stopped,
    /// which says nothing about the environment.
    pub fn health_check(&self, stop: &dyn Fn() -> bool) -> Result<(), Unhealthy> {
        let script = self.root.init_script();
        if !script.is_file() {
            return Ok(());
        }
        let mut last = String::new();
        for _ in 0..2 {
            let executable = rustix::fs::access(&script, rustix::fs::Access::EXEC_OK).is_ok();
            let path = script.to_string_lossy();
            let command = if executable {
                self.command(&script, &[])
            } else {
                self.command(Path::new("/bin/sh"), &[&path])
            };
            let bounds = Bounds { limit: SCRIPT_LIMIT, tail: TAIL, nonce: &self.nonce };
            match command.and_then(|command| bounded::run(command, bounds, stop)) {
                Ok(ran) if ran.passed() => {
                    self.note(vec![Entry::init("Environment health check: PASS")]);
                    return Ok(());
                }
                Ok(ran) if ran.stopped => return Err(Unhealthy::CalledOff),
                Ok(ran) => {
                    last = format!(
                        "{} {}",
                        how(ran.code, ran.signal, ran.timed_out),
                        last_line(&ran.output)
                    )
                }
                Err(error) => last = error.to_string(),
            }
            self.note(vec![Entry::init(&format!("Environment health check: FAIL {last}"))]);
        }
        Err(Unhealthy::Broken(format!("harness-init.sh failed twice: {last}")))
    }

    /// Runs the task's clean-up command after a failure. Returns false if it was stopped; then all
    /// its processes were terminated.
    pub fn clean_up(&self, task: &Task, off: &dyn Fn() -> bool) -> bool {
        let Some(cleanup) = &task.cleanup else { return true };
        let ran = self.shell(cleanup, SCRIPT_LIMIT, off);
        let was_stopped = ran.as_ref().is_ok_and(|ran| ran.stopped);
        let said = match ran {
            Ok(ran) if ran.passed() => return true,
            Ok(ran) if ran.stopped => "on_failure.cleanup was cancelled".into(),
            Ok(ran) => {
                let how = how(ran.code, ran.signal, ran.timed_out);
                format!("on_failure.cleanup failed: {how} {}", last_line(&ran.output))
            }
            Err(error) => format!("on_failure.cleanup failed: {error}"),
        };
        self.note(vec![Entry::warn(Some(&task.id), &said)]);
        !was_stopped
    }

    /// Saves the output of a validation that did not pass.
    pub fn remember(&self, task: &Task, verdict: &Verdict) {
        if let Verdict::Failed { output, .. } | Verdict::TimedOut { output, .. } = verdict {
            self.keep_output(&task.id, "last", output);
        }
    }
}

/// Returns the category and message of a failed verdict; `before` is the output from before the
/// task began.
pub fn describe(verdict: &Verdict, before: Option<&str>) -> (Category, String) {
    match verdict {
        Verdict::NoCommand => (Category::Config, "Missing validation.command".into()),
        Verdict::NoProgram(program) => {
            (Category::EnvSetup, format!("`{program}` of validation.command is not installed"))
        }
        Verdict::TimedOut { seconds, .. } => {
            (Category::Timeout, format!("validation exceeded {seconds}s"))
        }
        Verdict::Failed { code, signal, output } => {
            let mut message =
                format!("validation failed: {} {}", how(*code, *signal, false), last_line(output));
            if let Some(before) = before {
                let apart = failure_diff::tell(before, output);
                if failure_diff::is_same(before, output) {
                    message.push_str(" (just as before the task began)");
                } else if !apart.old.is_empty() {
                    message.push_str(&format!(
                        " ({} of its failures existed before)",
                        apart.old.len()
                    ));
                }
            }
            (Category::TestFail, message)
        }
        Verdict::Passed { .. } => (Category::TestFail, "passed".into()),
        Verdict::Stopped => (Category::SessionTimeout, "it was cancelled".into()),
    }
}

fn how(code: Option<i32>, signal: Option<i32>, timed_out: bool) -> String {
    match (code, signal) {
        _ if timed_out => "timed out".into(),
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "ended".into(),
    }
}

fn last_line(output: &str) -> &str {
    output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default()
}

/// Returns the program that a shell command begins with, if that can be determined.
fn program(command: &str) -> Option<String> {
    let word = command.split_whitespace().find(|word| {
        let name = word.split('=').next().unwrap_or_default();
        let assigns = word.contains('=')
            && !name.is_empty()
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        !assigns
    })?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '[');
    // Only sh understands quotes, groups and expansions. A path may be a script that the task
    // writes.
    word.chars().all(plain).then(|| word.to_string())
}

/// Returns the part of a client's environment for validations, without variables that only agents
/// need.
pub fn validation_env(env: &[(String, String)]) -> Vec<(String, String)> {
    const OURS: &[&str] =
        &["MULETEER_", "HARNESS_", "TRACEPARENT", "TRACESTATE", "GIT_AUTHOR_", "GIT_COMMITTER_"];
    env.iter()
        .filter(|(name, _)| !OURS.iter().any(|prefix| name.starts_with(prefix)))
        .filter(|(name, _)| !is_for_agents(name))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_of_a_command_is_its_first_word_unless_it_needs_a_shell() {
        for (command, found) in [
            ("npm test -- x", Some("npm")),
            ("CI=1 FOO= cargo test", Some("cargo")),
            ("[ -f x ]", Some("[")),
            ("./check.sh", None),
            ("(cd a && make)", None),
            ("\"my tool\" x", None),
            ("$TOOL x", None),
            ("", None),
        ] {
            assert_eq!(program(command).as_deref(), found, "{command}");
        }
    }

    #[test]
    fn validation_does_not_get_variables_of_agents() {
        let env = [
            ("PATH", "/bin"),
            ("ANTHROPIC_API_KEY", "k"),
            ("MULETEER_SOCKET", "s"),
            ("MY_FLAG", "1"),
        ];
        let env = env.map(|(name, value)| (name.to_string(), value.to_string()));
        let names: Vec<_> = validation_env(&env).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["PATH", "MY_FLAG"]);
    }
}
