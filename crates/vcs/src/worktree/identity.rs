//! The name that an agent commits under if the person has configured none, as in a fresh container.
//! Without a name its commits fail, and its work stays uncommitted.
//!
//! git gets the name as its system configuration, which has the lowest priority. The variables
//! `GIT_AUTHOR_*` would also override the configuration of a repository below the directory, or one
//! that the agent makes during its work.

use crate::command::{AGENT_EMAIL, AGENT_NAME, configuration, output};
use muleteer_store::atomic::{create_dir_durable, write_atomic};
use std::collections::HashMap;
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

/// The answers of git for a directory and the relevant environment of an agent. Each costs two to
/// five programs.
#[derive(Debug, Default)]
pub struct Identities(Mutex<HashMap<(PathBuf, Env), Known>>);

#[derive(Debug, Clone)]
enum Known {
    /// git finds an identity.
    Has,
    /// git finds none, and this file gives it one. The answer stays right if somebody configures
    /// an identity later: any other configuration has a higher priority than this file, and the
    /// file includes the system's.
    Shared { file: PathBuf, text: String },
}

/// Where the configuration with the identity is written, if the agent can read it.
#[derive(Debug, Clone, Copy)]
pub struct Places<'a> {
    /// The folder of the files that agents share. There are two of them, whatever agents ask for.
    pub shared: &'a Path,
    /// The file for an agent whose environment changes where git finds its configuration.
    pub own: &'a Path,
}

impl Identities {
    /// Returns the variables that give an agent in `dir` an identity. It is empty if git finds one
    /// with this environment, or cannot be asked. If the agent can read a file at one of `places`,
    /// and its git is new enough, they name that file, which is written.
    pub async fn missing(
        &self,
        dir: &Path,
        env: &[(String, String)],
        places: Option<Places<'_>>,
    ) -> Env {
        let matters = |name: &str| {
            matches!(name, "HOME" | "XDG_CONFIG_HOME" | "EMAIL") || name.starts_with("GIT_")
        };
        let asked: Env = env.iter().filter(|(name, _)| matters(name)).cloned().collect();
        let key = (dir.to_owned(), asked);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        match known {
            Some(Known::Has) => return vec![],
            Some(Known::Shared { file, text }) if places.is_some() && is_ready(&file, &text) => {
                return naming(&file);
            }
            Some(Known::Shared { .. }) | None => {}
        }
        let (author, committer) = known_roles(dir, env).await;
        if author && committer {
            self.remember(key, Known::Has);
            return vec![];
        }
        if let Some(places) = places
            && let Some(Configured { file, text, is_shared }) = configured(dir, env, places).await
        {
            let vars = naming(&file);
            if is_shared {
                self.remember(key, Known::Shared { file, text });
            }
            return vars;
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

    fn remember(&self, key: (PathBuf, Env), answer: Known) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(key, answer);
    }
}

/// A file that gives git an identity.
struct Configured {
    file: PathBuf,
    text: String,
    /// The file is the same for all agents with the same variables.
    is_shared: bool,
}

/// Returns the variables that name a file as git's system configuration.
fn naming(file: &Path) -> Env {
    vec![
        ("GIT_CONFIG_SYSTEM".to_string(), file.display().to_string()),
        ("GIT_CONFIG_NOSYSTEM".into(), "0".into()),
    ]
}

/// Whether the file has this text; it is written if not, because an agent can change it.
fn is_ready(file: &Path, text: &str) -> bool {
    if std::fs::read(file).is_ok_and(|found| found == text.as_bytes()) {
        return true;
    }
    let made = file.parent().map_or(Ok(()), |folder| create_dir_durable(folder, 0o700));
    let written = made.and_then(|()| write_atomic(file, text.as_bytes(), 0o600));
    if let Err(error) = &written {
        tracing::warn!(%error, "failed to write the agents' git configuration");
    }
    written.is_ok()
}

/// Writes the identity and the real system configuration into a file. `None` if that gives git no
/// identity, or would hide the real one.
async fn configured(
    dir: &Path,
    env: &[(String, String)],
    places: Places<'_>,
) -> Option<Configured> {
    let system = system_config(dir, env).await?;
    let given = |name: &str| env.iter().any(|(known, value)| known == name && !value.is_empty());
    // Without such variables git has the same system configuration for all agents.
    let is_shared = !env.iter().any(|(name, _)| name.starts_with("GIT_CONFIG"));
    let name = if given("EMAIL") { "name.gitconfig" } else { "name-and-address.gitconfig" };
    let file = if is_shared { places.shared.join(name) } else { places.own.to_owned() };
    let mut text = format!("[user]\n\tname = {AGENT_NAME}\n");
    if !given("EMAIL") {
        text.push_str(&format!("\temail = {AGENT_EMAIL}\n"));
    }
    if let Some(path) = system {
        let path = path.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        text.push_str(&format!("[include]\n\tpath = \"{path}\"\n"));
    }
    // A variable has no other text.
    file.to_str()?;
    if !is_ready(&file, &text) {
        return None;
    }
    let vars = naming(&file);
    let mut with: Env =
        env.iter().filter(|(name, _)| !vars.iter().any(|(own, _)| own == name)).cloned().collect();
    with.extend(vars.iter().cloned());
    let is_enough = known_roles(dir, &with).await == (true, true);
    is_enough.then_some(Configured { file, text, is_shared })
}

/// Returns the system configuration that git reads with this environment, or would read if the file
/// existed. `Some(None)` means that there is none, `None` that git does not say.
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
        let said = String::from_utf8_lossy(&listed.stderr);
        let (_, named) = said.split_once("unable to read config file '")?;
        return named.rsplit_once('\'').map(|(path, _)| Some(path.to_string()));
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

    fn at(own: &Path) -> Option<Places<'_>> {
        Some(Places { shared: "/dev/null/nowhere".as_ref(), own })
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
        let given = Identities::default().missing(dir.path(), &env, at(&file)).await;
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

    /// Each question is a program, and a start waited for five of them.
    #[tokio::test]
    async fn remembered_identity_gives_way_to_a_later_one_and_is_restored() {
        let dir = tempfile::tempdir().expect("a directory");
        let (home, shared) = (dir.path().to_str().expect("a path"), dir.path().join("shared"));
        let config = dir.path().join(".gitconfig");
        std::fs::write(&config, "[user]\n\tuseConfigOnly = true\n").expect("a file");
        let path = std::env::var("PATH").unwrap_or_default();
        let env: Env = [("PATH", path.as_str()), ("HOME", home)]
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .to_vec();
        let project = dir.path().join("project");
        std::fs::create_dir(&project).expect("a directory");
        let known = Identities::default();
        let places = Places { shared: &shared, own: "/dev/null/nowhere".as_ref() };
        let given = known.missing(&project, &env, Some(places)).await;
        let file = PathBuf::from(&given.first().expect("a variable").1);
        assert!(file.starts_with(&shared), "{given:?}");
        let text = std::fs::read_to_string(&file).expect("a file");
        assert!(text.contains("path = "), "a later system configuration counts: {text}");
        std::fs::write(&file, "[core]\n\teditor = evil\n").expect("an agent writes it");
        // No git can be asked there any more.
        std::fs::remove_dir(&project).expect("an empty directory");
        assert_eq!(known.missing(&project, &env, Some(places)).await, given);
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), text);
        let later = "[user]\n\tname = Later\n\temail = later@example.org\n";
        std::fs::write(config, later).expect("a file");
        let with: Env = env.iter().cloned().chain(given).collect();
        let said = ask(dir.path(), &with, &["var", "GIT_AUTHOR_IDENT"]).await.expect("git runs");
        assert!(said.stdout.starts_with(b"Later <later@example.org>"), "{said:?}");
    }

    #[tokio::test]
    async fn environment_that_has_an_address_keeps_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (home, file) = (dir.path().to_str().expect("a path"), dir.path().join("given"));
        let env = env(&[("HOME", home)]);
        let given = Identities::default().missing(dir.path(), &env, at(&file)).await;
        assert_eq!(given.len(), 2, "{given:?}");
        // This git takes no address from the environment, so a file without one is no help.
        let env: Env =
            env.into_iter().chain([("EMAIL".to_string(), "a@example.org".to_string())]).collect();
        let given = Identities::default().missing(dir.path(), &env, at(&file)).await;
        assert_eq!(
            given.first().map(|(name, _)| name.as_str()),
            Some("GIT_AUTHOR_NAME"),
            "{given:?}"
        );
        let absent =
            Identities::default().missing(dir.path(), &env, at("/dev/null/nowhere".as_ref())).await;
        assert_eq!(absent, given, "a file that cannot be written is no help");
    }
}
