//! The `pre-push` hook of a person's repository. The harness pushes from its private repository,
//! where no hook is, so it runs the person's hook before, as git would: git-lfs uploads its files
//! there.

use crate::command::{
    GLOBAL, as_person, complaint, fetching, git, output, own_config_with, run as git_run,
};
use crate::error::{FileError, Refusal, RepoError};
use crate::spec_run::remote::{Connection, TRANSFER, absolute};
use crate::spec_run::{is_newer, large_files};
use muleteer_process::command::helper;
use std::io::Write;
use std::path::PathBuf;

/// The name of the hook.
const NAME: &str = "pre-push";

/// One branch that is about to be pushed.
pub(super) struct Pushed<'a> {
    pub commit: &'a str,
    /// The full name of the branch.
    pub name: &'a str,
    /// The commit of the remote's branch; empty if there is none.
    pub there: &'a str,
}

impl Connection {
    /// Runs the person's hook, if there is one. The commit and its files must be in the person's
    /// repository, because the hook looks for them there.
    ///
    /// # Errors
    /// The hook refuses the push, or was changed while the run's agents worked: an agent may have
    /// written it, and it would get the person's tokens.
    pub(super) async fn run_hook(&self, pushed: &Pushed<'_>) -> Result<(), RepoError> {
        let Some(hook) = self.hook().await else { return Ok(()) };
        if is_newer(&hook, &self.own.join("objects/info/alternates")) {
            return Err(Refusal::ChangedHook(hook).into());
        }
        large_files::bring_home(&self.repo, &self.own).await?;
        let mut fetch = fetching(&self.repo, &self.own);
        git_run(fetch.arg(pushed.commit), "cannot fetch the commit for the pre-push hook").await?;
        let zero = "0".repeat(pushed.commit.len());
        let there = if pushed.there.is_empty() { &zero } else { pushed.there };
        let line = format!("{0} {1} {0} {there}\n", pushed.name, pushed.commit);
        let failed = |error| FileError::at(&hook)(error);
        // A pipe holds more than this line, so the hook need not read it.
        let (reader, mut writer) = std::io::pipe().map_err(failed)?;
        writer.write_all(line.as_bytes()).map_err(failed)?;
        drop(writer);
        let top = git_run(git(&self.repo).args(["rev-parse", "--show-toplevel"]), "").await;
        let top = top.map_or_else(|_| self.repo.clone(), PathBuf::from);
        let url = self.remote.push.as_str();
        let mut command = helper(&hook);
        as_person(&mut command, &top, &self.environment);
        command.arg(self.name().await.as_deref().unwrap_or(url)).arg(url).stdin(reader);
        let said = output(&mut command.into(), TRANSFER).await;
        let said = said.map_err(RepoError::step("cannot run the pre-push hook"))?;
        if said.status.success() {
            return Ok(());
        }
        Err(Refusal::HookRefused(complaint(&[said.stdout, said.stderr].concat())).into())
    }

    /// Returns the hook's program, if git would run it.
    async fn hook(&self) -> Option<PathBuf> {
        // The copy of the person's configuration, if there is one.
        let global = self.environment.iter().find(|(name, _)| name == GLOBAL);
        let chosen = own_config_with(&self.repo, global, &["--type=path", "core.hooksPath"]).await;
        let top = git_run(git(&self.repo).args(["rev-parse", "--show-toplevel"]), "").await;
        let top = top.map_or_else(|_| self.repo.clone(), PathBuf::from);
        let folder = match chosen {
            Some(folder) => top.join(folder),
            None => crate::worktree::git_dir(&self.repo).await?.join("hooks"),
        };
        let hook = folder.join(NAME);
        let may_run = rustix::fs::access(&hook, rustix::fs::Access::EXEC_OK).is_ok();
        (may_run && hook.is_file()).then_some(hook)
    }

    /// Returns the name of the remote with this address, as the person's configuration has it.
    async fn name(&self) -> Option<String> {
        let all = git_run(git(&self.repo).arg("remote"), "").await.ok()?;
        for name in all.lines() {
            let mut ask = git(&self.repo);
            let url = git_run(ask.args(["remote", "get-url", "--push", name]), "").await;
            if url.is_ok_and(|url| absolute(&self.repo, url) == self.remote.push) {
                return Some(name.to_string());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]
    use super::*;
    use crate::spec_run::remote::Remote;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::time::SystemTime;

    fn git_in(dir: &Path, args: &[&str]) -> String {
        let who = ["-c", "user.name=a", "-c", "user.email=a@example.invalid"];
        let output =
            std::process::Command::new("git").arg("-C").arg(dir).args(who).args(args).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    }

    /// Makes a person's repository with a remote and this hook, and then the harness's own with a
    /// commit.
    fn stage(root: &Path, hook: &str) -> (Connection, String) {
        let (repo, own) = (root.join("repo"), root.join("keep.git"));
        for (dir, kind) in [("repo", "--quiet"), ("keep.git", "--bare"), ("origin.git", "--bare")] {
            git_in(root, &["init", "--quiet", kind, dir]);
        }
        git_in(&repo, &["commit", "--quiet", "--allow-empty", "--message=one"]);
        git_in(&repo, &["remote", "add", "upstream", "../origin.git"]);
        let path = repo.join(".git/hooks/pre-push");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, hook).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let lent = format!("{}\n", repo.join(".git/objects").display());
        std::fs::write(own.join("objects/info/alternates"), lent).unwrap();
        // The clock of files has ticks.
        let made = std::fs::File::options().append(true).open(own.join("objects/info/alternates"));
        let later = SystemTime::now() + std::time::Duration::from_secs(5);
        made.unwrap().set_modified(later).unwrap();
        let tree = git_in(&own, &["hash-object", "-w", "-t", "tree", "/dev/null"]);
        let commit = git_in(&own, &["commit-tree", "-m", "two", &tree]);
        let push = absolute(&repo, "../origin.git".into());
        let remote = Remote { fetch: push.clone(), push };
        let environment = ["PATH", "HOME"]
            .iter()
            .filter_map(|name| Some((name.to_string(), std::env::var(name).ok()?)))
            .collect();
        (Connection { remote, environment, settings: vec![], repo, own }, commit)
    }

    #[tokio::test]
    async fn hook_runs_as_for_the_person_and_may_refuse() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let hook = "#!/bin/sh\n{ pwd; echo \"$@\"; cat; } > said\n";
        let (connection, commit) = stage(&root, hook);
        let pushed = Pushed { commit: &commit, name: "refs/heads/x", there: "" };
        connection.run_hook(&pushed).await.unwrap();
        let (repo, url) = (connection.repo.clone(), connection.remote.push.clone());
        let zero = "0".repeat(commit.len());
        assert_eq!(
            std::fs::read_to_string(repo.join("said")).unwrap(),
            format!(
                "{}\nupstream {url}\nrefs/heads/x {commit} refs/heads/x {zero}\n",
                repo.display()
            )
        );
        assert_eq!(git_in(&repo, &["cat-file", "-t", &commit]), "commit");
        let refusing = root.join("refusing");
        std::fs::create_dir(&refusing).unwrap();
        let (connection, commit) = stage(&refusing, "#!/bin/sh\necho not today\nexit 1\n");
        let pushed = Pushed { commit: &commit, name: "refs/heads/x", there: "" };
        let said = connection.run_hook(&pushed).await.unwrap_err().to_string();
        assert!(said.ends_with("refused the push: not today"), "{said}");
    }

    #[tokio::test]
    async fn hook_that_changed_during_the_run_does_not_run() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (connection, commit) = stage(&root, "#!/bin/sh\ntouch ran\n");
        let made = connection.own.join("objects/info/alternates");
        let earlier = SystemTime::now() - std::time::Duration::from_secs(60);
        let file = std::fs::File::options().append(true).open(made).unwrap();
        file.set_modified(earlier).unwrap();
        let pushed = Pushed { commit: &commit, name: "refs/heads/x", there: "" };
        let said = connection.run_hook(&pushed).await.unwrap_err().to_string();
        assert!(said.contains("changed while"), "{said}");
        assert!(!connection.repo.join("ran").exists());
    }
}
