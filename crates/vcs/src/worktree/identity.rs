//! The name that an agent commits under if the person has configured none, as in a fresh container.
//! Without a name its commits fail, and its work stays uncommitted.
//!
//! git gets the name as its system configuration, which has the lowest priority. The variables
//! `GIT_AUTHOR_*` would also override the configuration of a repository below the directory, or one
//! that the agent makes during its work.

use crate::command::{AGENT_EMAIL, AGENT_NAME, configuration, output};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::process::Command;

/// The timeout of a git that only reads configuration.
const PATIENCE: Duration = Duration::from_secs(10);
/// The limit of remembered answers.
const MOST_KNOWN: usize = 256;

type Env = Vec<(String, String)>;

/// The directories in which git finds an identity, each with its relevant environment. A negative
/// answer is not remembered.
#[derive(Debug, Default)]
pub struct Identities(Mutex<HashSet<(PathBuf, Env)>>);

impl Identities {
    /// Returns the variables that give an agent in `dir` an identity. It is empty if git finds one
    /// with this environment, or cannot be asked. If the agent can read `file`, and its git is new
    /// enough, they name `file`, which is written.
    pub async fn missing(&self, dir: &Path, env: &[(String, String)], file: Option<&Path>) -> Env {
        let matters = |name: &str| {
            matches!(name, "HOME" | "XDG_CONFIG_HOME" | "EMAIL") || name.starts_with("GIT_")
        };
        let asked: Env = env.iter().filter(|(name, _)| matters(name)).cloned().collect();
        let key = (dir.to_owned(), asked);
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&key) {
            return vec![];
        }
        let (author, committer) = known_roles(dir, env).await;
        if author && committer {
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if known.len() >= MOST_KNOWN {
                known.clear();
            }
            known.insert(key);
            return vec![];
        }
        if let Some(file) = file
            && let Some(given) = configured(dir, env, file).await
        {
            return given;
        }
        let roles = [(author, "GIT_AUTHOR"), (committer, "GIT_COMMITTER")];
        let unknown = roles.into_iter().filter(|(known, _)| !known);
        unknown
            .flat_map(|(_, role)| {
                [(format!("{role}_NAME"), AGENT_NAME), (format!("{role}_EMAIL"), AGENT_EMAIL)]
            })
            .filter(|(name, _)| {
                !env.iter().any(|(given, value)| given == name && !value.is_empty())
            })
            .map(|(name, value)| (name, value.to_string()))
            .collect()
    }
}

/// Returns the variables that name `file` as git's system configuration. The identity and the real
/// system configuration are written into it before. `None` if that gives git no identity, or would
/// hide the real one.
async fn configured(dir: &Path, env: &[(String, String)], file: &Path) -> Option<Env> {
    let system = system_config(dir, env).await?;
    let given = |name: &str| env.iter().any(|(known, value)| known == name && !value.is_empty());
    let mut text = format!("[user]\n\tname = {AGENT_NAME}\n");
    if !given("EMAIL") {
        text.push_str(&format!("\temail = {AGENT_EMAIL}\n"));
    }
    if let Some(path) = system {
        let path = path.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        text.push_str(&format!("[include]\n\tpath = \"{path}\"\n"));
    }
    let path = file.to_str()?;
    let written = muleteer_store::atomic::write_atomic(file, text.as_bytes(), 0o600);
    if let Err(error) = written {
        tracing::warn!(%error, "failed to write the agent's git configuration");
        return None;
    }
    let vars = vec![
        ("GIT_CONFIG_SYSTEM".to_string(), path.to_string()),
        ("GIT_CONFIG_NOSYSTEM".into(), "0".into()),
    ];
    let mut with: Env =
        env.iter().filter(|(name, _)| !vars.iter().any(|(own, _)| own == name)).cloned().collect();
    with.extend(vars.iter().cloned());
    (known_roles(dir, &with).await == (true, true)).then_some(vars)
}

/// Returns the system configuration that git reads with this environment. `Some(None)` means that
/// there is none, `None` that git does not say.
async fn system_config(dir: &Path, env: &[(String, String)]) -> Option<Option<String>> {
    let value = |name: &str| {
        env.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    };
    let off = value("GIT_CONFIG_NOSYSTEM").unwrap_or_default().to_ascii_lowercase();
    if !["", "0", "false", "no", "off"].contains(&off.as_str()) {
        return Some(None);
    }
    let listed = ask(dir, env, &["config", "--system", "--list", "--show-origin", "-z"]).await?;
    if !listed.status.success() {
        // It does not exist, or git cannot read it; then the agent's own git must report that.
        return String::from_utf8_lossy(&listed.stderr)
            .contains("unable to read config file")
            .then_some(None);
    }
    let Some(origin) =
        listed.stdout.split(|byte| *byte == 0).next().filter(|origin| !origin.is_empty())
    else {
        return Some(None);
    };
    let path = std::str::from_utf8(origin).ok()?.strip_prefix("file:")?;
    path.starts_with('/').then(|| Some(path.to_string()))
}

/// Whether git has an author, and a committer.
async fn known_roles(dir: &Path, env: &[(String, String)]) -> (bool, bool) {
    tokio::join!(knows(dir, env, "GIT_AUTHOR_IDENT"), knows(dir, env, "GIT_COMMITTER_IDENT"))
}

/// Whether git finds this identity. True if git cannot say.
async fn knows(dir: &Path, env: &[(String, String)], identity: &str) -> bool {
    let Some(said) = ask(dir, env, &["var", identity]).await else { return true };
    said.status.success() || !String::from_utf8_lossy(&said.stderr).contains("tell me who you are")
}

async fn ask(dir: &Path, env: &[(String, String)], args: &[&str]) -> Option<Output> {
    let mut ask = Command::from(configuration(dir));
    let env = env.iter().map(|(name, value)| (name, value));
    ask.args(args).env_clear().envs(env).env("LC_ALL", "C");
    output(&mut ask, PATIENCE).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(more: &[(&str, &str)]) -> Env {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut env = vec![("PATH".to_string(), path), ("GIT_CONFIG_NOSYSTEM".into(), "1".into())];
        // Otherwise git derives a name on a machine with a full host name.
        let only = [
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "user.useConfigOnly"),
            ("GIT_CONFIG_VALUE_0", "true"),
        ];
        env.extend(
            only.iter()
                .chain(more)
                .map(|(name, value)| ((*name).to_string(), (*value).to_string())),
        );
        env
    }

    #[tokio::test]
    async fn identity_is_given_only_if_git_finds_none() {
        let dir = tempfile::tempdir().expect("a directory");
        let home = dir.path().to_str().expect("a path");
        let known = Identities::default();
        let without = env(&[("HOME", home)]);
        let names = |given: Env| given.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let all =
            ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"];
        assert_eq!(names(known.missing(dir.path(), &without, None).await), all);
        let author =
            env(&[("HOME", home), ("GIT_AUTHOR_NAME", "a"), ("GIT_AUTHOR_EMAIL", "a@example.org")]);
        assert_eq!(names(known.missing(dir.path(), &author, None).await), all[2..]);
        std::fs::write(dir.path().join(".gitconfig"), "[user]\nname = a\nemail = a@example.org\n")
            .expect("a file");
        assert_eq!(known.missing(dir.path(), &without, None).await, []);
        assert_eq!(known.missing(dir.path(), &without, None).await, [], "known by now");
    }

    #[tokio::test]
    async fn configured_identity_overrides_the_fallback() {
        let dir = tempfile::tempdir().expect("a directory");
        let (home, file) = (dir.path().to_str().expect("a path"), dir.path().join("given"));
        let system = dir.path().join("sys\"tem");
        std::fs::write(&system, "[user]\nuseConfigOnly = true\n[some]\nthing = here\n")
            .expect("a file");
        let path = std::env::var("PATH").unwrap_or_default();
        let env: Env = [
            ("PATH", path.as_str()),
            ("HOME", home),
            ("GIT_CONFIG_SYSTEM", system.to_str().expect("a path")),
        ]
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .to_vec();
        let given = Identities::default().missing(dir.path(), &env, Some(&file)).await;
        let vars: Vec<_> =
            given.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(
            vars,
            [("GIT_CONFIG_SYSTEM", file.to_str().expect("a path")), ("GIT_CONFIG_NOSYSTEM", "0")]
        );
        let with: Env = env[..2].iter().cloned().chain(given).collect();
        let ask = async |args: &[&str]| {
            let said = ask(dir.path(), &with, args).await.expect("git runs");
            String::from_utf8_lossy(&said.stdout).trim().to_string()
        };
        assert!(
            ask(&["var", "GIT_AUTHOR_IDENT"])
                .await
                .starts_with(&format!("{AGENT_NAME} <{AGENT_EMAIL}>"))
        );
        assert_eq!(ask(&["config", "some.thing"]).await, "here", "the real one is heeded");
        // A repository in the directory has a name of its own.
        ask(&["init", "--quiet", "inner"]).await;
        for (key, value) in [("user.name", "Own"), ("user.email", "own@example.org")] {
            ask(&["-C", "inner", "config", key, value]).await;
        }
        assert!(
            ask(&["-C", "inner", "var", "GIT_AUTHOR_IDENT"])
                .await
                .starts_with("Own <own@example.org>")
        );
        // The agent configures one for all repositories.
        ask(&["config", "--global", "user.email", "later@example.org"]).await;
        assert!(
            ask(&["var", "GIT_COMMITTER_IDENT"])
                .await
                .starts_with(&format!("{AGENT_NAME} <later@example.org>"))
        );
    }

    #[tokio::test]
    async fn environment_that_has_an_address_keeps_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (home, file) = (dir.path().to_str().expect("a path"), dir.path().join("given"));
        let env = env(&[("HOME", home)]);
        let given = Identities::default().missing(dir.path(), &env, Some(&file)).await;
        assert_eq!(given.len(), 2, "{given:?}");
        // This git takes no address from the environment, so a file without one is no help.
        let env: Env =
            env.into_iter().chain([("EMAIL".to_string(), "a@example.org".to_string())]).collect();
        let given = Identities::default().missing(dir.path(), &env, Some(&file)).await;
        assert_eq!(
            given.first().map(|(name, _)| name.as_str()),
            Some("GIT_AUTHOR_NAME"),
            "{given:?}"
        );
        let absent = Identities::default()
            .missing(dir.path(), &env, Some(&dir.path().join("no/where")))
            .await;
        assert_eq!(absent, given, "a file that cannot be written is no help");
    }
}
