//! Implements `muleteer parse BACKEND < FILE`: runs a backend's parser over the output of a CLI.

pub(crate) mod recorded_dialog;

use crate::Assembly;
use crate::Backend;
use crate::Line;
use crate::stream::replay::recorded_dialog::Dialog;
use crate::stream::usage_dedup::Books;
use muleteer_model::agent::event::{AgentEvent, Timed};
use muleteer_model::text::controls::escape_json;
use std::io::{self, Read, Write};

const CHUNK: usize = 64 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    #[error("cannot read what the agent printed")]
    Read(#[source] io::Error),
    #[error("cannot write the events")]
    Write(#[source] io::Error),
}

/// Prints the events of `reader` as JSON lines (contract.md, "Streams for the monitors"). `t`
/// counts from the first time that any line contains, never decreases, and is 0 for a line without
/// a time. Each amount of usage is reported once, in `usage`, however often the CLI repeats it. If
/// the input is a record of both sides (`>> ` and `<< ` before the lines), only the CLI's side is
/// read. Memory use is constant.
///
/// # Errors
/// Only read and write errors: every input is valid.
pub fn parse_all(
    backend: &dyn Backend,
    mut reader: impl Read,
    mut writer: impl Write,
) -> Result<(), ParseError> {
    let mut parser = backend.parser();
    let mut pieces = backend.by_calls().then(Assembly::default);
    let mut dialog = Dialog::default();
    let mut clock = Clock::default();
    let mut books = Books::default();
    let mut chunk = vec![0; CHUNK];
    loop {
        let n = match reader.read(&mut chunk) {
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(ParseError::Read(error)),
        };
        let lines = match n {
            0 => {
                let mut lines = parser.push(&dialog.finish());
                lines.extend(parser.finish());
                lines
            }
            n => parser.push(&dialog.theirs(&chunk[..n])),
        };
        for line in lines {
            let events = clock.put(line);
            let Some(pieces) = &mut pieces else {
                let events = events.into_iter().flat_map(|event| books.enter(event));
                events.into_iter().try_for_each(|event| write(&mut writer, &event))?;
                continue;
            };
            // None of these CLIs reports times.
            let events = pieces.push(events.into_iter().map(|timed| timed.event));
            events
                .into_iter()
                .try_for_each(|event| write(&mut writer, &Timed { t: 0.0, event, parent: None }))?;
        }
        if n == 0 {
            for event in pieces.as_mut().map(Assembly::finish).unwrap_or_default() {
                write(&mut writer, &Timed { t: 0.0, event, parent: None })?;
            }
            return writer.flush().map_err(ParseError::Write);
        }
    }
}

fn write(writer: &mut impl Write, event: &Timed) -> Result<(), ParseError> {
    // Answers to our calls concern only harness and agent, not the reader of events.
    if matches!(event.event, AgentEvent::CallAnswer(_)) {
        return Ok(());
    }
    let text = serde_json::to_string(event).map_err(|e| ParseError::Write(e.into()))?;
    writer.write_all(escape_json(&text).as_bytes()).map_err(ParseError::Write)?;
    writer.write_all(b"\n").map_err(ParseError::Write)
}

/// Fills in a relative time from the time at which the event was read (Unix seconds), where the
/// line contained only an absolute one.
pub fn settle(event: &mut AgentEvent, unix_s: f64) {
    if let AgentEvent::RateLimit { resets_in_s, resets_at: Some(at), .. } = event
        && *resets_in_s == 0.0
    {
        *resets_in_s = (*at - unix_s).max(0.0);
    }
}

#[derive(Debug, Default)]
struct Clock {
    first: Option<f64>,
    last: Option<f64>,
}

impl Clock {
    fn put(&mut self, line: Line) -> Vec<Timed> {
        let told = line.told_at.map(|at| {
            // A prompt that had to wait carries its arrival time, which is before the times of
            // earlier lines.
            let at = self.last.map_or(at, |last| last.max(at));
            self.last = Some(at);
            at - *self.first.get_or_insert(at)
        });
        let mut events = line.events;
        for timed in &mut events {
            if let Some(t) = told {
                // Rounded to milliseconds, the precision of the lines.
                timed.t = (t * 1000.0).round() / 1000.0;
            }
            if let Some(now) = self.last {
                settle(&mut timed.event, now);
            }
        }
        events
    }
}
