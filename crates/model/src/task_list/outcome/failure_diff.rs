//! Separates old failures from those that a task caused, by comparing the output of its validation
//! before the first attempt with the output after an attempt.

use std::collections::HashSet;

/// The most lines that are shown of each kind.
const SHOWN: usize = 10;

/// The lines that report failures.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Apart {
    /// Failures that existed before the task began.
    pub old: Vec<String>,
    /// Failures that did not exist before.
    pub new: Vec<String>,
}

/// Splits the failures in `after` by whether they are in `before` too.
pub fn tell(before: &str, after: &str) -> Apart {
    let known: HashSet<_> = failures(before).map(normal).collect();
    let mut seen = HashSet::new();
    let mut apart = Apart::default();
    for line in failures(after).filter(|line| seen.insert(normal(line))) {
        let side = if known.contains(&normal(line)) { &mut apart.old } else { &mut apart.new };
        if side.len() < SHOWN {
            side.push(crate::agent::event::cut(line.trim(), 200));
        }
    }
    apart
}

/// Returns whether two outputs are equal except for numbers and spacing.
pub fn is_same(before: &str, after: &str) -> bool {
    let all = |text: &str| text.lines().map(normal).collect::<Vec<_>>();
    all(before) == all(after)
}

fn failures(text: &str) -> impl Iterator<Item = &str> {
    let tells = |line: &&str| {
        let lower = line.to_lowercase();
        ["fail", "error", "panicked", "not ok", "✗", "✕"].iter().any(|mark| lower.contains(mark))
            && !none_of(&lower)
    };
    text.lines().filter(tells)
}

/// Matches "0 failed", but not "10 failed".
fn none_of(line: &str) -> bool {
    ["0 failed", "0 errors"].iter().any(|none| {
        let before = line.find(none).map(|at| &line[..at]);
        before.is_some_and(|before| !before.ends_with(|c: char| c.is_ascii_digit()))
    })
}

/// Replaces the parts that vary between runs: numbers (durations, counts, lines, addresses),
/// spacing.
fn normal(line: &str) -> String {
    let mut out = String::new();
    for word in line.split_whitespace() {
        let mut in_number = false;
        for c in word.chars() {
            let digit = c.is_ascii_digit() || (in_number && matches!(c, '.' | ','));
            if !digit {
                out.push(c);
            } else if !in_number {
                out.push('0');
            }
            in_number = digit;
        }
        out.push(' ');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_failures_are_separated_from_new_ones() {
        let before = "test net::slow ... FAILED\ntest math::adds ... ok\
                      \ntest result: FAILED. 1 failed in 0.31s\n";
        let after = "test net::slow ... FAILED\ntest math::adds ... FAILED\
                     \ntest result: FAILED. 2 failed in 1.07s\n";
        let apart = tell(before, after);
        assert_eq!(apart.new, ["test math::adds ... FAILED"]);
        assert_eq!(apart.old.first().map(String::as_str), Some("test net::slow ... FAILED"));
        assert_eq!(tell("", "10 failed\n0 failed, 3 passed\n").new, ["10 failed"]);
        assert!(is_same("failed after 3.2s\n", "failed after 14s\n") && !is_same(before, after));
    }
}
