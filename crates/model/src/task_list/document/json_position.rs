//! Finds the position of a field in a JSON text, so that a person can find it.

use std::fmt::Write;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Key(&'static str),
    Index(usize),
}

impl From<&'static str> for Step {
    fn from(key: &'static str) -> Self {
        Self::Key(key)
    }
}

impl From<usize> for Step {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

impl Step {
    /// Formats a path, for example `tasks[3].depends_on[0]`.
    pub fn join(path: &[Self]) -> String {
        let mut text = String::new();
        for step in path {
            let _ = match step {
                Self::Key(key) if text.is_empty() => write!(text, "{key}"),
                Self::Key(key) => write!(text, ".{key}"),
                Self::Index(index) => write!(text, "[{index}]"),
            };
        }
        text
    }
}

/// Returns line and column (from 1) of the value at `path`, or of its nearest existing ancestor.
/// `text` must be valid JSON.
pub fn locate(text: &str, path: &[Step]) -> Option<(u64, u64)> {
    let mut scan = Scan { bytes: text.as_bytes(), at: 0 };
    scan.space();
    let mut found = scan.at;
    for step in path {
        let Some(next) = scan.enter(*step) else { break };
        found = next;
    }
    let before = text.get(..found)?;
    let line = before.matches('\n').count() as u64 + 1;
    let column = before.rsplit('\n').next()?.chars().count() as u64 + 1;
    Some((line, column))
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    fn space(&mut self) {
        while self.peek().is_ascii_whitespace() {
            self.at += 1;
        }
    }

    /// Moves to the value of a key or index in the object or array at the current position.
    fn enter(&mut self, step: Step) -> Option<usize> {
        let open = self.peek();
        if !matches!((open, step), (b'{', Step::Key(_)) | (b'[', Step::Index(_))) {
            return None;
        }
        self.at += 1;
        let mut index = 0;
        loop {
            self.space();
            if matches!(self.peek(), b'}' | b']' | 0) {
                return None;
            }
            let wanted = match step {
                Step::Index(wanted) => wanted == index,
                Step::Key(wanted) => {
                    let start = self.at;
                    self.skip();
                    let is = self.bytes.get(start + 1..self.at - 1) == Some(wanted.as_bytes());
                    self.space();
                    self.at += 1;
                    self.space();
                    is
                }
            };
            if wanted {
                return Some(self.at);
            }
            self.skip();
            self.space();
            if self.peek() == b',' {
                self.at += 1;
            }
            index += 1;
        }
    }

    /// Skips one value. It does not recurse, because the text may be nested deeply.
    fn skip(&mut self) {
        let mut depth = 0usize;
        loop {
            match self.peek() {
                0 => return,
                b'"' => self.string(),
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.saturating_sub(1);
                    self.at += 1;
                }
                _ if depth == 0 => {
                    while !matches!(self.peek(), b',' | b'}' | b']' | b':' | 0)
                        && !self.peek().is_ascii_whitespace()
                    {
                        self.at += 1;
                    }
                }
                _ => self.at += 1,
            }
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.at += 1;
        while !matches!(self.peek(), b'"' | 0) {
            self.at += if self.peek() == b'\\' { 2 } else { 1 };
        }
        self.at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_position_is_found() {
        let text = "{\n  \"a\\\"]\": [1, {\"x\": \"}\"}],\n  \"tasks\": [\n    {\"id\": \"one\"},\
                    \n    {\"id\":\n 7}\n  ]\n}";
        for (path, place) in [
            (vec!["tasks".into()], (3, 12)),
            (vec!["tasks".into(), 0.into()], (4, 5)),
            (vec!["tasks".into(), 1.into(), "id".into()], (6, 2)),
            (vec!["tasks".into(), 1.into(), "absent".into()], (5, 5)),
            (vec!["tasks".into(), 9.into()], (3, 12)),
        ] {
            assert_eq!(locate(text, &path), Some(place), "{}", Step::join(&path));
        }
    }
}
