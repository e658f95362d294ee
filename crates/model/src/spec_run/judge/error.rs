//! Why a verdict is not usable. The text goes into the prompt of the next attempt.

use std::fmt;

/// The most ids and titles in one error message.
const NAMED: usize = 20;

/// Why the output of a judge has no usable verdict. Texts of parsers are kept as text, because a
/// verdict is stored, compared and requested again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerdictError {
    #[error("it printed no verdict")]
    NothingPrinted,
    #[error("it contains no JSON object that is a verdict")]
    NotFound,
    #[error("it has {length} bytes: the limit is {limit}")]
    TooLong { length: usize, limit: usize },
    #[error("too many parts of it look like JSON and are not")]
    TooMuchBroken,
    #[error("it is cut off: {0}")]
    CutOff(String),
    #[error("it is not JSON: {0}")]
    NoJson(String),
    /// The JSON is not of the requested shape.
    #[error("{0}")]
    Shape(String),
    #[error("`specDrift` and `acceptance` are missing")]
    NoParts,
    #[error("`status` is missing: success, failure or timeout")]
    NoStatus,
    #[error("it has {0} verdicts in one object")]
    Several(usize),
    #[error("`status` is `{0}`: expected success, failure or timeout")]
    OddStatus(String),
    #[error("the `action` of an observation is `{0}`: expected promote, dismiss or merge")]
    OddAction(String),
    #[error("a new bead has no title")]
    Untitled,
    #[error("it has too many findings: {0}")]
    TooManyFindings(usize),
    #[error("`{0}` is missing: the verdict must have it")]
    PartMissing(&'static str),
    #[error(
        "`observations` names `{id}`, which is not an open observation ({}): put other work into \
         `newBeads`",
        those(.waiting)
    )]
    NotWaiting { id: String, waiting: Names },
    #[error("`observations` has both {before} and {action} for `{id}`: give one of them")]
    Contradicted { id: String, before: String, action: String },
    #[error(
        "`specDrift` is not detected, but has an issue that is not minor ({named}; severity: \
         {severity}): correct one of the two"
    )]
    IssueInPass { named: String, severity: String },
    #[error(
        "`acceptance` has passed, but one of its criteria has not ({0}): correct one of the two"
    )]
    CriterionInPass(String),
    #[error("`observations` lacks {0}: decide on each observation")]
    LeftOut(Names),
    /// A pass names new work.
    #[error("{0}; report a fault in `specDrift` or `acceptance`, or leave `newBeads` empty")]
    SpareWork(String),
}

/// Ids or titles, of which a message shows the first few.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names(Vec<String>);

impl Names {
    pub(super) fn of(names: impl Iterator<Item = String>) -> Self {
        let mut names: Vec<String> = names.take(NAMED + 1).collect();
        if names.len() > NAMED {
            names[NAMED] = "…".into();
        }
        Self(names)
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

fn those(names: &Names) -> String {
    match names.0.is_empty() {
        true => "there are none".into(),
        false => format!("those are {names}"),
    }
}
