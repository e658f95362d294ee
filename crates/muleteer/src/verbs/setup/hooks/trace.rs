//! Remembers what was there before an installation, so that removal restores it.
//!
//! The record is beside the skill. Without one, as after an installation by an earlier version,
//! nothing but the skill's own folder is removed.

use crate::verbs::setup::hooks::files;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

const NAME: &str = ".installed.json";
/// A blank file is restored if it has at most so many bytes.
const BLANK_LIMIT: usize = 1024;

/// The state before the first installation.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trace {
    #[serde(default)]
    settings: Settings,
    /// How many folders were created for the skill, counted from its own one upwards.
    #[serde(default)]
    folders: usize,
}

#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Settings {
    /// A person's content: the rest of it stays.
    #[default]
    Filled,
    Missing,
    /// White space, perhaps with a byte order mark.
    Blank(String),
}

impl Trace {
    /// Returns the path of the record.
    pub(super) fn file(skill: &Path) -> PathBuf {
        skill.with_file_name(NAME)
    }

    /// Reads the record; `None` if there is none, or it is damaged.
    pub(super) fn find(skill: &Path) -> Option<Self> {
        serde_json::from_slice(&files::read(&Self::file(skill)).ok()??).ok()
    }

    /// Records the state before an installation.
    pub(super) fn before(settings: Option<&[u8]>, skill: &Path) -> Self {
        let settings = match settings.map(std::str::from_utf8) {
            None => Settings::Missing,
            Some(Ok(text)) if is_blank(text) && text.len() <= BLANK_LIMIT => {
                Settings::Blank(text.into())
            }
            Some(_) => Settings::Filled,
        };
        let folders = skill.ancestors().skip(1);
        Self { settings, folders: folders.take_while(|folder| !folder.exists()).count() }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Returns the settings to leave behind, of which `left` remain without the hooks; `None` if
    /// the file goes.
    pub(super) fn original(&self, left: &[u8]) -> Option<Vec<u8>> {
        let is_empty = std::str::from_utf8(left).is_ok_and(|text| {
            let text = text.trim_start_matches('\u{feff}').trim();
            text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).is_some_and(is_blank)
        });
        match &self.settings {
            Settings::Missing if is_empty => None,
            Settings::Blank(text) if is_empty => Some(text.as_bytes().to_vec()),
            _ => Some(left.to_vec()),
        }
    }

    /// Removes the record, and the created folders that are empty.
    pub(super) fn remove(&self, skill: &Path) -> io::Result<()> {
        match std::fs::remove_file(Self::file(skill)) {
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Err(error);
            }
            _ => {}
        }
        for folder in skill.ancestors().skip(1).take(self.folders.max(1)) {
            // A folder with content of others stays, and those above it.
            if std::fs::remove_dir(folder).is_err() && folder.exists() {
                break;
            }
        }
        Ok(())
    }
}

fn is_blank(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_restored_only_as_they_were() {
        let skill = Path::new("/nowhere/.claude/skills/task-list/SKILL.md");
        for (before, left, after) in [
            (None, "{}\n", None),
            (None, "{ \n }", None),
            (None, "{\"a\":1}\n", Some("{\"a\":1}\n")),
            (Some(""), "{}\n", Some("")),
            (Some("\u{feff} \n"), "{}\n", Some("\u{feff} \n")),
            (Some(""), "{\"a\":1}\n", Some("{\"a\":1}\n")),
            (Some("{}"), "{}", Some("{}")),
            (Some("{\"hooks\":{}}"), "{\"hooks\":{}}", Some("{\"hooks\":{}}")),
        ] {
            let trace = Trace::before(before.map(str::as_bytes), skill);
            let read: Trace = serde_json::from_slice(&trace.to_bytes()).expect("JSON");
            assert_eq!(read, trace);
            let after = after.map(|text| text.as_bytes().to_vec());
            assert_eq!(trace.original(left.as_bytes()), after, "{before:?} {left:?}");
        }
        assert_eq!(Trace::default().original(b"{}\n"), Some(b"{}\n".to_vec()));
    }
}
