//! The subjects of the commits since the newest release, or of a branch that is not merged yet.
//!
//! The check needs history, and a clone may have none: a source archive, a shallow clone, a machine
//! without git. It then says why it was skipped, and never fails.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use xtask::Failure;

const MAX_CHARACTERS: usize = 72;
/// Older commits were made before the rule.
const RULE_BEGAN: &str = "--since=2026-11-26T00:00:00Z";
/// Tags of releases begin like this.
const RELEASES: &str = "v[0-9]*";
/// The branch into which others are merged, first as the remote has it.
const MAIN: [&str; 3] = ["origin/HEAD", "origin/main", "main"];

/// The outcome of a check that did not fail.
#[derive(Debug, PartialEq, Eq)]
pub enum Checked {
    /// So many commits since this tag or commit have short subjects.
    Fine { since: String, commits: usize },
    /// There was nothing to compare with, for this reason.
    Skipped(String),
}

/// Checks the repository of the checkout, and prints the outcome.
///
/// # Errors
/// When a subject is too long. Missing history is no error.
pub fn run(root: &Path) -> Result<(), Failure> {
    match check(OsStr::new("git"), root)? {
        Checked::Fine { since, commits } => {
            eprintln!("xtask: the subjects of {commits} commits since {since} are short enough");
        }
        Checked::Skipped(why) => eprintln!("xtask: SKIPPED the check of commit subjects: {why}"),
    }
    Ok(())
}

/// Checks the commits of `repo` since its base, with this git program.
fn check(program: &OsStr, repo: &Path) -> Result<Checked, Failure> {
    let git = Git { program, repo };
    let base = match git.base() {
        Ok(base) => base,
        Err(why) => return Ok(Checked::Skipped(why.0)),
    };
    let range = format!("{base}..HEAD");
    let Ok(log) = git.read(&["log", "--no-merges", "--format=%h %s", RULE_BEGAN, &range]) else {
        return Ok(Checked::Skipped(format!("git cannot list the commits since {base}")));
    };
    let long = |line: &&str| {
        line.split_once(' ').is_some_and(|(_, subject)| subject.chars().count() > MAX_CHARACTERS)
    };
    let found: Vec<_> = log.lines().filter(long).collect();
    if found.is_empty() {
        return Ok(Checked::Fine { since: base, commits: log.lines().count() });
    }
    Err(format!(
        "{} commit subjects since {base} have more than {MAX_CHARACTERS} characters; shorten them \
         with `git rebase --interactive {base}`:\n{}",
        found.len(),
        found.join("\n")
    )
    .into())
}

/// The reason why there is no base.
struct NoBase(String);

/// A git program in a repository.
struct Git<'a> {
    program: &'a OsStr,
    repo: &'a Path,
}

impl Git<'_> {
    /// Returns the newest release tag, or else the commit at which this branch left `main`.
    fn base(&self) -> Result<String, NoBase> {
        if !self.read(&["rev-parse", "--show-prefix"])?.is_empty() {
            return Err(NoBase("the checkout is only a folder of a repository".into()));
        }
        let shallow = self.read(&["rev-parse", "--is-shallow-repository"])?;
        if shallow != "false" {
            return Err(NoBase("the history of this clone is cut (shallow)".into()));
        }
        let describe = ["describe", "--tags", "--abbrev=0", "--match", RELEASES, "HEAD"];
        if let Ok(tag) = self.read(&describe) {
            return Ok(tag);
        }
        let branch = self.read(&["rev-parse", "--abbrev-ref", "HEAD"])?;
        if branch == "main" {
            return Err(NoBase("`main` has no release tag".into()));
        }
        let fork = MAIN.iter().find_map(|main| self.read(&["merge-base", "HEAD", main]).ok());
        fork.ok_or_else(|| {
            NoBase(format!("`{branch}` has no release tag, and no commit in common with `main`"))
        })
    }

    /// Returns the trimmed output of a git command.
    fn read(&self, args: &[&str]) -> Result<String, NoBase> {
        let mut git = Command::new(self.program);
        git.arg("-C").arg(self.repo).args(args);
        // A hook of git names another repository by these.
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
            git.env_remove(name);
        }
        let output = git.output().map_err(|error| NoBase(format!("git cannot run: {error}")))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            return Err(NoBase(format!("git failed: {}", stderr.trim())));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository on `main` with one commit, whose configuration is not the user's.
    struct Repo(tempfile::TempDir);

    impl Repo {
        fn new() -> Self {
            let repo = Self(tempfile::tempdir().expect("a directory"));
            repo.git(&["init", "--quiet", "--initial-branch=main"]);
            repo.commit("area: begin");
            repo
        }

        fn path(&self) -> &Path {
            self.0.path()
        }

        fn git(&self, args: &[&str]) {
            let status = Command::new("git")
                .arg("-C")
                .arg(self.path())
                .args(["-c", "user.name=Test", "-c", "user.email=test@example.com"])
                .args(["-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"])
                .args(args)
                .env_remove("GIT_DIR")
                .env_remove("GIT_WORK_TREE")
                .env_remove("GIT_INDEX_FILE")
                .env("GIT_CONFIG_GLOBAL", "/dev/null")
                .env("GIT_CONFIG_NOSYSTEM", "1")
                .status()
                .expect("git runs");
            assert!(status.success(), "git {args:?}");
        }

        fn commit(&self, subject: &str) {
            self.git(&["commit", "--quiet", "--allow-empty", "-m", subject]);
        }

        fn check(&self) -> Result<Checked, Failure> {
            check(OsStr::new("git"), self.path())
        }

        /// Asserts that the check is skipped for a reason that contains `why`.
        fn is_skipped(&self, why: &str) {
            let checked = self.check().expect("no failure");
            assert!(
                matches!(&checked, Checked::Skipped(said) if said.contains(why)),
                "{checked:?}"
            );
        }
    }

    fn long() -> String {
        format!("area: {}", "x".repeat(67))
    }

    #[test]
    fn main_without_a_tag_is_skipped() {
        let repo = Repo::new();
        repo.commit(&long());
        repo.is_skipped("no release tag");
    }

    #[test]
    fn long_subject_after_a_release_tag_fails() {
        let repo = Repo::new();
        repo.commit(&long());
        repo.git(&["tag", "v0.1.0"]);
        let fine = |commits| Checked::Fine { since: "v0.1.0".into(), commits };
        assert_eq!(repo.check().expect("fine"), fine(0), "a released subject stays");
        repo.commit(&long()[1..]);
        assert_eq!(repo.check().expect("fine"), fine(1), "72 characters are allowed");
        repo.commit(&long());
        let failure = repo.check().expect_err("73 characters").to_string();
        assert!(failure.contains("1 commit subjects since v0.1.0"), "{failure}");
        assert!(failure.contains(&long()), "{failure}");
    }

    #[test]
    fn tag_that_is_no_release_is_ignored() {
        let repo = Repo::new();
        repo.git(&["tag", "before-the-move"]);
        repo.commit(&long());
        repo.is_skipped("no release tag");
    }

    #[test]
    fn long_subject_of_a_branch_fails_and_one_of_main_does_not() {
        let repo = Repo::new();
        repo.commit(&long());
        repo.git(&["checkout", "--quiet", "-b", "mine"]);
        repo.commit("area: change it");
        assert!(matches!(repo.check().expect("fine"), Checked::Fine { commits: 1, .. }));
        repo.commit(&long());
        let failure = repo.check().expect_err("a long one").to_string();
        assert!(failure.contains("1 commit subjects"), "{failure}");
    }

    #[test]
    fn shallow_clone_is_skipped_with_and_without_a_tag() {
        let origin = Repo::new();
        origin.commit(&long());
        origin.commit(&long());
        let clone = Repo(tempfile::tempdir().expect("a directory"));
        let url = format!("file://{}", origin.path().display());
        clone.git(&["clone", "--quiet", "--depth", "1", &url, "."]);
        clone.is_skipped("shallow");
        clone.git(&["tag", "v0.1.0"]);
        clone.commit(&long());
        clone.is_skipped("shallow");
    }

    #[test]
    fn missing_git_repository_or_commit_is_skipped() {
        let repo = Repo(tempfile::tempdir().expect("a directory"));
        repo.is_skipped("git failed");
        let checked = check(OsStr::new("/nonexistent/git"), repo.path()).expect("no failure");
        assert!(matches!(&checked, Checked::Skipped(why) if why.contains("cannot run")));
        repo.git(&["init", "--quiet", "--initial-branch=other"]);
        repo.is_skipped("git failed");
    }

    #[test]
    fn sources_within_another_repository_are_skipped() {
        let repo = Repo::new();
        repo.git(&["tag", "v0.1.0"]);
        repo.commit(&long());
        let inner = repo.path().join("vendored");
        std::fs::create_dir(&inner).expect("a folder");
        let checked = check(OsStr::new("git"), &inner).expect("no failure");
        assert!(matches!(&checked, Checked::Skipped(why) if why.contains("only a folder")));
    }
}
