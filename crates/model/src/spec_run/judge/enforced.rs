//! Whether the kernel enforces what a run promises about its judge (docs/guides/sandbox.md).

use crate::spec_run::event::RunSettings;
use serde::Serialize;

/// Every agent of a run shares one HOME that it may write, and the judge's CLI starts from there.
pub const SHARED_HOME: &str = "agents may write to HOME, from which the judge's CLI loads \
                               settings, hooks and instructions: files written there can run with \
                               the judge's rights, which include reading the criteria";
const ENFORCED: &str = "enforced";
const CHECKED: &str = "checked";

/// `enforced` is what the kernel guarantees; `checked` is only verified afterwards and can be
/// bypassed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Enforced {
    pub judge_read_only: &'static str,
    pub acceptance_hidden: &'static str,
    /// Why something is only `checked`; one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Enforced {
    pub fn of(settings: &RunSettings) -> Self {
        let Some(reason) = weakness(settings) else {
            return Self { judge_read_only: ENFORCED, acceptance_hidden: ENFORCED, reason: None };
        };
        Self { judge_read_only: CHECKED, acceptance_hidden: CHECKED, reason: Some(reason) }
    }
}

/// Returns how an agent could influence the judge or read the criteria; `None` if the kernel
/// prevents both.
fn weakness(settings: &RunSettings) -> Option<String> {
    let unconfined = Some(settings.unconfined.as_str()).filter(|reason| !reason.is_empty());
    if !settings.confined {
        return Some(unconfined.unwrap_or("the run's agents have no sandbox").into());
    }
    let exposed = Some(settings.exposed.as_str()).filter(|reason| !reason.is_empty());
    // This holds for all runs so far: agents renew their logins in HOME, so each of them may write
    // it.
    let reasons: Vec<&str> = unconfined.into_iter().chain(exposed).chain([SHARED_HOME]).collect();
    Some(reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(confined: bool, unconfined: &str, exposed: &str) -> Enforced {
        let mut settings = crate::spec_run::tests::play::settings();
        settings.confined = confined;
        (settings.unconfined, settings.exposed) = (unconfined.into(), exposed.into());
        Enforced::of(&settings)
    }

    /// A hook that a coding agent leaves in HOME runs with the judge, so nothing is enforced there.
    #[test]
    fn confined_run_with_shared_home_is_checked_with_the_reason() {
        let enforced = of(true, "", "");
        assert_eq!((enforced.judge_read_only, enforced.acceptance_hidden), ("checked", "checked"));
        assert_eq!(enforced.reason.as_deref(), Some(SHARED_HOME));
    }

    #[test]
    fn every_reason_of_a_checked_run_is_given() {
        let enforced = of(true, "the criteria are committed", "HOME is in the repository");
        let reason = enforced.reason.unwrap_or_default();
        assert_eq!(
            reason,
            format!("the criteria are committed; HOME is in the repository; {SHARED_HOME}")
        );
    }

    #[test]
    fn run_without_a_sandbox_reports_the_reason() {
        let enforced = of(false, "the configuration says `sandbox: off`", "");
        assert_eq!((enforced.judge_read_only, enforced.acceptance_hidden), ("checked", "checked"));
        assert_eq!(enforced.reason.as_deref(), Some("the configuration says `sandbox: off`"));
        assert!(of(false, "", "").reason.is_some(), "a run from before reasons were recorded");
    }
}
