//! The events about settings, the archive and the log in one line each.

use crate::render::event::text;
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;

/// Describes a change of the settings, of the archive, or of the events.
pub(super) fn describe(event: &Event) -> Option<String> {
    match event {
        Event::SettingChanged(changed) => Some(match &changed.value {
            Some(value) => format!("{} set {} to {}", changed.by, changed.key, text(value)),
            None => format!("{} withdrew the setting {}", changed.by, changed.key),
        }),
        Event::DispatchesArchived { families } => {
            Some(format!("archived {} dispatches", families.iter().map(Vec::len).sum::<usize>()))
        }
        Event::DispatchesRestored(restored) => {
            let ids: Vec<_> = restored.ids.iter().map(DispatchId::as_str).collect();
            Some(format!("restored from the archive: {}", ids.join(", ")))
        }
        Event::EventsRemoved(removed) => Some(format!(
            "removed the events up to seq {}, requested by {}",
            removed.through, removed.by
        )),
        _ => None,
    }
}
