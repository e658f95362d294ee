//! Uncommitted changes of a person during a task.

use crate::user_repo::tests::*;

#[test]
fn uncommitted_changes_of_a_person_are_neither_committed_nor_rolled_back() {
    let repo = Repo::new();
    repo.write("notes.txt", "mine\n");
    repo.write("kept.txt", "half edited by a person\n");
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("saves");
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
fn staged_change_of_a_person_stays_staged() {
    let repo = Repo::new();
    repo.write("staged.txt", "s\n");
    repo.git(&["add", "staged.txt"]);
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("saves");
    repo.write("work.txt", "w\n");
    git.commit(&git.start("a", &base).expect("start"), "a")
        .expect("commits")
        .expect("something");
    assert_eq!(repo.git(&["status", "--porcelain"]), "A  staged.txt\n?? harness-tasks.json");
}

/// Makes a text of ten lines, some of them with a suffix.
fn lines(changed: &[(usize, &str)]) -> String {
    let with =
        |line: usize| changed.iter().find(|(at, _)| *at == line).map_or("", |(_, text)| *text);
    (1..=10).map(|line| format!("line {line}{}\n", with(line))).collect()
}

/// Begins a task while a person has a changed file and an untracked one.
fn half_edited() -> (Repo, Git, String, String) {
    let repo = Repo::new();
    repo.write("doc.txt", &lines(&[]));
    repo.git(&["add", "doc.txt"]);
    repo.git(&["commit", "-qm", "doc"]);
    repo.write("doc.txt", &lines(&[(2, " mine"), (8, " mine")]));
    repo.write("notes.txt", "mine\n");
    let git = repo.open();
    let base = git.head().expect("head");
    git.remember_start("a", &base).expect("saves");
    let start = git.start("a", &base).expect("start");
    (repo, git, base, start)
}

/// If an agent removes or overwrites them and passes its validation, the harness has the only copy.
#[test]
fn lost_changes_of_a_person_are_saved_and_undo_restores_them() {
    let agents: [(&[&str], &str, Option<String>); 4] = [
        (&["reset", "clean"], "doc.txt, notes.txt", None),
        (&["checkout"], "doc.txt", None),
        (&["remove"], "notes.txt", None),
        // The agent removes one of the person's two lines.
        (&[], "doc.txt", Some(lines(&[(2, " mine"), (5, " agent")]))),
    ];
    for (does, lost, writes) in agents {
        let (repo, git, base, start) = half_edited();
        assert_eq!(git.keep_lost("a", &base, &start), Ok(None), "nothing is lost yet");
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
            "a repetition returns the same"
        );
        git.forget_start("a");
        assert_eq!(git.saved(None), Ok(vec![kept.saved.clone()]));
        // The next task commits something.
        repo.write("next.txt", "n\n");
        repo.git(&["add", "next.txt"]);
        repo.git(&["commit", "-qm", "next"]);
        let head = git.head().expect("head");
        git.undo(&kept.saved, &[]).expect("undoes").expect("the present files are saved");
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

/// The agent changed other lines of the same file than the person.
#[test]
fn commit_of_a_file_that_both_changed_has_only_the_tasks_lines() {
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
    assert_eq!(git.keep_lost("a", &base, &start), Ok(None), "nothing of theirs is lost");
    assert_eq!(
        git.commit(&start, "a: work").expect("again"),
        None,
        "committing again commits nothing"
    );
    assert_eq!(git.uncommitted_since(&start), Ok(None));
    // The agent has committed a part of its own changes itself.
    let (repo, git, base, start) = half_edited();
    repo.git(&["stash", "-q"]);
    repo.write("doc.txt", &lines(&[(5, " agent")]));
    repo.git(&["commit", "-qam", "a: half"]);
    repo.git(&["stash", "pop", "-q"]);
    repo.write("doc.txt", &lines(&[(2, " mine"), (5, " agent"), (8, " mine"), (10, " agent")]));
    git.commit(&start, "a: work").expect("commits").expect("something");
    assert_eq!(repo.git(&["show", "HEAD:doc.txt"]) + "\n", lines(&[(5, " agent"), (10, " agent")]));
    // A rollback to a later commit of another worker keeps the person's changes too.
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

/// The file is committed as it passed, the person's version is saved, and both are reported.
#[test]
fn commit_of_lines_that_both_changed_has_the_whole_file_and_saves_the_persons() {
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
