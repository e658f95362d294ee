//! `clean`: one line for each clone and journal, and a summary.

use crate::render::{bytes, clip};
use muleteer_protocol::v1::{Cleaned, Compressed};

/// Describes what was removed and kept. `output` is the size of the agents' output that was removed
/// too.
pub fn text(report: &Cleaned, output: Option<u64>, applied: bool) -> String {
    let (removed, archived) =
        if applied { ("removed", "archived") } else { ("would remove", "would archive") };
    let one_line = |text: &str| clip(text, usize::MAX);
    let mut lines = vec![];
    for clone in &report.removed {
        lines.push(format!("{removed} {} ({})", one_line(&clone.path), bytes(clone.bytes)));
    }
    for journal in &report.archived {
        lines.push(format!("{archived} {}", one_line(&journal.path)));
    }
    for kept in &report.kept {
        lines.push(format!("kept {}: {}", one_line(&kept.path), one_line(&kept.reason)));
    }
    if let Some(events) = report.events.filter(|events| events.through > 0) {
        let count = usize::try_from(events.events).unwrap_or(usize::MAX);
        let left = if applied { events.kept } else { 0 };
        let left = if left > 0 { format!("; {left} are still needed") } else { String::new() };
        let size = bytes(events.bytes);
        lines.push(format!(
            "{removed} {} up to seq {} ({size}){left}",
            counted(count, "event"),
            events.through
        ));
    }
    if let Some(Compressed { outputs, runs, bytes: size }) = report.compressed {
        let count = |count| usize::try_from(count).unwrap_or(usize::MAX);
        let (done, freed) =
            if applied { ("compressed", "freed ") } else { ("would compress", "now ") };
        lines.push(format!(
            "{done} the output of {} and the logs of {} ({freed}{})",
            counted(count(outputs), "agent"),
            counted(count(runs), "run"),
            bytes(size)
        ));
    }
    if let Some(output) = output {
        lines.push(format!("{removed} the output of agents ({})", bytes(output)));
    }
    let size = report.removed.iter().map(|clone| clone.bytes).sum::<u64>() + output.unwrap_or(0);
    lines.push(format!(
        "{}, {}, {} kept: {}{}",
        counted(report.removed.len(), "clone"),
        counted(report.archived.len(), "journal"),
        report.kept.len(),
        bytes(size),
        if applied { "" } else { "; run `muleteer clean --apply` to remove and archive them" },
    ));
    lines.join("\n") + "\n"
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use muleteer_protocol::v1::{Kept, Removed};

    #[test]
    fn text_says_what_goes_and_why_the_rest_stays() {
        let mut report = Cleaned {
            removed: vec![Removed { path: "/r/a".into(), bytes: 2048, dispatch_id: None }],
            kept: vec![Kept {
                path: "/r/b\x1b[31m".into(),
                reason: "the dispatch is running".into(),
                dispatch_id: None,
            }],
            ..Cleaned::default()
        };
        let told = text(&report, None, false);
        assert_eq!(
            told,
            "would remove /r/a (2 KB)\nkept /r/b [31m: the dispatch is running\n1 clone, 0 \
             journals, 1 kept: 2 KB; run `muleteer clean --apply` to remove and archive them\n"
        );
        report.kept.clear();
        let told = text(&report, Some(1024), true);
        assert_eq!(
            told,
            "removed /r/a (2 KB)\nremoved the output of agents (1 KB)\n1 clone, 0 journals, 0 \
             kept: 3 KB\n"
        );
    }
}
