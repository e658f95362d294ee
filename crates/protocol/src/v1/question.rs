//! Questions: their documents as `questions --json` shows them.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One question (contract.md, "Questions").
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct QuestionDoc {
    pub id: String,
    /// `question`, `permission`, `approval`, `plan`, `sign_off` or `stall`.
    pub kind: String,
    /// `open`, `answered`, `delivered`, `undeliverable`, `expired` or `withdrawn`.
    pub state: String,
    pub dispatch_id: Option<String>,
    pub thread_id: Option<String>,
    /// The role of the agent that asks; `muleteer` for a question of Muleteer itself.
    pub asked_by: String,
    pub text: String,
    pub options: Vec<ChoiceDoc>,
    /// Several options may be chosen.
    pub multi: bool,
    /// A text is an answer too.
    pub free_text: bool,
    /// The exact action.
    pub detail: Value,
    pub default: Option<String>,
    /// RFC 3339.
    pub deadline: Option<String>,
    pub asked_at: String,
    pub answered_at: Option<String>,
    pub answered_by: Option<AnsweredByDoc>,
    pub answer: Option<AnswerDoc>,
    /// Why it is in this state; null if there is nothing to report.
    #[serde(default)]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct ChoiceDoc {
    pub id: String,
    pub label: String,
    pub description: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct AnsweredByDoc {
    pub adapter: String,
    pub user: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct AnswerDoc {
    pub options: Vec<String>,
    pub text: String,
}
