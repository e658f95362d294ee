//! The demo's live output: one line for each event, as an operations channel would show it, and the
//! demo's own actions between them.

use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::render::event::Lines;
use crate::render::{BLUE, BOLD, CYAN, DIM, MAGENTA, RESET, YELLOW};
use jiff::Timestamp;
use muleteer_model::event::Record;
use std::cell::Cell;
use std::path::Path;

#[derive(Debug)]
pub struct Screen {
    out: Output,
    /// The demo's folder. It is long and has no meaning, so it is shown as `$DEMO`.
    root: String,
    began: Cell<Option<Timestamp>>,
    lines: Lines,
}

impl Screen {
    pub fn new(out: Output, root: &Path) -> Self {
        Self {
            out,
            root: root.display().to_string(),
            began: Cell::new(None),
            lines: Lines::default(),
        }
    }

    /// Prints what the demo does now. This is no event, so with `--json` it goes to stderr.
    pub fn act(&self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.own(format!("\n{BOLD}▶ {}{RESET}", text.as_ref()))
    }

    /// Prints what the demo noticed.
    pub fn remark(&self, text: impl AsRef<str>) -> Result<(), Failure> {
        self.own(format!("{YELLOW}  {}{RESET}", text.as_ref()))
    }

    pub fn block(&self, text: &str) -> Result<(), Failure> {
        let indented: Vec<_> = text.lines().map(|line| format!("  {line}")).collect();
        self.own(indented.join("\n"))
    }

    fn own(&self, text: String) -> Result<(), Failure> {
        match (self.out.quiet, self.out.json) {
            (true, _) => Ok(()),
            (false, true) => {
                self.out.note(text);
                Ok(())
            }
            (false, false) => self.out.line(text),
        }
    }

    pub fn event(&self, line: &str, record: &Record, who: &str) -> Result<(), Failure> {
        if self.out.json {
            return self.out.line(line);
        }
        let Some(what) = self.lines.describe(&record.entry).filter(|_| !self.out.quiet) else {
            return Ok(());
        };
        let began = self.began.get().unwrap_or(record.ts);
        self.began.set(Some(began));
        let after = record.ts.duration_since(began).as_secs_f64();
        let what = what.trim_end().replace(&self.root, "$DEMO");
        self.out.line(format!("{DIM}{after:>5.1}s{RESET} {}{who:<10}{RESET} {what}", color(who)))
    }
}

pub fn color(who: &str) -> &'static str {
    match who {
        "slug" => CYAN,
        "test" => MAGENTA,
        "readme" | "dash" => BLUE,
        "judge" | "structure" => YELLOW,
        _ => DIM,
    }
}
