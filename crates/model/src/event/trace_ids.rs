//! Span ids that are derived from what the span is about.

use crate::event::id::DispatchId;
use crate::event::trace_context::Context;

/// The span of a dispatch. `opened` counts how often it had ended and was reopened.
pub fn dispatch(id: &DispatchId, opened: u32) -> [u8; 8] {
    derive(&["dispatch", id.as_str(), &opened.to_string()])
}

/// The span of the attempt whose process has this epoch.
pub fn attempt(id: &DispatchId, epoch: u32) -> [u8; 8] {
    derive(&["attempt", id.as_str(), &epoch.to_string()])
}

pub fn start(id: &DispatchId, epoch: u32) -> [u8; 8] {
    derive(&["start", id.as_str(), &epoch.to_string()])
}

/// The span of a turn. `seq` is the number of the record that began it.
pub fn turn(id: &DispatchId, seq: u64) -> [u8; 8] {
    derive(&["turn", id.as_str(), &seq.to_string()])
}

/// The span of a tool call. `seq` is the number of the record that began it.
pub fn tool(id: &DispatchId, seq: u64) -> [u8; 8] {
    derive(&["tool", id.as_str(), &seq.to_string()])
}

/// The span of a spec run. `sitting` counts how often it was resumed.
pub fn run(run: &str, sitting: u32) -> [u8; 8] {
    derive(&["run", run, &sitting.to_string()])
}

pub fn iteration(run: &str, sitting: u32, iteration: u32) -> [u8; 8] {
    derive(&["iteration", run, &sitting.to_string(), &iteration.to_string()])
}

/// The span of all work for a bead in one iteration.
pub fn bead(run: &str, sitting: u32, iteration: u32, bead: &str) -> [u8; 8] {
    derive(&["bead", run, &sitting.to_string(), &iteration.to_string(), bead])
}

/// The span of a run of a task list.
pub fn task_list(list: &str) -> [u8; 8] {
    derive(&["task list", list])
}

/// The span of the task that this dispatch works on.
pub fn task(list: &str, dispatch: &DispatchId) -> [u8; 8] {
    derive(&["task", list, dispatch.as_str()])
}

/// The trace context for the agent's `TRACEPARENT`: its own spans are children of its attempt's.
pub fn of_agent(trace: Context, id: &DispatchId, epoch: u32) -> Context {
    trace.below(attempt(id, epoch))
}

/// Hashes the parts with FNV-1a, separated by a byte that no part contains. The id is no secret and
/// proves nothing: it only has to tell the spans of one trace apart.
fn derive(parts: &[&str]) -> [u8; 8] {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xff]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    // For short inputs, FNV's low bits are much alike. A zero id is invalid.
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.max(1).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_the_same_each_time_and_differ_from_each_other() {
        let id = |text: &str| DispatchId::try_from(text.to_string()).expect("id");
        let mut seen = BTreeSet::new();
        for name in ["aaaa", "aaab", "a1aa"] {
            for n in 0..200 {
                seen.insert(dispatch(&id(name), n));
                seen.insert(attempt(&id(name), n));
                seen.insert(start(&id(name), n));
                seen.insert(turn(&id(name), u64::from(n)));
                seen.insert(tool(&id(name), u64::from(n)));
            }
        }
        assert_eq!(seen.len(), 3 * 200 * 5);
        // Part of the contract between versions: a newer daemon continues an older one's spans.
        assert_eq!(crate::event::trace_context::hex(&attempt(&id("k3f9aaaa"), 1)), HEX);
    }

    const HEX: &str = "c6c8bf809b3ec8da";
}
