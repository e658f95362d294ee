//! Tests of clones in odd states, with a real git.

use crate::worktree::home::*;
use std::os::unix::fs::symlink;

const ID: &str = "abcd2345";

/// A user's repository with a commit, and a clone of it in which an agent works.
struct Stage {
    dir: tempfile::TempDir,
    base: String,
    stop: CancellationToken,
}

impl Stage {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut stage = Self { dir, base: String::new(), stop: CancellationToken::new() };
        std::fs::create_dir(stage.project()).expect("a directory");
        git_in(&stage.project(), &["init", "--quiet", "-b", "main"]).await;
        std::fs::create_dir(stage.project().join("folder")).expect("a directory");
        for name in ["file", "other", "folder/file"] {
            std::fs::write(stage.project().join(name), name).expect("a file");
        }
        git_in(&stage.project(), &["add", "."]).await;
        git_in(&stage.project(), &["commit", "--quiet", "-m", "start"]).await;
        stage.base = git_in(&stage.project(), &["rev-parse", "HEAD"]).await;
        git_in(&stage.project(), &["clone", "--quiet", "--shared", ".", "../clone"]).await;
        stage.agent(&["checkout", "--quiet", "-b", "work"]).await;
        stage
    }

    fn project(&self) -> PathBuf {
        self.dir.path().join("project")
    }

    fn clone(&self) -> PathBuf {
        self.dir.path().join("clone")
    }

    async fn agent(&self, args: &[&str]) -> String {
        git_in(&self.clone(), args).await
    }

    async fn commit(&self, text: &str) -> String {
        self.agent(&["commit", "--quiet", "--allow-empty", "-m", text]).await;
        self.agent(&["rev-parse", "HEAD"]).await
    }

    async fn stash(&self, text: &str) -> String {
        std::fs::write(self.clone().join("file"), text).expect("a file");
        self.agent(&["stash", "--quiet"]).await;
        self.agent(&["rev-parse", "refs/stash"]).await
    }

    async fn bring(&self, before: Option<&WorkHome>) -> Result<WorkHome, BringError> {
        let (project, clone) = (self.project(), self.clone());
        let home = Homecoming {
            project: &project,
            clone: &clone,
            id: ID,
            base: Some(&self.base),
            branch: "work",
            before,
            stop: &self.stop,
        };
        home.bring().await
    }

    /// Returns the saved commits, each with its description.
    async fn left(&self, work: &WorkHome) -> Vec<(String, String)> {
        let mut left = vec![];
        for LeftWork { name, what } in &work.left {
            left.push((git_in(&self.project(), &["rev-parse", name]).await, what.clone()));
        }
        left
    }
}

async fn git_in(dir: &Path, args: &[&str]) -> String {
    let mut command = git(dir);
    command.args(["-c", "user.name=T", "-c", "user.email=t@example.invalid"]).args(args);
    run(&mut command, "git").await.expect("git does it")
}

fn pair(commit: &str, what: &str) -> (String, String) {
    (commit.to_string(), what.to_string())
}

#[tokio::test]
async fn work_that_was_brought_before_a_crash_is_named_after_it() {
    let stage = Stage::new().await;
    let stash = stage.stash("one").await;
    stage.agent(&["checkout", "--quiet", "-b", "side"]).await;
    let side = stage.commit("side").await;
    stage.agent(&["tag", "-m", "a tag", "marked", &stage.base]).await;
    let tag = stage.agent(&["rev-parse", "marked"]).await;
    stage.agent(&["checkout", "--quiet", "work"]).await;
    stage.commit("main").await;
    std::fs::write(stage.clone().join("new"), "new").expect("a file");
    let first = stage.bring(None).await.expect("it comes home");
    let left = stage.left(&first).await;
    assert_eq!(
        left[..3],
        [pair(&side, "branch side"), pair(&stash, "stash"), pair(&tag, "tag marked")]
    );
    // The daemon was killed before the event was durable.
    assert_eq!(stage.bring(None).await.expect("it comes home"), first);
}

#[tokio::test]
async fn new_work_takes_no_ref_from_work_that_was_kept_earlier() {
    let stage = Stage::new().await;
    let one = stage.stash("one").await;
    stage.agent(&["checkout", "--quiet", "-b", "side"]).await;
    let side = stage.commit("side").await;
    stage.agent(&["checkout", "--quiet", "work"]).await;
    let first = stage.bring(None).await.expect("it comes home");
    assert_eq!(stage.left(&first).await, [pair(&side, "branch side"), pair(&one, "stash")]);
    let two = stage.stash("two").await;
    stage.agent(&["checkout", "--quiet", "side"]).await;
    stage.agent(&["commit", "--quiet", "--amend", "--allow-empty", "-m", "amended"]).await;
    let amended = stage.agent(&["rev-parse", "HEAD"]).await;
    stage.agent(&["checkout", "--quiet", "work"]).await;
    let second = stage.bring(Some(&first)).await.expect("it comes home");
    let left = [
        pair(&amended, "branch side"),
        pair(&two, "stash"),
        pair(&one, "stash"),
        pair(&side, "branch side, kept earlier"),
    ];
    assert_eq!(stage.left(&second).await, left);
    // If a part of a branch's name is taken, its ref gets another name.
    stage.agent(&["branch", "-m", "side", "side/way"]).await;
    stage.agent(&["stash", "clear"]).await;
    stage.agent(&["checkout", "--quiet", "side/way"]).await;
    let moved = stage.commit("moved").await;
    stage.agent(&["checkout", "--quiet", "work"]).await;
    let third = stage.bring(Some(&second)).await.expect("it comes home");
    let mut left = stage.left(&third).await;
    assert_eq!(left.remove(0), pair(&moved, "branch side/way"), "{third:?}");
    left.sort();
    // A ref in the dispatch's folder does not replace another one, because it may be removed first.
    let mut earlier = [
        pair(&two, "stash, kept earlier"),
        pair(&one, "stash, kept earlier"),
        pair(&side, "branch side, kept earlier"),
        pair(&amended, "branch side, kept earlier"),
    ];
    earlier.sort();
    assert_eq!(left, earlier, "{third:?}");
}

#[tokio::test]
async fn commit_that_only_the_moved_branch_had_is_kept() {
    let stage = Stage::new().await;
    let made = stage.commit("made").await;
    let first = stage.bring(None).await.expect("it comes home");
    assert_eq!((first.commit.as_deref(), first.left.len()), (Some(made.as_str()), 0));
    stage.agent(&["branch", "side"]).await;
    stage.agent(&["commit", "--quiet", "--amend", "--allow-empty", "-m", "amended"]).await;
    let second = stage.bring(Some(&first)).await.expect("it comes home");
    assert_eq!(stage.left(&second).await, [pair(&made, "branch side")]);
}

#[tokio::test]
async fn branches_beyond_the_limits_are_counted_and_not_asked_about() {
    let stage = Stage::new().await;
    let heads = stage.clone().join(".git/packed-refs");
    let made = stage.commit("made").await;
    stage.agent(&["checkout", "--quiet", "--detach", &stage.base]).await;
    let mut refs = "# pack-refs with: peeled fully-peeled sorted \n".to_string();
    for number in 0..60 {
        let commit = stage.commit(&format!("of {number}")).await;
        stage.agent(&["reset", "--quiet", "--hard", &stage.base]).await;
        refs.push_str(&format!("{commit} refs/heads/many/{number:02}\n"));
    }
    std::fs::write(heads, refs).expect("a file");
    stage.agent(&["checkout", "--quiet", "work"]).await;
    let work = stage.bring(None).await.expect("it comes home");
    assert_eq!((work.commit.as_deref(), work.left.len()), (Some(made.as_str()), MOST_LEFT));
    assert_eq!(work.skipped, ["10 more branches and stashes"]);
    // One git answers for all commits. An absent commit, and one that is only in the dispatch's
    // folder, do not count as kept.
    let (project, clone) = (stage.project(), stage.clone());
    let home = Homecoming {
        project: &project,
        clone: &clone,
        id: ID,
        base: None,
        branch: "work",
        before: None,
        stop: &stage.stop,
    };
    let brought = git_in(&project, &["rev-parse", &work.left[0].name]).await;
    let absent = "1".repeat(40);
    let asked = [made.as_str(), &stage.base, &brought, &absent];
    let kept = home.kept(asked.into_iter()).await;
    assert_eq!(kept, HashSet::from([made.clone(), stage.base.clone()]));
}

#[tokio::test]
async fn tracked_paths_that_are_no_files_lose_no_other_file() {
    let stage = Stage::new().await;
    let at = |name: &str| stage.clone().join(name);
    std::fs::remove_dir_all(at("folder")).expect("it goes");
    symlink("/tmp", at("folder")).expect("a link");
    std::fs::remove_file(at("other")).expect("it goes");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("other"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .expect("a pipe");
    std::fs::remove_file(at("file")).expect("it goes");
    std::fs::create_dir(at("file")).expect("a directory");
    std::fs::write(at("file/below"), "below").expect("a file");
    std::fs::write(at("new"), "new").expect("a file");
    let work = stage.bring(None).await.expect("it comes home");
    assert!(work.skipped.is_empty(), "{work:?}");
    let name = format!("{LEFT}/{ID}/uncommitted");
    assert_eq!(work.left.first().map(|left| left.name.as_str()), Some(name.as_str()), "{work:?}");
    let listed = git_in(&stage.project(), &["ls-tree", "-r", "--name-only", &name]).await;
    assert_eq!(listed, "file/below\nfolder\nnew");
}

#[tokio::test]
async fn pipe_in_the_git_directory_is_named_at_once() {
    let stage = Stage::new().await;
    stage.commit("made").await;
    let pipe = stage.clone().join(".git/refs/heads/pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    let error = stage.bring(None).await.expect_err("git would wait for ever");
    assert!(
        matches!(&error, BringError::GaveUp(why) if why.to_string().contains("refs/heads/pipe")),
        "{error}"
    );
}

#[tokio::test]
async fn killed_dispatch_waits_for_no_git_that_hangs() {
    let stage = Stage::new().await;
    stage.commit("made").await;
    let elsewhere = stage.dir.path().join("elsewhere/info");
    std::fs::create_dir_all(&elsewhere).expect("a directory");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let pipe = elsewhere.join("alternates");
    rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, mode, 0)
        .expect("a pipe");
    let objects = elsewhere.parent().expect("a parent").display().to_string();
    let lender = stage.clone().join(".git/objects/info/alternates");
    let known = std::fs::read_to_string(&lender).expect("the clone borrows");
    std::fs::write(lender, format!("{known}{objects}\n")).expect("a file");
    stage.stop.cancel();
    let error = stage.bring(None).await.expect_err("git hangs");
    assert!(
        matches!(
            &error,
            BringError::GaveUp(RepoError::Command(CommandError::DispatchKilled { .. }))
        ),
        "{error}"
    );
}

#[test]
fn only_a_git_that_was_killed_is_not_retried() {
    let (program, limit) = (String::from("git"), Duration::from_secs(20));
    let fatal = b"fatal: git has done nothing for 20 s and was killed";
    for (error, gave_up) in [
        (CommandError::TimedOut { program: program.clone(), limit }, true),
        (CommandError::Hung { program, idle: limit }, true),
        (CommandError::failed("cannot fetch the work", ["fetch"], fatal), false),
        (CommandError::failed("", ["fetch"], fatal), false),
    ] {
        let message = error.to_string();
        let error = BringError::from(error);
        assert_eq!(matches!(error, BringError::GaveUp(_)), gave_up, "{message}");
        assert_eq!(error.to_string(), message);
    }
}

/// Returns the last homecoming of a clone whose work came home as `before`.
async fn last(stage: &Stage, before: &WorkHome) -> WorkHome {
    let (project, clone) = (stage.project(), stage.clone());
    let home = Homecoming {
        project: &project,
        clone: &clone,
        id: ID,
        base: Some(&stage.base),
        branch: "work",
        before: Some(before),
        stop: &stage.stop,
    };
    home.bring_last().await.expect("it comes home")
}

#[tokio::test]
async fn last_homecoming_leaves_a_merged_and_deleted_branch_deleted() {
    let stage = Stage::new().await;
    let commit = stage.commit("done").await;
    let before = stage.bring(None).await.expect("it comes home");
    git_in(&stage.project(), &["merge", "--quiet", "--ff-only", "work"]).await;
    git_in(&stage.project(), &["branch", "--quiet", "-d", "work"]).await;
    assert_eq!(last(&stage, &before).await.commit.as_deref(), Some(commit.as_str()));
    assert_eq!(tip(&stage.project(), "work").await, None);
    assert_eq!(git_in(&stage.project(), &["rev-parse", "main"]).await, commit);
}

#[tokio::test]
async fn last_homecoming_restores_a_branch_that_nobody_merged() {
    let stage = Stage::new().await;
    let commit = stage.commit("done").await;
    let before = stage.bring(None).await.expect("it comes home");
    git_in(&stage.project(), &["branch", "--quiet", "-D", "work"]).await;
    last(&stage, &before).await;
    assert_eq!(tip(&stage.project(), "work").await, Some(commit));
}

/// Somebody committed in the clone after the dispatch ended.
#[tokio::test]
async fn last_homecoming_brings_later_commits() {
    let stage = Stage::new().await;
    stage.commit("done").await;
    let before = stage.bring(None).await.expect("it comes home");
    git_in(&stage.project(), &["merge", "--quiet", "--ff-only", "work"]).await;
    git_in(&stage.project(), &["branch", "--quiet", "-d", "work"]).await;
    let later = stage.commit("later").await;
    std::fs::write(stage.clone().join("new"), "new").expect("a file");
    let work = last(&stage, &before).await;
    assert_eq!(tip(&stage.project(), &work.branch).await, Some(later));
    assert_eq!((work.left.len(), work.skipped.len()), (1, 0), "{work:?}");
}

/// A child dispatch saves its work as refs of the clone that it began in.
#[tokio::test]
async fn refs_of_other_kinds_and_changes_set_aside_come_home() {
    let stage = Stage::new().await;
    let only = stage.commit("only a ref has it").await;
    let child = format!("{LEFT}/bcde2345/uncommitted");
    for name in ["refs/wip/one", &child, "refs/remotes/origin/main"] {
        stage.agent(&["update-ref", name, &only]).await;
    }
    stage.agent(&["reset", "--quiet", "--hard", "HEAD~1"]).await;
    let note = stage.commit("a note").await;
    stage.agent(&["update-ref", "refs/notes/commits", &note]).await;
    stage.agent(&["reset", "--quiet", "--hard", "HEAD~1"]).await;
    std::fs::write(stage.clone().join("file"), "set aside").expect("a file");
    let aside = stage.agent(&["stash", "create"]).await;
    stage.agent(&["reset", "--quiet", "--hard"]).await;
    let rebase = stage.clone().join(".git/rebase-merge");
    std::fs::create_dir(&rebase).expect("a directory");
    std::fs::write(rebase.join("autostash"), format!("{aside}\n")).expect("a file");
    let work = stage.bring(None).await.expect("it comes home");
    let mut found = stage.left(&work).await;
    found.sort();
    let mut wanted = [
        pair(&only, &format!("ref {child}")),
        pair(&note, "ref refs/notes/commits"),
        pair(&aside, AUTOSTASH),
    ];
    wanted.sort();
    assert_eq!(found, wanted);
}

/// git lists no untracked files below the path of a submodule.
#[tokio::test]
async fn files_in_the_place_of_a_submodule_are_named() {
    let stage = Stage::new().await;
    let module = format!("160000,{},sub", stage.base);
    stage.agent(&["update-index", "--add", "--cacheinfo", &module]).await;
    stage.commit("a submodule").await;
    let sub = stage.clone().join("sub");
    std::fs::create_dir_all(&sub).expect("a directory");
    let work = stage.bring(None).await.expect("it comes home");
    assert_eq!(work.skipped, Vec::<String>::new(), "an empty directory is usual");
    std::fs::write(sub.join("file"), "work").expect("a file");
    let work = stage.bring(None).await.expect("it comes home");
    assert_eq!(work.skipped, ["sub (in the place of a submodule)"]);
}
