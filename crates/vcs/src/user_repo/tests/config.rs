//! The person's own configuration, and that of a repository.

use crate::user_repo::tests::*;

/// Makes a repository, and a home directory with this configuration.
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
fn ignore_rules_line_ends_and_filters_of_the_person_are_obeyed() {
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
    git.remember_start("a", &base).expect("saves");
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
    // A rollback restores the content, and not the filtered form.
    git.remember_start("b", &commit).expect("saves");
    repo.remove("big.up");
    git.roll_back("b", &commit, None, &Stand::Anywhere, &[], &mut quiet())
        .expect("rolls back")
        .expect("saved");
    assert_eq!(repo.read("big.up").as_deref(), Some("content\n"));
    // In a worker's clone no filter runs.
    let refused = git.prepare_clone(&repo.dir.path().join(".muleteer/worktrees/tasks/1"), "main");
    let refused = refused.expect_err("its files go through a filter").to_string();
    assert!(
        refused.contains("big.up goes through the filter `up`, which is not run in the clones"),
        "{refused}"
    );
}

/// An agent can write that configuration, and the harness would run the filter outside of any
/// sandbox.
#[test]
fn filter_of_the_repositorys_configuration_is_never_run() {
    for (of_person, key) in [("", "clean"), (UPPER, "process"), (UPPER, "clean")] {
        let (repo, home) = of_a_person(of_person);
        let git = open_for(repo.dir.path(), &home).expect("a repository");
        let base = git.head().expect("head");
        git.remember_start("a", &base).expect("saves");
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
            committed.expect("commits").expect("the person's own filter runs");
            assert_eq!(repo.git(&["cat-file", "blob", "HEAD:big.up"]), "CONTENT");
        } else {
            let refused = committed.expect_err("nobody filtered it").to_string();
            assert!(
                refused
                    .contains("big.up goes through the filter `up`, which only the repository's"),
                "{refused}"
            );
            assert!(git.remember_start("b", &base).is_err(), "no task begins either");
        }
        git.roll_back("a", &base, None, &Stand::Anywhere, &[], &mut quiet()).expect("rolls back");
        assert!(!run.exists(), "{key} beside {of_person:?}");
    }
}

#[test]
fn untrusted_repository_is_rejected_and_trusted_one_opened() {
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
    git.remember_start("a", &git.head().expect("head")).expect("a task begins");
}
