//! Decides which output goes to stdout and which to stderr. Results go to stdout, and errors too
//! with `--json`; everything that only a person needs goes to stderr. Colours are used on a
//! terminal, or as `--color` says.
//!
//! Text for people is cleaned here, in one place, regardless of its author. An agent chooses the
//! names of its tools and of its model, and these must not control the terminal. In JSON these
//! characters are escaped, which changes no value. Only `--raw` prints them.

use crate::cli::failure::Failure;
use crate::cli::far_screen::{self, Screen};
use crate::render::{clean, terminal};
use anstream::adapter::strip_str;
use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;
use muleteer_model::text::controls::escape_json;
use muleteer_store::events::sealed_again;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, Write};
use unicode_width::UnicodeWidthStr;

/// Moves the cursor to the top left.
const HOME: &str = "\x1b[H";
/// Clears the rest of the line.
const CLEAR_LINE: &str = "\x1b[K";
/// Clears everything below the cursor.
const CLEAR_BELOW: &str = "\x1b[J";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Color {
    // On a terminal, unless NO_COLOR is set. This is no doc comment: help would show it on four
    // lines.
    #[default]
    Auto,
    Always,
    Never,
}

/// A stream that another host may show.
trait Shown {
    /// Whether its terminal there shows colours.
    fn has_colors(screen: &Screen) -> bool;
}

impl Shown for io::Stdout {
    fn has_colors(screen: &Screen) -> bool {
        screen.has_colors
    }
}

impl Shown for io::Stderr {
    fn has_colors(screen: &Screen) -> bool {
        screen.has_colors_for_errors
    }
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Output {
    pub json: bool,
    pub quiet: bool,
    pub verbose: u8,
    pub color: Color,
}

impl Output {
    /// Prints a line for a person or a script on stdout. It is flushed, because a reader may wait
    /// for it.
    pub fn line(&self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.stream(io::stdout(), &self.cleaned(text.as_ref()), "\n")
    }

    /// Prints text that has its own newlines.
    pub fn text(&self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.stream(io::stdout(), &self.cleaned(text.as_ref()), "")
    }

    /// Replaces the content of the terminal on stdout, which has `columns`, by `lines`, from the
    /// top left. Each line must fit. Lines that stay the same do not flicker, and the scrollback is
    /// preserved.
    ///
    /// The movements of the cursor are written even where colours are not (`--color never`,
    /// `NO_COLOR`): without them each report would follow the one before it.
    pub fn redrawn(&self, lines: &[String], columns: Option<usize>) -> Result<(), Failure> {
        let has_color = self.choice(&io::stdout()) != ColorChoice::Never;
        let text = frame(lines, columns, has_color);
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }

    fn cleaned<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.json { escaped(text) } else { clean(text).into() }
    }

    /// Prints one JSON document on stdout: indented on a terminal, otherwise on one line.
    pub fn document(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = if terminal::is_seen() {
            serde_json::to_string_pretty(value)
        } else {
            serde_json::to_string(value)
        };
        self.stream(io::stdout(), &escape_json(&text.map_err(io::Error::from)?), "\n")
    }

    /// Prints one JSON value on one line, as part of a sequence of lines.
    pub fn json_line(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value).map_err(io::Error::from)?;
        self.stream(io::stdout(), &escape_json(&text), "\n")
    }

    /// Prints bytes unchanged.
    pub fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }

    /// Prints progress and remarks on stderr, unless `--quiet`. A failure to print them is ignored.
    pub fn note(&self, text: impl AsRef<str>) {
        if !self.quiet {
            drop(self.stream(io::stderr(), &clean(text.as_ref()), "\n"));
        }
    }

    /// Prints a remark if `-v` is given.
    pub fn detail(&self, text: impl AsRef<str>) {
        if self.verbose > 0 {
            self.note(text);
        }
    }

    /// Prints the error that ended a verb: a document on stdout with `--json`, else text on stderr.
    pub fn failure(&self, failure: &Failure) {
        let shown = match failure {
            Failure::OutputClosed => Ok(()),
            // If stdout cannot be written to, the error goes to stderr as text.
            told if self.json => self
                .document(&told.document())
                .or_else(|_| self.stream(io::stderr(), &clean(&told.text()), "\n")),
            told => self.stream(io::stderr(), &clean(&told.text()), "\n"),
        };
        // If that fails too, there is nowhere left to report it.
        drop(shown);
    }

    pub fn color_on_stderr(&self) -> bool {
        self.choice(&io::stderr()) != ColorChoice::Never
    }

    pub fn color_on_stdout(&self) -> bool {
        self.choice(&io::stdout()) != ColorChoice::Never
    }

    fn choice<S: anstream::stream::RawStream + Shown>(&self, raw: &S) -> ColorChoice {
        match (self.color, far_screen::get()) {
            (Color::Auto, Some(screen)) if S::has_colors(screen) => ColorChoice::AlwaysAnsi,
            (Color::Auto, Some(_)) => ColorChoice::Never,
            (Color::Auto, None) => AutoStream::choice(raw),
            (Color::Always, _) => ColorChoice::AlwaysAnsi,
            (Color::Never, _) => ColorChoice::Never,
        }
    }

    fn stream<S: Shown + anstream::stream::RawStream + anstream::stream::AsLockedWrite>(
        &self,
        raw: S,
        text: &str,
        end: &str,
    ) -> Result<(), Failure> {
        let choice = self.choice(&raw);
        let mut stream = AutoStream::new(raw, choice);
        stream.write_all(text.as_bytes())?;
        stream.write_all(end.as_bytes())?;
        Ok(stream.flush()?)
    }
}

/// Escapes JSON for a terminal. A line of events gets the checksum of its escaped text.
fn escaped(text: &str) -> Cow<'_, str> {
    match escape_json(text) {
        Cow::Borrowed(text) => Cow::Borrowed(text),
        Cow::Owned(text) => Cow::Owned(sealed_again(text)),
    }
}

/// Returns the text that replaces the content of a terminal by `lines`. After the last character of
/// a full line the cursor still stands on it, so clearing the rest would erase that character.
fn frame(lines: &[String], columns: Option<usize>, has_color: bool) -> String {
    let mut text = String::from(HOME);
    for line in lines {
        let line = clean(line);
        let plain = strip_str(&line).to_string();
        text.push_str(if has_color { &line } else { &plain });
        if columns.is_none_or(|columns| plain.width() < columns) {
            text.push_str(CLEAR_LINE);
        }
        text.push_str("\r\n");
    }
    text.push_str(CLEAR_BELOW);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redrawn_full_line_keeps_its_last_character() {
        let lines = ["\x1b[1mfull\x1b[0m".to_string(), "not".to_string()];
        assert_eq!(frame(&lines, Some(4), true), "\x1b[H\x1b[1mfull\x1b[0m\r\nnot\x1b[K\r\n\x1b[J");
        assert_eq!(frame(&lines, Some(5), false), "\x1b[Hfull\x1b[K\r\nnot\x1b[K\r\n\x1b[J");
    }

    #[test]
    fn json_drives_no_terminal_and_its_checksum_holds() {
        let rest = "\"v\":1,\"text\":\"a\u{9b}31m\u{7f}\u{202e}b\u{2028}\"}";
        let line = sealed_again(format!("{{\"crc\":\"00000000\",{rest}"));
        let shown = escaped(&line);
        assert!(!shown.contains(|c: char| c.is_control() || c == '\u{202e}'), "{shown}");
        assert_eq!(sealed_again(shown.to_string()), shown, "its checksum is that of its text");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(value(&shown)["text"], value(&line)["text"]);
        assert_eq!(escaped("{\"events\":["), "{\"events\":[");
    }
}
