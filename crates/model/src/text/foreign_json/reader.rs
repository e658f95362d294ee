//! An incremental JSON reader with its own stack.

use crate::text::foreign_json::levels::Levels;
use crate::text::foreign_json::text::{Fed, Text};
use crate::text::foreign_json::{DEPTH, Damage, Document, Repair};
use serde_json::{Map, Value};

/// UTF-8's byte order mark.
pub(super) const MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// The longest number or literal; real programs write shorter ones.
const WORD_LIMIT: usize = 16 * 1024;

/// Memory of one value in addition to its text, in bytes.
const VALUE_COST: usize = 48;

/// The text limits of a long document: at first, from [`Level::Brief`] on, and from
/// [`Level::Sparse`] on.
const LONG_TEXT: usize = 1024 * 1024;
const BRIEF_TEXT: usize = 4 * 1024;
const SPARSE_TEXT: usize = 512;
/// The deepest objects whose members are still kept at [`Level::Sparse`].
const SPARSE_DEPTH: usize = 6;

/// Reads one JSON value in pieces. The result does not depend on the sizes of the pieces.
///
/// ```text
///  Value ──"{"──▶ FirstKey ──key──▶ Colon ──":"──▶ Value
///    │                ▲ "," Key ◀──┐                 │
///    ├──"["──▶ FirstItem           │                 ▼
///    └──────── a scalar ─────▶ CommaOrEnd ◀── a value is complete
/// ```
#[derive(Debug)]
pub struct Reader {
    expected: Expected,
    /// At most [`DEPTH`] containers.
    open: Vec<Open>,
    token: Token,
    root: Option<Value>,
    repairs: Vec<Repair>,
    damage: Option<Damage>,
    read: u64,
    /// The number of bytes of a byte order mark read at the start.
    mark: usize,
    /// Open containers inside those of `open`, which are read and dropped.
    skipped: Levels,
    /// The document is shortened while it is read.
    long: bool,
    cost: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Expected {
    Value,
    /// After `[`.
    FirstItem,
    /// After `{`.
    FirstKey,
    Key,
    Colon,
    CommaOrEnd,
    Nothing,
}

#[derive(Debug)]
enum Open {
    Array(Vec<Value>),
    Object(Map<String, Value>, Option<String>),
}

#[derive(Debug)]
enum Token {
    None,
    Text { text: Box<Text>, is_key: bool },
    Word { bytes: Vec<u8>, over: bool },
}

/// How much of the rest of a long document is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    All,
    /// Only short texts.
    Brief,
    /// Only members of the outer objects; no list elements.
    Sparse,
    /// Nothing; important parts may be missing.
    Over,
}

impl Reader {
    /// Creates a reader for a document in memory. Nothing is shortened.
    pub fn whole() -> Self {
        Self {
            expected: Expected::Value,
            open: vec![],
            token: Token::None,
            root: None,
            repairs: vec![],
            damage: None,
            read: 0,
            mark: 0,
            skipped: Levels::default(),
            long: false,
            cost: 0,
        }
    }

    /// Creates a reader for a document of any length. Long texts lose their middle, and less is
    /// kept as the document grows.
    pub fn long() -> Self {
        Self { long: true, ..Self::whole() }
    }

    /// Reads the next piece.
    pub fn push(&mut self, bytes: &[u8]) {
        let rest = self.push_first(bytes);
        let rest = &bytes[rest..];
        // NULs and white space are padding; any other byte after the value is a fault.
        let meant = |byte: &u8| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0);
        let ahead = rest.iter().position(meant);
        if self.damage.is_none() && rest[..ahead.unwrap_or(rest.len())].contains(&0) {
            self.repair(Repair::ControlCharacter);
        }
        if let (None, Some(ahead)) = (self.damage, ahead) {
            self.garbled(ahead);
        }
        self.read += rest.len() as u64;
    }

    /// Reads up to the end of the value, and returns the number of bytes read.
    pub fn push_first(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && self.expected != Expected::Nothing && self.damage.is_none() {
            let taken = self.step(&bytes[at..]);
            self.read += taken as u64;
            at += taken;
        }
        at
    }

    /// Returns the result. Open containers are closed; an incomplete string or number is dropped.
    pub fn finish(mut self) -> Document {
        let nothing =
            self.open.is_empty() && self.root.is_none() && matches!(self.token, Token::None);
        let is_empty = nothing && self.damage.is_none() && self.mark == 0;
        // A number has no closing character.
        if self.damage.is_none() && self.open.is_empty() && matches!(self.token, Token::Word { .. })
        {
            self.end_word(0);
        }
        if self.root.is_none() {
            self.damage.get_or_insert(Damage::CutOff);
            while let Some(open) = self.open.pop() {
                let value = match open {
                    Open::Array(items) => Value::Array(items),
                    Open::Object(map, _) => Value::Object(map),
                };
                match self.open.last_mut() {
                    Some(Open::Array(items)) => items.push(value),
                    Some(Open::Object(map, Some(key))) => {
                        map.insert(std::mem::take(key), value);
                    }
                    Some(_) => {}
                    None => self.root = Some(value),
                }
            }
        }
        let value = self.root.unwrap_or_default();
        Document { value, repairs: self.repairs, damage: self.damage, is_empty }
    }

    fn repair(&mut self, repair: Repair) {
        if !self.repairs.contains(&repair) {
            self.repairs.push(repair);
        }
    }

    fn level(&self) -> Level {
        match self.cost >> 20 {
            _ if !self.long => Level::All,
            0..8 => Level::All,
            8..12 => Level::Brief,
            12..16 => Level::Sparse,
            _ => Level::Over,
        }
    }

    /// Consumes bytes, and returns their number. It is 0 only at the end of a word.
    fn step(&mut self, bytes: &[u8]) -> usize {
        match &mut self.token {
            Token::None => self.between(bytes),
            Token::Text { text, .. } => {
                let repairs = &mut self.repairs;
                let mut repair = |repair| {
                    if !repairs.contains(&repair) {
                        repairs.push(repair);
                    }
                };
                match text.feed(bytes, &mut repair) {
                    Fed::All => bytes.len(),
                    Fed::Ends(at) => {
                        self.end_text();
                        at + 1
                    }
                    Fed::Bad(at) => {
                        self.garbled(at);
                        bytes.len()
                    }
                }
            }
            Token::Word { bytes: word, over } => {
                let is_part =
                    |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
                let end = bytes.iter().position(|byte| !is_part(byte)).unwrap_or(bytes.len());
                let room = WORD_LIMIT - word.len();
                *over |= end > room;
                word.extend_from_slice(&bytes[..end.min(room)]);
                if end < bytes.len() {
                    self.end_word(end);
                }
                end
            }
        }
    }

    fn garbled(&mut self, ahead: usize) {
        self.damage = Some(Damage::Garbled { at: self.read + ahead as u64 });
    }

    /// Consumes one byte outside strings and words.
    fn between(&mut self, bytes: &[u8]) -> usize {
        use Expected as E;
        let byte = bytes[0];
        if self.open.is_empty() && self.expected == E::Value && byte == MARK[self.mark] {
            self.mark += 1;
            if self.mark == MARK.len() {
                self.mark = 0;
                self.repair(Repair::ByteOrderMark);
            }
            return 1;
        }
        match (self.expected, byte) {
            (_, 0) => self.repair(Repair::ControlCharacter),
            (_, b' ' | b'\t' | b'\n' | b'\r') => {}
            _ if self.mark > 0 => self.garbled(0),
            (E::Value | E::FirstItem, b'{') => self.begin(false),
            (E::Value | E::FirstItem, b'[') => self.begin(true),
            (E::Value | E::FirstItem, b'"') => self.begin_text(false),
            (E::Key | E::FirstKey, b'"') => self.begin_text(true),
            (E::FirstItem | E::CommaOrEnd, b']') if self.in_array() => self.end(),
            (E::FirstKey | E::CommaOrEnd, b'}') if !self.in_array() => self.end(),
            (E::CommaOrEnd, b',') => {
                self.expected = if self.in_array() { E::Value } else { E::Key }
            }
            (E::Colon, b':') => self.expected = E::Value,
            (E::Value | E::FirstItem, b'0'..=b'9' | b'-' | b'a'..=b'z' | b'A'..=b'Z') => {
                self.token = Token::Word { bytes: vec![byte], over: false };
            }
            _ => self.garbled(0),
        }
        1
    }

    fn in_array(&self) -> bool {
        self.skipped.is_array().unwrap_or(matches!(self.open.last(), Some(Open::Array(_))))
    }

    /// Returns whether the value that begins is kept.
    fn keeps(&mut self) -> bool {
        match self.level() {
            _ if !self.skipped.is_empty() => false,
            Level::All | Level::Brief => true,
            Level::Sparse if self.open.len() <= SPARSE_DEPTH && !self.in_array() => true,
            Level::Sparse => {
                self.repair(Repair::Shortened);
                false
            }
            Level::Over => {
                self.damage.get_or_insert(Damage::TooLarge);
                false
            }
        }
    }

    fn begin(&mut self, is_array: bool) {
        let kept = self.keeps();
        let as_null = kept && self.open.len() >= DEPTH;
        if as_null {
            self.repair(Repair::TooDeep);
        }
        if kept {
            self.cost += VALUE_COST;
        }
        self.expected = if is_array { Expected::FirstItem } else { Expected::FirstKey };
        match (kept && !as_null, is_array) {
            (true, true) => self.open.push(Open::Array(vec![])),
            (true, false) => self.open.push(Open::Object(Map::new(), None)),
            (false, is_array) => {
                if self.skipped.is_empty() {
                    self.skipped.as_null = as_null;
                }
                if !self.skipped.push(is_array) {
                    self.damage.get_or_insert(Damage::TooLarge);
                }
            }
        }
    }

    fn end(&mut self) {
        if !self.skipped.is_empty() {
            self.skipped.pop();
            return self.put(self.skipped.as_null.then_some(Value::Null));
        }
        match self.open.pop() {
            Some(Open::Array(items)) => self.put(Some(Value::Array(items))),
            Some(Open::Object(map, _)) => self.put(Some(Value::Object(map))),
            None => {}
        }
    }

    /// Adds a complete value; `None` is a dropped one.
    fn put(&mut self, value: Option<Value>) {
        self.expected = if self.open.is_empty() { Expected::Nothing } else { Expected::CommaOrEnd };
        if !self.skipped.is_empty() {
            return;
        }
        match self.open.last_mut() {
            Some(Open::Array(items)) => items.extend(value),
            Some(Open::Object(map, key)) => {
                if let (Some(key), Some(value)) = (key.take(), value) {
                    map.insert(key, value);
                }
            }
            None => self.root = value,
        }
    }

    fn scalar(&mut self, value: Value) {
        let kept = self.keeps();
        if kept {
            self.cost += VALUE_COST + value.as_str().map_or(0, str::len);
        }
        self.put(kept.then_some(value));
    }

    fn begin_text(&mut self, is_key: bool) {
        let limit = match self.level() {
            _ if !self.skipped.is_empty() => 0,
            _ if !self.long => usize::MAX,
            Level::All => LONG_TEXT,
            Level::Brief => BRIEF_TEXT,
            Level::Sparse | Level::Over => SPARSE_TEXT,
        };
        self.token = Token::Text { text: Box::new(Text::new(limit)), is_key };
    }

    fn end_text(&mut self) {
        let Token::Text { text, is_key } = std::mem::replace(&mut self.token, Token::None) else {
            return;
        };
        if !self.skipped.is_empty() {
            match is_key {
                true => self.expected = Expected::Colon,
                false => self.put(None),
            }
            return;
        }
        let repairs = &mut self.repairs;
        let text = text.finish(&mut |repair| {
            if !repairs.contains(&repair) {
                repairs.push(repair);
            }
        });
        if !is_key {
            self.scalar(Value::String(text));
            return;
        }
        self.cost += VALUE_COST + text.len();
        self.expected = Expected::Colon;
        if let Some(Open::Object(_, key)) = self.open.last_mut() {
            *key = Some(text);
        }
    }

    /// Ends a number or literal. `ahead` is the distance of its end from the bytes read before.
    fn end_word(&mut self, ahead: usize) {
        let Token::Word { bytes, over } = std::mem::replace(&mut self.token, Token::None) else {
            return;
        };
        let value = match serde_json::from_slice::<Value>(&bytes) {
            Ok(value) if !over => value,
            _ if is_number(&bytes)
                || matches!(bytes.as_slice(), b"NaN" | b"Infinity" | b"-Infinity") =>
            {
                self.repair(Repair::NumberOutOfRange);
                Value::Null
            }
            _ => return self.garbled(ahead),
        };
        self.scalar(value);
    }
}

/// Returns whether a word follows the grammar of numbers, in any size.
fn is_number(word: &[u8]) -> bool {
    let digits = |bytes: &[u8]| bytes.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let rest = word.strip_prefix(b"-").unwrap_or(word);
    let whole = digits(rest);
    if whole == 0 || (whole > 1 && rest[0] == b'0') {
        return false;
    }
    let mut rest = &rest[whole..];
    if let Some(fraction) = rest.strip_prefix(b".") {
        let count = digits(fraction);
        if count == 0 {
            return false;
        }
        rest = &fraction[count..];
    }
    if let [b'e' | b'E', exponent @ ..] = rest {
        let exponent =
            exponent.strip_prefix(b"+").or(exponent.strip_prefix(b"-")).unwrap_or(exponent);
        let count = digits(exponent);
        return count > 0 && count == exponent.len();
    }
    rest.is_empty()
}
