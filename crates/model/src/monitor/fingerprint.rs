//! Hashes of tool output, by which a repetition is recognized. Two texts have the same hash if they
//! differ only in parts that change from run to run (times, addresses, line numbers, temporary
//! names).
//!
//! Counts are part of the hash: `3 failed` after `4 failed` is progress, and so is another value in
//! an assertion.

use crate::text::fnv1a::Fnv;
use std::hash::{Hash, Hasher};

/// Bytes at each end of a text that are hashed. Errors are usually reported there.
const LOOKED_AT: usize = 4096;
/// A number beside one of these words shows the remaining work or a value. A growing number of
/// passes beside the same failure is no progress, so `passed` is not in the list.
const COUNTED: [&str; 36] = [
    "failed",
    "failing",
    "failures",
    "failure",
    "errors",
    "error",
    "warnings",
    "problems",
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
    "loss",
    "accuracy",
    "assert",
    "violations",
    "issues",
    "mismatches",
    "row",
    "rows",
    "record",
    "records",
    "step",
    "item",
    "page",
    "case",
    "part",
];
const UNITS: [&str; 11] =
    ["s", "ms", "us", "µs", "ns", "sec", "secs", "seconds", "min", "KB", "MB"];
/// Words in a line that reports an error.
const FAULTS: [&str; 26] = [
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
    "does not match",
    "must be",
    "mismatch",
    "rejected",
];
/// Output of programs that failed with a hidden exit code (`make | tail`, `make || true`).
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

/// Returns the hash of any value.
pub fn of(value: impl Hash) -> u64 {
    let mut hasher = Fnv::default();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The numbers that are part of a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Numbers {
    None,
    /// Numbers that count something.
    Counts,
    /// All numbers except times and places.
    All,
}

/// Returns the hash of a text with its counts. The same hash means a repetition.
pub fn text(text: &str) -> u64 {
    whole(text, Numbers::Counts)
}

/// Returns the hash of a text with all its progress numbers. A new hash means a new result.
pub fn news(text: &str) -> u64 {
    whole(text, Numbers::All)
}

fn whole(text: &str, numbers: Numbers) -> u64 {
    let mut hasher = Fnv::default();
    ends(text).for_each(|line| steady(line, numbers, &mut hasher));
    hasher.finish()
}

/// Returns the hash of the first line that reports an error, without its numbers. Returns `None` if
/// no line does, or if the line is too short to be specific.
pub fn fault(text: &str) -> Option<u64> {
    let line = fault_line(text)?;
    let mut hasher = Fnv::default();
    steady(line, Numbers::None, &mut hasher);
    Some(hasher.finish())
}

/// Returns the first line that reports an error.
fn fault_line(text: &str) -> Option<&str> {
    ends(text).find(|line| {
        let lower = line.to_lowercase();
        // Lines like `Exit code 1` name no cause.
        let words =
            line.split_whitespace().filter(|word| word.chars().any(char::is_alphabetic)).count();
        words >= 3 && FAULTS.iter().any(|word| lower.contains(word)) && !says_none(&lower)
    })
}

/// Returns whether a search found nothing.
pub fn is_nothing(text: &str) -> bool {
    let text = text.trim().to_lowercase();
    text.len() < 200
        && ["no matches", "no files found", "no results", "nothing found", "0 results", "no match"]
            .iter()
            .any(|none| text.contains(none))
}

/// Returns whether a program's output shows that it failed.
pub fn looks_failed(text: &str) -> bool {
    ends(text).any(|line| FAILED.iter().any(|sign| line.contains(sign)) || some_failed(line))
}

/// Matches `3 failed`.
fn some_failed(line: &str) -> bool {
    let words: Vec<&str> = words(line).collect();
    words.windows(2).any(|pair| {
        let some = pair[0].parse::<u64>().is_ok_and(|count| count > 0);
        some && ["failed", "failing", "failures", "errors"].contains(&pair[1])
    })
}

/// Matches `0 errors` or `no errors`, which report the absence of errors.
fn says_none(lower: &str) -> bool {
    ["0 error", "no error", "0 fail", "no fail", "without error"]
        .iter()
        .any(|none| lower.contains(none))
}

/// Returns the non-empty lines of a text, or of its two ends if it is long.
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

/// Hashes the parts of a line that are stable from run to run.
fn steady(line: &str, numbers: Numbers, hasher: &mut Fnv) {
    let line = plain(line);
    let words: Vec<&str> = words(&line).collect();
    for (at, word) in words.iter().enumerate() {
        if !word.contains(|sign: char| sign.is_ascii_digit()) {
            word.to_lowercase().hash(hasher);
        } else if is_number(word) {
            let before = at.checked_sub(1).and_then(|before| words.get(before)).copied();
            let after = [words.get(at + 1), words.get(at + 2)]
                .map(|word| word.copied().unwrap_or_default());
            if is_of(numbers, &line, word, before.unwrap_or_default(), after) {
                word.hash(hasher);
            }
        } else if is_name(word) {
            word.hash(hasher);
        }
    }
    '\n'.hash(hasher);
}

fn is_number(word: &str) -> bool {
    word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// Returns whether a number is part of the hash. Times and places in a file are not; counts are (`3
/// failed`, `left: 3`, `3 previous errors`).
fn is_of(
    numbers: Numbers,
    line: &str,
    number: &str,
    before: &str,
    [after, then]: [&str; 2],
) -> bool {
    let is_count = |word: &str| COUNTED.contains(&word.to_lowercase().as_str());
    let at = |word: &str| word.as_ptr() as usize - line.as_ptr() as usize;
    let end = |word: &str| at(word) + word.len();
    // A comma, semicolon or full stop separates a word from the number.
    let beside = |from: usize, to: usize| {
        line.get(from..to)
            .is_some_and(|between| !between.contains([',', ';']) && !between.contains(". "))
    };
    let (start, stop) = (at(number), end(number));
    let counted_before = is_count(before) && beside(end(before), start);
    let counted_after =
        is_count(after) && beside(stop, at(after)) || is_count(then) && beside(stop, at(then));
    // A place such as `main.c:12`, or a time such as `12:03:11`.
    let is_place = line[..start].ends_with(':')
        || line[stop..]
            .strip_prefix(':')
            .is_some_and(|rest| rest.starts_with(|sign: char| sign.is_ascii_digit()));
    let is_time = UNITS.contains(&after);
    match numbers {
        Numbers::None => false,
        Numbers::Counts => !is_time && (counted_before || !is_place && counted_after),
        Numbers::All => !is_time && (!is_place || counted_before),
    }
}

/// Removes terminal escape sequences.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('\u{1b}') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let end =
            after.find(|sign: char| sign.is_ascii_alphabetic()).map_or(after.len(), |end| end + 1);
        rest = &after[end..];
    }
    out.push_str(rest);
    out
}

/// Splits a line into runs of letters and digits. A decimal number is one word.
fn words(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = &rest[rest.find(char::is_alphanumeric)?..];
        let mut end = 0;
        let mut signs = rest.char_indices().peekable();
        while let Some((at, sign)) = signs.next() {
            let digit_follows = signs.peek().is_some_and(|(_, next)| next.is_ascii_digit());
            let in_number = sign == '.' && digit_follows && is_number(&rest[..at]);
            if !sign.is_alphanumeric() && !in_number {
                break;
            }
            end = at + sign.len_utf8();
        }
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}

/// Returns whether a word with digits is a stable name: `E0308` and `utf8` are, `3f9ac2d1`,
/// `0x7ffe`, `12ms` and `tmpx81k2q` are not.
fn is_name(word: &str) -> bool {
    let first = word.chars().next().is_some_and(char::is_alphabetic);
    let hex = word.len() >= 6 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    let changes = word
        .as_bytes()
        .windows(2)
        .filter(|pair| pair[0].is_ascii_digit() != pair[1].is_ascii_digit())
        .count();
    // Digits at the end, or a short word with digits inside, such as `i18n`.
    first && !hex && (changes == 1 || changes == 2 && word.len() < 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_that_differ_in_noise_have_one_fingerprint() {
        for (one, other) in [
            (
                "test result: FAILED. 3 failed; finished in 0.42s",
                "test result: FAILED. 3 failed; finished in 1.07s",
            ),
            (
                "src/lib.rs:12:5: error[E0308]: mismatched types",
                "src/lib.rs:14:9: error[E0308]: mismatched types",
            ),
            ("panicked at 0x7ffe12ab", "panicked at 0x55d0cc01"),
            ("Time: 2.31 s, 1 failed", "Time: 3.02 s, 1 failed"),
            (
                "test result: FAILED. 11 passed; 1 failed",
                "test result: FAILED. 12 passed; 1 failed",
            ),
            ("1 failed, 11 passed, 12 total", "1 failed, 14 passed, 15 total"),
            ("at commit 3f9ac2d1e", "at commit 90bb21c4f"),
            ("/tmp/tmpx81k2q/out: no such file", "/tmp/tmpq72m1c/out: no such file"),
            ("/tmp/tmp123abc/out: no such file", "/tmp/tmp9d1f22/out: no such file"),
            ("\u{1b}[31mFAIL\u{1b}[0m a.test.ts", "FAIL a.test.ts"),
            ("[12:03:11] build failed", "[12:04:59] build failed"),
            ("main.c:12: error: no such thing", "main.c:14: error: no such thing"),
            (
                "thread 'tests::a' (812) panicked at src/tests.rs:33:9:",
                "thread 'tests::a' (99) panicked at src/tests.rs:41:9:",
            ),
        ] {
            assert_eq!(text(one), text(other), "{one} / {other}");
        }
    }

    #[test]
    fn progress_changes_the_fingerprint() {
        for (one, other) in [
            ("4 failed, 10 passed", "3 failed, 11 passed"),
            ("Found 12 errors.", "Found 9 errors."),
            ("error[E0308]: mismatched types", "error[E0277]: the trait bound"),
            ("assertion failed: left: 3, right: 4", "assertion failed: left: 2, right: 4"),
            ("FAIL a.test.ts", "FAIL b.test.ts"),
            (
                "could not compile due to 64 previous errors",
                "could not compile due to 57 previous errors",
            ),
            ("accuracy: 0.81", "accuracy: 0.82"),
            ("Tests: 3 failed, 4 passed", "Tests: 2 failed, 5 passed"),
            ("CONFLICT in src/a.rs", "CONFLICT in src/b.rs"),
            ("row 12: bad date", "row 57: bad date"),
        ] {
            assert_ne!(text(one), text(other), "{one} / {other}");
        }
    }

    #[test]
    fn same_fault_has_one_fingerprint_across_programs() {
        let (npm, npx) = (
            "> jest\n\nError: Cannot find module 'ts-node' (12)",
            "Error: Cannot find module 'ts-node' (7)",
        );
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
