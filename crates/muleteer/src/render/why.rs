//! `why`: the state of a dispatch, its reason, and what led to it.

use crate::render::{BOLD, DIM, RESET, age, in_local_time, local_time, safe, state_color};
use jiff::Timestamp;
use muleteer_model::event::id::DispatchId;
use muleteer_protocol::v1::DispatchStatus;
use std::fmt::Write as _;

/// The known causes of the state of a dispatch.
#[derive(Debug)]
pub struct Why<'a> {
    pub status: &'a DispatchStatus,
    /// The dispatches that hold the slots for which it waits.
    pub holders: Vec<DispatchId>,
    /// A daemon runs that carries the dispatch on.
    pub is_carried_on: bool,
    /// The decisions with their times, oldest first.
    pub decided: Vec<(Timestamp, String)>,
}

/// Returns one line for the state, one for each fact about it, and one for each decision.
pub fn text(why: &Why<'_>, now: Timestamp) -> String {
    let status = why.status;
    let color = state_color(&status.state);
    let mut text = format!("{BOLD}{}{RESET} is {color}{}{RESET}", status.id, status.state);
    let _ = write!(text, " for {}", age(Some(&status.since), now));
    if let Some(reason) = status.reason.as_deref().filter(|reason| !reason.is_empty()) {
        let _ = write!(text, ": {}", in_local_time(&safe(reason)));
    } else if status.state == "queued" {
        text.push_str(match why.is_carried_on {
            true => ": a slot is free, so it starts next",
            false => ": no daemon is running, and the next one starts it",
        });
    }
    text.push('\n');
    let mut fact = |name: &str, value: String| {
        let _ = writeln!(text, "{DIM}{name:<14}{RESET}{value}");
    };
    if !why.holders.is_empty() {
        let ids: Vec<_> = why.holders.iter().map(ToString::to_string).collect();
        fact("slots held by", ids.join(" "));
    }
    if let Some(at) = status.last_activity.as_deref() {
        let shown = at.parse().map_or_else(|_| safe(at), local_time);
        fact("last activity", format!("{shown} ({} ago)", age(Some(at), now)));
    }
    for (at, what) in &why.decided {
        let what = what.trim_end().replace('\n', " ");
        let _ = writeln!(text, "{DIM}{}{RESET} {what}", local_time(*at));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(why: &Why<'_>) -> String {
        anstream::adapter::strip_str(&text(why, Timestamp::UNIX_EPOCH)).to_string()
    }

    #[test]
    fn queued_dispatch_is_explained_by_the_pool_or_by_the_absent_daemon() {
        let mut status = DispatchStatus {
            id: "k3f9abcd".into(),
            state: "queued".into(),
            since: "1970-01-01T00:00:00Z".into(),
            reason: Some("waits for a slot: 1 of 1 are taken (`pool.max_agents`)".into()),
            ..DispatchStatus::default()
        };
        let holders = vec![DispatchId::try_from("m2mzcvqd".to_string()).expect("an id")];
        let why = Why { status: &status, holders, is_carried_on: true, decided: vec![] };
        let text = shown(&why);
        assert!(text.starts_with("k3f9abcd is queued for 0s: waits for a slot: 1 of 1"), "{text}");
        assert!(text.contains("slots held by m2mzcvqd"), "{text}");
        status.reason = None;
        let why = |is_carried_on| {
            shown(&Why { status: &status, holders: vec![], is_carried_on, decided: vec![] })
        };
        assert!(
            why(true).contains("it starts next") && why(false).contains("no daemon is running")
        );
    }

    #[test]
    fn decisions_have_their_times() {
        let status = DispatchStatus { state: "stalled".into(), ..DispatchStatus::default() };
        let decided = vec![(Timestamp::UNIX_EPOCH, "stalled: silent\nfor 5m".to_string())];
        let why = Why { status: &status, holders: vec![], is_carried_on: true, decided };
        let last = shown(&why).lines().last().map(String::from).expect("a line");
        assert_eq!(last, format!("{} stalled: silent for 5m", local_time(Timestamp::UNIX_EPOCH)));
    }
}
