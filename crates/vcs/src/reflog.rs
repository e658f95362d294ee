//! Finds the commits that were made in a repository, by its reflog, as opposed to those from
//! elsewhere.

use crate::git_files;

/// Returns the commits that were made in the place of this reflog. `commit`, `merge`, the picks of
/// a rebase and the like make them. `checkout`, `reset`, a fast-forward or the start of a rebase
/// only move to existing commits.
///
/// A line is `<old> <new> <name> <mail> <time> <zone>\t<action>: <what>` (git's documentation of
/// `update-ref`). An unknown action counts as making a commit. Other lines are ignored.
pub fn made(log: &str) -> Vec<String> {
    log.lines()
        .filter_map(|line| {
            let (moved, said) = line.split_once('\t').unwrap_or((line, ""));
            let new = git_files::hash(moved.split(' ').nth(1)?.as_bytes())?;
            makes(said).then_some(new)
        })
        .collect()
}

/// Returns every commit that the ref has been at, the oldest first.
pub fn reached(log: &str) -> Vec<String> {
    log.lines()
        .filter_map(|line| git_files::hash(line.split(' ').nth(1)?.as_bytes()))
        .collect()
}

/// Returns the commits that were checked out by their hash, and left for a branch or another
/// commit.
pub fn left_detached(log: &str) -> Vec<String> {
    log.lines()
        .filter_map(|line| {
            let (moved, said) = line.split_once('\t')?;
            let from = said.strip_prefix("checkout: moving from ")?.split(' ').next()?;
            let old = git_files::hash(moved.split(' ').next()?.as_bytes())?;
            (from == old).then_some(old)
        })
        .collect()
}

fn makes(said: &str) -> bool {
    let (action, what) = said.split_once(": ").unwrap_or((said, ""));
    let first = action.split(' ').next().unwrap_or_default();
    let moves = ["checkout", "reset", "clone", "branch", "fetch", "switch", "restore"]
        .contains(&first)
        || ["(start)", "(finish)", "(abort)", "finished"].iter().any(|end| action.ends_with(end))
        || (first == "rebase" && what.starts_with("checkout "))
        || (first != "commit" && what.eq_ignore_ascii_case("fast-forward"));
    !moves
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages are those of git 2.39 and 2.47.
    #[test]
    fn reflog_checkout_is_not_a_new_commit() {
        for said in [
            "clone: from /somewhere",
            "checkout: moving from main to bead-one",
            "reset: moving to HEAD~1",
            "merge origin/main: Fast-forward",
            "pull: Fast-forward",
            "cherry-pick: fast-forward",
            "rebase (start): checkout FETCH_HEAD",
            "rebase (finish): returning to refs/heads/bead-one",
            "rebase (abort): returning to refs/heads/bead-one",
            "pull --rebase origin main (start): checkout 1234",
            "rebase finished: refs/heads/bead-one onto 1234",
            "rebase: checkout FETCH_HEAD",
            "branch: Created from HEAD",
            "fetch origin main:main: fast-forward",
        ] {
            assert!(!makes(said), "{said}");
        }
        for said in [
            "commit: fix the fast-forward",
            "commit: Fast-forward",
            "commit (initial): one",
            "commit (amend): reset: all",
            "commit (merge): two",
            "merge origin/main: Merge made by the 'ort' strategy.",
            "pull: Merge made by the 'ort' strategy.",
            "cherry-pick: three",
            "revert: Revert three",
            "am: four",
            "rebase (pick): five",
            "rebase (continue): six",
            "rebase (squash): seven",
            "",
        ] {
            assert!(makes(said), "{said}");
        }
    }

    #[test]
    fn commit_left_without_a_branch_is_found() {
        let (one, two) = ("a".repeat(40), "b".repeat(40));
        let log = format!(
            "{one} {two} A <a> 1 +0000\tcommit: x\n\
             {two} {one} A <a> 1 +0000\tcheckout: moving from {two} to main\n\
             {one} {two} A <a> 1 +0000\tcheckout: moving from main to {two}\nnonsense\n"
        );
        assert_eq!(left_detached(&log), std::slice::from_ref(&two));
        assert_eq!(reached(&log), [two.clone(), one, two]);
    }

    #[test]
    fn reflog_line_has_its_new_commit_and_invalid_line_has_none() {
        let (old, new) = ("0".repeat(40), "a".repeat(40));
        let log = format!(
            "{old} {new} A Person <a@example.invalid> 1 +0000\tcommit: x\nnonsense\n\n\
             {old} x\tcommit: y\n{new} {old} A <a> 1 +0000\tcheckout: moving\n"
        );
        assert_eq!(made(&log), [new]);
        assert!(made("").is_empty());
    }
}
