//! Checks HEAD when a task ends: it must be where it began, with the task's base commit in its
//! history. An agent that checks out another branch or rewrites the history may still pass the
//! validation. But the user looks for the work on their own branch, and for their own commits
//! there.

use crate::text::commit_hash::short;

/// The expected position of HEAD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stand {
    /// Any position: in a worker's clone, or in a session of an agent's own.
    Anywhere,
    /// On this branch.
    On(String),
    /// On no branch.
    Detached,
}

impl Stand {
    /// Returns the current position, on this branch or on none.
    pub fn of(branch: Option<String>) -> Self {
        branch.map_or(Self::Detached, Self::On)
    }

    /// Returns whether HEAD on this branch (or on none) is at the expected position.
    pub fn is_at(&self, branch: Option<&str>) -> bool {
        match self {
            Self::Anywhere => true,
            Self::On(wanted) => branch == Some(wanted.as_str()),
            Self::Detached => branch.is_none(),
        }
    }
}

/// Returns how the position of HEAD differs from the expected one. `has_base` means that the task's
/// base commit is HEAD or in its history.
pub fn astray(wanted: &Stand, branch: Option<&str>, base: &str, has_base: bool) -> Option<String> {
    if !wanted.is_at(branch) {
        let found =
            branch.map_or_else(|| "detached".to_string(), |branch| format!("on branch `{branch}`"));
        let began = match wanted {
            Stand::On(wanted) => format!("began on `{wanted}`, and its commits must be there"),
            _ => "began with HEAD detached, and HEAD must stay detached".to_string(),
        };
        return Some(format!("the agent left HEAD {found}; the task {began}"));
    }
    let lost = *wanted != Stand::Anywhere && !has_base;
    lost.then(|| {
        let base = short(base);
        format!(
            "the agent removed commit {base} from HEAD's history; the task began there, and its \
             commits must follow it"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_must_stay_on_the_branch_and_after_the_base() {
        let on = |name: &str| Stand::On(name.into());
        for (wanted, branch, has_base, said) in [
            (on("main"), Some("main"), true, None),
            (Stand::Detached, None, true, None),
            (Stand::Anywhere, Some("side"), false, None),
            (
                on("main"),
                Some("side"),
                true,
                Some("HEAD on branch `side`; the task began on `main`"),
            ),
            (on("main"), None, true, Some("HEAD detached; the task began on `main`")),
            (
                Stand::Detached,
                Some("side"),
                true,
                Some("HEAD on branch `side`; the task began with HEAD detached"),
            ),
            (on("main"), Some("main"), false, Some("removed commit abc from HEAD's history")),
            (Stand::Detached, None, false, Some("removed commit abc from HEAD's history")),
        ] {
            let found = astray(&wanted, branch, "abc", has_base);
            let fits = match said {
                Some(said) => found.as_ref().is_some_and(|found| found.contains(said)),
                None => found.is_none(),
            };
            assert!(fits, "{wanted:?} {branch:?} {has_base}: {found:?}");
        }
        assert_eq!(
            (Stand::of(None), Stand::of(Some("main".into()))),
            (Stand::Detached, on("main"))
        );
    }
}
