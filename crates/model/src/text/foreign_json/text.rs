//! Decodes the text of one string incrementally, in bounded memory.

use crate::text::foreign_json::Repair;

/// A string that is being decoded.
#[derive(Debug, Default)]
pub(super) struct Text {
    /// UTF-8 if the input is. If `total` exceeds the limit, the two ends of the text.
    bytes: Vec<u8>,
    /// The number of decoded bytes, including dropped ones.
    total: usize,
    limit: usize,
    escape: Escape,
    /// The first half of a surrogate pair, until the second arrives.
    high: Option<u32>,
}

#[derive(Debug, Default, Clone, Copy)]
enum Escape {
    #[default]
    No,
    /// After a backslash.
    Begun,
    /// After `\u`: the digits so far.
    Unicode { digits: u32, value: u32 },
}

/// The result of feeding bytes.
pub(super) enum Fed {
    /// All bytes belong to the string.
    All,
    /// The string ends with the closing quote at this position.
    Ends(usize),
    /// The byte at this position is invalid in an escape.
    Bad(usize),
}

const REPLACEMENT: &[u8] = "\u{fffd}".as_bytes();

impl Text {
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    pub fn feed(&mut self, bytes: &[u8], repair: &mut dyn FnMut(Repair)) -> Fed {
        let mut at = 0;
        while at < bytes.len() {
            match self.escape {
                Escape::No => {
                    let plain =
                        bytes[at..].iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20));
                    let until = plain.map_or(bytes.len(), |ahead| at + ahead);
                    if until > at {
                        self.end_half(repair);
                        self.add(&bytes[at..until]);
                    }
                    at = until;
                    match bytes.get(at) {
                        None => return Fed::All,
                        Some(b'"') => {
                            self.end_half(repair);
                            return Fed::Ends(at);
                        }
                        Some(b'\\') => self.escape = Escape::Begun,
                        Some(byte) => {
                            repair(Repair::ControlCharacter);
                            self.end_half(repair);
                            self.add(&[*byte]);
                        }
                    }
                }
                Escape::Begun => {
                    let plain = match bytes[at] {
                        b'u' => {
                            self.escape = Escape::Unicode { digits: 0, value: 0 };
                            at += 1;
                            continue;
                        }
                        byte @ (b'"' | b'\\' | b'/') => byte,
                        b'b' => 8,
                        b'f' => 12,
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        _ => return Fed::Bad(at),
                    };
                    self.end_half(repair);
                    self.add(&[plain]);
                    self.escape = Escape::No;
                }
                Escape::Unicode { digits, value } => {
                    let Some(digit) = char::from(bytes[at]).to_digit(16) else {
                        return Fed::Bad(at);
                    };
                    let value = value * 16 + digit;
                    if digits == 3 {
                        self.escape = Escape::No;
                        self.unit(value, repair);
                    } else {
                        self.escape = Escape::Unicode { digits: digits + 1, value };
                    }
                }
            }
            at += 1;
        }
        Fed::All
    }

    /// Returns the string. The middle of a string beyond the limit is dropped.
    pub fn finish(mut self, repair: &mut dyn FnMut(Repair)) -> String {
        if self.total > self.limit {
            repair(Repair::Shortened);
            self.shorten();
            let (head, tail) = self.bytes.split_at(self.limit / 4);
            let left_out = self.total - self.bytes.len();
            // A cut inside a character leaves invalid bytes.
            let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
            let ends = (head.trim_end_matches('\u{fffd}'), tail.trim_start_matches('\u{fffd}'));
            return format!("{}…[{left_out} bytes left out]…{}", ends.0, ends.1);
        }
        String::from_utf8(self.bytes).unwrap_or_else(|error| {
            repair(Repair::NotUtf8);
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        })
    }

    /// Adds one UTF-16 code unit.
    fn unit(&mut self, unit: u32, repair: &mut dyn FnMut(Repair)) {
        match (self.high.take(), unit) {
            (Some(high), 0xdc00..0xe000) => {
                self.character(0x10000 + ((high - 0xd800) << 10) + (unit - 0xdc00))
            }
            (before, unit) => {
                if before.is_some() {
                    repair(Repair::LoneSurrogate);
                    self.add(REPLACEMENT);
                }
                match unit {
                    0xd800..0xdc00 => self.high = Some(unit),
                    0xdc00..0xe000 => {
                        repair(Repair::LoneSurrogate);
                        self.add(REPLACEMENT);
                    }
                    _ => self.character(unit),
                }
            }
        }
    }

    fn end_half(&mut self, repair: &mut dyn FnMut(Repair)) {
        if self.high.take().is_some() {
            repair(Repair::LoneSurrogate);
            self.add(REPLACEMENT);
        }
    }

    fn character(&mut self, code: u32) {
        let character = char::from_u32(code).unwrap_or('\u{fffd}');
        self.add(character.encode_utf8(&mut [0; 4]).as_bytes());
    }

    fn add(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(bytes.len());
        if self.limit == 0 {
            return;
        }
        for piece in bytes.chunks(self.limit) {
            self.bytes.extend_from_slice(piece);
            if self.bytes.len() > self.limit.saturating_mul(2) {
                self.shorten();
            }
        }
    }

    /// Keeps a quarter of the limit from the beginning and three quarters from the end, where
    /// results are.
    fn shorten(&mut self) {
        let (head, tail) = (self.limit / 4, self.limit - self.limit / 4);
        if self.bytes.len() > self.limit {
            let from = self.bytes.len() - tail;
            self.bytes.drain(head..from);
        }
    }
}
