//! Locks by name, for work that must not happen twice at the same time.
//!
//! Each name has a lock of its own. Locks that names share by their hash would let a caller that
//! holds two names wait for itself, for ever.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The locks of all names that are held or waited for. Others take no memory.
#[derive(Debug, Default)]
pub struct Locks {
    /// Each holder of a name reads it; the holder of all names writes it.
    all: RwLock<()>,
    named: Mutex<HashMap<String, Named>>,
}

#[derive(Debug, Default)]
struct Named {
    /// The number of callers that hold it or wait for it.
    users: usize,
    lock: Arc<tokio::sync::Mutex<()>>,
}

/// A name that is held until this is dropped.
#[derive(Debug)]
pub struct Alone<'a> {
    // The order of the fields is the order of their release.
    _name: OwnedMutexGuard<()>,
    _user: User<'a>,
    _all: RwLockReadGuard<'a, ()>,
}

/// All names, held until this is dropped.
#[derive(Debug)]
pub struct Everything<'a>(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'a, ()>);

/// A caller that holds a name or waits for it. Dropping the last one forgets the name.
#[derive(Debug)]
struct User<'a> {
    locks: &'a Locks,
    name: String,
}

impl Locks {
    /// Waits until nobody holds this name, then holds it. A caller may hold several names, if all
    /// callers take them in one order. Cancel-safe.
    pub async fn lock(&self, name: &str) -> Alone<'_> {
        // The writer never waits in the queue of this lock, so no second reader waits behind it.
        let all = self.all.read().await;
        let (user, lock) = self.enter(name);
        Alone { _name: lock.lock_owned().await, _user: user, _all: all }
    }

    /// Waits until nobody holds any name, then holds all. It holds nothing while it waits, because
    /// a name may be held for minutes. Cancel-safe.
    pub async fn lock_all(&self) -> Everything<'_> {
        const PAUSE: Duration = Duration::from_millis(20);
        loop {
            match self.all.try_write() {
                Ok(all) => return Everything(all),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn enter(&self, name: &str) -> (User<'_>, Arc<tokio::sync::Mutex<()>>) {
        let mut named = self.named();
        let known = named.entry(name.into()).or_default();
        known.users += 1;
        (User { locks: self, name: name.into() }, known.lock.clone())
    }

    fn named(&self) -> MutexGuard<'_, HashMap<String, Named>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        let mut named = self.locks.named();
        let Some(known) = named.get_mut(&self.name) else { return };
        known.users -= 1;
        if known.users == 0 {
            named.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::context::test_daemon;
    use futures_util::FutureExt;
    use muleteer_model::config::Pool;

    #[test]
    fn holder_of_one_name_gets_every_other_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let _outer = daemon.creating("folder/C1").now_or_never().expect("it is free");
        for number in 0..1000 {
            let name = format!("{number}");
            assert!(daemon.creating(&name).now_or_never().is_some(), "{name} waits for its caller");
        }
    }

    #[test]
    fn name_is_held_once_and_forgotten_after_its_last_user() {
        let locks = Locks::default();
        let first = locks.lock("a").now_or_never().expect("it is free");
        let (mut second, mut third) = (Box::pin(locks.lock("a")), Box::pin(locks.lock("a")));
        assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
        drop(third);
        drop(first);
        let held = (&mut second).now_or_never().expect("it is free");
        assert!(locks.lock("a").now_or_never().is_none(), "the second caller has it");
        drop(held);
        assert!(locks.named().is_empty(), "{locks:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn all_names_wait_for_each_holder_and_keep_none_waiting_meanwhile() {
        let locks = Locks::default();
        let outer = locks.lock("a").await;
        let mut all = Box::pin(locks.lock_all());
        assert!((&mut all).now_or_never().is_none());
        drop(locks.lock("b").now_or_never().expect("a holder gets a second name"));
        drop(outer);
        let all = all.await;
        assert!(locks.lock("b").now_or_never().is_none());
        drop(all);
        assert!(locks.lock("b").now_or_never().is_some());
    }
}
