//! Makes the homes of the CLIs for an agent that judges the work of others.
//!
//! Agents may have written to the person's homes, and programs that a judge runs may have written
//! to its own. So each start makes them again: the login and an allowlist of the configuration are
//! copied in, the conversations stay for a session that is resumed, everything else goes.

use crate::daemon::settings::read_if_there;
use crate::dispatch::launch::command_line::set;
use muleteer_backends::sealed::{Content, HOMES, LENT, OPENCODE, SealedFile, SealedHome};
use muleteer_store::StoreError;
use muleteer_store::atomic::{create_dir_durable, write_atomic};
use muleteer_vcs::untrusted_path::read_file;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The limit of a login.
const LOGIN_LIMIT: u64 = 1024 * 1024;
/// Beside each copied login: the person's file as it was copied, and where it is.
const COPIED: &str = "copied-login";

/// Makes the homes of an agent with this program below `folder`, and sets the variables that name
/// them.
///
/// # Errors
/// A home cannot be written, or a renewed login that is only there cannot be brought back.
pub(super) fn seal(
    folder: &Path,
    env: &mut Vec<(String, String)>,
    program: Option<&str>,
) -> Result<(), StoreError> {
    bring_back(&copies(folder))?;
    let homes = || HOMES.iter().enumerate().filter(|(_, home)| home.is_for(program));
    for (at, home) in homes() {
        let own = own_home(folder, at);
        create_dir_durable(&own, 0o700)?;
        let kept: Vec<_> = home.conversations().collect();
        clear(&own, &kept, true);
        for file in home.files {
            copy(home, file, &own, env)?;
        }
        for name in home.links {
            link(home, name, &own, env)?;
        }
    }
    for (at, home) in homes() {
        for name in home.also.iter().chain([&home.variable]) {
            set(env, name, &own_home(folder, at).display().to_string());
        }
        for (name, value) in home.set {
            set(env, name, value);
        }
        env.retain(|(name, _)| !home.unset.contains(&name.as_str()));
    }
    for (name, value) in OPENCODE {
        set(env, name, value);
    }
    Ok(())
}

/// Returns the folders of all homes.
pub fn folders(folder: &Path) -> impl Iterator<Item = PathBuf> {
    (0..HOMES.len()).map(move |at| own_home(folder, at))
}

/// Returns the folder of one of the homes. Its name is hidden in none of the CLIs' searches.
fn own_home(folder: &Path, at: usize) -> PathBuf {
    let name = HOMES[at].variable.to_lowercase().replace('_', "-");
    folder.join(name)
}

/// Removes everything but the conversations (`kept`, relative paths) and, at the top, Codex's
/// databases, by which it finds its sessions. A link goes, wherever it leads. A file that
/// cannot be removed is a fault of the disk, which the following writes report.
fn clear(folder: &Path, kept: &[&str], is_top: bool) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let Ok(kind) = entry.file_type() else { continue };
        let inside: Vec<&str> =
            kept.iter().filter_map(|kept| kept.strip_prefix(&*name)?.strip_prefix('/')).collect();
        let is_database = is_top && name.contains(".sqlite") && kind.is_file();
        if is_database || (!kind.is_symlink() && kept.contains(&&*name)) {
            continue;
        }
        if kind.is_dir() && !inside.is_empty() {
            clear(&path, &inside, false);
            continue;
        }
        let _ = match kind.is_dir() {
            true => std::fs::remove_dir_all(&path),
            false => std::fs::remove_file(&path),
        };
    }
}

/// Returns the logins that are lent to an agent with a private HOME, and the files beside their
/// homes, by the agent's environment.
pub(super) fn of_person(env: &[(String, String)]) -> Vec<(PathBuf, Content)> {
    let lent = HOMES.iter().filter(|home| LENT.contains(&home.variable));
    let files = lent.flat_map(|home| home.files.iter().map(move |file| (home, file)));
    files
        .filter(|(_, file)| file.content.is_login() || file.is_beside)
        .filter_map(|(home, file)| Some((source(home, file, env)?, file.content)))
        .collect()
}

/// Returns the person's file.
fn source(home: &SealedHome, file: &SealedFile, env: &[(String, String)]) -> Option<PathBuf> {
    match absolute(home.variable, env) {
        None if file.is_beside => Some(absolute("HOME", env)?.join(file.name)),
        _ => Some(persons(home, env)?.join(file.name)),
    }
}

/// Returns the person's folder.
fn persons(home: &SealedHome, env: &[(String, String)]) -> Option<PathBuf> {
    let named = absolute(home.variable, env);
    named.or_else(|| Some(absolute("HOME", env)?.join(home.folder)))
}

fn absolute(name: &str, env: &[(String, String)]) -> Option<PathBuf> {
    let value = &env.iter().rev().find(|(known, _)| known == name)?.1;
    Some(PathBuf::from(value)).filter(|path| path.is_absolute())
}

/// Leads to what other programs have in the person's folder.
fn link(
    home: &SealedHome,
    name: &str,
    own: &Path,
    env: &[(String, String)],
) -> Result<(), StoreError> {
    let Some(from) = persons(home, env).map(|folder| folder.join(name)) else { return Ok(()) };
    let to = own.join(name);
    if !from.exists() {
        return Ok(());
    }
    if let Some(above) = to.parent() {
        create_dir_durable(above, 0o700)?;
    }
    std::os::unix::fs::symlink(from, &to).map_err(|source| StoreError::Io {
        file: to,
        doing: "make the link",
        source,
    })
}

fn copy(
    home: &SealedHome,
    file: &SealedFile,
    own: &Path,
    env: &[(String, String)],
) -> Result<(), StoreError> {
    let from = source(home, file, env);
    let text = from.as_ref().and_then(|from| read_if_there(from).ok().flatten());
    let Some(content) = file.text(text.as_deref()) else { return Ok(()) };
    let to = own.join(file.name);
    if let Some(above) = to.parent() {
        create_dir_durable(above, 0o700)?;
    }
    write_atomic(&to, content.as_bytes(), 0o600)?;
    if let Some(from) = from.filter(|_| file.content.is_login()) {
        let (top, name) = (own.to_owned(), file.name.into());
        let copied = LoginCopy { record: record_of(own, file), top, name };
        copied.write_record(&from, content.as_bytes())?;
    }
    Ok(())
}

/// Returns the record of a copied login. It is in a folder that the agent cannot write.
fn record_of(own: &Path, file: &SealedFile) -> PathBuf {
    let name = format!("{COPIED}-{}", file.name.replace('/', "-"));
    let folder = own.file_name().unwrap_or_default().to_string_lossy();
    own.with_file_name(format!("{folder}.{name}"))
}

/// Brings renewed logins back to the person's homes: a renewal may make the older one invalid. A
/// login that has changed there since stays, and so does one that is a link.
///
/// # Errors
/// The first one that could not be brought back. The others were tried too.
pub(super) fn bring_back(copies: &[LoginCopy]) -> Result<(), StoreError> {
    let mut whole = Ok(());
    for copied in copies {
        match copied.renewed() {
            Ok(Some(to)) => {
                tracing::info!(file = %to.display(), "brought a renewed login back");
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(
                    copy = %copied.top.join(&copied.name).display(),
                    %error,
                    "cannot bring a renewed login back; the copy stays"
                );
                whole = whole.and(Err(error));
            }
        }
    }
    whole
}

/// Brings renewed logins back, and removes the copies: the agent has ended, and its next start
/// makes them again.
pub fn leave(folder: &Path) {
    forget(&copies(folder));
}

/// Brings renewed logins back, and removes the copies and their records.
pub(super) fn forget(copies: &[LoginCopy]) {
    if bring_back(copies).is_err() {
        return;
    }
    for copied in copies {
        muleteer_vcs::untrusted_path::remove(&copied.top, &copied.name);
        let _ = std::fs::remove_file(&copied.record);
    }
}

/// Returns the logins that may be copied into the homes below `folder`.
fn copies(folder: &Path) -> Vec<LoginCopy> {
    let of = |at: usize| {
        let own = own_home(folder, at);
        let logins = HOMES[at].files.iter().filter(|file| file.content.is_login());
        logins.map(move |file| LoginCopy {
            record: record_of(&own, file),
            name: file.name.into(),
            top: own.clone(),
        })
    };
    (0..HOMES.len()).flat_map(of).collect()
}

/// A login that was copied for an agent.
pub(super) struct LoginCopy {
    /// The folder that the agent can write.
    pub(super) top: PathBuf,
    /// The path of the copy below that folder.
    pub(super) name: PathBuf,
    /// The path of the person's file in the first line, then that file as it was copied. The agent
    /// cannot write it.
    pub(super) record: PathBuf,
}

impl LoginCopy {
    /// Writes the record of a copy of `from`.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn write_record(&self, from: &Path, content: &[u8]) -> Result<(), StoreError> {
        let record = [format!("{}\n", from.display()).as_bytes(), content].concat();
        write_atomic(&self.record, &record, 0o600)
    }

    /// Returns the person's file, if a renewed login was written to it.
    ///
    /// # Errors
    /// The person's file or the record cannot be written.
    fn renewed(&self) -> Result<Option<PathBuf>, StoreError> {
        let Some((to, now)) = self.renewal() else { return Ok(None) };
        write_atomic(&to, &now, 0o600)?;
        self.write_record(&to, &now)?;
        Ok(Some(to))
    }

    /// Returns the person's file and the login that belongs there, if the agent has renewed its
    /// copy and the person's file is still as it was copied.
    fn renewal(&self) -> Option<(PathBuf, Vec<u8>)> {
        let read = |path: &Path| read_file(path, LOGIN_LIMIT).ok();
        let record = String::from_utf8(read(&self.record)?).ok()?;
        let (to, copied) = record.split_once('\n')?;
        let now = muleteer_vcs::untrusted_path::read(&self.top, &self.name, LOGIN_LIMIT).ok()??;
        if now == copied.as_bytes() {
            return None;
        }
        let old: Value = serde_json::from_str(copied).ok()?;
        let new: Value = serde_json::from_slice(&now).ok()?;
        let to = PathBuf::from(to);
        if !is_renewal_of(&old, &new) {
            let file = to.display();
            tracing::warn!(%file, "a changed login has another shape; it is not brought back");
            return None;
        }
        (read(&to)? == copied.as_bytes()).then_some((to, now))
    }
}

/// Whether a login can be the renewed one of another. An agent can write its copy, and a CLI runs
/// commands that a login names and connects to addresses in it. So the shape is the same, only
/// scalars differ, and none has become a command or an address.
fn is_renewal_of(copied: &Value, now: &Value) -> bool {
    copied.is_object() && has_shape_of(copied, now)
}

fn has_shape_of(copied: &Value, now: &Value) -> bool {
    match (copied, now) {
        (Value::Object(copied), Value::Object(now)) => {
            copied.len() == now.len()
                && copied.iter().all(|(name, old)| {
                    let new = now.get(name);
                    new.is_some_and(|new| match name == "type" && old.is_string() {
                        true => new == old,
                        false => has_shape_of(old, new),
                    })
                })
        }
        (Value::Array(copied), Value::Array(now)) => {
            let mut pairs = copied.iter().zip(now);
            copied.len() == now.len() && pairs.all(|(old, new)| has_shape_of(old, new))
        }
        (Value::String(copied), Value::String(now)) => copied == now || is_harmless(now),
        (Value::Null, Value::String(now)) => is_harmless(now),
        (Value::Null, Value::Null)
        | (Value::Bool(_), Value::Bool(_))
        | (Value::Number(_), Value::Number(_)) => true,
        _ => false,
    }
}

/// Whether a string is neither a command, as pi runs it, nor an address.
fn is_harmless(text: &str) -> bool {
    !text.trim_start().starts_with('!') && !text.contains("://")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn env(home: &Path) -> Vec<(String, String)> {
        vec![("HOME".into(), home.display().to_string())]
    }

    fn get(env: &[(String, String)], name: &str) -> PathBuf {
        env.iter().find(|(known, _)| known == name).unwrap().1.clone().into()
    }

    #[test]
    fn sealed_home_has_the_login_and_nothing_that_an_agent_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let (user, sealed) = (dir.path().join("user"), dir.path().join("sealed"));
        for folder in [".claude/hooks", ".codex/skills/evil"] {
            std::fs::create_dir_all(user.join(folder)).unwrap();
        }
        for (name, text) in [
            (".claude/.credentials.json", r#"{"token":"c"}"#),
            (".claude/settings.json", r#"{"hooks":{}}"#),
            (".claude/CLAUDE.md", "Pass."),
            (".claude.json", r#"{"oauthAccount":{"a":1},"mcpServers":{"x":{"command":"evil"}}}"#),
            (".codex/auth.json", r#"{"token":"x"}"#),
            (".codex/config.toml", "model = \"m\"\nnotify = [\"evil\"]\n"),
            (".codex/AGENTS.md", "Pass."),
        ] {
            std::fs::write(user.join(name), text).unwrap();
        }
        let mut env = env(&user);
        env.push(("CODEX_SQLITE_HOME".into(), user.join("db").display().to_string()));
        seal(&sealed, &mut env, None).unwrap();
        let (claude, codex) = (get(&env, "CLAUDE_CONFIG_DIR"), get(&env, "CODEX_HOME"));
        assert!(claude.starts_with(&sealed) && codex.starts_with(&sealed));
        assert!(!env.iter().any(|(name, _)| name == "CODEX_SQLITE_HOME"));
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(read(&claude.join(".credentials.json")), r#"{"token":"c"}"#);
        assert_eq!(read(&claude.join(".claude.json")), r#"{"oauthAccount":{"a":1}}"#);
        assert_eq!(read(&codex.join("auth.json")), r#"{"token":"x"}"#);
        let config = read(&codex.join("config.toml"));
        assert!(config.contains("\"model\" = \"m\"") && !config.contains("notify"), "{config}");
        for gone in
            [claude.join("settings.json"), claude.join("CLAUDE.md"), codex.join("AGENTS.md")]
        {
            assert!(!gone.exists(), "{}", gone.display());
        }
        // A program that the judge ran has written to its homes; then its session is resumed.
        std::fs::create_dir_all(codex.join("sessions/2026")).unwrap();
        std::fs::create_dir_all(claude.join("plugins/evil")).unwrap();
        for planted in ["AGENTS.md", "hooks.json", "state_5.sqlite"] {
            std::fs::write(codex.join(planted), "planted").unwrap();
        }
        std::fs::write(codex.join("config.toml"), "notify = [\"evil\"]").unwrap();
        let mut again = super::tests::env(&user);
        seal(&sealed, &mut again, None).unwrap();
        assert!(codex.join("sessions/2026").is_dir() && codex.join("state_5.sqlite").exists());
        assert_eq!(read(&codex.join("config.toml")), config);
        for gone in [codex.join("AGENTS.md"), codex.join("hooks.json"), claude.join("plugins")] {
            assert!(!gone.exists(), "{}", gone.display());
        }
    }

    #[test]
    fn folders_of_the_system_are_sealed_for_opencode_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (user, sealed) = (dir.path().join("user"), dir.path().join("sealed"));
        std::fs::create_dir_all(user.join(".config/git")).unwrap();
        std::fs::create_dir_all(user.join(".config/opencode/plugin")).unwrap();
        std::fs::write(user.join(".config/git/config"), "[user]").unwrap();
        std::fs::write(user.join(".config/opencode/opencode.json"), r#"{"model":"m"}"#).unwrap();
        let mut other = env(&user);
        seal(&sealed, &mut other, Some("claude")).unwrap();
        assert!(!other.iter().any(|(name, _)| name.starts_with("XDG_")), "{other:?}");
        assert!(get(&other, "COPILOT_HOME").starts_with(&sealed));
        for _ in 0..2 {
            let mut own = env(&user);
            seal(&sealed, &mut own, Some("opencode")).unwrap();
            let config = get(&own, "XDG_CONFIG_HOME");
            assert_eq!(get(&own, "OPENCODE_TEST_HOME"), config);
            let git = std::fs::read_to_string(config.join("git/config")).unwrap();
            assert_eq!(git, "[user]", "git finds the person's configuration");
            assert!(config.join("opencode/opencode.json").exists());
            assert!(!config.join("opencode/plugin").exists());
        }
    }

    #[test]
    fn home_keeps_its_conversations_and_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let (own, user) = (dir.path().join("own"), dir.path().join("user"));
        for folder in [own.join(".gemini/tmp/chat"), own.join(".gemini/extensions"), user.clone()] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(own.join(".gemini/GEMINI.md"), "Pass.").unwrap();
        std::os::unix::fs::symlink(&user, own.join("state.sqlite")).unwrap();
        clear(&own, &[".gemini/tmp"], true);
        assert!(own.join(".gemini/tmp/chat").is_dir());
        for gone in [".gemini/GEMINI.md", ".gemini/extensions", "state.sqlite"] {
            assert!(own.join(gone).symlink_metadata().is_err(), "{gone}");
        }
        std::fs::remove_dir_all(own.join(".gemini")).unwrap();
        std::os::unix::fs::symlink(&user, own.join(".gemini")).unwrap();
        clear(&own, &[".gemini/tmp"], true);
        assert!(own.join(".gemini").symlink_metadata().is_err(), "a link in the place of a folder");
    }

    #[test]
    fn login_that_cannot_be_brought_back_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (user, sealed) = (dir.path().join("user"), dir.path().join("sealed"));
        std::fs::create_dir_all(user.join(".codex")).unwrap();
        let old = r#"{"refresh":"1"}"#;
        std::fs::write(user.join(".codex/auth.json"), old).unwrap();
        let mut env = env(&user);
        seal(&sealed, &mut env, None).unwrap();
        let home = get(&env, "CODEX_HOME");
        let files = || HOMES.iter().flat_map(|home| home.files);
        let login = files().find(|file| file.name == "auth.json").unwrap();
        // Its name is so long that no temporary file beside it can be made.
        let unwritable = user.join("a".repeat(250));
        std::fs::write(&unwritable, old).unwrap();
        let record = format!("{}\n{old}", unwritable.display());
        std::fs::write(record_of(&home, login), record).unwrap();
        std::fs::write(home.join("auth.json"), r#"{"refresh":"2"}"#).unwrap();
        seal(&sealed, &mut super::tests::env(&user), None).unwrap_err();
        let kept = std::fs::read_to_string(home.join("auth.json")).unwrap();
        assert_eq!(kept, r#"{"refresh":"2"}"#, "no start overwrites it");
        leave(&sealed);
        assert_eq!(std::fs::read_to_string(&unwritable).unwrap(), old);
        assert!(home.join("auth.json").exists(), "the only valid login");
    }

    #[test]
    fn renewal_has_the_shape_of_the_login_and_names_no_command_or_address() {
        let login = r#"{"a":{"type":"oauth","key":"k","until":1,"more":[true,"x"]},"id":null,
            "scope":"https://a"}"#;
        let part = r#"{"type":"oauth","key":"n","until":2,"more":[false,"y"]}"#;
        let with = |a: &str, rest: &str| format!(r#"{{"a":{a},{rest}}}"#);
        let rest = r#""id":null,"scope":"https://a""#;
        for (now, expected) in [
            (login.to_string(), true),
            (with(part, rest), true),
            (with(part, r#""id":"i","scope":"b""#), true),
            (with(part, r#""id":"!i","scope":"b""#), false),
            (with(part, r#""id":1,"scope":"b""#), false),
            (with(part, r#""id":null,"scope":"https://b""#), false),
            (with(part, r#""id":null"#), false),
            (with(part, r#""id":null,"scope":"b","more":1"#), false),
            (with(part, r#""id":null,"other":"b""#), false),
            (with(&part.replace("oauth", "api"), rest), false),
            (with(&part.replace("\"n\"", "\" !n\""), rest), false),
            (with(&part.replace("\"n\"", "{}"), rest), false),
            (with(&part.replace('2', "\"2\""), rest), false),
            (with(&part.replace("[false,\"y\"]", "[false]"), rest), false),
            (with(&part.replace("[false,\"y\"]", "[\"y\",\"y\"]"), rest), false),
            ("[]".into(), false),
        ] {
            let copied: Value = serde_json::from_str(login).unwrap();
            let new: Value = serde_json::from_str(&now).unwrap();
            assert_eq!(is_renewal_of(&copied, &new), expected, "{now}");
        }
        assert!(!is_renewal_of(&Value::from("a"), &Value::from("b")), "no object");
    }

    #[test]
    fn renewed_login_comes_back_unless_the_person_has_another() {
        let dir = tempfile::tempdir().unwrap();
        let (user, sealed) = (dir.path().join("user"), dir.path().join("sealed"));
        std::fs::create_dir_all(user.join(".codex")).unwrap();
        let login = user.join(".codex/auth.json");
        let read = || std::fs::read_to_string(&login).unwrap();
        let (old, new) = (r#"{"refresh":"1"}"#, r#"{"refresh":"2"}"#);
        std::fs::write(&login, old).unwrap();
        let mut env = env(&user);
        seal(&sealed, &mut env, None).unwrap();
        let own = get(&env, "CODEX_HOME").join("auth.json");
        let (more, other) = (r#"{"refresh":"2","base":"x"}"#, r#"{"refresh":2}"#);
        for no_login in ["", "damaged", "[1]", more, other] {
            std::fs::write(&own, no_login).unwrap();
            bring_back(&copies(&sealed)).unwrap();
            assert_eq!(read(), old, "{no_login}");
        }
        std::fs::remove_file(&own).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &own).unwrap();
        bring_back(&copies(&sealed)).unwrap();
        assert_eq!(read(), old, "a link is no login");
        std::fs::remove_file(&own).unwrap();
        std::fs::write(&own, new).unwrap();
        bring_back(&copies(&sealed)).unwrap();
        assert_eq!(read(), new);
        // The person has logged in again meanwhile.
        std::fs::write(&login, r#"{"refresh":"person"}"#).unwrap();
        std::fs::write(&own, r#"{"refresh":"3"}"#).unwrap();
        leave(&sealed);
        assert_eq!(read(), r#"{"refresh":"person"}"#);
        assert!(!own.exists(), "no copy outlives the agent");
    }
}
