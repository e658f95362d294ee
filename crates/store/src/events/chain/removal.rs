//! Removes the oldest segments of a log, but for the records that are still needed.
//!
//! ```text
//!   the event of the removal (durable) ──▶ begin.jsonl.zst replaced ──▶ the segments go
//! ```
//!
//! A kill in between leaves segments that do not count any more, and the next start of the daemon
//! removes them.

use crate::error::StoreError;
use crate::events::chain::compress::ONE;
use crate::events::chain::name::Form;
use crate::events::chain::remnant::{self, Remnant};
use crate::events::chain::{Chain, Part, Segment, first_of, folder, source};
use crate::events::line::{Cursor, decode, read_line};
use jiff::Timestamp;
use muleteer_model::event::Record;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::PoisonError;

/// The oldest segments whose events are all old enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removable {
    /// The seq of their last record.
    pub through: u64,
    /// The number of their records.
    pub records: u64,
    /// Their length on disk in bytes.
    pub bytes: u64,
}

/// The result of a removal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// The number of records that went, and of those that stay.
    pub gone: u64,
    pub kept: u64,
}

/// Returns the seq of the last record whose segment was removed; 0 if none was. Records before it
/// may still be there.
///
/// # Errors
/// `E_EVENTS_CORRUPT`, `E_STORE_IO`.
pub fn removed_through(events: &Path) -> Result<u64, StoreError> {
    Ok(remnant::header(events)?.map_or(0, |header| header.through))
}

/// Returns the segments at the beginning of a log whose records are all from before a time; `None`
/// without any. Only compressed segments go: the others are young, or are being compressed.
///
/// # Errors
/// Those of [`EventLog::open`](crate::events::EventLog::open).
pub fn removable(events: &Path, before: Timestamp) -> Result<Option<Removable>, StoreError> {
    // A segment that is being compressed loses its name meanwhile.
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let chain = Chain::open(events)?;
    let may_go = |segment: &&Segment| segment.form == Form::Compressed && !segment.is_double;
    let whole: Vec<&Segment> =
        chain.segments.iter().filter(|segment| segment.form != Form::Remnant).collect();
    let mut last = None;
    let mut bytes = 0;
    for (at, segment) in whole.iter().enumerate().take_while(|(_, segment)| may_go(segment)) {
        // The first record after a segment is not older than the last one in it.
        let next = match whole.get(at + 1) {
            Some(next) => {
                let file = folder(events).join(next.name.of(next.form));
                let read = source::beginning(&file, next.form)?;
                first_of(read).map_err(StoreError::io(&file, "read"))?
            }
            None => match chain.active_part() {
                Some(active) => first_of(active.source).map_err(StoreError::io(events, "read"))?,
                None => None,
            },
        };
        if next.is_none_or(|next| next.ts >= before) {
            break;
        }
        let file = folder(events).join(segment.name.of(segment.form));
        bytes += fs::metadata(&file).map_err(StoreError::io(&file, "inspect"))?.len();
        last = Some(segment.name);
    }
    let from = chain.base().seq;
    Ok(last.map(|name| Removable { through: name.last, records: name.last - from, bytes }))
}

/// Removes the records through `through`, which ends a segment, but for those for which `is_kept`
/// is true. Repeated after a kill, it does what is left. Only the daemon that writes the log may
/// call this, after the removal is durable as an event.
///
/// # Errors
/// Those of [`EventLog::open`](crate::events::EventLog::open); then nothing was removed, or the
/// rest goes with the next start.
pub fn remove_through(
    events: &Path,
    through: u64,
    is_kept: impl FnMut(&Record) -> bool,
) -> Result<Removed, StoreError> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let chain = Chain::open(events)?;
    let mut removed = Removed::default();
    if chain.base().seq < through {
        let end = chain.segments.iter().find(|segment| segment.name.last == through);
        let Some(end) = end.map(|segment| segment.name.after()) else {
            let why = format!("no segment ends with seq {through}");
            return Err(StoreError::Segment { file: folder(events), why });
        };
        let before = remnant::header(events)?;
        let filtered = filter(chain, end, is_kept)?;
        let gone = end.seq - before.as_ref().map_or(0, |header| header.through)
            + before.as_ref().map_or(0, |header| header.records)
            - filtered.records;
        removed = Removed { gone, kept: filtered.records };
        let earlier = before.as_ref().map_or("", |header| &header.sha256);
        let mut sum = Sha256::new();
        sum.update(earlier);
        sum.update(&filtered.sum);
        let sha256 = sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        let Filtered { lines, records, .. } = filtered;
        let all = before.map_or(0, |header| header.removed) + gone;
        let remnant = Remnant { after: end, lines, records, removed: all, sha256 };
        remnant::write(events, &remnant)?;
    }
    remnant::finish(events)?;
    Ok(removed)
}

/// The lines that stay.
struct Filtered {
    lines: Vec<u8>,
    records: u64,
    /// The SHA-256 of all text that was read.
    sum: Vec<u8>,
}

/// Reads the log up to `end`, and checks each line: a damaged one must not vanish unnoticed.
fn filter(
    mut chain: Chain,
    end: Cursor,
    mut is_kept: impl FnMut(&Record) -> bool,
) -> Result<Filtered, StoreError> {
    let (mut at, mut sum) = (chain.start(), Sha256::new());
    let (mut lines, mut records, mut line) = (vec![], 0, vec![]);
    while at.offset < end.offset {
        let Some(part) = chain.part_at(at.offset)? else { break };
        let Part { file, closed, is_sparse, source, start } = part;
        let Some(name) = closed.filter(|_| start.offset == at.offset) else { break };
        at.seq = start.seq;
        let mut reader = BufReader::with_capacity(256 * 1024, source.take(name.end - name.begin));
        loop {
            let read = read_line(&mut reader, &mut line).map_err(StoreError::io(&file, "read"))?;
            if read.bytes == 0 {
                break;
            }
            let record = (read.newline && read.whole).then(|| decode(&line).ok()).flatten();
            let fits = |record: &Record| is_sparse || record.seq == at.seq + 1;
            let Some(record) = record.filter(fits) else {
                let why = format!("the line after seq {} is damaged", at.seq);
                return Err(StoreError::Segment { file, why });
            };
            at = Cursor { offset: at.offset + read.bytes, seq: record.seq };
            sum.update(&line);
            if is_kept(&record) {
                records += 1;
                lines.extend_from_slice(&line);
                lines.push(b'\n');
            }
        }
        at.seq = name.last;
    }
    if at != end {
        let why = format!("it ends with seq {} at byte {}", at.seq, at.offset);
        return Err(StoreError::Segment { file: chain.path, why });
    }
    Ok(Filtered { lines, records, sum: sum.finalize().to_vec() })
}
