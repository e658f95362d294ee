//! Joins the chunks of an agent's messages, on the way from the spool to `life`.
//!
//! A buffered chunk has no place in the log yet. Nothing that moves the position past it may be
//! decided before it is flushed, so every other input flushes it first.

use crate::ports::agent::{Step, StepInput};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use muleteer_backends::Assembly;
use muleteer_backends::Backend;
use muleteer_model::admission::usage_limit;
use muleteer_model::agent::event::AgentEvent;
use muleteer_model::dispatch::life::Input;
use muleteer_model::event::Position;

pub struct Pieces {
    /// `None` for an agent whose lines are whole messages.
    assembly: Option<Assembly>,
    /// The end of the newest step.
    before: Position,
    /// The zone of reset times that name none: the agent's.
    zone: TimeZone,
}

impl Pieces {
    /// `zone` is the agent's `TZ`; without one it runs in the daemon's zone.
    pub fn new(backend: &dyn Backend, zone: Option<&str>) -> Self {
        Self {
            assembly: backend.by_calls().then(Assembly::default),
            before: Position::default(),
            zone: zone.and_then(zone_of).unwrap_or_else(TimeZone::system),
        }
    }

    /// Returns the inputs to decide on at this step.
    pub fn put(&mut self, step: Step, epoch: u32) -> Vec<Input> {
        let Step { at, input, wall_ms, .. } = step;
        let before = std::mem::replace(&mut self.before, at);
        match (&mut self.assembly, input) {
            (_, StepInput::Agent(events)) if events.is_empty() => vec![],
            (None, StepInput::Agent(mut events)) => {
                date(&mut events, wall_ms, &self.zone);
                vec![Input::Line { at, events }]
            }
            (Some(assembly), StepInput::Agent(events)) => {
                let mut whole = assembly.push(events);
                date(&mut whole, wall_ms, &self.zone);
                whole.retain(is_decided_on);
                match (whole.is_empty(), assembly.holds()) {
                    (true, holds) if holds || assembly.awaits_call() => {
                        vec![Input::Speaks { epoch }]
                    }
                    (true, _) => vec![],
                    // This line only began a message. The whole ones end before it.
                    (false, true) => vec![Input::Line { at: before, events: whole }],
                    (false, false) => vec![Input::Line { at, events: whole }],
                }
            }
            (_, StepInput::Written(_)) => vec![],
            (_, StepInput::Shim(input)) => {
                let held = self.finish(at);
                held.into_iter().chain([*input]).collect()
            }
        }
    }

    /// Flushes buffered chunks, at a position after them.
    pub fn finish(&mut self, at: Position) -> Option<Input> {
        let mut events = self.assembly.as_mut()?.finish();
        events.retain(is_decided_on);
        (!events.is_empty()).then_some(Input::Line { at, events })
    }
}

/// Reads a value of `TZ`: the name of a zone, its file, or rules in the form of POSIX.
fn zone_of(variable: &str) -> Option<TimeZone> {
    let text = variable.trim_start_matches(':');
    let name = text.split_once("/zoneinfo/").map_or(text, |(_, name)| name);
    TimeZone::get(name).or_else(|_| TimeZone::posix(text)).ok()
}

/// Adds the ends of usage limits, by the wall clock of the output record. A daemon that reads the
/// record later gets the same times.
fn date(events: &mut Vec<AgentEvent>, wall_ms: u64, zone: &TimeZone) {
    let now = i64::try_from(wall_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    usage_limit::date(events, now.unwrap_or_else(Timestamp::now), zone);
}

/// Whether `life` decides on the event. An event that only reports the size of the context, and
/// neither a cost nor the tokens of a call, is ignored.
fn is_decided_on(event: &AgentEvent) -> bool {
    !matches!(event, AgentEvent::Usage { total_usd: None, call: Some(_), .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use muleteer_backends::acp::Acp;
    use muleteer_backends::subprocess::Subprocess;
    use muleteer_model::agent::event::{TurnError, TurnResult};
    use serde_json::json;

    fn at(offset: u64) -> Position {
        Position { epoch: 1, offset, skip: 0 }
    }

    fn said(text: &str) -> AgentEvent {
        AgentEvent::Text { chars: text.chars().count() as u64, text: text.into() }
    }

    fn called() -> AgentEvent {
        AgentEvent::ToolCall {
            id: "c".into(),
            name: "Bash".into(),
            input: json!({"command": "ls"}),
        }
    }

    fn done() -> AgentEvent {
        AgentEvent::ToolResult { id: "c".into(), ok: true, text: String::new(), exit_code: None }
    }

    fn run(events: &[AgentEvent], from: usize) -> Vec<(Position, Vec<AgentEvent>)> {
        let mut pieces = Pieces::new(&Acp, None);
        let steps = events.iter().enumerate().skip(from);
        let steps = steps.map(|(n, event)| Step {
            at: at(n as u64 + 1),
            input: StepInput::Agent(vec![event.clone()]),
            awake_ms: 0,
            wall_ms: 0,
        });
        let lines = steps.flat_map(|step| pieces.put(step, 1)).filter_map(|input| match input {
            Input::Line { at, events } => Some((at, events)),
            _ => None,
        });
        lines.collect()
    }

    #[test]
    fn reset_without_a_zone_is_in_the_agents() {
        // 12:00 UTC on the 6th of October 2026.
        let wall_ms = 1_791_288_000_000;
        for (zone, hours) in [
            ("Asia/Tokyo", 3),
            (":/usr/share/zoneinfo/America/New_York", 16),
            ("CET-1CEST,M3.5.0,M10.5.0/3", 10),
        ] {
            let mut pieces = Pieces::new(&Subprocess, Some(zone));
            let failed = AgentEvent::Result(TurnResult {
                error: Some(TurnError::Other),
                text: Some("5-hour limit reached, resets at midnight".into()),
                ..TurnResult::default()
            });
            let input = StepInput::Agent(vec![failed]);
            let inputs = pieces.put(Step { at: at(1), input, awake_ms: 0, wall_ms }, 1);
            let expected = wall_ms as f64 / 1000.0 + f64::from(hours) * 3600.0;
            assert!(
                matches!(&inputs[..], [Input::Line { events, .. }] if matches!(events[..],
                    [AgentEvent::RateLimit { resets_at: Some(at), .. }, _] if at == expected)),
                "{zone}: {inputs:?}"
            );
        }
        assert_eq!(zone_of("no/zone"), None);
    }

    /// Qwen reports tokens with each answer of the model, and with no turn.
    #[test]
    fn tokens_of_a_call_are_decided_on_and_the_size_of_the_context_is_not() {
        let usage = |call: Option<&str>, total_usd| AgentEvent::Usage {
            input: 100,
            output: 20,
            cost_usd: 0.0,
            cache_read: 0,
            cache_write: 0,
            model: None,
            call: call.map(String::from),
            total_usd,
        };
        let stream = [
            usage(None, None),
            usage(Some("context"), None),
            usage(Some("context"), Some(0.5)),
            done(),
        ];
        let told: Vec<_> = run(&stream, 0).into_iter().flat_map(|(_, events)| events).collect();
        let [AgentEvent::Usage { call: None, .. }, AgentEvent::Usage { total_usd, .. }, _] =
            &told[..]
        else {
            panic!("{told:?}")
        };
        assert_eq!(*total_usd, Some(0.5));
    }

    /// Wherever a daemon dies, the next one resumes at the durable position and gets the rest,
    /// whole.
    #[test]
    fn restart_at_a_durable_position_loses_and_repeats_nothing() {
        let stream = [
            said("I l"),
            said("ook."),
            called(),
            called(),
            done(),
            said("Do"),
            said("ne."),
            done(),
        ];
        let whole = run(&stream, 0);
        let told: Vec<_> = whole.iter().flat_map(|(_, events)| events.clone()).collect();
        assert_eq!(told, [said("I look."), called(), done(), said("Done."), done()]);
        let mut seen = 0;
        for (place, events) in &whole {
            seen += events.len();
            let rest = run(&stream, usize::try_from(place.offset).unwrap_or_default());
            let rest: Vec<_> = rest.into_iter().flat_map(|(_, events)| events).collect();
            assert_eq!(rest, told[seen..], "after {place:?}");
        }
    }
}
