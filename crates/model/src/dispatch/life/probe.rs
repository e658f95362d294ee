//! What a transcript decides about a prompt whose process is gone.

use crate::agent::transcript::{Reading, judge};
use crate::dispatch::life::turns;
use crate::dispatch::{Dispatch, Phase, PromptState};
use crate::event::Event;

/// An answer to [`crate::dispatch::life::Effect::Probe`], made durable before anything follows from
/// it. One that comes twice, or for another process, means nothing.
pub(super) fn probed(d: &Dispatch, epoch: u32, key: String, reading: &Reading) -> Vec<Event> {
    let asked = d.to_probe().filter(|prompt| prompt.key == key);
    let Some(prompt) =
        asked.filter(|_| matches!(d.phase, Phase::Gone { epoch: gone, .. } if gone == epoch))
    else {
        return vec![];
    };
    let established = d.session_id.is_some() && d.has_history();
    let (standing, detail) = judge(reading, prompt.state == PromptState::Taken || established);
    // What was folded into a turn is counted with it.
    let alone = !d.prompts.iter().any(|p| p.state == PromptState::Taken && p.standing.is_some());
    let models = reading.used.models.iter().filter(|_| alone);
    let used: Vec<Event> =
        models.filter_map(|usage| turns::cut_off(d, usage, reading.used.told_again)).collect();
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
