//! Decides about a shim that does not do what it was asked. Its own agent may have suspended it,
//! and then nobody would ever end either.
//!
//! It counts observations and reads no clock: a daemon that was itself suspended must not take its
//! own silence for the shim's.

use std::time::Duration;

/// The number of times that a stopped shim is continued. If it is found stopped once more, it is
/// killed.
pub const GO_ONS: u32 = 3;
/// The silence after which a shim is killed that was told to end its agent. A shim answers at once;
/// this limit allows for a very slow machine.
pub const SILENCE: Duration = Duration::from_secs(15);
/// The longest silence that one observation counts; more than this is the daemon's own absence.
const LONGEST: Duration = Duration::from_secs(5);

/// The observations of one shim since it last did what it was asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShimWatch {
    stopped: u32,
    silent: Duration,
    /// Whether each act (continue, kill) was already reported.
    told: (bool, bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    Nothing,
    /// Continue the shim (`SIGCONT`).
    GoOn {
        /// The act was not reported yet, and must be before the signal is sent.
        tell: bool,
    },
    /// Kill the shim, and its agent with it.
    Kill {
        why: Why,
        /// As in [`Act::GoOn`].
        tell: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    StoppedAgain,
    Silent,
}

impl ShimWatch {
    /// Decides about a shim that was asked for something and is found `stopped` or not. `silence`
    /// is the time since the last observation, if the shim was told to end its agent and has not
    /// answered yet.
    pub fn look(&mut self, stopped: bool, silence: Option<Duration>) -> Act {
        self.silent = silence.map_or(Duration::ZERO, |since| self.silent + since.min(LONGEST));
        let why = if stopped && self.stopped >= GO_ONS {
            Why::StoppedAgain
        } else if self.silent >= SILENCE {
            Why::Silent
        } else if stopped {
            self.stopped += 1;
            return Act::GoOn { tell: !std::mem::replace(&mut self.told.0, true) };
        } else {
            return Act::Nothing;
        };
        Act::Kill { why, tell: !std::mem::replace(&mut self.told.1, true) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Option<Duration> = Some(Duration::from_secs(1));

    #[test]
    fn stopped_shim_is_continued_three_times_then_killed() {
        let mut watch = ShimWatch::default();
        assert_eq!(watch.look(false, None), Act::Nothing);
        for tell in [true, false, false] {
            assert_eq!(watch.look(true, None), Act::GoOn { tell });
            assert_eq!(watch.look(false, None), Act::Nothing, "it goes on");
        }
        for tell in [true, false] {
            assert_eq!(watch.look(true, None), Act::Kill { why: Why::StoppedAgain, tell });
        }
    }

    #[test]
    fn one_that_does_not_answer_a_kill_is_killed() {
        let mut watch = ShimWatch::default();
        for _ in 0..14 {
            assert_eq!(watch.look(false, SECOND), Act::Nothing);
        }
        assert_eq!(watch.look(false, SECOND), Act::Kill { why: Why::Silent, tell: true });
        assert_eq!(watch.look(false, SECOND), Act::Kill { why: Why::Silent, tell: false });
    }

    #[test]
    fn answer_ends_the_silence_of_a_shim() {
        let mut watch = ShimWatch::default();
        for _ in 0..100 {
            assert_eq!(watch.look(false, SECOND), Act::Nothing);
            assert_eq!(watch.look(false, None), Act::Nothing);
        }
    }

    #[test]
    fn daemon_pause_is_not_silence_of_the_shim() {
        let mut watch = ShimWatch::default();
        for _ in 0..2 {
            assert_eq!(watch.look(false, Some(Duration::from_secs(3600))), Act::Nothing);
        }
        assert_eq!(watch.look(true, None), Act::GoOn { tell: true });
    }
}
