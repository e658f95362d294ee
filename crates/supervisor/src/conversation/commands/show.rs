//! The replies to `/status` and `/cost`.

use muleteer_model::conversation::route;
use muleteer_model::conversation::thread::Thread;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::dispatch::fleet::Fleet;

/// The most dispatches that a reply lists.
const MOST: usize = 20;

/// Describes the agents of a thread, the newest first.
pub(super) fn status(thread: &Thread, fleet: &Fleet) -> String {
    let opened = &thread.opened;
    let mut text = format!("Thread {}: `{}` in {}.", thread.id(), opened.role, opened.project);
    let mut others = 0;
    for (at, dispatch) in route::dispatches(thread, fleet).enumerate() {
        match at < MOST {
            true => text.push_str(&line(dispatch)),
            false => others += 1,
        }
    }
    let waiting = thread.open_count().saturating_sub(1);
    if others > 0 {
        text.push_str(&format!("\n- and {others} more"));
    }
    if waiting > 0 {
        text.push_str(&format!("\n{waiting} messages are unanswered."));
    }
    text
}

fn line(dispatch: &Dispatch) -> String {
    let created = &dispatch.created;
    let reason = dispatch.reason.as_deref().filter(|reason| !reason.is_empty());
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    let turns = dispatch.turns;
    format!(
        "\n- {} `{}`: {}{reason}; {turns} {}; ${:.2}",
        dispatch.id,
        created.role,
        dispatch.state(),
        if turns == 1 { "turn" } else { "turns" },
        dispatch.spend.cost_usd.max(0.0)
    )
}

/// Adds up the cost of a thread.
pub(super) fn cost(thread: &Thread, fleet: &Fleet) -> String {
    let all: Vec<_> = route::dispatches(thread, fleet).collect();
    let total: f64 = all.iter().map(|dispatch| dispatch.spend.cost_usd.max(0.0)).sum();
    let mut text = format!("${total:.2} for {} dispatches of this thread.", all.len());
    for dispatch in all.iter().take(MOST) {
        let (id, role) = (&dispatch.id, &dispatch.created.role);
        text.push_str(&format!("\n- {id} `{role}`: ${:.2}", dispatch.spend.cost_usd.max(0.0)));
    }
    text
}
