//! Reads JSON that other programs wrote: agent CLIs, their transcripts, hooks, settings files.
//!
//! `serde_json` refuses input that JavaScript's `JSON.parse` accepts: half of a surrogate pair,
//! `1e999`, more than 128 levels. A refused line loses everything it says, and with it the end of a
//! turn, a permission request or a verdict. So every decoder of foreign JSON reads through this
//! module. Well-formed input takes the fast path and reads exactly as `serde_json` reads it. Other
//! input is repaired where its meaning is certain ([`Repair`]); where it is cut off or garbled, the
//! part before the fault is returned with a [`Damage`].
//!
//! Repaired input may be used like any other. Damaged input never proves success.

mod levels;
mod reader;
mod text;

pub use reader::Reader;

use serde::de::DeserializeOwned;
use serde_json::Value;
use std::fmt::{self, Display};
use std::io::{self, Read};

/// Containers inside each other that are kept: as many as `serde_json` reads back. Deeper ones
/// become `null`.
pub const DEPTH: usize = 127;

/// A change that made input readable and kept its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// Half of a surrogate pair became U+FFFD.
    LoneSurrogate,
    /// Bytes that are not UTF-8 became U+FFFD.
    NotUtf8,
    /// A byte order mark was skipped.
    ByteOrderMark,
    /// A number beyond a 64-bit float's range, or `NaN`, became `null`.
    NumberOutOfRange,
    /// Containers deeper than [`DEPTH`] became `null`.
    TooDeep,
    /// An unescaped control character, or a NUL between values.
    ControlCharacter,
    /// A long text was shortened in its middle, or list elements were left out, because the whole
    /// is long.
    Shortened,
}

impl Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LoneSurrogate => "half of a surrogate pair was replaced by U+FFFD",
            Self::NotUtf8 => "bytes that are not UTF-8 were replaced by U+FFFD",
            Self::ByteOrderMark => "a byte order mark was skipped",
            Self::NumberOutOfRange => "a number out of range was read as null",
            Self::TooDeep => "values nested deeper than 127 levels were left out",
            Self::ControlCharacter => "unescaped control characters were accepted",
            Self::Shortened => "it is very long, and was shortened",
        })
    }
}

/// Why only the beginning of the input is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("it is cut off")]
    CutOff,
    #[error("it is not JSON from byte {at} on")]
    Garbled { at: u64 },
    #[error("it has too many values to keep")]
    TooLarge,
}

/// What was read.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Document {
    /// The whole value; with `damage`, its part before the fault, or `null` where there is none.
    pub value: Value,
    /// Each kind once.
    pub repairs: Vec<Repair>,
    pub damage: Option<Damage>,
    /// The input held white space only, or nothing.
    pub is_empty: bool,
}

impl Document {
    /// A sentence for a fault record: all repairs and the damage. `None` for well-formed input.
    pub fn fault(&self) -> Option<String> {
        let damage = self.damage.iter().map(ToString::to_string);
        let parts: Vec<_> = damage.chain(self.repairs.iter().map(ToString::to_string)).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// The document, where nothing of it is missing.
    ///
    /// # Errors
    /// Its damage.
    pub fn undamaged(self) -> Result<Self, Damage> {
        self.damage.map_or(Ok(self), Err)
    }
}

/// Reads one JSON value, whatever `bytes` are. Never fails and never panics.
pub fn read(bytes: &[u8]) -> Document {
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Document { value, ..Document::default() };
    }
    let mut reader = Reader::whole();
    reader.push(bytes);
    reader.finish()
}

/// Reads a value of which nothing is missing.
///
/// # Errors
/// The damage.
pub fn whole(bytes: &[u8]) -> Result<Value, Damage> {
    read(bytes).undamaged().map(|document| document.value)
}

/// Reads a value of a known shape of which nothing is missing.
///
/// # Errors
/// What `serde_json` says about the input, or about the shape of the repaired value.
pub fn typed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    let error = match serde_json::from_slice(bytes) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    match read(bytes) {
        Document { value, damage: None, repairs, .. } if !repairs.is_empty() => {
            serde_json::from_value(value)
        }
        _ => Err(error),
    }
}

/// The value that `text` begins with, and its length in bytes.
pub fn prefix(text: &str) -> (Document, usize) {
    let mut reader = Reader::whole();
    let length = reader.push_first(text.as_bytes());
    (reader.finish(), length)
}

/// Reads one JSON value from `source` to its end. Memory is bounded: beyond `limit` bytes the
/// document is shortened as it is read.
///
/// # Errors
/// Those of `source`.
pub fn read_from(source: &mut dyn Read, limit: usize) -> io::Result<Document> {
    let mut bytes = Vec::new();
    source.take(limit as u64).read_to_end(&mut bytes)?;
    if bytes.len() < limit {
        return Ok(read(&bytes));
    }
    let mut reader = Reader::long();
    reader.push(&bytes);
    bytes.truncate(64 * 1024);
    loop {
        match source.read(&mut bytes) {
            Ok(0) => return Ok(reader.finish()),
            Ok(count) => reader.push(&bytes[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether a line may hold an object: white space, NULs and a byte order mark may stand before its
/// brace.
pub fn may_be_object(line: &[u8]) -> bool {
    let first =
        |byte: &u8| !byte.is_ascii_whitespace() && *byte != 0 && !reader::MARK.contains(byte);
    line.iter().find(|byte| first(byte)) == Some(&b'{')
}

#[cfg(test)]
mod tests;
