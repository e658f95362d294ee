//! Version 1 of the shim's protocol: a fixed little-endian layout without serde. Only the bytes of
//! a frame are allocated.
//!
//! ```text
//!  0      4      6      8            16
//!  ├ body ┼ kind ┼ zero ┼ generation ┼ body … ┤      body: at most MAX_BODY bytes
//!
//!  daemon                                             shim
//!    Hello {versions, key}                     ──▶
//!                                              ◀──      HelloOk {…}  |  Refused {code, text}
//!    WriteStdin | Signal | Terminate {idem, …} ──▶
//!                                              ◀──      Done {idem, outcome}    after the effect
//!    Heartbeat {lease_ms} | Query              ──▶
//!                                              ◀──      Status {…}
//!    Ack {epoch, offset}                       ──▶      (segments before it may be deleted)
//!                                              ◀──      Nudge {epoch, offset} | Exited {…}
//! ```
//!
//! Invariants: every frame carries the daemon's generation, so that a frame buffered for an older
//! daemon can be recognised. A body may grow at its end, and a reader ignores an unknown rest. An
//! unknown kind decodes to `Unknown` and is skipped.

/// The version number that both ends name in `Hello`.
pub const VERSION: u16 = 1;
/// The number of bytes before the body.
pub const HEADER: usize = 16;
/// The most stdin bytes of one `WriteStdin`: the longest prompt, escaped. The shim queues no more.
pub const MAX_STDIN: usize = 16 << 20;
/// The largest body that a peer may announce; a larger one ends the connection.
pub const MAX_BODY: usize = MAX_STDIN + 64;
/// The largest body before `Hello` was accepted, so that an unknown peer cannot make the shim
/// buffer more.
pub const MAX_HELLO_BODY: usize = 256;
/// The most versions that one `Hello` may name.
pub const MAX_VERSIONS: usize = 16;
/// The longest text in `Refused` and nonce in `HelloOk`; longer ones are cut when encoding.
pub const MAX_TEXT: usize = 256;

/// The idempotency key of a command. A repeated command is answered, but not carried out again.
pub type Idem = [u8; 16];

/// A frame from the daemon to the shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToShim {
    Hello {
        /// Best first; at most [`MAX_VERSIONS`].
        versions: Vec<u16>,
        /// The contents of `agents/<id>/key`.
        key: [u8; 16],
    },
    /// Appends to the agent's stdin, then closes it if `close`. Answered when the last byte was
    /// written to the pipe, or when it is certain that it never will be.
    WriteStdin { idem: Idem, close: bool, bytes: Vec<u8> },
    /// Sends a signal to the agent, or to its whole process group.
    Signal { idem: Idem, signo: i32, group: bool },
    /// Sends TERM to the whole group and, after `grace_ms` of awake time, KILL to everything that
    /// is left. Answered when it has begun; [`FromShim::Exited`] reports the end.
    Terminate { idem: Idem, grace_ms: u64 },
    /// Renews the lease to `lease_ms` of awake time from now. Answered by `Status`.
    Heartbeat { lease_ms: u64 },
    /// Everything before this position is durable elsewhere.
    Ack { epoch: u32, offset: u64 },
    /// Answered by `Status`.
    Query,
    /// A kind that this version does not know.
    Unknown { kind: u16 },
}

/// A frame from the shim to the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromShim {
    HelloOk {
        version: u16,
        epoch: u32,
        shim_pid: u32,
        /// 0 before the agent was forked.
        agent_pid: u32,
        /// The end of the newest complete record.
        offset: u64,
        state: AgentState,
        /// The nonce of its identity. Another value means that another process answers here.
        nonce: String,
    },
    /// The shim then closes the connection.
    Refused {
        code: RefusedCode,
        text: String,
    },
    Done {
        idem: Idem,
        outcome: Outcome,
    },
    /// The spool's records up to `offset` are complete.
    Nudge {
        epoch: u32,
        offset: u64,
    },
    /// The agent has exited and its `exited` record is complete; `offset` is the end of that
    /// record.
    Exited {
        epoch: u32,
        offset: u64,
    },
    Status {
        epoch: u32,
        offset: u64,
        state: AgentState,
        /// The spool has no room, so the shim does not read the agent's output.
        blocked: bool,
        stdin_open: bool,
        stdin_queued: u32,
        lease_left_ms: u64,
        acked_epoch: u32,
        acked_offset: u64,
    },
    /// A kind that this version does not know.
    Unknown {
        kind: u16,
    },
}

/// The state of an agent's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentState {
    /// Not yet released to exec, or exec has not yet succeeded.
    Starting,
    Running,
    /// Asked to end (terminate, lease, limits), but still alive.
    Ending,
    /// Its end is recorded; the shim is ending the processes that it left.
    Exited,
    Unknown(u8),
}

/// The outcome of a command. Only after `QueueFull`, which is transient, may the daemon retry with
/// the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    /// We or the agent closed stdin before the last byte was written.
    StdinClosed,
    /// Too much input waits for the agent; nothing of this command was queued.
    QueueFull,
    /// The agent has exited, or never ran.
    NoAgent,
    /// The kernel rejected it (unknown signal, no permission).
    Failed {
        errno: i32,
    },
    Unknown(u8),
}

/// The reason why a connection was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusedCode {
    BadKey,
    /// A newer daemon has spoken to this shim.
    StaleGeneration,
    NoCommonVersion,
    /// Another uid, a descendant of the shim, or a process that cannot be inspected.
    BadPeer,
    Malformed,
    /// A frame took longer than its deadline.
    Slow,
    Busy,
    Unknown(u8),
}

/// Why bytes are not a frame. The error ends this connection only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("frame body of {0} bytes is over the limit")]
    TooLarge(u64),
    #[error("frame kind {kind:#06x} is too short ({len} bytes)")]
    Short { kind: u16, len: usize },
    #[error("frame kind {kind:#06x} holds an impossible value")]
    Invalid { kind: u16 },
}

/// A decoded frame, and how many bytes of the input it took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded<T> {
    pub frame: T,
    pub generation: u64,
    pub used: usize,
}

const HELLO: u16 = 0x01;
const WRITE_STDIN: u16 = 0x02;
const SIGNAL: u16 = 0x03;
const TERMINATE: u16 = 0x04;
const HEARTBEAT: u16 = 0x05;
const ACK: u16 = 0x06;
const QUERY: u16 = 0x07;
const HELLO_OK: u16 = 0x81;
const REFUSED: u16 = 0x82;
const DONE: u16 = 0x83;
const NUDGE: u16 = 0x84;
const EXITED: u16 = 0x85;
const STATUS: u16 = 0x86;

impl ToShim {
    /// Appends the frame to `out`.
    pub fn encode(&self, generation: u64, out: &mut Vec<u8>) {
        let kind = match self {
            Self::Hello { .. } => HELLO,
            Self::WriteStdin { .. } => WRITE_STDIN,
            Self::Signal { .. } => SIGNAL,
            Self::Terminate { .. } => TERMINATE,
            Self::Heartbeat { .. } => HEARTBEAT,
            Self::Ack { .. } => ACK,
            Self::Query => QUERY,
            Self::Unknown { kind } => *kind,
        };
        frame(out, kind, generation, |out| match self {
            Self::Hello { versions, key } => {
                let versions = &versions[..versions.len().min(MAX_VERSIONS)];
                out.extend_from_slice(key);
                out.extend_from_slice(&(versions.len() as u16).to_le_bytes());
                for version in versions {
                    out.extend_from_slice(&version.to_le_bytes());
                }
            }
            Self::WriteStdin { idem, close, bytes } => {
                out.extend_from_slice(idem);
                out.push(u8::from(*close));
                out.extend_from_slice(&[0; 3]);
                out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(bytes);
            }
            Self::Signal { idem, signo, group } => {
                out.extend_from_slice(idem);
                out.extend_from_slice(&signo.to_le_bytes());
                out.push(u8::from(*group));
                out.extend_from_slice(&[0; 3]);
            }
            Self::Terminate { idem, grace_ms } => {
                out.extend_from_slice(idem);
                out.extend_from_slice(&grace_ms.to_le_bytes());
            }
            Self::Heartbeat { lease_ms } => out.extend_from_slice(&lease_ms.to_le_bytes()),
            Self::Ack { epoch, offset } => place(out, *epoch, *offset),
            Self::Query | Self::Unknown { .. } => {}
        });
    }

    /// Decodes the frame at the start of `input`; `None` while it is incomplete.
    ///
    /// `max_body` is [`MAX_HELLO_BODY`] until a `Hello` was accepted and [`MAX_BODY`] after.
    pub fn decode(input: &[u8], max_body: usize) -> Result<Option<Decoded<Self>>, DecodeError> {
        decode(input, max_body, |kind, body| {
            Some(match kind {
                HELLO => {
                    let key = body.array()?;
                    let count = usize::from(body.u16()?);
                    if count > MAX_VERSIONS {
                        return body.invalid();
                    }
                    let versions = (0..count).map(|_| body.u16()).collect::<Option<_>>()?;
                    Self::Hello { versions, key }
                }
                WRITE_STDIN => {
                    let idem = body.array()?;
                    let close = body.flag()?;
                    body.take(3)?;
                    let len = body.u32()? as usize;
                    if len > MAX_STDIN {
                        return body.invalid();
                    }
                    Self::WriteStdin { idem, close, bytes: body.take(len)?.to_vec() }
                }
                SIGNAL => Self::Signal {
                    idem: body.array()?,
                    signo: body.u32()? as i32,
                    group: body.flag()?,
                },
                TERMINATE => Self::Terminate { idem: body.array()?, grace_ms: body.u64()? },
                HEARTBEAT => Self::Heartbeat { lease_ms: body.u64()? },
                ACK => Self::Ack { epoch: body.epoch()?, offset: body.u64()? },
                QUERY => Self::Query,
                kind => Self::Unknown { kind },
            })
        })
    }
}

impl FromShim {
    /// Appends the frame to `out`.
    pub fn encode(&self, generation: u64, out: &mut Vec<u8>) {
        let kind = match self {
            Self::HelloOk { .. } => HELLO_OK,
            Self::Refused { .. } => REFUSED,
            Self::Done { .. } => DONE,
            Self::Nudge { .. } => NUDGE,
            Self::Exited { .. } => EXITED,
            Self::Status { .. } => STATUS,
            Self::Unknown { kind } => *kind,
        };
        frame(out, kind, generation, |out| match self {
            Self::HelloOk { version, epoch, shim_pid, agent_pid, offset, state, nonce } => {
                out.extend_from_slice(&version.to_le_bytes());
                out.push(state.code());
                out.push(0);
                out.extend_from_slice(&shim_pid.to_le_bytes());
                out.extend_from_slice(&agent_pid.to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                place(out, *epoch, *offset);
                text(out, nonce);
            }
            Self::Refused { code, text: why } => {
                out.push(code.code());
                out.push(0);
                text(out, why);
            }
            Self::Done { idem, outcome } => {
                out.extend_from_slice(idem);
                out.push(outcome.code());
                out.extend_from_slice(&[0; 3]);
                let errno = if let Outcome::Failed { errno } = outcome { *errno } else { 0 };
                out.extend_from_slice(&errno.to_le_bytes());
            }
            Self::Nudge { epoch, offset } | Self::Exited { epoch, offset } => {
                place(out, *epoch, *offset)
            }
            Self::Status {
                epoch,
                offset,
                state,
                blocked,
                stdin_open,
                stdin_queued,
                lease_left_ms,
                acked_epoch,
                acked_offset,
            } => {
                place(out, *epoch, *offset);
                place(out, *acked_epoch, *acked_offset);
                out.extend_from_slice(&lease_left_ms.to_le_bytes());
                out.extend_from_slice(&stdin_queued.to_le_bytes());
                out.push(state.code());
                out.push(u8::from(*blocked));
                out.push(u8::from(*stdin_open));
                out.push(0);
            }
            Self::Unknown { .. } => {}
        });
    }

    /// Decodes the frame at the start of `input`; `None` while it is incomplete.
    pub fn decode(input: &[u8]) -> Result<Option<Decoded<Self>>, DecodeError> {
        decode(input, MAX_BODY, |kind, body| {
            Some(match kind {
                HELLO_OK => {
                    let version = body.u16()?;
                    let state = AgentState::from_code(body.u8()?);
                    body.take(1)?;
                    let shim_pid = body.u32()?;
                    let agent_pid = body.u32()?;
                    body.take(4)?;
                    let (epoch, offset) = (body.epoch()?, body.u64()?);
                    Self::HelloOk {
                        version,
                        epoch,
                        shim_pid,
                        agent_pid,
                        offset,
                        state,
                        nonce: body.text()?,
                    }
                }
                REFUSED => {
                    let code = RefusedCode::from_code(body.u8()?);
                    body.take(1)?;
                    Self::Refused { code, text: body.text()? }
                }
                DONE => {
                    let idem = body.array()?;
                    let code = body.u8()?;
                    body.take(3)?;
                    Self::Done { idem, outcome: Outcome::from_code(code, body.u32()? as i32) }
                }
                NUDGE => Self::Nudge { epoch: body.epoch()?, offset: body.u64()? },
                EXITED => Self::Exited { epoch: body.epoch()?, offset: body.u64()? },
                STATUS => {
                    let (epoch, offset) = (body.epoch()?, body.u64()?);
                    let (acked_epoch, acked_offset) = (body.epoch()?, body.u64()?);
                    let lease_left_ms = body.u64()?;
                    let stdin_queued = body.u32()?;
                    let state = AgentState::from_code(body.u8()?);
                    Self::Status {
                        epoch,
                        offset,
                        state,
                        blocked: body.flag()?,
                        stdin_open: body.flag()?,
                        stdin_queued,
                        lease_left_ms,
                        acked_epoch,
                        acked_offset,
                    }
                }
                kind => Self::Unknown { kind },
            })
        })
    }
}

impl AgentState {
    fn code(self) -> u8 {
        match self {
            Self::Starting => 1,
            Self::Running => 2,
            Self::Ending => 3,
            Self::Exited => 4,
            Self::Unknown(code) => code,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Starting,
            2 => Self::Running,
            3 => Self::Ending,
            4 => Self::Exited,
            code => Self::Unknown(code),
        }
    }
}

impl Outcome {
    fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::StdinClosed => 1,
            Self::QueueFull => 2,
            Self::NoAgent => 3,
            Self::Failed { .. } => 4,
            Self::Unknown(code) => code,
        }
    }

    fn from_code(code: u8, errno: i32) -> Self {
        match code {
            0 => Self::Ok,
            1 => Self::StdinClosed,
            2 => Self::QueueFull,
            3 => Self::NoAgent,
            4 => Self::Failed { errno },
            code => Self::Unknown(code),
        }
    }
}

impl RefusedCode {
    fn code(self) -> u8 {
        match self {
            Self::BadKey => 1,
            Self::StaleGeneration => 2,
            Self::NoCommonVersion => 3,
            Self::BadPeer => 4,
            Self::Malformed => 5,
            Self::Slow => 6,
            Self::Busy => 7,
            Self::Unknown(code) => code,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            1 => Self::BadKey,
            2 => Self::StaleGeneration,
            3 => Self::NoCommonVersion,
            4 => Self::BadPeer,
            5 => Self::Malformed,
            6 => Self::Slow,
            7 => Self::Busy,
            code => Self::Unknown(code),
        }
    }
}

fn frame(out: &mut Vec<u8>, kind: u16, generation: u64, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&generation.to_le_bytes());
    body(out);
    let len = (out.len() - start - HEADER) as u32;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

fn place(out: &mut Vec<u8>, epoch: u32, offset: u64) {
    out.extend_from_slice(&epoch.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&offset.to_le_bytes());
}

fn text(out: &mut Vec<u8>, text: &str) {
    let mut len = text.len().min(MAX_TEXT);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    out.extend_from_slice(&(len as u16).to_le_bytes());
    out.extend_from_slice(&text.as_bytes()[..len]);
}

fn decode<T>(
    input: &[u8],
    max_body: usize,
    parse: impl FnOnce(u16, &mut Body<'_>) -> Option<T>,
) -> Result<Option<Decoded<T>>, DecodeError> {
    let mut header = Body { rest: input, invalid: false };
    let (Some(len), Some(kind), Some(_), Some(generation)) =
        (header.u32(), header.u16(), header.u16(), header.u64())
    else {
        return Ok(None);
    };
    // Rejected by its header alone, so that no peer makes us wait for, or buffer, a body that we
    // will not accept.
    if len as usize > max_body {
        return Err(DecodeError::TooLarge(len.into()));
    }
    let Some(rest) = header.rest.get(..len as usize) else { return Ok(None) };
    let mut body = Body { rest, invalid: false };
    match parse(kind, &mut body) {
        Some(frame) => Ok(Some(Decoded { frame, generation, used: HEADER + len as usize })),
        None if body.invalid => Err(DecodeError::Invalid { kind }),
        None => Err(DecodeError::Short { kind, len: len as usize }),
    }
}

/// The unread part of a body. Every read returns `None` if too little is left.
struct Body<'a> {
    rest: &'a [u8],
    invalid: bool,
}

impl<'a> Body<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.rest.split_at_checked(n)?;
        self.rest = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        self.u8().map(|byte| byte != 0)
    }

    fn epoch(&mut self) -> Option<u32> {
        let epoch = self.u32()?;
        self.take(4)?;
        Some(epoch)
    }

    fn text(&mut self) -> Option<String> {
        let len = usize::from(self.u16()?);
        if len > MAX_TEXT {
            return self.invalid();
        }
        match std::str::from_utf8(self.take(len)?) {
            Ok(text) => Some(text.to_owned()),
            Err(_) => self.invalid(),
        }
    }

    fn invalid<T>(&mut self) -> Option<T> {
        self.invalid = true;
        None
    }
}
