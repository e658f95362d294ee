//! Meetings: several roles and people in one thread, and a chair that gives turns.
//!
//! ```text
//!                 meeting_turn                 the message of the turn is final
//!   talking ─────────────────────▶ a turn ─────────────────────▶ talking
//!      │   (its message is accepted   │        meeting_turn_done
//!      │    in the same batch)        └─ the time limit passed: the turn is lost
//!      │ meeting_ending: a limit, the chair, a person, or every role failed
//!      ▼
//!   ending ──▶ a turn for the minutes ──▶ the file is written ──▶ ended
//!                                                    meeting_ended, with a message
//! ```
//!
//! The message of a turn is an ordinary message of the thread: `@ROLE …`, so its delivery survives
//! a kill as every delivery does. People's messages wait during the meeting for the next speaker,
//! who gets them in the prompt ([`prompt`]). A message that mentions a role with `@` gives it the
//! next turn, whatever the chair.
//!
//! - [`event`]: the content of the events;
//! - [`fold`]: the state of one meeting;
//! - [`of_thread`]: the meetings of a thread;
//! - [`limits`]: the bounds of meetings;
//! - [`step`]: the next events, as pure functions;
//! - [`speaker`]: who gets the next turn;
//! - [`prompt`]: the prompt of a turn;
//! - [`minutes`]: the document and the message at the end.

pub mod event;
pub mod fold;
pub mod limits;
pub mod minutes;
pub mod of_thread;
pub mod prompt;
pub mod speaker;
pub mod step;

pub use fold::{Chair, Meeting, Phase, Turn};
pub use limits::{
    MOST_LOST, MOST_MEETINGS, MOST_ROLES, MOST_TURNS, MOST_WRITERS, TOPIC_LIMIT, USUAL_LIMIT_S,
    USUAL_TURNS,
};

use crate::conversation::command;
use crate::conversation::route::OWN_KEY;
use crate::conversation::thread::{Message, Thread};

/// In front of the keys of the messages that give turns.
pub const PREFIX: &str = "meeting/";
/// The name of the author of the messages that give turns.
pub const NAME: &str = "meeting";

/// Whether a message waits for the next speaker of the meeting that is held in the thread. The
/// messages of the meeting itself, and those for a role outside of it, go their usual way.
pub(in crate::conversation) fn holds(thread: &Thread, message: &Message) -> bool {
    let Some(meeting) = thread.meeting() else { return false };
    // An answer to a question goes to the agent that asked it.
    let follows = message.key.as_ref().is_some_and(|key| key.starts_with(OWN_KEY));
    if follows || meeting.gave(&message.id) {
        return false;
    }
    command::addressed(&message.text).is_none_or(|(role, _)| meeting.has(role))
}
