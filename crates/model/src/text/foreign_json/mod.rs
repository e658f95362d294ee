//! Reads JSON that other programs wrote: agent CLIs, their transcripts, hooks, settings files.
//!
//! `serde_json` rejects input that JavaScript's `JSON.parse` accepts: half of a surrogate pair,
//! `1e999`, more than 128 levels. A rejected line would lose its content, such as the end of a
//! turn, a permission request or a verdict. Therefore every decoder of foreign JSON uses this
//! module. Well-formed input takes the fast path and yields exactly the result of `serde_json`.
//! Other input is repaired where its meaning is certain ([`Repair`]). Of input that is cut off or
//! garbled, the part before the fault is returned with a [`Damage`].
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

/// The deepest nesting that is preserved, which `serde_json` can read again. Deeper containers
/// become `null`.
pub const DEPTH: usize = 127;

/// A change that made input readable and preserved its meaning.
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
    /// The document is long, so the middle of a long text was cut, or list elements were dropped.
    Shortened,
}

impl Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LoneSurrogate => "half of a surrogate pair was replaced by U+FFFD",
            Self::NotUtf8 => "bytes that are not UTF-8 were replaced by U+FFFD",
            Self::ByteOrderMark => "a byte order mark was skipped",
            Self::NumberOutOfRange => "a number out of range was read as null",
            Self::TooDeep => "values nested deeper than 127 levels were dropped",
            Self::ControlCharacter => "unescaped control characters were accepted",
            Self::Shortened => "it was very long and is shortened",
        })
    }
}

/// The reason why only the beginning of the input is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    #[error("it is incomplete")]
    CutOff,
    #[error("it is not JSON from byte {at} on")]
    Garbled { at: u64 },
    #[error("it has too many values")]
    TooLarge,
}

/// The result of reading one value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Document {
    /// The whole value; with `damage`, the part before the fault, or `null` without one.
    pub value: Value,
    /// Each kind once.
    pub repairs: Vec<Repair>,
    pub damage: Option<Damage>,
    /// The input was empty or contained only white space.
    pub is_empty: bool,
}

impl Document {
    /// Returns all repairs and the damage as a sentence for a fault record; `None` for well-formed
    /// input.
    pub fn fault(&self) -> Option<String> {
        let damage = self.damage.iter().map(ToString::to_string);
        let parts: Vec<_> = damage.chain(self.repairs.iter().map(ToString::to_string)).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// Returns the document if it is complete.
    ///
    /// # Errors
    /// Its damage.
    pub fn undamaged(self) -> Result<Self, Damage> {
        self.damage.map_or(Ok(self), Err)
    }
}

/// Reads one JSON value from any bytes. Never fails and never panics.
pub fn read(bytes: &[u8]) -> Document {
    if let Ok(value) = serde_json::from_slice(bytes) {
        return Document { value, ..Document::default() };
    }
    let mut reader = Reader::whole();
    reader.push(bytes);
    reader.finish()
}

/// Reads a complete value.
///
/// # Errors
/// The damage.
pub fn whole(bytes: &[u8]) -> Result<Value, Damage> {
    read(bytes).undamaged().map(|document| document.value)
}

/// Reads a complete value of a known type.
///
/// # Errors
/// The error of `serde_json` about the input, or about the type of the repaired value.
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

/// Reads the value at the start of `text`, and returns its length in bytes.
pub fn prefix(text: &str) -> (Document, usize) {
    let mut reader = Reader::whole();
    let length = reader.push_first(text.as_bytes());
    (reader.finish(), length)
}

/// Reads one JSON value from all of `source`. Memory is bounded: a document of more than `limit`
/// bytes is shortened while it is read.
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

/// Returns whether a line may contain an object. White space, NULs and a byte order mark may
/// precede its brace.
pub fn may_be_object(line: &[u8]) -> bool {
    let first =
        |byte: &u8| !byte.is_ascii_whitespace() && *byte != 0 && !reader::MARK.contains(byte);
    line.iter().find(|byte| first(byte)) == Some(&b'{')
}

#[cfg(test)]
mod tests;
