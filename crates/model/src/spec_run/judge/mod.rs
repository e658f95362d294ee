//! The judge's verdict, `JudgeResult`, in camelCase. The parser tolerates any wrapping of the
//! document by the model, and no errors in its content.

pub mod enforced;
pub mod promotion;

mod error;
mod found;
mod readable;
mod remedies;
mod settled;

pub use error::VerdictError;
pub use readable::readable;
pub use remedies::Hidden;
pub use settled::Asked;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A verdict with more new beads than this is rejected.
const FINDINGS: usize = 200;
/// The length limits of a bead made from a finding. They are below those of every bead store.
const TITLE: usize = 300;
const TEXT: usize = 40 * 1024;
/// The length limit of an observation's close reason.
const REASON: usize = 2000;

/// The judge's verdict as a document.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JudgeResult {
    /// `success` if the judge could judge.
    pub status: String,
    /// The comparison with the spec. Without it a pass counts only if the comparison was not
    /// requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_drift: Option<SpecDrift>,
    /// The check of the acceptance criteria, if it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acceptance: Option<Acceptance>,
    /// The decisions about the observations.
    #[serde(default)]
    pub observations: Vec<Observation>,
    /// The work that follows from the findings.
    #[serde(default)]
    pub new_beads: Vec<NewBead>,
}

/// The comparison of the result with the spec.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SpecDrift {
    /// The result differs from the spec.
    pub detected: bool,
    /// The differences.
    #[serde(default)]
    pub issues: Vec<Issue>,
}

/// A difference between the result and the spec.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Issue {
    /// The section of the spec.
    #[serde(default)]
    pub section: String,
    /// The difference.
    #[serde(default)]
    pub description: String,
    /// The severity, in the words of the judge.
    #[serde(default)]
    pub severity: String,
}

/// The check of the acceptance criteria.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Acceptance {
    /// All criteria are met.
    pub passed: bool,
    /// The criteria.
    #[serde(default)]
    pub results: Vec<Criterion>,
}

/// The check of one criterion.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Criterion {
    /// The text of the criterion.
    #[serde(default)]
    pub criterion: String,
    /// The criterion is met.
    pub passed: bool,
    /// The evidence that the judge found.
    #[serde(default)]
    pub evidence: String,
}

/// The decision about an observation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Observation {
    /// The bead that holds the observation.
    pub bead_id: String,
    /// The decision: `promote`, `dismiss` or `merge`.
    pub action: String,
    /// The reason of the decision.
    #[serde(default)]
    pub reason: String,
    /// The bead with which it is merged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merge_with: Option<String>,
}

/// Work that follows from a finding.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct NewBead {
    /// The title of the bead.
    pub title: String,
    /// The description of the bead.
    #[serde(default)]
    pub description: String,
    /// The type of the bead, such as `task` or `bug`.
    #[serde(default, rename = "type")]
    pub kind: String,
}

impl JudgeResult {
    /// Returns whether the verdict is a pass: the evaluation succeeded, nothing drifted, all
    /// criteria passed, and no observation is promoted.
    pub fn passed(&self) -> bool {
        self.status == "success" && !self.drifted() && self.accepted() && !self.promotes()
    }

    pub fn drifted(&self) -> bool {
        self.spec_drift.as_ref().is_some_and(|drift| drift.detected)
    }

    pub fn accepted(&self) -> bool {
        self.acceptance.as_ref().is_none_or(|acceptance| acceptance.passed)
    }

    fn promotes(&self) -> bool {
        self.observations.iter().any(|observation| observation.action == "promote")
    }

    pub fn issues(&self) -> &[Issue] {
        self.spec_drift.as_ref().map_or(&[], |drift| &drift.issues)
    }

    pub fn criteria(&self) -> &[Criterion] {
        self.acceptance.as_ref().map_or(&[], |acceptance| &acceptance.results)
    }
}

/// Returns the idempotency key of a remedy's bead, so that a repeated effect creates no second
/// bead. `verdict` is the number of the verdict in the run, because one iteration can have several.
pub fn remedy_key(run_id: &str, verdict: u32, at: usize) -> String {
    format!("{run_id}/judge/{verdict}/{at}")
}

/// Returns the id of a remedy's bead. `hash` is the random part of the run's id.
pub fn remedy_id(hash: &str, verdict: u32, at: usize) -> String {
    format!("{hash}j{verdict}n{at}")
}

impl Observation {
    /// Returns the reason with which the observation's bead is closed.
    pub fn closing(&self) -> String {
        let reason = match &self.merge_with {
            Some(other) => format!("merged with {other}: {}", self.reason),
            None => format!("{}: {}", self.action, self.reason),
        };
        fitting(&reason, REASON)
    }
}

/// Cuts a text to the limit of a bead, with a note about the cut. The verdict's file has the whole
/// text.
fn fitting(text: &str, limit: usize) -> String {
    let text = text.replace('\0', "\u{fffd}");
    if text.len() <= limit {
        return text;
    }
    let mark = format!("\n\n(cut: it had {} bytes; the stored verdict is complete)", text.len());
    match limit > mark.len() * 4 {
        true => crate::agent::event::cut(&text, limit - mark.len()) + &mark,
        false => crate::agent::event::cut(&text, limit),
    }
}

/// Returns the JSON schema of a verdict, for CLIs that can enforce one. All fields are required and
/// no others are allowed, because some model APIs demand this.
pub fn schema() -> serde_json::Value {
    use serde_json::{Map, Value, json};
    let object = |fields: &[(&str, Value)]| {
        let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
        let properties: Map<_, _> =
            fields.iter().map(|(name, kind)| ((*name).to_string(), kind.clone())).collect();
        json!({"type": "object", "properties": properties, "required": names,
            "additionalProperties": false})
    };
    let list = |of: Value| json!({"type": "array", "items": of});
    let word = |words: &[&str]| json!({"type": "string", "enum": words});
    let (text, yes) = (json!({"type": "string"}), json!({"type": "boolean"}));
    let issue = object(&[
        ("section", text.clone()),
        ("description", text.clone()),
        ("severity", word(&["critical", "major", "minor"])),
    ]);
    let criterion =
        object(&[("criterion", text.clone()), ("passed", yes.clone()), ("evidence", text.clone())]);
    let observation = object(&[
        ("beadId", text.clone()),
        ("action", word(&["promote", "dismiss", "merge"])),
        ("reason", text.clone()),
        ("mergeWith", json!({"type": ["string", "null"]})),
    ]);
    let bead = object(&[
        ("title", text.clone()),
        ("description", text),
        ("type", word(&["bug", "task", "feature"])),
    ]);
    object(&[
        ("status", word(&["success", "failure", "timeout"])),
        ("specDrift", object(&[("detected", yes.clone()), ("issues", list(issue))])),
        ("acceptance", object(&[("passed", yes), ("results", list(criterion))])),
        ("observations", list(observation)),
        ("newBeads", list(bead)),
    ])
}

/// Parses the verdict from several renderings of an agent's output, the schema-enforced one first.
/// The first rendering that contains a verdict decides, even if that verdict is invalid. The other
/// renderings must not override an invalid verdict.
///
/// # Errors
/// The reason why it is invalid, for the prompt of the next attempt.
pub fn read<'a>(ways: impl IntoIterator<Item = &'a str>) -> Result<JudgeResult, VerdictError> {
    let mut missing = None;
    for text in ways.into_iter().filter(|text| !text.trim().is_empty()) {
        match found::last(text) {
            Ok(Some(verdict)) => return verdict.and_then(check),
            Ok(None) => {
                missing = missing.or(Some(Err(VerdictError::NotFound)));
            }
            Err(error) => return Err(error),
        }
    }
    missing.unwrap_or(Err(VerdictError::NothingPrinted))
}

/// Parses the last verdict in an agent's output: the whole text, a fenced block, or an object
/// within prose. An invalid last verdict makes the result invalid, because everything before it is
/// a draft.
///
/// # Errors
/// The reason why it is invalid, for the prompt of the next attempt.
pub fn parse(text: &str) -> Result<JudgeResult, VerdictError> {
    read([text])
}

fn check(result: JudgeResult) -> Result<JudgeResult, VerdictError> {
    if !["success", "failure", "timeout"].contains(&result.status.as_str()) {
        return Err(VerdictError::OddStatus(result.status));
    }
    if let Some(odd) = result
        .observations
        .iter()
        .find(|one| !["promote", "dismiss", "merge"].contains(&one.action.as_str()))
    {
        return Err(VerdictError::OddAction(odd.action.clone()));
    }
    if result.new_beads.iter().any(|bead| bead.title.trim().is_empty()) {
        return Err(VerdictError::Untitled);
    }
    let findings = result.new_beads.len() + result.issues().len() + result.criteria().len();
    if findings > FINDINGS * 10 || result.new_beads.len() > FINDINGS {
        return Err(VerdictError::TooManyFindings(findings));
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASS: &str = concat!(
        r#"{"status":"success","specDrift":{"detected":false,"issues":[]},"acceptance":"#,
        r#"{"passed":true,"results":[]},"observations":[],"newBeads":[]}"#,
    );

    #[test]
    fn verdict_is_found_anywhere_in_the_text() {
        for text in [
            PASS.to_string(),
            format!("Here it is:\n```json\n{PASS}\n```\n"),
            format!("the shape was {{\"status\": …}}\n{PASS}"),
        ] {
            assert!(parse(&text).expect("a verdict").passed(), "{text}");
        }
        assert!(parse("all is well").is_err() && parse("{}").is_err());
        assert!(
            parse("{\"status\":\"success\"}")
                .expect_err("of nothing")
                .to_string()
                .contains("`specDrift`")
        );
        assert!(
            parse(&PASS.replace("success", "fine"))
                .expect_err("no such status")
                .to_string()
                .contains("fine")
        );
    }

    /// A draft before the verdict once caused a branch to be published.
    #[test]
    fn last_verdict_decides_and_drafts_are_ignored() {
        let failed = concat!(
            r#"{"status":"success","specDrift":{"detected":true},"newBeads":"#,
            r#"[{"title":"Mend it"}]}"#,
        );
        assert!(
            !parse(&format!("First draft: {PASS}\n\nFinal: {failed}"))
                .expect("the last one")
                .passed()
        );
        assert!(
            parse(&format!("First: {failed}\nNow: {PASS}\nThat is {{all}}."))
                .expect("the last one")
                .passed()
        );
        let odd = failed.replace(r#""success""#, r#""failed""#);
        assert!(
            parse(&format!("{PASS}\n{odd}"))
                .expect_err("no such status")
                .to_string()
                .contains("failed")
        );
        for last in [
            failed.replace("true", "true,"),
            failed.replace("true", "yes, it is"),
            failed.replace('"', "'"),
            r#"{status: "failure", specDrift: {detected: true}}"#.into(),
            r#"{"status":"failure"}"#.into(),
            r#"{"status":"failure","status":"success","specDrift":{"detected":false}}"#.into(),
            concat!(
                r#"{"why":"it drifts","status":"failure",,"before":{"status":"success","#,
                r#""specDrift":{"detected":false}}}"#,
            )
            .into(),
        ] {
            assert!(parse(&format!("Draft:\n{PASS}\n\n```json\n{last}\n```\n")).is_err(), "{last}");
        }
        // A verdict that is cut off at any byte is invalid.
        for to in (1..failed.len()).filter(|to| failed.is_char_boundary(*to)) {
            let cut = format!("First draft: {PASS}\n{}", &failed[..to]);
            assert!(parse(&cut).is_err(), "{cut}");
        }
        assert!(parse(&failed[..30]).expect_err("cut off").to_string().contains("cut off"));
    }

    #[test]
    fn findings_decide_before_the_status_and_other_objects_are_ignored() {
        let failed = PASS.replace(r#""detected":false"#, r#""detected":true"#);
        assert!(!read([failed.as_str(), PASS]).expect("the first").passed());
        assert!(read([r#"{"status":"fine","newBeads":[]}"#, PASS]).is_err());
        assert!(read(["", "All is well.", PASS]).expect("the third").passed());
        assert!(read([]).is_err() && read([" "]).is_err());
        let told = format!(
            "{PASS}\n{{\"type\":\"result\",\"status\":\"success\",\"summary\":\"done\"}}\n"
        );
        assert!(parse(&told).expect("before its result").passed());
        assert!(
            parse(&format!("`fn main() {{ it's 5\" wide`\n{PASS}")).expect("a verdict").passed()
        );
        assert!(parse(&format!("{{\"JudgeResult\": {PASS}}}")).expect("wrapped").passed());
        assert!(parse(&format!("{{\"a\": {PASS}, \"b\": {failed}}}")).is_err());
        // Input that is built to be slow to parse is rejected early.
        assert!(
            parse(&"{\"a\"x".repeat(50_000)).is_err() && parse(&"{\"a\":".repeat(50_000)).is_err()
        );
    }

    /// The schema and the parser have the same fields; a field that only one of them has would be
    /// lost.
    #[test]
    fn the_schema_has_every_field_of_a_verdict() {
        fn fields(schema: &serde_json::Value) -> serde_json::Value {
            match schema["type"].as_str() {
                Some("object") => schema["properties"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(name, of)| (name.clone(), fields(of)))
                    .collect(),
                Some("array") => serde_json::json!([fields(&schema["items"])]),
                _ => match schema["enum"][0].clone() {
                    serde_json::Value::Null if schema["type"] == "boolean" => true.into(),
                    serde_json::Value::Null => "x".into(),
                    word => word,
                },
            }
        }
        let sample = fields(&schema());
        let read: JudgeResult = serde_json::from_value(sample.clone()).expect("a verdict");
        assert_eq!(
            serde_json::to_value(check(read).expect("of allowed words")).expect("JSON"),
            sample
        );
    }

    /// The store once rejected an oversized bead, and the run failed again after each resume.
    #[test]
    fn any_finding_fits_into_a_bead() {
        let long = format!("a\0b{}", "é".repeat(200_000));
        let bead = |title: &str| NewBead {
            title: title.into(),
            description: long.clone(),
            kind: long.clone(),
        };
        let mut result = parse(PASS).expect("a verdict");
        result.spec_drift = Some(SpecDrift {
            detected: true,
            issues: vec![Issue {
                section: long.clone(),
                description: long.clone(),
                severity: long.clone(),
            }],
        });
        result.acceptance = Some(Acceptance {
            passed: false,
            results: vec![Criterion {
                criterion: long.clone(),
                passed: false,
                evidence: long.clone(),
            }],
        });
        let mut found = result.remedies();
        result.new_beads = vec![bead("\0"), bead(&long)];
        found.extend(result.remedies());
        assert_eq!(found.len(), 4);
        for (at, bead) in found.into_iter().enumerate() {
            assert!(
                bead.description.starts_with("a\u{fffd}b")
                    && bead.description.contains("(cut: it had ")
            );
            assert!(bead.title.len() <= TITLE, "a line, without a mark of two");
            let make = crate::beads::Op::Create {
                title: bead.title,
                description: bead.description,
                issue_type: "task".into(),
                priority: 1,
                labels: vec![],
                depends_on: vec![],
                key: None,
                staged: None,
            };
            let made = crate::beads::apply(
                &Default::default(),
                &make,
                jiff::Timestamp::UNIX_EPOCH,
                &format!("b{at}"),
            );
            assert!(made.is_ok(), "{made:?}");
        }
        let merge = Some(long.clone());
        let closed = Observation {
            bead_id: "o".into(),
            action: "merge".into(),
            reason: long,
            merge_with: merge,
        };
        assert!(closed.closing().len() <= REASON && !closed.closing().contains('\0'));
    }

    #[test]
    fn new_beads_come_from_the_list_or_the_findings() {
        let mut result = parse(PASS).expect("a verdict");
        assert!(result.remedies().is_empty());
        result.spec_drift = Some(SpecDrift {
            detected: true,
            issues: vec![Issue {
                section: "Auth".into(),
                description: "no callback".into(),
                severity: "critical".into(),
            }],
        });
        result.acceptance = Some(Acceptance {
            passed: false,
            results: vec![Criterion {
                criterion: "it says hello".into(),
                passed: false,
                evidence: "it says bye".into(),
            }],
        });
        assert_eq!(
            result.remedies().iter().map(|bead| bead.title.as_str()).collect::<Vec<_>>(),
            ["Auth: no callback", "Close the gap: it says bye"]
        );
        result.new_beads = vec![NewBead { title: "Fix it".into(), ..NewBead::default() }];
        assert_eq!(result.remedies().len(), 1);
        let promoted = JudgeResult {
            observations: vec![Observation {
                bead_id: "a".into(),
                action: "promote".into(),
                ..Observation::default()
            }],
            ..parse(PASS).expect("a verdict")
        };
        assert!(!promoted.passed() && promoted.remedies().is_empty());
        let failed = JudgeResult { status: "failure".into(), ..parse(PASS).expect("a verdict") };
        assert_eq!(failed.remedies().len(), 1);
    }
}
