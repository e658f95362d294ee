//! Renders an agent's Markdown as rows of a terminal, as the text arrives.
//!
//! A row is returned once no later text can change it: after the line that it belongs to, or, in a
//! long paragraph, when its words are complete and no emphasis is open.

use crate::render::{BOLD, CYAN, DIM, RESET, clip_to_width, safe};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use unicode_width::UnicodeWidthStr;

const ITALIC: &str = "\x1b[3m";
/// Stands before a text, so that no word at its beginning counts as the mark of a block.
const GUARD: char = '\u{2060}';
/// A line without an end is shown in parts of this length, in bytes.
const LINE_LIMIT: usize = 16 * 1024;

/// The renderer of one text.
#[derive(Debug, Default)]
pub struct Markdown {
    /// The rest of the text whose line has not ended.
    line: String,
    /// A part of that line is in `rows` already.
    continues: bool,
    /// The mark that ends the open code block.
    fence: Option<String>,
    wrap: Wrap,
    after_blank: bool,
}

impl Markdown {
    /// Adds text. Returns the rows that are complete, for a terminal of `width` columns.
    pub fn push(&mut self, text: &str, width: usize) -> Vec<String> {
        let mut rows = vec![];
        for part in safe(text).split_inclusive('\n') {
            self.line.push_str(part);
            if part.ends_with('\n') {
                let line = std::mem::take(&mut self.line);
                self.whole(line.trim_end_matches('\n'), width, &mut rows);
            }
        }
        if self.line.len() >= width.min(LINE_LIMIT) {
            self.begun(width, &mut rows);
        }
        rows
    }

    /// Ends the text. Returns the remaining rows.
    pub fn end(&mut self, width: usize) -> Vec<String> {
        let mut rows = vec![];
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() || self.continues {
            self.whole(&line, width, &mut rows);
        }
        *self = Self::default();
        rows
    }

    /// Renders the rest of a line that has ended.
    fn whole(&mut self, line: &str, width: usize, rows: &mut Vec<String>) {
        if std::mem::take(&mut self.continues) {
            words(line, "", &mut self.wrap, width, rows);
            self.wrap.end(rows);
            return;
        }
        let trimmed = line.trim_start();
        if let Some(fence) = &self.fence {
            let ends = trimmed.trim_end() == fence;
            if ends {
                self.fence = None;
            } else {
                rows.push(format!("  {CYAN}{}{RESET}", line.replace('\t', "    ")));
            }
            return;
        }
        if trimmed.is_empty() {
            if !std::mem::replace(&mut self.after_blank, true) {
                rows.push(String::new());
            }
            return;
        }
        self.after_blank = false;
        if let Some(mark) = fence(trimmed) {
            let name = trimmed[mark.len()..].trim();
            if !name.is_empty() {
                rows.push(format!("  {DIM}{}{RESET}", clip_to_width(name, width)));
            }
            self.fence = Some(mark);
            return;
        }
        if is_rule(trimmed) {
            rows.push(format!("{DIM}{}{RESET}", "─".repeat(width.min(24))));
            return;
        }
        // The columns of a table are kept as the agent aligned them.
        if trimmed.starts_with('|') {
            rows.push(line.to_string());
            return;
        }
        let Block { first, indent, style, text } = block(line);
        self.wrap.begin(first, indent);
        words(text, style, &mut self.wrap, width, rows);
        self.wrap.end(rows);
    }

    /// Renders those words of an unfinished line that no later text can change.
    fn begun(&mut self, width: usize, rows: &mut Vec<String>) {
        if !self.continues {
            let trimmed = self.line.trim_start();
            let is_prose = self.fence.is_none()
                && fence(trimmed).is_none()
                && !trimmed.starts_with(['#', '|'])
                && !trimmed.is_empty();
            if !is_prose {
                return;
            }
        }
        let Some(end) = settled(&self.line) else { return };
        let rest = self.line.split_off(end);
        let line = std::mem::replace(&mut self.line, rest);
        self.after_blank = false;
        if !std::mem::replace(&mut self.continues, true) {
            let Block { first, indent, style, text } = block(&line);
            self.wrap.begin(first, indent);
            words(text, style, &mut self.wrap, width, rows);
        } else {
            words(&line, "", &mut self.wrap, width, rows);
        }
    }
}

/// Returns the length of the longest beginning that ends after a space and has no open emphasis,
/// code or link.
fn settled(line: &str) -> Option<usize> {
    let (mut stars, mut ticks, mut brackets) = (0_usize, 0_usize, 0_usize);
    let mut end = None;
    for (at, c) in line.char_indices() {
        match c {
            '*' => stars += 1,
            '`' => ticks += 1,
            '[' => brackets += 1,
            ']' => brackets = brackets.saturating_sub(1),
            ' ' if stars % 2 == 0 && ticks % 2 == 0 && brackets == 0 && !opens(&line[..at]) => {
                end = Some(at + 1);
            }
            _ => {}
        }
    }
    // A line that never closes its marks is shown all the same.
    end.or_else(|| (line.len() >= LINE_LIMIT).then(|| line.rfind(' ').unwrap_or(line.len() - 1)))
        .filter(|end| *end > 0 && line.is_char_boundary(*end))
}

/// Whether the text has an odd number of `**`.
fn opens(text: &str) -> bool {
    text.matches("**").count() % 2 == 1
}

fn fence(line: &str) -> Option<String> {
    let mark = line.chars().next().filter(|c| matches!(c, '`' | '~'))?;
    let length = line.chars().take_while(|c| *c == mark).count();
    (length >= 3).then(|| mark.to_string().repeat(length))
}

fn is_rule(line: &str) -> bool {
    let line = line.trim();
    line.len() >= 3 && ["-", "*", "_"].iter().any(|mark| line.replace(mark, "").is_empty())
}

/// The beginning of a line of Markdown.
struct Block<'a> {
    first: String,
    /// The columns before the further rows.
    indent: String,
    style: &'static str,
    text: &'a str,
}

fn block(line: &str) -> Block<'_> {
    let text = line.trim_start();
    let depth = (line.len() - text.len()).min(16);
    let plain = |style, text| Block { first: String::new(), indent: String::new(), style, text };
    let level = text.bytes().take_while(|byte| *byte == b'#').count();
    if (1..=6).contains(&level) && text[level..].starts_with(' ') {
        return plain(BOLD, text[level..].trim());
    }
    if let Some(rest) = text.strip_prefix('>') {
        let bar = format!("{DIM}│{RESET} ");
        return Block { first: bar.clone(), indent: bar, style: DIM, text: rest.trim_start() };
    }
    let bullet = ["- ", "* ", "+ "].iter().find_map(|mark| text.strip_prefix(mark));
    if let Some(rest) = bullet {
        let space = " ".repeat(depth);
        let (first, indent) = (format!("{space}• "), format!("{space}  "));
        return Block { first, indent, style: "", text: rest };
    }
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if (1..=4).contains(&digits)
        && let Some(rest) = text[digits..].strip_prefix(". ")
    {
        let first = format!("{}{}. ", " ".repeat(depth), &text[..digits]);
        let indent = " ".repeat(first.len());
        return Block { first, indent, style: "", text: rest };
    }
    plain("", text)
}

/// Adds the words of a text, with their styles.
fn words(text: &str, base: &str, wrap: &mut Wrap, width: usize, rows: &mut Vec<String>) {
    let guarded = format!("{GUARD}{text}");
    let mut styles: Vec<String> = vec![base.to_string()];
    let mut link = None;
    for event in Parser::new_ext(&guarded, Options::ENABLE_STRIKETHROUGH) {
        let style = styles.concat();
        match event {
            Event::Start(Tag::Strong) => styles.push(BOLD.into()),
            Event::Start(Tag::Emphasis) => styles.push(ITALIC.into()),
            Event::Start(Tag::Strikethrough) => styles.push(DIM.into()),
            Event::End(TagEnd::Strong | TagEnd::Emphasis | TagEnd::Strikethrough) => {
                styles.pop();
            }
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                link = Some((dest_url.to_string(), String::new()));
            }
            Event::End(TagEnd::Link | TagEnd::Image) => {
                if let Some((url, _)) = link.take().filter(|(url, text)| url != text) {
                    wrap.text(&format!(" ({url})"), &format!("{style}{DIM}"), width, rows);
                }
            }
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => {
                if let Some((_, shown)) = &mut link {
                    shown.push_str(&text);
                }
                wrap.text(&text.replace(GUARD, ""), &style, width, rows);
            }
            Event::Code(text) => {
                wrap.text(&text.replace(GUARD, ""), &format!("{style}{CYAN}"), width, rows);
            }
            Event::SoftBreak | Event::HardBreak => wrap.text(" ", "", width, rows),
            _ => {}
        }
    }
    wrap.text(" ", "", width, rows);
}

/// Joins words to rows.
#[derive(Debug, Default)]
struct Wrap {
    row: String,
    columns: usize,
    has_words: bool,
    indent: String,
    word: String,
    word_columns: usize,
}

impl Wrap {
    fn begin(&mut self, first: String, indent: String) {
        self.columns = visible(&first);
        (self.row, self.indent) = (first, indent);
        self.has_words = false;
    }

    fn text(&mut self, text: &str, style: &str, width: usize, rows: &mut Vec<String>) {
        for part in text.split_inclusive(char::is_whitespace) {
            let piece = part.trim_end_matches(char::is_whitespace);
            if !piece.is_empty() {
                self.word_columns += piece.width();
                match style.is_empty() {
                    true => self.word.push_str(piece),
                    false => self.word.push_str(&format!("{style}{piece}{RESET}")),
                }
            }
            if piece.len() < part.len() {
                self.end_word(width, rows);
            }
        }
    }

    fn end_word(&mut self, width: usize, rows: &mut Vec<String>) {
        if self.word.is_empty() {
            return;
        }
        let space = usize::from(self.has_words);
        if self.has_words && self.columns + space + self.word_columns > width {
            self.next_row(rows);
        }
        if self.has_words {
            self.row.push(' ');
            self.columns += 1;
        }
        self.row.push_str(&std::mem::take(&mut self.word));
        self.columns += std::mem::take(&mut self.word_columns);
        self.has_words = true;
    }

    fn next_row(&mut self, rows: &mut Vec<String>) {
        rows.push(std::mem::replace(&mut self.row, self.indent.clone()));
        self.columns = visible(&self.indent);
        self.has_words = false;
    }

    fn end(&mut self, rows: &mut Vec<String>) {
        if self.has_words {
            rows.push(std::mem::take(&mut self.row));
        }
        *self = Self::default();
    }
}

fn visible(text: &str) -> usize {
    anstream::adapter::strip_str(text).to_string().width()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(rows: &[String]) -> Vec<String> {
        rows.iter().map(|row| anstream::adapter::strip_str(row).to_string()).collect()
    }

    /// Renders a text that arrives in pieces.
    fn rendered(text: &str, piece: usize, width: usize) -> Vec<String> {
        let mut markdown = Markdown::default();
        let chars: Vec<char> = text.chars().collect();
        let mut rows: Vec<String> = chars
            .chunks(piece)
            .flat_map(|piece| markdown.push(&piece.iter().collect::<String>(), width))
            .collect();
        rows.extend(markdown.end(width));
        rows
    }

    const TEXT: &str = "# A *title*\n\nSome **bold words** and `code` in a paragraph that wraps, \
with a [link](https://a.example) at its end.\n\n- one item that is long enough to wrap\n  1. \
nested\n> quoted\n```rust\nfn main() {\n    **not bold**\n}\n```\n| a | b |\n---\nend";

    #[test]
    fn rows_do_not_depend_on_the_pieces_in_which_a_text_arrives() {
        let whole = rendered(TEXT, 10_000, 30);
        for piece in [1, 2, 3, 7, 29] {
            assert_eq!(rendered(TEXT, piece, 30), whole, "{piece}");
        }
        assert_eq!(
            plain(&whole),
            [
                "A title",
                "",
                "Some bold words and code in a",
                "paragraph that wraps, with a",
                "link (https://a.example) at",
                "its end.",
                "",
                "• one item that is long enough",
                "  to wrap",
                "  1. nested",
                "│ quoted",
                "  rust",
                "  fn main() {",
                "      **not bold**",
                "  }",
                "| a | b |",
                "────────────────────────",
                "end",
            ]
        );
        assert!(whole[2].contains(&format!("{BOLD}bold{RESET}")), "{:?}", whole[2]);
    }

    #[test]
    fn long_paragraph_is_shown_before_it_ends() {
        let mut markdown = Markdown::default();
        let rows = markdown.push("one two three four five six seven ", 16);
        assert_eq!(plain(&rows), ["one two three", "four five six"]);
        assert_eq!(plain(&markdown.end(16)), ["seven"]);
    }

    #[test]
    fn text_that_is_no_markdown_stays_whole() {
        for text in ["a * b * c", "1) x", "<b>x</b> & y", "2 ** 3", "- ", "#tag", "a_b_c"] {
            let shown = plain(&rendered(text, 3, 40)).join("\n");
            let letters = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).count();
            assert_eq!(letters(&shown), letters(text), "{text:?}: {shown:?}");
        }
        assert_eq!(rendered("\x1b[2Ja\u{202e}b", 1, 40), ["[2Jab"]);
    }
}
