//! `--remote`: a verb runs on another host, by ssh, against the daemon there.
//!
//! `ssh HOST muleteer connect` gets an [`order`] first: the verb's arguments and the size of this
//! terminal. The whole verb runs there, because many verbs read files of the state directory beside
//! the socket, and all paths that a person names are paths of that host. ssh carries stdin, stdout,
//! stderr and the exit code.
//!
//! A connection that is lost does not say whether the verb took effect. So the verb gets a *resend
//! key*, from which it derives the ids and keys of its requests. Run again with the same key, it
//! sends the same requests, and the daemon recognises them: no agent starts twice, and no message
//! is delivered twice.

pub mod answer;
mod guard;
mod input;
pub mod order;
mod pieces;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::far_screen;
use crate::cli::global::Global;
use crate::cli::output::Output;
use crate::client::interrupt;
use answer::Answer;
use guard::Guard;
use input::Input;
use muleteer_model::event::id::ID_BYTES;
use muleteer_model::text::fnv1a;
use muleteer_process::command::helper;
use muleteer_process::signals::end_by;
use muleteer_protocol::ErrorCode;
use order::{BEGUN, Order};
use rustix::process::Pid;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::process::{Child, ExitCode, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The variable that stands for `--remote`.
pub const VARIABLE: &str = "MULETEER_HOST";
/// The exit code of ssh for an error of its own.
const SSH_FAILED: i32 = 255;
/// The exit code of a shell that does not find a program.
const NOT_FOUND: i32 = 127;
/// How often a verb is run again after its connection was lost, in a row.
const RESENDS: u32 = 3;
/// How often it is run again if it never began: the host is likely misspelt.
const RESENDS_UNBEGUN: u32 = 1;
/// A connection that lasted this long was a good one, and the count begins again.
const LASTING: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(1);
/// Without these, a host that vanishes is noticed after hours.
const OPTIONS: &[&str] = &["-T", "-oServerAliveInterval=15", "-oServerAliveCountMax=4"];
/// A person was asked for a password, or read ssh's complaint, once. That is enough.
const OPTIONS_AGAIN: &[&str] = &["-q", "-oBatchMode=yes"];

/// Returns the other host: `--remote`, else `MULETEER_HOST`. The order of another host ends here.
/// `is_local` is a verb for which only `--remote` counts.
///
/// # Errors
/// `E_USAGE` if ssh would not take the name for a host.
pub fn host(global: &Global, is_local: bool) -> Result<Option<String>, Failure> {
    if ORDER.get().is_some() {
        return Ok(None);
    }
    let named = global.remote.clone();
    // An agent has its daemon, whatever the profile of its shell sets.
    let is_agent = || std::env::var_os("MULETEER_SOCKET").is_some_and(|path| !path.is_empty());
    let variable = || std::env::var(VARIABLE).ok().filter(|_| !is_local && !is_agent());
    let Some(host) = named.or_else(variable).filter(|host| !host.is_empty()) else {
        return Ok(None);
    };
    let is_name = |c: char| !c.is_whitespace() && !c.is_control();
    let is_option = |name: &str| name.is_empty() || name.starts_with('-');
    if is_option(&host) || host.split('@').any(is_option) || !host.chars().all(is_name) {
        return Err(Failure::new(ErrorCode::Usage, format!("`{host}` is not the name of a host"))
            .hint("name it as ssh does: --remote [USER@]HOST"));
    }
    Ok(Some(host))
}

/// Runs a verb on `host` and returns its exit code. `args` are the arguments of this program.
///
/// # Errors
/// `E_NO_DAEMON` if the host cannot be reached, has no `muleteer`, or the connection was lost and
/// the verb cannot be run again.
pub fn run(host: &str, args: &[OsString], out: Output) -> Result<ExitCode, Failure> {
    let order = Order::new(new_key()?, args, out)?.encoded()?;
    let stdin = io::stdin();
    // Typed text stays with the terminal: no verb of another host asks for any.
    let input = if stdin.is_terminal() { Input::empty() } else { Input::read(stdin) };
    let guard = Guard::begin()?;
    let (mut lost, mut has_begun) = (0, false);
    loop {
        let began = Instant::now();
        let again = if lost > 0 { OPTIONS_AGAIN } else { &[] };
        let (answer, code) = attempt(host, again, (&order, &input), &guard)?;
        let noise = String::from_utf8_lossy(&answer.noise);
        if !answer.has_begun && !noise.trim().is_empty() {
            out.note(noise.trim_end());
        }
        has_begun |= answer.has_begun;
        match code {
            Some(SSH_FAILED) | None => std::thread::sleep(PAUSE),
            Some(code) if answer.has_begun => {
                return Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)));
            }
            Some(code) => return Err(unbegun(host, code)),
        }
        if let Some(signal) = guard.signal() {
            return interrupted(host, signal, out);
        }
        if let Some(error) = input.failure() {
            return Err(Failure::new(ErrorCode::Io, format!("cannot read stdin: {error}"))
                .hint("the verb got no end of its input, so it did not take effect"));
        }
        lost = if began.elapsed() >= LASTING { 1 } else { lost + 1 };
        let most = if has_begun { RESENDS } else { RESENDS_UNBEGUN };
        // A second run would repeat output, or miss the beginning of stdin.
        if answer.has_printed || !input.is_whole() || lost > most {
            let message = match has_begun {
                true => format!("the connection to {host} was lost before the verb ended"),
                false => format!("cannot run the verb on {host}: ssh failed"),
            };
            return Err(Failure::new(ErrorCode::NoDaemon, message)
                .hint(format!("check `ssh {host} muleteer status`, then run the verb again")));
        }
        out.detail(format!("the connection to {host} was lost; retrying"));
    }
}

/// Returns the error of a host on which the verb did not begin.
fn unbegun(host: &str, code: i32) -> Failure {
    let message = match code {
        NOT_FOUND => format!("{host} has no `muleteer` on the PATH of its ssh sessions"),
        code => format!("{host} did not run the verb: `muleteer connect` exited with {code} there"),
    };
    Failure::new(ErrorCode::NoDaemon, message)
        .hint(format!("install muleteer there, and check `ssh {host} muleteer --version`"))
}

/// Ends as a verb of this host does. The signal has ended ssh, and so the verb.
fn interrupted(host: &str, signal: i32, out: Output) -> Result<ExitCode, Failure> {
    if signal != rustix::process::Signal::INT.as_raw() {
        end_by(signal)?;
    }
    out.note(format!("\nstopped; agents on {host} continue"));
    Ok(Exit::Interrupted.into())
}

/// Runs ssh once. Returns what came back, and its exit code: the verb's or ssh's own; `None` if a
/// signal ended ssh.
fn attempt(
    host: &str,
    again: &[&str],
    (order, input): (&[u8], &Input),
    guard: &Guard,
) -> Result<(Answer, Option<i32>), Failure> {
    let mut command = helper("ssh");
    command.args(OPTIONS).args(again).args([host, "muleteer", "connect"]);
    // The other side must run the verb itself, also where ssh passes variables on.
    command.env_remove(VARIABLE).env_remove("MULETEER_SOCKET");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let child = command.spawn().map_err(|error| {
        Failure::new(ErrorCode::NoDaemon, format!("cannot start ssh: {error}"))
            .hint("install an ssh client, and check that it is on your PATH")
    })?;
    let mut ssh = Ssh { child, guard };
    guard.watch(i32::try_from(ssh.child.id()).ok().and_then(Pid::from_raw));
    let giving = ssh.child.stdin.take().map(|stdin| input.give(order.to_vec(), stdin));
    let copied = ssh.child.stdout.take().map(|stdout| answer::copy(stdout, io::stdout()));
    let ended = copied.transpose().and_then(|answer| Ok((answer, ssh.end(false)?)));
    // A write to an ssh that has ended fails, so the thread ends too.
    drop(ssh);
    input.end_run();
    drop(giving.map(|giving| giving.join()));
    let (answer, code) = ended?;
    Ok((answer.unwrap_or_default(), code))
}

/// A running ssh, which ends with its owner.
struct Ssh<'a> {
    child: Child,
    guard: &'a Guard,
}

impl Ssh<'_> {
    fn end(&mut self, by_force: bool) -> io::Result<Option<i32>> {
        if by_force {
            // It fails only if ssh has ended.
            drop(self.child.kill());
        }
        self.guard.watch(None);
        Ok(self.child.wait()?.code())
    }
}

impl Drop for Ssh<'_> {
    fn drop(&mut self) {
        drop(self.end(true));
    }
}

fn new_key() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::new(ErrorCode::Io, format!("cannot get random bytes: {error}"))
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

static ORDER: OnceLock<Order> = OnceLock::new();

/// Takes the order of another host: this process runs its verb from now on. Returns the arguments.
///
/// # Errors
/// If the other host is gone.
pub fn begin(order: Order) -> io::Result<Vec<OsString>> {
    let args = [OsString::from("muleteer")].into_iter().chain(order.args.iter().map(Into::into));
    let args = args.collect();
    far_screen::set(order.screen);
    drop(ORDER.set(order));
    unpack_stdin()?;
    let mut out = io::stdout();
    out.write_all(BEGUN)?;
    out.flush()?;
    // A verb that prints nothing would never learn that its user is gone. The thread ends with the
    // process.
    std::thread::spawn(|| {
        if interrupt::closed(&io::stdout()) {
            drop(end_by(rustix::process::Signal::HUP.as_raw()));
        }
    });
    Ok(args)
}

/// Makes stdin a pipe that gets the bytes of the pieces which arrive. Its end is the written one:
/// if the connection is lost before, the verb ends with it.
fn unpack_stdin() -> io::Result<()> {
    let from = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let (reader, writer) = io::pipe()?;
    rustix::stdio::dup2_stdin(reader)?;
    // The thread ends with the process.
    std::thread::spawn(move || {
        if pieces::copy(from, &writer).is_err() {
            // The pipe stays open until nobody can read from it.
            drop(end_by(rustix::process::Signal::HUP.as_raw()));
        }
    });
    Ok(())
}

/// Returns the next bytes that the resend key gives; `None` without a key.
pub fn repeatable() -> Option<[u8; ID_BYTES]> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let order = ORDER.get().filter(|order| !order.resend_key.is_empty())?;
    Some(derived(&order.resend_key, COUNT.fetch_add(1, Ordering::Relaxed)))
}

fn derived(key: &str, count: u64) -> [u8; ID_BYTES] {
    let mut bytes = [0; ID_BYTES];
    let hash = fnv1a::of(format!("{key}/{count}").as_bytes()).to_be_bytes();
    for (byte, hashed) in bytes.iter_mut().zip(hash) {
        *byte = hashed;
    }
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn global(remote: &str) -> Global {
        Global { remote: Some(remote.into()), ..Global::default() }
    }

    #[test]
    fn host_that_ssh_would_take_for_an_option_is_rejected() {
        for wrong in ["-oProxyCommand=touch x", "--", "a b", "a\nb", "me@-oX", "@box", "me@"] {
            assert!(host(&global(wrong), false).is_err(), "{wrong:?}");
        }
        for right in ["box", "me@box", "ssh://me@box:2222", "::1"] {
            assert_eq!(host(&global(right), false).unwrap().as_deref(), Some(right));
        }
    }

    #[test]
    fn resend_key_gives_the_same_ids_again() {
        assert_eq!(derived("k", 0), derived("k", 0));
        assert_ne!(derived("k", 0), derived("k", 1));
        assert_ne!(derived("k", 0), derived("l", 0));
    }
}
