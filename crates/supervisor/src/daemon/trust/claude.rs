//! The settings that an agent loads from its repository, above all those of Claude Code. Their
//! hooks, variables and MCP servers run before anybody is asked, so they count only if the user
//! trusts their current content.
//!
//! No agent can ignore a single one of the files. If one is untrusted, the agent starts without any
//! of the repository's settings. A file that the agent never loads does not count.

use crate::daemon::paths::Paths;
use crate::daemon::settings::{Unreadable, bytes_if_there, outermost, read_if_there, repository};
use crate::daemon::trust::{Candidate, Records, agents, candidate};
use crate::dispatch::saved::Saved;
use muleteer_backends::claude_code::HOME;
use muleteer_backends::claude_code::repository_settings::{
    LOCAL_SETTINGS, SERVERS, SETTINGS, allows,
};
use muleteer_backends::{AGENT_SETTINGS, ProjectSettings, RepositorySettings};
use muleteer_model::config::Trust;
use muleteer_model::dispatch::Dispatch;
use muleteer_vcs::worktree;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Returns which of the settings the agent of a dispatch loads, as far as that is known before it
/// starts; `None` for another agent.
pub fn loaded_by(backend: &str, saved: &Saved) -> Option<RepositorySettings> {
    let backend = muleteer_backends::by_name(backend).ok()?;
    backend.repository_settings(saved.agent.as_deref(), saved.command.as_ref())
}

/// Returns the files that the agent may load when it starts in `dir`, whether they exist or not.
fn loaded_from(settings: RepositorySettings, top: &Path, dir: &Path) -> Vec<PathBuf> {
    let mut files = match settings {
        RepositorySettings::Of(own) => agents::read_from(own, top, dir),
        RepositorySettings::OfSeveral => {
            let others = AGENT_SETTINGS.iter().flat_map(|own| agents::read_from(own, top, dir));
            read_from(top, dir).into_iter().chain(others).collect()
        }
        RepositorySettings::Shared | RepositorySettings::All | RepositorySettings::Fixed => {
            read_from(top, dir)
        }
    };
    files.retain(|file| settings != RepositorySettings::Shared || !file.ends_with(LOCAL_SETTINGS));
    files
}

/// Returns the files that count for an agent in `dir` and whose current content the user does not
/// trust. An unreadable file is one of them. `dir` must be absolute.
pub fn untrusted(paths: &Paths, dir: &Path, loaded: RepositorySettings) -> Vec<PathBuf> {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf());
    let top = repository(&dir);
    let is_untrusted = |file: &PathBuf| match bytes_if_there(file) {
        Ok(None) => false,
        Err(_) => true,
        Ok(Some(content)) => {
            let top = file.parent().map_or_else(|| top.clone(), repository_of);
            let name = file.strip_prefix(&top).unwrap_or(file).display().to_string();
            Records::of(paths, Some(&top)).trust(&name, &content) == Trust::Untrusted
        }
    };
    loaded_from(loaded, &top, &dir).into_iter().filter(is_untrusted).collect()
}

/// Whether the repository's settings count for an agent that starts in `dir`.
pub fn settings_in(paths: &Paths, dir: &Path, loaded: RepositorySettings) -> ProjectSettings {
    match untrusted(paths, dir, loaded).is_empty() {
        true => ProjectSettings::Count,
        false => ProjectSettings::Ignored,
    }
}

/// Returns one line which says that an agent in `dir` starts without the settings; `None` if it
/// starts with them.
pub fn note(paths: &Paths, dir: &Path, loaded: RepositorySettings) -> Option<String> {
    note_on(&untrusted(paths, dir, loaded), dir, loaded)
}

fn note_on(files: &[PathBuf], dir: &Path, loaded: RepositorySettings) -> Option<String> {
    let first = files.first()?.display();
    let more = match files.len() {
        1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    let root = outermost(&dir.canonicalize().unwrap_or_else(|_| dir.to_path_buf()));
    let what = match loaded {
        RepositorySettings::Shared | RepositorySettings::All => {
            "starts without the settings, MCP servers, agents and skills of this repository"
        }
        RepositorySettings::Of(own) if own.can_be_ignored => {
            "starts without the settings of this repository"
        }
        RepositorySettings::Of(_) | RepositorySettings::OfSeveral | RepositorySettings::Fixed => {
            "does not start in this repository"
        }
    };
    let agent = loaded.agent();
    // No decision of the user changes that.
    if let Some((file, why)) = files.iter().find_map(|file| Some((file, agents::why_not(file)?))) {
        let file = file.display();
        return Some(format!("{agent} {what}, because {file} cannot be trusted: {why}"));
    }
    Some(format!(
        "{agent} {what}, because you have not trusted {first}{more} (read it, then run `muleteer \
         trust {}`)",
        root.display()
    ))
}

/// Returns the same as [`loaded_by`] for a dispatch that was made before, from its file.
pub fn recorded(paths: &Paths, dispatch: &Dispatch) -> Option<RepositorySettings> {
    let saved = Saved::read(&paths.agent(dispatch.id.as_str())).ok()?;
    loaded_by(&dispatch.created.backend, &saved)
}

/// Returns [`note`] for the user who dispatches an agent that loads these settings, for the
/// project's current files. If the agent gets a clone, a file that the clone will not have does not
/// count.
pub async fn warning(
    paths: &Paths,
    dispatch: &Dispatch,
    loaded: RepositorySettings,
) -> Option<String> {
    let created = &dispatch.created;
    let project = Path::new(&created.project);
    let mut files = untrusted(paths, project, loaded);
    if let Some(clone) = &created.worktree {
        files = seen_from(Path::new(clone), files).await;
    }
    note_on(&files, project, loaded)
}

/// Returns those of the repository's files that an agent reads in a new clone of it: committed
/// ones, and MCP servers in a directory above the clone.
async fn seen_from(clone: &Path, files: Vec<PathBuf>) -> Vec<PathBuf> {
    let top = outermost(clone);
    let top = top.canonicalize().unwrap_or(top);
    let mut seen = vec![];
    for file in files {
        let is_read_above = file.ends_with(SERVERS) || file.ends_with(agents::VARIABLES);
        let is_above = is_read_above && file.parent().is_some_and(|dir| top.starts_with(dir));
        let is_committed = match file.strip_prefix(&top).ok().and_then(Path::to_str) {
            _ if is_above => true,
            Some(name) => worktree::has(&top, name).await,
            None => false,
        };
        if is_committed {
            seen.push(file);
        }
    }
    seen
}

/// Returns the files of all agents that the user could trust, as seen from `dir`: they are in the
/// repository, or were trusted before. Files that cannot be trusted are returned with the reason.
///
/// # Errors
/// A file of Claude Code cannot be read.
pub(super) fn candidates(
    records: &Records,
    root: &Path,
    dir: &Path,
) -> Result<Vec<Candidate>, Unreadable> {
    let is_known = |name: &&str| is_claude_file(name) || agents::is_settings(name);
    let known = records.names().filter(is_known).map(|name| root.join(name));
    let read = read_from(root, dir).into_iter().chain(agents::read_by_any(root, dir));
    let inside = read.filter(|file| file.starts_with(root));
    let mut found = vec![];
    for file in inside.chain(known).collect::<BTreeSet<_>>() {
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        if !is_claude_file(&name) {
            found.extend(agents::examine(records, name, &file));
        } else if let Some(text) = read_if_there(&file)? {
            let allows = allows(&name, &text);
            found.push(Candidate { allows, ..candidate(records, name, &text) });
        }
    }
    Ok(found)
}

fn is_claude_file(name: &str) -> bool {
    let ends = |file: &str| name == file || name.ends_with(&format!("/{file}"));
    SETTINGS.iter().any(|file| ends(file)) || ends(SERVERS)
}

/// Returns every file that Claude Code may read when it starts in `dir`, whether it exists or not.
fn read_from(top: &Path, dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        [dir, top].iter().flat_map(|dir| SETTINGS.map(|file| dir.join(file))).collect();
    // Above the top, files count only in another repository. A file in no repository is the user's
    // own.
    let above = dir.ancestors().filter(|dir| dir.starts_with(top) || is_in_repository(dir));
    files.extend(above.map(|dir| dir.join(SERVERS)));
    files.sort();
    files.dedup();
    files
}

pub(super) fn is_in_repository(dir: &Path) -> bool {
    dir.ancestors().any(|dir| dir.join(".git").exists() || dir.join(".muleteer").is_dir())
}

/// Returns the repository of the directory that a file configures.
fn repository_of(folder: &Path) -> PathBuf {
    let is_home = folder.ends_with(HOME.folder);
    let dir = if is_home { folder.parent().unwrap_or(folder) } else { folder };
    repository(dir)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;
    use crate::daemon::trust::test_place::Place;
    use crate::daemon::trust::{examine, revoke};
    use std::fs;

    /// Returns the files that count for an agent that loads all of them.
    fn untrusted_of(place: &Place, name: &str) -> Vec<String> {
        place.untrusted_for(name, RepositorySettings::All)
    }

    #[test]
    fn repository_without_claude_files_needs_no_trust() {
        let place = Place::new();
        place.write("shop/.git/HEAD", "");
        place.write("shop/CLAUDE.md", "text");
        place.write("shop/.claude/agents/a.md", "text");
        let shop = place.root.join("shop");
        assert_eq!(
            settings_in(&place.paths, &shop, RepositorySettings::All),
            ProjectSettings::Count
        );
        assert_eq!(note(&place.paths, &shop, RepositorySettings::All), None);
    }

    #[test]
    fn each_file_is_untrusted_until_it_is_trusted_as_it_is() {
        for name in [".claude/settings.json", ".claude/settings.local.json", ".mcp.json"] {
            let place = Place::new();
            place.write("shop/.git/HEAD", "");
            let file = format!("shop/{name}");
            place.write(&file, "{}");
            assert_eq!(untrusted_of(&place, "shop"), std::slice::from_ref(&file));
            place.trust("shop");
            assert!(untrusted_of(&place, "shop").is_empty(), "{name}");
            place.write(&file, "{ }");
            assert_eq!(untrusted_of(&place, "shop"), std::slice::from_ref(&file));
            place.write(&file, "{}");
            assert!(untrusted_of(&place, "shop").is_empty(), "{name}");
            revoke(&place.paths, &place.root.join("shop")).expect("revoked");
            assert_eq!(untrusted_of(&place, "shop"), [file]);
        }
    }

    #[test]
    fn local_settings_count_only_for_the_agent_that_loads_them() {
        let place = Place::new();
        place.write("shop/.git/HEAD", "");
        place.write("shop/.claude/settings.json", "{}");
        place.write("shop/.claude/settings.local.json", "{}");
        place.trust("shop");
        // Claude Code adds an "always allow" of the user's own session.
        place.write("shop/.claude/settings.local.json", "{\"permissions\": {}}");
        assert_eq!(place.untrusted_for("shop", RepositorySettings::Shared), [""; 0]);
        let local = "shop/.claude/settings.local.json";
        assert_eq!(place.untrusted_for("shop", RepositorySettings::All), [local]);
        place.write("shop/.claude/settings.json", "{ }");
        let shared = "shop/.claude/settings.json";
        assert_eq!(place.untrusted_for("shop", RepositorySettings::Shared), [shared]);
    }

    #[tokio::test]
    async fn new_clone_sees_committed_files_and_servers_above_it() {
        let place = Place::new();
        let shop = place.root.join("shop");
        let git = |words: &[&str]| {
            let set = ["-c", "user.name=a", "-c", "user.email=a@b"];
            let git = std::process::Command::new("git")
                .arg("-C")
                .arg(&shop)
                .args(set)
                .args(words)
                .output();
            assert!(git.expect("git").status.success(), "{words:?}");
        };
        place.write("shop/.claude/settings.json", "{}");
        place.write("shop/web/.mcp.json", "{}");
        git(&["init", "--quiet"]);
        git(&["add", "."]);
        git(&["commit", "--quiet", "-m", "settings"]);
        place.write("shop/.claude/settings.local.json", "{}");
        place.write("shop/.mcp.json", "{}");
        place.write("shop/web/.claude/settings.json", "{}");
        let all = untrusted(&place.paths, &shop.join("web"), RepositorySettings::All);
        assert_eq!(all.len(), 5, "{all:?}");
        let seen = seen_from(&shop.join(".muleteer/worktrees/abcd2345"), all).await;
        let files = [".claude/settings.json", ".mcp.json", "web/.mcp.json"];
        assert_eq!(seen, files.map(|file| shop.join(file)));
    }

    #[test]
    fn clone_has_the_trust_of_its_repository_until_its_agent_changes_a_file() {
        let place = Place::new();
        place.write("shop/.git/HEAD", "");
        place.write("shop/.claude/settings.json", "{}");
        place.trust("shop");
        let clone = "shop/.muleteer/worktrees/abcd2345";
        place.write(&format!("{clone}/.git/HEAD"), "");
        place.write(&format!("{clone}/.claude/settings.json"), "{}");
        assert!(untrusted_of(&place, clone).is_empty());
        place.write(&format!("{clone}/.claude/settings.json"), "{\"hooks\": {}}");
        assert_eq!(untrusted_of(&place, clone), [format!("{clone}/.claude/settings.json")]);
        assert!(untrusted_of(&place, "shop").is_empty());
        let said = note(&place.paths, &place.root.join(clone), RepositorySettings::Shared)
            .expect("a note");
        assert!(
            said.ends_with(&format!("`muleteer trust {}`)", place.root.join("shop").display())),
            "{said}"
        );
    }

    #[test]
    fn servers_of_directories_above_count_too() {
        let place = Place::new();
        place.write("shop/.git/HEAD", "");
        place.write("shop/.mcp.json", "{}");
        place.write("shop/web/.claude/settings.json", "{}");
        place.write(".mcp.json", "{}");
        assert_eq!(
            untrusted_of(&place, "shop/web"),
            ["shop/.mcp.json", "shop/web/.claude/settings.json"]
        );
        place.trust("shop");
        assert_eq!(untrusted_of(&place, "shop/web"), ["shop/web/.claude/settings.json"]);
        place.trust("shop/web");
        assert!(untrusted_of(&place, "shop/web").is_empty());
        // A file that was trusted in a subdirectory stays trusted.
        place.trust("shop");
        assert!(untrusted_of(&place, "shop/web").is_empty());
        let clone = "shop/.muleteer/worktrees/abcd2345";
        place.write(&format!("{clone}/.git/HEAD"), "");
        place.write("shop/.mcp.json", "{ }");
        assert_eq!(untrusted_of(&place, clone), ["shop/.mcp.json"]);
    }

    #[test]
    fn file_that_cannot_be_read_is_untrusted() {
        let place = Place::new();
        place.write("shop/.git/HEAD", "");
        fs::create_dir_all(place.root.join("shop/.claude/settings.json")).expect("a folder");
        assert_eq!(untrusted_of(&place, "shop"), ["shop/.claude/settings.json"]);
        assert!(examine(&place.paths, &place.root.join("shop")).is_err());
    }

    #[test]
    fn directory_in_no_repository_has_settings_of_its_own() {
        let place = Place::new();
        place.write("plain/.claude/settings.json", "{}");
        assert_eq!(untrusted_of(&place, "plain"), ["plain/.claude/settings.json"]);
        place.trust("plain");
        assert!(untrusted_of(&place, "plain").is_empty());
    }
}
