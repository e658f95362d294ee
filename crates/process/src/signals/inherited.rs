//! The blocked and ignored signals that a program inherits from the program that started it.
//!
//! Both survive exec. With a blocked or ignored SIGCHLD a program never learns that its children
//! have ended, and with a blocked or ignored TERM an agent cannot be stopped. So every program of
//! Muleteer calls [`begin`] first, and every process that it starts has the default action for
//! every signal and an empty mask.
//!
//! | inherited | [`begin`] |
//! |---|---|
//! | blocked signals | unblocks all |
//! | HUP, INT and QUIT ignored (`nohup`, a shell's background job) | a handler that does nothing |
//! | other ignored signals | the default action |
//! | PIPE | Rust's runtime ignores it; `std::process` restores it in children |
//!
//! A handler that does nothing ignores the signal in this process only: exec restores the default
//! action of a handled signal.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// The highest signal number.
const LAST: i32 = if cfg!(target_os = "linux") { 64 } else { 31 };
/// Signals that the starter of a program may want it to ignore.
const WANTED: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT];
/// One bit for each signal of [`WANTED`] that was ignored at [`begin`].
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// Resets the inherited signal mask and dispositions of this program. Call it first in `main`,
/// while the program has one thread.
pub fn begin() {
    for signo in (1..=LAST).filter(|signo| *signo != libc::SIGPIPE) {
        // SAFETY: an all-zero sigaction is valid, and the kernel fills it.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let read = libc::sigaction(signo, std::ptr::null(), &raw mut action);
            (read == 0 && action.sa_sigaction == libc::SIG_IGN).then_some(action)
        };
        // The C library refuses the two signals that it uses itself.
        let Some(mut action) = action else { continue };
        if WANTED.contains(&signo) {
            let handler: extern "C" fn(libc::c_int) = nothing;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_RESTART;
            IGNORED.fetch_or(1 << signo, Ordering::Relaxed);
        } else {
            action.sa_sigaction = libc::SIG_DFL;
        }
        // SAFETY: the action is the kernel's with a valid handler, which touches nothing.
        unsafe { libc::sigaction(signo, &raw const action, std::ptr::null_mut()) };
    }
    // A pending signal is delivered here, so the actions come first.
    unblock_all();
}

/// Whether the starter of this program lets it ignore HUP, INT or QUIT.
pub fn is_ignored(signo: i32) -> bool {
    WANTED.contains(&signo) && IGNORED.load(Ordering::Relaxed) & (1 << signo) != 0
}

/// Gives every signal its default action and empties the mask, for a child that is about to
/// execute another program. Async-signal-safe.
pub(crate) fn reset_before_exec() {
    for signo in 1..=LAST {
        // SAFETY: plain numbers; the kernel refuses KILL and STOP.
        unsafe { libc::signal(signo, libc::SIG_DFL) };
    }
    unblock_all();
}

fn unblock_all() {
    // SAFETY: the set is made empty before it is used.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

extern "C" fn nothing(_: libc::c_int) {}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::command::helper;
    use crate::signals::Signals;
    use std::process::Command;

    const VAR: &str = "MULETEER_TEST_INHERITED_SIGNALS";

    /// Returns this test program below one that blocks and ignores signals.
    fn below(test: &str, options: &[&str]) -> Command {
        let mut command = helper("env");
        command.args(options).arg(std::env::current_exe().unwrap());
        command.args([&format!("signals::inherited::tests::{test}"), "--exact", "--nocapture"]);
        command.env(VAR, "1");
        command
    }

    /// The number of one mask in a `status` file of `/proc`, without real-time signals 32 and 33,
    /// which the C library uses itself.
    fn mask(status: &str, name: &str) -> u64 {
        let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & !(0b11 << 31)
    }

    #[test]
    fn begin_gives_children_no_blocked_and_no_ignored_signals() {
        if std::env::var_os(VAR).is_some() {
            begin();
            let said = helper("cat").arg("/proc/self/status").output().unwrap();
            print!("{}", String::from_utf8_lossy(&said.stdout));
            return;
        }
        for options in [
            ["--block-signal=CHLD,TERM,INT,HUP,USR1", "--ignore-signal=CHLD,TERM"],
            ["--block-signal", "--ignore-signal"],
            ["--block-signal=PIPE", "--ignore-signal=HUP,INT,QUIT,PIPE,RTMIN"],
        ] {
            let name = "begin_gives_children_no_blocked_and_no_ignored_signals";
            let said = below(name, &options).output().unwrap();
            assert!(said.status.success(), "{options:?}: {said:?}");
            let said = String::from_utf8(said.stdout).unwrap();
            assert_eq!(
                (mask(&said, "SigBlk:"), mask(&said, "SigIgn:")),
                (0, 0),
                "{options:?}: {said}"
            );
        }
    }

    #[test]
    fn ignored_hangup_stays_ignored_and_is_not_caught() {
        if std::env::var_os(VAR).is_some() {
            begin();
            let mut caught = Signals::catch(&[libc::SIGHUP, libc::SIGTERM]).unwrap();
            for signo in [libc::SIGHUP, libc::SIGQUIT, libc::SIGTERM] {
                signal_hook::low_level::raise(signo).unwrap();
            }
            assert_eq!(caught.take(), [libc::SIGTERM]);
            assert!(is_ignored(libc::SIGHUP) && !is_ignored(libc::SIGTERM));
            return;
        }
        let options = ["--ignore-signal=HUP,QUIT,TERM"];
        let said = below("ignored_hangup_stays_ignored_and_is_not_caught", &options).output();
        let said = said.unwrap();
        assert!(said.status.success(), "{said:?}");
    }
}
