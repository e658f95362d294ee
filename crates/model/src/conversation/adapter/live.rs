//! The items for an adapter about work that goes on, as pure state machines.
//!
//! No record owes these items. They are lossy on purpose: a newer one replaces one that was not
//! given yet, a failed one is not repeated, and a connection that ends takes them along. Nothing
//! depends on them: the last text of a turn is an item of the [outbox](super::outbox).

use crate::conversation::event::State;

/// The most bytes of a turn's text that are streamed. The item at its end has the whole text.
pub const STREAM_LIMIT: usize = 64 * 1024;
/// The most bytes of one piece.
pub const PIECE_LIMIT: usize = 16 * 1024;

/// Returns the key of the stream of a turn.
pub fn stream_key(thread: &str, dispatch: &str, turn: u32) -> String {
    format!("{thread}/stream/{dispatch}/{turn}")
}

/// Returns the mark of an inbound message, which a reaction shows.
pub fn mark(state: State) -> &'static str {
    match state {
        State::Accepted | State::Queued => "received",
        State::Delivered | State::Read => "working",
        State::Answered | State::Recorded | State::Sent | State::Posted => "done",
        State::Refused | State::Unknown | State::Newer => "failed",
    }
}

/// A value that is given when it has changed. Only the newest one counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Latest<T> {
    wanted: Option<T>,
    given: Option<T>,
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self { wanted: None, given: None }
    }
}

impl<T: Clone + PartialEq> Latest<T> {
    /// Notes the present value.
    pub fn want(&mut self, value: T) {
        self.wanted = Some(value);
    }

    /// Whether the present value was not given yet.
    pub fn is_due(&self) -> bool {
        self.wanted.is_some() && self.wanted != self.given
    }

    /// Returns the present value unless it was given already.
    pub fn take_due(&mut self) -> Option<T> {
        if !self.is_due() {
            return None;
        }
        self.given.clone_from(&self.wanted);
        self.given.clone()
    }
}

/// The text of the turns of one agent, as a connection streams it.
///
/// ```text
///  skipped (began before the connection) ── turn ends ──▶ waiting ◀──┐
///                                              text │                │ turn ends
///                                                   ▼                │
///                                      growing: piece ⇄ acknowledged ┘
///                                           └── failed: nothing more of this turn
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// The number of the newest turn whose end was read.
    past: u32,
    /// The turn that is read now began before this connection.
    skips: bool,
    text: String,
    /// A text block has ended, and further text begins another one.
    block_ended: bool,
    /// So many bytes are acknowledged.
    shown: usize,
    /// The end of the piece that is on its way.
    given: Option<usize>,
    place: Option<String>,
    failed: bool,
}

/// The next piece of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The bytes of the turn's text before it.
    pub offset: usize,
    pub text: String,
    /// The place of the stream in the outside system.
    pub place: Option<String>,
}

impl Stream {
    /// Begins at the present output of an agent: in the turn `turns`, or after it.
    pub fn new(turns: u32, is_running: bool) -> Self {
        Self {
            past: if is_running { turns.saturating_sub(1) } else { turns },
            skips: is_running,
            text: String::new(),
            block_ended: false,
            shown: 0,
            given: None,
            place: None,
            failed: false,
        }
    }

    /// Adds text of the agent. Text over the limit is left out.
    pub fn add(&mut self, piece: &str) {
        if self.skips || self.text.len() >= STREAM_LIMIT {
            return;
        }
        if std::mem::take(&mut self.block_ended) && !self.text.is_empty() {
            self.text.push_str("\n\n");
        }
        let room = STREAM_LIMIT.saturating_sub(self.text.len());
        self.text.push_str(&piece[..piece.floor_char_boundary(room)]);
    }

    pub fn end_block(&mut self) {
        self.block_ended = true;
    }

    /// Notes the end of the turn. Its stream gets nothing more.
    pub fn end_turn(&mut self) {
        *self = Self::new(self.past + 1, false);
    }

    /// Follows the number of turns where all output was read and no turn runs: some processes end
    /// without an end of their turn.
    pub fn rest(&mut self, turns: u32) {
        if self.past != turns || self.skips {
            *self = Self::new(turns, false);
        }
    }

    /// Returns the next piece of the turn `running`. It is on its way until it is acknowledged.
    pub fn next(&mut self, running: u32) -> Option<Piece> {
        if !self.is_due(running) {
            return None;
        }
        let rest = &self.text[self.shown..];
        let piece = rest[..rest.floor_char_boundary(PIECE_LIMIT)].to_string();
        self.given = Some(self.shown + piece.len());
        Some(Piece { offset: self.shown, text: piece, place: self.place.clone() })
    }

    /// Whether a piece of the turn `running` can be given.
    pub fn is_due(&self, running: u32) -> bool {
        let is_present = !self.skips && running == self.past + 1;
        is_present && !self.failed && self.given.is_none() && self.shown < self.text.len()
    }

    /// Notes the acknowledgement of a piece of the turn `turn`.
    pub fn acknowledged(&mut self, turn: u32, place: Option<String>) {
        if turn != self.past + 1 {
            return;
        }
        if let Some(end) = self.given.take() {
            self.shown = end;
            self.place = place.or(self.place.take());
        }
    }

    /// Notes that the outside system did not take a piece of the turn `turn`.
    pub fn failed(&mut self, turn: u32) {
        if turn == self.past + 1 {
            (self.failed, self.given) = (true, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_turn_join_to_its_text() {
        let mut stream = Stream::new(0, false);
        stream.add("one ");
        stream.add("two");
        assert_eq!(stream.next(2), None, "another turn runs");
        let first = stream.next(1).expect("a piece");
        assert_eq!((first.offset, first.text.as_str(), first.place), (0, "one two", None));
        stream.add(" three");
        assert_eq!(stream.next(1), None, "one piece is on its way");
        stream.acknowledged(1, Some("7".into()));
        stream.end_block();
        stream.add("four");
        let second = stream.next(1).expect("a piece");
        assert_eq!((second.offset, second.text.as_str()), (7, " three\n\nfour"));
        assert_eq!(second.place.as_deref(), Some("7"));
        stream.end_turn();
        stream.acknowledged(1, Some("7".into()));
        stream.add("next");
        let next = stream.next(2).expect("a piece");
        assert_eq!((next.offset, next.text.as_str(), next.place), (0, "next", None));
    }

    #[test]
    fn turn_that_began_before_the_connection_is_not_streamed() {
        let mut stream = Stream::new(3, true);
        stream.add("the end of a text");
        assert_eq!(stream.next(3), None);
        stream.end_turn();
        stream.add("whole");
        assert_eq!(
            (stream.next(3), stream.next(4).map(|piece| piece.text)),
            (None, Some("whole".into()))
        );
        stream.rest(9);
        stream.add("later");
        assert!(!stream.is_due(4) && stream.is_due(10));
    }

    #[test]
    fn stream_is_bounded_and_ends_with_a_failure() {
        let mut stream = Stream::new(0, false);
        for _ in 0..100 {
            stream.add(&"ä".repeat(5000));
        }
        let mut seen = 0;
        while let Some(piece) = stream.next(1) {
            assert!(piece.text.len() <= PIECE_LIMIT && piece.offset == seen);
            seen += piece.text.len();
            stream.acknowledged(1, None);
        }
        assert_eq!(seen, STREAM_LIMIT);
        let mut stream = Stream::new(0, false);
        stream.add("text");
        assert!(stream.next(1).is_some());
        stream.failed(1);
        stream.add("more");
        assert!(!stream.is_due(1));
    }

    #[test]
    fn only_the_newest_value_is_given_and_once() {
        let mut latest = Latest::default();
        assert_eq!(latest.take_due(), None);
        latest.want(1);
        latest.want(2);
        assert_eq!((latest.take_due(), latest.take_due()), (Some(2), None));
        latest.want(2);
        assert_eq!(latest.take_due(), None);
    }
}
