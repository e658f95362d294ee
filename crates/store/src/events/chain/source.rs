//! The bytes of one file of the log, whether it is compressed or not.

use crate::error::StoreError;
use crate::events::chain::name::{Form, Name};
use crate::events::chain::remnant;
use crate::links::open_to_read;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

/// No more is reserved because of a name alone. Our segments are shorter.
const RESERVED: u64 = 32 * 1024 * 1024;

/// Reads and seeks in the text of a file. A compressed segment is in memory, so it is as long as a
/// segment may be and not more.
#[derive(Debug)]
pub(crate) enum Source {
    /// The position is ours: other readers share the file.
    File {
        file: Arc<File>,
        at: u64,
    },
    Memory(io::Cursor<Text>),
}

/// The text of a compressed segment. All its readers share it: many may be slow.
#[derive(Debug, Clone)]
pub(crate) struct Text(Arc<Vec<u8>>);

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A file and its state: device, inode, length, and the time of its last change.
type Identity = (u64, u64, u64, i64, i64);

/// The texts that somebody reads now.
static TEXTS: LazyLock<Mutex<HashMap<Identity, Weak<Vec<u8>>>>> = LazyLock::new(Mutex::default);

impl Text {
    /// Returns the text of a compressed file, and decompresses it if nobody else reads it.
    fn of(file: &File, read: impl FnOnce(&File) -> io::Result<Vec<u8>>) -> io::Result<Self> {
        let meta = file.metadata()?;
        let identity = (meta.dev(), meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec());
        let texts = || TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = texts().get(&identity).and_then(Weak::upgrade);
        if let Some(known) = known {
            return Ok(Self(known));
        }
        let text = Arc::new(read(file)?);
        let mut texts = texts();
        // Another reader may have been faster.
        if let Some(known) = texts.get(&identity).and_then(Weak::upgrade) {
            return Ok(Self(known));
        }
        texts.retain(|_, text| text.strong_count() > 0);
        texts.insert(identity, Arc::downgrade(&text));
        Ok(Self(text))
    }
}

impl Source {
    pub(crate) fn file(file: Arc<File>) -> Self {
        Self::File { file, at: 0 }
    }

    /// Opens a segment and checks its length, and the checksum of a compressed one.
    pub(crate) fn open(path: &Path, name: Name, form: Form) -> Result<Self, StoreError> {
        let file = open_to_read(path).map_err(StoreError::io(path, "open"))?;
        let wanted = name.end - name.begin;
        let (source, found) = match form {
            Form::Plain => {
                let length = file.metadata().map_err(StoreError::io(path, "inspect"))?.len();
                (Self::file(Arc::new(file)), length)
            }
            Form::Compressed | Form::Remnant => {
                let text = match form {
                    Form::Remnant => Text::of(&file, remnant::text),
                    Form::Plain | Form::Compressed => {
                        Text::of(&file, |file| decompress(file, wanted))
                    }
                };
                let text = text.map_err(|error| damaged(path, &error))?;
                let length = text.0.len() as u64;
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
    // Growth would reserve up to twice the length.
    let mut text = Vec::with_capacity(usize::try_from(wanted.min(RESERVED)).unwrap_or(0) + 1);
    let mut decoder = zstd::Decoder::new(file)?;
    decoder.by_ref().take(wanted).read_to_end(&mut text)?;
    // The checksum is checked at the end of the frame.
    let more = decoder.take(1).read_to_end(&mut text)?;
    debug_assert!(more <= 1);
    text.shrink_to_fit();
    Ok(text)
}

/// Returns the beginning of a segment, without the rest of it.
pub(crate) fn beginning(path: &Path, form: Form) -> Result<Box<dyn Read>, StoreError> {
    let file = open_to_read(path).map_err(StoreError::io(path, "open"))?;
    Ok(match form {
        Form::Plain => Box::new(file),
        Form::Compressed => {
            Box::new(zstd::Decoder::new(file).map_err(|error| damaged(path, &error))?)
        }
        Form::Remnant => remnant::beginning(path, file)?,
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn readers_of_a_compressed_segment_share_its_text_and_no_more_memory() {
        let dir = tempfile::tempdir().unwrap();
        let name = Name { first: 1, last: 9, begin: 0, end: 100_000 };
        let path = dir.path().join(name.of(Form::Compressed));
        let write = |byte: u8| {
            let text = zstd::encode_all(&[byte; 100_000][..], 1).unwrap();
            std::fs::write(&path, text).unwrap();
        };
        let open = || match Source::open(&path, name, Form::Compressed).unwrap() {
            Source::Memory(text) => text.into_inner().0,
            Source::File { .. } => panic!("it is compressed"),
        };
        write(b'a');
        let (one, two) = (open(), open());
        assert!(Arc::ptr_eq(&one, &two));
        assert!(one.capacity() <= 100_001, "{}", one.capacity());
        std::fs::remove_file(&path).unwrap();
        write(b'b');
        assert_eq!((open()[0], one[0]), (b'b', b'a'), "another file is not mistaken for it");
    }
}
