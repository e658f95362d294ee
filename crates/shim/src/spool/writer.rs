//! Writes a spool: append only, one write per record, with reserved room for the last records.
//!
//! ```text
//!   segment file:  ├ header ┼ records ………… end ┤┄┄ RESERVE ┄┄┄ reserved ┤
//!                                          file size   blocks allocated beyond it
//! ```
//!
//! Blocks are allocated beyond the file's end, at least [`RESERVE`] bytes before any output is
//! accepted. So when the disk is full, the shim stops reading output, but its own records, and the
//! contents of the agent's pipes when it dies, always fit.

use crate::control::BlockReason;
use crate::launch::SpoolLimits;
use crate::record::{
    Cursor, Header, MAX_PAYLOAD, RECORD_HEADER, SEGMENT_HEADER, Stream, segment_header,
    segment_path,
};
use muleteer_process::clock;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Reserved beyond the end: the contents of two pipes at the end of an agent, and control records.
const RESERVE: u64 = 160 << 10;
/// How much is allocated at once beyond the reserve.
const AHEAD: std::ops::Range<u64> = (64 << 10)..(1 << 20);

/// Whether output can be accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    Yes,
    /// Not now: stop reading the agent's pipes.
    No(BlockReason),
}

/// Appends the records of one epoch.
#[derive(Debug)]
pub struct Writer {
    dir: PathBuf,
    limits: SpoolLimits,
    epoch: u32,
    segment: Cursor,
    file: File,
    /// The end of the newest complete record.
    end: u64,
    /// How far blocks are allocated in the current file. `None` if the file system cannot do that;
    /// on a full disk the write is then retried.
    reserved: Option<u64>,
    seq: u64,
    acked: Cursor,
    /// All segments on disk with their file sizes, of this epoch and older ones, the current one
    /// last.
    on_disk: Vec<(Cursor, u64)>,
}

impl Writer {
    /// Opens `epoch` in `spool`. Fails if the epoch has segments already, because nobody may append
    /// to an older shim's file.
    pub fn create(spool: &Path, epoch: u32, limits: SpoolLimits) -> io::Result<Self> {
        let mut on_disk = vec![];
        for segment in super::segments(spool)? {
            if segment.epoch >= epoch {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "the spool has this epoch or a newer one",
                ));
            }
            on_disk.push((segment, super::inspect(spool, segment)?.len()));
        }
        let start = Cursor::start_of(epoch);
        let (file, reserved) = create_segment(spool, start)?;
        on_disk.push((start, SEGMENT_HEADER as u64));
        Ok(Self {
            dir: spool.to_owned(),
            limits: limits.sane(),
            epoch,
            segment: start,
            file,
            end: 0,
            reserved,
            seq: 0,
            acked: Cursor::default(),
            on_disk,
        })
    }

    /// Returns the end of the newest complete record.
    pub fn cursor(&self) -> Cursor {
        Cursor { epoch: self.epoch, offset: self.end }
    }

    pub fn acked(&self) -> Cursor {
        self.acked
    }

    /// Whether a record of up to [`MAX_PAYLOAD`] bytes of output may be accepted now.
    pub fn room(&mut self) -> Room {
        let full = self.on_disk.iter().map(|(_, size)| size).sum::<u64>() >= self.limits.cap_bytes;
        let in_file = self.in_file();
        let rotated = full || in_file < self.limits.segment_bytes || self.rotate().is_ok();
        // Also at the cap: the shim still writes its own records, which must not use up the room
        // for the last ones.
        let allocated = self.allocate(RESERVE + (MAX_PAYLOAD + RECORD_HEADER) as u64).is_ok();
        match (full, rotated && allocated) {
            (true, _) => Room::No(BlockReason::Cap),
            (false, false) => Room::No(BlockReason::Disk),
            (false, true) => Room::Yes,
        }
    }

    /// Appends one record (a payload longer than [`MAX_PAYLOAD`] becomes several). It does not
    /// check for room: the caller has done that, or may use the reserve.
    ///
    /// After an error nothing of the failed record remains, and the caller may retry.
    pub fn append(&mut self, stream: Stream, payload: &[u8]) -> io::Result<()> {
        if payload.is_empty() {
            return self.append_one(stream, payload);
        }
        payload.chunks(MAX_PAYLOAD).try_for_each(|chunk| self.append_one(stream, chunk))
    }

    /// Records that everything before `acked` is durable elsewhere, and deletes old segments except
    /// for a retained tail. A cursor beyond our own end is invalid and is ignored.
    pub fn ack(&mut self, acked: Cursor) {
        if acked <= self.acked || acked > self.cursor() {
            return;
        }
        self.acked = acked;
        let mut kept: u64 = self.on_disk.iter().map(|(_, size)| size).sum();
        while let [(oldest, size), (next, _), ..] = self.on_disk[..] {
            let behind = kept.saturating_sub(size);
            if next > acked || behind < self.limits.retain_bytes {
                break;
            }
            if super::remove(&self.dir, oldest).is_err() {
                break;
            }
            self.on_disk.remove(0);
            kept = behind;
        }
    }

    /// Returns how many bytes are sure to fit whatever happens to the disk, if the file system can
    /// promise any.
    pub fn reserve(&self) -> u64 {
        self.reserved.map_or(u64::MAX, |reserved| reserved.saturating_sub(self.in_file()))
    }

    /// Frees the blocks beyond the end. Nothing is appended after it.
    pub fn finish(&mut self) {
        let _ = self.file.set_len(self.in_file());
        self.reserved = None;
    }

    fn append_one(&mut self, stream: Stream, payload: &[u8]) -> io::Result<()> {
        let header = Header {
            len: payload.len() as u32,
            seq: self.seq,
            wall_ms: clock::wall_ms(),
            awake_ms: clock::awake_ms(),
            stream,
            payload_crc: crc32c::crc32c(payload),
        };
        let start = self.in_file();
        if let Err(error) = write_all_at(&self.file, &header.encode(), payload, start) {
            // After a short write on a full disk the next record would follow half a record.
            let _ = self.file.set_len(start);
            self.reserved = self.reserved.map(|_| start);
            return Err(error);
        }
        self.seq += 1;
        self.end += header.total();
        let size = self.in_file();
        if let Some(current) = self.on_disk.last_mut() {
            current.1 = size;
        }
        Ok(())
    }

    /// Returns the position in the current file at which the next record begins.
    fn in_file(&self) -> u64 {
        SEGMENT_HEADER as u64 + self.end - self.segment.offset
    }

    fn rotate(&mut self) -> io::Result<()> {
        let start = self.cursor();
        let (file, reserved) = create_segment(&self.dir, start)?;
        self.finish();
        self.file = file;
        self.reserved = reserved;
        self.segment = start;
        self.on_disk.push((start, SEGMENT_HEADER as u64));
        Ok(())
    }

    fn allocate(&mut self, least: u64) -> io::Result<()> {
        let in_file = self.in_file();
        let Some(reserved) = self.reserved else { return Ok(()) };
        if reserved >= in_file + least {
            return Ok(());
        }
        // The allocation grows with the file, so that an agent with little output uses little disk.
        let target = in_file + least + in_file.clamp(AHEAD.start, AHEAD.end);
        self.reserved = allocate(&self.file, reserved, target)?;
        Ok(())
    }
}

fn create_segment(spool: &Path, start: Cursor) -> io::Result<(File, Option<u64>)> {
    let path = segment_path(spool, start);
    let file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
    let made = (|| {
        let reserved = allocate(&file, 0, SEGMENT_HEADER as u64 + RESERVE)?;
        write_all_at(&file, &segment_header(start), &[], 0)?;
        Ok(reserved)
    })();
    if made.is_err() {
        let _ = std::fs::remove_file(&path);
    }
    made.map(|reserved| (file, reserved))
}

/// Allocates blocks up to `to` without changing the file's size. `None` if that is not supported.
#[cfg(target_os = "linux")]
fn allocate(file: &File, from: u64, to: u64) -> io::Result<Option<u64>> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    loop {
        return match fallocate(file, FallocateFlags::KEEP_SIZE, from, to - from) {
            Ok(()) => Ok(Some(to)),
            Err(Errno::INTR) => continue,
            Err(Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) => Ok(None),
            Err(errno) => Err(errno.into()),
        };
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(_: &File, _: u64, _: u64) -> io::Result<Option<u64>> {
    Ok(None)
}

/// Writes with one pwritev, and more only after a short write.
fn write_all_at(file: &File, head: &[u8], tail: &[u8], mut at: u64) -> io::Result<()> {
    let (mut head, mut tail) = (head, tail);
    while !head.is_empty() || !tail.is_empty() {
        let written = match rustix::io::pwritev(file, &[IoSlice::new(head), IoSlice::new(tail)], at)
        {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        at += written as u64;
        let of_head = written.min(head.len());
        head = &head[of_head..];
        tail = &tail[written - of_head..];
    }
    Ok(())
}
