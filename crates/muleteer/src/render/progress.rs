//! The progress of a run as a few lines that are redrawn. The function is pure, so that tests need
//! no terminal.

use crate::render::{BLUE, BOLD, CYAN, DIM, GREEN, RED, RESET, YELLOW, clip, span, usd};
use jiff::Timestamp;
use muleteer_model::spec_run::estimate::{self, Estimate};
use muleteer_model::spec_run::event::Phase;
use muleteer_model::spec_run::report::history::Chronicle;
use muleteer_model::spec_run::report::live::AtWork;
use muleteer_model::spec_run::{Job, Run, Stage};
use muleteer_model::text::controls::reorders;
use std::time::Duration;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The maximum of rows for agents, however tall the terminal is.
const AGENTS: usize = 12;
/// Lines other than those of the agents, and one that stays free for scrolling events.
const OTHERS: usize = 5;
const BAR: usize = 30;

/// Returns at most `rows` lines of at most `columns` columns each.
pub fn picture(
    chronicle: &Chronicle,
    at_work: &AtWork,
    now: Timestamp,
    columns: usize,
    rows: usize,
) -> Vec<String> {
    let run = &chronicle.run;
    let mut lines = vec![head(run, at_work, now), beads(run, columns)];
    if let Some(left) = left(chronicle, now) {
        lines.push(left);
    }
    let room = rows.saturating_sub(OTHERS).clamp(1, AGENTS);
    let jobs: Vec<&Job> = run.jobs.values().collect();
    let shown = if jobs.len() > room { room - 1 } else { jobs.len() };
    lines.extend(jobs.iter().take(shown).map(|job| agent(run, job, at_work, now, columns)));
    if jobs.len() > shown {
        lines.push(Line::new().with(DIM, format!("  and {} more agents", jobs.len() - shown)));
    }
    lines.truncate(rows.max(1));
    lines.into_iter().map(|line| line.fit(columns)).collect()
}

fn head(run: &Run, at_work: &AtWork, now: Timestamp) -> Line {
    let time = Duration::from_millis(run.ran_for_ms(now).max(0).unsigned_abs());
    // The run adds the cost of an agent when the agent ends, so the running agents' costs are added
    // here.
    let unbooked: f64 = run
        .jobs
        .values()
        .filter_map(|job| at_work.of(&job.start.dispatch))
        .map(|hand| hand.cost_usd)
        .sum();
    let phase = match run.stopping() {
        Some(_) => "stopping".to_string(),
        None => format!("{}, iteration {}", run.phase().as_str(), run.iteration),
    };
    Line::new()
        .with(BOLD, run.id())
        .with("", format!("  {phase}  {}  {}", span(time), usd(run.cost_usd + unbooked)))
}

fn beads(run: &Run, columns: usize) -> Line {
    let count = |stage| run.count(stage);
    let (total, done, taken) = (run.beads.len(), count(Stage::Done), count(Stage::Taken));
    if total == 0 {
        return Line::new().with(DIM, "  no beads yet");
    }
    let width = BAR.min(columns / 3);
    let part = |count: usize| count * width / total;
    let (full, half) = (part(done), part(done + taken) - part(done));
    let mut line = Line::new()
        .with("", "  ")
        .with(GREEN, "█".repeat(full))
        .with(BLUE, "▒".repeat(half))
        .with(DIM, "░".repeat(width - full - half))
        .with("", format!(" {done} of {total} beads done"));
    for (count, what, color) in [
        (taken, "in progress", CYAN),
        (count(Stage::Open), "open", ""),
        (count(Stage::Blocked), "blocked", RED),
    ] {
        if count > 0 {
            line = line.with("", ", ").with(color, format!("{count} {what}"));
        }
    }
    line
}

fn left(chronicle: &Chronicle, now: Timestamp) -> Option<Line> {
    if chronicle.run.phase() != Phase::Implement {
        return None;
    }
    let time = |millis: u64| span(Duration::from_millis(millis));
    let text = match estimate::of(chronicle, now) {
        Estimate::Nothing => return None,
        Estimate::Unknown => "  time left: unknown until a bead is done".to_string(),
        Estimate::Between { low_ms, high_ms } if time(low_ms) == time(high_ms) => {
            format!("  about {} of beads left, before maintenance and the judge", time(high_ms))
        }
        Estimate::Between { low_ms, high_ms } => {
            format!(
                "  {} to {} of beads left, before maintenance and the judge",
                time(low_ms),
                time(high_ms)
            )
        }
    };
    Some(Line::new().with(DIM, text))
}

fn agent(run: &Run, job: &Job, at_work: &AtWork, now: Timestamp, columns: usize) -> Line {
    let since =
        |at: Timestamp| span(Duration::try_from(at.duration_until(now)).unwrap_or_default());
    let start = &job.start;
    let bead = start.bead_id.as_deref().unwrap_or_default();
    let title = run.beads.get(bead).map_or("", |task| task.planned.title.as_str());
    let hand = at_work.of(&start.dispatch);
    let mut line = Line::new()
        .with(DIM, format!("  {:>2} ", start.agent))
        .with(CYAN, start.purpose.as_str())
        .with("", if bead.is_empty() { String::new() } else { format!(" {}", clip(bead, 20)) });
    if start.attempt > 0 {
        line = line.with(YELLOW, format!(" ↻{}", start.attempt + 1));
    }
    line = line.with("", format!("  {}", since(job.started_at)));
    if let Some(cost) = hand.map(|hand| hand.cost_usd).filter(|cost| *cost > 0.0) {
        line = line.with("", format!("  {}", usd(cost)));
    }
    if columns >= 60 && !title.is_empty() {
        line = line.with(DIM, format!("  {}", clip(title, columns / 4)));
    }
    match hand.map(|hand| (hand.call(), hand.waits_until)) {
        Some((_, Some(until))) if until > now => line.with(YELLOW, "  waiting for the model API"),
        Some((Some(call), _)) => line
            .with("", format!("  {} {}", clip(&call.tool, 24), clip(call.target.trim(), columns)))
            .after(DIM, format!(" {}", since(call.since))),
        _ => line,
    }
}

/// Text in coloured pieces; its length counts only visible columns.
#[derive(Debug, Default)]
struct Line {
    pieces: Vec<(&'static str, String)>,
    /// A piece that is preserved when the pieces before it are cut.
    last: Option<(&'static str, String)>,
}

impl Line {
    fn new() -> Self {
        Self::default()
    }

    fn with(mut self, color: &'static str, text: impl Into<String>) -> Self {
        self.pieces.push((color, text.into()));
        self
    }

    fn after(mut self, color: &'static str, text: impl Into<String>) -> Self {
        self.last = Some((color, text.into()));
        self
    }

    fn fit(self, columns: usize) -> String {
        let tail = self.last.as_ref().map_or(0, |(_, text)| text.width());
        let (last, columns) =
            if tail * 2 < columns { (self.last, columns - tail) } else { (None, columns) };
        let whole: usize = self.pieces.iter().map(|(_, text)| text.width()).sum();
        // One column is reserved for the `…` that marks the cut.
        let mut left = if whole > columns { columns.saturating_sub(1) } else { columns };
        let mut text = String::new();
        for (color, piece) in self.pieces {
            let mut kept = String::new();
            for c in piece.chars().map(|c| if c.is_control() || reorders(c) { ' ' } else { c }) {
                let width = c.width().unwrap_or(0);
                if width > left {
                    left = 0;
                    break;
                }
                left -= width;
                kept.push(c);
            }
            paint(&mut text, color, &kept);
        }
        if whole > columns && columns > 0 {
            text.push('…');
        }
        if let Some((color, piece)) = last {
            paint(&mut text, color, &piece);
        }
        text
    }
}

fn paint(into: &mut String, color: &str, text: &str) {
    if color.is_empty() || text.is_empty() {
        into.push_str(text);
    } else {
        into.push_str(color);
        into.push_str(text);
        into.push_str(RESET);
    }
}
