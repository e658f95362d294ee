//! Whether the kernel enforces what a run promises about its judge (docs/guides/sandbox.md).

use crate::spec_run::event::RunSettings;
use serde::Serialize;

/// All agents of a run may write the person's HOME, and the judge's CLI starts from there.
pub const SHARED_HOME: &str = "agents may write to HOME, from which the judge's CLI loads \
                               settings, hooks and instructions: files written there can run with \
                               the judge's rights, which include reading the criteria";
/// The new program may not be a judge.
pub const CLI_CHANGED: &str = "the program of the judge's CLI changed during the run";
const ENFORCED: &str = "enforced";
const CHECKED: &str = "checked";
/// The mechanisms behind `enforced`, and their limit.
const MECHANISMS: &str = "user and mount namespaces with a root of their own, read-only mounts, a \
                          private HOME for each agent, and a judge without settings of others; the \
                          network is not limited";

/// `enforced` is what the kernel guarantees; `checked` is only verified afterwards and can be
/// bypassed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Enforced {
    pub judge_read_only: &'static str,
    pub acceptance_hidden: &'static str,
    /// Why something is only `checked`; one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The mechanisms that enforce it, if it is `enforced`; one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<&'static str>,
}

impl Enforced {
    pub fn of(settings: &RunSettings) -> Self {
        let Some(reason) = weakness(settings) else {
            return Self {
                judge_read_only: ENFORCED,
                acceptance_hidden: ENFORCED,
                reason: None,
                by: Some(MECHANISMS),
            };
        };
        let reason = Some(reason);
        Self { judge_read_only: CHECKED, acceptance_hidden: CHECKED, reason, by: None }
    }
}

/// Returns how an agent could influence the judge or read the criteria; `None` if the kernel
/// prevents both.
fn weakness(settings: &RunSettings) -> Option<String> {
    let unconfined = Some(settings.unconfined.as_str()).filter(|reason| !reason.is_empty());
    if !settings.confined {
        return Some(unconfined.unwrap_or("the run's agents have no sandbox").into());
    }
    let shared = if settings.private_home { "" } else { SHARED_HOME };
    let others = [settings.exposed.as_str(), shared, settings.weakened.as_str()];
    let others = others.into_iter().filter(|reason| !reason.is_empty());
    let reasons: Vec<&str> = unconfined.into_iter().chain(others).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
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

    #[test]
    fn run_with_private_homes_is_enforced_unless_something_weakens_the_sandbox() {
        let mut settings = crate::spec_run::tests::play::settings();
        (settings.confined, settings.private_home) = (true, true);
        let enforced = Enforced::of(&settings);
        assert_eq!((enforced.judge_read_only, enforced.reason), ("enforced", None));
        assert!(enforced.by.is_some_and(|by| by.contains("private HOME")));
        for (weakened, unconfined) in [("the agents run as root", ""), ("", "committed")] {
            (settings.weakened, settings.unconfined) = (weakened.into(), unconfined.into());
            let enforced = Enforced::of(&settings);
            assert_eq!((enforced.acceptance_hidden, enforced.by), ("checked", None));
            assert_eq!(enforced.reason, Some(format!("{weakened}{unconfined}")));
        }
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
