//! Reads the files that configuration and roles come from; merging and checking are the model's.

use crate::paths::Paths;
use muleteer_model::config::{Config, ConfigError, Layer, Source, load};
use muleteer_model::role::{RoleLayer, RoleSource};
use std::io;
use std::path::{Path, PathBuf};

/// A role or configuration file larger than this is somebody's mistake.
const FILE_LIMIT: u64 = 1024 * 1024;
/// More role files than this in one directory are not read.
pub(crate) const ROLES_LIMIT: usize = 1000;

/// A file that is there and cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", .path.display())]
pub struct Unreadable {
    pub path: PathBuf,
    pub source: io::Error,
}

/// The configuration files there are, weakest first: the user's, the project's, `--config`. `top` is the
/// project's [`repository`].
///
/// # Errors
/// When one cannot be read; only `--config` must be there.
pub fn sources(paths: &Paths, top: Option<&Path>, config: Option<&Path>) -> Result<Vec<Source>, Unreadable> {
    let mut sources = Vec::new();
    let optional =
        [(Layer::User, Some(paths.config_file())), (Layer::Project, top.map(|top| top.join(".muleteer/config.yaml")))];
    for (layer, path) in optional {
        let Some(path) = path else { continue };
        if let Some(text) = read_if_there(&path)? {
            sources.push(Source::new(layer, path.display().to_string(), text));
        }
    }
    if let Some(path) = config {
        let missing = || Unreadable { path: path.to_owned(), source: io::ErrorKind::NotFound.into() };
        let text = read_if_there(path)?.ok_or_else(missing)?;
        sources.push(Source::new(Layer::File, path.display().to_string(), text));
    }
    Ok(sources)
}

/// What is in force for a project.
///
/// # Errors
/// Every fault of every layer.
pub fn config(sources: &[Source], env: &[(String, String)]) -> Result<Config, Vec<ConfigError>> {
    load(sources, env)
}

/// The role files of the user and the project, whose [`repository`] `top` is; the shipped ones come on their own.
///
/// # Errors
/// When a directory that is there cannot be read; a file's fault is its role's.
pub fn roles(paths: &Paths, top: Option<&Path>) -> Result<Vec<RoleSource>, Unreadable> {
    let mut folders = vec![(RoleLayer::User, paths.config_dir.join("roles"))];
    if let Some(top) = top {
        folders.push((RoleLayer::ClaudeAgents, top.join(".claude/agents")));
        folders.push((RoleLayer::Project, top.join(".muleteer/roles")));
    }
    let mut sources = Vec::new();
    for (layer, folder) in folders {
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => continue,
            Err(source) => return Err(Unreadable { path: folder, source }),
        };
        let mut files: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
            .take(ROLES_LIMIT)
            .collect();
        files.sort();
        for path in files {
            if let Some(text) = read_if_there(&path).map_err(|error| error.source.to_string()).transpose() {
                sources.push(RoleSource { layer, file: path.display().to_string(), text });
            }
        }
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

/// The checkout that has the repository itself, where `top` is one that `git worktree` made beside it: that one goes with
/// whatever lies in it, and git asks nobody.
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

/// Where a repository's beads are: in its main checkout, unless another one has some of its own from before.
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
    match std::fs::metadata(path) {
        // A pipe or a device gives no length, and may never end.
        Ok(metadata) if !metadata.is_file() => Err(fault(io::Error::other("it is no regular file"))),
        Ok(metadata) if metadata.len() > FILE_LIMIT => {
            Err(fault(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {FILE_LIMIT} bytes"))))
        }
        Ok(_) => std::fs::read_to_string(path).map(Some).map_err(fault),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(fault(error)),
    }
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
        std::fs::write(worktree.join(".git"), "gitdir: ../gone/.git/worktrees/beside\n").expect("a file");
        assert_eq!([main_checkout(&worktree), main_checkout(&main)], [worktree, main]);
    }
}
