//! The effect of each event on the state of a dispatch, by groups of events.

mod attempts;
mod interventions;
mod output;
mod prompts;
mod session;
mod session_content;

use crate::dispatch::Dispatch;
use crate::event::{Entry, Event, Record};
use crate::{api_events, attempt_events, daemon_events, intervention_events, output_events};
use crate::{conversation_events, task_list_events, tool_events};
use crate::{permission_events, prompt_events, result_events, session_events, spec_run_events};
use jiff::Timestamp;

impl Dispatch {
    /// Folds one durable record of this dispatch into its state.
    pub fn apply(&mut self, record: &Record) {
        let Entry { event, at, .. } = &record.entry;
        self.last_seq = self.last_seq.max(record.seq);
        if let Some(at) = at {
            self.position = self.position.max(*at);
            self.last_activity = Some(record.ts);
        }
        let before = self.state();
        self.apply_event(event, record.ts);
        if matches!(event, Event::TurnStarted { .. }) {
            self.turn_began = Some((record.seq, self.position));
        }
        self.apply_to_calls(event, *at, record.ts);
        self.apply_to_session_content(event);
        if self.state() != before {
            self.since = record.ts;
        }
    }

    fn apply_event(&mut self, event: &Event, ts: Timestamp) {
        match event {
            attempt_events!() => self.fold_attempt(event),
            prompt_events!() => self.fold_prompt(event),
            session_events!() => self.fold_session(event, ts),
            output_events!() | tool_events!() | result_events!() => self.fold_output(event, ts),
            api_events!() => self.fold_api(event, ts),
            intervention_events!() | permission_events!() => self.fold_intervention(event),
            daemon_events!()
            | spec_run_events!()
            | conversation_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
    }
}
