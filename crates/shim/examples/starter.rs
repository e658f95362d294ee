//! Starts many agents by a zygote and without a daemon, and prints when it began, in nanoseconds of
//! the monotonic clock (`cargo xtask bench`). It measures the cost of the shims alone, which is a
//! lower bound for any daemon.
//!
//! `starter SHIM DIRECTORY COUNT PROGRAM ARGS…`: creates the agents' directories in DIRECTORY
//! before the clock starts, and ends their shims before it exits.

use muleteer_process::lock::{LockGuard, try_lock};
use muleteer_shim::launch::Launch;
use muleteer_shim::start::{self, ShimProgram};
use muleteer_shim::zygote::{self, Ask};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let [shim, dir, count, argv @ ..] = words.as_slice() else {
        return Err("starter SHIM DIRECTORY COUNT PROGRAM ARGS…".into());
    };
    let (dir, count) = (Path::new(dir), count.parse()?);
    let agents: Vec<Prepared> =
        (0..count).map(|number| Prepared::new(dir, number, argv)).collect::<Result<_, _>>()?;
    let (socket, mut zygote) = zygote::spawn(&ShimProgram::open(Path::new(shim), &[])?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    zygote::hear(socket.as_fd())?;

    let begun = clock_gettime(ClockId::Monotonic);
    let mut shims = Vec::with_capacity(count);
    for (number, agent) in (0..).zip(&agents) {
        let ask = Ask {
            number,
            epoch: 1,
            agent: OsStr::new("bench"),
            dir: agent.dir.as_fd(),
            lock: agent.lock.as_fd(),
            log: agent.log.as_fd(),
        };
        zygote::ask(socket.as_fd(), &ask)?;
        let answer = zygote::hear(socket.as_fd())?.ok_or("the zygote is ready twice")?;
        shims.push(answer.outcome.map_err(std::io::Error::from_raw_os_error)?);
    }
    // The shims end with their agents.
    for pid in shims {
        waitpid(Pid::from_raw(pid.cast_signed()), WaitOptions::empty())?;
    }
    drop(socket);
    zygote.wait()?;
    println!("{}", i128::from(begun.tv_sec) * 1_000_000_000 + i128::from(begun.tv_nsec));
    Ok(())
}

/// The prepared directory of an agent, for which a shim can be requested.
struct Prepared {
    dir: File,
    lock: std::os::fd::OwnedFd,
    log: File,
    _held: LockGuard,
}

impl Prepared {
    fn new(dir: &Path, number: usize, argv: &[&str]) -> Result<Self, Box<dyn Error>> {
        let agent: PathBuf = dir.join(format!("agent-{number}"));
        let argv = argv.iter().map(ToString::to_string).collect();
        let mut launch = Launch::new(
            1,
            1,
            format!("bench-{}-{number}", std::process::id()),
            argv,
            dir.to_owned(),
        );
        launch.env = std::env::vars().collect();
        start::prepare(&agent, &launch)?;
        let held = try_lock(&agent.join("lock"))?.ok_or("somebody has its lock")?;
        Ok(Self {
            lock: held.share()?,
            log: start::shim_log(&agent)?,
            dir: File::open(&agent)?,
            _held: held,
        })
    }
}
