//! The events of self-healing in one line each.

use crate::render::event::{text, warn};
use muleteer_model::event::Event;

/// Describes an event of self-healing.
pub(super) fn describe(event: &Event) -> Option<String> {
    Some(match event {
        Event::HealingBegun(begun) => match &begun.healer {
            Some(healer) => format!("the light agent {healer} decides what follows"),
            None => format!("self-healing after {}", begun.trouble.as_str()),
        },
        Event::HealingChosen(chosen) => {
            let other = chosen.dispatch.as_ref().map(|id| format!(" as {id}")).unwrap_or_default();
            let (choice, by) = (chosen.choice.as_str(), text(&chosen.by));
            warn(format!("self-healing: {choice}{other} (by {by}): {}", text(&chosen.reason)))
        }
        Event::HealingDone(done) if !done.reason.is_empty() => {
            warn(format!("self-healing ended: {}", text(&done.reason)))
        }
        _ => return None,
    })
}
