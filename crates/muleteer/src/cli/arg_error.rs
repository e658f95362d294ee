//! Why the value of an option or argument is rejected. The command line's parser prints the text.

use muleteer_model::config::BadSpan;
use muleteer_model::task_list::outcome::BadStep;

/// An argument's value has a form or a meaning that is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArgError {
    #[error(transparent)]
    Span(#[from] BadSpan),
    #[error(transparent)]
    Step(#[from] BadStep),
    /// The value has another form than this one.
    #[error("expected {0}")]
    Wanted(&'static str),
    #[error("expected at least 1 second")]
    NoTime,
    #[error("expected 1 to 100 letters, digits and any of - _ . / : # @ +")]
    TaskId,
    #[error("expected an amount above 0, like 2.50")]
    Budget,
    #[error("expected one of {0}")]
    Category(String),
    #[error(
        "expected a command: a line for the shell, or a JSON list that begins with the program"
    )]
    NoCommand,
    #[error("`{0}` is not text: put each word of the list in quotes")]
    NotAWord(serde_json::Value),
    /// A variable that Muleteer sets for each agent.
    #[error("muleteer sets {0} itself: omit it")]
    OwnVariable(String),
}
