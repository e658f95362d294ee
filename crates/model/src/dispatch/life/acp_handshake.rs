//! Opening a session by calls ([`crate::agent::acp_handshake`]): the decisions about the answers.

use crate::agent::acp_handshake::{
    CALL_TIMEOUT_S, Call, CallAnswer, EXIT, EXIT_TIMEOUT_S, INTERRUPT, INTERRUPT_TIMEOUT_S, LOAD,
    MODE, MODEL, ModelStep, NEW, NO_EXIT_TIMEOUT_S, Opening,
};
use crate::agent::event::{AgentEvent, cut};
use crate::agent::session_mode::{self, Modes, Wanted};
use crate::dispatch::life::{Effect, turns};
use crate::dispatch::{Dispatch, Phase, SessionContent, Turn};
use crate::event::{Event, ModeStep};

/// The most bytes that are stored of an agent's reason.
const REASON_LIMIT: usize = 1000;
const ID_LIMIT: usize = 512;
/// The most mode changes of one process that are recorded.
const MOST_CHANGES: u32 = 50;

/// Decides the events for output of an agent whose session is not open yet. Only the answers to our
/// calls count. All other output is the past of a session that is being loaded. From that past, one
/// thing counts: a prompt that was sent without a known receipt was taken.
pub(super) fn agent_event(d: &Dispatch, event: &AgentEvent) -> Vec<Event> {
    match event {
        AgentEvent::CallAnswer(reply) => answered(d, reply),
        AgentEvent::Prompt { key: Some(key), .. } => turns::receipt(d, key, true),
        _ => vec![],
    }
}

fn answered(d: &Dispatch, reply: &CallAnswer) -> Vec<Event> {
    match (&d.process().opening, reply) {
        (Opening::Greeting, CallAnswer::Greeted { agent, loads }) => greeted(d, agent, *loads),
        (Opening::Session { load }, CallAnswer::Opened { session_id, model, model_by, modes }) => {
            let Some(session_id) = session_id.clone().or_else(|| load.clone()) else {
                return vec![failed(NEW, "it returned no session id", false)];
            };
            if session_id.len() > ID_LIMIT {
                return vec![failed(NEW, "the session id is too long", false)];
            }
            let set_mode = match mode(d, modes.as_ref(), load.is_some()) {
                Ok(step) => step,
                Err(error) => return vec![failed(MODE, &error.to_string(), true)],
            };
            let mut events = Vec::new();
            if set_mode.is_none() {
                events.extend(kept(d, modes.as_ref()));
            }
            let model_is_news = model.is_some() && d.session.model != *model;
            if d.session.id.as_ref() != Some(&session_id) || model_is_news {
                let model = model.as_deref().map(|model| cut(model, ID_LIMIT));
                events.push(Event::SessionStarted { session_id: session_id.clone(), model });
            }
            let is_started_with_it = d.known_agent().is_some_and(|agent| agent.model_at_start);
            let wanted = d.model_of_opening().filter(|wanted| model.as_ref() != Some(*wanted));
            let wanted = wanted.filter(|_| !is_started_with_it || model_by.is_some());
            if let (Some(wanted), None) = (wanted, model_by) {
                let reason = format!("the agent cannot select a model, but {wanted} was requested");
                let refused = trial_refused(d, &reason);
                let is_refused = refused.is_some();
                events.push(refused.unwrap_or_else(|| failed(MODEL, &reason, true)));
                if is_refused {
                    let (set_model_by, model_by) = (None, None);
                    events.push(Event::SessionOpened {
                        session_id,
                        set_model_by,
                        model_by,
                        set_mode,
                    });
                }
            } else {
                let model_by = model_by.as_deref().map(|by| cut(by, ID_LIMIT));
                // The model that a loaded session names is not trusted: Codex names the model that
                // it had, and uses another one after a kill.
                let told = wanted.is_some() || (load.is_some() && d.model_of_opening().is_some());
                let set_model_by = model_by.clone().filter(|_| told);
                events.push(Event::SessionOpened { session_id, set_model_by, model_by, set_mode });
            }
            events
        }
        (Opening::Mode { mode, .. }, CallAnswer::ModeSet {}) => {
            vec![Event::SessionModeSet { mode: mode.clone() }]
        }
        // An agent in the mode that it keeps then asks, and its open policy allows what it asks
        // for.
        (Opening::Mode { mode, otherwise, .. }, CallAnswer::Refused { call, message, .. })
            if call == MODE && d.created.permissions.is_open() =>
        {
            let (reason, next) = (cut(message, REASON_LIMIT), otherwise.clone());
            vec![Event::SessionModeRefused { mode: mode.clone(), reason, next }]
        }
        (Opening::Model(_), CallAnswer::ModeChanged { mode }) => mode_changed(d, mode),
        (Opening::Model(ModelStep { model: wanted, .. }), CallAnswer::ModelSet { model }) => {
            match model.as_ref().filter(|model| is_unchanged(d, model, wanted)) {
                None => vec![Event::SessionModelSet { model: wanted.clone() }],
                Some(model) => {
                    let model = cut(model, 100);
                    let reason =
                        format!("the agent still uses {model}, but {wanted} was requested");
                    vec![trial_refused(d, &reason).unwrap_or_else(|| failed(MODEL, &reason, true))]
                }
            }
        }
        (Opening::Model(_), CallAnswer::Refused { call, message, auth: false, .. })
            if call == MODEL && d.model.on_trial.is_some() =>
        {
            trial_refused(d, &cut(message, REASON_LIMIT)).into_iter().collect()
        }
        // The agent stores a session with its first answer, and there was none.
        (
            Opening::Session { load: Some(session_id) },
            CallAnswer::Refused { missing: true, .. },
        ) if d.session.content == SessionContent::Nothing => {
            vec![Event::SessionLost { session_id: session_id.clone() }]
        }
        (opening, CallAnswer::Refused { call, message, auth, missing }) => {
            // A retry does not make the requested model or mode available.
            let for_good = *auth || matches!(opening, Opening::Model(_) | Opening::Mode { .. });
            let reason = format!("it answered with an error: {}", cut(message, REASON_LIMIT));
            let (call, missing) = (cut(call, 100), *missing && !for_good);
            vec![Event::CallFailed { call, reason, for_good, missing }]
        }
        _ => vec![],
    }
}

/// Refuses the model that somebody requested for a session that had another one, and that no turn
/// has used: the old one stays. `None` if no such change is on trial.
fn trial_refused(d: &Dispatch, reason: &str) -> Option<Event> {
    let trial = d.model.on_trial.as_ref()?;
    Some(Event::ModelRefused { key: trial.key.clone(), reason: reason.into() })
}

/// Whether the agent has kept its model although it confirmed the change. An agent may call the
/// model that was requested by a shorter name, or by the name of its default.
fn is_unchanged(d: &Dispatch, model: &str, wanted: &str) -> bool {
    let (now, asked) = (model.to_ascii_lowercase(), wanted.to_ascii_lowercase());
    let may_be_same = now.contains(&asked) || asked.contains(&now) || now.contains("default");
    !may_be_same && d.session.model.as_deref() == Some(model)
}

/// Why a session cannot be put into a mode in which its agent asks.
#[derive(Debug, thiserror::Error)]
enum ModeError {
    #[error("the name of the mode that the policy requires is too long")]
    NameTooLong,
    #[error(
        "the agent is in its mode `{0}`, in which it does not ask, and offers none in which it \
         does; its role has a permission policy"
    )]
    NoneThatAsks(String),
}

/// Returns the mode to set in a session that was just opened.
fn mode(
    d: &Dispatch,
    modes: Option<&Modes>,
    loaded: bool,
) -> Result<Option<Box<ModeStep>>, ModeError> {
    let Some(modes) = modes else { return Ok(None) };
    let fits = |mode: &String| mode.len() <= ID_LIMIT;
    match session_mode::wanted(&d.created.permissions, modes, loaded) {
        Wanted::Keep => Ok(None),
        Wanted::Set { mode, otherwise } if fits(&mode) && fits(&modes.by) => {
            Ok(Some(Box::new(ModeStep { mode, by: modes.by.clone(), otherwise })))
        }
        Wanted::Set { .. } => Err(ModeError::NameTooLong),
        Wanted::Impossible { current } => Err(ModeError::NoneThatAsks(cut(&current, 100))),
    }
}

/// Records the mode that is left as it is, if the policy depends on it.
fn kept(d: &Dispatch, modes: Option<&Modes>) -> Option<Event> {
    let modes =
        modes.filter(|modes| !d.created.permissions.is_open() && modes.by.len() <= ID_LIMIT)?;
    let mode = modes.current.clone().filter(|mode| !mode.is_empty() && mode.len() <= ID_LIMIT)?;
    Some(Event::SessionModeKept { mode, by: modes.by.clone() })
}

/// Decides about a mode that the agent entered by itself. If the policy depends on the mode and the
/// agent does not ask in it, the mode is set back. If the agent enters such a mode again in the
/// same turn, it is stopped.
fn mode_changed(d: &Dispatch, mode: &str) -> Vec<Event> {
    let asks_not = !d.created.permissions.is_open() && session_mode::is_unasking(mode);
    let is_known = d.process().mode.current.as_deref() == Some(mode);
    if d.stop.is_some() || d.process().mode.left_for.is_some() || (is_known && !asks_not) {
        return vec![];
    }
    let mode = cut(mode, ID_LIMIT);
    if !asks_not {
        let told = d.process().mode.changes < MOST_CHANGES;
        return told
            .then_some(Event::SessionModeChanged { mode, back: None })
            .into_iter()
            .collect();
    }
    let wanted =
        d.process().mode.wanted.as_ref().filter(|step| !session_mode::is_unasking(&step.mode));
    let stays =
        |reason: &str| vec![Event::SessionModeStays { mode: mode.clone(), reason: reason.into() }];
    match wanted {
        None => stays("it offers no mode that asks for permission"),
        Some(_) if d.process().mode.was_set_back => {
            stays("Muleteer reset the mode, and the agent switched again")
        }
        Some(step) => vec![Event::SessionModeChanged { mode, back: Some(step.mode.clone()) }],
    }
}

/// Decides about reports of its mode by an agent whose session is open.
pub(super) fn of_mode(d: &Dispatch, reply: &CallAnswer) -> Vec<Event> {
    match (reply, d.process().mode.left_for.as_ref(), d.process().mode.wanted.as_ref()) {
        (CallAnswer::ModeChanged { mode }, ..) => mode_changed(d, mode),
        (CallAnswer::ModeSet {}, Some(_), Some(step)) => {
            vec![Event::SessionModeSet { mode: step.mode.clone() }]
        }
        (CallAnswer::Refused { call, message, .. }, Some(mode), _) if call == MODE => {
            let reason = format!("it refused to leave the mode: {}", cut(message, REASON_LIMIT));
            vec![Event::SessionModeStays { mode: mode.clone(), reason }]
        }
        _ => vec![],
    }
}

/// Records the greeting of an agent. If an earlier session exists and the agent cannot load it, the
/// fate of its last prompt is unknown. To begin again could then do the work twice, so the call
/// fails permanently. A session in which nothing happened is replaced.
fn greeted(d: &Dispatch, agent: &str, loads: bool) -> Vec<Event> {
    let load = d.session.id.clone();
    if let Some(session_id) = load.clone().filter(|_| !loads)
        && d.session.content == SessionContent::Nothing
    {
        let greeted = Event::AgentGreeted { agent: cut(agent, 200), load };
        return vec![greeted, Event::SessionLost { session_id }];
    }
    let mut events =
        vec![Event::AgentGreeted { agent: cut(agent, 200), load: load.clone().filter(|_| loads) }];
    if load.is_some() && !loads {
        let reason = "the agent cannot load the session of an earlier process, so the fate of the \
            last prompt is unknown";
        events.push(failed(LOAD, reason, true));
    }
    events
}

fn failed(call: &str, reason: &str, for_good: bool) -> Event {
    Event::CallFailed { call: cut(call, 100), reason: reason.into(), for_good, missing: false }
}

/// Fails a call that has waited too long for its answer.
pub(super) fn overdue(d: &Dispatch, epoch: u32, call: &str, waited_s: u64) -> Vec<Event> {
    let due = awaited(d).is_some_and(|(current, awaited, _)| current == epoch && awaited == call);
    let waited = crate::config::Span::from_secs(waited_s);
    if due { vec![failed(call, &format!("no answer within {waited}"), false)] } else { vec![] }
}

/// Returns the call that an agent has not answered: the epoch of the process, the name of the call,
/// and its deadline in seconds of awake time. A prompt is not such a call.
pub fn awaited(d: &Dispatch) -> Option<(u32, &'static str, u64)> {
    let Phase::Working { epoch, .. } = d.phase else { return None };
    if d.stop.is_some() || d.process().call_failed.is_some() {
        return None;
    }
    if let Some(call) = d.process().opening.awaits() {
        return Some((
            epoch,
            call,
            d.created.calls.map_or(CALL_TIMEOUT_S, |calls| calls.timeout_s),
        ));
    }
    if d.process().mode.left_for.is_some() {
        return Some((
            epoch,
            MODE,
            d.created.calls.map_or(CALL_TIMEOUT_S, |calls| calls.timeout_s),
        ));
    }
    let agent = d.known_agent();
    if d.created.calls.is_some()
        && matches!(d.phase, Phase::Working { turn: Turn::Done { leaving: true, .. }, .. })
    {
        let exits = agent.is_none_or(|agent| agent.exits_at_end_of_input);
        return Some((epoch, EXIT, if exits { EXIT_TIMEOUT_S } else { NO_EXIT_TIMEOUT_S }));
    }
    // A process whose session cannot be resumed is not terminated, because that would lose the
    // session.
    let interrupted = d.process().interrupt.is_some() && d.created.resumable;
    let heeds = agent.is_none_or(|agent| agent.interrupts);
    let timeout_s = if heeds { INTERRUPT_TIMEOUT_S } else { 0 };
    interrupted.then_some((epoch, INTERRUPT, timeout_s))
}

/// Returns the call that sets the mode back.
pub(super) fn restores(d: &Dispatch) -> Option<Effect> {
    let step = d.process().mode.wanted.as_ref().filter(|_| d.process().mode.left_for.is_some())?;
    let (by, mode) = (step.by.clone(), step.mode.clone());
    Some(Effect::Call(Call::RestoreMode { by, mode, nth: d.process().mode.changes }))
}

/// Returns the call that is due in the opening of the session.
pub(super) fn effect(d: &Dispatch) -> Option<Effect> {
    let call = match &d.process().opening {
        Opening::Ready => return None,
        Opening::Greeting => Call::Greet,
        Opening::Session { load } => {
            let cwd = d.created.worktree.as_ref().unwrap_or(&d.created.project);
            let permissions = d.created.permissions.clone();
            Call::Open {
                load: load.clone(),
                cwd: cwd.clone(),
                agent: d.session.agent.clone(),
                permissions,
            }
        }
        Opening::Mode { by, mode, .. } => Call::SetMode { by: by.clone(), mode: mode.clone() },
        Opening::Model(ModelStep { by, model }) => {
            Call::SetModel { by: by.clone(), model: model.clone() }
        }
    };
    Some(Effect::Call(call))
}
