//! Prints of what tools return, by which the same is known again: two texts have one print when they differ in nothing but
//! what differs from run to run anyway (times, addresses, line numbers, temporary names).
//!
//! What a number counts stays: `3 failed` after `4 failed` is progress, and so is another value in an assertion.

use std::hash::{Hash, Hasher};

/// Of a text so much is looked at, at either end: what went wrong stands there.
const LOOKED_AT: usize = 4096;
/// A line with a number beside one of these is about how much there is.
const COUNTED: [&str; 24] = [
    "passed",
    "failed",
    "failing",
    "failures",
    "failure",
    "passing",
    "errors",
    "error",
    "warnings",
    "problems",
    "tests",
    "todo",
    "remaining",
    "left",
    "right",
    "expected",
    "actual",
    "got",
    "received",
    "score",
    "coverage",
    "conflicts",
    "pending",
    "found",
];
/// What stands in the line of a message that says that something went wrong.
const FAULTS: [&str; 22] = [
    "error",
    "fail",
    "panic",
    "exception",
    "denied",
    "not found",
    "no such",
    "refused",
    "cannot",
    "can't",
    "could not",
    "undefined",
    "unknown",
    "invalid",
    "timed out",
    "timeout",
    "traceback",
    "fatal",
    "unable",
    "missing",
    "conflict",
    "not permitted",
];
/// What a program says that failed, though its exit was hidden (`make | tail`, `make || true`).
const FAILED: [&str; 12] = [
    "FAILED",
    "FAIL ",
    "FAIL\t",
    "error:",
    "error[",
    "Error:",
    "panicked at",
    "Traceback (most recent",
    "fatal:",
    "npm ERR!",
    "Build failed",
    "command not found",
];

/// FNV-1a of 64 bits: nobody gains by two texts with one print, and it is the same in every version.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// The print of anything.
pub fn of(value: impl Hash) -> u64 {
    let mut hasher = Fnv::default();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The print of a text.
pub fn text(text: &str) -> u64 {
    let mut hasher = Fnv::default();
    ends(text).for_each(|line| steady(line, false, &mut hasher));
    hasher.finish()
}

/// The print of what went wrong, whatever else is told: the first line that says so, without its numbers. `None` for a text
/// that says nothing of the kind, or too little to be told from others.
pub fn fault(text: &str) -> Option<u64> {
    let line = fault_line(text)?;
    let mut hasher = Fnv::default();
    steady(line, true, &mut hasher);
    Some(hasher.finish())
}

/// The first line that says what went wrong.
pub fn fault_line(text: &str) -> Option<&str> {
    ends(text).find(|line| {
        let lower = line.to_lowercase();
        // `Exit code 1` and its like say nothing of what.
        let words = line.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic)).count();
        words >= 3 && FAULTS.iter().any(|word| lower.contains(word)) && !says_none(&lower)
    })
}

/// A program's output says that it failed.
pub fn looks_failed(text: &str) -> bool {
    ends(text).any(|line| FAILED.iter().any(|sign| line.contains(sign)))
}

/// `0 errors`, `no errors`: the word is there and the thing is not.
fn says_none(lower: &str) -> bool {
    ["0 error", "no error", "0 fail", "no fail", "without error"]
        .iter()
        .any(|none| lower.contains(none))
}

/// The lines at both ends of a text that may be long.
fn ends(text: &str) -> impl Iterator<Item = &str> {
    let (head, tail) = if text.len() <= 2 * LOOKED_AT {
        (text, "")
    } else {
        (&text[..boundary(text, LOOKED_AT)], &text[boundary(text, text.len() - LOOKED_AT)..])
    };
    head.lines().chain(tail.lines()).map(str::trim).filter(|line| !line.is_empty())
}

fn boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// Hashes what is steady in a line.
fn steady(line: &str, no_numbers: bool, hasher: &mut Fnv) {
    let line = plain(line);
    let counted = !no_numbers && {
        let lower = line.to_lowercase();
        words(&lower).any(|word| COUNTED.contains(&word))
    };
    for word in words(&line) {
        let digits = word.bytes().filter(u8::is_ascii_digit).count();
        if digits == 0 {
            word.to_lowercase().hash(hasher);
        } else if digits == word.len() {
            // What counts something is small.
            if counted && digits <= 5 && !is_measured(&line, word) {
                word.hash(hasher);
            }
        } else if is_name(word) {
            word.hash(hasher);
        }
    }
    '\n'.hash(hasher);
}

/// Without the sequences that colour a terminal.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('\u{1b}') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let end = after.find(|sign: char| sign.is_ascii_alphabetic()).map_or(after.len(), |end| end + 1);
        rest = &after[end..];
    }
    out.push_str(rest);
    out
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|sign: char| !sign.is_alphanumeric()).filter(|word| !word.is_empty())
}

/// `E0308` and `utf8`, not `3f9ac2d1`, `0x7ffe`, `12ms` or `tmpx81k2q`.
fn is_name(word: &str) -> bool {
    let first = word.chars().next().is_some_and(char::is_alphabetic);
    let hex = word.len() >= 6 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let changes = word
        .as_bytes()
        .windows(2)
        .filter(|pair| pair[0].is_ascii_digit() != pair[1].is_ascii_digit())
        .count();
    first && !hex && changes <= 2
}

/// A number that a unit of time follows, or that is part of one with a point or a colon in it.
fn is_measured(line: &str, word: &str) -> bool {
    const UNITS: [&str; 11] = ["s", "ms", "us", "µs", "ns", "sec", "secs", "seconds", "min", "KB", "MB"];
    let start = word.as_ptr() as usize - line.as_ptr() as usize;
    let (before, after) = (&line[..start], &line[start + word.len()..]);
    let joined = |sign: Option<char>| matches!(sign, Some('.' | ':'));
    let next = after.trim_start().split(|sign: char| !sign.is_alphabetic()).next().unwrap_or_default();
    UNITS.contains(&next)
        || (joined(after.chars().next()) && after[1..].starts_with(|sign: char| sign.is_ascii_digit()))
        || joined(before.chars().last())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_but_for_what_always_differs_has_one_print() {
        for (one, other) in [
            ("test result: FAILED. 3 failed; finished in 0.42s", "test result: FAILED. 3 failed; finished in 1.07s"),
            ("src/lib.rs:12:5: error[E0308]: mismatched types", "src/lib.rs:14:9: error[E0308]: mismatched types"),
            ("panicked at 0x7ffe12ab", "panicked at 0x55d0cc01"),
            ("Time: 2.31 s, 1 failed", "Time: 3.02 s, 1 failed"),
            ("at commit 3f9ac2d1e", "at commit 90bb21c4f"),
            ("/tmp/tmpx81k2q/out: no such file", "/tmp/tmpq72m1c/out: no such file"),
            ("\u{1b}[31mFAIL\u{1b}[0m a.test.ts", "FAIL a.test.ts"),
            ("[12:03:11] build failed", "[12:04:59] build failed"),
        ] {
            assert_eq!(text(one), text(other), "{one} / {other}");
        }
    }

    #[test]
    fn what_tells_of_progress_has_another_print() {
        for (one, other) in [
            ("4 failed, 10 passed", "3 failed, 11 passed"),
            ("Found 12 errors.", "Found 9 errors."),
            ("error[E0308]: mismatched types", "error[E0277]: the trait bound"),
            ("assertion failed: left: 3, right: 4", "assertion failed: left: 2, right: 4"),
            ("FAIL a.test.ts", "FAIL b.test.ts"),
            ("CONFLICT in src/a.rs", "CONFLICT in src/b.rs"),
        ] {
            assert_ne!(text(one), text(other), "{one} / {other}");
        }
    }

    #[test]
    fn a_fault_is_known_again_in_another_programs_words() {
        let (npm, npx) =
            ("> jest\n\nError: Cannot find module 'ts-node' (12)", "Error: Cannot find module 'ts-node' (7)");
        assert_eq!(fault(npm), fault(npx));
        assert!(fault(npm).is_some());
        for nothing in ["Exit code 1", "", "0 errors, 12 tests passed in all files", "ok"] {
            assert_eq!(fault(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn of_a_long_text_both_ends_count() {
        let long = |head: &str, tail: &str| format!("{head}\n{}\n{tail}", "é word\n".repeat(4000));
        assert_ne!(text(&long("a", "b")), text(&long("a", "c")));
        assert_ne!(text(&long("a", "b")), text(&long("d", "b")));
        assert_eq!(text(&long("a", "b")), text(&long("a", "b")));
    }
}
