//! The name that an agent commits under where the person has told git none, as in a fresh container: without any its
//! commits fail, and its work lies about uncommitted.

use super::{AGENT_EMAIL, AGENT_NAME, output};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::process::Command;

/// git only reads configuration for it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Answers that are remembered.
const MOST_KNOWN: usize = 256;

type Env = Vec<(String, String)>;

/// The directories in which git is known to find an identity, each with the environment that matters to it. That it
/// finds none is asked again each time.
#[derive(Debug, Default)]
pub struct Identities(Mutex<HashSet<(PathBuf, Env)>>);

impl Identities {
    /// The variables that give an agent in `dir` an identity; none where git finds one with this environment, or
    /// cannot be asked.
    pub async fn missing(&self, dir: &Path, env: &[(String, String)]) -> Env {
        let matters = |name: &str| matches!(name, "HOME" | "XDG_CONFIG_HOME" | "EMAIL") || name.starts_with("GIT_");
        let asked: Env = env.iter().filter(|(name, _)| matters(name)).cloned().collect();
        let key = (dir.to_owned(), asked);
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&key) {
            return vec![];
        }
        let (author, committer) =
            tokio::join!(knows(dir, env, "GIT_AUTHOR_IDENT"), knows(dir, env, "GIT_COMMITTER_IDENT"));
        if author && committer {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= MOST_KNOWN {
                known.clear();
            }
            known.insert(key);
            return vec![];
        }
        let roles = [(author, "GIT_AUTHOR"), (committer, "GIT_COMMITTER")];
        let unknown = roles.into_iter().filter(|(known, _)| !known);
        unknown
            .flat_map(|(_, role)| [(format!("{role}_NAME"), AGENT_NAME), (format!("{role}_EMAIL"), AGENT_EMAIL)])
            .filter(|(name, _)| !env.iter().any(|(given, value)| given == name && !value.is_empty()))
            .map(|(name, value)| (name, value.to_string()))
            .collect()
    }
}

/// True where git cannot tell, too.
async fn knows(dir: &Path, env: &[(String, String)], identity: &str) -> bool {
    let mut ask = Command::new("git");
    let env = env.iter().map(|(name, value)| (name, value));
    ask.arg("-C").arg(dir).args(["var", identity]).env_clear().envs(env).env("LC_ALL", "C");
    ask.stdin(std::process::Stdio::null()).kill_on_drop(true);
    let Ok(said) = output(&mut ask, PATIENCE).await else { return true };
    said.status.success() || !String::from_utf8_lossy(&said.stderr).contains("tell me who you are")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(more: &[(&str, &str)]) -> Env {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut env = vec![("PATH".to_string(), path), ("GIT_CONFIG_NOSYSTEM".into(), "1".into())];
        // Else a machine with a full host name has a name for everybody.
        let only =
            [("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_KEY_0", "user.useConfigOnly"), ("GIT_CONFIG_VALUE_0", "true")];
        env.extend(only.iter().chain(more).map(|(name, value)| ((*name).to_string(), (*value).to_string())));
        env
    }

    #[tokio::test]
    async fn an_identity_is_given_only_where_git_finds_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = dir.path().to_str().expect("a path");
        let known = Identities::default();
        let without = env(&[("HOME", home)]);
        let names = |given: Env| given.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let all = ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"];
        assert_eq!(names(known.missing(dir.path(), &without).await), all);
        let author = env(&[("HOME", home), ("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@example.org")]);
        assert_eq!(names(known.missing(dir.path(), &author).await), all[2..]);
        std::fs::write(dir.path().join(".gitconfig"), "[user]\nname = a\nemail = a@example.org\n").expect("a file");
        assert_eq!(known.missing(dir.path(), &without).await, []);
        assert_eq!(known.missing(dir.path(), &without).await, [], "known by now");
    }
}
