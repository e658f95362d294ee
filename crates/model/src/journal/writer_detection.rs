//! Decides whether another program is writing a journal's file, and what Muleteer may do to the
//! file.
//!
//! ```text
//!  written (by another)        closed, or replaced by another file
//!        ┌──────────── At it ────────────┐
//!        │     Muleteer does not         │
//!        │     change the file           ▼
//!      Nobody ◀──────────────────────────┘    missing lines at its end are appended at once;
//!                                             it is replaced after a while without any change
//! ```
//!
//! A program that rewrites a file in place (`cat new > file`) empties it first. If the file were
//! replaced at that moment, the program would write the rest to a file without a name.

use std::time::Duration;

/// A file without changes for this long may be replaced.
pub const STILL: Duration = Duration::from_millis(200);
/// A file without changes for this long may be replaced if no event of it was reported yet. Another
/// program may have opened it before the daemon watched it, or the system reports no events.
pub const STILL_UNTOLD: Duration = Duration::from_secs(2);

/// The file system's events for one file since the last query. The size is bounded for any number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Touches {
    closes: u32,
    /// Written, and not closed since.
    written: bool,
    renamed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Touch {
    Written,
    /// Closed by a process that had it open for writing.
    Closed,
    /// Another file has the name now, or none has.
    Renamed,
}

impl Touches {
    pub fn add(&mut self, touch: Touch) {
        match touch {
            Touch::Written => self.written = true,
            Touch::Closed => (self.closes, self.written) = (self.closes.saturating_add(1), false),
            Touch::Renamed => (self.renamed, self.written) = (true, false),
        }
    }
}

/// The change that the file needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    Nothing,
    /// Only lines at its end are missing.
    Append,
    Replace,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Nothing,
    Append,
    Replace,
    /// Check again after [`Hand::patience`].
    Later,
    /// Wait until the writer closes the file, or until its agent ends.
    Wait,
}

/// The state of the other writers of one file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hand {
    at_it: bool,
    /// Closes by Muleteer that were not reported yet.
    own: u32,
    /// An event was reported since the file is watched.
    told: bool,
}

impl Need {
    /// Returns what a file needs that is `complete` or not, and in which the missing lines only
    /// follow (`appends`) or not. A file that `shrank` since Muleteer left it is being rewritten:
    /// the writer has emptied it, perhaps before the system reports that. Lines that are appended
    /// at once would be in the middle of what is being written.
    pub fn of(complete: bool, appends: bool, shrank: bool) -> Self {
        match (complete, appends && !shrank) {
            (true, _) => Self::Nothing,
            (false, true) => Self::Append,
            (false, false) => Self::Replace,
        }
    }
}

impl Hand {
    /// Returns whether another writer has written to the file and not closed it.
    pub fn is_at_it(&self) -> bool {
        self.at_it
    }

    /// Records reported events. `ours` means that the file is as Muleteer left it, so no other
    /// writer has changed it since.
    pub fn touched(&mut self, touches: Touches, ours: bool) {
        self.told |= touches != Touches::default();
        let own = self.own.min(touches.closes);
        self.own -= own;
        if ours || touches.renamed || touches.closes > own {
            self.at_it = false;
        }
        if touches.written && !ours {
            self.at_it = true;
        }
    }

    /// Records that Muleteer has appended to the file and closed it.
    pub fn appended(&mut self) {
        self.own = self.own.saturating_add(1);
    }

    /// Records that watching has begun: all later events are reported, and no earlier close is.
    pub fn watched(&mut self) {
        (self.own, self.told) = (0, false);
    }

    /// Returns how long the file must be unchanged before it may be replaced.
    pub fn patience(&self) -> Duration {
        if self.told { STILL } else { STILL_UNTOLD }
    }

    /// Records that the agent and all its processes have ended.
    pub fn left(&mut self) {
        *self = Self { told: self.told, ..Self::default() };
    }

    /// Decides on a needed change. `still` means that the file was unchanged for
    /// [`Self::patience`]; `alone` means that there is no agent, not yet or no longer.
    pub fn act(&self, need: Need, still: bool, alone: bool) -> Act {
        match need {
            Need::Nothing => Act::Nothing,
            Need::Append if alone || !self.at_it => Act::Append,
            Need::Replace if alone || (still && !self.at_it) => Act::Replace,
            Need::Append | Need::Replace if self.at_it => Act::Wait,
            Need::Append | Need::Replace => Act::Later,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Touch::{Closed, Renamed, Written};

    fn told(hand: &mut Hand, touches: &[Touch], ours: bool) {
        let mut all = Touches::default();
        touches.iter().for_each(|touch| all.add(*touch));
        hand.touched(all, ours);
    }

    #[test]
    fn nothing_is_put_into_a_file_that_is_being_written() {
        let mut hand = Hand::default();
        // Regardless of how long it is unchanged, and whether it was emptied or grew.
        for touches in [&[Written][..], &[Written, Written], &[]] {
            told(&mut hand, touches, false);
            for need in [Need::Append, Need::Replace] {
                assert_eq!(hand.act(need, true, false), Act::Wait);
            }
        }
        told(&mut hand, &[Closed], false);
        assert_eq!(hand.act(Need::Append, false, false), Act::Append);
        assert_eq!(hand.act(Need::Replace, false, false), Act::Later);
        assert_eq!(hand.act(Need::Replace, true, false), Act::Replace);
        assert_eq!(hand.act(Need::Nothing, true, false), Act::Nothing);
    }

    #[test]
    fn finished_rewrite_does_not_delay_appends() {
        let mut hand = Hand::default();
        told(&mut hand, &[Written, Written, Closed], false);
        assert_eq!(hand.act(Need::Append, false, false), Act::Append);
        told(&mut hand, &[Written, Closed, Written], false);
        assert_eq!(hand.act(Need::Append, false, false), Act::Wait, "the next has begun");
        told(&mut hand, &[Renamed], false);
        assert_eq!(
            hand.act(Need::Append, false, false),
            Act::Append,
            "an editor has put another in its place"
        );
    }

    #[test]
    fn own_writes_are_not_foreign_writes() {
        let mut hand = Hand::default();
        hand.appended();
        told(&mut hand, &[Written], true);
        told(&mut hand, &[Closed], true);
        assert_eq!((hand.at_it, hand.own), (false, 0));
        // Another writer begins after Muleteer's write, before that was reported.
        hand.appended();
        told(&mut hand, &[Written], false);
        told(&mut hand, &[Closed], false);
        assert_eq!(hand.act(Need::Append, true, false), Act::Wait, "it was our own close");
        told(&mut hand, &[Written, Closed], false);
        assert_eq!((hand.at_it, hand.own), (false, 0));
    }

    /// An adopted agent may be in the middle of a rewrite whose events were missed.
    #[test]
    fn file_without_events_gets_a_longer_wait() {
        let mut hand = Hand::default();
        assert_eq!(hand.patience(), STILL_UNTOLD);
        told(&mut hand, &[], false);
        assert_eq!(hand.patience(), STILL_UNTOLD);
        told(&mut hand, &[Closed], false);
        assert_eq!(hand.patience(), STILL);
        hand.left();
        assert_eq!(hand.patience(), STILL, "what was told is known still");
        hand.watched();
        assert_eq!(hand.patience(), STILL_UNTOLD, "it is watched anew");
    }

    /// The journal exists before it is watched.
    #[test]
    fn missing_event_for_an_own_close_is_not_awaited() {
        let mut hand = Hand::default();
        hand.appended();
        hand.watched();
        told(&mut hand, &[Written], false);
        told(&mut hand, &[Closed], false);
        assert_eq!(hand.act(Need::Append, false, false), Act::Append, "it was not ours");
    }

    #[test]
    fn file_that_shrank_is_not_appended_to_until_it_is_still() {
        let hand = Hand::default();
        let need = Need::of(false, true, true);
        assert_eq!(hand.act(need, false, false), Act::Later);
        assert_eq!(hand.act(need, true, false), Act::Replace);
        assert_eq!(hand.act(Need::of(false, true, false), false, false), Act::Append);
        assert_eq!(hand.act(Need::of(true, false, true), true, false), Act::Nothing);
    }

    #[test]
    fn dead_agent_is_not_awaited() {
        let mut hand = Hand::default();
        told(&mut hand, &[Written], false);
        assert_eq!(hand.act(Need::Replace, false, true), Act::Replace);
        hand.left();
        assert_eq!(hand.act(Need::Append, false, false), Act::Append);
    }
}
