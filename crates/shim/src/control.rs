//! The records of the shim itself on the spool's control stream: versioned JSON, one line per
//! record.

use muleteer_process::identity::ProcessId;
use serde::{Deserialize, Serialize};

/// The `v` of every control record.
pub const VERSION: u16 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum Control {
    /// The agent's process exists and is recorded; its release to exec follows at once.
    Spawned {
        agent: ProcessId,
        shim: ProcessId,
        /// The mechanisms that tie the agent to its shim: `cgroup+pdeathsig+sweep`,
        /// `pdeathsig+sweep`, `sweep`.
        containment: String,
    },
    /// The program could not be started: nothing of it ever ran. Only [`Control::Ended`] follows.
    StartFailed { errno: i32, text: String },
    /// A `WriteStdin` has ended: the pipe took all its bytes, or never will.
    StdinWritten { idem: String, ok: bool },
    /// The spool has no room (`on`) or has room again. While it is on, the shim causes the silence.
    Blocked { on: bool, reason: BlockReason },
    /// A signal was sent because a daemon requested it.
    Signalled { idem: String, signo: i32, group: bool },
    /// A daemon requested the end of the agent.
    Terminating { idem: String, grace_ms: u64 },
    /// The machine slept.
    Suspended { ms: u64 },
    /// No daemon renewed the lease: stdin was closed, and TERM follows.
    LeaseExpired,
    /// A daemon renewed the lease in time. Stdin stays closed, but the agent may finish its turn.
    LeaseRenewed,
    /// A limit of the launch was reached: the agent is being ended.
    PolicyKill { what: Policy, detail: String },
    /// Output was lost: the disk was full when the agent had already ended.
    Lost { stream: String, bytes: u64 },
    /// The agent's own process has ended, and all its output is before this record. Later output
    /// comes from processes that it left.
    Exited { code: Option<i32>, signal: Option<i32>, cause: Cause },
    /// All processes that the agent left are gone (`survivors` is 0), or some could not be ended.
    /// The last record of an epoch.
    Ended {
        survivors: u32,
        /// The processes that the agent left and the shim killed, at most [`MOST_LEFT`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left: Vec<Left>,
    },
    /// Written by a newer shim.
    #[serde(other)]
    Unknown,
}

/// At most this many processes are named that an agent left.
pub const MOST_LEFT: usize = 50;

/// A process that an agent left, and that its shim killed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    pub pid: u32,
    /// The name of its program.
    pub name: String,
}

/// Why an agent ended, as far as its shim knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// By itself, or by a signal that the shim did not send.
    Exited,
    /// A daemon requested it.
    Terminated,
    /// A limit: deadline, processes, memory or disk.
    ShimPolicy,
    LeaseExpired,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    Deadline,
    Processes,
    Memory,
    /// The folder of the private HOME is too large.
    Disk,
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockReason {
    /// The daemon has not acknowledged enough of the spool.
    Cap,
    /// The disk is full.
    Disk,
    #[serde(other)]
    Unknown,
}

#[derive(Serialize)]
struct Versioned<'a> {
    v: u16,
    #[serde(flatten)]
    control: &'a Control,
}

impl Control {
    /// Returns the payload of a control record.
    pub fn encode(&self) -> Vec<u8> {
        // Serialising plain data with string keys cannot fail.
        serde_json::to_vec(&Versioned { v: VERSION, control: self }).unwrap_or_default()
    }

    /// Reads a payload. An unreadable one is [`Control::Unknown`] and not an error: the record's
    /// checksum was right, so a newer shim may have written it.
    pub fn decode(payload: &[u8]) -> Self {
        serde_json::from_slice(payload).unwrap_or(Self::Unknown)
    }

    /// Whether the agent is known not to run after this record.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Exited { .. } | Self::StartFailed { .. })
    }
}

/// Returns an idempotency key in the form that records use.
pub fn hex(key: &[u8]) -> String {
    use std::fmt::Write;
    key.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_read_back_and_the_unknown_is_tolerated() {
        let id = ProcessId { pid: 7, start_time: 8 };
        for control in [
            Control::Spawned { agent: id, shim: id, containment: "sweep".into() },
            Control::Blocked { on: true, reason: BlockReason::Disk },
            Control::LeaseExpired,
            Control::PolicyKill { what: Policy::Memory, detail: "900 MB".into() },
            Control::Exited { code: None, signal: Some(9), cause: Cause::Terminated },
            Control::Ended { survivors: 0, left: vec![Left { pid: 7, name: "node".into() }] },
        ] {
            assert_eq!(Control::decode(&control.encode()), control);
        }
        let old = Control::decode(br#"{"v":1,"t":"ended","survivors":0}"#);
        assert_eq!(old, Control::Ended { survivors: 0, left: vec![] });
        assert_eq!(old.encode(), br#"{"v":1,"t":"ended","survivors":0}"#);
        assert_eq!(Control::decode(br#"{"v":9,"t":"levitated","height":3}"#), Control::Unknown);
        assert_eq!(Control::decode(b"\xff"), Control::Unknown);
        assert_eq!(hex(&[0, 255]), "00ff");
    }
}
