//! The kind of an attempt's failure, which tells the next maintenance where to look.

use crate::event::Outcome;
use crate::spec_run::event::FailureKind;

/// Words with which a line reports a failure.
const FAILS: [&str; 8] =
    ["fail", "error", "broke", "panicked", "cannot", "unresolved", "problem", "violation"];
/// Words before which such a report is none.
const NONE: [&str; 4] = ["0", "no", "without", "zero"];
const LINT: [&str; 12] = [
    "lint",
    "eslint",
    "stylelint",
    "clippy",
    "ruff",
    "rustfmt",
    "prettier",
    "flake8",
    "golangci",
    "biome",
    "formatting",
    "formatter",
];
const BUILD: [&str; 8] =
    ["build", "compil", "typecheck", "tsc", "rustc", "linker", "linking", "cmake"];
const TEST: [&str; 6] = ["test", "pytest", "jest", "vitest", "assertion", "mocha"];

/// Classifies a failure by its reason and by the last lines of the agent's output. The reason goes
/// before the lines, and a later line before an earlier one.
pub(super) fn kind(outcome: Outcome, reason: &str, last_lines: &str) -> FailureKind {
    if outcome == Outcome::Timeout {
        return FailureKind::Other;
    }
    let lines = reason.lines().chain(last_lines.lines().rev());
    lines.filter_map(of_line).next().unwrap_or(FailureKind::Other)
}

fn of_line(line: &str) -> Option<FailureKind> {
    let line = line.to_lowercase();
    let words: Vec<&str> =
        line.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    // `begins` is true if a word begins so, and nothing before it denies it.
    let says = |begins: &dyn Fn(&str) -> bool| {
        (0..words.len()).any(|at| {
            let is_denied = at.checked_sub(1).is_some_and(|before| NONE.contains(&words[before]));
            begins(words[at]) && !is_denied
        })
    };
    let rejected = ["non-fast-forward", "could not apply", "failed to push some refs"];
    if says(&|word| word.starts_with("conflict")) || rejected.iter().any(|one| line.contains(one)) {
        return Some(FailureKind::Conflict);
    }
    let has =
        |topic: &[&str]| words.iter().any(|word| topic.iter().any(|one| word.starts_with(one)));
    let fails = says(&|word| FAILS.iter().any(|one| word.starts_with(one)) || is_code(word))
        || ["could not", "does not", "did not", "assertionerror"]
            .iter()
            .any(|one| line.contains(one));
    match fails {
        true if has(&LINT) => Some(FailureKind::Lint),
        true if has(&BUILD) || words.iter().any(|word| is_code(word)) => Some(FailureKind::Build),
        true if has(&TEST) => Some(FailureKind::Test),
        _ => None,
    }
}

/// Returns whether a word is the code of a compiler's error, as `e0308` or `ts2304`.
fn is_code(word: &str) -> bool {
    let digits = word.strip_prefix("ts").or(word.strip_prefix('e')).unwrap_or_default();
    digits.len() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_classified_by_its_reason_and_last_lines() {
        use FailureKind::{Build, Conflict, Lint, Other, Test};
        for (reason, lines, wanted) in [
            ("exit code 1", "", Other),
            ("exit code 1", "3 tests passed, 0 failed\nnothing to do", Other),
            ("it closed the bead, but its commits are not on the target branch", "", Other),
            ("exit code 1", "CONFLICT (content): Merge conflict in a.rs", Conflict),
            ("exit code 1", " ! [rejected] main -> main (non-fast-forward)", Conflict),
            ("rebased without conflicts", "the build failed", Build),
            ("exit code 101", "error[E0308]: mismatched types", Build),
            ("exit code 2", "src/a.ts(1,2): error TS2304: Cannot find name 'x'.", Build),
            ("exit code 101", "error: could not compile `x` (lib)", Build),
            ("exit code 101", "test a::b ... ok\ntest result: FAILED. 3 passed; 1 failed;", Test),
            ("exit code 1", "AssertionError: assert 1 == 2", Test),
            ("10 of the tests failed", "error: could not compile `x`", Test),
            ("exit code 1", "clippy failed: 2 errors", Lint),
            ("exit code 1", "the linter found 3 problems", Lint),
            ("exit code 1", "the build failed at first\nnow the tests fail", Test),
        ] {
            assert_eq!(kind(Outcome::Failure, reason, lines), wanted, "{reason}: {lines}");
        }
        assert_eq!(kind(Outcome::Timeout, "the tests failed", ""), Other);
    }
}
