//! Runs recorded streams through the monitors, in simulated time (contract.md, "Streams for the
//! monitors").
//!
//! The stream gives the clock. The replay polls for silence as often as the daemon does, and
//! watches an unfinished agent for an hour after its last event. Questions are never answered. A
//! stopped agent does nothing more.

use crate::admission::api_error::Terms;
use crate::agent::event::{AgentEvent, TEXT_LIMIT, Timed, cut};
use crate::config::Config;
use crate::monitor;
use crate::monitor::stall::{self, Look, Mark, Verdict, Watch};
use crate::monitor::{Action, Finding, Monitor, Monitors, Responses, hung, observe};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The version of the format.
pub const VERSION: u32 = 1;
/// Seconds that pass after the last event.
const AFTER: f64 = 3600.0;

/// The first line of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    pub stream: u32,
    pub id: String,
    /// For scoring only; the monitors do not see it.
    pub label: Label,
    pub archetype: String,
    /// When the agent became sick, in seconds.
    #[serde(default)]
    pub onset: Option<f64>,
    pub category: String,
    pub limits: Bounds,
    #[serde(default)]
    pub scope: Option<Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Label {
    Healthy,
    Stalled,
    Looping,
    Drifting,
    Spiralling,
    RateLimited,
    Runaway,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// Seconds.
    pub inactivity_timeout: f64,
    #[serde(default)]
    pub budget_usd: Option<f64>,
}

/// A whole stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Stream {
    pub header: Header,
    pub events: Vec<Timed>,
}

/// An invalid line of a stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct BadStream {
    pub line: usize,
    pub fault: String,
}

/// A finding and its time.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    pub t: f64,
    #[serde(flatten)]
    pub finding: Finding,
}

impl Stream {
    /// Parses a stream.
    ///
    /// # Errors
    /// The first line that is no header or no event, or whose time is before its predecessor's.
    pub fn parse(text: &str) -> Result<Self, BadStream> {
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let bad = |line: usize, fault: String| BadStream { line: line + 1, fault };
        let (at, first) = lines
            .next()
            .ok_or_else(|| bad(0, "it is empty: a stream begins with its header".into()))?;
        let header: Header =
            serde_json::from_str(first).map_err(|error| bad(at, format!("no header: {error}")))?;
        if header.stream != VERSION {
            return Err(bad(at, format!("`stream` is {}: only {VERSION} is known", header.stream)));
        }
        if !(header.limits.inactivity_timeout > 0.0 && header.limits.inactivity_timeout.is_finite())
        {
            return Err(bad(at, "`limits.inactivity_timeout` is not a time".into()));
        }
        let mut events: Vec<Timed> = Vec::new();
        for (at, line) in lines {
            let event = read(line).map_err(|error| bad(at, error.to_string()))?;
            let before = events.last().map_or(0.0, |event| event.t);
            if !(event.t >= before && event.t.is_finite()) {
                return Err(bad(at, format!("`t` is {}, after {before}", event.t)));
            }
            events.push(event);
        }
        Ok(Self { header, events })
    }

    /// Returns the findings of all monitors on this stream.
    pub fn decisions(&self) -> Vec<Decision> {
        let responses = responses(&self.header.category);
        let terms =
            monitor::Terms { responses, scope: self.header.scope.clone().unwrap_or_default() };
        let timeout = Duration::from_secs_f64(self.header.limits.inactivity_timeout);
        let mut replay = Replay {
            monitors: Monitors::new(&terms, self.header.limits.budget_usd),
            timeout,
            watch: None,
            cpu: Duration::ZERO,
            blocked: false,
            limited: false,
            begun: false,
            decisions: Vec::new(),
        };
        let mut now = 0.0;
        let mut ended = false;
        for Timed { t, event, .. } in
            self.events.iter().map(|timed| Timed { event: timed.clone().told(), ..timed.clone() })
        {
            replay.pass(now, t);
            if replay.is_over() {
                return replay.decisions;
            }
            now = t;
            replay.hear(&event, now);
            ended |= matches!(event, AgentEvent::Exit { .. });
            if replay.is_over() {
                return replay.decisions;
            }
        }
        if !ended {
            replay.pass(now, now + AFTER);
        }
        replay.decisions
    }
}

/// Parses one event. An event type of a newer version keeps its time and becomes `Unknown`.
fn read(line: &str) -> Result<Timed, serde_json::Error> {
    /// The field that every event has.
    #[derive(Deserialize)]
    struct Dated {
        t: f64,
    }
    serde_json::from_str(line).or_else(|error| match serde_json::from_str(line) {
        Ok(Dated { t }) if error.to_string().starts_with("unknown variant") => {
            let event = AgentEvent::Unknown { raw: cut(line, TEXT_LIMIT) };
            Ok(Timed { t, event, parent: None })
        }
        _ => Err(error),
    })
}

/// Returns the default responses of a category.
fn responses(category: &str) -> Responses {
    let config = Config::defaults().ok();
    let of = |name: &str| config.as_ref()?.category(name).ok().map(|category| category.monitors);
    of(category).or_else(|| of("coding")).unwrap_or_default()
}

struct Replay {
    monitors: Monitors,
    timeout: Duration,
    /// The watch of the running turn, and the time of its next poll.
    watch: Option<(Watch, f64)>,
    cpu: Duration,
    blocked: bool,
    limited: bool,
    /// A turn has run already, so output after its result begins no new turn.
    begun: bool,
    decisions: Vec<Decision>,
}

fn begins_a_turn(event: &AgentEvent) -> bool {
    matches!(event, AgentEvent::Prompt { .. } | AgentEvent::Session { .. })
}

fn speaks(event: &AgentEvent) -> bool {
    matches!(
        event,
        AgentEvent::Text { .. } | AgentEvent::Thinking { .. } | AgentEvent::ToolCall { .. }
    )
}

impl Replay {
    fn is_over(&self) -> bool {
        self.decisions.last().is_some_and(|decision| decision.finding.action == Action::Stop)
    }

    /// Advances the time and polls the agent.
    fn pass(&mut self, from: f64, to: f64) {
        debug_assert!(from <= to);
        while let Some((watch, due)) = &mut self.watch
            && *due <= to
        {
            let now = *due;
            *due += watch.interval().as_secs_f64();
            let look = Look { cpu: Some(self.cpu), blocked_by_us: self.blocked };
            let finding = match watch.look(look, Duration::from_secs_f64(now)) {
                Verdict::Stalled(silent) => Finding {
                    monitor: Monitor::Stall,
                    action: Action::Stop,
                    reason: format!("{} s: {}", silent.as_secs(), watch.evidence()),
                },
                Verdict::ApiDown(trouble, lasted) => Finding {
                    monitor: Monitor::Api,
                    action: Action::Stop,
                    reason: format!("{} for {} s", trouble.describe(None), lasted.as_secs()),
                },
                Verdict::ToolHangs(quiet) => {
                    self.decisions.push(Decision { t: now, finding: hung(quiet) });
                    continue;
                }
                Verdict::Alive(_) | Verdict::Quiet(_) => continue,
            };
            self.decisions.push(Decision { t: now, finding });
            self.watch = None;
        }
    }

    fn hear(&mut self, event: &AgentEvent, t: f64) {
        match event {
            AgentEvent::Process { cpu_s, .. } => {
                self.cpu += Duration::try_from_secs_f64(*cpu_s).unwrap_or_default();
                return;
            }
            AgentEvent::Backpressure { on } => {
                self.blocked = *on;
                return;
            }
            AgentEvent::Exit { .. } => self.watch = None,
            _ if self.watch.is_none() && (begins_a_turn(event) || !self.begun && speaks(event)) => {
                self.begun = true;
                let now = Duration::from_secs_f64(t);
                let watch = Watch::new(self.timeout, &Terms::default(), true, now);
                let first = t + watch.interval().as_secs_f64();
                self.watch = Some((watch, first));
            }
            _ => {}
        }
        let mark = stall::mark(event, t);
        if let (Some(Mark::Api(trouble, wait)), false) = (&mark, self.limited)
            && trouble.presses()
        {
            self.limited = true;
            let reason = format!("{}, for {} s", trouble.describe(None), wait.as_secs());
            let finding = Finding { monitor: Monitor::Api, action: Action::Note, reason };
            self.decisions.push(Decision { t, finding });
        }
        if let Some((watch, _)) = &mut self.watch {
            watch.hear(&mark.into_iter().collect::<Vec<_>>(), Duration::from_secs_f64(t));
        }
        if let AgentEvent::Result(_) = event {
            (self.watch, self.limited) = (None, false);
        }
        let seen = observe(event);
        let found = seen.into_iter().flat_map(|seen| self.monitors.hear(seen, t));
        self.decisions.extend(found.map(|finding| Decision { t, finding }));
    }
}

/// The quality of the decisions on one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Score {
    /// Sick and reported, or healthy and not reported.
    Right,
    /// Sick and not reported.
    Missed,
    /// Reported before the onset, or healthy and reported.
    FalseAlarm,
}

/// Returns the monitor that must report a stream with this label, and how. A healthy stream must
/// not be reported, and an API limit is only noted.
fn due(label: Label) -> Option<(Monitor, Action)> {
    Some(match label {
        Label::Healthy => return None,
        Label::Stalled => (Monitor::Stall, Action::Warn),
        Label::Looping => (Monitor::Loop, Action::Warn),
        Label::Drifting => (Monitor::Drift, Action::Warn),
        Label::Spiralling => (Monitor::Spiral, Action::Warn),
        Label::RateLimited => (Monitor::Api, Action::Note),
        Label::Runaway => (Monitor::Budget, Action::Warn),
    })
}

/// Returns the second from which a warning is right; infinity if no warning is due.
fn sick_from(header: &Header) -> f64 {
    match due(header.label) {
        None | Some((_, Action::Note)) => f64::INFINITY,
        Some(_) => header.onset.unwrap_or(0.0),
    }
}

/// Scores the decisions on one stream. A warning of another monitor counts once the stream is sick,
/// because a looping agent may hit its budget first. A stall warning does not count for it: a
/// recording ends in silence, which says nothing about the agent.
pub fn score(header: &Header, decisions: &[Decision]) -> Score {
    let loud = |decision: &&Decision| decision.finding.action > Action::Note;
    let from = sick_from(header);
    if decisions.iter().filter(loud).any(|decision| decision.t < from) {
        return Score::FalseAlarm;
    }
    let told = |(monitor, least): (Monitor, Action)| {
        decisions.iter().any(|decision| match least {
            Action::Note => decision.finding.monitor == monitor,
            _ => {
                loud(&decision)
                    && (decision.finding.monitor != Monitor::Stall || monitor == Monitor::Stall)
            }
        })
    };
    if due(header.label).is_none_or(told) { Score::Right } else { Score::Missed }
}

/// The scores of a group of streams.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Tally {
    pub streams: u32,
    pub right: u32,
    pub missed: u32,
    pub false_alarms: u32,
    /// The median delay from the onset to the first warning, in seconds.
    pub delay_s: Option<f64>,
    #[serde(skip)]
    delays: Vec<f64>,
}

/// The results of one monitor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Duty {
    /// Streams that it had to report.
    pub due: u32,
    /// Those that it reported, or another monitor before it.
    pub found: u32,
    /// Streams with a false alarm by this monitor.
    pub false_alarms: u32,
    /// Its decisions in all streams, by action.
    pub decisions: BTreeMap<Action, u32>,
}

/// The scores of a whole corpus.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    pub all: Tally,
    pub monitors: BTreeMap<Monitor, Duty>,
    pub labels: BTreeMap<Label, Tally>,
    pub archetypes: BTreeMap<String, Tally>,
}

impl Report {
    pub fn add(&mut self, header: &Header, decisions: &[Decision]) {
        let score = score(header, decisions);
        self.all.add(header, decisions, score);
        self.labels.entry(header.label).or_default().add(header, decisions, score);
        self.archetypes.entry(header.archetype.clone()).or_default().add(header, decisions, score);
        if let Some((monitor, _)) = due(header.label) {
            let duty = self.monitors.entry(monitor).or_default();
            duty.due += 1;
            duty.found += u32::from(score == Score::Right);
        }
        let mut false_alarms = BTreeSet::new();
        for Decision { t, finding } in decisions {
            let duty = self.monitors.entry(finding.monitor).or_default();
            *duty.decisions.entry(finding.action).or_default() += 1;
            if finding.action > Action::Note
                && *t < sick_from(header)
                && false_alarms.insert(finding.monitor)
            {
                duty.false_alarms += 1;
            }
        }
    }
}

impl Tally {
    fn add(&mut self, header: &Header, decisions: &[Decision], score: Score) {
        self.streams += 1;
        match score {
            Score::Right => self.right += 1,
            Score::Missed => self.missed += 1,
            Score::FalseAlarm => self.false_alarms += 1,
        }
        let from = sick_from(header);
        if let Some(first) =
            decisions.iter().find(|decision| decision.finding.action > Action::Note)
            && first.t >= from
        {
            self.delays.push(first.t - from);
            self.delays.sort_by(f64::total_cmp);
            self.delay_s = self.delays.get(self.delays.len() / 2).copied();
        }
    }
}
