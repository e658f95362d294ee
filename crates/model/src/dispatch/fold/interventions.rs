//! Interventions by people, limits, monitors and the policy.

use crate::dispatch::{Dispatch, Phase, Prompt, PromptState, Stop, Turn};
use crate::event::{Event, PromptKind};
use crate::monitor::Action;
use crate::{
    api_events, attempt_events, conversation_events, daemon_events, output_events, prompt_events,
    result_events, session_events, spec_run_events, task_list_events, tool_events,
};

/// The most keys of interrupts that a dispatch remembers. A request is repeated at once after a
/// crash, and not after so many others.
const MOST_INTERRUPTS: usize = 32;

impl Dispatch {
    pub(super) fn fold_intervention(&mut self, event: &Event) {
        match event {
            Event::InterruptRequested { key, .. } => {
                self.with_process(|process| process.interrupt = Some(key.clone()));
                if self.interrupts.len() >= MOST_INTERRUPTS {
                    self.interrupts.remove(0);
                }
                self.interrupts.push(key.clone());
            }
            Event::KillRequested { reason, .. } if !self.is_finished() => {
                self.stop = Some(Stop::Kill { reason: reason.clone() });
                self.withdraw_queued();
            }
            Event::LimitReached { limit, detail } if self.stop.is_none() => {
                self.stop = Some(Stop::Limit { limit: *limit, detail: detail.clone() });
            }
            Event::StallDetected { silent_s, evidence } if self.stop.is_none() => {
                let (silent_s, evidence) = (*silent_s, evidence.clone());
                self.stop = Some(Stop::Stall { silent_s, evidence, spoken_to: false });
            }
            Event::MonitorSpoke { monitor, action: Action::Warn, reason } => {
                self.warnings.monitor = Some(format!("{monitor}: {reason}"));
            }
            Event::MonitorSpoke { monitor, action: Action::Stop, reason }
                if self.stop.is_none() =>
            {
                let (monitor, reason) = (*monitor, reason.clone());
                self.stop = Some(Stop::Monitor { monitor, reason, spoken_to: false });
            }
            Event::PolicyBroken { tool, target, rule, denied, .. } if self.stop.is_none() => {
                let call = format!("{tool}: {target}");
                let call = call.trim_end_matches([':', ' ']);
                let reason = match denied {
                    true => format!("the agent used a tool although {rule} denied it ({call})"),
                    false => format!(
                        "the agent used a tool without asking, although its policy denies or asks \
                         ({rule}): {call}"
                    ),
                };
                self.stop = Some(Stop::Policy { reason });
            }
            Event::HealingBegun(begun) => self.healing.begin(begun, self.retries.reopened),
            Event::HealingChosen(chosen) => self.healing.choose(chosen),
            Event::HealingDone(done) => self.healing.end(done),
            // The first stop counts, and a dispatch that has ended is not stopped.
            Event::KillRequested { .. }
            | Event::LimitReached { .. }
            | Event::StallDetected { .. }
            | Event::MonitorSpoke { .. }
            | Event::PolicyBroken { .. } => {}
            // A message that became durable just before it goes to this process.
            Event::HoldExpired { idle: true } if self.holds_idle() => {
                if let Phase::Working { turn: Turn::Done { leaving, .. }, .. } = &mut self.phase {
                    *leaving = true;
                }
            }
            // See `apply_to_calls`.
            Event::PermissionRequested { .. }
            | Event::PermissionAnswered { .. }
            | Event::PermissionClosed { .. }
            | Event::AnswerDelivered { .. }
            | Event::HoldExpired { .. } => {}
            attempt_events!()
            | prompt_events!()
            | session_events!()
            | output_events!()
            | tool_events!()
            | result_events!()
            | api_events!()
            | daemon_events!()
            | spec_run_events!()
            | conversation_events!()
            | task_list_events!()
            | Event::Unknown => {}
        }
    }

    /// Withdraws the queued follow-ups. A person who kills an agent and sends it a message later
    /// does not want the old queue first.
    fn withdraw_queued(&mut self) {
        for prompt in self.prompts.iter_mut().filter(|prompt| prompt.is_waiting()) {
            prompt.state = PromptState::Withdrawn;
        }
    }

    /// Takes the prompts of people that no agent got out of a dispatch of a thread that has ended.
    /// A message to the dispatch itself would deliver them later, after the thread has given them
    /// to another agent or has told their authors that nobody gets them. After a daemon that
    /// stopped with its agents the thread delivers them again under other keys.
    pub(super) fn give_back_unheard(&mut self) {
        let to = match self.stop.as_ref().is_some_and(Stop::is_with_daemon) {
            true => PromptState::Withdrawn,
            // The only prompt of a one-shot agent is part of its command line.
            false if !self.created.has_turns() => return,
            false => PromptState::Returned,
        };
        let of_people = |prompt: &&mut Prompt| {
            matches!(prompt.kind, PromptKind::Initial | PromptKind::Send)
                && prompt.state == PromptState::Queued
        };
        for prompt in self.prompts.iter_mut().filter(of_people) {
            prompt.state = to;
        }
    }
}
