//! The lines in an agent's lock file: the key, the identities and the last messages of its shims.
//!
//! ```text
//! key 00112233445566778899aabbccddeeff      the daemon, before the first shim
//! meta {"v":1,"epoch":1, …}                 a shim, when it begins and when its agent is forked
//! muleteer-shim[123] epoch 1: no space      the standard error of a shim
//! ```
//!
//! One file for all of it: each file of an agent costs a start some system calls, and the lock is
//! there anyway. Lines are only added. The newest line of a kind counts. Earlier versions had the
//! files `key`, `meta.json` and `shim.log` instead, which are still read.

use serde::de::IgnoredAny;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The lock's name in the agent's directory.
pub const LOCK: &str = "lock";
const KEY: &str = "key ";
const META: &str = "meta ";
/// A start shortens a larger file to what it still needs.
const LIMIT: u64 = 64 << 10;
/// No more of a file is read than this, because any process of the user can write to it.
const READ_LIMIT: u64 = 1 << 20;

/// The lines of a lock file.
#[derive(Debug, Default)]
pub(crate) struct Notes(String);

impl Notes {
    /// Reads the lines. There are none without a file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(agent_dir: &Path) -> io::Result<Self> {
        let file = match File::open(agent_dir.join(LOCK)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            opened => opened?,
        };
        let mut bytes = vec![];
        file.take(READ_LIMIT).read_to_end(&mut bytes)?;
        Ok(Self(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Returns the newest whole key.
    pub fn key(&self) -> Option<[u8; 16]> {
        self.0.lines().rev().find_map(|line| parse_key(line.strip_prefix(KEY)?))
    }

    /// Returns the JSON of the newest whole identity; without a whole one, the newest torn one.
    pub fn meta(&self) -> Option<&str> {
        let mut lines = self.0.lines().rev().filter_map(|line| line.strip_prefix(META));
        let is_whole = |line: &&str| serde_json::from_str::<IgnoredAny>(line).is_ok();
        lines.clone().find(is_whole).or_else(|| lines.next())
    }
}

/// Opens the lock file for adding lines. It is another open file than the lock's own, so that a
/// process that inherits it does not hold the lock.
pub(crate) fn open(agent_dir: &Path) -> io::Result<File> {
    File::options().append(true).create(true).mode(0o600).open(agent_dir.join(LOCK))
}

/// Opens the lock file for the standard error of a shim that is about to start. The caller holds
/// the lock.
pub(crate) fn open_for_shim(agent_dir: &Path) -> io::Result<File> {
    let file = open(agent_dir)?;
    if file.metadata()?.len() > LIMIT {
        let notes = Notes::read(agent_dir)?;
        // The file stays the same one, or the lock would be on another. A kill in between loses the
        // key, and the next start makes another.
        file.set_len(0)?;
        if let Some(key) = notes.key() {
            add_key(&file, &key)?;
        }
        if let Some(meta) = notes.meta() {
            add(&file, META, meta)?;
        }
    }
    Ok(file)
}

/// Adds a line with one write. It begins with a line break, because a full disk may have cut the
/// line before it.
fn add(mut file: &File, kind: &str, text: &str) -> io::Result<()> {
    file.write_all(format!("\n{kind}{text}\n").as_bytes())
}

pub(crate) fn add_key(file: &File, key: &[u8; 16]) -> io::Result<()> {
    add(file, KEY, &key.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Adds an identity, as one line of JSON.
pub(crate) fn add_meta(agent_dir: &Path, json: &str) -> io::Result<()> {
    add(&open(agent_dir)?, META, json)
}

fn parse_key(text: &str) -> Option<[u8; 16]> {
    let digits = text.as_bytes();
    if digits.len() != 32 || !text.is_ascii() {
        return None;
    }
    let mut key = [0; 16];
    for (byte, two) in key.iter_mut().zip(text.as_bytes().chunks(2)) {
        // `from_str_radix` also takes a sign.
        if !two.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        *byte = u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()?;
    }
    Some(key)
}

/// How many bytes at the end of a log are searched for a shim's last message.
const LAST_WORDS: u64 = 4096;

/// Returns why the shim of this epoch ended, if it said so.
pub fn last_words(agent_dir: &Path, epoch: u32) -> Option<String> {
    // A shim of an earlier version has a log of its own.
    [LOCK, "shim.log"].iter().find_map(|name| last_words_in(&agent_dir.join(name), epoch))
}

fn last_words_in(path: &Path, epoch: u32) -> Option<String> {
    let mut log = File::open(path).ok()?;
    let skipped = log.metadata().ok()?.len().saturating_sub(LAST_WORDS);
    log.seek(SeekFrom::Start(skipped)).ok()?;
    let mut end = Vec::new();
    log.take(LAST_WORDS).read_to_end(&mut end).ok()?;
    let end = String::from_utf8_lossy(&end);
    let said = |line: &str| {
        // A line that a full disk cut may be before it, without a line break.
        let (_, line) = line.split_once("muleteer-shim[")?;
        let (_, said) = line.split_once(&format!("] epoch {epoch}: "))?;
        Some(said.to_string())
    };
    end.lines().rev().find_map(said)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn text(dir: &Path) -> String {
        std::fs::read_to_string(dir.join(LOCK)).unwrap()
    }

    #[test]
    fn newest_whole_line_of_a_kind_counts() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Notes::read(dir.path()).unwrap().key(), None);
        let mut file = open(dir.path()).unwrap();
        add_key(&file, &[7; 16]).unwrap();
        // A full disk cut this one.
        file.write_all(b"\nkey 0807").unwrap();
        assert_eq!(Notes::read(dir.path()).unwrap().key(), Some([7; 16]));
        add(&file, META, "{1}").unwrap();
        add(&file, META, "{\"v\":2}").unwrap();
        // A full disk cut this one.
        file.write_all(b"\nmeta {\"v\":").unwrap();
        file.write_all(b"muleteer-shim[9] epoch 3: no space\nfree text\n").unwrap();
        let notes = Notes::read(dir.path()).unwrap();
        assert_eq!((notes.key(), notes.meta()), (Some([7; 16]), Some("{\"v\":2}")));
        assert_eq!(last_words(dir.path(), 3).as_deref(), Some("no space"));
        assert_eq!(last_words(dir.path(), 2), None);
        assert_eq!(parse_key("+1000000000000000000000000000000"), None);
    }

    #[test]
    fn long_file_is_shortened_to_the_key_and_the_newest_identity() {
        let dir = tempfile::tempdir().unwrap();
        let file = open(dir.path()).unwrap();
        add_key(&file, &[7; 16]).unwrap();
        add(&file, META, "{1}").unwrap();
        add(&file, "", &"x".repeat(LIMIT as usize)).unwrap();
        drop(open_for_shim(dir.path()).unwrap());
        assert_eq!(text(dir.path()).lines().filter(|line| !line.is_empty()).count(), 2);
        let notes = Notes::read(dir.path()).unwrap();
        assert_eq!((notes.key(), notes.meta()), (Some([7; 16]), Some("{1}")));
    }
}
