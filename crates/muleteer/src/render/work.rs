//! Describes where the work of a run is, and the next step.

use crate::render::{clip, safe};
use muleteer_model::spec_run::Run;
use muleteer_model::spec_run::event::KeptWork;
use muleteer_model::spec_run::report::work_place::Whereabouts;
use std::fmt::Write;

/// The length at which the text about a problem is cut.
const TROUBLE: usize = 1000;

/// Lists the work of a run that did not pass, the branch that was pushed, and the next step. It is
/// empty for a run that is under way.
pub fn lines(run: &Run) -> String {
    let mut text = String::new();
    let Some(work) = Whereabouts::of(run) else { return text };
    if let Some(now) = &run.publication.preserved {
        let _ = writeln!(text, "  work      {}", kept(now));
        if let (Some(branch), Some(base)) = (&work.branch, &work.base) {
            let _ =
                writeln!(text, "            show it with git log {}..{}", safe(base), safe(branch));
        }
    }
    if let Some(clones) = &work.clones {
        let _ = writeln!(text, "  clones    {}: work that its agents did not push", safe(clones));
    }
    if let Some(branch) = &work.pushed {
        let _ = writeln!(text, "  pushed    {}", pushed(branch, work.page.as_deref()));
    }
    if let Some(why) = &work.pr_trouble {
        let _ = writeln!(text, "  warning   {}", clip(why, TROUBLE));
    }
    if let Some(next) = &work.next {
        let _ = writeln!(text, "  next step {}", safe(next));
    }
    text
}

pub fn kept(kept: &KeptWork) -> String {
    match (&kept.branch, &kept.trouble) {
        (_, Some(why)) => {
            format!("failed to fetch the work into the repository: {}", clip(why, TROUBLE))
        }
        (None, None) => "the run's branch has no commit".into(),
        (Some(branch), None) => {
            let count = kept.commits;
            format!(
                "branch {} with {count} commit{}, not passed",
                safe(branch),
                if count == 1 { "" } else { "s" }
            )
        }
    }
}

pub fn pushed(branch: &str, page: Option<&str>) -> String {
    match page {
        Some(page) => format!(
            "branch {} is at the remote: make a pull request at {}",
            safe(branch),
            safe(page)
        ),
        None => format!("branch {} is at the remote", safe(branch)),
    }
}
