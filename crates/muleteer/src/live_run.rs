//! A run as it goes, on stderr: events scroll by, and on a terminal what goes on now stands below them and is drawn
//! again and again. Elsewhere (a pipe, a file, `TERM=dumb`) there are only lines.
//!
//! [`indicatif`] does what a terminal needs: clearing what it drew, also after the window has changed its size, and
//! not drawing more often than anybody can see. Dropping a [`LiveRun`] leaves nothing of it behind.

use crate::context::Context;
use crate::render::progress::picture;
use anstream::adapter::strip_str;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use muleteer_model::event::Record;
use muleteer_model::pipeline::at_work::AtWork;
use muleteer_model::pipeline::chronicle::Chronicle;
use muleteer_store::tail::{Reader, Start};
use std::io::IsTerminal;
use std::time::Duration;

/// Times on the screen are brought up to date this often.
pub const TICK: Duration = Duration::from_secs(1);
const PER_SECOND: u8 = 10;
/// Of a terminal that does not tell its size.
const SIZE: (u16, u16) = (24, 80);

#[derive(Debug)]
pub struct LiveRun<'a> {
    context: &'a Context,
    chronicle: Option<Chronicle>,
    at_work: AtWork,
    /// The daemon's events, where tools and costs are told; none where they cannot be read.
    ledger: Option<Reader>,
    screen: Option<ProgressBar>,
}

impl<'a> LiveRun<'a> {
    /// From what is known of the run already.
    pub fn new(context: &'a Context, known: Option<Chronicle>) -> Self {
        let mut live = Self { context, chronicle: known, at_work: AtWork::default(), ledger: None, screen: None };
        if on_screen(context) {
            let screen = ProgressBar::new_spinner();
            screen.set_draw_target(ProgressDrawTarget::stderr_with_hz(PER_SECOND));
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                screen.set_style(style);
                live.screen = Some(screen);
            }
        }
        live
    }

    pub fn is_on_screen(&self) -> bool {
        self.screen.is_some()
    }

    /// One event of the run, each once, in order.
    pub fn take(&mut self, record: &Record) {
        match &mut self.chronicle {
            Some(chronicle) if chronicle.run.seq >= record.seq => {}
            Some(chronicle) => chronicle.apply(record),
            None => self.chronicle = Chronicle::begin(record),
        }
        self.draw();
    }

    /// A line that stays.
    pub fn note(&self, text: impl AsRef<str>) {
        match &self.screen {
            Some(screen) => screen.suspend(|| self.context.out.note(text)),
            None => self.context.out.note(text),
        }
    }

    /// Draws what goes on now.
    pub fn draw(&mut self) {
        let (Some(screen), Some(chronicle)) = (&self.screen, &self.chronicle) else { return };
        if self.ledger.is_none() {
            let begun = Start::Time(chronicle.run.started_at);
            self.ledger = Reader::open(&self.context.paths.events(), begun).ok();
        }
        while let Some(Ok(Some(line))) = self.ledger.as_mut().map(Reader::next_line) {
            self.at_work.apply(&line.record);
        }
        let (rows, columns) = console_size();
        // The last column stays free: some terminals wrap when it is written to.
        let lines = picture(chronicle, &self.at_work, Timestamp::now(), columns.saturating_sub(1), rows);
        let text = lines.join("\n");
        let text = if self.context.out.color_on_stderr() { text } else { strip_str(&text).to_string() };
        screen.set_message(text);
        screen.tick();
    }

    /// Takes the picture off the screen; what was noted stays.
    pub fn clear(&mut self) {
        if let Some(screen) = self.screen.take() {
            screen.finish_and_clear();
        }
    }
}

impl Drop for LiveRun<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

fn on_screen(context: &Context) -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    std::io::stderr().is_terminal() && !dumb && !context.out.json && !context.out.quiet
}

/// Rows and columns.
fn console_size() -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(std::io::stderr())
        .ok()
        .filter(|size| size.ws_row > 0 && size.ws_col > 0);
    let (rows, columns) = size.map_or(SIZE, |size| (size.ws_row, size.ws_col));
    (rows.into(), columns.into())
}
