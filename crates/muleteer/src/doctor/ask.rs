//! Runs a program that may hang, flood its output or leave children behind, and reads one line from
//! it.

use crate::doctor::{find, program_at};
use muleteer_model::doctor::{self, Program, Tried};
use muleteer_process::command::helper;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;

/// How much of an answer is read; the rest is discarded.
const ANSWER_LIMIT: u64 = 4096;

/// How long to read on after the process has ended. Its own output is complete by then; a stream
/// that stays open belongs to another process.
const GRACE: Duration = Duration::from_millis(250);

/// The question to a program.
pub(super) struct Question {
    pub(super) program: String,
    /// Why the program is only looked up and not run.
    not_asked: Option<String>,
}

impl Question {
    pub(super) fn version(program: &str) -> Self {
        Self { program: program.into(), not_asked: None }
    }

    pub(super) fn whereabouts(program: &str, why: &str) -> Self {
        Self { program: program.into(), not_asked: Some(why.into()) }
    }
}

/// Looks up a program and asks its version.
pub(super) async fn ask(question: Question, deadline: Duration) -> Program {
    let found = find(&question.program);
    let Program::NotAsked { path, .. } = program_at(found.as_deref()) else {
        return Program::Missing;
    };
    if let Some(why) = question.not_asked {
        return Program::NotAsked { path, why };
    }
    let began = Instant::now();
    match run(&path, &["--version"], deadline).await {
        Ok(said) => match doctor::answer(&said) {
            Some(line) => {
                let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                Program::Answered { path, said: crate::render::clip(line, 80), ms }
            }
            None => Program::Failed { path, error: "it printed nothing".into() },
        },
        Err(RunError::Late) => Program::Silent { path, after_s: deadline.as_secs() },
        Err(RunError::Failed(error)) => Program::Failed { path, error },
    }
}

pub(crate) enum RunError {
    Late,
    Failed(String),
}

/// Runs a program to its end and returns its output. At the deadline its process group is killed.
/// Processes that it left behind before the deadline are not ended.
pub(crate) async fn run(
    program: &Path,
    args: &[&str],
    deadline: Duration,
) -> Result<String, RunError> {
    let mut command = helper(program);
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    // If this process runs inside an agent, the program must learn nothing of that agent's session.
    command.env_remove("MULETEER_SOCKET");
    let mut command = tokio::process::Command::from(command);
    let mut child = command
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| RunError::Failed(error.to_string()))?;
    let group = child.id();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let ended = {
        let reading = async { tokio::join!(read(stdout, &mut out), read(stderr, &mut err)) };
        tokio::pin!(reading);
        let ended = async {
            tokio::select! {
                status = child.wait() => {
                    let _ = tokio::time::timeout(GRACE, &mut reading).await;
                    status
                }
                _ = &mut reading => child.wait().await,
            }
        };
        tokio::time::timeout(deadline, ended).await
    };
    if ended.is_err()
        && let Some(group) =
            group.and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?))
    {
        // The group's leader is not reaped yet, so its number still belongs to the group.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let [out, err] = [out, err].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    match ended.map_err(|_| RunError::Late)? {
        Ok(status) if status.success() => Ok(out),
        Ok(status) => {
            let line = err
                .lines()
                .chain(out.lines())
                .map(str::trim)
                .find(|line| !line.is_empty())
                .unwrap_or_default();
            Err(RunError::Failed(
                format!("{status} {}", crate::render::clip(line, 120)).trim().to_string(),
            ))
        }
        Err(error) => Err(RunError::Failed(error.to_string())),
    }
}

/// Reads the beginning of the output, which is available as soon as it is read. The rest is read
/// and dropped, so that the program does not block on a full pipe.
async fn read(stream: Option<impl tokio::io::AsyncRead + Unpin>, bytes: &mut Vec<u8>) {
    let Some(mut stream) = stream else { return };
    let _ = (&mut stream).take(ANSWER_LIMIT).read_to_end(bytes).await;
    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
}

/// Runs one of this program's own probes and returns its verdict.
pub(super) async fn probe(own: &Path, words: &[&str], deadline: Duration) -> Tried {
    let args: Vec<_> = std::iter::once("probe").chain(words.iter().copied()).collect();
    match run(own, &args, deadline).await {
        Ok(said) => {
            let said = said.trim();
            match said.split_once(' ') {
                Some(("ok", what)) => Ok(what.to_string()),
                Some(("no", why)) => Err(why.into()),
                _ => Err("the probe printed nothing".into()),
            }
        }
        Err(RunError::Late) => Err("the probe hung".into()),
        Err(RunError::Failed(error)) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(future)
    }

    fn script(dir: &Path, text: &str) -> PathBuf {
        let (source, path) = (dir.join("text"), dir.join("cli"));
        std::fs::write(&source, format!("#!/bin/sh\n{text}\n")).expect("write");
        // Another process installs the script. If this process wrote it, a child forked by another
        // test could hold the file open for writing, and running it would fail until that child's
        // exec.
        let status = helper("install").arg("-m755").arg(source).arg(&path).status();
        assert!(status.expect("install").success());
        path
    }

    fn asked(text: &str, deadline: Duration) -> Program {
        let dir = tempfile::tempdir().expect("dir");
        let path = script(dir.path(), text);
        block_on(ask(Question::version(path.to_str().expect("utf-8")), deadline))
    }

    #[test]
    fn a_program_that_answers_hangs_floods_or_fails() {
        let plenty = Duration::from_secs(30);
        let said = |program| match program {
            Program::Answered { said, .. } => said,
            other => panic!("{other:?}"),
        };
        assert_eq!(said(asked("echo; echo ' 1.2.3 '", plenty)), "1.2.3");
        assert_eq!(said(asked("echo 1.2.3; head -c 1000000 /dev/zero", plenty)), "1.2.3");
        assert!(matches!(asked("echo trouble >&2; exit 3", plenty),
            Program::Failed { error, .. } if error.contains("3") && error.contains("trouble")));
        assert!(matches!(asked("exit 0", plenty), Program::Failed { .. }));
        // The program leaves a child that keeps the pipe open. That must neither delay us nor lose
        // the answer.
        assert_eq!(
            said(asked("echo '1.0.3 (Claude Code)'; sleep 60 & exit 0", plenty)),
            "1.0.3 (Claude Code)"
        );
        assert!(matches!(asked("echo trouble >&2; sleep 60 & exit 3", plenty),
            Program::Failed { error, .. } if error.contains("trouble")));
        let short = Duration::from_millis(300);
        assert!(matches!(asked("sleep 1000", short), Program::Silent { .. }));
        assert!(matches!(asked("echo 1; sleep 1000", short), Program::Silent { .. }));
        assert!(matches!(
            block_on(ask(Question::version("no-such-cli"), plenty)),
            Program::Missing
        ));
    }
}
