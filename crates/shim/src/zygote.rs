//! The zygote: a shim without an agent that forks shims on request. The daemon starts it. A fork
//! costs neither an exec nor the code before a program's `main`, and facts that are common to all
//! shims of a daemon are determined once. The zygote keeps no state: the daemon can do without it
//! (see [`crate::start::launch`]), and it ends with the daemon.
//!
//! ```text
//!   daemon                            zygote                           shim
//!   zygote::spawn ──exec────────────▶ finds out where it is
//!   hears [`READY`] ◀───────────────── READY
//!   ask(directory, lock, log) ──────▶ forks its brother ─────────────▶ takes the lock over, `run`
//!   hears [`Answer`] ◀──────────────── pid, or why not
//!   reaps the shim, a child of its own ◀──────────────────────────────┘
//! ```
//!
//! One message is one packet. Both ends usually come from the same build, but a package may be half
//! installed, so each packet begins with the version.

use crate::run::{self, Place};
use crate::start::ShimProgram;
use muleteer_process::fault;
use muleteer_process::identity::{self, Title};
use muleteer_process::spawn;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SocketType, recv, recvmsg, send, sendmsg, socketpair,
};
use std::ffi::OsStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, ExitCode, Stdio};

#[cfg(target_os = "linux")]
mod flags {
    use rustix::net::{RecvFlags, SendFlags, SocketFlags};
    pub const PAIR: SocketFlags = SocketFlags::CLOEXEC;
    pub const SEND: SendFlags = SendFlags::NOSIGNAL;
    pub const RECEIVE: RecvFlags = RecvFlags::CMSG_CLOEXEC;
}
/// For systems on which [`spawn`] starts no zygote.
#[cfg(not(target_os = "linux"))]
mod flags {
    use rustix::net::{RecvFlags, SendFlags, SocketFlags};
    pub const PAIR: SocketFlags = SocketFlags::empty();
    pub const SEND: SendFlags = SendFlags::empty();
    pub const RECEIVE: RecvFlags = RecvFlags::empty();
}

/// The first argument that makes a shim a zygote.
pub const WORD: &str = "zygote";
/// The first byte of every packet.
pub const VERSION: u8 = 1;
/// The first packet of a zygote: it accepts requests.
pub const READY: [u8; 4] = [VERSION, 0, 0, 0];

/// Version, three zeros, epoch, number; then the agent's name.
const ASK: usize = 16;
/// Version, three zeros, errno, number, pid.
const ANSWER: usize = 20;
/// A file's name has at most 255 bytes.
const NAME: usize = 255;
/// Space for a shim's arguments in the memory of the zygote's.
const ROOM: usize = 128;

/// A request for a shim. The descriptors are the agent's directory, its lock, and the shim's log.
#[derive(Debug)]
pub struct Ask<'a> {
    /// Chosen by the caller; the answer repeats it.
    pub number: u64,
    pub epoch: u32,
    /// The directory's name, for `ps`. A long name is cut.
    pub agent: &'a OsStr,
    pub dir: BorrowedFd<'a>,
    pub lock: BorrowedFd<'a>,
    pub log: BorrowedFd<'a>,
}

/// The outcome of an [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub number: u64,
    /// The shim's pid, which the daemon must reap, or the errno of the fork.
    pub outcome: Result<u32, i32>,
}

/// Starts a zygote. Returns our end of its socket, which does not block, and the child. It accepts
/// requests once it has sent [`READY`]; before that it may be a program that cannot do it.
///
/// # Errors
/// As for any start of a process; `Unsupported` on systems without zygotes.
pub fn spawn(program: &ShimProgram) -> io::Result<(OwnedFd, Child)> {
    if !cfg!(target_os = "linux") {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let (ours, its) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags::PAIR, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    let mut command = program.command("muleteer-zygote");
    // Its shims write their arguments over its own, so it gets spare room.
    command.arg(WORD).arg(" ".repeat(ROOM));
    let child = command.current_dir("/").stdin(Stdio::from(its)).stdout(Stdio::null()).spawn()?;
    Ok((ours, child))
}

/// Sends a request. The zygote may carry it out even if this process ends.
///
/// # Errors
/// Nothing was sent: `BrokenPipe` or `ConnectionReset` if the zygote is gone, `WouldBlock` if it
/// does not keep up.
pub fn ask(socket: BorrowedFd<'_>, ask: &Ask<'_>) -> io::Result<()> {
    let mut packet = vec![VERSION, 0, 0, 0];
    packet.extend(ask.epoch.to_le_bytes());
    packet.extend(ask.number.to_le_bytes());
    let name = ask.agent.as_bytes();
    packet.extend(&name[..name.len().min(NAME)]);
    let descriptors = [ask.dir, ask.lock, ask.log];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&packet)], &mut control, flags::SEND)?;
    Ok(())
}

/// Reads the next packet of a zygote: `None` for [`READY`].
///
/// # Errors
/// `WouldBlock` if there is none yet, `UnexpectedEof` if there will be no more, `InvalidData` for
/// any other packet.
pub fn hear(socket: BorrowedFd<'_>) -> io::Result<Option<Answer>> {
    let mut packet = [0; ANSWER + 1];
    let (length, _) = recv(socket, &mut packet[..], RecvFlags::empty())?;
    match &packet[..length] {
        [] => Err(io::ErrorKind::UnexpectedEof.into()),
        ready if *ready == READY => Ok(None),
        answer => Answer::decode(answer).map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into()),
    }
}

impl Answer {
    fn encode(self) -> [u8; ANSWER] {
        let (errno, pid) = match self.outcome {
            Ok(pid) => (0, pid),
            Err(errno) => (errno, 0),
        };
        let mut packet = [0; ANSWER];
        packet[0] = VERSION;
        packet[4..8].copy_from_slice(&errno.to_le_bytes());
        packet[8..16].copy_from_slice(&self.number.to_le_bytes());
        packet[16..].copy_from_slice(&pid.to_le_bytes());
        packet
    }

    fn decode(packet: &[u8]) -> Option<Self> {
        let packet: &[u8; ANSWER] = packet.try_into().ok()?;
        let errno = i32::from_le_bytes(packet[4..8].try_into().ok()?);
        let number = u64::from_le_bytes(packet[8..16].try_into().ok()?);
        let pid = u32::from_le_bytes(packet[16..].try_into().ok()?);
        let outcome = if errno == 0 { Ok(pid) } else { Err(errno) };
        (packet[..4] == READY && (errno == 0) == (pid != 0)).then_some(Self { number, outcome })
    }
}

/// A received [`Ask`].
struct Asked {
    number: u64,
    epoch: u32,
    agent: Vec<u8>,
    descriptors: [OwnedFd; 3],
}

/// Runs the zygote, with its socket as standard input. Returns when the daemon is gone, and in each
/// shim when that shim ends.
pub(crate) fn main() -> ExitCode {
    identity::name_this_process(c"muleteer-zygote");
    // A new session, so that a key pressed at the daemon's terminal does not signal us.
    let _ = rustix::process::setsid();
    let place = Place::find();
    let title = Title::of_this_process();
    // Detects the processor's features once for all shims: in a virtual machine each detection is a
    // round trip to the host.
    let _ = crc32c::crc32c(&[]);
    match serve(&place, title) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("muleteer-zygote[{}]: {error}", std::process::id());
            ExitCode::FAILURE
        }
    }
}

#[allow(unsafe_code)]
fn serve(place: &Place, title: Option<Title>) -> io::Result<ExitCode> {
    send(rustix::stdio::stdin(), &READY, flags::SEND)?;
    while let Some(asked) = next()? {
        fault::point("zygote.asked");
        // SAFETY: this program has one thread.
        let outcome = match unsafe { spawn::fork_brother() } {
            Ok(None) => return Ok(become_shim(asked, place, title)),
            Ok(Some(pid)) => Ok(pid),
            Err(error) => Err(error.raw_os_error().unwrap_or(libc::EAGAIN)),
        };
        fault::point("zygote.forked");
        // The lock must belong to the shim alone before the daemon knows about the shim.
        let number = asked.number;
        drop(asked);
        send(rustix::stdio::stdin(), &Answer { number, outcome }.encode(), flags::SEND)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the next request; `None` if no process can send one any more.
fn next() -> io::Result<Option<Asked>> {
    let mut packet = [0; ASK + NAME];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let length = loop {
        let mut into = [IoSliceMut::new(&mut packet)];
        match recvmsg(rustix::stdio::stdin(), &mut into, &mut control, flags::RECEIVE) {
            Ok(message) => break message.bytes,
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    };
    if length == 0 {
        return Ok(None);
    }
    let not_ours = || io::Error::new(io::ErrorKind::InvalidData, "unknown request");
    let descriptors: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    let descriptors = descriptors.try_into().map_err(|_| not_ours())?;
    let (head, name) = packet[..length].split_at_checked(ASK).ok_or_else(not_ours)?;
    let epoch = head[4..8].try_into().map(u32::from_le_bytes).map_err(|_| not_ours())?;
    let number = head[8..].try_into().map(u64::from_le_bytes).map_err(|_| not_ours())?;
    if head[..4] != READY {
        return Err(not_ours());
    }
    Ok(Some(Asked { number, epoch, agent: name.to_vec(), descriptors }))
}

/// Prepares the fork to be a shim: everything that an exec would have prepared.
#[allow(unsafe_code)]
fn become_shim(asked: Asked, place: &Place, title: Option<Title>) -> ExitCode {
    let Asked { epoch, agent, descriptors, .. } = asked;
    let [dir, lock, log] = &descriptors;
    let arranged = rustix::stdio::dup2_stdin(lock)
        .and_then(|()| rustix::stdio::dup2_stdout(log))
        .and_then(|()| rustix::stdio::dup2_stderr(log))
        .and_then(|()| rustix::process::fchdir(dir.as_fd()));
    // The shim closes the remaining copies with all other foreign descriptors.
    drop(descriptors);
    if let Some(title) = title {
        let epoch = epoch.to_string();
        // SAFETY: the title is of the process that we were forked from, and the arguments were read
        // before.
        unsafe { title.show(&[b"muleteer-shim", b"--epoch", epoch.as_bytes(), b"--agent", &agent]) }
    }
    match arranged {
        Ok(()) => run::shim(epoch, place),
        Err(errno) => {
            eprintln!("muleteer-shim[{}] epoch {epoch}: {errno}", std::process::id());
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn packet_layout_is_fixed() {
        let answer = Answer { number: 0x0102, outcome: Ok(7) };
        let packet = [1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0];
        assert_eq!(answer.encode(), packet);
        let refused = Answer { number: 1, outcome: Err(libc::EAGAIN) };
        for answer in [answer, refused] {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
        let mut newer = packet;
        newer[0] = 2;
        assert_eq!(Answer::decode(&newer), None);
        assert_eq!(
            Answer::decode(&[1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            None,
            "nobody's pid"
        );
        assert_eq!(Answer::decode(&packet[..19]), None);
        let (ours, its) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags::PAIR, None).unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        let fd = null.as_fd();
        ask(
            ours.as_fd(),
            &Ask { number: 3, epoch: 2, agent: OsStr::new("a-1"), dir: fd, lock: fd, log: fd },
        )
        .unwrap();
        let mut packet = [0; 64];
        let (length, _) = recv(&its, &mut packet[..], RecvFlags::empty()).unwrap();
        assert_eq!(packet[..length], *b"\x01\0\0\0\x02\0\0\0\x03\0\0\0\0\0\0\0a-1");
    }
}
