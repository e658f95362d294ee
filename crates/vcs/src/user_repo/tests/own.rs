//! The harness's own files in commits: of an agent, of a person, staged, merged, stashed.

use crate::user_repo::tests::*;

const LIST: &str = "harness-tasks.json";

/// Begins a task and returns its base.
fn begun(repo: &Repo) -> (Git, String) {
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("saves");
    (git, base)
}

/// Asserts that no commit since `base` and no staged change touches the harness's files, and that
/// the list in the working directory is unchanged.
fn is_clean(repo: &Repo, base: &str) {
    let touched = repo.git(&[
        "log",
        "--full-history",
        "-m",
        "--format=%h %s",
        &format!("{base}..HEAD"),
        "--",
        "*harness-*",
    ]);
    assert_eq!(touched, "");
    assert_eq!(repo.git(&["diff", "--cached", "--name-only", "HEAD", "--", "*harness-*"]), "");
    assert_eq!(repo.read(LIST).as_deref(), Some("{\"newer\": true}"));
}

fn subjects(repo: &Repo, base: &str) -> String {
    repo.git(&["log", "--format=%s", &format!("{base}..HEAD")]).replace('\n', ", ")
}

#[test]
fn commits_of_an_agent_lose_the_list_and_keep_author_dates_and_message() {
    // The agent's commands, and the subjects of its commits afterwards.
    for (script, left) in [
        ("git add -A; git commit -qm 'list alone'", ""),
        ("echo w > w; git add -A; git commit -qm work", "work"),
        (
            "echo w > w; git add -A; git commit -qm first; git commit -q --amend -m amended",
            "amended",
        ),
        ("git add -A; git commit -qm list; echo w > w; git add w; git commit -qm work", "work"),
        (
            "echo w > w; git add -A; git commit -qm one; echo x > harness-progress.txt; \
             git add -A; git commit -qm two",
            "one",
        ),
        (
            "echo w > w; git add -A; git commit -qm one; git rm -q --cached harness-tasks.json; \
             git commit -qm two",
            "one",
        ),
        (
            "git checkout -qb side; echo w > w; git add -A; git commit -qm work; \
             git checkout -q main; git merge -q --no-ff -m merge side",
            "merge, work",
        ),
        (
            "git checkout -qb side; git add -A; git commit -qm list; git checkout -q main; \
             echo m > m; git add m; git commit -qm main; git merge -q --no-ff -m merge side; \
             printf '{\"newer\": true}' > harness-tasks.json",
            "main",
        ),
        ("git checkout -q --detach; echo w > w; git add -A; git commit -qm work", "work"),
        ("git add -A", ""),
        (
            "echo harness-tasks.json >> .git/info/exclude; git add -f harness-tasks.json; \
             echo w > w; git add w; git commit -qm forced",
            "forced",
        ),
        (
            "git add -A; git stash -q; git stash apply -q; echo w > w; git add w; \
             git commit -qm stashed",
            "stashed",
        ),
    ] {
        let repo = Repo::new();
        let (git, base) = begun(&repo);
        repo.write(LIST, "{\"newer\": true}");
        repo.write("harness-progress.txt", "log\n");
        let mut shell = helper("/bin/sh");
        shell
            .args(["-ec", script])
            .current_dir(repo.dir.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null");
        shell.env("GIT_AUTHOR_DATE", "2001-02-03T04:05:06+0700").env("GIT_AUTHOR_NAME", "Agent");
        run(shell, b"", script).unwrap_or_else(|error| panic!("{script}: {error}"));
        git.disown("a", &base).unwrap_or_else(|error| panic!("{script}: {error}"));
        assert_eq!(subjects(&repo, &base), left, "{script}");
        is_clean(&repo, &base);
        for about in
            repo.git(&["log", "--no-merges", "--format=%an %aI", &format!("{base}..HEAD")]).lines()
        {
            assert_eq!(about, "Agent 2001-02-03T04:05:06+07:00", "{script}");
        }
        assert_eq!(git.disown("a", &base), Ok(None), "{script}: a repetition changes nothing");
        let start = git.start("a", &base).expect("start");
        git.commit(&start, "a: rest").expect("commits");
        is_clean(&repo, &base);
        git.roll_back("a", &base, None, &on_main(), &[], &mut quiet())
            .unwrap_or_else(|error| panic!("{script}: {error}"));
        assert_eq!(
            (repo.read("w"), repo.git(&["rev-parse", "main"])),
            (None, base.clone()),
            "{script}"
        );
        is_clean(&repo, &base);
    }
}

#[test]
fn rollback_and_commit_succeed_with_a_staged_and_changed_list() {
    let repo = Repo::new();
    let (git, base) = begun(&repo);
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-qm", "list"]);
    repo.write(LIST, "{\"staged\": true}");
    repo.git(&["add", "-A"]);
    repo.write(LIST, "{\"newer\": true}");
    repo.write("w", "w\n");
    // The list was not removed before, as with an older version.
    let start = git.start("a", &base).expect("start");
    git.commit(&start, "a: work").expect("commits").expect("something");
    git.roll_back("a", &base, None, &on_main(), &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert_eq!((repo.read("w"), repo.read(LIST).as_deref()), (None, Some("{\"newer\": true}")));
}

#[test]
fn tracked_list_is_untracked_by_a_commit_without_changing_history() {
    let repo = Repo::new();
    repo.write("harness-init.sh", "true\n");
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-qm", "the list too"]);
    repo.write(LIST, "{\"newer\": true}");
    repo.write("other", "o\n");
    repo.git(&["add", "other"]);
    let git = repo.open();
    let before = git.head().expect("head");
    let said = git.untrack().expect("untracks").expect("something");
    assert!(said.contains("stops that"), "{said}");
    assert_eq!(repo.git(&["rev-parse", "HEAD^"]), before);
    assert_eq!(repo.git(&["show", "--format=", "--name-status", "HEAD"]), "D\tharness-tasks.json");
    assert_eq!(
        repo.git(&["ls-files", "harness-*"]),
        "harness-init.sh",
        "a person may track the script"
    );
    assert_eq!(
        repo.git(&["diff", "--cached", "--name-only"]),
        "other",
        "a person's staged change stays staged"
    );
    assert_eq!(repo.read(LIST).as_deref(), Some("{\"newer\": true}"));
    assert_eq!(git.untrack(), Ok(None));
    // A task begins, and its agent commits everything.
    let (git, base) = begun(&repo);
    repo.write("w", "w\n");
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-qm", "work"]);
    git.disown("a", &base).expect("removes it");
    is_clean(&repo, &base);
    assert_eq!(subjects(&repo, &base), "work");
}

#[test]
fn earlier_and_foreign_commits_are_not_rewritten() {
    let repo = Repo::new();
    repo.git(&["checkout", "-qb", "feature"]);
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-qm", "somebody's with the list"]);
    let theirs = repo.git(&["rev-parse", "HEAD"]);
    repo.git(&["checkout", "-q", "main"]);
    repo.write(LIST, "{\"newer\": true}");
    let (git, base) = begun(&repo);
    repo.remove(LIST);
    repo.git(&["merge", "-q", "--no-ff", "-m", "merge", "feature"]);
    repo.write(LIST, "{\"newer\": true}");
    repo.write("w", "w\n");
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-qm", "work"]);
    git.disown("a", &base).expect("removes it");
    assert_eq!(repo.git(&["rev-parse", "feature"]), theirs);
    assert!(git.contains("HEAD", &theirs).expect("git works"), "the merged commit is the same");
    assert_eq!(subjects(&repo, &base).replace(", ", "\n").lines().count(), 3);
    assert_eq!(repo.git(&["ls-tree", "--name-only", "HEAD", LIST]), "");
    assert_eq!(repo.read(LIST).as_deref(), Some("{\"newer\": true}"));
}

/// The task list is tracked upstream. The agent commits, pulls and commits again.
#[test]
fn pulled_commits_stay_and_the_agents_own_lose_the_list() {
    // The agent pulls from a remote, from an address, or by a tag.
    for pull in [
        "git remote add origin ../upstream; git pull -q --no-rebase --no-edit origin main",
        "git pull -q --no-rebase --no-edit ../upstream main",
        "git fetch -q ../upstream main:refs/tags/theirs; rm .git/FETCH_HEAD; \
         git merge -q --no-edit theirs",
        "git remote add origin ../upstream; git fetch -q origin; rm .git/FETCH_HEAD; \
         git rebase -q origin/main",
    ] {
        let above = tempfile::tempdir().expect("a directory");
        let repo = Repo::new();
        let upstream = above.path().join("upstream");
        repo.git(&["clone", "-q", ".", &upstream.display().to_string()]);
        let there = |args: &[&str]| {
            let mut command = helper("git");
            command.arg("-C").arg(&upstream).args([
                "-c",
                "user.name=B",
                "-c",
                "user.email=b@example.org",
            ]);
            command.args(args).env("GIT_CONFIG_GLOBAL", "/dev/null");
            run(command, b"", pull).expect("git works")
        };
        std::fs::write(upstream.join(LIST), "{\"theirs\": true}").expect("writes");
        there(&["add", "-f", LIST]);
        there(&["commit", "-qm", "theirs with the list"]);
        let theirs = there(&["rev-parse", "HEAD"]);

        let (git, base) = begun(&repo);
        let script = format!(
            "echo one > one; git add one; git commit -qm one; rm {LIST}; {}; \
             printf '{{\"newer\": true}}' > {LIST}; echo two > two; git add -A; git commit -qm two",
            pull.replace("../upstream", &upstream.display().to_string())
        );
        let mut shell = helper("/bin/sh");
        shell
            .args(["-ec", &script])
            .current_dir(repo.dir.path())
            .env("GIT_CONFIG_GLOBAL", "/dev/null");
        run(shell, b"", pull).unwrap_or_else(|error| panic!("{pull}: {error}"));
        git.disown("a", &base).unwrap_or_else(|error| panic!("{pull}: {error}"));
        assert!(
            git.contains("HEAD", &theirs).expect("git works"),
            "{pull}: their commit is the same"
        );
        let own = repo.git(&[
            "log",
            "--no-merges",
            "--format=%s",
            &format!("{base}..HEAD"),
            &format!("^{theirs}"),
        ]);
        assert!(
            own.lines().any(|subject| subject == "one") && own.lines().any(|one| one == "two"),
            "{pull}: {own}"
        );
        for commit in repo
            .git(&["rev-list", "--no-merges", "HEAD", &format!("^{base}"), &format!("^{theirs}")])
            .lines()
        {
            let touched = repo.git(&[
                "diff-tree",
                "--no-commit-id",
                "--name-status",
                "-r",
                commit,
                "--",
                LIST,
            ]);
            assert!(touched.is_empty() || touched.starts_with('D'), "{pull}: {touched}");
        }
        assert_eq!(repo.git(&["ls-tree", "--name-only", "HEAD", LIST]), "", "{pull}");
        assert_eq!(repo.read(LIST).as_deref(), Some("{\"newer\": true}"), "{pull}");
        assert_eq!(git.disown("a", &base), Ok(None), "{pull}: a repetition changes nothing");
    }
}

/// After a power cut or an older version, nobody knows which branches are new.
#[test]
fn incomplete_refs_file_is_ignored() {
    for cut in [0, 10, 3] {
        let repo = Repo::new();
        repo.git(&["branch", "theirs"]);
        let (git, base) = begun(&repo);
        let file = git.refs_file("a");
        let whole = std::fs::read_to_string(&file).expect("a file");
        assert!(whole.ends_with("end\n"), "{whole}");
        assert!(
            git.remembered_refs("a").is_some_and(|refs| refs.len() == whole.lines().count() - 1)
        );
        std::fs::write(&file, &whole[..if cut == 0 { 0 } else { whole.len() - cut }])
            .expect("writes");
        assert_eq!(git.remembered_refs("a"), None);
        repo.git(&["checkout", "-q", "theirs"]);
        repo.git(&["add", "-A"]);
        repo.git(&["commit", "-qm", "somebody's"]);
        let theirs = repo.git(&["rev-parse", "HEAD"]);
        repo.git(&["checkout", "-q", "main"]);
        repo.write(LIST, "{\"newer\": true}");
        repo.write("w", "w\n");
        repo.git(&["add", "-A"]);
        repo.git(&["commit", "-qm", "work"]);
        git.disown("a", &base).expect("removes it");
        assert_eq!(repo.git(&["rev-parse", "theirs"]), theirs);
        assert_eq!(subjects(&repo, &base), "work");
        is_clean(&repo, &base);
    }
}

#[test]
fn branch_that_an_agent_left_loses_the_list() {
    let repo = Repo::new();
    let (git, base) = begun(&repo);
    repo.git(&["checkout", "-qb", "side"]);
    repo.write("w", "w\n");
    repo.git(&["add", "-A"]);
    repo.git(&["commit", "-qm", "work"]);
    repo.git(&["checkout", "-q", "main"]);
    repo.write(LIST, "{\"newer\": true}");
    git.disown("a", &base).expect("removes it");
    assert_eq!(repo.git(&["show", "--format=%s", "--name-only", "side"]), "work\n\nw");
    is_clean(&repo, &base);
}

#[test]
fn commits_in_a_workers_clone_below_the_top_lose_the_list() {
    let repo = Repo::new();
    repo.remove(LIST);
    repo.write("odd [*] folder/harness-tasks.json", "{}");
    let git = Git::open(&repo.dir.path().join("odd [*] folder")).expect("a repository");
    let clones = tempfile::tempdir().expect("a directory");
    let clone = git.prepare_clone(&clones.path().join("1"), "main").expect("a clone");
    let base = clone.reset_clone(&git, "main").expect("at the tip");
    clone.remember_refs("a").expect("saves");
    for name in
        ["harness-tasks.json", "harness-tasks.json.damaged.2", "work", "harness-tasks.json.mine"]
    {
        let path = clone.top().join("odd [*] folder").join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, "x").expect("a file");
    }
    clone.git(&["add", "-A"]).expect("adds");
    clone.git(&["commit", "-qm", "work"]).expect("commits");
    clone.disown("a", &base).expect("removes it");
    let names = clone.git(&["show", "--format=", "--name-only", "HEAD"]).expect("shows");
    assert_eq!(names, "odd [*] folder/harness-tasks.json.mine\nodd [*] folder/work");
    assert_eq!(git.land(&clone, "main", &base), Ok(true));
    assert_eq!(repo.read("odd [*] folder/harness-tasks.json").as_deref(), Some("{}"));
}
