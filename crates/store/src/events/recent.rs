//! Remembers which ids were appended recently, so that a repeated entry is answered but not
//! appended again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// The ids of the newest records with their seq, bounded. A caller repeats an entry seconds later,
/// after a restart of the ledger or a lost reply, so older ids need not be remembered. Two kinds of
/// entries can be repeated later, and are recognized without their ids: the creation of a dispatch,
/// by the fleet, and output of a spool, by the position that the dispatch records.
#[derive(Debug, Clone)]
pub struct RecentIds {
    limit: usize,
    seqs: HashMap<Arc<str>, u64>,
    order: VecDeque<Arc<str>>,
}

impl RecentIds {
    pub const DEFAULT: usize = 65_536;

    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), seqs: HashMap::new(), order: VecDeque::new() }
    }

    /// Remembers `id` and forgets the oldest one beyond the limit. The first seq of an id stays.
    pub fn insert(&mut self, id: &str, seq: u64) {
        if self.seqs.contains_key(id) {
            return;
        }
        if self.order.len() == self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            self.seqs.remove(&oldest);
        }
        let id: Arc<str> = id.into();
        self.order.push_back(id.clone());
        self.seqs.insert(id, seq);
    }

    pub fn seq_of(&self, id: &str) -> Option<u64> {
        self.seqs.get(id).copied()
    }
}

impl Default for RecentIds {
    fn default() -> Self {
        Self::new(Self::DEFAULT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_id_is_dropped_and_a_repeated_id_keeps_its_seq() {
        let mut ids = RecentIds::new(2);
        ids.insert("a", 1);
        ids.insert("b", 2);
        ids.insert("b", 9);
        assert_eq!((ids.seq_of("a"), ids.seq_of("b")), (Some(1), Some(2)));
        ids.insert("c", 3);
        assert_eq!((ids.seq_of("a"), ids.seq_of("b"), ids.seq_of("c")), (None, Some(2), Some(3)));
    }
}
