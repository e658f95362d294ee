//! A worktree is a private clone (design.md, "Git"): its `.git` is the agent's alone. We run nothing in
//! it; fetching *from* it by path is safe.

// git is a short-lived child that we wait for and that dies with its handle; `process` starts what
// must outlive or be supervised.
#![allow(clippy::disallowed_methods)]

use muleteer_model::id::DispatchId;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// Most that is read of what a git prints, and of its complaints.
const OUTPUT_LIMIT: u64 = 64 << 20;
const WORD_LIMIT: u64 = 64 << 10;
/// A git that takes longer hangs: a clone of a large repository over a slow disk takes minutes.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// git, deaf to configuration that could run somebody's code or ask somebody something.
pub(crate) fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .arg("-C")
        .arg(dir)
        .args(["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never"])
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env_remove("GIT_DIR")
        .env_remove("GIT_WORK_TREE")
        .env_remove("GIT_INDEX_FILE")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Runs it to its end, and gives what it said, trimmed. An agent sets how much that is and how long it takes,
/// so both have an end.
///
/// # Errors
/// `what`, with git's last word.
pub(crate) async fn run(command: &mut Command, what: &str) -> Result<String, String> {
    let unable = |error: std::io::Error| format!("cannot run git: {error}");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(unable)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let ended = async {
        // One byte more than is allowed tells that there was more; then its pipe is closed, and it ends.
        tokio::try_join!(read(stdout, OUTPUT_LIMIT + 1), read(stderr, WORD_LIMIT)).map(|(out, said)| (out, said))
    };
    let ((out, said), status) = tokio::time::timeout(PATIENCE, async { Ok((ended.await?, child.wait().await?)) })
        .await
        .map_err(|_| format!("{what}: git had not ended after {} s", PATIENCE.as_secs()))?
        .map_err(unable)?;
    if out.len() as u64 > OUTPUT_LIMIT {
        return Err(format!("{what}: git said more than {} MB", OUTPUT_LIMIT >> 20));
    }
    if status.success() {
        return Ok(String::from_utf8_lossy(&out).trim().to_string());
    }
    let said = String::from_utf8_lossy(&said);
    Err(format!("{what}: {}", said.trim().lines().next_back().unwrap_or("git failed")))
}

async fn read(stream: Option<impl tokio::io::AsyncRead + Unpin>, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![];
    if let Some(stream) = stream {
        stream.take(limit).read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// Makes the clone unless it is there. It appears under its name only when it is complete.
pub async fn ensure(project: &Path, worktree: &Path, id: &DispatchId) -> Result<(), String> {
    if worktree.join(".git").exists() {
        return Ok(());
    }
    let top = run(git(project).args(["rev-parse", "--show-toplevel"]), "--worktree needs a git repository").await?;
    run(git(project).args(["rev-parse", "--verify", "HEAD"]), "--worktree needs a repository with a commit").await?;
    let parent = worktree.parent().ok_or("the worktree has no parent directory")?;
    std::fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    let partial = parent.join(format!(".{id}.partial"));
    if partial.exists() {
        std::fs::remove_dir_all(&partial).map_err(|error| format!("{}: {error}", partial.display()))?;
    }
    let top = Path::new(&top);
    run(git(top).args(["clone", "--quiet", "--shared", "--no-hardlinks", "."]).arg(&partial), "cannot clone").await?;
    run(git(&partial).args(["checkout", "--quiet", "-b"]).arg(format!("muleteer/{id}")), "cannot make the branch")
        .await?;
    for key in ["user.name", "user.email"] {
        // Read with the person's own configuration: it only names them.
        let own = Command::new("git").arg("-C").arg(top).args(["config", key]).output().await;
        if let Ok(own) = own
            && own.status.success()
        {
            let value = String::from_utf8_lossy(&own.stdout).trim().to_string();
            run(git(&partial).args(["config", key]).arg(value), "cannot configure the clone").await?;
        }
    }
    exclude(&partial.join(".git")).map_err(|error| format!("{}: {error}", partial.display()))?;
    std::fs::rename(&partial, worktree).map_err(|error| format!("{}: {error}", worktree.display()))
}

/// Fetches the worktree's commits into the project as `branch`; none if it has no commit of its own.
pub async fn fetch(project: &Path, worktree: &Path, branch: &str) -> Result<Option<String>, String> {
    if !worktree.join(".git").exists() {
        return Ok(None);
    }
    let refspec = format!("+HEAD:refs/heads/{branch}");
    run(
        git(project)
            .args(["fetch", "--quiet", "--no-tags", "--no-write-fetch-head"])
            .arg(worktree)
            .arg(refspec),
        "cannot fetch the work",
    )
    .await?;
    let commit = run(
        git(project).args(["rev-parse", "--verify"]).arg(format!("refs/heads/{branch}")),
        "the fetched branch is missing",
    )
    .await?;
    Ok(Some(commit))
}

/// Keeps what is ours out of `git status` and `git clean -fd`.
pub fn exclude(git_dir: &Path) -> std::io::Result<()> {
    let path = git_dir.join("info/exclude");
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let missing: Vec<_> = [
        "/.muleteer/worktrees/",
        "/.muleteer/runs/",
        "/.muleteer/beads/",
        "/.muleteer/tasks/",
        "/.muleteer/tasks.lock",
        "/.agents/journals/",
    ]
    .into_iter()
    .filter(|line| !text.lines().any(|known| known == *line))
    .collect();
    if missing.is_empty() {
        return Ok(());
    }
    std::fs::create_dir_all(git_dir.join("info"))?;
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&path)?;
    let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    file.write_all(format!("{gap}{}\n", missing.join("\n")).as_bytes())
}

/// The `.git` directory of the repository `dir` is in, if it is in one.
pub async fn git_dir(dir: &Path) -> Option<std::path::PathBuf> {
    let text = run(git(dir).args(["rev-parse", "--path-format=absolute", "--git-common-dir"]), "")
        .await
        .ok()?;
    Some(text.into())
}

/// The top of the repository `dir` is in, if it is in one.
pub async fn top(dir: &Path) -> Option<std::path::PathBuf> {
    run(git(dir).args(["rev-parse", "--show-toplevel"]), "").await.ok().map(Into::into)
}

/// The commit that is checked out, if there is one.
pub async fn head(dir: &Path) -> Option<String> {
    run(git(dir).args(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]), "").await.ok()
}

pub async fn is_branch_name(dir: &Path, name: &str) -> bool {
    run(git(dir).args(["check-ref-format", "--branch", name]), "").await.is_ok()
}

/// A value of the person's own configuration: it only names them.
pub(crate) async fn own_config(dir: &Path, key: &str) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(dir).args(["config", key]).output().await.ok()?;
    let value = String::from_utf8_lossy(&output.stdout).trim().to_string();
    (output.status.success() && !value.is_empty()).then_some(value)
}

/// The branch that is checked out, for the journal's header.
pub async fn branch(dir: &Path) -> Option<String> {
    run(git(dir).args(["symbolic-ref", "--short", "HEAD"]), "").await.ok()
}
