//! What goes to stdout and what to stderr: results on stdout (errors too with `--json`), everything
//! meant for a person only on stderr. Colours where a terminal is, or as `--color` says.
//!
//! What a person reads is cleaned here once, whoever wrote what is in it: an agent chooses the
//! names of its tools and of its model, and none of that may drive the terminal. Programs are given
//! what there is (`--json`, `--raw`).

use crate::cli::failure::Failure;
use crate::render::clean;
use anstream::{AutoStream, ColorChoice};
use clap::ValueEnum;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Color {
    // On a terminal, unless NO_COLOR is set. No doc comment: help would show it on four lines.
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Output {
    pub json: bool,
    pub quiet: bool,
    pub verbose: u8,
    pub color: Color,
}

impl Output {
    /// A line for a person or a script, on stdout. Flushed, because a reader may wait for it.
    pub fn line(&self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.stream(io::stdout(), &self.cleaned(text.as_ref()), "\n")
    }

    /// Text that brings its own newlines.
    pub fn text(&self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.stream(io::stdout(), &self.cleaned(text.as_ref()), "")
    }

    /// Text that is drawn where `place` brings the cursor.
    pub fn drawn(&self, place: &str, text: &str) -> Result<(), Failure> {
        self.stream(io::stdout(), place, &self.cleaned(text))
    }

    fn cleaned<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.json { text.into() } else { clean(text).into() }
    }

    /// One JSON document on stdout: laid out for a terminal, one line for a program.
    pub fn document(&self, value: &impl Serialize) -> Result<(), Failure> {
        let text = if io::stdout().is_terminal() {
            serde_json::to_string_pretty(value)
        } else {
            serde_json::to_string(value)
        };
        self.stream(io::stdout(), &text.map_err(io::Error::from)?, "\n")
    }

    /// One JSON value on one line, where lines follow each other.
    pub fn json_line(&self, value: &impl Serialize) -> Result<(), Failure> {
        self.stream(io::stdout(), &serde_json::to_string(value).map_err(io::Error::from)?, "\n")
    }

    /// Bytes as they are.
    pub fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }

    /// Progress and remarks, on stderr, unless `--quiet`. That they cannot be shown is no error.
    pub fn note(&self, text: impl AsRef<str>) {
        if !self.quiet {
            drop(self.stream(io::stderr(), &clean(text.as_ref()), "\n"));
        }
    }

    /// Remarks for `-v`.
    pub fn detail(&self, text: impl AsRef<str>) {
        if self.verbose > 0 {
            self.note(text);
        }
    }

    /// The error a verb ended with: a document on stdout with `--json`, else text on stderr.
    pub fn failure(&self, failure: &Failure) {
        let shown = match failure {
            Failure::OutputClosed => Ok(()),
            // Where that cannot be written, people are told in the other place.
            told if self.json => self
                .document(&told.document())
                .or_else(|_| self.stream(io::stderr(), &clean(&told.text()), "\n")),
            told => self.stream(io::stderr(), &clean(&told.text()), "\n"),
        };
        // There is nowhere left to say that this failed.
        drop(shown);
    }

    pub fn color_on_stderr(&self) -> bool {
        self.choice(&io::stderr()) != ColorChoice::Never
    }

    fn choice<S: anstream::stream::RawStream>(&self, raw: &S) -> ColorChoice {
        match self.color {
            Color::Auto => AutoStream::choice(raw),
            Color::Always => ColorChoice::AlwaysAnsi,
            Color::Never => ColorChoice::Never,
        }
    }

    fn stream<S: anstream::stream::RawStream + anstream::stream::AsLockedWrite>(
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
