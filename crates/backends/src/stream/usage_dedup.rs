//! Counts each amount of usage in a stream once. A CLI repeats the numbers of one call on several
//! lines, or repeats the session's totals with every turn, also across its processes.

use muleteer_model::agent::event::{AgentEvent, ModelUsage, Timed};
use std::collections::VecDeque;

/// How many calls and sessions are remembered. The lines of one call are close together.
const MOST: usize = 64;

/// Input, output, cache reads, cache writes.
type Numbers = [u64; 4];

#[derive(Debug, Default)]
pub(crate) struct Books {
    session: String,
    calls: Known,
    sessions: Known,
}

/// The numbers reported so far for each name, the newest last.
#[derive(Debug, Default)]
struct Known(VecDeque<(String, Numbers)>);

impl Known {
    /// Returns the part of `now` that is new, and whether the name was known.
    fn enter(&mut self, name: &str, now: Numbers) -> (Numbers, bool) {
        if let Some((_, told)) = self.0.iter_mut().find(|(known, _)| known == name) {
            let new = std::array::from_fn(|n| now[n].saturating_sub(told[n]));
            *told = std::array::from_fn(|n| now[n].max(told[n]));
            return (new, true);
        }
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back((name.to_string(), now));
        (now, false)
    }
}

impl Books {
    /// Returns the event with the new usage only, or no event if nothing is new.
    pub fn enter(&mut self, timed: Timed) -> Vec<Timed> {
        let Timed { t, mut event, parent } = timed;
        match &mut event {
            AgentEvent::Session { session_id: Some(id), .. } => self.session.clone_from(id),
            AgentEvent::Usage {
                input, output, cache_read, cache_write, call: Some(call), ..
            } if !call.is_empty() => {
                let (new, known) =
                    self.calls.enter(call, [*input, *output, *cache_read, *cache_write]);
                if known && new == Numbers::default() {
                    return vec![];
                }
                [*input, *output, *cache_read, *cache_write] = new;
            }
            AgentEvent::Result(result) => {
                let told = result
                    .per_session
                    .iter()
                    .filter_map(|usage| self.of_session(usage))
                    .collect::<Vec<_>>();
                let told = told.into_iter().map(|event| Timed { t, event, parent: None });
                return told.chain([Timed { t, event, parent }]).collect();
            }
            _ => {}
        }
        vec![Timed { t, event, parent }]
    }

    /// Returns the usage of this turn, computed from the totals of its session.
    fn of_session(&mut self, usage: &ModelUsage) -> Option<AgentEvent> {
        let ModelUsage { model, input, output, cache_read, cache_write, .. } = usage;
        let name = format!("{}/{model}", self.session);
        let ([input, output, cache_read, cache_write], _) =
            self.sessions.enter(&name, [*input, *output, *cache_read, *cache_write]);
        (input | output | cache_read | cache_write > 0).then(|| AgentEvent::Usage {
            input,
            output,
            cost_usd: 0.0,
            cache_read,
            cache_write,
            model: (!model.is_empty()).then(|| model.clone()),
            call: None,
            total_usd: None,
        })
    }
}
