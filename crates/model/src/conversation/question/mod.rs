//! Questions: everything that an agent, a run or a thread waits for and a person answers.
//!
//! ```text
//!            the first answer          an agent took it
//!   open ───────────────────▶ answered ────────────────▶ delivered
//!    │                           └── nobody can take it ─▶ undeliverable (reason)
//!    ├── its deadline passed ──▶ expired (the default counts as the answer)
//!    └── nobody waits for it ──▶ withdrawn (reason)
//! ```
//!
//! The log has one owner of each fact. The events `permission_*` of a dispatch carry the requests
//! of agent CLIs, also in logs of older versions; the events `question_*` carry all other
//! questions. Both become a [`Question`] in [`fold::Questions`].
//!
//! - [`event`]: the content of the events, and the types that the entity shares with them;
//! - [`entity`]: one question;
//! - [`answer`]: the reading of a person's words as an answer;
//! - [`fold`]: all questions;
//! - [`sign_off`]: the sign-off of a spec.

pub mod answer;
pub mod entity;
pub mod event;
pub mod fold;
pub mod sign_off;
pub mod step;

pub use answer::as_answer;
pub use entity::Question;
pub use event::{Answer, AnsweredBy, Choice, Kind, QuestionAnswered, QuestionAsked, State};

/// The most bytes of a question's text.
pub const TEXT_LIMIT: usize = 16 * 1024;
/// The most bytes of an answer's text.
pub const ANSWER_LIMIT: usize = 16 * 1024;
/// The most options of a question.
pub const MOST_OPTIONS: usize = 32;
/// The most open questions of one dispatch.
pub const MOST_OPEN: usize = crate::agent::ask::MOST_OPEN;
/// The most closed questions that the daemon keeps; the log has all of them.
pub const MOST_CLOSED: usize = 1000;
