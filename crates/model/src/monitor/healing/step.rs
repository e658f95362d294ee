//! The decisions about the healing of a dispatch: pure functions of the fleet, the configuration
//! and the light agent's answer.

use crate::agent::event::cut;
use crate::dispatch::fleet::Fleet;
use crate::dispatch::{Dispatch, Phase, Stop};
use crate::event::id::DispatchId;
use crate::event::{Event, FinalState};
use crate::monitor::healing::event::{Choice, HealingBegun, HealingChosen, HealingDone, Trouble};
use crate::monitor::healing::prompt::{Answer, Unreadable};
use crate::monitor::healing::settings::Healing;
use crate::monitor::healing::{LIGHT_BY, RETRY_BY};
use jiff::{SignedDuration, Timestamp};

/// A trouble that is older than this is not healed: nobody expects it any more, and settings that
/// are changed today must not restart the work of last week.
const FRESH: SignedDuration = SignedDuration::from_mins(15);
/// The most bytes of a reason in an event.
const REASON_LIMIT: usize = 2000;
/// The author of choices that no light agent makes.
const OURSELVES: &str = "muleteer";

/// The next step of the healing of a dispatch.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Make these events durable.
    Record(Vec<Event>),
    /// Create the light agent.
    Ask { healer: DispatchId },
    /// The light agent has ended well: read its answer, and decide with [`chosen`].
    Read { healer: DispatchId },
    /// Carry the choice out, and decide with [`done`].
    CarryOut(HealingChosen),
}

/// Returns the next step for a dispatch; `None` if nothing is due. `settings` is `None` if the
/// configuration cannot be read now.
pub fn next(
    fleet: &Fleet,
    dispatch: &Dispatch,
    settings: Option<&Healing>,
    now: Timestamp,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Option<Step> {
    let state = &dispatch.healing;
    let (Some(begun), true) = (&state.begun, state.is_under_way()) else {
        let settings = settings.filter(|settings| is_due(fleet, dispatch, settings, now))?;
        return Some(Step::Record(begin(fleet, dispatch, settings, new_id)));
    };
    if let Some(chosen) = &state.chosen {
        return match is_overtaken(dispatch, chosen) {
            true => Some(Step::Record(vec![done(dispatch, OVERTAKEN)])),
            false => Some(Step::CarryOut(chosen.clone())),
        };
    }
    if has_moved(dispatch) {
        return Some(Step::Record(vec![done(dispatch, OVERTAKEN)]));
    }
    let escalate = |reason: &str| Some(Step::Record(vec![escalated(begun.number, reason)]));
    let Some(healer) = &begun.healer else { return escalate("no light agent was chosen") };
    match fleet.get(healer) {
        None if !settings?.enabled => escalate("self-healing was disabled"),
        None => Some(Step::Ask { healer: healer.clone() }),
        Some(light) => match &light.phase {
            Phase::Finished { state: FinalState::Success } => {
                Some(Step::Read { healer: healer.clone() })
            }
            Phase::Finished { state } => {
                let reason = light.reason.as_deref().unwrap_or_default();
                escalate(&format!("the light agent ended as {}: {reason}", state.as_str()))
            }
            _ => None,
        },
    }
}

const OVERTAKEN: &str = "somebody continued or closed the dispatch first";

/// Returns the trouble in which a dispatch has ended, if it is one that is healed at all.
pub fn trouble(dispatch: &Dispatch) -> Option<Trouble> {
    let Phase::Finished { state } = dispatch.phase else { return None };
    match (state, &dispatch.stop) {
        (FinalState::Stalled, Some(Stop::Monitor { .. })) => Some(Trouble::Monitor),
        (FinalState::Stalled, _) => Some(Trouble::Stall),
        // A limit or a policy stopped it, and another try would break the same rule.
        (FinalState::Failed, None) => Some(Trouble::Failure),
        _ => None,
    }
}

/// Whether a dispatch is one that is healed: a person's, or the present one of a thread. The agents
/// of runs, task lists and other agents are in the care of those, and light agents of nobody.
fn is_in_care(fleet: &Fleet, dispatch: &Dispatch) -> bool {
    let created = &dispatch.created;
    match created.thread() {
        Some(thread) => fleet
            .conversations
            .get(thread)
            .is_some_and(|thread| thread.dispatch.as_ref() == Some(&dispatch.id)),
        None => {
            created.by == "operator" && created.parent.is_none() && created.unattended_s.is_none()
        }
    }
}

/// Whether the trouble of a dispatch is to be healed, and no healing of it has begun.
pub fn is_due(fleet: &Fleet, dispatch: &Dispatch, settings: &Healing, now: Timestamp) -> bool {
    settings.enabled
        && trouble(dispatch).is_some()
        && dispatch.healing.of != Some(dispatch.retries.reopened)
        && is_in_care(fleet, dispatch)
        && now.duration_since(dispatch.since) < FRESH
}

/// Whether the question about a stall waits for the end of the healing.
pub fn defers(fleet: &Fleet, dispatch: &Dispatch, settings: &Healing, now: Timestamp) -> bool {
    dispatch.healing.is_under_way() || is_due(fleet, dispatch, settings, now)
}

/// Returns the events that begin a healing.
fn begin(
    fleet: &Fleet,
    dispatch: &Dispatch,
    settings: &Healing,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Vec<Event> {
    let number = dispatch.healing.number() + 1;
    let trouble = trouble(dispatch).unwrap_or(Trouble::Newer);
    let begun = |healer| {
        let reason = cut(dispatch.reason.as_deref().unwrap_or_default(), REASON_LIMIT);
        Event::HealingBegun(Box::new(HealingBegun { number, trouble, reason, healer }))
    };
    let escalate = |reason: &str| vec![begun(None), escalated(number, reason)];
    if number > settings.max_choices {
        let most = settings.max_choices;
        return escalate(&format!("{most} choices were made for it, which is the limit"));
    }
    let better = settings.better_model.as_ref().filter(|better| {
        let had = dispatch.model();
        trouble == Trouble::Failure
            && dispatch.created.thread().is_none()
            && !dispatch.healing.was_retried
            && had != Some(*better)
    });
    if let Some(better) = better {
        let chosen = HealingChosen {
            number,
            choice: Choice::BetterModel,
            reason: format!("healing.better_model is {better}, and it failed with another model"),
            by: OURSELVES.into(),
            message: None,
            dispatch: Some(new_id()),
            model: Some(better.clone()),
        };
        return vec![begun(None), Event::HealingChosen(Box::new(chosen))];
    }
    if budget_left(fleet, &dispatch.id, settings) <= 0.0 {
        return escalate("the budget of its light agents is spent");
    }
    vec![begun(Some(new_id()))]
}

/// Returns what the light agents of a dispatch may still spend, in US dollars.
pub fn budget_left(fleet: &Fleet, dispatch: &DispatchId, settings: &Healing) -> f64 {
    settings.budget_usd - fleet.purse_usd(&purse(dispatch))
}

/// Returns the name of the purse of the light agents of a dispatch.
pub fn purse(dispatch: &DispatchId) -> String {
    format!("{LIGHT_BY}{dispatch}")
}

/// Returns the event of the light agent's choice. An answer that cannot be read escalates.
pub fn chosen(
    dispatch: &Dispatch,
    healer: &DispatchId,
    answer: Result<Answer, Unreadable>,
    new_id: &mut dyn FnMut() -> DispatchId,
) -> Event {
    let number = dispatch.healing.number();
    let answer = match answer {
        Ok(answer) => answer,
        Err(fault) => {
            return escalated(number, &format!("the light agent's answer is unusable: {fault}"));
        }
    };
    // A thread has its own way to another agent.
    let goes_on = dispatch.can_go_on() || dispatch.created.thread().is_some();
    let again = answer.choice != Choice::Escalate && !goes_on;
    Event::HealingChosen(Box::new(HealingChosen {
        number,
        choice: answer.choice,
        reason: cut(&answer.reason, REASON_LIMIT),
        by: format!("agent/{healer}"),
        message: answer.message,
        dispatch: again.then(new_id),
        model: None,
    }))
}

/// Returns the event by which a person decides.
pub fn escalated(number: u32, reason: &str) -> Event {
    Event::HealingChosen(Box::new(HealingChosen {
        number,
        choice: Choice::Escalate,
        reason: cut(reason, REASON_LIMIT),
        by: OURSELVES.into(),
        message: None,
        dispatch: None,
        model: None,
    }))
}

/// Returns the event of the end of a healing. `reason` says why the choice was not carried out; it
/// is empty if it was.
pub fn done(dispatch: &Dispatch, reason: &str) -> Event {
    let number = dispatch.healing.number();
    Event::HealingDone(Box::new(HealingDone { number, reason: cut(reason, REASON_LIMIT) }))
}

/// Returns the key of the message by which a choice continues a dispatch.
pub fn key(dispatch: &DispatchId, number: u32) -> String {
    format!("{dispatch}-healing-{number}")
}

/// Whether the dispatch has changed since its healing began.
fn has_moved(dispatch: &Dispatch) -> bool {
    !dispatch.is_finished()
        || dispatch.healing.of != Some(dispatch.retries.reopened)
        || dispatch.was_killed_for_good()
}

/// Whether somebody else acted before a choice was carried out. The change by the choice itself is
/// repeated after a kill, and has its own key.
fn is_overtaken(dispatch: &Dispatch, chosen: &HealingChosen) -> bool {
    // The respawn of a thread closes the dispatch, and its message has a key.
    let is_own = dispatch.created.thread().is_some()
        || dispatch.prompt(&key(&dispatch.id, chosen.number)).is_some();
    chosen.choice != Choice::Escalate && chosen.dispatch.is_none() && !is_own && has_moved(dispatch)
}

/// Whether a healing that is under way needs a dispatch in the memory.
pub fn needs(fleet: &Fleet, dispatch: &Dispatch) -> bool {
    let is_healed = |id: &str| {
        fleet.troubled().any(|other| other.id.as_str() == id && other.healing.is_under_way())
    };
    dispatch.healing.is_under_way()
        || dispatch.created.by.strip_prefix(LIGHT_BY).is_some_and(is_healed)
}

/// Whether a look at the dispatch may lead to a step.
pub fn may_need_step(dispatch: &Dispatch, now: Timestamp) -> bool {
    let is_fresh = now.duration_since(dispatch.since) < FRESH;
    dispatch.healing.is_under_way()
        || (is_fresh && dispatch.healing.of != Some(dispatch.retries.reopened))
}

/// Whether the dispatch was created to heal another one.
pub fn is_of_healing(by: &str) -> bool {
    by.starts_with(LIGHT_BY) || by.starts_with(RETRY_BY)
}
