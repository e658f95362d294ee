//! Runs git as a task of the daemon, with limits of time and output.

use crate::command::{self, CommandError, STUCK, is_distrust};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// The timeout of a git. A clone of a large repository from a slow disk takes minutes.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
/// The interval at which the CPU use of a git is checked.
const LOOK: Duration = Duration::from_secs(2);
/// The limit of git's output. Tests need many files to exceed it.
const OUTPUT_LIMIT: u64 = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// Runs a git that works on this machine alone, and returns its output without the space around
/// it. It is killed if it hangs. `what` begins the message of an error.
pub(crate) async fn run(command: &mut Command, what: &str) -> Result<String, CommandError> {
    run_within(command, PATIENCE, what).await
}

/// Does the same as [`run`]. It is killed after `patience`, or sooner if it hangs.
pub(crate) async fn run_within(
    command: &mut Command,
    patience: Duration,
    what: &str,
) -> Result<String, CommandError> {
    let said = bytes_within(command, patience, what).await?;
    Ok(String::from_utf8_lossy(&said).trim().to_string())
}

/// Runs a git that lists names with `-z`: they can have any bytes, and begin or end with a space.
pub(crate) async fn run_bytes(command: &mut Command, what: &str) -> Result<Vec<u8>, CommandError> {
    bytes_within(command, PATIENCE, what).await
}

async fn bytes_within(
    command: &mut Command,
    patience: Duration,
    what: &str,
) -> Result<Vec<u8>, CommandError> {
    let mut said = output_unless(command, patience, Some(STUCK)).await?;
    if !said.status.success() && is_distrust(&said.stderr) && trusting(command, &[]).await {
        // git rejected the directory before it did anything.
        said = output_unless(command, patience, Some(STUCK)).await?;
    }
    let output = said;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(CommandError::failed(what, command.as_std().get_args(), &output.stderr))
}

/// Makes a git trust the directories that the person's own configuration trusts, which our git
/// ignores. The configuration is read with the person's environment and these variables. Returns
/// false if there are none.
async fn trusting(command: &mut Command, vars: &[(&str, &Path)]) -> bool {
    let mut ask = Command::from(command::configuration(Path::new("/")));
    ask.args(["config", "-z", "--show-scope", "--get-all", "safe.directory"]);
    ask.envs(vars.iter().copied());
    let Ok(said) = output(&mut ask, PATIENCE).await else { return false };
    let fields: Vec<_> = said.stdout.split(|byte| *byte == 0).collect();
    let (pairs, _) = fields.as_chunks::<2>();
    let trusted = pairs
        .iter()
        .filter(|[scope, _]| matches!(*scope, b"system" | b"global"))
        .map(|[_, value]| OsStr::from_bytes(value));
    let trusted = command::trusted_places(trusted);
    for (at, value) in trusted.iter().enumerate() {
        command.env(format!("GIT_CONFIG_KEY_{at}"), "safe.directory");
        command.env(format!("GIT_CONFIG_VALUE_{at}"), value);
    }
    let count = trusted.len().to_string();
    command.env("GIT_CONFIG_COUNT", &count).env(command::TRUST_COUNT, &count);
    !trusted.is_empty()
}

/// Runs a command to its end, with limits of time and output. Its process group is killed with it,
/// even if the future is dropped.
pub async fn output(command: &mut Command, patience: Duration) -> Result<Output, CommandError> {
    output_unless(command, patience, None).await
}

/// Does the same as [`output`], and kills it if it uses no CPU time for `stuck`.
async fn output_unless(
    command: &mut Command,
    patience: Duration,
    stuck: Option<Duration>,
) -> Result<Output, CommandError> {
    let program = command::program::name(command.as_std().get_program());
    let failed = |source| CommandError::Run { program: program.clone(), source };
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
    let mut child = command.spawn().map_err(failed)?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let mut group = Group(child.id());
    let ending = async {
        let (stdout, stderr) = tokio::try_join!(read(out, &program), read(err, &program))?;
        let status = child.wait().await.map_err(failed)?;
        Ok::<_, CommandError>(Output { status, stdout, stderr })
    };
    let output = tokio::select! {
        ended = tokio::time::timeout(patience, ending) => {
            let program = program.clone();
            ended.map_err(|_| CommandError::TimedOut { program, limit: patience })??
        }
        idle = hang(group.0, stuck) => {
            return Err(CommandError::Hung { program: program.clone(), idle });
        }
    };
    group.0 = None;
    Ok(output)
}

/// Returns when a process group has used no CPU time for `limit`.
async fn hang(leader: Option<u32>, limit: Option<Duration>) -> Duration {
    let (Some(leader), Some(limit)) = (leader, limit) else { return std::future::pending().await };
    let (mut used, mut since) = (None, tokio::time::Instant::now());
    loop {
        tokio::time::sleep(LOOK).await;
        let now =
            tokio::task::spawn_blocking(move || muleteer_process::group::cpu_of_group(leader))
                .await
                .ok();
        if now != used {
            (used, since) = (now, tokio::time::Instant::now());
        } else if since.elapsed() >= limit {
            return limit;
        }
    }
}

async fn read(
    from: Option<impl AsyncRead + Unpin>,
    program: &str,
) -> Result<Vec<u8>, CommandError> {
    let mut bytes = vec![];
    let Some(from) = from else { return Ok(bytes) };
    match from.take(OUTPUT_LIMIT + 1).read_to_end(&mut bytes).await {
        Err(source) => Err(CommandError::Run { program: program.into(), source }),
        Ok(length) if length as u64 > OUTPUT_LIMIT => {
            Err(CommandError::TooMuchOutput { program: program.into(), limit: OUTPUT_LIMIT })
        }
        Ok(_) => Ok(bytes),
    }
}

/// A process group whose leader is not reaped yet. It is killed on drop.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // If it has ended already, that is fine.
            drop(muleteer_process::group::signal_group(
                leader,
                rustix::process::Signal::KILL.as_raw(),
            ));
        }
    }
}

/// Returns a value of the person's own configuration, which is only read.
pub(crate) async fn own_config(dir: &Path, key: &str) -> Option<String> {
    own_config_of(dir, &[key]).await
}

pub(crate) async fn own_config_of(dir: &Path, args: &[&str]) -> Option<String> {
    own_config_with(dir, None, args).await
}

/// Does the same with another variable.
pub(crate) async fn own_config_with(
    dir: &Path,
    variable: Option<&(String, String)>,
    args: &[&str],
) -> Option<String> {
    let mut ask = Command::from(command::configuration(dir));
    ask.envs(variable.map(|(name, value)| (name, value)));
    let output = output(ask.arg("config").args(args), PATIENCE).await.ok()?;
    let value = String::from_utf8_lossy(&output.stdout).trim().to_string();
    (output.status.success() && !value.is_empty()).then_some(value)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;
    use crate::command::git;

    #[tokio::test]
    async fn repository_of_another_user_needs_the_persons_trust() {
        let dir = tempfile::tempdir().expect("a directory");
        let repo = dir.path().join("repo");
        std::fs::create_dir(&repo).expect("a directory");
        run(git(&repo).args(["init", "-q"]), "init").await.expect("a repository");
        for path in [repo.join(".git"), repo.clone()] {
            if std::os::unix::fs::chown(path, Some(54321), None).is_err() {
                return eprintln!("not root: nothing can be given away");
            }
        }
        let ask = || {
            let mut command = git(&repo);
            command.args(["rev-parse", "--git-dir"]);
            command
        };
        let refused = run(&mut ask(), "cannot look").await.expect_err("it is somebody else's");
        let refused = refused.to_string();
        assert!(refused.contains("git config --global --add safe.directory"), "{refused}");
        let config = dir.path().join("gitconfig");
        let vars = [
            ("GIT_CONFIG_GLOBAL", config.as_path()),
            ("GIT_CONFIG_SYSTEM", Path::new("/dev/null")),
        ];
        std::fs::write(&config, "").expect("a configuration");
        assert!(!trusting(&mut ask(), &vars).await, "nothing is");
        let trusted =
            format!("[safe]\n directory = {}\n", repo.canonicalize().expect("a place").display());
        std::fs::write(&config, trusted).expect("a configuration");
        let mut command = ask();
        assert!(trusting(&mut command, &vars).await);
        assert_eq!(run(&mut command, "cannot look").await.expect("it is trusted"), ".git");
    }

    /// Its child processes hold the pipes and the locks.
    #[tokio::test]
    async fn dropped_command_is_killed_with_its_child_processes() {
        let dir = tempfile::tempdir().expect("a directory");
        let pids = dir.path().join("pids");
        let script = "sleep 1000 & echo $! > \"$1.new\"; mv \"$1.new\" \"$1\"; wait";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(&pids);
        let running = output(&mut command, Duration::from_secs(60));
        let child = {
            tokio::pin!(running);
            loop {
                tokio::select! {
                    ended = &mut running => panic!("it waits: {ended:?}"),
                    () = tokio::time::sleep(Duration::from_millis(2)) => {}
                }
                if let Ok(pid) = std::fs::read_to_string(&pids) {
                    break pid.trim().to_string();
                }
            }
        };
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        let lives = || {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
        };
        while lives() {
            assert!(tokio::time::Instant::now() < deadline, "{child} lives");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}
