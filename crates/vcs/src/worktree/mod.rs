//! The clones of dispatches (docs/design/git-and-clones.md). A worktree is a private clone: its
//! `.git` belongs to the agent alone. The harness runs nothing in it; fetching *from* it by path is
//! safe.

// git is a short-lived child; we wait for it, and its handle kills it on drop. `process` starts
// children that must outlive the daemon or be supervised.
#![allow(clippy::disallowed_methods)]

mod home;
mod identity;
mod leftover;
mod repository;

pub use home::{BringError, Homecoming};
pub use identity::Identities;
pub use repository::{Repositories, Repository};

use muleteer_model::agent::event::cut;
use muleteer_store::removal;
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// Settings that keep a repository's own configuration from making git run or ask something. The
/// refs of an alternate are never listed: they are useless here, and git would run in a directory
/// that may not be ours.
pub const HARMLESS: [&str; 10] = [
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.alternateRefsCommand=true",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "push.recurseSubmodules=no",
    "gc.auto=0",
    "maintenance.auto=false",
    "advice.graftFileDeprecated=false",
];
/// By default git syncs neither the objects of a commit nor the branch that leads to it. Work that
/// is reported as done must survive a power cut.
pub const DURABLE: &str = "core.fsync=committed";
/// Variables of the daemon's own environment that could lead git elsewhere.
pub const LEADING_AWAY: [&str; 16] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_SHALLOW_FILE",
    "GIT_REPLACE_REF_BASE",
    "GIT_TEMPLATE_DIR",
    "GIT_ATTR_SOURCE",
    "GIT_CONFIG",
    "GIT_CONFIG_PARAMETERS",
    "GIT_CONFIG_COUNT",
    "GIT_ALLOW_PROTOCOL",
    "GIT_EXTERNAL_DIFF",
];
/// The command that serves a fetch from an agent's repository. It uses only the named directory,
/// and does not fetch missing objects, because the agent's configuration would say from where.
pub const UPLOAD_PACK: &str =
    "git -c core.hooksPath=/dev/null -c core.fsmonitor=false upload-pack --strict";
/// The author and committer of an agent if the person has configured none.
pub const AGENT_NAME: &str = "Muleteer agent";
pub const AGENT_EMAIL: &str = "agent@muleteer.invalid";
/// The timeout of a git. A clone of a large repository from a slow disk takes minutes.
const PATIENCE: Duration = Duration::from_secs(30 * 60);
/// A git on this machine that has used no CPU time for this long hangs. An agent can cause that by
/// a pipe in place of a file.
pub(crate) const STUCK: Duration = Duration::from_secs(20);
/// The interval at which the CPU use of a git is checked.
const LOOK: Duration = Duration::from_secs(2);
/// The limit of git's output. Tests need many files to exceed it.
const OUTPUT_LIMIT: u64 = if cfg!(test) { 1 << 20 } else { 64 << 20 };
const TOO_MUCH: &str = "it prints more than";
/// The limit of a quoted complaint.
const COMPLAINT_LIMIT: usize = 2048;

/// Returns an unused name beside `dir` with this extension, so that files that were moved aside
/// earlier stay.
pub fn free_name(dir: &Path, extension: &str) -> PathBuf {
    let mut name = dir.with_extension(extension);
    for number in 2_u32.. {
        if !name.exists() {
            break;
        }
        name = dir.with_extension(format!("{extension}-{number}"));
    }
    name
}

/// Returns a git command that ignores configuration which could run code or ask questions.
pub fn git(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir);
    for setting in HARMLESS.iter().chain(&[
        DURABLE,
        "core.excludesFile=/dev/null",
        "protocol.allow=never",
        "protocol.file.allow=always",
    ]) {
        command.args(["-c", setting]);
    }
    for name in LEADING_AWAY {
        command.env_remove(name);
    }
    if dir.join(".git").exists() {
        // git would ignore a broken repository and continue with the one around it: our clones are
        // inside of a person's repository.
        command.envs(dir.parent().map(|above| ("GIT_CEILING_DIRECTORIES", above)));
    }
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_ATTR_NOSYSTEM", "1")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_NO_REPLACE_OBJECTS", "1")
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("GIT_GRAFT_FILE", "/dev/null")
        .env("GIT_DEFAULT_REF_FORMAT", "files")
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// Returns a fetch into `into` from `from`, the git directory of a repository that may be an
/// agent's.
pub fn fetching(into: &Path, from: &Path) -> Command {
    let mut command = git(into);
    command
        .args([
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            "--upload-pack",
            UPLOAD_PACK,
        ])
        .arg(from);
    command
}

pub async fn run(command: &mut Command, what: &str) -> Result<String, String> {
    run_within(command, PATIENCE, what).await
}

/// Runs a git that works on this machine alone. It is killed after `patience`, or sooner if it
/// hangs.
pub async fn run_within(
    command: &mut Command,
    patience: Duration,
    what: &str,
) -> Result<String, String> {
    let said = bytes_within(command, patience, what).await?;
    Ok(String::from_utf8_lossy(&said).trim().to_string())
}

/// Runs a git that lists names with `-z`: they can have any bytes, and begin or end with a space.
pub async fn run_bytes(command: &mut Command, what: &str) -> Result<Vec<u8>, String> {
    bytes_within(command, PATIENCE, what).await
}

async fn bytes_within(
    command: &mut Command,
    patience: Duration,
    what: &str,
) -> Result<Vec<u8>, String> {
    let mut said = output_unless(command, patience, Some(STUCK)).await?;
    if !said.status.success() && is_distrust(&said.stderr) && trusting(command, &[]).await {
        // git rejected the directory before it did anything.
        said = output_unless(command, patience, Some(STUCK)).await?;
    }
    let output = said;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!("{what}: {}", complaint(&output.stderr)))
}

/// Whether git refused to work in another user's directory.
pub(crate) fn is_distrust(complaint: &[u8]) -> bool {
    String::from_utf8_lossy(complaint).contains("detected dubious ownership")
}

/// Makes a git trust the directories that the person's own configuration trusts, which our git
/// ignores. The configuration is read with the person's environment and these variables. Returns
/// false if there are none.
async fn trusting(command: &mut Command, vars: &[(&str, &Path)]) -> bool {
    let mut ask = Command::new("git");
    ask.args(["config", "-z", "--show-scope", "--get-all", "safe.directory"]).current_dir("/");
    for name in LEADING_AWAY {
        ask.env_remove(name);
    }
    ask.envs(vars.iter().copied());
    let Ok(said) = output(&mut ask, PATIENCE).await else { return false };
    let fields: Vec<_> = said.stdout.split(|byte| *byte == 0).collect();
    let (pairs, _) = fields.as_chunks::<2>();
    let trusted = pairs
        .iter()
        .filter(|[scope, _]| matches!(*scope, b"system" | b"global"))
        .map(|[_, value]| *value);
    let mut count = 0;
    for value in trusted {
        command.env(format!("GIT_CONFIG_KEY_{count}"), "safe.directory");
        command.env(format!("GIT_CONFIG_VALUE_{count}"), OsStr::from_bytes(value));
        count += 1;
    }
    command.env("GIT_CONFIG_COUNT", count.to_string());
    count > 0
}

/// Returns a program's complaint on one line, without terminal control characters. git's hints are
/// left out, because they are for interactive users. A long one is cut in the middle.
pub fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines = text.split(['\n', '\r']).map(str::trim_end);
    let said: Vec<_> =
        lines.filter(|line| !line.trim().is_empty() && !line.starts_with("hint:")).collect();
    let said = said.join("; ").replace(char::is_control, " ");
    match said.len() {
        0 => "it failed and did not say why".into(),
        long if long > COMPLAINT_LIMIT => {
            let tail = said.ceil_char_boundary(long - COMPLAINT_LIMIT / 2);
            format!("{} {}", cut(&said, COMPLAINT_LIMIT / 2), &said[tail..])
        }
        _ => said,
    }
}

/// Whether a complaint says that the disk or a quota is full. Only the end of a line counts,
/// because names that an agent chose may be before it.
pub fn no_room(why: &str) -> bool {
    let is_full = |line: &str| {
        let line = line.trim_end_matches(')');
        let line = line.rsplit_once(" (os error ").map_or(line, |(line, _)| line);
        ["No space left on device", "Disk quota exceeded"].iter().any(|full| {
            line.strip_suffix(full)
                .is_some_and(|before| before.is_empty() || before.ends_with(": "))
        })
    };
    why.split("; ").any(is_full)
}

/// Whether a git that lists files exceeded the output limit.
pub fn lists_too_much(why: &str) -> bool {
    why.contains(&format!("{TOO_MUCH} {OUTPUT_LIMIT} bytes"))
}

/// Runs a command to its end, with limits of time and output. Its process group is killed with it,
/// even if the future is dropped.
pub async fn output(command: &mut Command, patience: Duration) -> Result<Output, String> {
    output_unless(command, patience, None).await
}

/// Does the same as [`output`], and kills it if it uses no CPU time for `stuck`.
async fn output_unless(
    command: &mut Command,
    patience: Duration,
    stuck: Option<Duration>,
) -> Result<Output, String> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let failed = |error: std::io::Error| format!("cannot run {program}: {error}");
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(failed)?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let mut group = Group(child.id());
    let ending = async {
        let (stdout, stderr) = tokio::try_join!(read(out), read(err))?;
        let status = child.wait().await?;
        Ok::<_, std::io::Error>(Output { status, stdout, stderr })
    };
    let slow = format!("{program} has not ended in {} s and was killed", patience.as_secs());
    let output = tokio::select! {
        ended = tokio::time::timeout(patience, ending) => ended.map_err(|_| slow)?.map_err(failed)?,
        after = hang(group.0, stuck) => {
            return Err(format!(
                "{program} has done nothing for {} s and was killed",
                after.as_secs()
            ));
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

async fn read(from: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![];
    if let Some(from) = from {
        from.take(OUTPUT_LIMIT + 1).read_to_end(&mut bytes).await?;
    }
    if bytes.len() as u64 > OUTPUT_LIMIT {
        return Err(std::io::Error::other(format!("{TOO_MUCH} {OUTPUT_LIMIT} bytes")));
    }
    Ok(bytes)
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

/// The parameters of a dispatch's new clone.
#[derive(Debug, Clone, Copy)]
pub struct NewClone<'a> {
    pub id: &'a str,
    pub branch: &'a str,
    /// The agent's environment has an address (`EMAIL`), which git uses if none is configured.
    pub has_email: bool,
}

/// Makes the clone unless it exists. It gets its name only when it is complete. Its agent commits
/// as the person, or under a name of ours if the person has configured none, because git commits
/// nothing without a name.
pub async fn ensure(project: &Path, worktree: &Path, new: NewClone<'_>) -> Result<(), String> {
    if worktree.join(".git").exists() {
        return Ok(());
    }
    let top = run(
        git(project).args(["rev-parse", "--show-toplevel"]),
        "--worktree needs a git repository",
    )
    .await?;
    run(
        git(project).args(["rev-parse", "--verify", "HEAD"]),
        "--worktree needs a repository with a commit",
    )
    .await?;
    let parent = worktree.parent().ok_or("the worktree has no parent directory")?;
    std::fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
    let partial = parent.join(format!(".{}.partial", new.id));
    discard(&partial)?;
    let top = Path::new(&top);
    run(
        git(top).args(["clone", "--quiet", "--shared", "--no-hardlinks", "."]).arg(&partial),
        "cannot clone",
    )
    .await?;
    make_branch(&partial, new.branch).await?;
    let email = own_config(top, "user.email").await;
    let email = email.or_else(|| (!new.has_email).then(|| AGENT_EMAIL.to_string()));
    let name = own_config(top, "user.name").await.unwrap_or_else(|| AGENT_NAME.into());
    for (key, value) in [("user.name", Some(name)), ("user.email", email)] {
        if let Some(value) = value {
            run(git(&partial).args(["config", key]).arg(value), "cannot configure the clone")
                .await?;
        }
    }
    exclude(&partial.join(".git")).map_err(|error| format!("{}: {error}", partial.display()))?;
    std::fs::rename(&partial, worktree).map_err(|error| format!("{}: {error}", worktree.display()))
}

/// Checks out a new branch in a clone that nobody works in yet. The branch that was cloned may
/// conflict with its name.
async fn make_branch(clone: &Path, name: &str) -> Result<(), String> {
    let what = "cannot make the branch";
    let make = || {
        let mut command = git(clone);
        command.args(["checkout", "--quiet", "-b", name]);
        command
    };
    let Err(why) = run(&mut make(), what).await else { return Ok(()) };
    let Some(other) = branch_in_the_way(clone, name).await else { return Err(why) };
    run(git(clone).args(["checkout", "--quiet", "--detach"]), what).await?;
    run(git(clone).args(["branch", "--quiet", "-D", &other]), what).await?;
    run(&mut make(), what).await.map(drop)
}

/// Removes a clone that may be incomplete, and returns whether there was one. After an interruption
/// it must be called again.
///
/// # Errors
/// The clone cannot be removed.
pub fn discard(worktree: &Path) -> Result<bool, String> {
    match removal::remove_tree(worktree, removal::PATIENCE) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(format!(
            "cannot remove {}, which may be a clone in part: {error}",
            worktree.display()
        )),
    }
}

/// Returns the branch that keeps git from making a branch called `name`: a prefix of `name`, or one
/// below it.
pub async fn branch_in_the_way(dir: &Path, name: &str) -> Option<String> {
    let first = async |prefix: &str| {
        let mut list = git(dir);
        list.args([
            "for-each-ref",
            "--count=1",
            "--format=%(refname)",
            &format!("refs/heads/{prefix}"),
        ]);
        let said = run(&mut list, "").await.ok()?;
        said.strip_prefix("refs/heads/").map(String::from)
    };
    for (at, _) in name.match_indices('/') {
        let above = &name[..at];
        if first(above).await.as_deref() == Some(above) {
            return Some(above.to_string());
        }
    }
    first(&format!("{name}/")).await
}

/// Whether a clone of ours exists: its `.git` is a directory, and no link to another.
pub fn is_clone(dir: &Path) -> bool {
    [dir.to_owned(), dir.join(".git")]
        .iter()
        .all(|path| std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir()))
}

/// The harness's files in a working directory, as patterns of git's ignore files.
const OURS: [&str; 6] = [
    "/.muleteer/worktrees/",
    "/.muleteer/runs/",
    "/.muleteer/beads/",
    // A task list may be in any folder.
    "**/.muleteer/tasks/",
    "**/.muleteer/tasks.lock",
    "/.agents/journals/",
];

/// Excludes the harness's files from `git status` and `git clean -fd`.
///
/// A link or special file stays as it is: in a clone that an agent has worked in, it may lead to a
/// place where the agent itself may not write.
pub fn exclude(git_dir: &Path) -> std::io::Result<()> {
    const LONGEST: u64 = 1024 * 1024;
    let path = git_dir.join("info/exclude");
    let text = match crate::untrusted_path::read(git_dir, Path::new("info/exclude"), LONGEST) {
        Ok(bytes) => String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "left as it is");
            return Ok(());
        }
    };
    let missing: Vec<_> =
        OURS.into_iter().filter(|line| !text.lines().any(|known| known == *line)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    std::fs::create_dir_all(git_dir.join("info"))?;
    let no_link = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let mut file = std::fs::OpenOptions::new();
    let mut file = file.append(true).create(true).custom_flags(no_link).open(&path)?;
    let gap = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    file.write_all(format!("{gap}{}\n", missing.join("\n")).as_bytes())
}

/// Returns the `.git` directory of the repository that `dir` is in, if there is one.
pub async fn git_dir(dir: &Path) -> Option<std::path::PathBuf> {
    let text = run(git(dir).args(["rev-parse", "--path-format=absolute", "--git-common-dir"]), "")
        .await
        .ok()?;
    Some(text.into())
}

/// Returns the top of the repository that `dir` is in, if there is one.
pub async fn top(dir: &Path) -> Option<std::path::PathBuf> {
    run(git(dir).args(["rev-parse", "--show-toplevel"]), "").await.ok().map(Into::into)
}

/// Returns git's complaint if it refuses to work in the repository that `dir` is in; `None` also
/// without a repository.
pub async fn refusal(dir: &Path) -> Option<String> {
    let asked =
        run(git(dir).args(["rev-parse", "--show-toplevel"]), "git does not work there").await;
    asked.err().filter(|why| !why.contains("not a git repository"))
}

/// Checks whether a clone can borrow the objects of a repository.
///
/// # Errors
/// git writes their path on one line, so it cannot use a path with a line break.
pub fn lends(top: &Path) -> Result<(), String> {
    match top.as_os_str().as_bytes().contains(&b'\n') {
        true => Err(format!(
            "git can make no clone that shares the objects of {top:?}: its path has a line break"
        )),
        false => Ok(()),
    }
}

/// The hint for a repository whose objects cannot be borrowed.
pub const RENAME: &str = "give the directory a name without one";

/// Returns the commit that is checked out, if there is one.
pub async fn head(dir: &Path) -> Option<String> {
    run(git(dir).args(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"]), "").await.ok()
}

/// Returns the commit of a branch. A tag of the same name, or another expression for a commit, does
/// not count.
pub async fn tip(dir: &Path, branch: &str) -> Option<String> {
    let name = format!("refs/heads/{branch}");
    run(git(dir).args(["show-ref", "--verify", "--hash", &name]), "").await.ok()
}

/// Whether the commit that is checked out has something at a path.
pub async fn has(dir: &Path, path: &str) -> bool {
    run(git(dir).args(["ls-tree", "HEAD", "--", path.trim_end_matches('/')]), "")
        .await
        .is_ok_and(|listed| !listed.is_empty())
}

pub async fn is_branch_name(dir: &Path, name: &str) -> bool {
    run(git(dir).args(["check-ref-format", "--branch", name]), "").await.is_ok()
}

/// Returns a value of the person's own configuration, which is only read.
pub async fn own_config(dir: &Path, key: &str) -> Option<String> {
    own_config_of(dir, &[key]).await
}

async fn own_config_of(dir: &Path, args: &[&str]) -> Option<String> {
    let output =
        Command::new("git").arg("-C").arg(dir).arg("config").args(args).output().await.ok()?;
    let value = String::from_utf8_lossy(&output.stdout).trim().to_string();
    (output.status.success() && !value.is_empty()).then_some(value)
}

/// Returns the branch that is checked out. git's own short form has `heads/` in front if a tag has
/// the same name.
pub async fn branch(dir: &Path) -> Option<String> {
    let name = run(git(dir).args(["symbolic-ref", "HEAD"]), "").await.ok()?;
    name.strip_prefix("refs/heads/").map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_the_person_trusts_is_trusted_and_else_git_says_what_to_do() {
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
        assert_eq!(run(&mut command, "cannot look").await.as_deref(), Ok(".git"));
    }

    #[test]
    fn a_complaint_is_told_whole_and_in_bounds() {
        let refused = b"remote: no\x1b[2J such branch\nTo /x\n ! [rejected] a -> b \
                        (fetch first)\r\nhint: merge it\n\nerror: failed\n";
        assert_eq!(
            complaint(refused),
            "remote: no [2J such branch; To /x;  ! [rejected] a -> b (fetch first); error: failed"
        );
        assert_eq!(complaint(b" \n"), "it failed and did not say why");
        let long = format!("error: first\n{}\nfatal: last\n", "\u{e4}\u{20ac}".repeat(4000));
        let said = complaint(long.as_bytes());
        assert!(said.starts_with("error: first; ") && said.ends_with("; fatal: last"), "{said}");
        assert!(said.len() <= COMPLAINT_LIMIT + 8, "{}", said.len());
    }

    #[test]
    fn a_full_disk_is_told_from_what_only_speaks_of_one() {
        for (why, full) in [
            ("cannot take its work: fatal: write error: No space left on device", true),
            ("error: file write error: No space left on device; fatal: index-pack failed", true),
            ("/run/keep: Disk quota exceeded (os error 122)", true),
            ("No space left on device (os error 28)", true),
            ("fatal: no such ref: 'No space left on device'", false),
            ("fatal: bad config 'x: No space left on device' in file config", false),
            ("fatal: not a git repository", false),
            ("", false),
        ] {
            assert_eq!(no_room(why), full, "{why}");
        }
        let full = std::io::Error::from(rustix::io::Errno::NOSPC);
        assert!(no_room(&full.to_string()), "{full}");
    }

    /// git does not clone into a folder that is not empty.
    #[tokio::test]
    async fn a_clone_that_a_killed_daemon_left_in_part_is_made_anew() {
        let dir = tempfile::tempdir().expect("a directory");
        let (project, id) = (dir.path().join("project"), "abcd2345");
        std::fs::create_dir(&project).expect("a directory");
        for args in [
            &["init", "--quiet"][..],
            &[
                "-c",
                "user.name=T",
                "-c",
                "user.email=t@example.invalid",
                "commit",
                "--quiet",
                "--allow-empty",
                "-mstart",
            ],
        ] {
            run(git(&project).args(args), "a repository").await.expect("a repository");
        }
        let worktree = dir.path().join("worktrees/it");
        let partial = dir.path().join(format!("worktrees/.{id}.partial/.git/objects"));
        std::fs::create_dir_all(&partial).expect("a part");
        let branch_name = format!("muleteer/{id}");
        let new = NewClone { id, branch: &branch_name, has_email: false };
        ensure(&project, &worktree, new).await.expect("a clone");
        assert_eq!(branch(&worktree).await, Some(branch_name));
        assert!(!partial.exists());
    }

    /// Its child processes hold the pipes and the locks.
    #[tokio::test]
    async fn whom_nobody_waits_for_any_more_is_ended_with_all_it_started() {
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
