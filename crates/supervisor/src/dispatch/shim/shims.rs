//! Starts shims, by the zygote if there is one, else by an exec, and reaps their zombies.
//!
//! Only the agent's lock tells whether its shim runs, never an answer from here: a zygote that dies
//! with a request may have carried it out.

use muleteer_process::identity::Pinned;
use muleteer_process::lock::LockGuard;
use muleteer_process::spawn;
use muleteer_shim::start::{self, ShimProgram};
use muleteer_shim::zygote::{self, Ask};
use rustix::process::Signal;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::{Instant, timeout};

/// The timeout for a zygote's answer. It takes a fraction of a millisecond; a slower zygote is
/// stopped or stuck.
const DEADLINE: Duration = Duration::from_secs(5);
/// The time in which a single shim starts, and the additional time for each one that starts beside
/// it.
const SOON: Duration = Duration::from_micros(700);
const EACH: Duration = Duration::from_micros(300);
const MOST: u32 = 100;
/// The minimum time between two attempts to start a zygote.
const RETRY: Duration = Duration::from_secs(10);

/// Starts and reaps shims.
#[derive(Debug)]
pub struct Shims {
    program: ShimProgram,
    zygote: tokio::sync::Mutex<Zygote>,
    /// The shims that this daemon started, and its zygotes.
    children: Mutex<Vec<u32>>,
    /// The number of shims that are starting and not connected yet.
    starting: AtomicU32,
}

#[derive(Debug, Default)]
struct Zygote {
    port: Option<Port>,
    tried: Option<Instant>,
}

#[derive(Debug)]
struct Port {
    /// The socket preserves packets, as no stream does: only [`zygote::ask`] and [`zygote::hear`]
    /// may use it.
    socket: UnixStream,
    zygote: Pinned,
    /// The number of the last request.
    number: u64,
}

/// Counts a shim that was started and is not connected yet.
#[derive(Debug)]
pub struct Starting<'a>(&'a AtomicU32);

impl Starting<'_> {
    /// Returns the time in which the shim will probably be there. Many shims share the processors,
    /// and an early poll would take a processor from those that still start.
    pub fn due(&self) -> Duration {
        SOON + EACH * self.0.load(Ordering::Relaxed).min(MOST)
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The outcome of a request to a zygote.
enum Asked {
    Started(u32),
    Refused(io::Error),
    /// The request had no effect.
    Unheard,
    /// The request may have had an effect.
    Lost,
}

impl Shims {
    pub fn new(program: ShimProgram) -> Self {
        Self {
            program,
            zygote: tokio::sync::Mutex::default(),
            children: Mutex::default(),
            starting: AtomicU32::default(),
        }
    }

    pub fn program(&self) -> &ShimProgram {
        &self.program
    }

    /// Starts a zygote before the first request needs it.
    pub async fn warm(&self) {
        self.revive(&mut *self.zygote.lock().await).await;
    }

    /// Starts the shim of a prepared launch and passes `lock` to it; the caller drops its own soon
    /// after. On return the shim runs or may run, which only the lock tells. Returns its pid if
    /// that is known.
    ///
    /// Cancel-safe, except that the shim's zombie may then stay until the daemon ends.
    ///
    /// # Errors
    /// Nothing was started.
    pub async fn start(&self, dir: &Path, lock: &LockGuard, epoch: u32) -> io::Result<Option<u32>> {
        let pid = match self.ask(dir, lock, epoch).await? {
            Asked::Started(pid) => pid,
            Asked::Refused(error) => return Err(error),
            Asked::Unheard => start::launch(dir, &self.program, lock, epoch)?.id(),
            Asked::Lost => {
                tracing::warn!(dir = %dir.display(), epoch, "the zygote died during a request");
                return Ok(None);
            }
        };
        self.adopt(pid);
        Ok(Some(pid))
    }

    /// Counts one more starting shim, until the result is dropped.
    pub fn starting(&self) -> Starting<'_> {
        self.starting.fetch_add(1, Ordering::Relaxed);
        Starting(&self.starting)
    }

    async fn ask(&self, dir: &Path, lock: &LockGuard, epoch: u32) -> io::Result<Asked> {
        let agent = dir.file_name().unwrap_or_default();
        let log = start::shim_log(dir)?;
        let folder = File::open(dir)?;
        let mut zygote = self.zygote.lock().await;
        self.revive(&mut zygote).await;
        let Some(port) = &mut zygote.port else { return Ok(Asked::Unheard) };
        port.number += 1;
        let number = port.number;
        let ask =
            Ask { number, epoch, agent, dir: folder.as_fd(), lock: lock.as_fd(), log: log.as_fd() };
        let asked = match zygote::ask(port.socket.as_fd(), &ask) {
            Err(error) => {
                tracing::warn!(%error, "failed to send a request to the zygote");
                Asked::Unheard
            }
            Ok(()) => match timeout(DEADLINE, self.answer(port)).await {
                Ok(Ok(Ok(pid))) => Asked::Started(pid),
                Ok(Ok(Err(error))) => Asked::Refused(error),
                Ok(Err(_)) | Err(_) => Asked::Lost,
            },
        };
        if matches!(asked, Asked::Unheard | Asked::Lost) {
            self.give_up(&mut zygote);
        }
        Ok(asked)
    }

    /// Returns the answer to the last request. Shims in answers to earlier requests, whose callers
    /// did not wait, are adopted.
    async fn answer(&self, port: &Port) -> io::Result<io::Result<u32>> {
        loop {
            match hear(&port.socket).await? {
                Some(answer) if answer.number == port.number => {
                    return Ok(answer.outcome.map_err(io::Error::from_raw_os_error));
                }
                Some(answer) => answer.outcome.into_iter().for_each(|pid| self.adopt(pid)),
                None => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    /// Starts a zygote if there is none, and none was tried recently.
    async fn revive(&self, zygote: &mut Zygote) {
        if zygote.port.is_some() || zygote.tried.is_some_and(|tried| tried.elapsed() < RETRY) {
            return;
        }
        zygote.tried = Some(Instant::now());
        match self.spawn().await {
            Ok(port) => zygote.port = Some(port),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(error) => tracing::warn!(%error, "no zygote: starting each shim with exec"),
        }
    }

    async fn spawn(&self) -> io::Result<Port> {
        let (socket, child) = zygote::spawn(&self.program)?;
        // Nobody has reaped the zygote yet, so the pin is on the right process.
        let pinned = Pinned::open(child.id());
        self.adopt(child.id());
        let port =
            Port { socket: UnixStream::from_std(socket.into())?, zygote: pinned?, number: 0 };
        match timeout(DEADLINE, hear(&port.socket)).await {
            Ok(Ok(None)) => return Ok(port),
            Ok(Err(error)) if error.kind() != io::ErrorKind::InvalidData => return Err(error),
            _ => {}
        }
        let _ = port.zygote.signal(Signal::KILL.as_raw());
        Err(io::Error::other("it did not become ready"))
    }

    /// Kills a zygote that does not answer. It might wake up later and start a shim that another
    /// process has started by then.
    fn give_up(&self, zygote: &mut Zygote) {
        if let Some(port) = zygote.port.take() {
            let _ = port.zygote.signal(Signal::KILL.as_raw());
        }
    }

    /// Closes the connection to the zygote and waits a moment for its end. Otherwise the next
    /// daemon could meet it.
    ///
    /// Blocks the thread.
    pub fn close(&self) {
        if let Some(port) = self.zygote.try_lock().ok().and_then(|mut zygote| zygote.port.take()) {
            drop(port.socket);
            port.zygote.wait(Duration::from_secs(1));
        }
    }

    /// Registers a child. Shims are children of this process until it dies, even those that the
    /// zygote forked.
    fn adopt(&self, pid: u32) {
        // It may have ended before its pid was known.
        if spawn::reap(pid).is_none() {
            self.children.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
        }
    }

    /// Reaps all zombies.
    pub fn reap(&self) {
        let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.retain(|pid| spawn::reap(*pid).is_none());
    }
}

async fn hear(socket: &UnixStream) -> io::Result<Option<zygote::Answer>> {
    socket.async_io(Interest::READABLE, || zygote::hear(socket.as_fd())).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_starts_are_checked_later_but_not_forever() {
        let count = AtomicU32::default();
        let begin = || {
            count.fetch_add(1, Ordering::Relaxed);
            Starting(&count)
        };
        let first = begin();
        assert_eq!(first.due(), Duration::from_millis(1));
        let others: Vec<_> = (0..9).map(|_| begin()).collect();
        assert_eq!(first.due(), SOON + EACH * 10);
        drop(others);
        assert_eq!(first.due(), Duration::from_millis(1));
        count.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(first.due(), SOON + EACH * MOST);
    }
}
