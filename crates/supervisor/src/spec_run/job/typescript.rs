//! Recognises a TypeScript project by its files.

use crate::daemon::settings;
use muleteer_model::text::foreign_json;
use std::path::{Path, PathBuf};

/// The most directory entries that are looked at. A project without TypeScript is read to this end,
/// once for each bead.
const ENTRIES: usize = 5000;
/// The deepest directory that is looked into: `packages/web/src/app/x.ts` is at 4.
const DEPTH: usize = 5;
/// Directories of other people's code and of built files.
const FOREIGN: [&str; 7] = ["node_modules", "target", "dist", "build", "vendor", "venv", "out"];

/// Returns whether the directory holds a TypeScript project: sources, a compiler configuration, or
/// a package that depends on `typescript`. Links are not followed, because agents can write there.
pub fn is_typescript(dir: &Path) -> bool {
    let mut open: Vec<(PathBuf, usize)> = vec![(dir.into(), 0)];
    let mut left = ENTRIES;
    while let Some((dir, depth)) = open.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Some(fewer) = left.checked_sub(1) else { return false };
            left = fewer;
            let (name, path) = (entry.file_name(), entry.path());
            let name = name.to_string_lossy();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                let skipped = name.starts_with('.') || FOREIGN.contains(&name.as_ref());
                if !skipped && depth < DEPTH {
                    open.push((path, depth + 1));
                }
            } else if kind.is_file() && (is_source(&name) || depends(&name, &path)) {
                return true;
            }
        }
    }
    false
}

fn is_source(name: &str) -> bool {
    let is_config = name.starts_with("tsconfig") && name.ends_with(".json");
    is_config || [".ts", ".tsx", ".mts", ".cts"].iter().any(|end| name.ends_with(end))
}

/// Returns whether the file is a `package.json` with a dependency on `typescript`.
fn depends(name: &str, path: &Path) -> bool {
    let read = || settings::read_if_there(path).ok().flatten();
    let Some(text) = (name == "package.json").then(read).flatten() else { return false };
    let Ok(package) = foreign_json::whole(text.as_bytes()) else { return false };
    ["dependencies", "devDependencies", "peerDependencies"]
        .iter()
        .any(|kind| package.get(*kind).is_some_and(|all| all.get("typescript").is_some()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn typescript_project_is_recognised_by_sources_configuration_or_dependency() {
        for (file, text, wanted) in [
            ("src/main.ts", "", true),
            ("packages/web/src/app/page.tsx", "", true),
            ("tsconfig.base.json", "{}", true),
            ("web/package.json", r#"{"devDependencies": {"typescript": "5"}}"#, true),
            ("package.json", r#"{"name": "typescript", "dependencies": {"ms": "2"}}"#, false),
            ("package.json", "not json: typescript", false),
            ("node_modules/x/index.d.ts", "", false),
            (".cache/a.ts", "", false),
            ("src/main.rs", "", false),
            ("docs/notes.tst", "", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
            assert_eq!(is_typescript(dir.path()), wanted, "{file}");
        }
    }

    /// An agent can commit a link to a directory outside, or to its own parent.
    #[test]
    fn links_are_not_followed() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(other.path().join("a.ts"), "").unwrap();
        std::os::unix::fs::symlink(other.path(), dir.path().join("out-of-here")).unwrap();
        std::os::unix::fs::symlink(other.path().join("a.ts"), dir.path().join("b.ts")).unwrap();
        std::os::unix::fs::symlink(".", dir.path().join("self")).unwrap();
        assert!(!is_typescript(dir.path()));
    }
}
