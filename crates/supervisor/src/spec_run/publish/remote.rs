//! Finds the real remote of a run, and how it is reached.

use muleteer_vcs::worktree::{git, run as git_run};
use std::path::Path;

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
