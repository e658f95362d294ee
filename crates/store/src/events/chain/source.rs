//! The bytes of one file of the log, whether it is compressed or not.

use crate::error::StoreError;
use crate::events::chain::name::{Form, Name};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Reads and seeks in the text of a file. A compressed segment is in memory, so it is as long as a
/// segment may be and not more.
#[derive(Debug)]
pub(crate) enum Source {
    /// The position is ours: other readers share the file.
    File {
        file: Arc<File>,
        at: u64,
    },
    Memory(io::Cursor<Vec<u8>>),
}

impl Source {
    pub(crate) fn file(file: Arc<File>) -> Self {
        Self::File { file, at: 0 }
    }

    /// Opens a segment and checks its length, and the checksum of a compressed one.
    pub(crate) fn open(path: &Path, name: Name, form: Form) -> Result<Self, StoreError> {
        let file = File::open(path).map_err(StoreError::io(path, "open"))?;
        let wanted = name.end - name.begin;
        let (source, found) = match form {
            Form::Plain => {
                let length = file.metadata().map_err(StoreError::io(path, "inspect"))?.len();
                (Self::file(Arc::new(file)), length)
            }
            Form::Compressed => {
                let text = decompress(&file, wanted).map_err(|error| damaged(path, &error))?;
                let length = text.len() as u64;
                (Self::Memory(io::Cursor::new(text)), length)
            }
        };
        if found != wanted {
            let why = format!("it holds {found} bytes, but its name says {wanted}");
            return Err(StoreError::Segment { file: path.into(), why });
        }
        Ok(source)
    }

    pub(crate) fn length(&mut self) -> io::Result<u64> {
        self.seek(SeekFrom::End(0))
    }
}

/// Returns the text, at most one byte more than `wanted`.
fn decompress(file: &File, wanted: u64) -> io::Result<Vec<u8>> {
    let mut text = vec![];
    let mut decoder = zstd::Decoder::new(file)?;
    decoder.by_ref().take(wanted).read_to_end(&mut text)?;
    // The checksum is checked at the end of the frame.
    let more = decoder.take(1).read_to_end(&mut text)?;
    debug_assert!(more <= 1);
    Ok(text)
}

/// Returns the beginning of a segment, without the rest of it.
pub(crate) fn beginning(path: &Path, form: Form) -> Result<Box<dyn Read>, StoreError> {
    let file = File::open(path).map_err(StoreError::io(path, "open"))?;
    Ok(match form {
        Form::Plain => Box::new(file),
        Form::Compressed => {
            Box::new(zstd::Decoder::new(file).map_err(|error| damaged(path, &error))?)
        }
    })
}

fn damaged(path: &Path, error: &io::Error) -> StoreError {
    let why = format!("it cannot be decompressed: {error}");
    StoreError::Segment { file: path.into(), why }
}

impl Read for Source {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File { file, at } => {
                let read = file.read_at(into, *at)?;
                *at += read as u64;
                Ok(read)
            }
            Self::Memory(text) => text.read(into),
        }
    }
}

impl Seek for Source {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            Self::File { file, at } => {
                *at = match to {
                    SeekFrom::Start(offset) => offset,
                    SeekFrom::End(by) => offset(file.metadata()?.len(), by)?,
                    SeekFrom::Current(by) => offset(*at, by)?,
                };
                Ok(*at)
            }
            Self::Memory(text) => text.seek(to),
        }
    }
}

fn offset(from: u64, by: i64) -> io::Result<u64> {
    from.checked_add_signed(by).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}
