//! The user's trust in the configuration of repositories. The state directory has one private file
//! for each repository, with the hash of every trusted file. A file that changes is untrusted
//! again.
//!
//! A checkout that Muleteer or `git worktree` made of a trusted repository inherits its trust, file
//! by file and only for the same content. A file that an agent changes in its clone is untrusted.

mod agents;
pub mod claude;
#[cfg(test)]
mod test_place;

use crate::daemon::paths::Paths;
use crate::daemon::settings::{
    self, PROJECT_FILE, Unreadable, is_worktree_of, main_checkout, outermost, project_file,
    read_if_there, repository,
};
use muleteer_model::agent::role::{self, Catalog, RoleError, RoleLayer, RoleSource};
use muleteer_model::config::{Config, ConfigError, Ignored, Layer, Source, Trust};
use muleteer_store::atomic;
use muleteer_store::error::StoreError;
use muleteer_store::hash::sha256;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The limit of repositories in a list.
const LIST_LIMIT: usize = 10_000;

/// The files of one repository that the user trusts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub v: u32,
    /// The canonical path of the repository's top.
    pub root: PathBuf,
    /// The SHA-256 of each trusted file, by its path in the repository.
    pub files: BTreeMap<String, String>,
    /// The time of the decision, in RFC 3339.
    pub trusted_at: String,
}

#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error("the configuration is invalid")]
    Config(Vec<ConfigError>),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("{} cannot be used: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// The records that apply to a checkout: its own, and those of the repository that it is a copy of.
#[derive(Debug, Default)]
pub(crate) struct Records(Vec<Record>);

impl Records {
    /// Reads the records for a checkout. `top` is its [`repository`].
    pub(crate) fn of(paths: &Paths, top: Option<&Path>) -> Self {
        let Some(top) = top.and_then(|top| top.canonicalize().ok()) else { return Self::default() };
        let mut roots = vec![top.clone()];
        let (outer, main) = (outermost(&top), main_checkout(&top));
        roots.extend([outer].into_iter().filter(|outer| *outer != top));
        roots.extend([main].into_iter().filter(|main| *main != top && is_worktree_of(main, &top)));
        Self(roots.iter().filter_map(|root| read(paths, root)).collect())
    }

    /// Whether the user trusted this content as the file `name` of the repository.
    pub(crate) fn trust(&self, name: &str, content: impl AsRef<[u8]>) -> Trust {
        if self.0.is_empty() {
            return Trust::Untrusted;
        }
        let hash = sha256(content.as_ref());
        let is_trusted = self.0.iter().any(|record| record.files.get(name) == Some(&hash));
        if is_trusted { Trust::Trusted } else { Trust::Untrusted }
    }

    /// Returns the trusted files, by their paths in the repository.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|record| record.files.keys()).map(String::as_str)
    }
}

fn file_of(paths: &Paths, root: &Path) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    paths.trust().join(format!("{}.json", sha256(root.as_os_str().as_bytes())))
}

/// Reads a record; `None` also if it is unreadable, so that nothing is trusted then.
fn read(paths: &Paths, root: &Path) -> Option<Record> {
    let path = file_of(paths, root);
    let text = read_if_there(&path).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "failed to read a record of trust");
        None
    })?;
    match serde_json::from_str::<Record>(&text) {
        Ok(record) if record.v == 1 && record.root == root => Some(record),
        Ok(_) => None,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "failed to read a record of trust");
            None
        }
    }
}

/// A file of a repository that configures Muleteer or an agent CLI, with the settings that count
/// only once it is trusted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Candidate {
    /// Its path in the repository.
    pub file: String,
    pub sha256: String,
    /// The user trusts its current content.
    pub trusted: bool,
    pub allows: Vec<Ignored>,
    /// Why it cannot be trusted, whatever the user decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub untrustable: Option<String>,
}

/// A repository's files, read once, so that the content which a person sees is the one that is
/// recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Examined {
    pub root: PathBuf,
    pub files: Vec<Candidate>,
}

impl Examined {
    /// Whether there is a file that the user can trust.
    pub fn has_trustable(&self) -> bool {
        self.files.iter().any(|file| file.untrustable.is_none())
    }

    /// Whether the user trusts the current content of every file that can be trusted.
    pub fn is_trusted(&self) -> bool {
        self.files.iter().all(|file| file.trusted || file.untrustable.is_some())
    }
}

/// Reads the files of the repository around `dir` that the user could trust. It runs nothing.
///
/// # Errors
/// When a file of the repository or of the user is invalid or cannot be read, because then nobody
/// can see what it allows.
pub fn examine(paths: &Paths, dir: &Path) -> Result<Examined, TrustError> {
    let dir =
        dir.canonicalize().map_err(|source| TrustError::Io { path: dir.to_owned(), source })?;
    let root = repository(&dir);
    let records = Records::of(paths, Some(&root));
    let mut sources: Vec<Source> = settings::sources(paths, None, None)?;
    let mut files = vec![];
    if let Some((path, text)) = project_file(&root)? {
        files.push(candidate(&records, PROJECT_FILE.into(), &text));
        sources.push(Source::new(Layer::Project, path.display().to_string(), text));
    }
    let config = settings::config(&sources, &[]).map_err(TrustError::Config)?;
    if let Some(file) = files.first_mut() {
        file.allows = config.ignored().to_vec();
    }
    let roles = settings::roles(paths, Some(&root))?;
    files.extend(role_candidates(&records, &root, &config, roles)?);
    files.extend(claude::candidates(&records, &root, &dir)?);
    Ok(Examined { root, files })
}

fn candidate(records: &Records, file: String, content: impl AsRef<[u8]>) -> Candidate {
    let content = content.as_ref();
    let trusted = records.trust(&file, content) == Trust::Trusted;
    Candidate { sha256: sha256(content), trusted, file, allows: vec![], untrustable: None }
}

/// Returns every role file that could count, each as if its name were unique in the repository. The
/// reason is that a hidden file counts once the one that hides it is gone. A file that cannot be
/// read as a role is not recorded.
fn role_candidates(
    records: &Records,
    root: &Path,
    config: &Config,
    roles: Vec<RoleSource>,
) -> Result<Vec<Candidate>, TrustError> {
    let (own, of_repository): (Vec<_>, Vec<_>) =
        roles.into_iter().partition(|role| role.layer <= RoleLayer::User);
    let named = |source: &RoleSource| role::parse(source).ok().map(|role| role.name);
    let names: Vec<_> = of_repository.iter().map(named).collect();
    let mut files = vec![];
    for (source, name) in of_repository.iter().zip(&names) {
        let (Ok(text), Some(name)) = (&source.text, name) else { continue };
        let path = Path::new(&source.file).strip_prefix(root).unwrap_or(Path::new(&source.file));
        let mut file = candidate(records, path.display().to_string(), text);
        // It may also come to replace a file of lower priority, which the user trusts by then.
        let weaker = of_repository
            .iter()
            .zip(&names)
            .filter(|(other, of)| other.layer < source.layer && of.as_ref() == Some(name));
        let over = [None].into_iter().chain(weaker.map(|(other, _)| Some(other)));
        for other in over {
            let other = other.map(|other| RoleSource { trust: Trust::Trusted, ..other.clone() });
            let this = RoleSource { trust: Trust::Untrusted, ..source.clone() };
            let sources: Vec<_> = own.iter().cloned().chain(other).chain([this]).collect();
            match Catalog::new(&sources).in_force(name, config, &sources) {
                Ok(found) => {
                    let new = found
                        .ignored
                        .into_iter()
                        .filter(|one| !file.allows.contains(one))
                        .collect::<Vec<_>>();
                    file.allows.extend(new);
                }
                Err(RoleError::Invalid(error)) => return Err(TrustError::Config(vec![error])),
                Err(RoleError::Unknown(_)) => {}
            }
        }
        files.push(file);
    }
    Ok(files)
}

/// Records that the user trusts these files with the examined content.
///
/// # Errors
/// When the record cannot be made durable; earlier trust stays.
pub fn record(paths: &Paths, examined: &Examined, now: String) -> Result<(), TrustError> {
    let folder = paths.trust();
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|source| TrustError::Io { path: folder.clone(), source })?;
    let usable = examined.files.iter().filter(|file| file.untrustable.is_none());
    let files = usable.map(|file| (file.file.clone(), file.sha256.clone())).collect();
    let record = Record { v: 1, root: examined.root.clone(), files, trusted_at: now };
    let mut text = serde_json::to_string_pretty(&record).unwrap_or_default();
    text.push('\n');
    Ok(atomic::write_atomic(&file_of(paths, &examined.root), text.as_bytes(), 0o600)?)
}

/// Removes the trust in a repository, and returns whether there was any. `dir` need not exist any
/// more.
///
/// # Errors
/// When the record cannot be removed.
pub fn revoke(paths: &Paths, dir: &Path) -> Result<(PathBuf, bool), TrustError> {
    let root = dir.canonicalize().map_or_else(|_| dir.to_path_buf(), |dir| repository(&dir));
    let path = file_of(paths, &root);
    match fs::remove_file(&path) {
        Ok(()) => {
            let folder = fs::File::open(paths.trust()).and_then(|folder| folder.sync_all());
            folder.map_err(|source| TrustError::Io { path, source })?;
            Ok((root, true))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((root, false)),
        Err(source) => Err(TrustError::Io { path, source }),
    }
}

/// Returns every repository with a record, sorted by path.
///
/// # Errors
/// When the folder of the records cannot be read.
pub fn list(paths: &Paths) -> Result<Vec<Record>, TrustError> {
    let folder = paths.trust();
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        Err(source) => return Err(TrustError::Io { path: folder, source }),
    };
    let records = entries.take(LIST_LIMIT).filter_map(|entry| {
        let path = entry.ok()?.path();
        let record: Record = serde_json::from_str(&read_if_there(&path).ok()??).ok()?;
        (file_of(paths, &record.root) == path).then_some(record)
    });
    let mut records: Vec<_> = records.collect();
    records.sort_by(|one, other| one.root.cmp(&other.root));
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::trust::test_place::Place;

    const RUNS: &str = "backends: {codex: {command: ./codex}}\n";

    /// Returns the keys that are ignored, as seen from a directory.
    fn ignored(place: &Place, name: &str) -> Vec<String> {
        let top = repository(&place.root.join(name));
        let sources = settings::sources(&place.paths, Some(&top), None).expect("sources");
        let config = settings::config(&sources, &[]).expect("a configuration");
        config.ignored().iter().map(|one| one.key.clone()).collect()
    }

    const KEY: [&str; 1] = ["backends.codex.command"];

    #[test]
    fn trust_follows_the_content_of_files() {
        let place = Place::new();
        place.write("shop/.muleteer/config.yaml", RUNS);
        assert_eq!(ignored(&place, "shop"), KEY);
        let examined = place.trust("shop");
        assert_eq!((examined.files.len(), examined.is_trusted()), (1, false));
        assert_eq!(examined.files[0].allows[0].key, KEY[0]);
        assert!(ignored(&place, "shop").is_empty());
        place.write("shop/.muleteer/config.yaml", &format!("{RUNS}\n"));
        assert_eq!(ignored(&place, "shop"), KEY);
        place.write("shop/.muleteer/config.yaml", RUNS);
        assert!(ignored(&place, "shop").is_empty());
        assert_eq!(list(&place.paths).expect("a list").len(), 1);
        assert!(revoke(&place.paths, &place.root.join("shop")).expect("revoked").1);
        assert_eq!(
            (ignored(&place, "shop"), list(&place.paths).expect("a list").len()),
            (KEY.map(String::from).to_vec(), 0)
        );
    }

    #[test]
    fn trust_is_of_one_repository_and_its_checkouts() {
        let place = Place::new();
        for name in ["shop", "copy", "shop/sub", "shop/.muleteer/worktrees/agent", "beside", "liar"]
        {
            place.write(&format!("{name}/.muleteer/config.yaml"), RUNS);
        }
        let shop = place.root.join("shop");
        // As `git worktree` makes it; only `liar`'s own file says so, and the repository does not
        // know it.
        fs::create_dir_all(shop.join(".git/worktrees/beside")).expect("a folder");
        for name in ["beside", "liar"] {
            place.write(
                &format!("{name}/.git"),
                &format!("gitdir: {}\n", shop.join(".git/worktrees/beside").display()),
            );
        }
        let back = place.root.join("beside/.git");
        fs::write(shop.join(".git/worktrees/beside/gitdir"), format!("{}\n", back.display()))
            .expect("a file");
        place.trust("shop");
        for (name, trusted) in [
            ("shop", true),
            ("copy", false),
            ("shop/sub", false),
            ("shop/.muleteer/worktrees/agent", true),
            ("beside", true),
            ("liar", false),
        ] {
            assert_eq!(ignored(&place, name).is_empty(), trusted, "{name}");
        }
        place.write("shop/.muleteer/worktrees/agent/.muleteer/config.yaml", "sandbox: off\n");
        assert_eq!(ignored(&place, "shop/.muleteer/worktrees/agent"), ["sandbox"]);
    }

    #[test]
    fn damaged_record_trusts_nothing() {
        let place = Place::new();
        place.write("shop/.muleteer/config.yaml", RUNS);
        place.trust("shop");
        for entry in fs::read_dir(place.paths.trust()).expect("records").flatten() {
            fs::write(entry.path(), "{").expect("a file");
        }
        assert_eq!(ignored(&place, "shop"), KEY);
        place.trust("shop");
        assert!(ignored(&place, "shop").is_empty());
    }

    #[test]
    fn record_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let place = Place::new();
        place.write("shop/.muleteer/config.yaml", RUNS);
        place.trust("shop");
        let mode =
            |path: &Path| fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
        let file =
            fs::read_dir(place.paths.trust()).expect("records").flatten().next().expect("a record");
        assert_eq!((mode(&place.paths.trust()), mode(&file.path())), (0o700, 0o600));
    }

    #[test]
    fn pipe_and_endless_file_are_refused_at_once() {
        let place = Place::new();
        let config = place.write("shop/.muleteer/config.yaml", "");
        fs::remove_file(&config).expect("removed");
        rustix::fs::mkfifoat(rustix::fs::CWD, &config, rustix::fs::Mode::RWXU).expect("a pipe");
        let refused = |place: &Place| {
            examine(&place.paths, &place.root.join("shop")).expect_err("not a file")
        };
        assert!(refused(&place).to_string().contains("not a regular file"));
        fs::remove_file(&config).expect("removed");
        fs::File::create(&config).and_then(|file| file.set_len(1 << 40)).expect("a large file");
        assert!(refused(&place).to_string().contains("larger than"));
        fs::remove_file(&config).expect("removed");
        std::os::unix::fs::symlink("/dev/zero", &config).expect("a link");
        assert!(refused(&place).to_string().contains("not a regular file"));
    }

    #[test]
    fn role_of_a_repository_is_trusted_by_its_own_file() {
        let place = Place::new();
        place.write(
            "shop/.muleteer/roles/a.md",
            "---\npermissions: {allow: [Bash]}\n---\nYou are.\n",
        );
        place.write("shop/.claude/agents/b.md", "---\ndescription: b\n---\nYou are.\n");
        let trust = |place: &Place| {
            let roles =
                settings::roles(&place.paths, Some(&place.root.join("shop"))).expect("roles");
            roles.iter().map(|role| role.trust == Trust::Trusted).collect::<Vec<_>>()
        };
        assert_eq!(trust(&place), [false, false]);
        let examined = place.trust("shop");
        let allows: Vec<_> =
            examined.files.iter().map(|file| (file.file.as_str(), file.allows.len())).collect();
        assert_eq!(allows, [(".claude/agents/b.md", 0), (".muleteer/roles/a.md", 1)]);
        assert_eq!(trust(&place), [true, true]);
        place.write("shop/.claude/agents/b.md", "You are another.\n");
        assert_eq!(trust(&place), [false, true]);
    }

    #[test]
    fn hidden_and_duplicate_roles_are_listed_with_their_permissions() {
        let place = Place::new();
        let loose = |name: &str| {
            format!("---\nname: {name}\npermissions: {{allow: [Bash]}}\n---\nYou are.\n")
        };
        place.write(
            "shop/.claude/agents/a.md",
            "---\nname: a\npermissionMode: plan\n---\nYou are.\n",
        );
        place.write("shop/.muleteer/roles/a.md", "---\nname: a\n---\nYou are.\n");
        place.write("shop/.muleteer/roles/twice.md", &loose("b"));
        place.write("shop/.muleteer/roles/b.md", &loose("b"));
        place.write("shop/.muleteer/roles/broken.md", "---\nfoo: 1\n---\nYou are.\n");
        place.write("home/.config/muleteer/roles/c.md", "---\ntools: [Read]\n---\nYou are.\n");
        place.write("shop/.claude/agents/c.md", "---\nname: c\n---\nYou are.\n");
        place.write("shop/.muleteer/roles/c.md", "---\ntools: [Read]\n---\nYou are.\n");
        let examined = place.trust("shop");
        let keys =
            |file: &Candidate| file.allows.iter().map(|one| one.key.clone()).collect::<Vec<_>>();
        let shown: Vec<_> =
            examined.files.iter().map(|file| (file.file.as_str(), keys(file))).collect();
        let one = |key: &str| vec![key.to_string()];
        assert_eq!(
            shown,
            [
                (".claude/agents/a.md", vec![]),
                (".claude/agents/c.md", one("tools")),
                (".muleteer/roles/a.md", one("permissionMode")),
                (".muleteer/roles/b.md", one("permissions.allow")),
                (".muleteer/roles/c.md", vec![]),
                (".muleteer/roles/twice.md", one("permissions.allow")),
            ]
        );
        // An unreadable file is not recorded, so that every later version of it is untrusted too.
        let record = &list(&place.paths).expect("a list")[0];
        assert!(!record.files.contains_key(".muleteer/roles/broken.md") && record.files.len() == 6);
    }
}
