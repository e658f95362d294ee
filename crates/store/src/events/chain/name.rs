//! The names of segments.
//!
//! `<first>-<last>.<begin>-<end>.jsonl`, with `.zst` if it is compressed: the seqs of its first and
//! last record, and its place in the whole log in bytes. So the names alone show a gap, and a
//! position in the log means the same before and after a rotation.

use crate::events::chain::remnant::FILE;
use crate::events::line::Cursor;
use std::ffi::OsStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    pub first: u64,
    pub last: u64,
    pub begin: u64,
    pub end: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    Plain,
    Compressed,
    /// The rest of the removed beginning, whose name says nothing.
    Remnant,
}

impl Name {
    pub(crate) fn of(self, form: Form) -> String {
        let Self { first, last, begin, end } = self;
        let suffix = match form {
            Form::Plain => "jsonl",
            Form::Compressed => "jsonl.zst",
            Form::Remnant => return FILE.into(),
        };
        format!("{first:012}-{last:012}.{begin:015}-{end:015}.{suffix}")
    }

    /// Returns `None` for a name that no segment has.
    pub(crate) fn read(name: &OsStr) -> Option<(Self, Form)> {
        let text = name.to_str()?;
        let (rest, form) = match text.strip_suffix(".jsonl.zst") {
            Some(rest) => (rest, Form::Compressed),
            None => (text.strip_suffix(".jsonl")?, Form::Plain),
        };
        let (seqs, bytes) = rest.split_once('.')?;
        let ((first, last), (begin, end)) = (pair(seqs)?, pair(bytes)?);
        let found = Self { first, last, begin, end };
        let is_ours = 0 < first && first <= last && begin < end && found.of(form) == text;
        is_ours.then_some((found, form))
    }

    /// Returns the position before its first record.
    pub(crate) fn start(self) -> Cursor {
        Cursor { offset: self.begin, seq: self.first - 1 }
    }

    /// Returns the position after its last record.
    pub(crate) fn after(self) -> Cursor {
        Cursor { offset: self.end, seq: self.last }
    }
}

fn pair(text: &str) -> Option<(u64, u64)> {
    let (a, b) = text.split_once('-')?;
    Some((a.parse().ok()?, b.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_segment_is_read_back_and_others_are_not() {
        let name = Name { first: 1, last: 34_567, begin: 0, end: 8_388_999 };
        for form in [Form::Plain, Form::Compressed] {
            let text = name.of(form);
            assert_eq!(Name::read(OsStr::new(&text)), Some((name, form)), "{text}");
            assert_eq!(Name::read(OsStr::new(&format!(".{text}.tmp-1-1"))), None);
            assert_eq!(Name::read(OsStr::new(&text[1..])), None, "its numbers have no zeros");
        }
        let empty = Name { first: 5, last: 4, begin: 7, end: 7 };
        assert_eq!(Name::read(OsStr::new(&empty.of(Form::Plain))), None);
    }
}
