//! The connections of one socket: their limit, and which one is closed to make room.
//!
//! A connection that waits for its peer's next request is idle. When all places are taken, the
//! longest idle connection is closed, so a flood of silent peers locks nobody out. Peers that are
//! not the operator may hold all places but [`RESERVED`], idle or not.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The number of places that only the operator may hold.
pub const RESERVED: usize = 64;

/// The peer of a connection, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The peer has not sent its hello.
    Stranger,
    Operator,
    /// An agent, or a process that may only read.
    Other,
}

#[derive(Debug)]
struct Entry {
    peer: Peer,
    /// The change number at which it became idle; `None` while it is served.
    idle: Option<u64>,
    close: CancellationToken,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    entries: HashMap<u64, Entry>,
}

/// All connections of one socket.
#[derive(Debug)]
pub struct Places {
    limit: usize,
    /// Whether an idle connection makes room for a new one.
    evicts: bool,
    table: Mutex<Table>,
    freed: Notify,
}

/// The place of one connection; free again when this is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
    close: CancellationToken,
}

impl Places {
    pub fn new(limit: usize, evicts: bool) -> Arc<Self> {
        Arc::new(Self { limit, evicts, table: Mutex::default(), freed: Notify::new() })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a place is free, or can be made free. Cancel-safe.
    pub async fn free(&self) {
        loop {
            let freed = self.freed.notified();
            {
                let table = self.table();
                if table.entries.len() < self.limit
                    || (self.evicts && table.idlest(|_| true).is_some())
                {
                    return;
                }
            }
            freed.await;
        }
    }

    /// Takes the place that [`Self::free`] has found. If all are taken, it closes the longest idle
    /// connection.
    pub fn take(self: &Arc<Self>) -> Place {
        let mut table = self.table();
        if table.entries.len() >= self.limit {
            let other = table.idlest(|peer| peer != Peer::Operator);
            if let Some(idle) = other.or_else(|| table.idlest(|_| true)) {
                table.close(idle);
            }
        }
        let (number, close) = (table.tick(), CancellationToken::new());
        table.entries.insert(
            number,
            Entry { peer: Peer::Stranger, idle: Some(number), close: close.clone() },
        );
        drop(table);
        Place { places: self.clone(), number, close }
    }
}

impl Table {
    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns the longest idle connection of such peers.
    fn idlest(&self, of: impl Fn(Peer) -> bool) -> Option<u64> {
        let idle = self.entries.iter().filter(|(_, entry)| of(entry.peer));
        let idle = idle.filter_map(|(number, entry)| Some((entry.idle?, *number)));
        idle.min().map(|(_, number)| number)
    }

    fn close(&mut self, number: u64) {
        if let Some(entry) = self.entries.remove(&number) {
            entry.close.cancel();
        }
    }
}

impl Place {
    /// Records the peer once it is known. Returns false if peers that are not the operator hold all
    /// places that they may.
    pub fn greeted(&self, operator: bool) -> bool {
        let mut table = self.places.table();
        let most = self.places.limit.saturating_sub(RESERVED);
        if !operator && self.places.evicts {
            let others = table.entries.values().filter(|entry| entry.peer == Peer::Other).count();
            if others >= most {
                let Some(idle) = table.idlest(|peer| peer == Peer::Other) else { return false };
                table.close(idle);
            }
        }
        if let Some(entry) = table.entries.get_mut(&self.number) {
            entry.peer = if operator { Peer::Operator } else { Peer::Other };
        }
        true
    }

    /// Marks the connection as served. Returns false if it was closed to make room.
    pub fn busy(&self) -> bool {
        let mut table = self.places.table();
        let entry = table.entries.get_mut(&self.number);
        entry.map(|entry| entry.idle = None).is_some()
    }

    /// Marks the connection as idle.
    pub fn idle(&self) {
        let mut table = self.places.table();
        let now = table.tick();
        if let Some(entry) = table.entries.get_mut(&self.number) {
            entry.idle = Some(now);
        }
        drop(table);
        self.places.freed.notify_waiters();
    }

    /// Waits until the connection must be closed. Cancel-safe.
    pub async fn closed(&self) {
        self.close.cancelled().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.table().entries.remove(&self.number);
        self.places.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn is_open(place: &Place) -> bool {
        place.closed().now_or_never().is_none()
    }

    #[test]
    fn new_peer_replaces_the_longest_idle_one() {
        let places = Places::new(3, true);
        let (first, second, third) = (places.take(), places.take(), places.take());
        assert!(first.greeted(true) && second.greeted(true) && third.greeted(true));
        assert!(first.busy());
        assert!(third.busy());
        third.idle();
        let fourth = places.take();
        assert!(is_open(&first) && !is_open(&second) && is_open(&third) && is_open(&fourth));
        assert!(!second.busy(), "a closed connection is not served");
    }

    #[test]
    fn active_peers_are_awaited() {
        let places = Places::new(2, true);
        let (first, second) = (places.take(), places.take());
        assert!(first.busy() && second.busy());
        assert!(places.free().now_or_never().is_none());
        second.idle();
        assert!(places.free().now_or_never().is_some());
        assert!(second.busy());
        drop(first);
        assert!(places.free().now_or_never().is_some());
    }

    #[test]
    fn others_leave_the_operator_its_places() {
        let places = Places::new(RESERVED + 2, true);
        let others = [places.take(), places.take()];
        assert!(others.iter().all(|other| other.greeted(false) && other.busy()));
        let third = places.take();
        assert!(!third.greeted(false), "its peers are all served, and hold what they may");
        assert!(third.greeted(true), "the operator may");
        others[1].idle();
        let fourth = places.take();
        assert!(fourth.greeted(false) && !is_open(&others[1]), "an idle one makes room");
    }

    #[test]
    fn idle_peers_of_an_agents_own_socket_keep_their_places() {
        let places = Places::new(1, false);
        let only = places.take();
        assert!(only.greeted(false) && places.free().now_or_never().is_none() && is_open(&only));
        drop(only);
        assert!(places.free().now_or_never().is_some());
    }
}
