mod own;
mod raw;

use crate::user_repo::*;
use muleteer_model::task_list::Stand;
use muleteer_process::command::helper;
use std::process::Stdio;

struct Repo {
    dir: tempfile::TempDir,
}

impl Repo {
    fn new() -> Self {
        let repo = Self { dir: tempfile::tempdir().expect("a directory") };
        repo.git(&["init", "-q", "-b", "main"]);
        repo.git(&["config", "user.name", "Tester"]);
        repo.git(&["config", "user.email", "tester@example.invalid"]);
        repo.write("kept.txt", "kept\n");
        repo.write(".gitignore", "ignored/\n.env\n");
        repo.git(&["add", "."]);
        repo.git(&["commit", "-q", "-m", "start"]);
        repo.write("harness-tasks.json", "{}");
        repo
    }

    fn git(&self, args: &[&str]) -> String {
        let mut command = helper("git");
        command.arg("-C").arg(self.dir.path()).args(args).env("GIT_CONFIG_GLOBAL", "/dev/null");
        run(command, b"", "test").expect("git works")
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        std::fs::write(path, text).expect("a file");
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.dir.path().join(name)).ok()
    }

    fn open(&self) -> Git {
        Git::open(self.dir.path()).expect("a repository")
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.dir.path().join(name)).expect("it is there");
    }
}

/// Somebody's git that is at work in a repository until it is dropped.
struct LivingGit(std::process::Child);

impl LivingGit {
    fn new(repo: &Repo) -> Self {
        let mut git = helper("git");
        git.arg("-C").arg(repo.dir.path()).args(["cat-file", "--batch"]);
        let git = Self(git.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a git"));
        let place = repo.dir.path().canonicalize().expect("a place");
        // It stands there when it has begun.
        while !may_be_at_work("git", &[&place]) {
            std::thread::sleep(Duration::from_millis(5));
        }
        git
    }
}

impl Drop for LivingGit {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        drop(self.0.wait());
    }
}

fn on_main() -> Stand {
    Stand::On("main".into())
}

fn quiet() -> impl FnMut(&Saved) {
    |_| {}
}

#[test]
fn a_rollback_undoes_all_commits_and_removes_untracked_files_and_undo_brings_them_back() {
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("task-001", &base).expect("remembers");
    repo.write("kept.txt", "changed\n");
    repo.git(&["commit", "-qam", "task-001: change"]);
    repo.write("committed.txt", "c\n");
    repo.git(&["add", "committed.txt"]);
    repo.git(&["commit", "-qm", "task-001: more"]);
    repo.write("dir/untracked.txt", "u\n");
    repo.write("staged.txt", "s\n");
    repo.git(&["add", "staged.txt"]);
    repo.remove("kept.txt");
    repo.write("ignored/cache", "i\n");
    let head = git.head().expect("head");

    let mut heard = vec![];
    let mut hear = |saved: &Saved| heard.push(saved.name.clone());
    let saved = git
        .roll_back("task-001", &base, None, &on_main(), &[], &mut hear)
        .expect("rolls back")
        .expect("saved");
    assert_eq!(heard, ["refs/muleteer/rollback/task-001/1"]);
    assert_eq!((git.head().expect("head"), &saved.head), (base.clone(), &head));
    assert_eq!(repo.git(&["status", "--porcelain"]), "?? harness-tasks.json");
    assert_eq!(repo.read("kept.txt").as_deref(), Some("kept\n"));
    assert!(repo.read("committed.txt").is_none() && repo.read("dir/untracked.txt").is_none());
    assert_eq!(
        repo.read("ignored/cache").as_deref(),
        Some("i\n"),
        "ignored files stay, as with clean -fd"
    );
    assert_eq!(repo.read("harness-tasks.json").as_deref(), Some("{}"));
    assert_eq!(
        git.roll_back("task-001", &base, None, &on_main(), &[], &mut quiet()).expect("again"),
        None
    );

    let found = git.saved(Some("task-001")).expect("lists");
    assert_eq!(found, std::slice::from_ref(&saved));
    assert_eq!(git.undo(&found[0], &[]).expect("undoes"), None);
    assert_eq!(git.head().expect("head"), head);
    assert_eq!(repo.read("dir/untracked.txt").as_deref(), Some("u\n"));
    assert_eq!(repo.read("staged.txt").as_deref(), Some("s\n"));
    assert!(repo.read("kept.txt").is_none(), "deleted as it was");
}

/// Cut off between the two it must not look as if somebody wanted the commit undone.
#[test]
fn the_index_is_never_behind_what_was_committed() {
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    let start = git.start("a", &base).expect("start");
    repo.write("work.txt", "w\n");
    repo.write(".git/index.lock", "");
    let living = LivingGit::new(&repo);
    assert!(git.commit(&start, "a: work").is_err(), "somebody's git is at it");
    drop(living);
    assert_eq!(
        (git.head().expect("head"), repo.git(&["diff", "--cached", "--name-only"])),
        (base, String::new())
    );
    repo.remove(".git/index.lock");
    let commit = git.commit(&start, "a: work").expect("commits").expect("something");
    assert_eq!(
        (git.head().expect("head"), repo.git(&["diff", "--cached", "--name-only"])),
        (commit, String::new())
    );
}

#[test]
fn what_a_person_had_lying_about_is_neither_committed_nor_rolled_back() {
    let repo = Repo::new();
    repo.write("notes.txt", "mine\n");
    repo.write("kept.txt", "half edited by a person\n");
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("remembers");
    let start = git.start("a", &base).expect("start");
    assert_eq!(git.uncommitted_since(&start).expect("nothing yet"), None);
    repo.write("work.txt", "w\n");
    let commit = git.commit(&start, "a: work").expect("commits").expect("something");
    assert_eq!(
        repo.git(&["show", "--format=%an %s", "--name-only", &commit]),
        "Tester a: work\n\nwork.txt"
    );
    assert_eq!(
        repo.git(&["status", "--porcelain"]),
        " M kept.txt\n?? harness-tasks.json\n?? notes.txt"
    );
    assert_eq!(
        git.commit(&start, "a: work").expect("again"),
        None,
        "committing again commits nothing"
    );

    repo.write("work.txt", "worse\n");
    repo.remove("notes.txt");
    git.roll_back("a", &base, None, &Stand::Anywhere, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert_eq!(repo.read("notes.txt").as_deref(), Some("mine\n"));
    assert_eq!(repo.read("kept.txt").as_deref(), Some("half edited by a person\n"));
    assert!(repo.read("work.txt").is_none());
}

#[test]
fn a_person_s_staged_change_stays_staged() {
    let repo = Repo::new();
    repo.write("staged.txt", "s\n");
    repo.git(&["add", "staged.txt"]);
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("remembers");
    repo.write("work.txt", "w\n");
    git.commit(&git.start("a", &base).expect("start"), "a")
        .expect("commits")
        .expect("something");
    assert_eq!(repo.git(&["status", "--porcelain"]), "A  staged.txt\n?? harness-tasks.json");
}

#[test]
fn a_tracked_list_is_left_alone_by_commits_and_rollbacks() {
    let repo = Repo::new();
    repo.git(&["add", "-f", "harness-tasks.json"]);
    repo.git(&["commit", "-qm", "the list too"]);
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("remembers");
    repo.write("harness-tasks.json", "{\"newer\": true}");
    repo.write("harness-progress.txt", "log\n");
    repo.write("work.txt", "w\n");
    let start = git.start("a", &base).expect("start");
    let commit = git.commit(&start, "a").expect("commits").expect("something");
    assert_eq!(repo.git(&["show", "--format=", "--name-only", &commit]), "work.txt");
    git.roll_back("a", &base, None, &Stand::Anywhere, &[], &mut quiet()).expect("rolls back");
    assert_eq!(repo.read("harness-tasks.json").as_deref(), Some("{\"newer\": true}"));
    assert_eq!(repo.read("harness-progress.txt").as_deref(), Some("log\n"));
}

#[test]
fn damaged_lists_are_the_harness_s_too_however_many_there_are() {
    let repo = Repo::new();
    repo.remove("harness-tasks.json");
    repo.write("odd [*] folder/harness-tasks.json", "{}");
    let git = Git::open(&repo.dir.path().join("odd [*] folder")).expect("a repository");
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("remembers");
    for name in ["harness-tasks.json.damaged", "harness-tasks.json.damaged.2"] {
        repo.write(&format!("odd [*] folder/{name}"), "{,");
    }
    assert_eq!(git.uncommitted(), "");
    assert_eq!(git.uncommitted_since(&git.start("a", &base).expect("start")), Ok(None));
    assert_eq!(git.roll_back("a", &base, None, &Stand::Anywhere, &[], &mut quiet()), Ok(None));
    assert!(repo.read("odd [*] folder/harness-tasks.json.damaged.2").is_some());
}

#[test]
fn ignored_files_that_are_listed_are_saved_too() {
    let repo = Repo::new();
    repo.write(".env", "SECRET=1\n");
    let git = repo.open();
    let base = git.head().expect("head");
    repo.write("work.txt", "w\n");
    let saved = git
        .roll_back(
            "a",
            &base,
            None,
            &Stand::Anywhere,
            &[".env".into(), "absent".into()],
            &mut quiet(),
        )
        .expect("rolls back");
    let saved = saved.expect("saved");
    assert_eq!(repo.git(&["show", &format!("{}:.env", saved.name)]), "SECRET=1");
    repo.write(".env", "SECRET=overwritten\n");
    git.undo(&saved, &[".env".into()]).expect("undoes");
    assert_eq!(repo.read(".env").as_deref(), Some("SECRET=1\n"));
}

#[test]
fn a_branch_that_the_agent_checked_out_is_not_moved() {
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    repo.git(&["checkout", "-q", "-b", "feature"]);
    repo.write("work.txt", "w\n");
    repo.git(&["add", "work.txt"]);
    repo.git(&["commit", "-qm", "on a branch of its own"]);
    let feature = git.head().expect("head");
    git.roll_back("a", &base, None, &on_main(), &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert_eq!((git.branch().as_deref(), git.head().expect("head")), (Some("main"), base));
    assert_eq!(git.tip("feature").expect("it stays"), feature);
    assert!(repo.read("work.txt").is_none());
}

#[test]
fn undo_refuses_to_drop_commits_that_came_later_and_saves_what_is_there() {
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    repo.write("work.txt", "first\n");
    let saved = git
        .roll_back("a", &base, None, &Stand::Anywhere, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    repo.write("since.txt", "since\n");
    let kept = git.undo(&saved, &[]).expect("undoes").expect("what was there is kept");
    assert_eq!(repo.git(&["show", &format!("{kept}:since.txt")]), "since");
    assert_eq!((repo.read("work.txt").as_deref(), repo.read("since.txt")), (Some("first\n"), None));
    repo.git(&["add", "work.txt"]);
    repo.git(&["commit", "-qm", "moved on"]);
    let error = git.undo(&saved, &[]).expect_err("refuses");
    assert!(error.to_string().contains("git branch NAME"), "{error}");
}

#[test]
fn a_clone_s_work_is_rebased_and_fast_forwarded_and_a_conflict_changes_nothing() {
    let repo = Repo::new();
    let git = repo.open();
    let dirs: Vec<_> =
        [1, 2, 3].map(|n| repo.dir.path().join(format!(".muleteer/worktrees/tasks/{n}"))).into();
    let clones: Vec<_> =
        dirs.iter().map(|dir| git.prepare_clone(dir, "main").expect("a clone")).collect();
    for clone in &clones {
        clone.reset_clone(&git, "main").expect("at the tip");
    }
    let work = |at: usize, file: &str, text: &str| {
        std::fs::write(dirs[at].join(file), text).expect("a file");
        let base = clones[at].head().expect("head");
        let start = clones[at].start("t", &base).expect("start");
        clones[at].commit(&start, &format!("work {at}")).expect("commits").expect("something");
    };
    work(0, "one.txt", "1\n");
    work(1, "two.txt", "2\n");
    work(2, "one.txt", "other\n");
    let tip = clones[0].rebase(&git, "main").expect("rebases");
    assert!(git.land(&clones[0], "main", &tip).expect("lands"));
    assert_eq!(repo.read("one.txt").as_deref(), Some("1\n"), "the person's checkout follows");
    assert!(!git.land(&clones[1], "main", &tip).expect("the tip has moved"));
    let tip = clones[1].rebase(&git, "main").expect("rebases");
    assert!(git.land(&clones[1], "main", &tip).expect("lands"));
    let before = clones[2].head().expect("head");
    assert!(clones[2].rebase(&git, "main").is_err(), "both wrote one.txt");
    assert_eq!(clones[2].head().expect("head"), before);
    assert_eq!(repo.git(&["log", "--format=%s"]), "work 1\nwork 0\nstart");

    let base = git.tip("main").expect("tip");
    let base_of_clone = repo.git(&["rev-list", "--max-parents=0", "main"]);
    let saved = clones[2]
        .roll_back("t", &base_of_clone, None, &Stand::Anywhere, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    let name = git.adopt(&clones[2], &saved).expect("comes home");
    assert_eq!(repo.git(&["show", &format!("{name}:one.txt")]), "other");
    assert_eq!(git.adopt(&clones[2], &saved).expect("again"), name);
    assert_eq!(git.tip("main").expect("tip"), base);
}

/// The clone's configuration is its agent's: what merges files there must not be a program of the
/// agent's, outside of its sandbox. What can be merged without it is merged all the same.
#[test]
fn a_clone_s_merge_driver_is_not_run() {
    let repo = Repo::new();
    repo.write("list.txt", "a\nb\nc\nd\ne\nf\ng\n");
    repo.git(&["add", "list.txt"]);
    repo.git(&["commit", "-qm", "a list"]);
    let git = repo.open();
    let dir = repo.dir.path().join(".muleteer/worktrees/tasks/1");
    let clone = git.prepare_clone(&dir, "main").expect("a clone");
    let base = clone.reset_clone(&git, "main").expect("at the tip");
    let ran = repo.dir.path().join("ran");
    let driver = format!("touch {}; cp %B %A", ran.display());
    clone.git(&["config", "merge.an agent's.own.driver", &driver]).expect("configured");
    clone.git(&["config", "merge.default", "an agent's.own"]).expect("configured");
    std::fs::write(dir.join("list.txt"), "A\nb\nc\nd\ne\nf\ng\n").expect("a file");
    let start = clone.start("t", &base).expect("start");
    clone.commit(&start, "work").expect("commits").expect("something");
    repo.write("list.txt", "a\nb\nc\nd\ne\nf\nG\n");
    repo.git(&["commit", "-qam", "meanwhile"]);
    let tip = clone.rebase(&git, "main").expect("rebases");
    assert!(!ran.exists(), "the agent's program was run");
    assert!(git.land(&clone, "main", &tip).expect("lands"));
    assert_eq!(
        repo.read("list.txt").as_deref(),
        Some("A\nb\nc\nd\ne\nf\nG\n"),
        "both have their say"
    );
}

#[test]
fn a_harness_below_the_top_is_left_alone_too() {
    let repo = Repo::new();
    repo.write("sub/harness-tasks.json", "{}");
    let git = Git::open(&repo.dir.path().join("sub")).expect("a repository");
    let base = git.head().expect("head");
    repo.write("sub/work.txt", "w\n");
    repo.write("above.txt", "a\n");
    git.roll_back("a", &base, None, &Stand::Anywhere, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert!(repo.read("sub/work.txt").is_none() && repo.read("above.txt").is_none());
    assert_eq!(repo.read("sub/harness-tasks.json").as_deref(), Some("{}"));
}

#[test]
fn no_repository_and_no_commit_are_told_apart() {
    let dir = tempfile::tempdir().expect("a directory");
    assert!(matches!(Git::open(dir.path()), Err(GitError::NoRepository(_))));
    run(
        {
            let mut c = helper("git");
            c.arg("-C").arg(dir.path()).args(["init", "-q"]);
            c
        },
        b"",
        "init",
    )
    .expect("inits");
    assert!(matches!(Git::open(dir.path()), Err(GitError::NoCommit(_))));
}

/// Of the time before the machine was started.
fn make_old(path: &Path) {
    let file = std::fs::File::options().append(true).open(path).expect("a file");
    file.set_modified(
        std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000),
    )
    .expect("its time");
}

/// A person may work on the list in a worktree of their own. A worker never does.
#[test]
fn a_linked_worktree_is_a_copy_and_no_worker_s_clone() {
    let repo = Repo::new();
    let place = tempfile::tempdir().expect("a directory");
    let linked = place.path().join("linked");
    repo.git(&["worktree", "add", "-q", "-b", "topic", &linked.display().to_string()]);
    let git = repo.open();
    let copy = Git::open_copy(&linked, &git).expect("a copy");
    assert_eq!(copy.branch().as_deref(), Some("topic"));
    assert!(Git::open_clone(&linked, &git).is_err());
}

/// The agent of a clone can write its configuration and its `.git`. Both can name a directory of
/// the person, where a reset and a clean destroy work.
#[test]
fn clone_that_leads_elsewhere_changes_nothing_there() {
    for early in [true, false] {
        for by_file in [true, false] {
            let (repo, victim) = (Repo::new(), Repo::new());
            victim.write("kept.txt", "changed by a person\n");
            victim.write("new.txt", "not committed\n");
            let git = repo.open();
            let dir = repo.dir.path().join(".muleteer/worktrees/tasks/1");
            let clone = git.prepare_clone(&dir, "main").expect("a clone");
            let before = victim.git(&["rev-parse", "--symbolic-full-name", "HEAD"]);
            if by_file {
                std::fs::rename(dir.join(".git"), dir.join("old")).expect("its git directory");
                let named = victim.dir.path().join(".git");
                std::fs::write(dir.join(".git"), format!("gitdir: {}\n", named.display()))
                    .expect("a file");
            } else {
                let config = format!("[core]\n\tworktree = {}\n", victim.dir.path().display());
                let path = dir.join(".git/config");
                let old = std::fs::read_to_string(&path).expect("its configuration");
                std::fs::write(&path, old + &config).expect("a file");
            }
            // A worker opens its clone once, and its agent may change the clone before or after.
            if early {
                let again = git.prepare_clone(&dir, "main");
                assert!(again.is_err(), "by a file: {by_file}");
                let why = git.renew_clone(&dir, "main", "main").expect("a new clone");
                assert!(why.is_some_and(|why| why.contains("put aside")));
            } else {
                drop(clone.reset_clone(&git, "main"));
            }
            assert_eq!(victim.read("kept.txt").as_deref(), Some("changed by a person\n"));
            assert_eq!(victim.read("new.txt").as_deref(), Some("not committed\n"));
            assert_eq!(victim.git(&["rev-parse", "--symbolic-full-name", "HEAD"]), before);
        }
    }
}

/// git looks for a repository further up where it finds none: that is the person's own, and the
/// worker would throw away what is there.
#[test]
fn a_broken_clone_is_never_taken_for_the_repository_around_it() {
    let repo = Repo::new();
    let git = repo.open();
    let dir = repo.dir.path().join(".muleteer/worktrees/tasks/1");
    let clone = git.prepare_clone(&dir, "main").expect("a clone");
    repo.write("notes.txt", "a person's\n");
    std::fs::write(dir.join(".git/HEAD"), "").expect("as a power cut leaves it");
    assert!(matches!(Git::open_clone(&dir, &git), Err(GitError::NoRepository(_))));
    assert!(git.prepare_clone(&dir, "main").is_err() && clone.reset_clone(&git, "main").is_err());
    assert!(clone.rebase(&git, "main").is_err() && clone.head().is_err());
    assert_eq!(repo.git(&["branch", "--format=%(refname:short)"]), "main");
    assert_eq!(repo.read("notes.txt").as_deref(), Some("a person's\n"));
    assert_eq!(repo.read("harness-tasks.json").as_deref(), Some("{}"));
    std::fs::write(dir.join("work.txt"), "half done\n").expect("a file");
    let (aside, _) = git.mend_clone(&dir, "main").expect("mends").expect("it is put aside");
    assert_eq!(std::fs::read_to_string(aside.join("work.txt")).expect("kept"), "half done\n");
    assert!(!dir.exists() && git.mend_clone(&dir, "main").expect("mends").is_none());
    let another = git.prepare_clone(&dir, "main").expect("another");
    let again = || git.prepare_clone(&dir, "main").expect("the same").is_made_anew();
    assert!(
        another.is_made_anew() && again(),
        "killed before anybody acted on it, whoever comes next is told the same"
    );
    another.reset_clone(&git, "main").expect("at the tip");
    assert!(!again(), "a task has begun there");
    std::fs::write(dir.join(".git/HEAD"), "").expect("once more");
    let (second, _) = git.mend_clone(&dir, "main").expect("mends").expect("it is put aside");
    assert!(
        second.exists() && aside.join("work.txt").exists(),
        "{} and {}",
        second.display(),
        aside.display()
    );
}

#[test]
fn what_a_power_cut_left_of_a_clone_is_mended() {
    let repo = Repo::new();
    let git = repo.open();
    let dir = repo.dir.path().join(".muleteer/worktrees/tasks/1");
    let clone = git.prepare_clone(&dir, "main").expect("a clone");
    clone.reset_clone(&git, "main").expect("at the tip");
    let mend = || git.mend_clone(&dir, "main").expect("mends");
    for lock in ["HEAD.lock", "refs/heads/muleteer/work.lock"] {
        let lock = dir.join(".git").join(lock);
        std::fs::write(&lock, "").expect("a lock");
        assert!(mend().is_none() && lock.exists(), "somebody alive may have made it");
        make_old(&lock);
        assert!(mend().is_none() && !lock.exists());
    }
    std::fs::write(dir.join(".git/index"), "").expect("no index");
    assert!(mend().is_none());
    assert_eq!(clone.uncommitted(), "");
    std::fs::write(dir.join("kept.txt"), "").expect("emptied");
    assert!(mend().is_none());
    assert_eq!(
        std::fs::read_to_string(dir.join("kept.txt")).expect("a file"),
        "",
        "the agent may have emptied it"
    );
    make_old(&dir.join("kept.txt"));
    assert!(mend().is_none());
    assert_eq!(std::fs::read_to_string(dir.join("kept.txt")).expect("a file"), "kept\n");
    // What the agent committed is gone: nobody can go on from there.
    let start = clone.start("t", "HEAD").expect("start");
    std::fs::write(dir.join("new.txt"), "work\n").expect("a file");
    clone.commit(&start, "work").expect("commits").expect("something");
    assert!(mend().is_none());
    let blob = clone.git(&["rev-parse", "HEAD:new.txt"]).expect("a blob");
    let object = dir.join(".git/objects").join(&blob[..2]).join(&blob[2..]);
    std::fs::remove_file(&object).expect("an object");
    std::fs::write(&object, "").expect("as a power cut leaves it");
    let (_, why) = mend().expect("it is put aside");
    assert!(why.to_string().contains("missing"), "{why}");
}

#[test]
fn an_empty_index_is_made_anew() {
    let repo = Repo::new();
    let git = repo.open();
    assert!(!git.mend_index().expect("nothing to do"));
    repo.write(".git/index", "");
    let broken = Git::open(repo.dir.path()).expect("a repository");
    broken.snapshot().expect("also before");
    assert!(git.mend_index().expect("mends"));
    assert_eq!(repo.git(&["status", "--porcelain", "--untracked-files=no"]), "");
}

/// An agent may be at work there: that git could not be started just now is no reason to take it
/// away from under it.
#[test]
fn a_clone_that_nobody_could_look_at_stays() {
    let unheard =
        GitError::Unheard { what: "git rev-parse".into(), said: "Too many open files".into() };
    assert_eq!(unheard.clone().meaning(GitError::NoCommit("/c".into())), unheard);
    let said =
        GitError::Failed { what: "git rev-parse".into(), said: "not a git repository".into() };
    assert_eq!(
        said.meaning(GitError::NoRepository("/c".into())),
        GitError::NoRepository("/c".into())
    );
    let mut nothing = helper("/nowhere/git");
    nothing.arg("status");
    assert!(matches!(run(nothing, b"", "status"), Err(GitError::Unheard { .. })));
}

/// An agent that was killed leaves what its git had locked, and nobody else would ever take it
/// away.
#[test]
fn a_lock_is_taken_away_when_no_git_is_there_that_may_have_it() {
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("task-001", &base).expect("remembers");
    repo.write("kept.txt", "changed\n");
    let lock = repo.dir.path().join(".git/index.lock");
    std::fs::write(&lock, "").expect("a lock");
    let living = LivingGit::new(&repo);
    let error = git
        .roll_back("task-001", &base, None, &Stand::Anywhere, &[], &mut quiet())
        .expect_err("it may be that one's");
    assert!(error.lock().as_deref() == Some(lock.as_path()) && lock.exists(), "{error}");
    drop(living);
    git.roll_back("task-001", &base, None, &Stand::Anywhere, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert!(!lock.exists());
    assert_eq!(repo.read("kept.txt").as_deref(), Some("kept\n"));
}

/// What a scaffolding tool or a careless program leaves must keep no task from its end.
#[test]
fn what_git_cannot_take_in_stays_and_all_else_is_committed_and_rolled_back() {
    use std::os::unix::ffi::OsStrExt;
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    let odd = repo.dir.path().join(std::ffi::OsStr::from_bytes(b"\xffx"));
    let leave = || {
        repo.git(&["init", "-q", "nested"]);
        repo.write("nested/mine.txt", "mine\n");
        repo.write("work.txt", "work\n");
        std::fs::write(&odd, "odd").expect("a name that is no text");
    };
    git.remember_start("task-001", &base).expect("remembers");
    leave();
    git.roll_back("task-001", &base, None, &Stand::Anywhere, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert!(repo.read("work.txt").is_none() && !odd.exists());
    assert_eq!(repo.read("nested/mine.txt").as_deref(), Some("mine\n"));
    leave();
    let start = git.start("task-001", &base).expect("a start");
    git.commit(&start, "task-001: work").expect("commits").expect("a commit");
    let names = repo.git(&["ls-tree", "--name-only", "HEAD"]);
    assert!(
        names.contains("work.txt") && names.contains("377x") && !names.contains("nested"),
        "{names}"
    );
}

/// Two commits, of which the second is about to be brought in: it makes one file, changes one and
/// removes one.
fn about_to_go_forward() -> (Repo, String, String) {
    let repo = Repo::new();
    repo.write("changed.txt", "before\n");
    repo.write("gone.txt", "to be removed\n");
    repo.git(&["add", "."]);
    repo.git(&["commit", "-qm", "from"]);
    let from = repo.git(&["rev-parse", "HEAD"]);
    repo.write("changed.txt", "after that\n");
    repo.write("below/new.txt", "made\n");
    repo.remove("gone.txt");
    repo.git(&["add", "."]);
    repo.git(&["commit", "-qm", "to"]);
    let to = repo.git(&["rev-parse", "HEAD"]);
    repo.git(&["reset", "-q", "--hard", &from]);
    (repo, from, to)
}

const FILES: [&str; 3] = ["changed.txt", "below/new.txt", "gone.txt"];

/// git was cut off, or the disk has its files in any of these states: what was meant is done, or
/// was not begun.
#[test]
fn who_was_cut_off_as_it_went_forward_goes_forward_again() {
    let (repo, from, to) = about_to_go_forward();
    let git = repo.open();
    let note = repo.dir.path().join(".git/muleteer-forward");
    let text = |commit: &str, file: &str| {
        let object = format!("{commit}:{file}");
        repo.git(&["ls-tree", "-r", "--name-only", commit])
            .lines()
            .any(|name| name == file)
            .then(|| format!("{}\n", repo.git(&["show", &object])))
    };
    let files = |state: usize, file: &str| match state {
        0 => text(&from, file),
        1 => text(&to, file),
        2 => None,
        3 => Some(String::new()),
        _ => text(&to, file).or(text(&from, file)).map(|whole| whole[..3].into()),
    };
    for (head, index) in [(&from, &from), (&from, &to), (&to, &to), (&to, &from)] {
        // Each file in one state, and all in the same.
        for states in
            (0..5).flat_map(|state| [[state, 0, 0], [0, state, 1], [1, 2, state], [state; 3]])
        {
            repo.git(&["reset", "-q", "--hard", &from]);
            repo.git(&["read-tree", index]);
            repo.git(&["update-ref", "refs/heads/main", head]);
            for (file, state) in FILES.iter().zip(states) {
                match files(state, file) {
                    Some(text) => repo.write(file, &text),
                    None => drop(std::fs::remove_file(repo.dir.path().join(file))),
                }
            }
            std::fs::write(&note, format!("1 {from} {to}\n")).expect("a note");
            git.mend_forward().expect("mends");
            let case = format!("HEAD {}, index {}, files {states:?}", head == &to, index == &to);
            assert!(!note.exists(), "{case}");
            assert_eq!(repo.git(&["status", "--porcelain"]), "", "{case}");
            if head == &from {
                git.forward(&from, &to).unwrap_or_else(|error| panic!("{case}: {error}"));
                git.forwarded().expect("done");
            }
            for file in FILES {
                assert_eq!(repo.read(file), text(&to, file), "{case}, {file}");
            }
            assert_eq!(repo.git(&["status", "--porcelain"]), "", "{case}");
        }
    }
}

#[test]
fn what_somebody_wrote_since_it_was_cut_off_stays_and_so_does_what_is_in_the_way() {
    let (repo, from, to) = about_to_go_forward();
    let git = repo.open();
    let note = repo.dir.path().join(".git/muleteer-forward");
    // In the way from the beginning: git says so, and all of it stays, even what is as if git had
    // made it.
    repo.write("below/new.txt", "made\n");
    repo.write("changed.txt", "");
    let refused = git.forward(&from, &to).expect_err("it is in the way");
    assert!(refused.to_string().contains("would be overwritten"), "{refused}");
    assert!(matches!(refused, GitError::InTheWay { .. }), "{refused:?}");
    assert_eq!(
        (repo.read("below/new.txt").as_deref(), repo.read("changed.txt").as_deref()),
        (Some("made\n"), Some(""))
    );
    assert!(!note.exists());
    // Written after it was cut off.
    repo.git(&["reset", "-q", "--hard", &from]);
    repo.write("below/new.txt", "somebody's own\n");
    repo.write("changed.txt", "after that\nand more\n");
    std::fs::write(&note, format!("1 {from} {to}\n")).expect("a note");
    assert_eq!(git.mend_forward().expect("mends"), 0);
    assert_eq!(repo.read("below/new.txt").as_deref(), Some("somebody's own\n"));
    assert_eq!(repo.read("changed.txt").as_deref(), Some("after that\nand more\n"));
    // Somebody has gone on by hand, or the note is damaged: nothing of it is true any more.
    repo.git(&["commit", "-qm", "mine", "--allow-empty"]);
    for text in [format!("1 {from} {to}\n"), "1 nonsense".into(), String::new()] {
        std::fs::write(&note, text).expect("a note");
        repo.write("below/new.txt", "made\n");
        assert_eq!(git.mend_forward().expect("is forgotten"), 0);
        assert!(!note.exists() && repo.read("below/new.txt").is_some());
    }
}

/// Also what an agent took out of the branch, or put on it while HEAD was elsewhere: all of it is
/// in the saved ref.
#[test]
fn a_rollback_of_rewritten_history_and_of_another_branch_loses_nothing() {
    let repo = Repo::new();
    repo.write("precious.txt", "p\n");
    repo.git(&["add", "precious.txt"]);
    repo.git(&["commit", "-qm", "a person's"]);
    let git = repo.open();
    let base = git.head().expect("head");
    let agents: [&[&[&str]]; 6] = [
        &[&["reset", "-q", "--hard", "HEAD~1"]],
        &[&["commit", "-q", "--amend", "-m", "mine now"]],
        &[
            &["commit", "-q", "--allow-empty", "-m", "more"],
            &["checkout", "-q", "-b", "side", "HEAD~2"],
        ],
        &[&["checkout", "-q", "--detach"], &["branch", "-q", "-D", "main"]],
        &[&["branch", "-q", "-m", "main", "other"]],
        &[&["checkout", "-q", "--orphan", "empty"]],
    ];
    for (number, agent) in agents.into_iter().enumerate() {
        git.remember_start("a", &base).expect("remembers");
        let mut left = vec![base.clone()];
        for args in agent {
            repo.git(args);
            left.extend(git.head());
        }
        repo.write("work.txt", "w\n");
        let saved =
            git.roll_back("a", &base, None, &on_main(), &[], &mut quiet()).expect("rolls back");
        let saved = saved.unwrap_or_else(|| panic!("{agent:?}: nothing saved"));
        assert_eq!(
            (git.branch().as_deref(), git.head()),
            (Some("main"), Ok(base.clone())),
            "{agent:?}"
        );
        assert_eq!(repo.git(&["status", "--porcelain"]), "?? harness-tasks.json", "{agent:?}");
        assert_eq!(repo.read("precious.txt").as_deref(), Some("p\n"), "{agent:?}");
        assert_eq!(saved.name, format!("refs/muleteer/rollback/a/{}", number + 1));
        assert_eq!(repo.git(&["show", &format!("{}:work.txt", saved.name)]), "w", "{agent:?}");
        for commit in left {
            assert_eq!(
                git.contains(&saved.commit, &commit),
                Ok(true),
                "{agent:?}: {commit} is kept"
            );
        }
    }
    // A detached HEAD comes back to be one, and the branch that the agent checked out stays where
    // it was.
    repo.git(&["checkout", "-q", "--detach"]);
    repo.git(&["checkout", "-q", "main"]);
    repo.git(&["commit", "-q", "--allow-empty", "-m", "more"]);
    let main = git.head().expect("head");
    git.roll_back("a", &base, None, &Stand::Detached, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert_eq!((git.branch(), git.head(), git.tip("main")), (None, Ok(base), Ok(main)));
}

#[test]
fn what_a_task_began_at_is_kept_until_it_has_ended() {
    let repo = Repo::new();
    repo.git(&["commit", "-q", "--allow-empty", "-m", "a person's"]);
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("remembers");
    repo.git(&["reset", "-q", "--hard", "HEAD~1"]);
    repo.git(&["reflog", "expire", "--expire=now", "--expire-unreachable=now", "--all"]);
    repo.git(&["gc", "-q", "--prune=now"]);
    assert!(git.exists(&base));
    assert_eq!(git.start("a", &base), git.tree_of(&base));
    git.forget_start("a");
    assert_eq!(repo.git(&["for-each-ref", "refs/muleteer"]), "");
}

#[test]
fn a_clone_that_its_agent_broke_is_made_anew_at_the_base_and_what_is_left_put_aside() {
    let repo = Repo::new();
    let git = repo.open();
    let base = git.head().expect("head");
    let dir = repo.dir.path().join(".muleteer/worktrees/tasks/1");
    let clone = git.prepare_clone(&dir, "main").expect("a clone");
    clone.reset_clone(&git, "main").expect("at the tip");
    repo.git(&["commit", "-q", "--allow-empty", "-m", "by another worker"]);
    assert_eq!(git.renew_clone(&dir, "main", &base), Ok(None), "nothing is wrong with it");
    for broken in [".git", ".git/HEAD", ""] {
        std::fs::write(dir.join("work.txt"), "w\n").expect("work");
        let at = dir.join(broken);
        let gone =
            if at.is_dir() { std::fs::remove_dir_all(&at) } else { std::fs::remove_file(&at) };
        gone.expect("it goes");
        let why = git.renew_clone(&dir, "main", &base).expect("renews").expect("it was broken");
        match why.split_once("put aside as ") {
            Some((_, aside)) => {
                assert_eq!(repo.read(&format!("{aside}/work.txt")).as_deref(), Some("w\n"), "{why}")
            }
            None => assert_eq!((broken, why.as_str()), ("", "its clone is gone")),
        }
        assert_eq!((clone.head(), clone.exists(&base)), (Ok(base.clone()), true), "{broken}");
        assert!(!dir.join("work.txt").exists() && dir.join("kept.txt").exists());
        assert_eq!(
            clone.roll_back("a", &base, None, &Stand::Anywhere, &[], &mut quiet()),
            Ok(None)
        );
    }
    assert_eq!(repo.git(&["log", "-1", "--format=%s"]), "by another worker");
}

#[test]
fn no_repository_is_no_detached_head() {
    let repo = Repo::new();
    let git = repo.open();
    assert_eq!(git.stands_on(), Ok(Some("main".into())));
    repo.git(&["tag", "main"]);
    assert_eq!(git.stands_on(), Ok(Some("main".into())), "whatever else has its name");
    repo.git(&["checkout", "-q", "--detach"]);
    assert_eq!(git.stands_on(), Ok(None));
    std::fs::remove_dir_all(repo.dir.path().join(".git")).expect("it goes");
    assert!(git.stands_on().is_err());
}

/// Ten lines, some of them with something behind.
fn lines(changed: &[(usize, &str)]) -> String {
    let with =
        |line: usize| changed.iter().find(|(at, _)| *at == line).map_or("", |(_, text)| *text);
    (1..=10).map(|line| format!("line {line}{}\n", with(line))).collect()
}

/// A person's file that is half edited, and one that git does not know yet.
fn half_edited() -> (Repo, Git, String, String) {
    let repo = Repo::new();
    repo.write("doc.txt", &lines(&[]));
    repo.git(&["add", "doc.txt"]);
    repo.git(&["commit", "-qm", "doc"]);
    repo.write("doc.txt", &lines(&[(2, " mine"), (8, " mine")]));
    repo.write("notes.txt", "mine\n");
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("remembers");
    let start = git.start("a", &base).expect("start");
    (repo, git, base, start)
}

/// The agent threw it away, or wrote over it, and passed its validation: the harness has the only
/// copy.
#[test]
fn what_a_task_took_from_a_person_is_kept_and_an_undo_brings_it_back() {
    let agents: [(&[&str], &str, Option<String>); 4] = [
        (&["reset", "clean"], "doc.txt, notes.txt", None),
        (&["checkout"], "doc.txt", None),
        (&["remove"], "notes.txt", None),
        // Of two lines of theirs one.
        (&[], "doc.txt", Some(lines(&[(2, " mine"), (5, " agent")]))),
    ];
    for (does, lost, writes) in agents {
        let (repo, git, base, start) = half_edited();
        assert_eq!(git.keep_lost("a", &base, &start), Ok(None), "all is there");
        repo.write("work.txt", "w\n");
        for what in does {
            match *what {
                "reset" => drop(repo.git(&["reset", "-q", "--hard"])),
                "clean" => drop(repo.git(&["clean", "-fdq"])),
                "checkout" => drop(repo.git(&["checkout", "--", "doc.txt"])),
                _ => repo.remove("notes.txt"),
            }
        }
        repo.write("work.txt", "w\n");
        if let Some(text) = &writes {
            repo.write("doc.txt", text);
        }
        git.commit(&start, "a: work").expect("commits").expect("something");
        let kept = git.keep_lost("a", &base, &start).expect("keeps").expect("something is lost");
        assert_eq!((kept.paths.as_str(), kept.committed.as_str()), (lost, ""), "{does:?}");
        assert_eq!(
            git.keep_lost("a", &base, &start),
            Ok(Some(kept.clone())),
            "done again it is found done"
        );
        git.forget_start("a");
        assert_eq!(git.saved(None), Ok(vec![kept.saved.clone()]));
        // The next task has been done since.
        repo.write("next.txt", "n\n");
        repo.git(&["add", "next.txt"]);
        repo.git(&["commit", "-qm", "next"]);
        let head = git.head().expect("head");
        git.undo(&kept.saved, &[]).expect("undoes").expect("what was there is kept");
        assert_eq!(git.head().expect("head"), head);
        assert_eq!(repo.read("notes.txt").as_deref(), Some("mine\n"), "{does:?}");
        assert!(repo.read("doc.txt").expect("it is there").contains("line 8 mine\n"), "{does:?}");
        assert_eq!(
            (repo.read("work.txt").as_deref(), repo.read("next.txt").as_deref()),
            (Some("w\n"), Some("n\n"))
        );
        assert_eq!(git.undo(&kept.saved, &[]), Ok(None), "it is there");
    }
}

/// The agent changed other lines of the same files: only those are the task's.
#[test]
fn of_a_file_that_both_changed_only_the_task_s_lines_are_committed() {
    let (repo, git, base, start) = half_edited();
    let both = lines(&[(2, " mine"), (5, " agent"), (8, " mine")]);
    repo.write("doc.txt", &both);
    repo.write("notes.txt", "mine\n");
    git.commit(&start, "a: work").expect("commits").expect("something");
    assert_eq!(repo.git(&["show", "HEAD:doc.txt"]) + "\n", lines(&[(5, " agent")]));
    assert_eq!(repo.read("doc.txt").as_deref(), Some(both.as_str()));
    assert_eq!(
        repo.git(&["status", "--porcelain"]),
        " M doc.txt\n?? harness-tasks.json\n?? notes.txt"
    );
    assert_eq!(git.keep_lost("a", &base, &start), Ok(None), "all of theirs is there");
    assert_eq!(
        git.commit(&start, "a: work").expect("again"),
        None,
        "committing again commits nothing"
    );
    assert_eq!(git.uncommitted_since(&start), Ok(None));
    // An agent that has committed its own part itself has left the rest of it.
    let (repo, git, base, start) = half_edited();
    repo.git(&["stash", "-q"]);
    repo.write("doc.txt", &lines(&[(5, " agent")]));
    repo.git(&["commit", "-qam", "a: half"]);
    repo.git(&["stash", "pop", "-q"]);
    repo.write("doc.txt", &lines(&[(2, " mine"), (5, " agent"), (8, " mine"), (10, " agent")]));
    git.commit(&start, "a: work").expect("commits").expect("something");
    assert_eq!(repo.git(&["show", "HEAD:doc.txt"]) + "\n", lines(&[(5, " agent"), (10, " agent")]));
    // A rollback to what another worker has completed since leaves what was theirs too.
    let kept = git.head().expect("head");
    repo.write("doc.txt", "nothing\n");
    git.roll_back("a", &base, Some(&kept), &Stand::Anywhere, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert_eq!(
        repo.read("doc.txt"),
        Some(lines(&[(2, " mine"), (5, " agent"), (8, " mine"), (10, " agent")]))
    );
}

/// Nobody can tell then what is whose: the file is committed as it passed, what was theirs is kept,
/// and both are said.
#[test]
fn where_both_changed_the_same_lines_the_file_is_committed_whole_and_theirs_is_kept() {
    let (repo, git, base, start) = half_edited();
    let whole = lines(&[(2, " mine, agreed"), (8, " mine")]);
    repo.write("doc.txt", &whole);
    repo.write("notes.txt", "mine\nand the agent's\n");
    git.commit(&start, "a: work").expect("commits").expect("something");
    assert_eq!(repo.git(&["show", "HEAD:doc.txt"]) + "\n", whole);
    let kept = git.keep_lost("a", &base, &start).expect("keeps").expect("something is lost");
    assert_eq!(
        (kept.paths.as_str(), kept.committed.as_str()),
        ("doc.txt, notes.txt", "doc.txt, notes.txt")
    );
    assert_eq!(repo.git(&["show", &format!("{}:notes.txt", kept.saved.name)]), "mine");
    assert_eq!(
        git.commit(&start, "a: work").expect("again"),
        None,
        "committing again commits nothing"
    );
}

/// A repository, and a person whose own configuration says this.
fn of_a_person(config: &str) -> (Repo, tempfile::TempDir) {
    let home = tempfile::tempdir().expect("a home");
    std::fs::write(home.path().join(".gitconfig"), config).expect("a configuration");
    (Repo::new(), home)
}

fn open_for(dir: &Path, home: &tempfile::TempDir) -> Result<Git, GitError> {
    let config = home.path().join(".gitconfig");
    let vars = [
        ("HOME", home.path().as_os_str()),
        ("XDG_CONFIG_HOME", home.path().as_os_str()),
        ("GIT_CONFIG_GLOBAL", config.as_os_str()),
    ];
    Git::open_below(dir, None, Person::read(dir, &vars)?)
}

const UPPER: &str = "[filter \"up\"]\n clean = tr a-z A-Z\n smudge = tr A-Z a-z\n required\n";

#[test]
fn what_a_person_s_own_git_ignores_converts_and_filters_ours_does_too() {
    let (repo, home) =
        of_a_person(&format!("[core]\n excludesFile = ~/ignore\n autocrlf = input\n{UPPER}"));
    let ignore = home.path().join("ignore");
    std::fs::write(&ignore, "secret.key\n").expect("ignored");
    let config = std::fs::read_to_string(home.path().join(".gitconfig")).expect("it is there");
    std::fs::write(
        home.path().join(".gitconfig"),
        config.replace("~/ignore", &ignore.display().to_string()),
    )
    .expect("a configuration");
    std::fs::create_dir(home.path().join("git")).expect("a directory");
    std::fs::write(home.path().join("git/attributes"), "*.up filter=up\n").expect("attributes");
    let git = open_for(repo.dir.path(), &home).expect("a repository");
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("remembers");
    repo.write("secret.key", "k\n");
    repo.write("crlf.txt", "one\r\ntwo\r\n");
    repo.write("big.up", "content\n");
    let commit = git
        .commit(&git.start("a", &base).expect("start"), "a")
        .expect("commits")
        .expect("something");
    assert_eq!(repo.git(&["show", "--format=", "--name-only", &commit]), "big.up\ncrlf.txt");
    assert_eq!(repo.git(&["show", "HEAD:crlf.txt"]), "one\ntwo");
    assert_eq!(repo.git(&["show", "HEAD:big.up"]), "CONTENT");
    // What a rollback brings back is content, and not what stands for it in the repository.
    git.remember_start("b", &commit).expect("remembers");
    repo.remove("big.up");
    git.roll_back("b", &commit, None, &Stand::Anywhere, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert_eq!(repo.read("big.up").as_deref(), Some("content\n"));
    // In a worker's clone it would be neither.
    let refused = git.prepare_clone(&repo.dir.path().join(".muleteer/worktrees/tasks/1"), "main");
    let refused = refused.expect_err("its files go through a filter").to_string();
    assert!(
        refused.contains("big.up goes through the filter `up`, which is not run in the clones"),
        "{refused}"
    );
}

/// An agent can write there: it would be run by the harness, outside of any sandbox.
#[test]
fn a_filter_that_only_the_repository_s_configuration_defines_is_never_run() {
    for (of_person, key) in [("", "clean"), (UPPER, "process"), (UPPER, "clean")] {
        let (repo, home) = of_a_person(of_person);
        let git = open_for(repo.dir.path(), &home).expect("a repository");
        let base = git.head().expect("head");
        git.remember_start("a", &base).expect("remembers");
        let start = git.start("a", &base).expect("start");
        let run = home.path().join("run");
        for name in ["up", "other"] {
            repo.git(&[
                "config",
                &format!("filter.{name}.{key}"),
                &format!("touch {}; cat", run.display()),
            ]);
        }
        repo.write("work.txt", "w\n");
        git.commit(&start, "a").expect("commits").expect("no attribute names it");
        repo.write(".gitattributes", "*.up filter=up\n");
        repo.write("big.up", "content\n");
        let committed = git.commit(&start, "a");
        if of_person == UPPER && key == "clean" {
            committed.expect("commits").expect("the person's own is run");
            assert_eq!(repo.git(&["cat-file", "blob", "HEAD:big.up"]), "CONTENT");
        } else {
            let refused = committed.expect_err("nobody filtered it").to_string();
            assert!(
                refused
                    .contains("big.up goes through the filter `up`, which only the repository's"),
                "{refused}"
            );
            assert!(git.remember_start("b", &base).is_err(), "nor does a task begin");
        }
        git.roll_back("a", &base, None, &Stand::Anywhere, &[], &mut quiet()).expect("rolls back");
        assert!(!run.exists(), "{key} beside {of_person:?}");
    }
}

#[test]
fn a_repository_that_git_does_not_trust_is_told_from_none_and_one_that_the_person_trusts_is_opened()
{
    let (repo, home) = of_a_person("");
    if std::os::unix::fs::chown(repo.dir.path().join(".git"), Some(54321), None).is_err()
        || std::os::unix::fs::chown(repo.dir.path(), Some(54321), None).is_err()
    {
        return eprintln!("not root: nothing can be given away");
    }
    let refused = open_for(repo.dir.path(), &home).expect_err("it is somebody else's");
    assert!(
        matches!(&refused, GitError::Distrusted { said, .. } if said.contains("safe.directory")),
        "{refused}"
    );
    let trusted = format!(
        "[safe]\n directory = {}\n",
        repo.dir.path().canonicalize().expect("a place").display()
    );
    std::fs::write(home.path().join(".gitconfig"), trusted).expect("a configuration");
    let git = open_for(repo.dir.path(), &home).expect("it is trusted");
    git.remember_start("a", &git.head().expect("head")).expect("and worked in");
}
