//! Selects the mode of a session (Agent Client Protocol) that a policy needs.
//!
//! The modes of an agent define what it does without asking. An agent that starts in a mode of its
//! own choice obeys no policy, or a stricter one than was meant. So the mode is set before the
//! first prompt.

use crate::agent::permission::{PermissionMode, Policy};
use crate::agent::vocabulary;
pub use crate::agent::vocabulary::is_unasking;
use serde::{Deserialize, Serialize};

/// The modes that an agent offers for its session.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Modes {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    pub offered: Vec<String>,
    /// The method that sets a mode, as the backend encodes it.
    pub by: String,
}

/// The action for the mode of a session that was just opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    Keep,
    /// Set `mode`. With `otherwise`, set that one if the agent refuses the first.
    Set {
        mode: String,
        otherwise: Option<String>,
    },
    /// No mode that the agent offers asks before it acts.
    Impossible {
        current: String,
    },
}

const DEFAULT: &str = "default";
const BYPASS: &str = "bypassPermissions";
const PLAN: &str = "plan";

/// Returns the mode that `policy` needs. In a `loaded` session the mode is set even if the agent
/// reports it as current. Some agents report it before they have reported the session's past; the
/// answer to the request comes after that past.
pub fn wanted(policy: &Policy, modes: &Modes, loaded: bool) -> Wanted {
    let offered = |mode: &str| modes.offered.iter().any(|known| known == mode);
    let current = modes.current.as_deref().unwrap_or_default();
    let set = |mode: &str, otherwise: Option<&str>| match mode == current && !loaded {
        true => Wanted::Keep,
        false => Wanted::Set { mode: mode.into(), otherwise: otherwise.map(String::from) },
    };
    if policy.is_open() {
        if offered(BYPASS) {
            return set(BYPASS, Some(DEFAULT).filter(|mode| offered(mode)));
        }
        // Under an open policy the agent may ask and is allowed. A mode that refuses by itself is
        // replaced by the default mode.
        return match matches!(current, "auto" | "dontAsk" | PLAN) && offered(DEFAULT) {
            true => set(DEFAULT, None),
            false => Wanted::Keep,
        };
    }
    if policy.permission_mode == Some(PermissionMode::Plan) && offered(PLAN) {
        return set(PLAN, None);
    }
    // `read-only` is a mode of Codex; another agent's mode of that name may forbid everything.
    let codex = offered("agent-full-access") || offered("full-access");
    let counts = |mode: &&str| offered(mode) && (*mode != "read-only" || codex);
    if let Some(mode) = vocabulary::asking().find(counts) {
        return set(mode, None);
    }
    match is_unasking(current) {
        true => Wanted::Impossible { current: current.into() },
        false => Wanted::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::permission::Mode;

    fn modes(current: &str, offered: &[&str]) -> Modes {
        let offered = offered.iter().map(|mode| (*mode).to_string()).collect();
        Modes { current: Some(current.into()), offered, by: "call".into() }
    }

    fn set(mode: &str, otherwise: Option<&str>) -> Wanted {
        Wanted::Set { mode: mode.into(), otherwise: otherwise.map(String::from) }
    }

    #[test]
    fn each_policy_gets_the_mode_it_needs_or_none() {
        let closed = |mode| Policy { mode, ..Policy::default() };
        let claude = ["default", "acceptEdits", "plan", "auto", "bypassPermissions"];
        let codex = ["read-only", "agent", "agent-full-access"];
        let gemini = ["default", "autoEdit", "yolo", "plan"];
        let goose = ["auto", "approve", "smart_approve", "chat"];
        let qwen = ["plan", "default", "auto-edit", "auto", "yolo"];
        let open = Policy::default();
        for (policy, current, offered, expected) in [
            (&open, "auto", &claude[..], set("bypassPermissions", Some("default"))),
            (&open, "bypassPermissions", &claude, Wanted::Keep),
            (&open, "auto", &claude[..4], set("default", None)),
            (&open, "agent-full-access", &codex, Wanted::Keep),
            (&open, "default", &gemini, Wanted::Keep),
            (&closed(Mode::Ask), "auto", &claude, set("default", None)),
            (&closed(Mode::Deny), "bypassPermissions", &claude, set("default", None)),
            (&closed(Mode::Deny), "default", &claude, Wanted::Keep),
            (&closed(Mode::Ask), "agent", &codex, set("read-only", None)),
            (&closed(Mode::Ask), "yolo", &gemini, set("default", None)),
            (
                &closed(Mode::Ask),
                "yolo",
                &["yolo", "auto"],
                Wanted::Impossible { current: "yolo".into() },
            ),
            (&closed(Mode::Ask), "act", &["plan", "act"], Wanted::Keep),
            (&closed(Mode::Ask), "auto", &goose, set("approve", None)),
            (&closed(Mode::Ask), "approve", &goose, Wanted::Keep),
            (&closed(Mode::Deny), "auto", &["auto", "smart_approve"], set("smart_approve", None)),
            (&open, "auto", &goose, Wanted::Keep),
            (&closed(Mode::Ask), "yolo", &qwen, set("default", None)),
            (&closed(Mode::Ask), "x#agent", &["x#agent", "x#autopilot"], Wanted::Keep),
            (
                &closed(Mode::Ask),
                "x#autopilot",
                &["x#autopilot"],
                Wanted::Impossible { current: "x#autopilot".into() },
            ),
        ] {
            assert_eq!(
                wanted(policy, &modes(current, offered), false),
                expected,
                "{current} of {offered:?}"
            );
        }
        assert_eq!(
            wanted(&closed(Mode::Ask), &modes("default", &gemini), true),
            set("default", None)
        );
        let plan = Policy { permission_mode: Some(PermissionMode::Plan), ..Policy::default() };
        assert_eq!(wanted(&plan, &modes("auto", &claude), false), set("plan", None));
        assert_eq!(wanted(&plan, &modes("agent", &codex), false), set("read-only", None));
    }
}
