//! The limits of a dispatch: time, money and model turns.

use crate::config::Span;
use crate::dispatch::{Dispatch, Phase, Turn};
use crate::event::{Event, Limit};

/// Returns the limit that earlier attempts used up, if any: such a dispatch begins no further
/// attempt.
pub(super) fn used_up(d: &Dispatch) -> Option<Event> {
    let time = d
        .created
        .limits
        .timeout_s
        .filter(|timeout_s| d.usage.awake_ms / 1000 >= *timeout_s)
        .map(|timeout_s| (Limit::Timeout, time_limit(timeout_s)));
    let (limit, detail) = time.or_else(|| budget_spent(d)).or_else(|| turns_taken(d))?;
    Some(Event::LimitReached { limit, detail })
}

fn budget_spent(d: &Dispatch) -> Option<(Limit, String)> {
    let budget = d.created.limits.budget_usd.filter(|budget| d.spend.cost_usd >= *budget)?;
    Some((Limit::Budget, budget_limit(d, budget)))
}

/// Describes a time limit for [`Limit::describe`].
pub(super) fn time_limit(timeout_s: u64) -> String {
    format!("its time limit of {}", Span::from_secs(timeout_s))
}

/// Describes a budget for [`Limit::describe`], with the money that the dispatch has spent.
pub(super) fn budget_limit(d: &Dispatch, budget: f64) -> String {
    format!("its budget of {} ({} spent)", dollars(budget), dollars(d.spend.cost_usd))
}

/// Describes a limit of model turns for [`Limit::describe`].
pub(super) fn turn_limit(most: u32) -> String {
    format!("its limit of {most} turn{}", if most == 1 { "" } else { "s" })
}

/// Formats an amount of money. Less than a cent keeps four digits, as it would read `$0.00`.
pub(in crate::dispatch) fn dollars(amount: f64) -> String {
    if amount > 0.0 && amount < 0.01 { format!("${amount:.4}") } else { format!("${amount:.2}") }
}

/// Returns the limit of model turns if it is reached: no further model turn may begin.
fn turns_taken(d: &Dispatch) -> Option<(Limit, String)> {
    let most = d
        .created
        .limits
        .max_turns
        .filter(|most| d.created.has_turns() && d.usage.model_turns >= *most)?;
    Some((Limit::Turns, turn_limit(most)))
}

/// The limit that a working dispatch has exceeded, if any. After its turn there is nothing left to
/// stop.
pub fn limit_reached(d: &Dispatch) -> Option<(Limit, String)> {
    if !can_be_stopped(d) {
        return None;
    }
    let runs = has_a_turn(d);
    // The last allowed turn may finish what it began; nothing new may begin.
    let may_finish = |most: u32| d.usage.model_turns <= most || !counts_turns(d);
    budget_spent(d).or_else(|| {
        turns_taken(d).filter(|_| !(runs && d.created.limits.max_turns.is_some_and(may_finish)))
    })
}

fn has_a_turn(d: &Dispatch) -> bool {
    matches!(&d.phase, Phase::Working { turn: Turn::Running { .. }, .. })
}

/// Whether a limit has something to stop that is not being stopped already.
pub fn can_be_stopped(d: &Dispatch) -> bool {
    matches!(d.phase, Phase::Working { .. })
        && d.stop.is_none()
        && (has_a_turn(d) || d.next_prompt().is_some())
}

/// Whether Muleteer counts the model turns. A CLI that enforces its limit itself counts better.
fn counts_turns(d: &Dispatch) -> bool {
    d.created.has_turns() && !d.traits.limits_turns
}
