//! The remote of a person's repository: where it is, how it is reached, and the branches that a run
//! pushes there.

use crate::command::{CommandError, git, output, remote, run as git_run};
use crate::error::{Refusal, RepoError};
use crate::spec_run::RunRepos;
use crate::spec_run::{clones, hub, private_repo};
use crate::worktree;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod hook;
mod person;

use hook::Pushed;
pub use person::{copy_configuration, trusted_environment};

/// Refs in the private repository: the rebased branch by its commit before, and the pushed branches
/// by their names.
const REBASED: &str = "refs/muleteer/rebased";
const PUSHED: &str = "refs/muleteer/pushed";
/// The ref in the private repository for the remote's base branch.
const BASE: &str = "refs/muleteer/base";
/// The timeout for asking the remote for a branch. It is asked again later.
const REMOTE_PATIENCE: Duration = Duration::from_secs(10);
/// The timeout for transferring a branch.
const TRANSFER: Duration = Duration::from_secs(600);
/// The timeout for asking the remote for a branch that is to be pushed.
const ASKING: Duration = Duration::from_secs(120);

/// The addresses of the real remote, valid in any directory. The one for pushes may differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    pub fetch: String,
    pub push: String,
}

impl Remote {
    /// Returns the remote that `base` is configured to follow, else the only one, else `origin`, as
    /// git chooses.
    pub async fn find(repo: &Path, base: &str) -> Option<Self> {
        let said = |args: Vec<String>| async move { git_run(git(repo).args(args), "").await.ok() };
        let of_branch =
            ["config", "--get", &format!("branch.{base}.remote")].map(String::from).to_vec();
        // `.` is the repository itself.
        let of_branch = said(of_branch).await.filter(|name| !name.is_empty() && name != ".");
        let all = said(vec!["remote".into()]).await.unwrap_or_default();
        let mut names = all.lines();
        let only = names.next().filter(|_| names.next().is_none());
        let name = of_branch.or(only.map(str::to_string)).unwrap_or_else(|| "origin".into());
        let address = |push: &[&str]| {
            let asked = [&["remote", "get-url"], push, &[name.as_str()]].concat();
            said(asked.into_iter().map(String::from).collect())
        };
        match (address(&[]).await, address(&["--push"]).await) {
            (Some(fetch), Some(push)) => {
                Some(Self { fetch: absolute(repo, fetch), push: absolute(repo, push) })
            }
            // A branch may follow an address without a remote name.
            _ if all.lines().all(|known| known != name) && name.contains([':', '/']) => {
                let there = absolute(repo, name);
                Some(Self { fetch: there.clone(), push: there })
            }
            _ => None,
        }
    }
}

/// Makes a relative path absolute. `host:path` is an ssh address unless a slash comes first.
fn absolute(repo: &Path, url: String) -> String {
    let is_address = url.split('/').next().is_some_and(|first| first.contains(':'));
    if is_address { url } else { repo.join(&url).display().to_string() }
}

/// Returns the settings of the person's repository for reaching its remote. git reads the person's
/// global ones by itself. Clones of agents are never read.
pub async fn settings(repo: &Path) -> Vec<(String, String)> {
    const REACHING: &str =
        r"^(core\.(sshcommand|gitproxy|askpass)|ssh\.variant|credential\.|http\.)";
    let said =
        git_run(git(repo).args(["config", "--includes", "-z", "--get-regexp", REACHING]), "").await;
    let said = said.unwrap_or_default();
    said.split('\0')
        .filter_map(|setting| match setting.split_once('\n') {
            Some((key, value)) => Some((key.to_string(), value.to_string())),
            // A key without a value means true.
            None => (!setting.is_empty()).then(|| (setting.to_string(), "true".to_string())),
        })
        .collect()
}

/// A person's remote, with the environment and the settings that reach it.
#[allow(missing_debug_implementations, reason = "the environment holds the person's secrets")]
pub struct Connection {
    remote: Remote,
    environment: Vec<(String, String)>,
    /// The settings of the person's repository that say how to reach its remote.
    settings: Vec<(String, String)>,
    repo: PathBuf,
    /// The harness's private repository.
    own: PathBuf,
}

impl Connection {
    pub fn new(
        repos: &RunRepos,
        remote: Remote,
        environment: Vec<(String, String)>,
        settings: Vec<(String, String)>,
    ) -> Self {
        let (repo, own) = (repos.repo.clone(), repos.paths.keep());
        Self { remote, environment, settings, repo, own }
    }

    /// Returns the commit of a branch of the remote, or `None` if it does not answer soon.
    pub async fn tip(&self, branch: &str) -> Option<String> {
        let name = format!("refs/heads/{branch}");
        let asked = ["ls-remote", self.remote.fetch.as_str(), &name];
        let said = self.git(&asked, REMOTE_PATIENCE, "").await.ok()?;
        said.split_whitespace().next().map(str::to_string)
    }

    /// Rebases the branch onto the remote's current base. The result is saved, so that a retry
    /// makes no other commits. If the rebase conflicts, returns the branch as it is, and the files.
    pub async fn rebased(
        &self,
        repos: &RunRepos,
        target: &str,
        base: &str,
    ) -> Result<(String, String), RepoError> {
        let tip = hub::commit(repos, target).await.ok_or(Refusal::NoResult)?;
        let kept = format!("{REBASED}/{tip}");
        if let Some(commit) = private_repo::at(repos, &kept).await {
            return Ok((commit, String::new()));
        }
        let refspec = format!("+refs/heads/{base}:{BASE}");
        let fetch = [
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-write-fetch-head",
            &self.remote.fetch,
            &refspec,
        ];
        if self.with_own(&fetch, TRANSFER, "cannot fetch the base branch").await.is_err() {
            // The remote has no base branch yet, so there is nothing to rebase onto.
            return Ok((tip, String::new()));
        }
        let onto = private_repo::at(repos, BASE).await.ok_or(Refusal::NoRemoteBase)?;
        // The rebase runs where no agent can write, and without the person's filters and merge
        // drivers, because their input would be the agents' files.
        let dir = repos.paths.private.join("finish");
        clones::plain(repos, &dir, target).await?;
        let outcome = match git_run(git(&dir).args(["rebase", "--quiet", &onto]), "").await {
            Ok(_) => {
                let commit = worktree::head(&dir).await.ok_or(Refusal::EmptyRebase)?;
                let what = "cannot save the rebased branch";
                private_repo::fetch(
                    repos,
                    &dir.join(".git"),
                    &commit,
                    &[&format!("+{kept}")],
                    what,
                )
                .await?;
                (commit, String::new())
            }
            Err(_) => {
                let list = ["diff", "--name-only", "--diff-filter=U"];
                (tip, git_run(git(&dir).args(list), "").await.unwrap_or_default())
            }
        };
        clones::remove(&dir).await?;
        Ok(outcome)
    }

    /// Pushes `commit` as `name`. It overwrites only a commit that this run had pushed.
    pub async fn push(&self, repos: &RunRepos, commit: &str, name: &str) -> Result<(), RepoError> {
        let (full, to) = (format!("refs/heads/{name}"), self.remote.push.as_str());
        let asked = ["ls-remote", to, &full];
        let there = self.with_own(&asked, ASKING, "the remote does not answer").await?;
        let there = there.split_whitespace().next().unwrap_or_default().to_string();
        if there == commit {
            return Ok(());
        }
        let ours = format!("{PUSHED}/{name}");
        if !there.is_empty()
            && private_repo::at(repos, &ours).await.as_deref() != Some(there.as_str())
        {
            return Err(Refusal::ForeignBranch(name.into()).into());
        }
        let (lease, refspec) =
            (format!("--force-with-lease={full}:{there}"), format!("{commit}:{full}"));
        self.run_hook(&Pushed { commit, name: &full, there: &there }).await?;
        let push = ["push", "--quiet", &lease, to, &refspec];
        self.with_own(&push, TRANSFER, "cannot push the branch").await?;
        private_repo::set(repos, &ours, commit, "cannot record the push").await
    }

    /// Runs [`Self::git`] on the harness's private repository. It runs in the person's directory,
    /// as a `git push` of the person would.
    async fn with_own(
        &self,
        args: &[&str],
        patience: Duration,
        what: &str,
    ) -> Result<String, RepoError> {
        let own = self.own.display().to_string();
        self.git(&[&["--git-dir", own.as_str()], args].concat(), patience, what).await
    }

    /// Runs a git that talks to the remote. It is used for nothing else, because the person's
    /// configuration may name programs.
    async fn git(
        &self,
        args: &[&str],
        patience: Duration,
        what: &str,
    ) -> Result<String, RepoError> {
        let mut command = remote(&self.repo, &self.environment, &self.settings);
        let output = output(command.args(args), patience).await.map_err(RepoError::step(what))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_string());
        }
        // The address may contain a password.
        let args = args.iter().filter(|arg| !arg.contains("://"));
        Err(CommandError::failed(what, args, &output.stderr).into())
    }
}

#[cfg(test)]
mod tests;
