//! Reads the files that configuration and roles come from; merging and checking are the model's.

use crate::daemon::paths::Paths;
use crate::daemon::trust::Records;
use muleteer_model::agent::role::{RoleLayer, RoleSource};
use muleteer_model::config::{Config, ConfigError, Layer, Source, Trust, load};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A role or configuration file larger than this is somebody's mistake.
const FILE_LIMIT: u64 = 1024 * 1024;
/// More worktrees of one repository than this are not looked at.
const WORKTREES_LIMIT: usize = 1000;
/// More role files than this in one directory are not read.
pub(crate) const ROLES_LIMIT: usize = 1000;

/// A file that is there and cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", .path.display())]
pub struct Unreadable {
    pub path: PathBuf,
    pub source: io::Error,
}

/// A repository's configuration, as seen from its top.
pub(crate) const PROJECT_FILE: &str = ".muleteer/config.yaml";
/// A repository's roles, weakest first.
const ROLE_FOLDERS: [(RoleLayer, &str); 2] =
    [(RoleLayer::ClaudeAgents, ".claude/agents"), (RoleLayer::Project, ".muleteer/roles")];

/// The configuration files there are, weakest first: the user's, the project's, `--config`. `top`
/// is the project's [`repository`]; its file is trusted if the user has trusted what it says now.
///
/// # Errors
/// When one cannot be read; only `--config` must be there.
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

/// A repository's configuration file, if there is one.
pub(crate) fn project_file(top: &Path) -> Result<Option<(PathBuf, String)>, Unreadable> {
    let path = top.join(PROJECT_FILE);
    Ok(read_if_there(&path)?.map(|text| (path, text)))
}

/// What is in force for a project.
///
/// # Errors
/// Every fault of every layer.
pub fn config(sources: &[Source], env: &[(String, String)]) -> Result<Config, Vec<ConfigError>> {
    load(sources, env)
}

/// The role files of the user and the project, whose [`repository`] `top` is; the shipped ones come
/// on their own.
///
/// # Errors
/// When a directory that is there cannot be read; a file's fault is its role's.
pub fn roles(paths: &Paths, top: Option<&Path>) -> Result<Vec<RoleSource>, Unreadable> {
    let mut sources = role_files(RoleLayer::User, &paths.config_dir.join("roles"), "", None)?;
    let records = Records::of(paths, top);
    for (layer, folder) in ROLE_FOLDERS {
        let Some(top) = top else { continue };
        sources.extend(role_files(layer, &top.join(folder), folder, Some(&records))?);
    }
    Ok(sources)
}

/// The role files of a folder, which is called `named` in its repository; without `records` all are
/// trusted.
fn role_files(
    layer: RoleLayer,
    folder: &Path,
    named: &str,
    records: Option<&Records>,
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
        let Some(text) = read_if_there(&path).map_err(|error| error.source.to_string()).transpose()
        else {
            continue;
        };
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

/// The nearest directory, from `project` upwards, that has a `.muleteer` or is a repository's top;
/// `project` itself if there is none.
pub fn repository(project: &Path) -> PathBuf {
    project
        .ancestors()
        .find(|dir| dir.join(".muleteer").is_dir() || dir.join(".git").exists())
        .unwrap_or(project)
        .to_path_buf()
}

/// The checkout that has the repository itself, where `top` is one that `git worktree` made beside
/// it: that one goes with whatever lies in it, and git asks nobody.
pub fn main_checkout(top: &Path) -> PathBuf {
    let linked = || {
        let text = read_if_there(&top.join(".git")).ok()??;
        let git_dir = top.join(text.trim_end().strip_prefix("gitdir: ")?);
        let worktrees = git_dir.parent().filter(|folder| folder.ends_with(".git/worktrees"))?;
        // It may be said as seen from the worktree, and then leads through it.
        let main = worktrees.parent()?.parent()?.canonicalize().ok()?;
        main.join(".git").is_dir().then_some(main)
    };
    linked().unwrap_or_else(|| top.to_path_buf())
}

/// Whether `top` is a checkout that `git worktree` made of the repository in `main`, as that
/// repository has it: what a directory says of itself in `.git` a stranger may have written.
pub(crate) fn is_worktree_of(main: &Path, top: &Path) -> bool {
    let Ok(wanted) = top.join(".git").canonicalize() else { return false };
    let leads_back = |folder: PathBuf| {
        let text = read_if_there(&folder.join("gitdir")).ok().flatten()?;
        folder.join(text.trim_end()).canonicalize().ok().filter(|file| *file == wanted)
    };
    let entries = std::fs::read_dir(main.join(".git/worktrees")).into_iter().flatten().flatten();
    entries.take(WORKTREES_LIMIT).any(|entry| leads_back(entry.path()).is_some())
}

/// Where a repository's beads are: in its main checkout, unless another one has some of its own
/// from before.
pub fn beads_home(top: &Path) -> PathBuf {
    if top.join(".muleteer/beads").is_dir() { top.to_path_buf() } else { main_checkout(top) }
}

/// As [`repository`], of the checkout a worktree of ours belongs to.
pub fn outermost(dir: &Path) -> PathBuf {
    let text = dir.to_string_lossy();
    match text.split_once("/.muleteer/worktrees/") {
        Some((top, _)) => PathBuf::from(top),
        None => repository(dir),
    }
}

/// The text of a file that people write; none where there is no such file.
///
/// # Errors
/// The file cannot be read, is no regular file or is larger than any such file can be meant to be.
pub fn read_if_there(path: &Path) -> Result<Option<String>, Unreadable> {
    let fault = |source| Unreadable { path: path.to_owned(), source };
    // The first open of a pipe waits for a writer. Which kind of file it is, and how long, is asked
    // of the open file: another one may take its name meanwhile.
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = match std::fs::OpenOptions::new().read(true).custom_flags(nonblocking).open(path) {
        Ok(file) => file,
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        // A socket cannot be opened at all.
        Err(_) if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file()) => {
            return Err(fault(io::Error::other("it is no regular file")));
        }
        Err(error) => return Err(fault(error)),
    };
    if !file.metadata().map_err(fault)?.is_file() {
        // A pipe or a device gives no length, and may never end.
        return Err(fault(io::Error::other("it is no regular file")));
    }
    let mut bytes = Vec::new();
    file.take(FILE_LIMIT + 1).read_to_end(&mut bytes).map_err(fault)?;
    if bytes.len() as u64 > FILE_LIMIT {
        return Err(fault(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("larger than {FILE_LIMIT} bytes"),
        )));
    }
    let not_text =
        |_| fault(io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8"));
    String::from_utf8(bytes).map(Some).map_err(not_text)
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
        // git writes the second where `worktree.useRelativePaths` is set.
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
