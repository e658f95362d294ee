//! What the shim itself records, on the spool's control stream: versioned JSON, a line per record.

use muleteer_process::identity::ProcessId;
use serde::{Deserialize, Serialize};

/// The `v` of every control record.
pub const VERSION: u16 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum Control {
    /// The agent's process exists and is recorded; it is released to exec right after.
    Spawned {
        agent: ProcessId,
        shim: ProcessId,
        /// What holds the agent to its shim: `cgroup+pdeathsig+sweep`, `pdeathsig+sweep`, `sweep`.
        containment: String,
    },
    /// The program could not be started: nothing of it ever ran. The last record but
    /// [`Control::Ended`].
    StartFailed { errno: i32, text: String },
    /// A `WriteStdin` has ended: all its bytes were taken by the pipe, or never will be.
    StdinWritten { idem: String, ok: bool },
    /// The spool has no room (`on`) or has room again: while on, silence is ours.
    Blocked { on: bool, reason: BlockReason },
    /// A signal was sent because a daemon asked.
    Signalled { idem: String, signo: i32, group: bool },
    /// A daemon asked to end the agent.
    Terminating { idem: String, grace_ms: u64 },
    /// The machine slept.
    Suspended { ms: u64 },
    /// No daemon renewed the lease: stdin was closed, the rest follows.
    LeaseExpired,
    /// A daemon came back in time; stdin stays closed, but the agent may finish its turn.
    LeaseRenewed,
    /// A limit of the launch was reached: the agent is being ended.
    PolicyKill { what: Policy, detail: String },
    /// Output that could not be kept: the disk was full when the agent had already gone.
    Lost { stream: String, bytes: u64 },
    /// The agent's own process has ended, and all it had printed stands before this record. Output
    /// after it is of processes it left behind.
    Exited { code: Option<i32>, signal: Option<i32>, cause: Cause },
    /// Everything the agent left behind is gone (`survivors` is 0), or could not be ended. The last
    /// record of an epoch.
    Ended { survivors: u32 },
    /// Written by a newer shim.
    #[serde(other)]
    Unknown,
}

/// Why an agent ended, as far as its shim knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// By itself, or by a signal nobody here sent.
    Exited,
    /// A daemon asked for it.
    Terminated,
    /// Deadline, processes or memory.
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
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockReason {
    /// Nobody acknowledged enough of the spool.
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
    /// The payload of a control record.
    pub fn encode(&self) -> Vec<u8> {
        // Plain data with string keys: serialisation has no way to fail.
        serde_json::to_vec(&Versioned { v: VERSION, control: self }).unwrap_or_default()
    }

    /// Reads a payload. What is not understood is [`Control::Unknown`]; nothing is an error,
    /// because a record's checksum already vouches for it, and a newer shim may have written it.
    pub fn decode(payload: &[u8]) -> Self {
        serde_json::from_slice(payload).unwrap_or(Self::Unknown)
    }

    /// After this record the agent is known not to run.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Exited { .. } | Self::StartFailed { .. })
    }
}

/// An idempotency key as records show it.
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
        ] {
            assert_eq!(Control::decode(&control.encode()), control);
        }
        assert_eq!(Control::decode(br#"{"v":9,"t":"levitated","height":3}"#), Control::Unknown);
        assert_eq!(Control::decode(b"\xff"), Control::Unknown);
        assert_eq!(hex(&[0, 255]), "00ff");
    }
}
