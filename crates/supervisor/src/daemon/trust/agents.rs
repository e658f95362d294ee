//! The files of a repository that ACP agents load without asking anybody: their settings, plugins
//! and hooks. They count only if the user trusts their current content.

use crate::daemon::settings::bytes_if_there;
use crate::daemon::trust::claude::is_in_repository;
use crate::daemon::trust::{Candidate, Records, candidate};
use muleteer_backends::AGENT_SETTINGS as SETTINGS;
use muleteer_backends::AgentSettings;
use muleteer_model::config::trust::Ignored;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The most files of one folder that are examined. A folder with more cannot be trusted.
const MOST_FILES: usize = 200;
/// The most entries of one folder that are looked at, with those that hold no file. A repository
/// may have any number of empty folders.
const MOST_ENTRIES: usize = 2000;
/// The file with variables of a project.
pub(super) const VARIABLES: &str = ".env";
/// How deep a folder is examined.
const DEEPEST: usize = 5;

/// Returns every file that the agent may load when it starts in `dir` of the repository `top`. A
/// folder with too many files is returned itself, and cannot be trusted.
pub(super) fn read_from(settings: &AgentSettings, top: &Path, dir: &Path) -> Vec<PathBuf> {
    let mut found = BTreeSet::new();
    // The agents search upwards for variables, beyond their own repository too.
    let above = dir.ancestors().filter(|place| !place.starts_with(top) && is_in_repository(place));
    if settings.files.contains(&VARIABLES) {
        found.extend(above.map(|place| place.join(VARIABLES)).filter(|file| exists(file)));
    }
    for place in dir.ancestors().take_while(|place| place.starts_with(top)) {
        let files = settings.files.iter().map(|file| place.join(file));
        found.extend(files.filter(|file| exists(file)));
        for folder in settings.folders.iter().map(|folder| place.join(folder)) {
            let mut listing = Listing::default();
            match listing.add(&folder, 0) {
                true => found.extend(listing.files),
                false => {
                    found.insert(folder);
                }
            }
        }
    }
    found.into_iter().collect()
}

fn exists(file: &Path) -> bool {
    file.symlink_metadata().is_ok()
}

/// Returns every file that one of the agents may load when it starts in `dir`.
pub(super) fn read_by_any(root: &Path, dir: &Path) -> impl Iterator<Item = PathBuf> {
    SETTINGS.iter().flat_map(move |settings| read_from(settings, root, dir))
}

/// Returns the file `name` as one that the user could trust, or with the reason why nobody can;
/// `None` if there is no such file.
pub(super) fn examine(records: &Records, name: String, file: &Path) -> Option<Candidate> {
    match bytes_if_there(file) {
        Ok(None) => None,
        Ok(Some(bytes)) => {
            Some(Candidate { allows: allows(&bytes), ..candidate(records, name, &bytes) })
        }
        Err(_) => {
            let untrustable = Some(why_not(file)?);
            let sha256 = String::new();
            Some(Candidate { file: name, sha256, trusted: false, allows: vec![], untrustable })
        }
    }
}

/// Returns why the content of a file cannot be trusted; `None` if it can.
pub(super) fn why_not(file: &Path) -> Option<String> {
    let is_folder = file.symlink_metadata().is_ok_and(|meta| meta.is_dir());
    if is_folder {
        return Some(format!("it has more than {MOST_FILES} files, or deep or unreadable folders"));
    }
    bytes_if_there(file).err().map(|error| error.source.to_string())
}

pub(super) fn is_settings(name: &str) -> bool {
    let ends = |file: &str| name == file || name.ends_with(&format!("/{file}"));
    let is_below = |folder: &str| name.contains(&format!("{folder}/"));
    SETTINGS.iter().any(|settings| {
        settings.files.iter().any(|file| ends(file))
            || settings.folders.iter().any(|folder| is_below(folder))
    })
}

/// Lists what a file may do: each key of a JSON object. Any other content is named as a whole, and
/// not shown: it may be a program, or hold secrets.
fn allows(content: &[u8]) -> Vec<Ignored> {
    let one = |key: String, value| Ignored { key, value, effect: "runs", file: None, line: None };
    match serde_json::from_slice::<Map<String, Value>>(content) {
        Ok(object) => object.into_iter().map(|(key, value)| one(key, value)).collect(),
        Err(_) => vec![one("text".into(), Value::Null)],
    }
}

/// The files below one folder.
#[derive(Debug, Default)]
struct Listing {
    files: Vec<PathBuf>,
    /// The entries that were looked at.
    entries: usize,
}

impl Listing {
    /// Adds the files below a folder. Returns false if they cannot all be listed. Packages that a
    /// plugin installs are left out: they are programs, and trust covers the files that name them.
    fn add(&mut self, folder: &Path, depth: usize) -> bool {
        let Ok(meta) = folder.symlink_metadata() else { return true };
        if meta.is_file() || depth > DEEPEST {
            self.files.push(folder.to_path_buf());
            return depth <= DEEPEST;
        }
        let Ok(entries) = fs::read_dir(folder) else { return false };
        for entry in entries {
            let Ok(entry) = entry else { return false };
            self.entries += 1;
            let path = entry.path();
            if path.ends_with("node_modules") {
                continue;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && self.add(&path, depth + 1) => {}
                Ok(kind) if !kind.is_dir() => self.files.push(path),
                Ok(_) | Err(_) => return false,
            }
            if self.files.len() > MOST_FILES || self.entries > MOST_ENTRIES {
                return false;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::trust::claude::note;
    use crate::daemon::trust::examine;
    use crate::daemon::trust::test_place::Place;
    use muleteer_backends::RepositorySettings;

    fn settings_of(agent: &str) -> RepositorySettings {
        let settings = SETTINGS.iter().find(|settings| settings.agent == agent);
        RepositorySettings::Of(settings.expect("a known agent"))
    }

    #[test]
    fn settings_of_each_agent_count_once_they_are_trusted() {
        for (agent, file) in [
            ("opencode", "opencode.json"),
            ("opencode", "opencode.jsonc"),
            ("opencode", ".opencode/plugin/run.ts"),
            ("gemini", ".gemini/settings.json"),
            ("gemini", ".env"),
            ("qwen", ".qwen/settings.json"),
            ("cline", ".cline/plugins/run.js"),
            ("cline", ".clinerules/hooks/TaskStart"),
        ] {
            let place = Place::new();
            place.write("shop/.git/HEAD", "");
            place.write("shop/README.md", "text");
            assert!(place.untrusted_for("shop", settings_of(agent)).is_empty(), "{agent}");
            let file = format!("shop/{file}");
            place.write(&file, "{\"a\": 1}");
            assert_eq!(
                place.untrusted_for("shop", settings_of(agent)),
                std::slice::from_ref(&file)
            );
            place.trust("shop");
            assert!(place.untrusted_for("shop", settings_of(agent)).is_empty(), "{file}");
            place.write(&file, "{\"a\": 2}");
            assert_eq!(place.untrusted_for("shop", settings_of(agent)), [file]);
        }
    }

    #[test]
    fn settings_above_the_directory_count_and_those_of_others_do_not() {
        let place = Place::new();
        place.write("shop/.git/HEAD", "");
        place.write("shop/opencode.json", "{}");
        place.write("shop/web/.opencode/agent/a.md", "text");
        place.write("shop/.opencode/node_modules/x/index.js", "code");
        place.write("shop/.gemini/settings.json", "{}");
        place.write(".opencode/plugin/own.ts", "code");
        let files = ["shop/opencode.json", "shop/web/.opencode/agent/a.md"];
        assert_eq!(place.untrusted_for("shop/web", settings_of("opencode")), files);
        // A program is not shown, and a file of settings is shown by its keys.
        let examined = examine(&place.paths, &place.root.join("shop/web")).expect("a repository");
        let shown: Vec<_> = examined
            .files
            .iter()
            .map(|file| (file.file.as_str(), file.allows.len(), file.allows.first()))
            .map(|(file, count, first)| (file, count, first.map(|one| one.key.as_str())))
            .collect();
        assert_eq!(
            shown,
            [
                (".gemini/settings.json", 0, None),
                ("opencode.json", 0, None),
                ("web/.opencode/agent/a.md", 1, Some("text")),
            ]
        );
    }

    /// Returns the note about opencode in this directory.
    fn note_of_opencode(place: &Place, name: &str) -> Option<String> {
        note(&place.paths, &place.root.join(name), settings_of("opencode"))
    }

    #[test]
    fn folder_with_too_many_entries_cannot_be_trusted() {
        for (count, name) in [(MOST_FILES, "file"), (MOST_ENTRIES, "")] {
            let place = Place::new();
            place.write("shop/.git/HEAD", "");
            for n in 0..=count {
                let folder = format!("shop/.opencode/commands/{n}");
                match name {
                    "" => fs::create_dir_all(place.root.join(folder)).expect("a folder"),
                    name => drop(place.write(&format!("{folder}/{name}"), "text")),
                }
            }
            place.trust("shop");
            assert_eq!(place.untrusted_for("shop", settings_of("opencode")), ["shop/.opencode"]);
            let note = note_of_opencode(&place, "shop").expect("a note");
            assert!(note.contains("cannot be trusted") && !note.contains("run `"), "{note}");
        }
    }

    #[test]
    fn binary_file_is_trusted_and_a_file_that_is_too_large_is_named() {
        let place = Place::new();
        place.write("shop/.git/HEAD", "");
        place.write("shop/.opencode/tool/x.wasm", "");
        let binary = place.root.join("shop/.opencode/tool/x.wasm");
        fs::write(&binary, b"\0asm\xff\xfe").expect("a file");
        assert!(note_of_opencode(&place, "shop").is_some_and(|note| note.contains("trust")));
        place.trust("shop");
        assert_eq!(note_of_opencode(&place, "shop"), None);
        fs::write(&binary, b"\0asm\xff\xff").expect("a file");
        assert!(note_of_opencode(&place, "shop").is_some(), "its content changed");
        let large = fs::File::create(&binary).and_then(|file| file.set_len(1 << 30));
        large.expect("a large file");
        place.trust("shop");
        let note = note_of_opencode(&place, "shop").expect("a note");
        assert!(note.contains("larger than") && !note.contains("run `"), "{note}");
        let examined = examine(&place.paths, &place.root.join("shop")).expect("a repository");
        let named: Vec<_> = examined.files.iter().map(|file| file.untrustable.is_some()).collect();
        assert_eq!((named, examined.is_trusted()), (vec![true], true));
    }
}
