//! Reads the files of configuration and roles. The model merges and checks them.

use crate::daemon::paths::Paths;
use crate::daemon::trust::Records;
use muleteer_backends::claude_code::SUBAGENTS;
use muleteer_model::agent::role::{RoleLayer, RoleSource, UnreadableRole};
use muleteer_model::config::{Config, ConfigError, Layer, Source, Trust, load};
use std::cell::LazyCell;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The limit of a role or configuration file. A larger one is a mistake.
const FILE_LIMIT: u64 = 1024 * 1024;
/// At most this many worktrees of one repository are checked.
const WORKTREES_LIMIT: usize = 1000;
/// At most this many role files of one directory are read.
pub(crate) const ROLES_LIMIT: usize = 1000;

/// A file that exists and cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", .path.display())]
pub struct Unreadable {
    pub path: PathBuf,
    pub source: io::Error,
}

/// The configuration file of a repository, relative to its top.
pub(crate) const PROJECT_FILE: &str = ".muleteer/config.yaml";
/// The role folders of a repository, weakest first.
const ROLE_FOLDERS: [(RoleLayer, &str); 2] =
    [(RoleLayer::ClaudeAgents, SUBAGENTS), (RoleLayer::Project, ".muleteer/roles")];

/// Reads the configuration files, weakest first: the user's, the project's, `--config`. `top` is
/// the project's [`repository`]. Its file is trusted if the user has trusted its current content.
///
/// # Errors
/// When one cannot be read. Only `--config` must exist.
pub fn sources(
    paths: &Paths,
    top: Option<&Path>,
    config: Option<&Path>,
) -> Result<Vec<Source>, Unreadable> {
    let mut sources = Vec::new();
    let path = paths.config_file();
    if let Some(text) = read_if_there(&path)? {
        sources.push(Source::new(Layer::User, path.display().to_string(), text));
    }
    if let Some((path, text)) = top.map(project_file).transpose()?.flatten() {
        let trust = Records::of(paths, top).trust(PROJECT_FILE, &text);
        sources.push(Source::new(Layer::Project, path.display().to_string(), text).trusted(trust));
    }
    if let Some(path) = config {
        let missing =
            || Unreadable { path: path.to_owned(), source: io::ErrorKind::NotFound.into() };
        let text = read_if_there(path)?.ok_or_else(missing)?;
        sources.push(Source::new(Layer::File, path.display().to_string(), text));
    }
    Ok(sources)
}

/// Reads a repository's configuration file, if there is one.
pub(crate) fn project_file(top: &Path) -> Result<Option<(PathBuf, String)>, Unreadable> {
    let path = top.join(PROJECT_FILE);
    Ok(read_if_there(&path)?.map(|text| (path, text)))
}

/// Merges the configuration of a project.
///
/// # Errors
/// Every fault of every layer.
pub fn config(sources: &[Source], env: &[(String, String)]) -> Result<Config, Vec<ConfigError>> {
    load(sources, env)
}

/// Reads the role files of the user, and of the project with the [`repository`] `top`. The shipped
/// roles are not included.
///
/// # Errors
/// When an existing directory cannot be read. A faulty file only affects its own role.
pub fn roles(paths: &Paths, top: Option<&Path>) -> Result<Vec<RoleSource>, Unreadable> {
    let mut sources =
        role_files::<fn() -> Records>(RoleLayer::User, &paths.config_dir.join("roles"), "", None)?;
    // Most repositories have no roles, and then nobody needs to find their records.
    let records = LazyCell::new(|| -> Records { Records::of(paths, top) });
    for (layer, folder) in ROLE_FOLDERS {
        let Some(top) = top else { continue };
        sources.extend(role_files(layer, &top.join(folder), folder, Some(&records))?);
    }
    Ok(sources)
}

/// Judges the trust in role files again, by their texts. `top` is the project's [`repository`].
pub(crate) fn with_present_trust(
    paths: &Paths,
    top: &Path,
    mut sources: Vec<RoleSource>,
) -> Vec<RoleSource> {
    let records = LazyCell::new(|| Records::of(paths, Some(top)));
    for source in &mut sources {
        let folder = ROLE_FOLDERS.iter().find(|(layer, _)| *layer == source.layer);
        let (Some((_, folder)), Ok(text)) = (folder, &source.text) else { continue };
        let name = Path::new(&source.file).file_name().unwrap_or_default().to_string_lossy();
        source.trust = records.trust(&format!("{folder}/{name}"), text);
    }
    sources
}

/// Reads the role files of a folder, which is called `named` in its repository. Without `records`
/// all of them are trusted.
fn role_files<F: FnOnce() -> Records>(
    layer: RoleLayer,
    folder: &Path,
    named: &str,
    records: Option<&LazyCell<Records, F>>,
) -> Result<Vec<RoleSource>, Unreadable> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(vec![]);
        }
        Err(source) => return Err(Unreadable { path: folder.to_owned(), source }),
    };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .take(ROLES_LIMIT)
        .collect();
    files.sort();
    let mut sources = Vec::new();
    for path in files {
        let text = read_if_there(&path)
            .map_err(|error| UnreadableRole(error.source.to_string()))
            .transpose();
        let Some(text) = text else { continue };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let trust = match (records, &text) {
            (None, _) => Trust::Trusted,
            (Some(records), Ok(text)) => records.trust(&format!("{named}/{name}"), text),
            (Some(_), Err(_)) => Trust::Untrusted,
        };
        sources.push(RoleSource { layer, file: path.display().to_string(), text, trust });
    }
    Ok(sources)
}

/// Returns the nearest directory, from `project` upwards, that has a `.muleteer` or a `.git`;
/// `project` itself if there is none.
pub fn repository(project: &Path) -> PathBuf {
    project
        .ancestors()
        .find(|dir| dir.join(".muleteer").is_dir() || dir.join(".git").exists())
        .unwrap_or(project)
        .to_path_buf()
}

/// Returns the main checkout if `top` is a linked one that `git worktree` made, else `top`. Without
/// asking, git removes a linked checkout with everything in it.
pub fn main_checkout(top: &Path) -> PathBuf {
    let linked = || {
        let text = read_if_there(&top.join(".git")).ok()??;
        let git_dir = top.join(text.trim_end().strip_prefix("gitdir: ")?);
        let worktrees = git_dir.parent().filter(|folder| folder.ends_with(".git/worktrees"))?;
        // The path may be relative to the worktree, and then leads through it.
        let main = worktrees.parent()?.parent()?.canonicalize().ok()?;
        main.join(".git").is_dir().then_some(main)
    };
    linked().unwrap_or_else(|| top.to_path_buf())
}

/// Whether `top` is a checkout that `git worktree` made of the repository in `main`, by that
/// repository's own records. A stranger may have written the directory's own `.git` file.
pub(crate) fn is_worktree_of(main: &Path, top: &Path) -> bool {
    let Ok(wanted) = top.join(".git").canonicalize() else { return false };
    let leads_back = |folder: PathBuf| {
        let text = read_if_there(&folder.join("gitdir")).ok().flatten()?;
        folder.join(text.trim_end()).canonicalize().ok().filter(|file| *file == wanted)
    };
    let entries = std::fs::read_dir(main.join(".git/worktrees")).into_iter().flatten().flatten();
    entries.take(WORKTREES_LIMIT).any(|entry| leads_back(entry.path()).is_some())
}

/// Returns the checkout that has a repository's beads: the main one, unless another one has older
/// beads of its own.
pub fn beads_home(top: &Path) -> PathBuf {
    if top.join(".muleteer/beads").is_dir() { top.to_path_buf() } else { main_checkout(top) }
}

/// Does the same as [`repository`], for the checkout that a worktree of Muleteer belongs to.
pub fn outermost(dir: &Path) -> PathBuf {
    let text = dir.to_string_lossy();
    match text.split_once("/.muleteer/worktrees/") {
        Some((top, _)) => PathBuf::from(top),
        None => repository(dir),
    }
}

/// Reads the text of a file that people write; `None` if it does not exist.
///
/// # Errors
/// The file cannot be read, is no regular file, or is larger than any such file can be meant to be.
pub fn read_if_there(path: &Path) -> Result<Option<String>, Unreadable> {
    let Some(bytes) = bytes_if_there(path)? else { return Ok(None) };
    let not_text = |_| Unreadable {
        path: path.to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8"),
    };
    String::from_utf8(bytes).map(Some).map_err(not_text)
}

/// Reads the bytes of such a file.
///
/// # Errors
/// Those of [`read_if_there`], but for a text that is not UTF-8.
pub fn bytes_if_there(path: &Path) -> Result<Option<Vec<u8>>, Unreadable> {
    let fault = |source| Unreadable { path: path.to_owned(), source };
    // Opening a pipe waits for a writer, so the open does not block. Kind and size are checked on
    // the open file, because another file may take its name meanwhile.
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = match std::fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(path) {
        Ok(file) => file,
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        // The system's error for the open of a socket does not say that it is a socket.
        Err(_) if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file()) => {
            return Err(fault(io::Error::other("it is not a regular file")));
        }
        Err(error) => return Err(fault(error)),
    };
    if !file.metadata().map_err(fault)?.is_file() {
        // A pipe or a device has no length, and may never end.
        return Err(fault(io::Error::other("it is not a regular file")));
    }
    let mut bytes = Vec::new();
    file.take(FILE_LIMIT + 1).read_to_end(&mut bytes).map_err(fault)?;
    if bytes.len() as u64 > FILE_LIMIT {
        return Err(fault(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {FILE_LIMIT} bytes"),
        )));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_checkout_is_no_path_through_a_worktree() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("a place");
        let (main, worktree) = (root.join("main"), root.join("beside"));
        std::fs::create_dir_all(main.join(".git/worktrees/beside")).expect("a repository");
        std::fs::create_dir(&worktree).expect("a directory");
        // git writes the second form with `worktree.useRelativePaths`.
        for from in [main.join(".git"), PathBuf::from("../main/.git")] {
            let text = format!("gitdir: {}\n", from.join("worktrees/beside").display());
            std::fs::write(worktree.join(".git"), text).expect("a file");
            assert_eq!(main_checkout(&worktree), main, "{}", from.display());
        }
        std::fs::write(worktree.join(".git"), "gitdir: ../gone/.git/worktrees/beside\n")
            .expect("a file");
        assert_eq!([main_checkout(&worktree), main_checkout(&main)], [worktree, main]);
    }
}
