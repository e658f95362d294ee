//! The agent's output: messages, tool calls, results, and the use of the model API.

use crate::admission::api_error::{self, Outage, Trouble};
use crate::agent::event::ModelUsage;
use crate::dispatch::{Dispatch, Phase, Stop};
use crate::event::Event;
use crate::{
    api_events, attempt_events, conversation_events, daemon_events, intervention_events,
    output_events, permission_events, prompt_events, result_events, session_events,
    spec_run_events, task_list_events, tool_events,
};
use jiff::Timestamp;

/// Whether the API itself named the time of the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    No,
    /// It named a pause.
    Pause,
    /// It named the date of a reset.
    Date,
}

impl Dispatch {
    pub(super) fn fold_output(&mut self, event: &Event, ts: Timestamp) {
        match event {
            // The API answered, and the agent works with the answer.
            Event::ToolCalled { parent, .. } => {
                self.outage = None;
                // A subagent's turns are not the agent's.
                if parent.is_none() {
                    self.spoke();
                    if !self.created.has_turns() {
                        self.result.said = None;
                    }
                }
            }
            Event::ToolSubject { call_id, text } => {
                self.with_process(|process| process.calls.describe(call_id, text));
            }
            Event::ToolFinished { call_id } | Event::ToolFailed { call_id, .. } => {
                let by_subagent = self.process().calls.by_subagents.contains(call_id);
                self.usage.owes_model_turn |= !by_subagent;
            }
            Event::AgentSaid { text } => {
                self.spoke();
                // Some CLIs report trouble as a message of their agent. So the outage is not over,
                // but the next trouble may be another one.
                if let Some(outage) = &mut self.outage {
                    outage.since_ms = None;
                }
                if !self.created.has_turns() {
                    self.say_more(text);
                } else if self.created.said_is_answer() || self.created.thread().is_some() {
                    // A person who talks with the agent wants its last message.
                    self.result.said = Some(text.clone());
                }
            }
            Event::UsageRecorded { cumulative, .. } => {
                // This use was reported during the turn, and not for a process that is gone.
                if !cumulative && matches!(self.phase, Phase::Working { .. }) {
                    self.outage = None;
                }
                self.count(event);
            }
            Event::AgentNotice { text } => self.warnings.notices.push(text.clone()),
            Event::McpCalled(called) => self.mcp.apply(called, ts),
            Event::BlockedByUs { on } => {
                self.with_process(|process| process.blocked_by_us = *on);
            }
            Event::ResultReceived { result } => {
                self.result.value = Some(result.clone());
                self.result.faults.clear();
                self.with_process(|process| process.own_result = true);
            }
            Event::ResultInvalid { faults, repair } => {
                self.result.value = None;
                self.result.faults = faults.clone();
                self.with_process(|process| process.own_result = true);
                self.result.repair_used |= repair;
            }
            Event::ResultOvertaken {} => {
                self.result.value = None;
                self.result.faults.clear();
            }
            Event::ResultQuoted {} => self.with_process(|process| process.own_result = false),
            // These change no state.
            Event::JournalEntry { .. } | Event::Compacted { .. } | Event::OutputRead {} => {}
            attempt_events!()
            | prompt_events!()
            | session_events!()
            | permission_events!()
            | api_events!()
            | intervention_events!()
            | daemon_events!()
            | spec_run_events!()
            | conversation_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
    }

    pub(super) fn fold_api(&mut self, event: &Event, ts: Timestamp) {
        match event {
            Event::ApiRetried { attempt, max, status, delay_s, awake_ms } => {
                let until = api_error::after(ts, api_error::wait(*delay_s));
                self.trouble((Trouble::of_status(*status), *status), until, Named::No, *awake_ms);
                if let Some(outage) = &mut self.outage {
                    outage.tried = Some((*attempt, *max));
                }
            }
            Event::RateLimited { until, wait_s, awake_ms } => {
                let named = if until.is_some() { Named::Date } else { Named::Pause };
                let until = until.unwrap_or_else(|| api_error::after(ts, api_error::wait(*wait_s)));
                self.trouble((Trouble::RateLimit, None), until, named, *awake_ms);
            }
            Event::ApiWaiting { trouble, status, until, told, waits, spent_ms }
                if !self.is_finished() =>
            {
                let (trouble, status, until) = (*trouble, *status, *until);
                let (told, waits, spent_ms) = (*told, *waits, *spent_ms);
                let since_ms = self.outage.as_ref().and_then(|before| before.since_ms);
                let was_named = self.outage.as_ref().is_some_and(|before| before.usage_limit);
                self.outage = Some(Outage {
                    trouble,
                    status,
                    until,
                    told,
                    usage_limit: told && was_named,
                    tried: None,
                    waits,
                    spent_ms,
                    since_ms,
                });
                self.phase = Phase::Queued;
            }
            Event::ApiGivenUp { reason, .. } if self.stop.is_none() && !self.is_finished() => {
                self.stop = Some(Stop::Api { reason: reason.clone(), spoken_to: false });
            }
            // A dispatch that has ended or is being stopped does not wait.
            Event::ApiWaiting { .. } | Event::ApiGivenUp { .. } => {}
            attempt_events!()
            | prompt_events!()
            | session_events!()
            | output_events!()
            | tool_events!()
            | permission_events!()
            | result_events!()
            | intervention_events!()
            | daemon_events!()
            | spec_run_events!()
            | conversation_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
    }

    /// Adds to the last message of a one-shot agent. Some CLIs print a message in pieces, with
    /// nothing between them.
    fn say_more(&mut self, text: &str) {
        const LIMIT: usize = 256 * 1024;
        let said = self.result.said.get_or_insert_default();
        if said.len() + text.len() > LIMIT {
            said.clear();
        }
        said.push_str(text);
    }

    fn spoke(&mut self) {
        if std::mem::take(&mut self.usage.owes_model_turn) {
            self.usage.model_turns = self.usage.model_turns.saturating_add(1);
        }
    }

    /// Records trouble of the model API. The count and the duration of the outage's waits are kept.
    fn trouble(
        &mut self,
        (trouble, status): (Trouble, Option<u16>),
        until: Timestamp,
        named: Named,
        awake_ms: Option<u64>,
    ) {
        let (told, is_date) = (named != Named::No, named == Named::Date);
        let before = self.outage.take();
        // After a reboot the clock begins at zero, so an earlier reading may exceed it.
        let since_ms = before.as_ref().and_then(|before| before.since_ms);
        let since_ms =
            since_ms.filter(|since| awake_ms.is_none_or(|now| *since <= now)).or(awake_ms);
        let (waits, spent_ms) =
            before.as_ref().map_or((0, 0), |before| (before.waits, before.spent_ms));
        // The retry of a CLI does not end a limit sooner than the API said.
        let kept = before.filter(|before| before.told && !told && before.until >= until);
        let (until, told, usage_limit) =
            kept.map_or((until, told, is_date), |before| (before.until, true, before.usage_limit));
        self.outage = Some(Outage {
            trouble,
            status,
            until,
            told,
            usage_limit,
            tried: None,
            waits,
            spent_ms,
            since_ms,
        });
    }

    fn count(&mut self, event: &Event) {
        let Event::UsageRecorded {
            model,
            input,
            output,
            cache_read,
            cache_write,
            cost_usd,
            cumulative,
            total_usd,
        } = event
        else {
            return;
        };
        let (cumulative, total_usd) = (*cumulative, *total_usd);
        let new = ModelUsage {
            model: model.clone(),
            input: *input,
            output: *output,
            cache_read: *cache_read,
            cache_write: *cache_write,
            cost_usd: *cost_usd,
        };
        self.spend.count(&new, cumulative);
        self.with_process(|process| process.usage.count(&new, cumulative, total_usd));
    }
}
