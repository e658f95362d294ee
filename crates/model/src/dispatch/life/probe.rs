//! Decides from a transcript about a prompt whose process is gone.

use crate::agent::transcript::{Reading, judge};
use crate::dispatch::life::usage;
use crate::dispatch::{Dispatch, Phase, PromptState};
use crate::event::Event;

/// Handles an answer to [`crate::dispatch::life::Effect::Probe`]; it is durable before anything
/// follows from it. A repeated answer, or one for another process, is ignored.
pub(super) fn probed(d: &Dispatch, epoch: u32, key: String, reading: &Reading) -> Vec<Event> {
    let asked = d.to_probe().filter(|prompt| prompt.key == key);
    let Some(prompt) =
        asked.filter(|_| matches!(d.phase, Phase::Gone { epoch: gone, .. } if gone == epoch))
    else {
        return vec![];
    };
    let established = d.session.id.is_some() && d.has_history();
    let (standing, detail) = judge(reading, prompt.state == PromptState::Taken || established);
    // The use of a folded prompt is counted with its turn.
    let alone = !d.prompts.iter().any(|p| p.state == PromptState::Taken && p.standing.is_some());
    let models = reading.used.models.iter().filter(|_| alone);
    let used: Vec<Event> =
        models.filter_map(|usage| usage::cut_off(d, usage, reading.used.told_again)).collect();
    let probed = Event::PromptProbed {
        key,
        standing,
        session: reading.session,
        session_id: reading.session_id.clone(),
        counted: !used.is_empty(),
        detail,
    };
    [vec![probed], used].concat()
}
