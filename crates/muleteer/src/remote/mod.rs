//! `--remote`: a verb runs on another host, by ssh, against the daemon there.
//!
//! The whole verb runs there, because many verbs read files of the state directory beside the
//! socket, and all paths that a person names are paths of that host. ssh carries stdin, stdout,
//! stderr and the exit code.
//!
//! A connection that is lost does not say whether the verb took effect. So the verb gets a *resend
//! key*, from which it derives the ids and keys of its requests. Run again with the same key, it
//! sends the same requests, and the daemon recognises them: no agent starts twice, and no message
//! is delivered twice.

mod input;

use crate::cli::failure::Failure;
use crate::cli::global::Global;
use crate::cli::output::Output;
use input::Input;
use muleteer_model::event::id::ID_BYTES;
use muleteer_model::text::fnv1a;
use muleteer_process::command::helper;
use muleteer_protocol::ErrorCode;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::process::{Child, ExitCode, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The variable that stands for `--remote`.
pub const VARIABLE: &str = "MULETEER_HOST";
/// The option that carries the resend key, always the first one. Only this module writes it.
const RESEND_KEY: &str = "--resend-key";
/// The exit code of ssh for an error of its own.
const SSH_FAILED: i32 = 255;
/// The exit code of a shell that does not find a program.
const NOT_FOUND: i32 = 127;
/// How often a verb is run again after its connection was lost, in a row.
const RESENDS: u32 = 3;
/// A connection that lasted this long was a good one, and the count begins again.
const LASTING: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(1);
/// Without these, a host that vanishes is noticed after hours.
const OPTIONS: &[&str] = &["-T", "-oServerAliveInterval=15", "-oServerAliveCountMax=4"];

/// Returns the other host: `--remote`, else `MULETEER_HOST`.
///
/// # Errors
/// `E_USAGE` if ssh would not take the name for a host.
pub fn host(global: &Global) -> Result<Option<String>, Failure> {
    let named = global.remote.clone();
    let variable = || std::env::var(VARIABLE).ok();
    let Some(host) = named.or_else(variable).filter(|host| !host.is_empty()) else {
        return Ok(None);
    };
    let is_name = |c: char| !c.is_whitespace() && !c.is_control();
    if host.starts_with('-') || !host.chars().all(is_name) {
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
    let words = words(args)?;
    // ssh reads a terminal itself.
    let input = (!io::stdin().is_terminal()).then(|| Input::read(io::stdin()));
    let mut lost = 0;
    loop {
        let began = Instant::now();
        let ended = attempt(host, &words, input.as_ref())?;
        match ended.code {
            Some(NOT_FOUND) if !ended.has_printed => {
                let message = format!("{host} has no `muleteer` on the PATH of its ssh sessions");
                return Err(Failure::new(ErrorCode::NoDaemon, message)
                    .hint(format!("install it there, and check `ssh {host} muleteer --version`")));
            }
            Some(SSH_FAILED) | None => {}
            Some(code) => return Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))),
        }
        lost = if began.elapsed() >= LASTING { 1 } else { lost + 1 };
        // A second run would repeat output, or miss the beginning of stdin.
        let can_repeat = !ended.has_printed && input.as_ref().is_none_or(Input::is_whole);
        if !can_repeat || lost > RESENDS {
            let message = match ended.has_printed {
                true => format!("the connection to {host} was lost before the verb ended"),
                false => format!("cannot run the verb on {host}: ssh failed"),
            };
            return Err(Failure::new(ErrorCode::NoDaemon, message)
                .hint(format!("check `ssh {host} muleteer status`, then run the verb again")));
        }
        out.detail(format!("the connection to {host} was lost; retrying"));
        std::thread::sleep(PAUSE);
    }
}

/// The end of one run of ssh.
struct Ended {
    /// The verb's exit code, or ssh's own; `None` if a signal ended ssh.
    code: Option<i32>,
    has_printed: bool,
}

fn attempt(host: &str, words: &[String], input: Option<&Input>) -> Result<Ended, Failure> {
    let mut command = helper("ssh");
    command.args(OPTIONS).arg(host).args(words);
    // The other side must run the verb itself, also where ssh passes variables on.
    command.env_remove(VARIABLE).env_remove("MULETEER_SOCKET");
    let stdin = if input.is_some() { Stdio::piped() } else { Stdio::inherit() };
    command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let child = command.spawn().map_err(|error| {
        Failure::new(ErrorCode::NoDaemon, format!("cannot start ssh: {error}"))
            .hint("install an ssh client, and check that it is on your PATH")
    })?;
    let mut child = Ssh(child);
    let giving = input.zip(child.0.stdin.take()).map(|(input, stdin)| input.give(stdin));
    let copied = child.0.stdout.take().map(|stdout| copy(stdout, io::stdout())).transpose();
    let ended = copied.and_then(|copied| Ok((copied, child.0.wait()?)));
    // A write to an ssh that has ended fails, so the thread ends too.
    drop(child);
    if let (Some(input), Some(giving)) = (input, giving) {
        input.end_run();
        drop(giving.join());
    }
    let (has_printed, status) = ended?;
    Ok(Ended { code: status.code(), has_printed: has_printed.unwrap_or_default() })
}

/// A running ssh, which ends with its owner.
struct Ssh(Child);

impl Drop for Ssh {
    fn drop(&mut self) {
        // It fails only if ssh has ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Copies until the end of `from`, without delay. Returns whether there was anything to copy.
pub fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<bool> {
    let mut buffer = [0; 16 << 10];
    let mut has_copied = false;
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(has_copied),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        has_copied = true;
        to.write_all(buffer.get(..count).unwrap_or_default())?;
        to.flush()?;
    }
}

/// Returns the remote command, word by word and quoted for a shell: ssh joins its arguments with
/// spaces, and a shell of the other host reads them.
fn words(args: &[OsString]) -> Result<Vec<String>, Failure> {
    let mut words = vec!["muleteer".to_string(), RESEND_KEY.to_string(), new_key()?];
    let mut rest = args.iter().skip(1);
    let mut is_option = true;
    while let Some(arg) = rest.next() {
        let Some(word) = arg.to_str() else {
            let message = format!("the argument `{}` is not valid UTF-8", arg.to_string_lossy());
            return Err(Failure::new(ErrorCode::Usage, message));
        };
        is_option = is_option && word != "--";
        match word {
            "--remote" if is_option => drop(rest.next()),
            word if is_option && word.starts_with("--remote=") => {}
            word => words.push(quoted(word)),
        }
    }
    Ok(words)
}

/// Quotes a word for a POSIX shell, if that is necessary.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn new_key() -> Result<String, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        Failure::new(ErrorCode::Io, format!("cannot get random bytes: {error}"))
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

static KEY: OnceLock<String> = OnceLock::new();

/// Takes the resend key out of the arguments. This process then derives its ids and keys from it.
pub fn with_resend_key(mut args: Vec<OsString>) -> Vec<OsString> {
    if args.get(1).is_some_and(|option| option == RESEND_KEY) && args.len() > 2 {
        let key = args.drain(1..3).next_back();
        KEY.get_or_init(|| key.unwrap_or_default().to_string_lossy().into_owned());
    }
    args
}

/// Returns the next bytes that the resend key gives; `None` without a key.
pub fn repeatable() -> Option<[u8; ID_BYTES]> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let key = KEY.get()?;
    Some(derived(key, COUNT.fetch_add(1, Ordering::Relaxed)))
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
        for wrong in ["-oProxyCommand=touch x", "--", "a b", "a\nb"] {
            assert!(host(&global(wrong)).is_err(), "{wrong:?}");
        }
        for right in ["box", "me@box", "ssh://me@box:2222", "::1"] {
            assert_eq!(host(&global(right)).unwrap().as_deref(), Some(right));
        }
    }

    #[test]
    fn words_reach_the_other_shell_unchanged() {
        for (word, expected) in [
            ("status", "status"),
            ("", "''"),
            ("fix it", "'fix it'"),
            ("it's $HOME; rm *", "'it'\\''s $HOME; rm *'"),
            ("a\nb", "'a\nb'"),
            ("größe", "'größe'"),
        ] {
            assert_eq!(quoted(word), expected);
        }
    }

    #[test]
    fn remote_option_is_not_passed_on() {
        for (typed, expected) in [
            ("muleteer --remote box status -a", "status -a"),
            ("muleteer status --remote=box --json", "status --json"),
            ("muleteer send k3f9 -- --remote box", "send k3f9 -- --remote box"),
        ] {
            let args: Vec<_> = typed.split(' ').map(OsString::from).collect();
            assert_eq!(words(&args).unwrap()[3..].join(" "), expected, "{typed}");
        }
    }

    #[test]
    fn resend_key_gives_the_same_ids_again() {
        assert_eq!(derived("k", 0), derived("k", 0));
        assert_ne!(derived("k", 0), derived("k", 1));
        assert_ne!(derived("k", 0), derived("l", 0));
    }
}
