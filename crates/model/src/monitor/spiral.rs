//! Detects an agent that makes no progress between compactions.
//!
//! A compaction alone is normal: a long task has several. It is a bad sign if the agent did nothing
//! new since the one before: it made few calls, or only read known files again. Two such
//! compactions in a row cause a warning; four stop the agent.

use crate::monitor::{Action, Kind};

/// With fewer calls than this between two compactions, an agent makes no progress.
const FEW: u32 = 10;
/// A compaction that leaves more than this share of the context has freed too little.
const NO_ROOM: f64 = 0.75;
const WARN: u32 = 2;
const STOP: u32 = 4;

#[derive(Debug, Default)]
pub struct Spiral {
    compactions: u32,
    barren: u32,
    calls: u32,
    novel: u32,
    edits: u32,
    /// The most calls between two earlier compactions.
    before: u32,
}

impl Spiral {
    pub fn done(&mut self, kind: Kind, novel: bool) {
        self.calls += 1;
        self.novel += u32::from(novel);
        self.edits += u32::from(novel && kind == Kind::Edit);
    }

    pub fn compacted(&mut self, before: u64, after: u64) -> Option<(Action, String)> {
        let (calls, novel, edits) = (self.calls, self.novel, self.edits);
        (self.calls, self.novel, self.edits) = (0, 0, 0);
        self.compactions += 1;
        if self.compactions == 1 {
            self.before = calls;
            return None;
        }
        let full = before > 0 && after as f64 > before as f64 * NO_ROOM;
        let shrunk = calls * 2 <= self.before && calls < 2 * FEW;
        let nothing_new = edits == 0 && novel * 3 < calls;
        self.before = self.before.max(calls);
        if !(full || calls < FEW || shrunk && edits <= 1 || nothing_new) {
            self.barren = 0;
            return None;
        }
        self.barren += 1;
        let action = match self.barren {
            STOP.. => Action::Stop,
            WARN.. => Action::Warn,
            _ => return None,
        };
        let what = format!(
            "{} compactions; before the last one {calls} calls, {novel} of them with new results, \
             and {edits} edits",
            self.compactions
        );
        Some((action, what))
    }

    pub fn begin_anew(&mut self) {
        *self = Self::default();
    }
}
