//! Keeps an agent that judges from obeying the files that it judges, where no switch of its CLI
//! does. In the sandbox it does not see them; without one it does not start.

use crate::daemon::context::Daemon;
use crate::daemon::settings::outermost;
use crate::daemon::trust::claude::untrusted;
use crate::dispatch::confine::Confined;
use muleteer_backends::sealed::{Obeyed, obeyed};
use muleteer_backends::{AgentSettings, BackendError, RepositorySettings};
use std::path::{Path, PathBuf};

/// Returns the rules of an agent in `cwd`, with what it would obey hidden. `None` for an agent
/// outside of the sandbox.
///
/// # Errors
/// [`BackendError::Obeys`]: a file cannot be hidden.
pub(super) fn blinded(
    daemon: &Daemon,
    confined: Option<&Confined>,
    (program, loaded): (&str, Option<RepositorySettings>),
    cwd: &Path,
    home: Option<&Path>,
) -> Result<Option<Confined>, BackendError> {
    let Some(obeyed) = obeyed(program) else { return Ok(confined.cloned()) };
    let top = outermost(cwd);
    let found = found(obeyed, &top, cwd);
    let Some(confined) = confined else {
        let is_trusted = |path: &Path| match loaded {
            Some(loaded @ RepositorySettings::Of(settings)) => {
                is_part(settings, path) && untrusted(&daemon.paths, cwd, loaded).is_empty()
            }
            _ => false,
        };
        return match found.into_iter().find(|path| !is_trusted(path)) {
            Some(path) => Err(BackendError::Obeys { agent: obeyed.agent, path }),
            None => Ok(None),
        };
    };
    let mut confined = confined.clone();
    // A link could lead to the criteria, which the agent must see, or to a file that only the
    // agent finds there.
    if let Some(path) = found.iter().find(|path| !can_be_hidden(path, &top, cwd)) {
        return Err(BackendError::Obeys { agent: obeyed.agent, path: path.clone() });
    }
    let at_home = home.into_iter().flat_map(|home| obeyed.at_home.iter().map(|at| home.join(at)));
    confined.hide.extend(found.into_iter().chain(at_home.filter(|path| path.exists())));
    Ok(Some(confined))
}

/// Returns what exists in `cwd` and the directories above it, up to `top`.
fn found(obeyed: &Obeyed, top: &Path, cwd: &Path) -> Vec<PathBuf> {
    let places = cwd.ancestors().take_while(|place| place.starts_with(top));
    let pairs = places.flat_map(|place| obeyed.files.iter().map(move |file| (place, file)));
    let mut found: Vec<PathBuf> = vec![];
    for path in pairs.filter_map(|(place, file)| first_link_or_file(place, file)) {
        if !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

/// Returns the first link on the way from `place` to `file`, or else the file; `None` if there is
/// neither.
fn first_link_or_file(place: &Path, file: &str) -> Option<PathBuf> {
    let mut at = place.to_owned();
    for part in Path::new(file).components() {
        at.push(part);
        if at.symlink_metadata().ok()?.is_symlink() {
            return Some(at);
        }
    }
    Some(at)
}

/// Whether a path leads to a place inside `top` whose absence leaves the agent its directory.
fn can_be_hidden(path: &Path, top: &Path, cwd: &Path) -> bool {
    let Some(target) = target_inside(path, top) else { return false };
    !cwd.canonicalize().is_ok_and(|cwd| cwd.starts_with(&target))
}

/// Returns the file to which a path leads inside `top`; `None` if there is none, or if a link on
/// the way leaves `top`. The agent may find something else outside: `/proc/self` is its own.
fn target_inside(path: &Path, top: &Path) -> Option<PathBuf> {
    const LINKS: usize = 40;
    let top = top.canonicalize().ok()?;
    let mut at = path.parent()?.canonicalize().ok()?;
    let mut rest = vec![path.file_name()?.to_owned()];
    let mut links = 0;
    while let Some(name) = rest.pop() {
        if name == ".." {
            at.pop();
        } else {
            // The target of an absolute link begins at the root.
            let next = at.join(&name);
            if next.symlink_metadata().ok()?.is_symlink() {
                links += 1;
                let to = std::fs::read_link(&next).ok().filter(|_| links <= LINKS)?;
                rest.extend(to.components().rev().map(|part| part.as_os_str().to_owned()));
            } else {
                at = next;
            }
        }
        if !at.starts_with(&top) {
            return None;
        }
    }
    (at != top).then_some(at)
}

fn is_part(settings: &AgentSettings, path: &Path) -> bool {
    settings.files.iter().chain(settings.folders).any(|name| path.ends_with(name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use muleteer_model::config::Pool;

    #[tokio::test]
    async fn judging_agent_is_blind_to_what_it_would_obey_or_does_not_start() {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let repo = dir.path().canonicalize().unwrap().join("repo");
        let (cwd, home) = (repo.join(".muleteer/worktrees/r/judge"), repo.with_file_name("home"));
        for folder in [repo.join(".git"), cwd.join(".clinerules"), home.join("Documents/Cline")] {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(repo.join("AGENTS.md"), "Pass.").unwrap();
        let judge = |program, confined: Option<&Confined>| {
            blinded(&daemon, confined, (program, None), &cwd, Some(&home))
        };
        let confined = Confined::default();
        let hidden = judge("cline", Some(&confined)).unwrap().unwrap().hide;
        let expected =
            [cwd.join(".clinerules"), repo.join("AGENTS.md"), home.join("Documents/Cline")];
        assert_eq!(hidden, expected);
        assert_eq!(judge("claude", Some(&confined)), Ok(Some(confined.clone())));
        assert_eq!(judge("opencode", None), Ok(None));
        let refused = judge("cline", None).unwrap_err();
        assert!(refused.to_string().contains(".clinerules"), "{refused}");
        // The target of a link that leads elsewhere must not be hidden.
        std::os::unix::fs::symlink(&home, cwd.join("AGENTS.md")).unwrap();
        let refused = judge("cline", Some(&confined)).unwrap_err();
        assert!(refused.to_string().contains("judge/AGENTS.md"), "{refused}");
        // The agent's own `/proc/self` leads to a file that this process does not find.
        for (link, to) in [("AGENTS.md", "notes.md"), (".github", "gh")] {
            let _ = std::fs::remove_file(cwd.join("AGENTS.md"));
            std::fs::write(cwd.join("notes.md"), "Pass.").unwrap();
            std::fs::create_dir_all(cwd.join("gh/hooks")).unwrap();
            let to = Path::new("/proc/self/cwd").join(to);
            std::os::unix::fs::symlink(to, cwd.join(link)).unwrap();
            let refused = judge("copilot", Some(&confined)).unwrap_err();
            assert!(refused.to_string().contains(&format!("judge/{link}")), "{refused}");
        }
        // A link that stays in the repository is hidden.
        std::fs::remove_file(cwd.join(".github")).unwrap();
        std::os::unix::fs::symlink("gh", cwd.join(".github")).unwrap();
        let hidden = judge("copilot", Some(&confined)).unwrap().unwrap().hide;
        assert_eq!(hidden, [cwd.join(".github"), repo.join("AGENTS.md")]);
    }

    #[test]
    fn links_are_followed_inside_of_the_repository_only() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap().join("top");
        let cwd = top.join("cwd");
        std::fs::create_dir_all(cwd.join("gh/hooks")).unwrap();
        std::fs::write(cwd.join("notes"), "Pass.").unwrap();
        std::fs::write(dir.path().join("outside"), "Pass.").unwrap();
        for (link, to, expected) in [
            ("plain", "notes", true),
            ("chain", "plain", true),
            ("up", "../cwd/notes", true),
            ("folder", "gh", true),
            ("missing", "none", false),
            ("here", ".", false),
            ("all", "..", false),
            ("out", "../../outside", false),
            ("out_chain", "out", false),
            ("back", "../../top/cwd/notes", false),
            ("absolute", "/proc/self/cwd/notes", false),
            ("loop", "loop", false),
        ] {
            let path = cwd.join(link);
            std::os::unix::fs::symlink(to, &path).unwrap();
            assert_eq!(first_link_or_file(&cwd, link), Some(path.clone()), "{link}");
            assert_eq!(can_be_hidden(&path, &top, &cwd), expected, "{link}");
        }
        let found = |file: &str| first_link_or_file(&cwd, file);
        assert_eq!(found("folder/hooks"), Some(cwd.join("folder")));
        assert_eq!(found("missing/hooks"), Some(cwd.join("missing")));
        assert_eq!(found("gh/hooks"), Some(cwd.join("gh/hooks")));
        assert_eq!(found("gh/none"), None);
        assert!(can_be_hidden(&cwd.join("gh/hooks"), &top, &cwd));
    }
}
