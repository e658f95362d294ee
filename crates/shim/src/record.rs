//! The layout of a spool segment and of the records in it.
//!
//! ```text
//! segment  spool/<epoch:08>-<base:016>.seg, both decimal (.seg.zst: compressed as a whole)
//!   0        4         6       8       12     16     24        28     32
//!   ├ "MSPL" ┼ version ┼ zero  ┼ epoch ┼ zero ┼ base ┼ hcrc    ┼ zero ┤ records …
//!
//! record
//!   0      4     8     16        24         32       33   36     40
//!   ├ hcrc ┼ len ┼ seq ┼ wall ms ┼ awake ms ┼ stream ┼ 000 ┼ pcrc ┤ payload (len bytes)
//! ```
//!
//! `hcrc` is the CRC-32C of the header after it (in a segment: before it), `pcrc` that of the
//! payload. The header has its own checksum so that a damaged length can be distinguished from a
//! record that is not yet complete. A record's offset is the number of bytes of all earlier records
//! of its epoch, without segment headers: the offset is `base` plus the position in the file minus
//! [`SEGMENT_HEADER`].

use std::path::{Path, PathBuf};

pub const MAGIC: [u8; 4] = *b"MSPL";
/// The version of the segment format.
pub const VERSION: u16 = 1;
pub const SEGMENT_HEADER: usize = 32;
pub const RECORD_HEADER: usize = 40;
/// The longest payload, and the size of the shim's read buffer.
pub const MAX_PAYLOAD: usize = 64 << 10;

/// A position between two records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Cursor {
    pub epoch: u32,
    pub offset: u64,
}

impl Cursor {
    /// Returns the beginning of an epoch.
    pub fn start_of(epoch: u32) -> Self {
        Self { epoch, offset: 0 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    Stdout,
    Stderr,
    /// Records of the shim itself: [`Control`](crate::control::Control).
    Control,
    /// Written by a newer shim.
    Unknown(u8),
}

impl Stream {
    fn code(self) -> u8 {
        match self {
            Self::Stdout => 1,
            Self::Stderr => 2,
            Self::Control => 3,
            Self::Unknown(code) => code,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            1 => Self::Stdout,
            2 => Self::Stderr,
            3 => Self::Control,
            code => Self::Unknown(code),
        }
    }
}

/// The fixed part of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub len: u32,
    /// Counts the records of an epoch from 0, without gaps.
    pub seq: u64,
    pub wall_ms: u64,
    pub awake_ms: u64,
    pub stream: Stream,
    pub payload_crc: u32,
}

impl Header {
    pub fn encode(&self) -> [u8; RECORD_HEADER] {
        let mut bytes = [0; RECORD_HEADER];
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.seq.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.wall_ms.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.awake_ms.to_le_bytes());
        bytes[32] = self.stream.code();
        bytes[36..40].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Returns `None` unless the bytes are an undamaged header.
    pub fn decode(bytes: &[u8; RECORD_HEADER]) -> Option<Self> {
        let header = Self {
            len: u32_at(bytes, 4),
            seq: u64_at(bytes, 8),
            wall_ms: u64_at(bytes, 16),
            awake_ms: u64_at(bytes, 24),
            stream: Stream::from_code(bytes[32]),
            payload_crc: u32_at(bytes, 36),
        };
        let whole = u32_at(bytes, 0) == crc32c::crc32c(&bytes[4..]);
        (whole && header.len as usize <= MAX_PAYLOAD).then_some(header)
    }

    /// Returns the size of header and payload.
    pub fn total(&self) -> u64 {
        RECORD_HEADER as u64 + u64::from(self.len)
    }
}

/// Returns the first bytes of a segment.
pub fn segment_header(start: Cursor) -> [u8; SEGMENT_HEADER] {
    let mut bytes = [0; SEGMENT_HEADER];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
    bytes[8..12].copy_from_slice(&start.epoch.to_le_bytes());
    bytes[16..24].copy_from_slice(&start.offset.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[..24]);
    bytes[24..28].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The result of reading a segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentHead {
    /// The position of its first record.
    Good(Cursor),
    /// The segment has a version that this build does not know.
    Newer(u16),
    Damaged,
}

pub fn read_segment_header(bytes: &[u8; SEGMENT_HEADER]) -> SegmentHead {
    let version = u16::from_le_bytes([bytes[4], bytes[5]]);
    // The layout of this header is the same in every version, so a damaged one can be distinguished
    // from a newer one.
    if bytes[..4] != MAGIC || u32_at(bytes, 24) != crc32c::crc32c(&bytes[..24]) {
        SegmentHead::Damaged
    } else if version > VERSION {
        SegmentHead::Newer(version)
    } else {
        SegmentHead::Good(Cursor { epoch: u32_at(bytes, 8), offset: u64_at(bytes, 16) })
    }
}

/// Returns the file of the segment that begins at `start`.
pub fn segment_path(spool: &Path, start: Cursor) -> PathBuf {
    spool.join(format!("{:08}-{:016}.seg", start.epoch, start.offset))
}

/// Returns the file of the compressed form of that segment.
pub fn compressed_path(spool: &Path, start: Cursor) -> PathBuf {
    spool.join(format!("{:08}-{:016}.seg.zst", start.epoch, start.offset))
}

/// Returns where the segment with this name begins, compressed or not; `None` for other files.
pub fn parse_segment_name(name: &str) -> Option<Cursor> {
    let name = name.strip_suffix(".zst").unwrap_or(name);
    let (epoch, base) = name.strip_suffix(".seg")?.split_once('-')?;
    let number =
        |text: &str, width| text.len() >= width && text.bytes().all(|byte| byte.is_ascii_digit());
    if !number(epoch, 8) || !number(base, 16) {
        return None;
    }
    Some(Cursor { epoch: epoch.parse().ok()?, offset: base.parse().ok()? })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}
