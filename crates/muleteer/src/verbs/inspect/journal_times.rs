//! Dates for the lines of a journal. The file has only hours and minutes in UTC, and every line of
//! Muleteer's is a function of its event, so that the format cannot change. The events have the
//! whole times.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::client::offline::stored;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};
use muleteer_backends::TRAITS;
use muleteer_model::agent::event::cut;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Event, Record};
use muleteer_model::journal::{ENTRY_LIMIT, harness_line};
use muleteer_store::events::tail::{Reader, Start};
use std::collections::{HashMap, VecDeque};

/// The key of the header with the time at which the journal began.
const STARTED: &str = "Started: ";

/// The times of a dispatch's journal lines, read from its events.
#[derive(Debug)]
pub struct JournalTimes {
    id: DispatchId,
    /// The newest record about the dispatch, if it has ended: what follows is about others.
    last: Option<u64>,
    reader: Reader,
    times: Times,
}

impl JournalTimes {
    /// Opens the events of a dispatch.
    ///
    /// # Errors
    /// When the events cannot be read.
    pub fn open(context: &Context, dispatch: &Dispatch) -> Result<Self, Failure> {
        let start = Start::Seq(dispatch.created_seq);
        let reader = Reader::open(&context.paths.events(), start).map_err(stored)?;
        let last = dispatch.is_finished().then_some(dispatch.last_seq);
        Ok(Self { id: dispatch.id.clone(), last, reader, times: Times::new(TimeZone::system()) })
    }

    /// Returns the line as it is shown. New events are read first. A line that was written at this
    /// moment may have no event yet: it gets the time `otherwise`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn dated(&mut self, line: &str, otherwise: Option<Timestamp>) -> Result<String, Failure> {
        self.refresh()?;
        Ok(self.times.dated(line, otherwise))
    }

    /// Returns the whole text as it is shown.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn dated_text(&mut self, text: &str) -> Result<String, Failure> {
        self.refresh()?;
        let line = |line: &str| match line.strip_suffix('\n') {
            Some(line) => format!("{}\n", self.times.dated(line, None)),
            None => self.times.dated(line, None),
        };
        Ok(text.split_inclusive('\n').map(line).collect())
    }

    fn refresh(&mut self) -> Result<(), Failure> {
        let last = self.last.unwrap_or(u64::MAX);
        while self.reader.cursor().seq < last
            && let Some(line) = self.reader.next_line().map_err(stored)?
        {
            if line.record.entry.dispatch_id.as_ref() == Some(&self.id) {
                self.times.take(&line.record);
            }
        }
        Ok(())
    }
}

/// Returns the last line of a dispatch's journal with its date, if an event explains it. That event
/// is one of the newest, so they are read first.
///
/// # Errors
/// When the events cannot be read.
pub fn dated_last(
    context: &Context,
    dispatch: &Dispatch,
    line: &str,
) -> Result<Option<String>, Failure> {
    /// How many records the first search has, and how much longer each further one is.
    const FIRST: u64 = 1_000;
    const MORE: u64 = 30;
    /// A line that no event explains must not cost the reading of all events.
    const MOST: u64 = FIRST * MORE;
    let key = cut(line.trim_end(), ENTRY_LIMIT);
    let (created, last) = (dispatch.created_seq, dispatch.last_seq);
    let (mut until, mut length) = (last, FIRST);
    loop {
        let from = last.saturating_sub(length).max(created);
        let mut reader = Reader::open(&context.paths.events(), Start::Seq(from)).map_err(stored)?;
        let mut times = Times::new(TimeZone::system());
        while reader.cursor().seq < until
            && let Some(read) = reader.next_line().map_err(stored)?
        {
            if read.record.entry.dispatch_id.as_ref() == Some(&dispatch.id) {
                times.take(&read.record);
            }
        }
        if let Some(at) = times.of.get_mut(&key).and_then(VecDeque::pop_back) {
            times.of.insert(key, VecDeque::from([at]));
            return Ok(Some(times.dated(line, None)));
        }
        if from == created || length >= MOST {
            return Ok(None);
        }
        (until, length) = (from, length.saturating_mul(MORE));
    }
}

#[derive(Debug)]
struct Times {
    zone: TimeZone,
    /// The times of each line, oldest first: a line may be there several times.
    of: HashMap<String, VecDeque<Timestamp>>,
}

impl Times {
    fn new(zone: TimeZone) -> Self {
        Self { zone, of: HashMap::new() }
    }

    fn take(&mut self, record: &Record) {
        let line = match &record.entry.event {
            Event::JournalEntry { text } => Some(text.clone()),
            _ => harness_line(record, Offset::UTC, TRAITS),
        };
        if let Some(line) = line {
            self.of.entry(line).or_default().push_back(record.ts);
        }
    }

    /// Replaces the time of a line by its date and local time. A line of the agent has the time at
    /// which Muleteer read it; one that no event explains gets the time `otherwise`, or stays.
    fn dated(&mut self, line: &str, otherwise: Option<Timestamp>) -> String {
        if let Some(started) = line.strip_prefix(STARTED) {
            return self.started(started).unwrap_or_else(|| line.to_string());
        }
        let known = self.of.get_mut(&cut(line.trim_end(), ENTRY_LIMIT));
        let at = known.and_then(VecDeque::pop_front).or(otherwise);
        let (Some(at), Some(rest)) = (at, without_clock(line)) else { return line.to_string() };
        let time = at.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M");
        format!("- {time}{rest}")
    }

    /// The header's time is in UTC.
    fn started(&self, text: &str) -> Option<String> {
        let at = DateTime::strptime("%Y-%m-%d %H:%M", text.trim()).ok()?;
        let local = at.to_zoned(TimeZone::UTC).ok()?.with_time_zone(self.zone.clone());
        Some(format!("{STARTED}{}", local.strftime("%Y-%m-%d %H:%M")))
    }
}

/// Returns what follows the time in `- 12:34 — [harness] …`; `None` for a line without one.
fn without_clock(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("- ")?;
    let (clock, after) = (rest.get(..5)?, rest.get(5..)?);
    let is_clock = clock.bytes().enumerate().all(|(at, byte)| match at {
        2 => byte == b':',
        _ => byte.is_ascii_digit(),
    });
    // Seconds, if an agent writes them, are replaced too.
    let seconds = after.strip_prefix(':').and_then(|after| {
        let digits = after.get(..2)?.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| after.get(2..)).flatten()
    });
    is_clock.then_some(seconds.unwrap_or(after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muleteer_model::event::{Entry, VERSION};

    fn record(seq: u64, ts: &str, event: Event) -> Record {
        let entry = Entry { id: "x".into(), dispatch_id: None, at: None, more: false, event };
        Record { v: VERSION, seq, ts: ts.parse().expect("a time"), entry }
    }

    #[test]
    fn lines_get_the_local_date_of_their_event() {
        let mut times = Times::new(TimeZone::fixed(jiff::tz::offset(-5)));
        let entry = |text: &str| Event::JournalEntry { text: text.into() };
        let kill = Event::KillRequested { reason: String::new(), by: "operator".into() };
        times.take(&record(1, "2026-02-18T02:34:00Z", entry("- 21:34 — [agent] Starting")));
        times.take(&record(2, "2026-02-19T02:34:30Z", entry("- 21:34 — [agent] Starting")));
        times.take(&record(3, "2026-02-19T12:00:00Z", kill));
        let mut shown = |line: &str| times.dated(line, None);
        assert_eq!(shown("Started: 2026-02-18 02:34"), "Started: 2026-02-17 21:34");
        assert_eq!(shown("- 21:34 — [agent] Starting"), "- 2026-02-17 21:34 — [agent] Starting");
        assert_eq!(shown("- 21:34 — [agent] Starting"), "- 2026-02-18 21:34 — [agent] Starting");
        let killed = "kill requested by operator";
        assert_eq!(
            shown(&format!("- 12:00 — [harness] {killed}")),
            format!("- 2026-02-19 07:00 — [harness] {killed}")
        );
        assert_eq!(shown("- 09:00 — [agent] unknown"), "- 09:00 — [agent] unknown");
        let now = "2026-02-19T14:00:00Z".parse().ok();
        assert_eq!(times.dated("- 09:00 — [agent] new", now), "- 2026-02-19 09:00 — [agent] new");
        assert_eq!(times.dated("## Log", now), "## Log");
    }

    #[test]
    fn only_a_clock_at_the_beginning_is_replaced() {
        assert_eq!(without_clock("- 12:34 — text"), Some(" — text"));
        assert_eq!(without_clock("- 12:34:56 text"), Some(" text"));
        for line in ["- done at 12:34", "12:34 text", "- 12:3é text", "- 1234 text", "- "] {
            assert_eq!(without_clock(line), None, "{line}");
        }
    }
}
