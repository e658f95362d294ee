//! The permissions of a dispatch's agent and its place, as one line for people.

use crate::agent::permission::{Mode, PermissionMode, Policy};
use crate::event::Created;

impl Created {
    /// Describes what the agent may do without asking, where it works, and what confines it:
    /// `may do everything without asking, in /repo on the branch main, without a sandbox`.
    pub fn access(&self) -> String {
        format!("{}, {}, {}", may(&self.permissions), self.place(), sandbox(self.confined))
    }

    fn place(&self) -> String {
        let branch = self.branch.as_deref();
        match (&self.worktree, branch) {
            (Some(clone), Some(branch)) => {
                format!("in the clone {clone} (its commits come back as the branch {branch})")
            }
            (Some(clone), None) => format!("in the clone {clone}"),
            (None, _) if self.clone_of_its_own().is_some() => {
                format!("in the clone {}", self.project)
            }
            (None, Some(branch)) => {
                format!("in {} on the checked-out branch {branch}", self.project)
            }
            (None, None) => format!("in {}", self.project),
        }
    }
}

fn may(policy: &Policy) -> String {
    if policy.is_open() {
        return "may do everything without asking".into();
    }
    let mode = match policy.mode {
        Mode::Allow => "may do everything that no rule forbids or asks about",
        Mode::Ask if policy.allow.is_empty() => "may do nothing without asking",
        Mode::Ask => "may do without asking only what a rule allows",
        Mode::Deny if policy.allow.is_empty() && policy.ask.is_empty() => "may use no tool",
        Mode::Deny => "may do only what a rule allows",
    };
    let mut text = mode.to_string();
    if !policy.only.is_empty() {
        text.push_str(", with the tools of its role only");
    }
    let stricter = policy.permission_mode.filter(|mode| *mode != PermissionMode::BypassPermissions);
    if let Some(mode) = stricter {
        text.push_str(&format!(", in the permission mode {}", mode.as_str()));
    }
    if policy.is_held() {
        text.push_str(", and no more than the parent agent");
    }
    text
}

fn sandbox(confined: bool) -> &'static str {
    match confined {
        true => "in a sandbox with write access only there, to its HOME and to TMPDIR",
        false => "without a sandbox",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::permission::Rule;
    use crate::dispatch::tests::created;

    #[test]
    fn access_says_what_and_where() {
        let mut created = created();
        created.branch = Some("main".into());
        assert_eq!(
            created.access(),
            "may do everything without asking, in /p on the checked-out branch main, without a \
             sandbox"
        );
        created.branch = None;
        assert!(created.access().contains(", in /p, "), "{}", created.access());
        created.branch = Some("muleteer/a".into());
        created.worktree = Some("/p/.muleteer/worktrees/a".into());
        created.confined = true;
        created.permissions.mode = Mode::Ask;
        assert_eq!(
            created.access(),
            "may do nothing without asking, in the clone /p/.muleteer/worktrees/a (its commits \
             come back as the branch muleteer/a), in a sandbox with write access only there, to \
             its HOME and to TMPDIR"
        );
        created.permissions.mode = Mode::Deny;
        assert!(created.access().starts_with("may use no tool, "), "{}", created.access());
        created.permissions.allow = vec![Rule::try_from("Read".to_string()).expect("a rule")];
        assert!(created.access().starts_with("may do only what a rule allows, "));
    }
}
