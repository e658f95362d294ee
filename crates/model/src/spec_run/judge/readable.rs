//! The verdict as text for people. The judge's agent prints a JSON document, which would otherwise
//! appear as its summary.

use crate::spec_run::judge::{JudgeResult, parse};
use std::fmt::Write;

/// Only an object with one of these fields is a verdict.
const OWN: [&str; 3] = ["\"specDrift\"", "\"acceptance\"", "\"newBeads\""];

/// Returns the text of a verdict if `text` is nothing but a verdict's document, possibly in a code
/// block. Its first line is a summary.
pub fn readable(text: &str) -> Option<String> {
    let text = text.trim();
    let is_document = (text.starts_with('{') && text.ends_with('}'))
        || (text.starts_with("```") && text.ends_with("```"));
    if !is_document || !OWN.iter().any(|name| text.contains(name)) {
        return None;
    }
    parse(text).ok().map(|verdict| verdict.text())
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

impl JudgeResult {
    /// Returns the verdict in one line.
    pub fn brief(&self) -> String {
        let mut parts = vec![];
        if self.status != "success" {
            parts.push(format!("the judge reports {}", self.status));
        }
        if self.spec_drift.is_some() {
            parts.push(match (self.drifted(), self.issues().len()) {
                (false, _) => "the result matches the spec".to_string(),
                (true, 0) => "the result differs from the spec".into(),
                (true, many) => format!("{} from the spec", count(many, "difference")),
            });
        }
        if let Some(acceptance) = &self.acceptance {
            let met = acceptance.results.iter().filter(|one| one.passed).count();
            parts.push(match acceptance.results.len() {
                0 if acceptance.passed => "the acceptance criteria are met".into(),
                0 => "the acceptance criteria are not met".into(),
                all => format!("{met} of {} met", count(all, "criterion").replace("ons", "a")),
            });
        }
        if !self.new_beads.is_empty() {
            parts.push(count(self.new_beads.len(), "new bead"));
        }
        let verdict = if self.passed() { "pass" } else { "fail" };
        if parts.is_empty() { verdict.into() } else { format!("{verdict}: {}", parts.join(", ")) }
    }

    /// Returns the verdict as text: the summary, then each finding on a line.
    pub fn text(&self) -> String {
        let mut text = self.brief();
        for issue in self.issues() {
            let _ = write!(text, "\n- {} {}: {}", issue.severity, issue.section, issue.description);
        }
        for one in self.criteria() {
            let met = if one.passed { "met" } else { "not met" };
            let _ = write!(text, "\n- {met}: {}", one.criterion);
            if !one.passed && !one.evidence.is_empty() {
                let _ = write!(text, " ({})", one.evidence);
            }
        }
        for one in &self.observations {
            let _ = write!(text, "\n- {} {}: {}", one.action, one.bead_id, one.reason);
        }
        for bead in &self.new_beads {
            let _ = write!(text, "\n- new {}: {}", bead.kind, bead.title);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAIL: &str = concat!(
        r#"{"status":"success","specDrift":{"detected":true,"issues":[{"section":"3","#,
        r#""description":"No help","severity":"major"}]},"acceptance":{"passed":false,"results":"#,
        r#"[{"criterion":"It starts","passed":true,"evidence":""},"#,
        r#"{"criterion":"It prints","passed":false,"evidence":"nothing came"}]},"#,
        r#""observations":[],"newBeads":[{"title":"Add help","description":"","type":"task"}]}"#,
    );

    #[test]
    fn verdict_document_is_rendered_as_text() {
        let wanted = "fail: 1 difference from the spec, 1 of 2 criteria met, 1 new bead\n\
            - major 3: No help\n- met: It starts\n- not met: It prints (nothing came)\n\
            - new task: Add help";
        for text in [FAIL.to_string(), format!("```json\n{FAIL}\n```"), format!("\n{FAIL}\n")] {
            assert_eq!(readable(&text).as_deref(), Some(wanted), "{text}");
        }
    }

    #[test]
    fn other_text_is_not_rendered_as_a_verdict() {
        for text in ["done", "{}", r#"{"status":"success"}"#, &format!("It says {FAIL}")] {
            assert_eq!(readable(text), None, "{text}");
        }
    }
}
