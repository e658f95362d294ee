//! Starts shims: by the zygote where there is one, else by an exec, and collects their zombies.
//!
//! Whoever asks knows by the agent's lock whether its shim runs, never by what is said here: a
//! zygote that dies with a request may have carried it out.

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

/// A zygote answers in a fraction of a millisecond; one that takes longer is stopped or stuck.
const DEADLINE: Duration = Duration::from_secs(5);
/// A shim is there after so long, where it is alone, and so much later for each that is started
/// beside it.
const SOON: Duration = Duration::from_micros(700);
const EACH: Duration = Duration::from_micros(300);
const MOST: u32 = 100;
/// So often at most is a new zygote tried.
const RETRY: Duration = Duration::from_secs(10);

/// The one who starts shims, and who reaps them.
#[derive(Debug)]
pub struct Shims {
    program: ShimProgram,
    zygote: tokio::sync::Mutex<Zygote>,
    /// Those that this daemon started, and its zygotes.
    children: Mutex<Vec<u32>>,
    /// Started, and not met yet.
    starting: AtomicU32,
}

#[derive(Debug, Default)]
struct Zygote {
    port: Option<Port>,
    tried: Option<Instant>,
}

#[derive(Debug)]
struct Port {
    /// It keeps packets apart, as no stream does: only [`zygote::ask`] and [`zygote::hear`] know
    /// how to use it.
    socket: UnixStream,
    zygote: Pinned,
    /// Of the last request.
    number: u64,
}

/// A shim that was started and that nobody has met yet.
#[derive(Debug)]
pub struct Starting<'a>(&'a AtomicU32);

impl Starting<'_> {
    /// When it will probably be there. Of many at once, each has to wait for its turn at a
    /// processor, and who looks for it too early takes one from those that are still to start.
    pub fn due(&self) -> Duration {
        SOON + EACH * self.0.load(Ordering::Relaxed).min(MOST)
    }
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What became of a request to a zygote.
enum Asked {
    Started(u32),
    Refused(io::Error),
    /// It had no effect.
    Unheard,
    /// It may have had one.
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

    /// Has a zygote ready for the first who needs one.
    pub async fn warm(&self) {
        self.revive(&mut *self.zygote.lock().await).await;
    }

    /// Starts the shim of a prepared launch and gives it `lock`, which the caller drops soon after.
    /// When this returns the shim runs or may run: the lock tells.
    ///
    /// Not cancel-safe only in that the shim's zombie may then stay until the daemon ends.
    ///
    /// # Errors
    /// Nothing was started.
    pub async fn start(&self, dir: &Path, lock: &LockGuard, epoch: u32) -> io::Result<()> {
        match self.ask(dir, lock, epoch).await? {
            Asked::Started(pid) => self.adopt(pid),
            Asked::Refused(error) => return Err(error),
            Asked::Unheard => self.adopt(start::launch(dir, &self.program, lock, epoch)?.id()),
            Asked::Lost => {
                tracing::warn!(dir = %dir.display(), epoch, "the zygote died with a request")
            }
        }
        Ok(())
    }

    /// One more has been started, until this is dropped.
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
                tracing::warn!(%error, "the zygote cannot be asked");
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

    /// The answer to the last request. Those of others, who did not wait for theirs, are seen to.
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

    /// Starts a zygote where there is none, and none was tried lately.
    async fn revive(&self, zygote: &mut Zygote) {
        if zygote.port.is_some() || zygote.tried.is_some_and(|tried| tried.elapsed() < RETRY) {
            return;
        }
        zygote.tried = Some(Instant::now());
        match self.spawn().await {
            Ok(port) => zygote.port = Some(port),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(error) => tracing::warn!(%error, "no zygote: each shim is started by an exec"),
        }
    }

    async fn spawn(&self) -> io::Result<Port> {
        let (socket, child) = zygote::spawn(&self.program)?;
        // Nobody has reaped it yet, so it is this one that is pinned.
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
        Err(io::Error::other("it does not say that it is ready"))
    }

    /// A zygote that does not answer may yet wake up and start what another has started by then: it
    /// must not.
    fn give_up(&self, zygote: &mut Zygote) {
        if let Some(port) = zygote.port.take() {
            let _ = port.zygote.signal(Signal::KILL.as_raw());
        }
    }

    /// Lets the zygote go, and waits a moment until it has: nobody who comes next is to meet it.
    ///
    /// Blocks the thread.
    pub fn close(&self) {
        if let Some(port) = self.zygote.try_lock().ok().and_then(|mut zygote| zygote.port.take()) {
            drop(port.socket);
            port.zygote.wait(Duration::from_secs(1));
        }
    }

    /// Shims are our children until we die, the zygote's forks too.
    fn adopt(&self, pid: u32) {
        // It may have ended before anybody knew its pid.
        if spawn::reap(pid).is_none() {
            self.children.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
        }
    }

    /// Collects the zombies.
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
    fn who_starts_many_looks_for_each_later_but_not_without_end() {
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
