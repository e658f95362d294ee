//! Connections: which peers may command the shim, and limits for their buffers and times.

use super::Shim;
use super::wait::Ready;
use crate::record::Cursor;
use muleteer_process::clock::awake;
use muleteer_process::identity::{self, Ancestry, ancestry};
use muleteer_protocol::shim::v1::{
    FromShim, MAX_BODY, MAX_HELLO_BODY, RefusedCode, ToShim, VERSION,
};
use rustix::buffer::spare_capacity;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// The most connections at once.
pub(super) const MAX_PEERS: usize = 8;
/// The deadline of the first frame, and of any frame once it has begun.
const FRAME_DEADLINE: Duration = Duration::from_secs(10);
/// A peer with more unsent data than this does not read, and is disconnected.
const MAX_UNSENT: usize = 64 << 10;
/// The shortest time between two nudges.
const NUDGE_GAP: Duration = Duration::from_millis(2);
const READ: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Peers {
    pub connected: Vec<Peer>,
    /// The generation of the newest daemon that proved its identity.
    generation: u64,
}

#[derive(Debug)]
pub(super) struct Peer {
    fd: OwnedFd,
    accepted: bool,
    input: Vec<u8>,
    unsent: Vec<u8>,
    /// Since when a frame is incomplete.
    since: Option<Duration>,
    /// The position of the last nudge.
    nudged: Cursor,
    /// The connection is closed after one attempt to send the unsent data.
    closing: bool,
}

impl Peer {
    pub fn wants_to_write(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn wants_nudge(&self, end: Cursor) -> bool {
        self.accepted && !self.closing && self.unsent.is_empty() && self.nudged != end
    }

    fn send(&mut self, generation: u64, frame: &FromShim) {
        frame.encode(generation, &mut self.unsent);
        self.closing |= self.unsent.len() > MAX_UNSENT;
    }

    fn refuse(&mut self, generation: u64, code: RefusedCode, text: &str) {
        self.send(generation, &FromShim::Refused { code, text: text.into() });
        self.closing = true;
        self.input.clear();
    }

    fn flush(&mut self) {
        while !self.unsent.is_empty() {
            match rustix::io::write(&self.fd, &self.unsent) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => {
                    self.closing = true;
                    return;
                }
            }
        }
    }
}

impl AsFd for Peer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Peers {
    pub fn new(generation: u64) -> Self {
        Self { connected: vec![], generation }
    }

    /// Sends a frame to every peer whose hello was accepted.
    pub fn tell(&mut self, frame: &FromShim) {
        let generation = self.generation;
        for peer in self.connected.iter_mut().filter(|peer| peer.accepted && !peer.closing) {
            peer.send(generation, frame);
        }
    }

    pub fn flush(&mut self) {
        self.connected.iter_mut().for_each(Peer::flush);
    }

    /// Returns when the next slow frame times out.
    pub fn due(&self) -> Option<Duration> {
        self.connected
            .iter()
            .filter_map(|peer| peer.since)
            .min()
            .map(|since| since + FRAME_DEADLINE)
    }
}

impl Shim {
    pub(super) fn serve_peers(&mut self, ready: &Ready) {
        for index in 0..self.peers.connected.len() {
            if ready.peers[index] {
                self.receive(index);
            }
        }
        if ready.listener {
            self.accept();
        }
        let now = awake();
        let generation = self.peers.generation;
        for peer in &mut self.peers.connected {
            if peer.since.is_some_and(|since| since + FRAME_DEADLINE <= now) {
                peer.refuse(generation, RefusedCode::Slow, "the frame took too long");
            }
        }
        self.peers.flush();
        self.peers.connected.retain(|peer| !peer.closing);
    }

    /// Reports new records, once per gap, to the peers that have read everything we sent before.
    pub(super) fn nudge(&mut self) {
        let now = awake();
        if self.nudge_due().is_none_or(|due| now < due) {
            return;
        }
        self.nudged_at = now;
        let end = self.writer.cursor();
        let generation = self.peers.generation;
        let frame = FromShim::Nudge { epoch: end.epoch, offset: end.offset };
        for peer in self.peers.connected.iter_mut().filter(|peer| peer.wants_nudge(end)) {
            peer.send(generation, &frame);
            peer.nudged = end;
        }
        self.peers.flush();
    }

    pub(super) fn nudge_due(&self) -> Option<Duration> {
        let end = self.writer.cursor();
        let wanted = self.peers.connected.iter().any(|peer| peer.wants_nudge(end));
        wanted.then_some(self.nudged_at + NUDGE_GAP)
    }

    fn accept(&mut self) {
        let Ok((stream, _)) = self.listener.accept() else { return };
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let mut peer = Peer {
            fd: stream.into(),
            accepted: false,
            input: vec![],
            unsent: vec![],
            since: Some(awake()),
            nudged: Cursor::default(),
            closing: false,
        };
        let generation = self.peers.generation;
        if !self.may_speak(peer.fd.as_fd()) {
            peer.refuse(
                generation,
                RefusedCode::BadPeer,
                "this process may not connect to this shim",
            );
        } else if self.peers.connected.len() >= MAX_PEERS {
            // Unknown peers cannot lock the daemon out: the oldest connection without an accepted
            // hello is closed.
            match self.peers.connected.iter().position(|peer| !peer.accepted) {
                Some(stranger) => drop(self.peers.connected.remove(stranger)),
                None => peer.refuse(generation, RefusedCode::Busy, "too many connections"),
            }
        }
        if peer.closing {
            peer.flush();
        } else {
            self.peers.connected.push(peer);
        }
    }

    /// Whether the peer has the same uid and is not a descendant of this shim.
    fn may_speak(&self, socket: BorrowedFd<'_>) -> bool {
        let Ok(peer) = identity::peer(socket) else { return false };
        if peer.uid != rustix::process::geteuid().as_raw() {
            return false;
        }
        let Some(pid) = peer.pid else { return cfg!(not(target_os = "linux")) };
        matches!(
            ancestry(pid, Some(self.own), |id| id == self.own),
            Ancestry::Apart | Ancestry::Orphan
        )
    }

    fn receive(&mut self, index: usize) {
        let peer = &mut self.peers.connected[index];
        peer.input.reserve(READ);
        match rustix::io::read(&peer.fd, spare_capacity(&mut peer.input)) {
            Ok(0) => peer.closing = true,
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
            Err(_) => peer.closing = true,
        }
        let mut used = 0;
        loop {
            let peer = &mut self.peers.connected[index];
            let max_body = if peer.accepted { MAX_BODY } else { MAX_HELLO_BODY };
            let generation = self.peers.generation;
            match ToShim::decode(&peer.input[used..], max_body) {
                Ok(None) => break,
                Ok(Some(decoded)) => {
                    used += decoded.used;
                    if peer.accepted && decoded.generation == generation {
                        if let Some(reply) = self.command(decoded.frame) {
                            self.peers.connected[index].send(generation, &reply);
                        }
                    } else if peer.accepted {
                        peer.refuse(
                            generation,
                            RefusedCode::StaleGeneration,
                            "this frame belongs to another daemon",
                        );
                    } else {
                        self.hello(index, decoded.generation, decoded.frame);
                    }
                }
                Err(error) => peer.refuse(generation, RefusedCode::Malformed, &error.to_string()),
            }
            if self.peers.connected[index].closing {
                return;
            }
        }
        let peer = &mut self.peers.connected[index];
        let progressed = used > 0;
        peer.input.drain(..used);
        if peer.input.is_empty() {
            // The memory of a large prompt is not kept for the life of the connection.
            peer.input.shrink_to(READ);
        }
        peer.since = match (peer.accepted && peer.input.is_empty(), progressed) {
            (true, _) => None,
            (false, true) => Some(awake()),
            (false, false) => peer.since.or_else(|| Some(awake())),
        };
    }

    fn hello(&mut self, index: usize, generation: u64, frame: ToShim) {
        let newest = self.peers.generation;
        let (pid, state, end) = (self.agent.pid, self.agent_state(), self.writer.cursor());
        let peer = &mut self.peers.connected[index];
        let ToShim::Hello { versions, key } = frame else {
            return peer.refuse(newest, RefusedCode::Malformed, "the first frame must be a hello");
        };
        // The comparison takes constant time, as far as the language promises. More is not needed
        // against guessing 128 bits.
        let differing = key.iter().zip(&self.key).fold(0, |bits, (a, b)| bits | (a ^ b));
        if differing != 0 {
            return peer.refuse(newest, RefusedCode::BadKey, "wrong key");
        }
        if generation < newest {
            return peer.refuse(
                newest,
                RefusedCode::StaleGeneration,
                "a newer daemon has connected",
            );
        }
        if !versions.contains(&VERSION) {
            return peer.refuse(
                newest,
                RefusedCode::NoCommonVersion,
                "this shim uses protocol version 1",
            );
        }
        peer.accepted = true;
        peer.nudged = end;
        peer.send(
            generation,
            &FromShim::HelloOk {
                version: VERSION,
                epoch: end.epoch,
                shim_pid: self.own.pid,
                agent_pid: pid,
                offset: end.offset,
                state,
                nonce: self.launch.nonce.clone(),
            },
        );
        if generation > newest {
            self.peers.generation = generation;
            // Their frames that we have not read yet are dropped as well.
            for (other, peer) in self.peers.connected.iter_mut().enumerate() {
                if other != index && peer.accepted {
                    peer.refuse(
                        generation,
                        RefusedCode::StaleGeneration,
                        "a newer daemon has connected",
                    );
                }
            }
        }
    }
}
