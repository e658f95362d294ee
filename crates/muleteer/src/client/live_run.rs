//! Shows a run live on stderr. Events scroll by; on a terminal the current state is redrawn below
//! them. Elsewhere (a pipe, a file, `TERM=dumb`) only lines are printed.
//!
//! It draws with three escape sequences that every terminal supports. A library that pads the last
//! line to the edge leaves a line behind when the terminal echoes `^C` there. One that counts lines
//! as they were drawn leaves some behind when the window became narrower. Dropping a [`LiveRun`]
//! removes its picture from the screen.

use crate::cli::context::Context;
use crate::render::event::Lines;
use crate::render::progress::picture;
use crate::render::{clean, clip, terminal};
use anstream::adapter::strip_str;
use jiff::Timestamp;
use muleteer_model::event::Record;
use muleteer_model::spec_run::report::history::Chronicle;
use muleteer_model::spec_run::report::live::AtWork;
use muleteer_process::clock::awake;
use muleteer_store::beads::tbd::progress;
use muleteer_store::events::tail::{Reader, Start};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

/// The interval at which times on the screen are updated.
pub const TICK: Duration = Duration::from_secs(1);
/// The least time between two lines about the progress of the bead store.
const QUIET: Duration = Duration::from_secs(5);
/// Rows and columns of a terminal that does not report its size.
const SIZE: (usize, usize) = (24, 80);

#[derive(Debug)]
pub struct LiveRun<'a> {
    context: &'a Context,
    lines: Lines,
    chronicle: Option<Chronicle>,
    at_work: AtWork,
    /// The repository whose bead store the run uses.
    beads: PathBuf,
    /// When the progress of the bead store was last printed, where nothing is redrawn.
    printed_at: Duration,
    /// The daemon's events, which report tools and costs; `None` if they cannot be read.
    ledger: Option<Reader>,
    on_screen: bool,
    /// The widths of the lines on the screen. The cursor is behind the last one.
    drawn: Vec<usize>,
}

impl<'a> LiveRun<'a> {
    /// Starts with what is already known of the run. `beads` is the repository with its beads.
    pub fn new(context: &'a Context, known: Option<Chronicle>, beads: PathBuf) -> Self {
        let at_work = AtWork::default();
        let lines = Lines::default();
        if let Some(known) = &known {
            lines.learn(&known.run);
        }
        Self {
            context,
            lines,
            chronicle: known,
            at_work,
            beads,
            printed_at: awake(),
            ledger: None,
            on_screen: on_screen(context),
            drawn: vec![],
        }
    }

    /// Takes the run's next event and prints the line that describes it. Events come in order, each
    /// once.
    pub fn take(&mut self, record: &Record) {
        match &mut self.chronicle {
            Some(chronicle) if chronicle.run.seq >= record.seq => {}
            Some(chronicle) => chronicle.apply(record),
            None => self.chronicle = Chronicle::begin(record),
        }
        match self.lines.line(record) {
            Some(line) => self.note(line),
            None => self.draw(),
        }
    }

    /// Prints a line that stays on the screen.
    pub fn note(&mut self, text: impl AsRef<str>) {
        if self.on_screen {
            self.show(Some(text.as_ref()));
        } else {
            self.context.out.note(text);
        }
    }

    /// Draws the current state. Where nothing is redrawn, it only prints the progress of the bead
    /// store from time to time.
    pub fn draw(&mut self) {
        if self.on_screen {
            self.show(None);
        } else if awake() >= self.printed_at + QUIET
            && let Some(calls) = progress::now(&self.beads)
        {
            self.printed_at = awake();
            self.context.out.note(calls.to_string());
        }
    }

    /// Removes the picture from the screen. Earlier and later notes stay.
    pub fn clear(&mut self) {
        if self.on_screen {
            self.on_screen = false;
            write(&self.erased(size().1));
        }
    }

    /// Writes everything at once, so that nothing flickers.
    fn show(&mut self, note: Option<&str>) {
        let (rows, columns) = size();
        let mut text = self.erased(columns);
        if let Some(note) = note {
            text.push_str(&self.painted(note));
            text.push('\n');
        }
        // The last column stays empty, because some terminals wrap when it is written to.
        let lines = self.lines(columns.saturating_sub(1), rows);
        self.drawn = lines.iter().map(|line| strip_str(line).to_string().width()).collect();
        text.push_str(&self.painted(&lines.join("\n")));
        write(&text);
    }

    fn lines(&mut self, columns: usize, rows: usize) -> Vec<String> {
        let Some(chronicle) = &self.chronicle else { return vec![] };
        if self.ledger.is_none() {
            let begun = Start::Time(chronicle.run.started_at);
            self.ledger = Reader::open(&self.context.paths.events(), begun).ok();
        }
        while let Some(Ok(Some(line))) = self.ledger.as_mut().map(Reader::next_line) {
            self.at_work.apply(&line.record);
        }
        let calls = progress::now(&self.beads).filter(|_| rows > 1);
        let below = usize::from(calls.is_some());
        let mut lines = picture(chronicle, &self.at_work, Timestamp::now(), columns, rows - below);
        lines.extend(calls.map(|calls| clip(&format!("  {calls}"), columns)));
        lines
    }

    /// Returns the sequence that removes the picture. A terminal that became narrower has wrapped
    /// its lines into more rows.
    fn erased(&self, columns: usize) -> String {
        let rows: usize =
            self.drawn.iter().map(|width| width.div_ceil(columns.max(1)).max(1)).sum();
        match rows {
            0 => String::new(),
            1 => "\r\x1b[J".into(),
            rows => format!("\r\x1b[{}A\x1b[J", rows - 1),
        }
    }

    fn painted(&self, text: &str) -> String {
        let text = clean(text);
        if self.context.out.color_on_stderr() { text } else { strip_str(&text).to_string() }
    }
}

impl Drop for LiveRun<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

fn on_screen(context: &Context) -> bool {
    terminal::errors().is_some() && !context.out.json && !context.out.quiet
}

/// Writes to the terminal and ignores errors: a terminal that cannot be written to shows nothing
/// anyway.
fn write(text: &str) {
    let mut out = std::io::stderr().lock();
    drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
}

/// Returns the terminal's rows and columns.
fn size() -> (usize, usize) {
    terminal::errors().unwrap_or(SIZE)
}
