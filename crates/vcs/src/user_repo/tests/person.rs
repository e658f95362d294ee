//! Uncommitted changes of a person during a task.

use crate::user_repo::tests::*;

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
