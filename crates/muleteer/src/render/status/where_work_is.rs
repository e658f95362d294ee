//! The place of an agent's work after its end, with the commands that show and merge it.

use crate::render::{clip, safe};
use muleteer_protocol::v1::DispatchStatus;

/// Returns indented lines: where the work of a dispatch is, and how to view and merge it. An agent
/// that failed without a clone of its own may have left nothing, so its directory is not named.
pub fn lines(dispatch: &DispatchStatus) -> String {
    let repo = word(&dispatch.project);
    let Some(work) = &dispatch.work else {
        return match dispatch.state.as_str() {
            "success" | "partial" if dispatch.worktree.is_none() => format!(
                "\n  work: in {}\n  view: muleteer logs {}",
                safe(&dispatch.project),
                dispatch.id
            ),
            _ => String::new(),
        };
    };
    let mut text = format!("\n  work: {}", clip(&work.summary, 1000));
    let branch = work.branch.as_ref().filter(|_| work.commits != Some(0));
    if let Some(branch) = branch.filter(|_| work.trouble.is_none()) {
        let branch = word(branch);
        text.push_str(&format!("\n  view: git -C {repo} diff HEAD...{branch}"));
        text.push_str(&format!("\n  merge: git -C {repo} merge {branch}"));
    } else if let Some(left) = work.left.first() {
        text.push_str(&format!("\n  view: git -C {repo} show {}", word(&left.name)));
    }
    text
}

/// Returns a word for a shell, quoted where that is necessary.
pub fn word(text: &str) -> String {
    let text = safe(text);
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muleteer_protocol::v1::{LeftDoc, WorkDoc};

    fn dispatch(work: Option<WorkDoc>) -> DispatchStatus {
        DispatchStatus {
            id: "k3f9abcd".into(),
            project: "/home/u/my web".into(),
            state: "success".into(),
            work,
            ..DispatchStatus::default()
        }
    }

    #[test]
    fn work_of_a_clone_has_commands_to_view_and_merge() {
        let work = WorkDoc {
            branch: Some("muleteer/k3f9abcd".into()),
            commit: Some("1".into()),
            commits: Some(2),
            summary: "branch muleteer/k3f9abcd with 2 commits".into(),
            ..WorkDoc::default()
        };
        assert_eq!(
            lines(&dispatch(Some(work.clone()))),
            "\n  work: branch muleteer/k3f9abcd with 2 commits\
             \n  view: git -C '/home/u/my web' diff HEAD...muleteer/k3f9abcd\
             \n  merge: git -C '/home/u/my web' merge muleteer/k3f9abcd"
        );
        let left = LeftDoc { name: "refs/muleteer/x".into(), what: "stash".into() };
        let none = WorkDoc { branch: None, commits: Some(0), left: vec![left], ..work };
        let shown = lines(&dispatch(Some(none)));
        assert!(shown.ends_with("\n  view: git -C '/home/u/my web' show refs/muleteer/x"));
        assert!(!shown.contains("merge:"), "{shown}");
    }

    #[test]
    fn work_in_the_project_is_named_after_success_only() {
        assert_eq!(
            lines(&dispatch(None)),
            "\n  work: in /home/u/my web\n  view: muleteer logs k3f9abcd"
        );
        let failed = DispatchStatus { state: "failed".into(), ..dispatch(None) };
        assert_eq!(lines(&failed), "");
    }

    #[test]
    fn word_is_quoted_for_a_shell() {
        for (text, expected) in
            [("/a/b-c", "/a/b-c"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("", "''")]
        {
            assert_eq!(word(text), expected);
        }
    }
}
