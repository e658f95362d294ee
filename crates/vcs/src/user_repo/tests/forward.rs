//! Fast-forwards that were interrupted.

use crate::user_repo::tests::*;

/// Makes two commits and checks out the first. The second adds a file, changes one and removes one.
fn before_a_fast_forward() -> (Repo, String, String) {
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

/// After an interruption the disk may have the files in any of these states. Then the fast-forward
/// is finished or undone.
#[test]
fn interrupted_fast_forward_is_finished_or_undone() {
    let (repo, from, to) = before_a_fast_forward();
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
        // Each file alone in a state, and all in the same.
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
fn later_changes_and_files_in_the_way_survive_a_fast_forward() {
    let (repo, from, to) = before_a_fast_forward();
    let git = repo.open();
    let note = repo.dir.path().join(".git/muleteer-forward");
    // The files were in the way before the fast-forward. git reports them, and all stay, even one
    // that has the content of the new commit.
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
    // The files were written after the interruption.
    repo.git(&["reset", "-q", "--hard", &from]);
    repo.write("below/new.txt", "somebody's own\n");
    repo.write("changed.txt", "after that\nand more\n");
    std::fs::write(&note, format!("1 {from} {to}\n")).expect("a note");
    assert_eq!(git.mend_forward().expect("mends"), 0);
    assert_eq!(repo.read("below/new.txt").as_deref(), Some("somebody's own\n"));
    assert_eq!(repo.read("changed.txt").as_deref(), Some("after that\nand more\n"));
    // Somebody has committed by hand, or the note is damaged, so the note is void.
    repo.git(&["commit", "-qm", "mine", "--allow-empty"]);
    for text in [format!("1 {from} {to}\n"), "1 nonsense".into(), String::new()] {
        std::fs::write(&note, text).expect("a note");
        repo.write("below/new.txt", "made\n");
        assert_eq!(git.mend_forward().expect("is forgotten"), 0);
        assert!(!note.exists() && repo.read("below/new.txt").is_some());
    }
}
