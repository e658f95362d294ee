//! The files that the style rules read.

use std::path::Path;
use xtask::Failure;

/// A file that a rule checks, or a folder with its number of entries.
#[derive(Debug)]
pub enum Entry {
    Rust { path: String, text: String },
    Markdown { path: String, text: String },
    Folder { path: String, entries: usize },
}

/// The folders that contain written text.
const ROOTS: [&str; 6] = ["crates", "tests", "docs", "deploy", "roles", "config"];
/// Folders of recorded or generated data, whose size and lines nobody chose.
const DATA: [&str; 8] =
    ["target", "snapshots", "corpus", "fixtures", "samples", "frozen", "node_modules", "artifacts"];

/// Reads every Rust and Markdown file and counts the entries of every folder, in order of path.
///
/// # Errors
/// When a folder or file cannot be read.
pub fn read(root: &Path) -> Result<Vec<Entry>, Failure> {
    let mut entries = Vec::new();
    let mut folders: Vec<_> = ROOTS.iter().map(|name| root.join(name)).collect();
    for name in ["README.md", "CONTRIBUTING.md"] {
        let file = root.join(name);
        if file.is_file() {
            entries.push(Entry::Markdown { path: name.into(), text: read_text(&file)? });
        }
    }
    while let Some(folder) = folders.pop() {
        if !folder.is_dir() {
            continue;
        }
        let mut seen = 0;
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_data = DATA.contains(&name.as_str());
            if name.starts_with('.') || is_data {
                continue;
            }
            seen += 1;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                folders.push(path);
                continue;
            }
            let shown = relative(root, &path);
            match path.extension().and_then(|one| one.to_str()) {
                Some("rs") => entries.push(Entry::Rust { path: shown, text: read_text(&path)? }),
                Some("md") => {
                    entries.push(Entry::Markdown { path: shown, text: read_text(&path)? })
                }
                _ => {}
            }
        }
        entries.push(Entry::Folder { path: relative(root, &folder), entries: seen });
    }
    entries.sort_by(|one, other| path_of(one).cmp(path_of(other)));
    Ok(entries)
}

fn path_of(entry: &Entry) -> &str {
    match entry {
        Entry::Rust { path, .. } | Entry::Markdown { path, .. } | Entry::Folder { path, .. } => {
            path
        }
    }
}

fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()
}

fn read_text(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()).into())
}
