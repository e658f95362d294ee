//! What a stream says to have used, each amount once: a CLI tells the numbers of one call on
//! several lines, or those of a session again with every turn, also across the processes it had.

use muleteer_model::agent::event::{AgentEvent, ModelUsage, Timed};
use std::collections::VecDeque;

/// Calls and sessions remembered: the lines of one stand together.
const MOST: usize = 64;

/// Input, output, and what came from the cache and went to it.
type Numbers = [u64; 4];

#[derive(Debug, Default)]
pub(crate) struct Books {
    session: String,
    calls: Known,
    sessions: Known,
}

/// What was told of each so far, the newest last.
#[derive(Debug, Default)]
struct Known(VecDeque<(String, Numbers)>);

impl Known {
    /// What is new in `now`, and whether it was known at all.
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
    /// The event with what is new in it, and none where nothing is.
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

    /// What this turn used of what its session has in all.
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
