//! Records a crash: the next process learns that this one crashed by itself and was not killed.
//!
//! A stack overflow, an abort or a wild memory access ends a process before its own code can report
//! it. A handler for their signals writes one byte to a file that was opened before. SIGKILL leaves
//! no record, and neither does a signal of another process: a service manager's watchdog sends
//! SIGABRT.
//!
//! Unlike all other handlers ([`crate::signals`]), these are not `signal-hook`'s. That library
//! forbids SEGV, ILL and FPE. Its unchecked registration looks up the signal on the heap, which the
//! fault may have destroyed, and calls Rust's own handler first: that handler uninstalls itself,
//! and a signal of another process would then be lost.

#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};

/// The signals by which a process ends itself.
const SIGNALS: [i32; 5] = [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];

static WORD: AtomicI32 = AtomicI32::new(-1);

/// Returns whether the last process that called this for `file` crashed. From now on the file
/// records this process. Call it once, as the only process that uses the file.
///
/// # Errors
/// If the file cannot be read or written.
pub fn watch(file: &Path) -> io::Result<bool> {
    let crashed = match file.metadata() {
        Ok(meta) => meta.len() > 0,
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    let mut options = OpenOptions::new();
    let file: File = options.write(true).create(true).truncate(true).mode(0o600).open(file)?;
    // Kept open for the rest of the process's life, as the handlers are.
    WORD.store(file.into_raw_fd(), Ordering::SeqCst);
    for signo in SIGNALS {
        catch(signo)?;
    }
    Ok(crashed)
}

/// Installs the handler for a signal.
fn catch(signo: i32) -> io::Result<()> {
    // SAFETY: an all-zero sigaction is valid. The handler is async-signal-safe: it uses atomics,
    // write(2) and sigaction(2). It runs on the alternate stack that Rust gives each of its
    // threads, because a full stack has no room for it.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = on_crash;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_SIGINFO;
        libc::sigaction(signo, &action, before(signo))
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the storage for a signal's previous action: Rust's own handler reports a stack overflow.
fn before(signo: i32) -> *mut libc::sigaction {
    static mut BEFORE: std::mem::MaybeUninit<[libc::sigaction; SIGNALS.len()]> =
        std::mem::MaybeUninit::zeroed();
    let at = SIGNALS.iter().position(|known| *known == signo).unwrap_or(0);
    // SAFETY: no reference is made; the place is written once, before its handler can run, and only
    // read then.
    unsafe { (&raw mut BEFORE).cast::<libc::sigaction>().add(at) }
}

extern "C" fn on_crash(signo: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    let word = WORD.load(Ordering::SeqCst);
    // SAFETY: plain numbers, pointers to statics, and the description that the kernel hands to a
    // handler of this kind. All that is called here is async-signal-safe.
    unsafe {
        // A fault of the processor has a positive code; abort(3) sends its signal itself.
        let is_sent = signo == libc::SIGABRT || (*info).si_code <= 0;
        let is_ours = !is_sent || (*info).si_pid() == libc::getpid();
        if word >= 0 && is_ours {
            libc::write(word, c"!".as_ptr().cast(), 1);
        }
        if is_sent {
            // Nothing else would send the signal again.
            libc::signal(signo, libc::SIG_DFL);
            libc::raise(signo);
        } else {
            // The faulting instruction runs again and triggers the previous action.
            libc::sigaction(signo, before(signo), std::ptr::null_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    /// Handlers belong to the process, so the test program runs itself for each way to end.
    const VAR: &str = "MULETEER_TEST_CRASH";

    fn overflow(depth: u64) -> u64 {
        let room = std::hint::black_box([depth; 512]);
        if depth == u64::MAX { 0 } else { overflow(depth + 1) + room[7] }
    }

    #[test]
    fn abort_and_stack_overflow_are_logged_and_foreign_signals_are_not() {
        if let Ok(said) = std::env::var(VAR) {
            let (way, file) = said.split_once(' ').unwrap();
            watch(Path::new(file)).unwrap();
            match way {
                "abort" => std::process::abort(),
                "overflow" => {
                    let thread = std::thread::spawn(|| overflow(0));
                    drop(thread.join());
                }
                // Another process sends it, as a watchdog does.
                "ABRT" | "SEGV" => {
                    let mut other = crate::command::helper("kill");
                    other.arg(format!("-{way}")).arg(std::process::id().to_string());
                    drop(other.status());
                    std::thread::sleep(std::time::Duration::from_secs(30));
                    std::process::exit(0);
                }
                "kill" => drop(rustix::process::kill_process(
                    rustix::process::getpid(),
                    rustix::process::Signal::KILL,
                )),
                _ => std::process::exit(0),
            }
            unreachable!("it ended");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("crashed");
        let ended = |way: &str| {
            let mut command = crate::command::helper(std::env::current_exe().unwrap());
            command
                .args(["crash::tests", "--nocapture"])
                .env(VAR, format!("{way} {}", file.display()));
            let output = command.output().unwrap();
            (output, file.metadata().unwrap().len() > 0)
        };
        let ways = [
            ("abort", true),
            ("overflow", true),
            ("ABRT", false),
            ("SEGV", false),
            ("kill", false),
        ];
        for (way, word) in ways.into_iter().chain([("end", false)]) {
            let (output, left) = ended(way);
            assert_eq!(left, word, "{way}: {output:?}");
            assert_eq!(output.status.signal().is_some(), way != "end", "{way}: {output:?}");
            if way == "overflow" {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(
                    said.contains("overflowed its stack"),
                    "Rust's own word is heard too: {said}"
                );
            }
        }
    }
}
