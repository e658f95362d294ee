//! The state of each adapter while this daemon lives.

use jiff::Timestamp;
use muleteer_model::conversation::adapter::settings::AdapterSettings;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio_util::sync::CancellationToken;

/// The state of an adapter's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LiveState {
    /// It runs, and may not be connected.
    Running,
    Starting,
    Backoff,
    #[default]
    Disabled,
    /// It failed too often, or its settings cannot be used. A person must act.
    SetAside,
}

impl LiveState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Starting => "starting",
            Self::Backoff => "backoff",
            Self::Disabled => "disabled",
            Self::SetAside => "set_aside",
        }
    }
}

/// An adapter as this daemon knows it.
#[derive(Debug, Clone, Default)]
pub struct Live {
    pub state: LiveState,
    pub since: Option<Timestamp>,
    pub pid: Option<u32>,
    pub restarts: u64,
    pub reason: Option<String>,
    pub settings: AdapterSettings,
    /// The requests that it repeated.
    pub duplicates: u64,
    /// The key of its present process.
    key: Option<String>,
    session: Option<Session>,
}

#[derive(Debug, Clone)]
struct Session {
    number: u64,
    close: CancellationToken,
    capabilities: Vec<String>,
}

/// The right to serve an adapter. A later connection with the key takes it away.
#[derive(Debug)]
pub struct Seat {
    pub name: String,
    pub close: CancellationToken,
    number: u64,
}

/// All adapters, by name.
#[derive(Debug, Default)]
pub struct Adapters(Mutex<(BTreeMap<String, Live>, u64)>);

impl Adapters {
    fn lock(&self) -> MutexGuard<'_, (BTreeMap<String, Live>, u64)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn all(&self) -> BTreeMap<String, Live> {
        self.lock().0.clone()
    }

    pub fn get(&self, name: &str) -> Option<Live> {
        self.lock().0.get(name).cloned()
    }

    /// Whether an adapter is to run, so that the daemon must not end when it is idle.
    pub fn any_enabled(&self) -> bool {
        self.lock().0.values().any(|live| live.state != LiveState::Disabled)
    }

    /// Changes what is known of an adapter.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Live)) {
        change(self.lock().0.entry(name.into()).or_default());
    }

    /// Moves an adapter to another state. A process that has ended loses its key and connection.
    pub fn enter(&self, name: &str, state: LiveState, reason: Option<String>) {
        self.change(name, |live| {
            (live.state, live.since, live.reason) = (state, Some(Timestamp::now()), reason);
            if state != LiveState::Running {
                (live.pid, live.key) = (None, None);
                if let Some(session) = live.session.take() {
                    session.close.cancel();
                }
            }
        });
    }

    /// Notes the process of an adapter, with the key that it gets.
    pub fn running(&self, name: &str, pid: u32, key: String) {
        self.enter(name, LiveState::Running, None);
        self.change(name, |live| (live.pid, live.key) = (Some(pid), Some(key)));
    }

    /// Connects an adapter whose key is right. Its earlier connection ends.
    pub fn connect(&self, name: &str, key: &str, capabilities: Vec<String>) -> Option<Seat> {
        let mut locked = self.lock();
        let (all, next) = &mut *locked;
        let live = all.get_mut(name)?;
        if !live.key.as_ref().is_some_and(|known| is_same(known.as_bytes(), key.as_bytes())) {
            return None;
        }
        *next += 1;
        let (number, close) = (*next, CancellationToken::new());
        let session = Session { number, close: close.clone(), capabilities };
        if let Some(before) = live.session.replace(session) {
            before.close.cancel();
        }
        Some(Seat { name: name.into(), close, number })
    }

    /// Ends the connection, unless another one has taken its place.
    pub fn disconnect(&self, seat: &Seat) {
        self.change(&seat.name, |live| {
            let is_own = |session: &mut Session| session.number == seat.number;
            live.session.take_if(is_own);
        });
    }
}

impl Live {
    /// Returns the capabilities of the connected adapter; `None` if none is connected.
    pub fn capabilities(&self) -> Option<&[String]> {
        self.session.as_ref().map(|session| &*session.capabilities)
    }
}

/// Compares two keys in constant time, so that the duration reveals nothing of the key.
pub fn is_same(known: &[u8], given: &[u8]) -> bool {
    known.len() == given.len()
        && !given.is_empty()
        && known.iter().zip(given).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_opens_one_connection_of_its_own_adapter_only() {
        let adapters = Adapters::default();
        adapters.running("slack", 7, "key-of-slack".into());
        adapters.running("web", 8, "key-of-web".into());
        let connect = |name, key| adapters.connect(name, key, vec![]);
        assert!(connect("slack", "key-of-web").is_none() && connect("slack", "").is_none());
        assert!(connect("other", "key-of-web").is_none());
        let first = connect("slack", "key-of-slack").expect("a seat");
        let second = connect("slack", "key-of-slack").expect("a seat");
        assert!(first.close.is_cancelled() && !second.close.is_cancelled());
        adapters.disconnect(&first);
        assert!(adapters.get("slack").expect("known").capabilities().is_some());
        adapters.enter("slack", LiveState::Backoff, None);
        assert!(second.close.is_cancelled() && connect("slack", "key-of-slack").is_none());
    }
}
