//! The minutes of a meeting: the document, and the message that posts it.

use crate::conversation::meeting::event::{EndReason, TurnKind};
use crate::conversation::meeting::fold::{Chair, Meeting, Phase, Taken};
use crate::conversation::thread::Thread;
use std::fmt::Write;

/// The name of the file in the thread's folder.
pub const NAME: &str = "minutes.md";

/// Renders the document. It follows from the events alone, so a repeated one is the same.
pub fn document(thread: &Thread, meeting: &Meeting) -> String {
    let started = &meeting.started;
    let chair = match meeting.chair() {
        Chair::RoundRobin => "round robin",
        Chair::Mention => "mention",
        Chair::Role(role) => role,
    };
    let (reason, by, text) = match &meeting.phase {
        Phase::Ending { reason, by, minutes } => (Some(*reason), by.as_ref(), minutes.as_deref()),
        Phase::Talking | Phase::Ended { .. } => (None, None, None),
    };
    let mut out = format!("# Minutes: {}\n\n", one_line(&started.topic));
    let _ = writeln!(out, "- Meeting: {}, in thread {}", meeting.id(), thread.id());
    let _ = writeln!(out, "- Started: {:.0} by {}", meeting.at, started.by);
    let _ = writeln!(out, "- Roles: {}", started.roles.join(", "));
    let _ = writeln!(out, "- Chair: {chair}");
    let _ = writeln!(out, "- Turns: {} of at most {}", meeting.count(), started.max_turns);
    let _ = writeln!(out, "- Cost: ${:.2}", meeting.spent_usd.max(0.0));
    if let Some(reason) = reason {
        let by = by.map(|by| format!(" ({by})")).unwrap_or_default();
        let _ = writeln!(out, "- Ended: {}{by}", reason.describe());
    }
    match text {
        Some(text) => {
            let _ = write!(out, "\n{}\n", text.trim());
        }
        None => out.push_str("\nNo agent wrote minutes. The turns say what happened.\n"),
    }
    out.push_str("\n## Turns\n\n");
    for turn in meeting.turns.iter().filter(|turn| turn.kind != TurnKind::Minutes) {
        let _ = writeln!(out, "{}", line(turn));
    }
    if meeting.count() == 0 {
        out.push_str("There was no turn.\n");
    }
    out
}

fn line(turn: &Taken) -> String {
    let what = match &turn.lost {
        Some(reason) => format!("(lost: {})", one_line(reason)),
        None => turn.said.clone(),
    };
    format!("{}. {}: {what}", turn.number, turn.role)
}

/// Renders the message that posts the minutes. The text of an agent is in the thread already, as
/// the answer of its turn.
pub fn message(meeting: &Meeting, reason: EndReason, place: &str) -> String {
    let turns = match meeting.count() {
        1 => "1 turn".to_string(),
        count => format!("{count} turns"),
    };
    let mut out = format!(
        "The meeting has ended after {turns}: {}. Its minutes are in {place}",
        reason.describe()
    );
    if !matches!(meeting.phase, Phase::Ending { minutes: Some(_), .. }) {
        let of_turns = meeting.turns.iter().filter(|turn| turn.kind != TurnKind::Minutes);
        let lines: Vec<_> = of_turns.map(line).collect();
        let _ = write!(out, "\n\nNo agent wrote minutes. The turns:\n\n{}", lines.join("\n"));
    }
    out
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
