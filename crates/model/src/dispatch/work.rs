//! The work in an agent's clone at the end of its dispatch: what was fetched, and where the rest
//! is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// The work that the clone of a dispatch held at its end, and where in the person's repository it
/// is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default, JsonSchema)]
pub struct WorkHome {
    /// The branch of the commits. Without commits, the name that the branch would have had.
    pub branch: String,
    /// The tip of that branch; null if no commit was fetched.
    pub commit: Option<String>,
    /// The number of commits that the agent made. Events of earlier versions do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commits: Option<u32>,
    /// Work that is on no branch: uncommitted changes, stashes and other branches, as refs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<LeftWork>,
    /// Work that was not fetched and is only in the clone, with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// The reason why commits could not be fetched. They are only in the clone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Work that an agent did not leave on its branch, stored as a ref in the person's repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default, JsonSchema)]
pub struct LeftWork {
    /// The full name of the ref.
    #[serde(rename = "ref")]
    pub name: String,
    /// The work, for people: `uncommitted changes in 3 files`, `branch feature`, `stash`.
    pub what: String,
}

impl WorkHome {
    /// Whether there is nothing that a person may want.
    pub fn is_nothing(&self) -> bool {
        let commits = self.commit.is_some() && self.commits != Some(0);
        !commits && self.left.is_empty() && self.skipped.is_empty() && self.trouble.is_none()
    }

    /// Describes on one line what was fetched and where it is. Names `clone` if some work is only
    /// there.
    pub fn describe(&self, clone: Option<&str>) -> String {
        let mut text = match (&self.commit, self.commits, &self.trouble) {
            (_, _, Some(why)) => format!("failed to fetch the commits: {why}"),
            (None, ..) | (_, Some(0), _) => "no commits".to_string(),
            (Some(_), None, _) => format!("branch {}", self.branch),
            (Some(_), Some(count), _) => {
                format!(
                    "branch {} with {count} commit{}",
                    self.branch,
                    if count == 1 { "" } else { "s" }
                )
            }
        };
        for left in &self.left {
            let _ = write!(text, "; {} at {}", left.what, left.name);
        }
        if !self.skipped.is_empty() {
            let _ = write!(text, "; not fetched: {}", self.skipped.join(", "));
        }
        if let Some(clone) = clone.filter(|_| self.trouble.is_some() || !self.skipped.is_empty()) {
            let _ = write!(text, "; the clone remains at {clone}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describe_names_each_place_of_work() {
        let none = WorkHome { branch: "muleteer/a".into(), ..WorkHome::default() };
        assert_eq!((none.describe(Some("/c")).as_str(), none.is_nothing()), ("no commits", true));
        let some = WorkHome { commit: Some("1".into()), commits: Some(1), ..none.clone() };
        assert_eq!(some.describe(Some("/c")), "branch muleteer/a with 1 commit");
        assert!(!some.is_nothing());
        let old = WorkHome { commit: Some("1".into()), ..none.clone() };
        assert_eq!(old.describe(None), "branch muleteer/a");
        let left = LeftWork { name: "refs/x".into(), what: "stash".into() };
        let left =
            WorkHome { left: vec![left], skipped: vec!["big (9 GiB)".into()], ..none.clone() };
        let told = "no commits; stash at refs/x; not fetched: big (9 GiB); the clone remains at /c";
        assert_eq!((left.describe(Some("/c")).as_str(), left.is_nothing()), (told, false));
        let lost = WorkHome { trouble: Some("disk full".into()), ..none };
        let told = "failed to fetch the commits: disk full; the clone remains at /c";
        assert_eq!((lost.describe(Some("/c")).as_str(), lost.is_nothing()), (told, false));
    }

    #[test]
    fn events_of_earlier_versions_load() {
        let old: WorkHome =
            serde_json::from_str(r#"{"branch":"b","commit":null}"#).expect("an old event");
        assert_eq!(old, WorkHome { branch: "b".into(), ..WorkHome::default() });
    }
}
