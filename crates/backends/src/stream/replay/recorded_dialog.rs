//! A record of both sides of a conversation, as people store them: `>> ` before the CLI's output,
//! `<< ` before its input.

const MARK: usize = 3;

/// Extracts the CLI's lines from such a record. Input that does not begin with a mark is not a
/// record and passes unchanged.
#[derive(Debug, Default)]
pub(crate) struct Dialog {
    kind: Kind,
    /// The beginning of the current line, until its mark is known.
    head: Vec<u8>,
    line: Line,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Kind {
    #[default]
    Unknown,
    Plain,
    Record,
}

#[derive(Debug, Default, Clone, Copy, PartialEq)]
enum Line {
    #[default]
    Begins,
    Theirs,
    Ours,
}

impl Dialog {
    /// Returns the part of these bytes that the CLI printed.
    pub fn theirs(&mut self, bytes: &[u8]) -> Vec<u8> {
        if self.kind == Kind::Plain {
            return bytes.to_vec();
        }
        let mut out = Vec::with_capacity(bytes.len());
        for (n, byte) in bytes.iter().enumerate() {
            match self.line {
                Line::Begins => {
                    self.head.push(*byte);
                    if self.head.len() == MARK || *byte == b'\n' {
                        self.settle(&mut out);
                    }
                    if self.kind == Kind::Plain {
                        out.extend_from_slice(&bytes[n + 1..]);
                        return out;
                    }
                }
                Line::Theirs => out.push(*byte),
                Line::Ours => {}
            }
            if *byte == b'\n' {
                self.line = Line::Begins;
            }
        }
        out
    }

    /// Returns the rest after the stream has ended.
    pub fn finish(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        if !self.head.is_empty() {
            self.settle(&mut out);
        }
        out
    }

    /// Decides about a line once its mark is complete, or the line has none.
    fn settle(&mut self, out: &mut Vec<u8>) {
        let head = std::mem::take(&mut self.head);
        let (theirs, ours) = (head.starts_with(b">> "), head.starts_with(b"<< "));
        if self.kind == Kind::Unknown {
            self.kind = if theirs || ours { Kind::Record } else { Kind::Plain };
        }
        self.line = if ours { Line::Ours } else { Line::Theirs };
        if !theirs && !ours {
            out.extend(head);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn theirs(text: &str) -> String {
        let whole = {
            let mut dialog = Dialog::default();
            let mut out = dialog.theirs(text.as_bytes());
            out.extend(dialog.finish());
            out
        };
        let mut dialog = Dialog::default();
        let mut out: Vec<u8> =
            text.as_bytes().chunks(1).flat_map(|byte| dialog.theirs(byte)).collect();
        out.extend(dialog.finish());
        assert_eq!(out, whole, "byte by byte");
        String::from_utf8_lossy(&whole).into_owned()
    }

    #[test]
    fn recorded_dialog_yields_the_lines_of_the_cli() {
        assert_eq!(theirs("<< {\"a\":1}\n>> {\"b\":2}\n<< x\n>> y"), "{\"b\":2}\ny");
        assert_eq!(theirs(">> a\n\nno mark\n<< b\n>"), "a\n\nno mark\n>");
    }

    #[test]
    fn anything_else_passes_as_it_is() {
        for text in ["", "a", "{}\n<< x\n>> y\n", "\n>> x", "> quoted\n", ">>\n"] {
            assert_eq!(theirs(text), text);
        }
    }
}
