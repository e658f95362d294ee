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
    let is_inside = |path: &Path| {
        let (path, top) = (path.canonicalize().ok(), top.canonicalize().ok());
        path.zip(top).is_some_and(|(path, top)| path != top && path.starts_with(top))
    };
    // A link could lead to the criteria, which the agent must see.
    if let Some(path) = found.iter().find(|path| path.exists() && !is_inside(path)) {
        return Err(BackendError::Obeys { agent: obeyed.agent, path: path.clone() });
    }
    let at_home = home.into_iter().flat_map(|home| obeyed.at_home.iter().map(|at| home.join(at)));
    confined.hide.extend(found.into_iter().chain(at_home.filter(|path| path.exists())));
    Ok(Some(confined))
}

/// Returns what exists in `cwd` and the directories above it, up to `top`.
fn found(obeyed: &Obeyed, top: &Path, cwd: &Path) -> Vec<PathBuf> {
    let places = cwd.ancestors().take_while(|place| place.starts_with(top));
    let paths = places.flat_map(|place| obeyed.files.iter().map(|file| place.join(file)));
    paths.filter(|path| path.symlink_metadata().is_ok()).collect()
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
    }
}
