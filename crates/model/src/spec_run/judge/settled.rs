//! Decides whether a verdict is usable, or has to be requested again.

use crate::agent::event::cut;
use crate::spec_run::judge::JudgeResult;
use crate::spec_run::judge::error::{Names, VerdictError};
use std::collections::{BTreeMap, BTreeSet};

/// The requested parts of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked<'a> {
    pub spec_drift: bool,
    pub acceptance: bool,
    /// Pending observations.
    pub observations: &'a BTreeSet<String>,
}

impl JudgeResult {
    /// Checks whether the verdict is usable. It may only decide on pending observations, on each in
    /// one way. A pass must cover every requested part and agree with its own details, because a
    /// missing part was not judged. A failure is always usable, since the next judge is asked about
    /// everything again.
    ///
    /// # Errors
    /// The reason why it is unusable, for the prompt of the next attempt.
    pub fn settled(&self, asked: Asked<'_>) -> Result<(), VerdictError> {
        self.triages(asked.observations)?;
        if !self.passed() {
            return Ok(());
        }
        let lacking = [
            ("specDrift", asked.spec_drift && self.spec_drift.is_none()),
            ("acceptance", asked.acceptance && self.acceptance.is_none()),
        ];
        if let Some((name, _)) = lacking.into_iter().find(|(_, lacking)| *lacking) {
            return Err(VerdictError::PartMissing(name));
        }
        self.agrees()
    }

    /// Returns the work that a pass names in spite of being one. Such a verdict still is a pass
    /// (contract.md, "Variables every agent gets"), but it may be a mistake, so it is requested
    /// once more.
    pub fn spare_work(&self) -> Option<String> {
        let titles = self.new_beads.iter().map(|bead| cut(&bead.title, 80));
        (self.passed() && !self.new_beads.is_empty())
            .then(|| format!("it reports no fault, but `newBeads` has work: {}", Names::of(titles)))
    }

    /// Checks that the verdict decides on pending observations only. Otherwise the judge could
    /// close a bead that is being worked on.
    fn triages(&self, waiting: &BTreeSet<String>) -> Result<(), VerdictError> {
        let mut said: BTreeMap<&str, &str> = BTreeMap::new();
        for one in &self.observations {
            let (id, action) = (one.bead_id.as_str(), one.action.as_str());
            if !waiting.contains(id) {
                let waiting = Names::of(waiting.iter().cloned());
                return Err(VerdictError::NotWaiting { id: cut(id, 80), waiting });
            }
            let before = said.insert(id, action).filter(|before| *before != action);
            if let Some(before) = before {
                let [id, before, action] = [id, before, action].map(String::from);
                return Err(VerdictError::Contradicted { id, before, action });
            }
        }
        Ok(())
    }

    /// Checks that a pass agrees with its details. It may name minor issues.
    fn agrees(&self) -> Result<(), VerdictError> {
        if let Some(issue) = self.issues().iter().find(|issue| issue.severity != "minor") {
            let named = [&issue.section, &issue.description].map(|text| cut(text, 80)).join(": ");
            let severity = cut(&issue.severity, 20);
            return Err(VerdictError::IssueInPass { named, severity });
        }
        if let Some(failed) = self.criteria().iter().find(|criterion| !criterion.passed) {
            return Err(VerdictError::CriterionInPass(cut(&failed.criterion, 80)));
        }
        Ok(())
    }

    /// Checks that a pass decides on all pending observations.
    ///
    /// # Errors
    /// The observations that it leaves out.
    pub fn decides(&self, asked: Asked<'_>) -> Result<(), VerdictError> {
        let said: BTreeSet<&str> =
            self.observations.iter().map(|one| one.bead_id.as_str()).collect();
        let left: Vec<&str> =
            asked.observations.iter().map(String::as_str).filter(|id| !said.contains(id)).collect();
        match self.passed() && !left.is_empty() {
            true => Err(VerdictError::LeftOut(Names::of(left.into_iter().map(String::from)))),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec_run::judge::parse;
    use serde_json::{Value, json};

    static NOBODY: BTreeSet<String> = BTreeSet::new();
    const BOTH: Asked<'static> =
        Asked { spec_drift: true, acceptance: true, observations: &NOBODY };

    fn pass(with: Value) -> JudgeResult {
        let mut verdict = json!({
            "status": "success", "specDrift": {"detected": false, "issues": []},
            "acceptance": {"passed": true, "results": []}, "observations": [], "newBeads": [],
        });
        for (name, value) in with.as_object().into_iter().flatten() {
            verdict[name] = value.clone();
        }
        parse(&verdict.to_string()).expect("a verdict")
    }

    #[test]
    fn pass_needs_every_requested_part() {
        let settled = |text: &str, asked: Asked<'_>| parse(text).expect("a verdict").settled(asked);
        assert_eq!(pass(json!({})).settled(BOTH), Ok(()));
        let bare = r#"{"status":"success","newBeads":[{"title":"This must be done"}]}"#;
        let drift = r#"{"status":"success","specDrift":{"detected":false}}"#;
        let criteria = r#"{"status":"success","acceptance":{"passed":true}}"#;
        assert!(settled(bare, BOTH).is_err_and(|why| why.to_string().contains("specDrift")));
        assert!(settled(drift, BOTH).is_err_and(|why| why.to_string().contains("acceptance")));
        assert!(settled(criteria, BOTH).is_err_and(|why| why.to_string().contains("specDrift")));
        // Parts that were not requested may be missing.
        assert_eq!(settled(drift, Asked { acceptance: false, ..BOTH }), Ok(()));
        assert_eq!(settled(criteria, Asked { spec_drift: false, ..BOTH }), Ok(()));
        // A pass that names new work is still a pass.
        let spare = pass(json!({"newBeads": [{"title": "This may be done"}]}));
        assert!(
            spare.settled(BOTH).is_ok()
                && spare.spare_work().is_some_and(|why| why.contains("This may be done"))
        );
        assert_eq!(pass(json!({})).spare_work(), None);
        // A failure is always usable.
        let found = concat!(
            r#"{"status":"success","specDrift":{"detected":true},"newBeads":"#,
            r#"[{"title":"Mend it"}]}"#,
        );
        assert_eq!(settled(found, BOTH), Ok(()));
    }

    #[test]
    fn pass_that_contradicts_its_parts_is_rejected() {
        let issue = |severity: &str| {
            let issue =
                json!({"section": "Auth", "description": "no callback", "severity": severity});
            pass(json!({"specDrift": {"detected": false, "issues": [issue]}})).settled(BOTH)
        };
        for severity in ["critical", "major", "", "grave"] {
            assert!(
                issue(severity).is_err_and(|why| why.to_string().contains("Auth: no callback")),
                "{severity}"
            );
        }
        assert_eq!(issue("minor"), Ok(()), "what is minor may be named and be no drift");
        let failed =
            json!([{"criterion": "it says hello", "passed": false, "evidence": "it says bye"}]);
        let failed = pass(json!({"acceptance": {"passed": true, "results": failed}}));
        assert!(failed.settled(BOTH).is_err_and(|why| why.to_string().contains("it says hello")));
    }

    #[test]
    fn only_observations_that_wait_are_promoted_or_dismissed_and_each_in_one_way() {
        let waiting: BTreeSet<String> = ["o1", "o2"].map(String::from).into();
        let asked = Asked { observations: &waiting, ..BOTH };
        let says = |said: &[(&str, &str)]| {
            let said: Vec<Value> =
                said.iter().map(|(id, action)| json!({"beadId": id, "action": action})).collect();
            pass(json!({"observations": said}))
        };
        assert_eq!(
            says(&[("o1", "promote"), ("o2", "merge"), ("o1", "promote")]).settled(asked),
            Ok(())
        );
        for action in ["promote", "dismiss", "merge"] {
            let other = says(&[("coding", action)]).settled(asked);
            assert!(
                other.is_err_and(|why| why.to_string().contains("`coding`")
                    && why.to_string().contains("o1, o2")),
                "{action}"
            );
        }
        assert!(
            says(&[("o", "dismiss")])
                .settled(BOTH)
                .is_err_and(|why| why.to_string().contains("there are none"))
        );
        let both = says(&[("o1", "promote"), ("o1", "dismiss")]).settled(asked);
        assert!(both.is_err_and(|why| why.to_string().contains("promote and dismiss")));
        // Observations that a pass leaves out are reported separately, and do not make it unusable.
        assert!(
            says(&[("o1", "dismiss")])
                .decides(asked)
                .is_err_and(|why| why.to_string().contains("o2") && !why.to_string().contains("o1"))
        );
        assert_eq!(says(&[("o1", "dismiss"), ("o2", "dismiss")]).decides(asked), Ok(()));
        assert_eq!(
            says(&[("o1", "promote")]).decides(asked),
            Ok(()),
            "the next judge is asked again"
        );
    }
}
