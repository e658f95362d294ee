//! The private HOME of an agent: a folder of its dispatch, in which the person's settings and tools
//! are shown read-only. The homes of CLIs and the caches are overlays, whose changes stay with the
//! dispatch.
//!
//! Secrets that no agent needs (keys, tokens of git and of registries) are in none of these lists.

use super::home::{Absolute, at_home};
use crate::dispatch::confine::plan::links::{canonical, followed, real};
use muleteer_backends::{homes, sealed};
use muleteer_process::sandbox::What;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Settings of git, shells and package managers, and tools.
const SHOWN: [&str; 67] = [
    ".asdf",
    ".bash_aliases",
    ".bash_login",
    ".bash_logout",
    ".bash_profile",
    ".bashrc",
    ".bun/bin",
    ".bunfig.toml",
    ".cargo/bin",
    ".cargo/config",
    ".cargo/config.toml",
    ".cargo/env",
    ".condarc",
    ".config/fish",
    ".config/git/",
    ".config/go",
    ".config/mise",
    ".config/nix",
    ".config/pip",
    ".config/pypoetry",
    ".config/uv",
    ".deno/bin",
    ".dotnet",
    ".editorconfig",
    ".elan",
    ".gemrc",
    ".ghcup",
    ".gitattributes",
    ".gitconfig",
    ".gitignore",
    ".gitignore_global",
    ".goenv",
    ".gradle/gradle.properties",
    ".gradle/init.d",
    ".inputrc",
    ".jenv",
    ".juliaup",
    ".local/bin",
    ".local/share/claude",
    ".local/share/fnm",
    ".local/share/mise",
    ".local/share/pipx",
    ".local/share/uv",
    ".m2/settings.xml",
    ".nix-profile",
    ".nodenv",
    ".npm-global",
    ".npmrc",
    ".nvm",
    ".opam",
    ".pip",
    ".profile",
    ".pyenv",
    ".rbenv",
    ".rustup",
    ".sdkman",
    ".ssh/config",
    ".ssh/known_hosts",
    ".tool-versions",
    ".volta",
    ".yarnrc",
    ".yarnrc.yml",
    ".zlogin",
    ".zprofile",
    ".zshenv",
    ".zshrc",
    "go/bin",
];
/// The homes of CLIs that are not sealed for a judge (`sealed::folders` has the others), and a
/// folder in which a person's tools install more.
const KEPT: [&str; 17] = [
    ".augment",
    ".config/amp",
    ".config/cursor",
    ".config/github-copilot",
    ".config/goose",
    ".cursor",
    ".factory",
    ".kimi",
    ".kiro",
    ".local/lib",
    ".local/share/amp",
    ".local/share/cursor-agent",
    ".local/share/goose",
    ".local/state/opencode",
    ".opencode",
    ".openhands",
    ".vibe",
];
/// Caches, which the agent may lose.
const CACHES: [&str; 42] = [
    ".bun/install/cache",
    ".cabal",
    ".cache/Cypress",
    ".cache/bazel",
    ".cache/ccache",
    ".cache/composer",
    ".cache/coursier",
    ".cache/deno",
    ".cache/electron",
    ".cache/go-build",
    ".cache/golangci-lint",
    ".cache/huggingface",
    ".cache/ms-playwright",
    ".cache/node",
    ".cache/opencode",
    ".cache/pip",
    ".cache/pnpm",
    ".cache/pre-commit",
    ".cache/puppeteer",
    ".cache/pypoetry",
    ".cache/sccache",
    ".cache/torch",
    ".cache/typescript",
    ".cache/uv",
    ".cache/yarn",
    ".cache/zig",
    ".cargo/git/",
    ".cargo/registry",
    ".ccache",
    ".gradle",
    ".hex",
    ".ivy2",
    ".julia",
    ".local/share/pnpm/store",
    ".m2",
    ".npm",
    ".nuget",
    ".pnpm-store",
    ".pub-cache",
    ".sbt",
    ".stack",
    "go/pkg",
];
/// The folders that go when the dispatch ends.
pub(in crate::dispatch) const PASSING: [&str; 2] = ["caches", "work"];
/// A folder that holds programs, caches and a token.
const MIXED: &str = ".cargo";
/// The most entries of one CLI's home that are shown where there are no overlays.
const ENTRIES: usize = 256;

/// The folders of an agent's private HOME. All are in one folder, which other agents do not see.
#[derive(Debug, Clone)]
pub(in crate::dispatch) struct PrivateHome {
    /// The path of HOME, in the sandbox and outside, without links.
    home: PathBuf,
    folder: PathBuf,
}

impl PrivateHome {
    pub(super) fn new(home: PathBuf, agent_dir: &Path) -> Self {
        Self { home, folder: folder(agent_dir) }
    }

    /// Returns the folder that the agent gets as its HOME.
    pub(super) fn own(&self) -> PathBuf {
        self.folder.join("home")
    }

    /// Whether a path is in HOME.
    pub(super) fn holds(&self, path: &Path) -> bool {
        path.starts_with(&self.home)
    }

    /// Whether the folder must not be shown as a whole.
    pub(super) fn is_mixed(&self, path: &Path) -> bool {
        real(path.to_owned()) == self.home.join(MIXED)
    }

    /// Returns the paths of the person that are shown read-only.
    pub(super) fn shown(&self, absolute: Absolute<'_>) -> Vec<PathBuf> {
        SHOWN.iter().map(|name| at_home(&self.home, name, absolute)).collect()
    }

    /// Returns the places of the homes of CLIs and of the caches, as far as they exist.
    pub(super) fn places(&self, absolute: Absolute<'_>, overlays: bool) -> Vec<(PathBuf, What)> {
        let mut found = vec![(self.home.clone(), What::Instead(self.own()))];
        let named = homes()
            .map(|home| absolute(home.variable).unwrap_or_else(|| self.home.join(home.folder)));
        let written = if overlays { vec![] } else { self.written(absolute) };
        let kept = KEPT.iter().copied().chain(sealed::folders());
        let kept = kept.map(|name| at_home(&self.home, name, absolute)).chain(named);
        // Some CLIs are in both tables.
        for path in kept.collect::<BTreeSet<_>>() {
            let Some(folder) = links(&path, &mut found) else {
                // The CLI makes it.
                if !self.holds(&path) && path.symlink_metadata().is_err() {
                    found.push((path.clone(), What::Instead(self.place_of(&path))));
                }
                continue;
            };
            let changes = self.place_of(&folder);
            match overlays {
                true => found.push(self.overlay(folder, changes, found.len())),
                false => found.extend(self.entries(&folder, &written)),
            }
        }
        for path in CACHES.iter().map(|name| at_home(&self.home, name, absolute)) {
            let Some(folder) = links(&path, &mut found) else { continue };
            let changes = self.folder.join("caches").join(below_root(&folder));
            match overlays {
                true => found.push(self.overlay(folder, changes, found.len())),
                false => found.push((folder, What::Instead(changes))),
            }
        }
        found
    }

    fn overlay(&self, folder: PathBuf, changes: PathBuf, number: usize) -> (PathBuf, What) {
        let work = self.folder.join("work").join(number.to_string());
        (folder, What::Overlay { changes, work })
    }

    /// Returns the folder or file that the agent writes instead of the person's.
    pub(super) fn place_of(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.home) {
            Ok(rest) => self.own().join(rest),
            Err(_) => self.folder.join("moved").join(below_root(path)),
        }
    }

    /// Returns the files and folders of the CLIs' homes that the agent writes where there are no
    /// overlays: the logins that are copied, and all that a resumed session needs.
    fn written(&self, absolute: Absolute<'_>) -> Vec<PathBuf> {
        let of = |home: &sealed::SealedHome| {
            let top = home.persons(&self.home, absolute);
            let is_lent = sealed::LENT.contains(&home.variable);
            let logins = home.files.iter().filter(|file| is_lent && file.content.is_login());
            let names = logins.map(|login| login.name).chain(home.conversations());
            names.map(|name| real(top.join(name))).collect::<Vec<_>>()
        };
        let more = self.conversations(absolute);
        sealed::HOMES.iter().flat_map(of).chain(more).collect()
    }

    /// Returns the person's folders with conversations that exist. The agent gets folders of its
    /// own in their place, which are where an overlay would have its changes to them.
    pub(super) fn conversations(&self, absolute: Absolute<'_>) -> Vec<PathBuf> {
        let known = sealed::conversations(&self.home, absolute);
        let more = sealed::MORE_CONVERSATIONS.iter();
        let more = more.map(|name| at_home(&self.home, name, absolute));
        known.chain(more).filter(|folder| folder.is_dir()).map(real).collect()
    }

    /// Returns the entries of a CLI's home that are shown where there are no overlays: all but the
    /// conversations, and but those that are `written`.
    fn entries(&self, folder: &Path, written: &[PathBuf]) -> Vec<(PathBuf, What)> {
        let own: Vec<&str> = homes().flat_map(|home| home.conversations).copied().collect();
        let is_left_out = |name: &str| own.contains(&name) || sealed::is_private_file(name);
        let mut found = vec![];
        if !self.holds(folder) {
            found.push((folder.to_owned(), What::Instead(self.place_of(folder))));
        }
        let mut next = vec![folder.to_owned()];
        while let Some(folder) = next.pop() {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES);
            for entry in entries {
                let (path, kind) = (entry.path(), entry.file_type());
                let is_shown = kind.is_ok_and(|kind| kind.is_dir() || kind.is_file());
                let name = entry.file_name();
                if !is_shown || is_left_out(&name.to_string_lossy()) || written.contains(&path) {
                    continue;
                }
                // The agent writes something in this folder, so that its entries are shown.
                if written.iter().any(|written| written.starts_with(&path)) {
                    next.push(path);
                } else {
                    found.push((path, What::Show));
                }
            }
        }
        found
    }
}

/// Returns the folder with all parts of a private HOME.
pub(in crate::dispatch) fn folder(agent_dir: &Path) -> PathBuf {
    agent_dir.join(muleteer_shim::launch::PRIVATE)
}

fn below_root(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Adds the links that lead to a folder, and returns the folder; `None` if it is none.
fn links(path: &Path, found: &mut Vec<(PathBuf, What)>) -> Option<PathBuf> {
    let folder = canonical(path).filter(|folder| folder.is_dir())?;
    for link in followed(path) {
        if let Ok(to) = std::fs::read_link(&link) {
            found.push((link, What::Link(to)));
        }
    }
    Some(folder)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn without_overlays_all_is_shown_but_what_the_agent_writes() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        for file in [
            ".claude/.credentials.json",
            ".claude/settings.json",
            ".claude/todos/a",
            ".cline/data/sessions/a",
            ".cline/data/settings/providers.json",
            ".cline/rules/a",
            ".gemini/oauth_creds.json",
            ".gemini/settings.json",
            ".gemini/tmp/a",
            ".local/share/opencode/auth.json",
            ".local/share/opencode/opencode.db",
            ".qwen/oauth_creds.json",
            ".qwen/projects/a",
        ] {
            let path = home.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let private = PrivateHome::new(home.clone(), &home.join("agent"));
        let places = private.places(&|_| None, false);
        let shown = places.iter().filter(|(_, what)| *what == What::Show);
        let mut shown: Vec<_> = shown.map(|(path, _)| path.strip_prefix(&home).unwrap()).collect();
        shown.sort();
        let expected = [
            ".claude/settings.json",
            ".cline/data/settings",
            ".cline/rules",
            ".gemini/settings.json",
            ".local/share/opencode/auth.json",
            ".qwen/oauth_creds.json",
        ];
        assert_eq!(shown, expected.map(Path::new));
    }
}
