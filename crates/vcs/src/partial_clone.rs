//! Partial clones: repositories that lack objects, which git fetches when it needs them.
//!
//! A clone that borrows their objects fetches nothing, because its agent could say from where. So
//! the objects of the commit that it checks out are fetched before, by a git in the person's own
//! repository.

use crate::command::{CommandError, Purpose, git, hardened, output, run};
use std::path::Path;
use std::time::Duration;

/// A fetch that takes longer is killed.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// Whether a repository with this common git directory may lack objects.
pub(crate) fn is_partial(common_dir: &Path) -> bool {
    let packs = std::fs::read_dir(common_dir.join("objects/pack"));
    packs
        .into_iter()
        .flatten()
        .flatten()
        .any(|pack| pack.path().extension().is_some_and(|kind| kind == "promisor"))
}

/// Returns the arguments of a git that reads every file of a commit, and so fetches all that are
/// missing, at once. `empty` is the tree without files: see [`EMPTY_TREE`].
pub(crate) fn reading_all<'a>(empty: &'a str, commit: &'a str) -> [&'a str; 7] {
    ["diff", "--shortstat", "--no-ext-diff", "--no-textconv", "--no-renames", empty, commit]
}

/// The arguments of a git that prints the name of the tree without files.
pub(crate) const EMPTY_TREE: [&str; 4] = ["hash-object", "-t", "tree", "/dev/null"];

/// Fetches the objects of a commit that the repository of `top` lacks. Does nothing in a whole
/// repository.
///
/// # Errors
/// The objects cannot be fetched.
pub(crate) async fn complete(top: &Path, commit: &str) -> Result<(), CommandError> {
    let what = "cannot read the repository";
    let place = ["rev-parse", "--path-format=absolute", "--git-common-dir"];
    let common_dir = run(git(top).args(place), what).await?;
    if !is_partial(Path::new(&common_dir)) {
        return Ok(());
    }
    let empty = run(git(top).args(EMPTY_TREE), what).await?;
    let args = reading_all(&empty, commit);
    let mut command = tokio::process::Command::from(hardened(top, Purpose::Person));
    let said = output(command.args(args), PATIENCE).await?;
    let what = "cannot fetch the objects that this partial clone lacks";
    if said.status.success() { Ok(()) } else { Err(CommandError::failed(what, args, &said.stderr)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec_run::{RunPaths, RunRepos, hub};
    use crate::user_repo::Git;
    use crate::worktree::{NewClone, ensure};
    use tokio_util::sync::CancellationToken;

    async fn git_in(dir: &Path, args: &[&str]) {
        let who = ["-c", "user.name=t", "-c", "user.email=t@example.org"];
        run(git(dir).args(who).args(args), "git").await.expect("git");
    }

    /// Makes a partial clone that lacks a file outside of its sparse checkout.
    async fn lacking(dir: &Path) -> std::path::PathBuf {
        let (from, to) = (dir.join("from"), dir.join("to"));
        std::fs::create_dir_all(from.join("b")).expect("a directory");
        std::fs::create_dir(from.join("a")).expect("a directory");
        std::fs::write(from.join("a/1"), "1\n").expect("a file");
        std::fs::write(from.join("b/2"), "2\n").expect("a file");
        git_in(&from, &["init", "-q", "-b", "main"]).await;
        git_in(&from, &["add", "-A"]).await;
        git_in(&from, &["commit", "-qm", "one"]).await;
        git_in(&from, &["config", "uploadpack.allowFilter", "true"]).await;
        let url = format!("file://{}", from.display());
        let name = to.to_str().expect("text");
        git_in(dir, &["clone", "-q", "--filter=blob:none", "--no-checkout", &url, name]).await;
        git_in(&to, &["sparse-checkout", "set", "a"]).await;
        let mut checkout = hardened(&to, Purpose::Person);
        assert!(checkout.args(["checkout", "-q", "main"]).status().expect("git").success());
        assert!(is_partial(&to.join(".git")) && !is_partial(&from.join(".git")));
        to
    }

    #[tokio::test]
    async fn clones_of_a_partial_clone_are_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let project = lacking(dir.path()).await;
        let worktree = dir.path().join("worktrees/it");
        let new = NewClone { id: "it", branch: "muleteer/it", has_email: false, path: None };
        ensure(&project, &worktree, new).await.expect("a clone");
        assert_eq!(std::fs::read_to_string(worktree.join("b/2")).expect("a file"), "2\n");
    }

    #[tokio::test]
    async fn clones_of_a_run_in_a_partial_clone_are_whole() {
        const TARGET: &str = "muleteer/run";
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("a path");
        let project = lacking(&root).await;
        let paths = RunPaths { private: root.join("state") };
        std::fs::create_dir(&paths.private).expect("a directory");
        let base = run(git(&project).args(["rev-parse", "HEAD"]), "").await.expect("a commit");
        let repos = RunRepos::new("run", &project, paths, CancellationToken::new());
        hub::ensure(&repos, &base, TARGET).await.expect("a hub");
        let clone = root.join("clones/bead-one-1");
        let made = hub::worktree(&repos, &clone, TARGET, Some("one"), false).await;
        assert_eq!(made.expect("a clone"), None);
        assert_eq!(std::fs::read_to_string(clone.join("b/2")).expect("a file"), "2\n");
    }

    #[tokio::test]
    async fn clones_of_workers_of_a_partial_clone_are_whole() {
        let dir = tempfile::tempdir().expect("a directory");
        let project = lacking(dir.path()).await;
        let place = project.join(".muleteer/worktrees/tasks/1");
        let prepared = tokio::task::spawn_blocking(move || {
            let git = Git::open(&project).expect("a repository");
            let clone = git.prepare_clone(&place, "main").expect("a clone");
            clone.reset_clone(&git, "main").expect("a tip");
            std::fs::read_to_string(place.join("b/2"))
        });
        assert_eq!(prepared.await.expect("ends").expect("a file"), "2\n");
    }
}
