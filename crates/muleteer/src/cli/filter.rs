//! The options that select dispatches: `--role`, `--project`, `--feature` and `--state`.

use muleteer_model::dispatch::Dispatch;
use muleteer_protocol::v1::DispatchStatus;
use std::path::Path;

/// The states of a dispatch, as `--state` takes them.
const STATES: [&str; 11] = [
    "queued", "starting", "running", "waiting", "idle", "stalled", "success", "partial", "failed",
    "blocked", "killed",
];

/// The selected dispatches. Values of one option are alternatives; different options all apply.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Filter {
    /// Only dispatches of this role; may be repeated
    #[arg(long, value_name = "ROLE")]
    role: Vec<String>,
    /// Only dispatches in this project: its directory, or that directory's name; may be repeated
    #[arg(long, value_name = "DIR")]
    project: Vec<String>,
    /// Only dispatches of this feature; may be repeated
    #[arg(long, value_name = "FEATURE")]
    feature: Vec<String>,
    /// Only dispatches in this state; may be repeated
    #[arg(long, value_name = "STATE", value_parser = STATES)]
    state: Vec<String>,
}

impl<'a> From<&'a Dispatch> for Facts<'a> {
    fn from(dispatch: &'a Dispatch) -> Self {
        Self {
            role: &dispatch.created.role,
            project: dispatch.created.project_name(),
            feature: &dispatch.created.feature,
            state: dispatch.state(),
        }
    }
}

impl<'a> From<&'a DispatchStatus> for Facts<'a> {
    fn from(dispatch: &'a DispatchStatus) -> Self {
        Self {
            role: &dispatch.role,
            project: &dispatch.project,
            feature: &dispatch.feature,
            state: &dispatch.state,
        }
    }
}

/// The properties of a dispatch that a [`Filter`] looks at.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    pub role: &'a str,
    pub project: &'a str,
    pub feature: &'a str,
    pub state: &'a str,
}

impl Filter {
    /// Whether no option was given.
    pub fn is_empty(&self) -> bool {
        [&self.role, &self.project, &self.feature, &self.state].iter().all(|list| list.is_empty())
    }

    pub fn selects<'a>(&self, facts: impl Into<Facts<'a>>) -> bool {
        let facts = facts.into();
        let named =
            |list: &[String], value: &str| list.is_empty() || list.iter().any(|one| one == value);
        named(&self.role, facts.role)
            && named(&self.feature, facts.feature)
            && named(&self.state, facts.state)
            && (self.project.is_empty()
                || self.project.iter().any(|wanted| is_project(wanted, facts.project)))
    }
}

/// Whether a user means the project at `path` by `wanted`: its directory, from here, or its name.
fn is_project(wanted: &str, path: &str) -> bool {
    let path = Path::new(path);
    if path.file_name().is_some_and(|name| name == wanted) {
        return true;
    }
    let absolute = std::path::absolute(wanted).unwrap_or_else(|_| wanted.into());
    // The daemon stores the path as the operating system resolves it.
    let real = std::fs::canonicalize(&absolute);
    absolute == path || real.is_ok_and(|real| real == path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FACTS: Facts<'_> =
        Facts { role: "tester", project: "/home/u/web", feature: "login", state: "running" };

    #[test]
    fn options_all_apply_and_values_are_alternatives() {
        let list = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let filter = |role: &[&str], state: &[&str]| Filter {
            role: list(role),
            state: list(state),
            ..Filter::default()
        };
        assert!(Filter::default().is_empty() && Filter::default().selects(FACTS));
        assert!(filter(&["developer", "tester"], &["running"]).selects(FACTS));
        assert!(!filter(&["tester"], &["queued"]).selects(FACTS));
        assert!(!filter(&["developer"], &[]).selects(FACTS));
        let feature = Filter { feature: list(&["logout"]), ..Filter::default() };
        assert!(!feature.selects(FACTS) && !feature.is_empty());
    }

    #[test]
    fn project_is_a_directory_or_its_name() {
        let folder = tempfile::tempdir().expect("a directory");
        let real = folder.path().canonicalize().expect("a path");
        let here = real.to_str().expect("utf-8");
        assert!(is_project("web", "/home/u/web") && is_project("/home/u/web", "/home/u/web"));
        assert!(is_project("/home/u/web/", "/home/u/web"));
        assert!(is_project(folder.path().to_str().expect("utf-8"), here));
        assert!(!is_project("we", "/home/u/web") && !is_project("u", "/home/u/web"));
    }
}
