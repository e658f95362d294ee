//! The findings of the agent that reviews a spec before it is frozen.

use crate::spec_run::event::{Severity, SpecFinding};
use crate::text::foreign_json;
use serde::Deserialize;

/// The longest output that is searched.
const LIMIT: usize = 1024 * 1024;
/// The most objects with invalid JSON that are examined: each may be as long as the text.
const BROKEN: usize = 64;
/// A person can read this many findings.
const FINDINGS: usize = 200;

/// Why the output of a reviewer has no usable findings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    #[error("it printed no JSON object with `findings`")]
    NotFound,
    #[error("it printed {0} bytes: the limit is {LIMIT}")]
    TooLong(usize),
    #[error("its `findings` cannot be read: {0}")]
    Unreadable(String),
    #[error("more than {BROKEN} objects with `findings` are no valid JSON")]
    TooMuchBroken,
    #[error("it has {0} findings: the limit is {FINDINGS}")]
    TooMany(usize),
    #[error("a finding has no description")]
    Empty,
}

#[derive(Deserialize)]
struct Found {
    findings: Vec<SpecFinding>,
}

/// Reads the last object with `findings` in an agent's output, the most severe finding first. An
/// invalid last object makes the result invalid, because everything before it is a draft.
///
/// # Errors
/// The reason, for the prompt of the next attempt.
pub fn read(text: &str) -> Result<Vec<SpecFinding>, ReviewError> {
    if text.len() > LIMIT {
        return Err(ReviewError::TooLong(text.len()));
    }
    let (mut found, mut at, mut broken) = (Err(ReviewError::NotFound), 0, 0);
    while let Some(begin) = text[at..].find('{').map(|ahead| at + ahead) {
        at = begin + 1;
        if !text[at..].trim_start().starts_with("\"findings\"") {
            continue;
        }
        let (document, length) = foreign_json::prefix(&text[begin..]);
        found = match document.fault() {
            Some(_) if broken == BROKEN => return Err(ReviewError::TooMuchBroken),
            Some(fault) => {
                broken += 1;
                Err(ReviewError::Unreadable(fault))
            }
            None => {
                at = begin + length.max(1);
                foreign_json::typed::<Found>(&text.as_bytes()[begin..at])
                    .map(|found| found.findings)
                    .map_err(|error| ReviewError::Unreadable(error.to_string()))
            }
        };
    }
    let mut findings = found?;
    if findings.len() > FINDINGS {
        return Err(ReviewError::TooMany(findings.len()));
    }
    if findings.iter().any(|finding| finding.description.trim().is_empty()) {
        return Err(ReviewError::Empty);
    }
    if findings.iter().any(|finding| finding.severity == Severity::Unknown) {
        let message = "a `severity` is not critical, major or minor";
        return Err(ReviewError::Unreadable(message.into()));
    }
    findings.sort_by_key(|finding| finding.severity);
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINOR: &str = r#"{"section":"Names","description":"vague","severity":"minor"}"#;
    const CRITICAL: &str = r#"{"section":"","description":"absent","severity":"critical"}"#;

    #[test]
    fn last_findings_are_read_and_sorted_by_severity() {
        let text = format!(
            "Draft: {{\"findings\": []}} and {{x}}\n```json\n{{ \"findings\": [{MINOR}, \
             {CRITICAL}]}}\n```\n{{\"type\":\"result\"}}"
        );
        let findings = read(&text).unwrap_or_default();
        let severities: Vec<_> = findings.iter().map(|finding| finding.severity).collect();
        assert_eq!(severities, [Severity::Critical, Severity::Minor]);
        assert_eq!(read("{\"findings\":[]}"), Ok(vec![]));
    }

    #[test]
    fn unreadable_findings_are_an_error_and_never_an_empty_review() {
        let good = format!("{{\"findings\":[{MINOR}]}}");
        for (text, wanted) in [
            (String::new(), "no JSON"),
            ("The spec is good.".into(), "no JSON"),
            (format!("{good}\n{{\"findings\": [{{\"section\": \"cut"), "cannot be read"),
            ("{\"findings\": {}}".into(), "cannot be read"),
            (good.replace("minor", "huge"), "severity"),
            (good.replace("vague", " "), "no description"),
            (format!("{{\"findings\":[{}]}}", [MINOR; 201].join(",")), "201 findings"),
            ("x".repeat(LIMIT + 1), "the limit"),
            ("{\"findings\":[".repeat(BROKEN + 1), "more than 64"),
        ] {
            let error = read(&text).map_err(|error| error.to_string()).expect_err("an error");
            assert!(error.contains(wanted), "{error}");
        }
    }
}
