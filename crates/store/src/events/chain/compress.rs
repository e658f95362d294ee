//! Compresses closed segments. The writer of the log does not wait for it.
//!
//! ```text
//!   compress ──▶ durable under a temporary name ──▶ read back and compare ──▶ rename, durable
//!     ──▶ the uncompressed file goes
//! ```
//!
//! A log of an older version is one large file, which becomes one large segment. It is compressed
//! as many small ones. Until its removal the large one counts.

use crate::atomic::{Temporary, clean_leftovers, sync_dir};
use crate::error::StoreError;
use crate::events::chain::name::{Form, Name};
use crate::events::chain::source::Source;
use crate::events::chain::{Chain, Segment, folder, list};
use crate::events::line::{Cursor, decode, read_line};
use muleteer_process::fault;
use std::fs::{self, OpenOptions};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Higher levels take several times as long for a few percent.
const LEVEL: i32 = 9;

/// Held while a segment is compressed or removed. A task that was dropped may still
/// compress in its thread, and its successor would remove the pieces for which it removes the
/// uncompressed file.
pub(super) static ONE: Mutex<()> = Mutex::new(());

/// Compresses the oldest segment that is not compressed, in pieces of about `piece` bytes. Returns
/// whether there was one. Only the daemon that writes the log may call this. It waits for another
/// call in this process.
///
/// # Errors
/// `E_EVENTS_CORRUPT`, `E_EVENTS_GAP` if a segment is damaged or missing: then it stays;
/// `E_STORE_IO`.
pub fn compress_next(events: &Path, piece: u64) -> Result<bool, StoreError> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = folder(events);
    let chain = Chain::open(events)?;
    let Some(plain) = chain.segments.iter().find(|segment| segment.form == Form::Plain) else {
        return Ok(false);
    };
    // After a power failure events.jsonl may be the segment again, and pieces of it superfluous.
    sync_dir(events.parent().unwrap_or(Path::new(".")))?;
    clean_leftovers(&folder)?;
    let path = folder.join(plain.name.of(Form::Plain));
    match Source::open(&path, plain.name, Form::Plain) {
        Ok(source) => {
            remove_pieces(events, plain.name)?;
            compress(&folder, plain.name, source, piece)?;
            sync_dir(&folder)?;
        }
        // Its compressed form is whole, or the next call says what is wrong with it.
        Err(StoreError::Segment { .. }) if plain.is_double => {
            let compressed = folder.join(plain.name.of(Form::Compressed));
            Source::open(&compressed, plain.name, Form::Compressed)?;
        }
        Err(error) => return Err(error),
    }
    fault::point("compress.compressed");
    fs::remove_file(&path).map_err(StoreError::io(&path, "remove"))?;
    sync_dir(&folder)?;
    fault::point("compress.removed");
    Ok(true)
}

/// Removes what a killed daemon has compressed of this segment: another version may have made
/// pieces of another length.
fn remove_pieces(events: &Path, whole: Name) -> Result<(), StoreError> {
    let is_piece = |piece: &Segment| {
        piece.form == Form::Compressed && (whole.first..=whole.last).contains(&piece.name.first)
    };
    for piece in list(events)?.into_iter().filter(is_piece) {
        let path = folder(events).join(piece.name.of(Form::Compressed));
        fs::remove_file(&path).map_err(StoreError::io(&path, "remove"))?;
    }
    Ok(())
}

/// Writes all compressed pieces of a segment.
fn compress(folder: &Path, whole: Name, source: Source, piece: u64) -> Result<(), StoreError> {
    let path = folder.join(whole.of(Form::Plain));
    let mut reader = BufReader::with_capacity(256 * 1024, source);
    let mut at = whole.start();
    while at.offset < whole.end {
        let (text, end) = next_piece(&mut reader, &path, at, whole, piece)?;
        let name = Name { first: at.seq + 1, last: end.seq, begin: at.offset, end: end.offset };
        write(folder, name, &text)?;
        at = end;
    }
    if at != whole.after() {
        let why = format!("it ends with seq {} at byte {}", at.seq, at.offset);
        return Err(StoreError::Segment { file: path, why });
    }
    Ok(())
}

/// Reads whole batches until there are `piece` bytes, and checks each line.
fn next_piece(
    reader: &mut BufReader<Source>,
    path: &Path,
    from: Cursor,
    whole: Name,
    piece: u64,
) -> Result<(Vec<u8>, Cursor), StoreError> {
    let (mut text, mut line, mut at, mut is_open) = (vec![], vec![], from, true);
    while is_open || (at.offset - from.offset < piece && at.offset < whole.end) {
        let read = read_line(reader, &mut line).map_err(StoreError::io(path, "read"))?;
        let record = (read.newline && read.whole).then(|| decode(&line).ok()).flatten();
        let Some(record) = record.filter(|record| record.seq == at.seq + 1) else {
            let why = format!("the line with seq {} is damaged", at.seq + 1);
            return Err(StoreError::Segment { file: path.into(), why });
        };
        at = Cursor { offset: at.offset + read.bytes, seq: record.seq };
        is_open = record.entry.more;
        text.extend_from_slice(&line);
        text.push(b'\n');
    }
    Ok((text, at))
}

/// Writes one compressed segment, durably.
fn write(folder: &Path, name: Name, text: &[u8]) -> Result<(), StoreError> {
    let path: PathBuf = folder.join(name.of(Form::Compressed));
    let fail = |doing| StoreError::io(&path, doing);
    let temporary = Temporary::beside(&path).map_err(fail("write"))?;
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&temporary.0);
    let mut encoder =
        file.and_then(|file| zstd::Encoder::new(file, LEVEL)).map_err(fail("write"))?;
    let written = encoder
        .include_checksum(true)
        .and_then(|()| encoder.set_pledged_src_size(Some(text.len() as u64)))
        .and_then(|()| encoder.write_all(text))
        .and_then(|()| encoder.finish())
        .and_then(|file| file.sync_all());
    written.map_err(fail("write"))?;
    fault::point("compress.written");
    let mut back = Source::open(&temporary.0, name, Form::Compressed)?;
    let mut found = vec![];
    io::Read::read_to_end(&mut back, &mut found).map_err(fail("read back"))?;
    if found != text {
        return Err(fail("compress")(io::Error::other("it was not read back as it was written")));
    }
    temporary.rename(&path)?;
    fault::point("compress.renamed");
    Ok(())
}
