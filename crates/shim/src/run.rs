//! The shim itself: one thread, one poll loop.
//!
//! ```text
//!            exec passed           terminate, limits         kill_at          agent reaped in
//!  Starting ─────────────▶ Running ──────────────▶ Terminating ─────▶ Killing   any of these
//!     │                     │   ▲ lease expired, stdin closed    ▲                   │
//!     │                     └▶ Letting ──────── term_at ──────────┘                   ▼
//!     │ exec failed              │ heartbeat: back to Running          `exited` written: Clearing
//!     ▼                                                                 TERM ─ kill_at ─ KILL
//!  `start_failed` written ────────────────────────────────────────────────────▶ Gone, `ended`
//! ```

mod commands;
mod ending;
mod keys;
mod output;
mod peers;
mod private_size;
mod stdin;
mod wait;

use crate::attach::{LOCK, SOCKET};
use crate::control::{BlockReason, Cause, Control, Left, Policy};
use crate::launch::{Launch, Limits, StdinMode};
use crate::meta::{self, Meta};
use crate::record::Stream;
use crate::spool::{self, Writer};
use crate::zygote;
use muleteer_process::cgroup;
use muleteer_process::clock::{SuspendWatch, awake, wall_ms};
use muleteer_process::fault;
use muleteer_process::host::host;
use muleteer_process::host::memory;
use muleteer_process::host::pipe;
use muleteer_process::identity::{self, NONCE_VAR, ProcessId};
use muleteer_process::lock::LockGuard;
use muleteer_process::signals::{self, Signals};
use muleteer_process::spawn;
use muleteer_process::spawn::{ExecStatus, Held, Program, Released, Stage, Stdio, find_program};
use output::Output;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The most control records that wait for room on the disk. Final records of an epoch are always
/// queued.
const MAX_UNSAID: usize = 256;
/// Room that only the last records of an epoch may use.
const LAST_WORDS: u64 = 16 << 10;
const DISK_RETRY: Duration = Duration::from_millis(500);

/// Runs a shim with these arguments (without the program's name): `--epoch N`, the agent's
/// directory as working directory, and its lock as standard input. Only [`crate::start::launch`]
/// starts it.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    signals::inherited::begin();
    let mut args = args.into_iter().peekable();
    if args.next_if(|word| word == zygote::WORD).is_some() {
        return zygote::main();
    }
    if args.next_if(|word| word == CONFINE).is_some() {
        return muleteer_process::sandbox::main(args);
    }
    if args.next_if(|word| word == BUILD_WORD).is_some() {
        println!("{}", build());
        return ExitCode::SUCCESS;
    }
    let Some(epoch) = epoch_of(args) else {
        eprintln!("muleteer-shim is started by the muleteer daemon, not by hand");
        return ExitCode::from(64);
    };
    shim(epoch, &Place::find())
}

/// Runs the shim of one epoch, in the agent's directory and with its lock as standard input.
pub(crate) fn shim(epoch: u32, place: &Place) -> ExitCode {
    identity::name_this_process(c"muleteer-shim");
    let started = Shim::start(epoch, place);
    // SAFETY: a shim has one thread.
    #[allow(unsafe_code)]
    unsafe {
        memory::give_back_stack();
    }
    match started.and_then(|mut shim| shim.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("muleteer-shim[{}] epoch {epoch}: {error}", std::process::id());
            ExitCode::FAILURE
        }
    }
}

/// The argument that makes a shim print its build: see [`build`].
pub const BUILD_WORD: &str = "--build";

/// Returns the version, the protocol and the source hash of this shim. If `muleteer-shim` prints
/// another text than the `muleteer` that starts it expects, the two were not built together.
pub fn build() -> String {
    let (version, protocol) = (env!("CARGO_PKG_VERSION"), muleteer_protocol::shim::v1::VERSION);
    format!("muleteer-shim {version} protocol {protocol} sources {}", env!("MULETEER_SHIM_SOURCES"))
}

/// The first argument that makes this program run an agent in its sandbox.
pub const CONFINE: &str = "confine";

fn epoch_of(args: impl IntoIterator<Item = OsString>) -> Option<u32> {
    let mut args = args.into_iter();
    let mut epoch = None;
    while let Some(name) = args.next() {
        let value = args.next()?;
        match name.to_str()? {
            "--epoch" => epoch = Some(value.to_str()?.parse().ok()?),
            // Only for people who read the output of `ps`.
            "--agent" => {}
            _ => return None,
        }
    }
    epoch
}

/// Where a shim runs: the same for all shims of one daemon.
#[derive(Debug)]
pub(crate) struct Place {
    boot_id: String,
    pid_namespace: u64,
    /// The daemon's cgroup; an agent's own is created below it.
    cgroup: Option<PathBuf>,
}

impl Place {
    pub(crate) fn find() -> Self {
        Self {
            boot_id: identity::boot_id(),
            pid_namespace: identity::pid_namespace(),
            cgroup: cgroup::own(),
        }
    }
}

/// The state of the agent. Times are awake time.
#[derive(Debug)]
enum Phase {
    Starting(Released),
    Running,
    /// Stdin was closed because no daemon renewed the lease; a CLI may finish its turn.
    Letting {
        term_at: Duration,
    },
    Terminating {
        kill_at: Duration,
    },
    Killing {
        give_up_at: Duration,
    },
    /// The agent's own end is recorded; the processes that it left were sent TERM.
    Clearing {
        kill_at: Duration,
    },
    ClearKilling {
        give_up_at: Duration,
    },
    /// `ended` is written, or waits for room.
    Gone,
}

struct Shim {
    launch: Launch,
    /// Held for the process's life; only our death releases it.
    _lock: LockGuard,
    key: [u8; 16],
    writer: Writer,
    own: ProcessId,
    agent: ProcessId,
    cgroup: Option<PathBuf>,
    phase: Phase,
    /// Why the agent will have ended, if the shim ended it.
    cause: Option<Cause>,
    /// The processes that the agent left and this shim killed.
    left: Vec<Left>,
    output: Output,
    stdin: stdin::Stdin,
    keys: keys::Keys,
    peers: peers::Peers,
    listener: UnixListener,
    signals: Signals,
    /// Control records for which the spool had no room.
    unsaid: VecDeque<Control>,
    blocked: Option<BlockReason>,
    retry_at: Option<Duration>,
    lease_at: Duration,
    deadline_at: Option<Duration>,
    sample_at: Option<Duration>,
    /// The cgroup limits processes and memory, so that they are not sampled.
    is_limited: bool,
    private_size: private_size::PrivateSize,
    scan_at: Option<Duration>,
    suspend: SuspendWatch,
    nudged_at: Duration,
}

impl Shim {
    /// Starts everything up to an agent that is recorded and released. The result is in a box and
    /// the function has its own stack frame, so that the stack it used can be returned to the
    /// system.
    #[inline(never)]
    fn start(epoch: u32, place: &Place) -> io::Result<Box<Self>> {
        let dir = Path::new(".");
        let _ = rustix::process::setsid();
        fault::point("shim.begun");
        let lock = take_over_lock(dir)?;
        // The shim's sockets and files are private from the moment they exist.
        let umask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let launch = Launch::read(dir, epoch).map_err(io::Error::other)?;
        let key = crate::start::read_key(dir)?;
        let signals = Signals::catch(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP])?;
        let subreaper = host().become_subreaper();
        let mut writer = Writer::create(&spool::dir_of(dir), epoch, launch.spool)?;
        // We hold the lock, so a file with this name is a dead shim's.
        let _ = std::fs::remove_file(dir.join(SOCKET));
        let listener = UnixListener::bind(SOCKET)?;
        listener.set_nonblocking(true)?;
        let own = ProcessId::current();
        let cgroup = place
            .cgroup
            .as_ref()
            .filter(|_| launch.cgroup)
            .and_then(|own| cgroup::create(own, &format!("muleteer-{}-{epoch}", launch.nonce)));
        let limits = launch.limits;
        let is_limited = cgroup
            .as_deref()
            .filter(|_| limits.hard)
            .is_some_and(|cgroup| cgroup::limit(cgroup, limits.max_procs, limits.max_memory_bytes));
        let mut meta = Meta {
            v: meta::VERSION,
            epoch,
            generation: launch.generation,
            shim: own,
            agent: None,
            boot_id: place.boot_id.clone(),
            pid_namespace: place.pid_namespace,
            nonce: launch.nonce.clone(),
            containment: String::new(),
            cgroup: cgroup.clone(),
            started_ms: wall_ms(),
            version: env!("CARGO_PKG_VERSION").into(),
        };
        meta.write(dir)?;
        fault::point("shim.meta_written");

        let (agent, phase, output, stdin) = match hold(&launch, umask, cgroup.as_deref()) {
            Ok((held, output, stdin)) => {
                fault::point("shim.forked");
                meta.containment = containment(held.contained(), subreaper);
                let (agent, released) = record_and_release(held, meta, dir, &mut writer)?;
                (agent, Phase::Starting(released), output, stdin)
            }
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(0);
                let text = format!("{}: {error}", launch.argv[0]);
                writer.append(Stream::Control, &Control::StartFailed { errno, text }.encode())?;
                let none = ProcessId { pid: 0, start_time: 0 };
                (none, Phase::Gone, Output::new(None, None), stdin::Stdin::new(None))
            }
        };
        let now = awake();
        let sampled = is_sampled(&limits, is_limited);
        let mut shim = Box::new(Self {
            key,
            own,
            agent,
            cgroup,
            phase,
            cause: None,
            left: vec![],
            output,
            stdin,
            keys: keys::Keys::default(),
            peers: peers::Peers::new(launch.generation),
            listener,
            signals,
            unsaid: VecDeque::new(),
            blocked: None,
            retry_at: None,
            lease_at: now + Duration::from_millis(launch.timing.lease_ms),
            deadline_at: (limits.deadline_ms > 0)
                .then(|| now + Duration::from_millis(limits.deadline_ms)),
            sample_at: sampled.then(|| now + Duration::from_millis(launch.timing.sample_ms)),
            is_limited,
            private_size: private_size::PrivateSize::default(),
            scan_at: None,
            suspend: SuspendWatch::new(),
            nudged_at: Duration::ZERO,
            writer,
            _lock: lock,
            launch,
        });
        if matches!(shim.phase, Phase::Gone) {
            shim.say(Control::Ended { survivors: 0, left: vec![] });
        }
        // The agent has its environment now, and the memory of its start is not needed again.
        shim.launch.env = vec![];
        memory::give_back();
        output::wake_in_time();
        Ok(shim)
    }

    fn run(&mut self) -> io::Result<()> {
        loop {
            self.nudge();
            if matches!(self.phase, Phase::Gone) && self.unsaid.is_empty() {
                break;
            }
            let ready = self.wait()?;
            if let Some(slept) = self.suspend.slept() {
                self.say(Control::Suspended { ms: slept.as_millis() as u64 });
            }
            if ready.signals {
                for signo in self.signals.take() {
                    if matches!(signo, libc::SIGTERM | libc::SIGINT) {
                        let grace = Duration::from_millis(self.launch.timing.term_grace_ms);
                        self.terminate(grace, Cause::Terminated);
                    }
                }
            }
            if ready.status {
                self.look_at_exec();
            }
            self.read_output(&ready);
            if ready.stdin {
                self.write_stdin();
            }
            self.serve_peers(&ready);
            // After reading, because the agent's last output has then mostly been read already.
            if ready.signals {
                self.reap();
            }
            self.on_time(awake());
        }
        let _ = std::fs::remove_file(SOCKET);
        self.writer.finish();
        self.peers.flush();
        // Until here the zombie has kept the group's number from being reused.
        spawn::reap(self.agent.pid);
        if let Some(cgroup) = &self.cgroup {
            cgroup::remove(cgroup);
        }
        Ok(())
    }

    /// Appends a control record, now or when there is room again.
    fn say(&mut self, control: Control) {
        let _ = self.writer.room();
        let last = control.is_final()
            || matches!(control, Control::Ended { .. } | Control::Blocked { .. });
        if !last && (self.unsaid.len() >= MAX_UNSAID || self.writer.reserve() < LAST_WORDS) {
            return;
        }
        self.unsaid.push_back(control);
        self.say_unsaid();
    }

    fn say_unsaid(&mut self) {
        while let Some(control) = self.unsaid.front() {
            if self.writer.append(Stream::Control, &control.encode()).is_err() {
                self.retry_at.get_or_insert(awake() + DISK_RETRY);
                return;
            }
            self.unsaid.pop_front();
        }
    }

    /// Checks whether exec has passed or failed.
    fn look_at_exec(&mut self) {
        let Phase::Starting(released) = &self.phase else { return };
        match released.status() {
            ExecStatus::Pending => {}
            ExecStatus::Passed => self.phase = Phase::Running,
            ExecStatus::Failed { errno, stage } => {
                let what = match stage {
                    Stage::Chdir => self.launch.cwd.display().to_string(),
                    Stage::Exec => self.launch.argv[0].clone(),
                };
                let text = format!("{what}: {}", io::Error::from_raw_os_error(errno));
                self.say(Control::StartFailed { errno, text });
                self.close_stdin();
                self.finish(0);
            }
        }
    }

    /// Does everything that is due.
    fn on_time(&mut self, now: Duration) {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.say_unsaid();
            self.look_for_room();
        }
        let alive = matches!(self.phase, Phase::Running | Phase::Starting(_));
        if alive && self.lease_at <= now {
            self.say(Control::LeaseExpired);
            self.cause.get_or_insert(Cause::LeaseExpired);
            self.close_stdin();
            self.phase = Phase::Letting {
                term_at: now + Duration::from_millis(self.launch.timing.lease_grace_ms),
            };
        }
        if self.deadline_at.is_some_and(|at| at <= now) {
            self.deadline_at = None;
            self.break_rule(
                Policy::Deadline,
                format!("{} ms awake", self.launch.limits.deadline_ms),
            );
        }
        if self.sample_at.is_some_and(|at| at <= now) {
            self.sample_at =
                Some(now + Duration::from_millis(self.launch.timing.sample_ms.max(50)));
            self.sample();
        }
        self.advance_ending(now);
    }

    /// Ends the agent because a limit of the launch was reached.
    fn break_rule(&mut self, what: Policy, detail: String) {
        if matches!(self.phase, Phase::Starting(_) | Phase::Running | Phase::Letting { .. }) {
            self.say(Control::PolicyKill { what, detail });
            let grace = Duration::from_millis(self.launch.timing.term_grace_ms);
            self.terminate(grace, Cause::ShimPolicy);
        }
    }
}

/// Takes over the agent's lock from standard input, and closes all other inherited descriptors: a
/// copy of another process's pipe would keep that pipe open.
fn take_over_lock(dir: &Path) -> io::Result<LockGuard> {
    let not_ours = || io::Error::other("standard input is not this agent's lock");
    let inherited = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let lock = LockGuard::inherit(inherited)?.ok_or_else(not_ours)?;
    if !lock.is_on(&dir.join(LOCK))? {
        return Err(not_ours());
    }
    spawn::close_others(&lock);
    let null = open_null()?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(lock)
}

fn open_null() -> io::Result<OwnedFd> {
    Ok(std::fs::File::options().read(true).write(true).open("/dev/null")?.into())
}

/// Records a forked agent in its lock file and in the spool, and only then lets it run.
fn record_and_release(
    held: Held,
    mut meta: Meta,
    dir: &Path,
    writer: &mut Writer,
) -> io::Result<(ProcessId, Released)> {
    let agent = held.id();
    meta.agent = Some(agent);
    meta.write(dir)?;
    let spawned = Control::Spawned { agent, shim: meta.shim, containment: meta.containment };
    writer.append(Stream::Control, &spawned.encode())?;
    fault::point("shim.recorded");
    let released = held.release()?;
    fault::point("shim.released");
    Ok((agent, released))
}

fn hold(
    launch: &Launch,
    umask: rustix::fs::Mode,
    cgroup: Option<&Path>,
) -> io::Result<(Held, Output, stdin::Stdin)> {
    let path = launch.env.iter().rfind(|(name, _)| name == "PATH").map(|(_, value)| value.as_str());
    let program = find_program(&launch.argv[0], path, &launch.cwd)?;
    let env = launch.env.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let env =
        env.filter(|(name, _)| *name != NONCE_VAR).chain([(NONCE_VAR, launch.nonce.as_str())]);
    let argv = launch.argv.iter().map(String::as_str);
    let program = Program::new(&program, argv, env, &launch.cwd, umask)?;
    let (stdin_read, stdin) = match launch.stdin {
        StdinMode::Null => (open_null()?, None),
        StdinMode::Pipe => {
            let (read, write) = pipe::pair()?;
            pipe::set_nonblocking(&write)?;
            (read, Some(write))
        }
    };
    let (stdout, stdout_write) = pipe::pair()?;
    let (stderr, stderr_write) = pipe::pair()?;
    for end in [&stdout, &stderr] {
        pipe::set_nonblocking(end)?;
    }
    // The kernel limits a user's pipes to 16,384 pages in total, and these two carry little.
    #[cfg(target_os = "linux")]
    for pipe in stdin.iter().chain([&stderr]) {
        let _ = rustix::pipe::fcntl_setpipe_size(pipe, 8 << 10);
    }
    let stdio = Stdio { stdin: stdin_read, stdout: stdout_write, stderr: stderr_write };
    let held = program.hold(stdio, cgroup)?;
    Ok((held, Output::new(Some(stdout), Some(stderr)), stdin::Stdin::new(stdin)))
}

/// Whether the shim itself must watch a limit of the agent.
fn is_sampled(limits: &Limits, is_limited: bool) -> bool {
    let has_limits = limits.max_procs > 0 || limits.max_memory_bytes > 0;
    (has_limits && !is_limited) || limits.max_private_bytes > 0
}

fn containment(cgroup: bool, subreaper: bool) -> String {
    let abilities = host().abilities();
    let parts = [
        (cgroup, "cgroup"),
        (abilities.parent_death_signal, "pdeathsig"),
        (subreaper, "subreaper"),
        (true, "sweep"),
    ];
    parts.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect::<Vec<_>>().join("+")
}
