//! The state of one dispatch, folded from its events. Folding only records; deciding is
//! [`crate::life`]'s.
//!
//! ```text
//!            AttemptStarted        AgentSpawned              turn done, nothing queued,
//!  Queued ───────────────▶ Starting ──────────▶ Working ─┐  stdin closed, process gone
//!    ▲                        ▲                  │  │    │
//!    │ PromptQueued           │ AttemptStarted   │  │    ▼
//!    │ (a further turn)       └────── Backoff ◀──┘  │  Closing ──▶ Finished
//!    │                          RestartScheduled    │  (work fetched)   │
//!    └──────────────────────────────────────────────┴──────────────────┘
//! ```
//!
//! A dispatch that waits for the model API (`ApiWaiting`) is `Queued` too: it has no process and holds
//! no place, and the pool knows when others may ask the same API again.
//!
//! What happens to a prompt:
//!
//! ```text
//!            PromptSent       receipt           turn ended
//!  Queued ───────────────▶ Sent ──────▶ Taken ──────────────▶ Done
//!    ▲                      │             │
//!    └── process gone ──────┘             └── process gone ──▶ Superseded (by a `Continue`)
//! ```
//!
//! Where the CLI keeps a transcript, that decides instead, for both, once the process is gone
//! ([`crate::transcript`]): not taken goes back to `Queued`, taken is `Taken`, and what cannot be told
//! is `Doubtful`, which ends the dispatch as `blocked`.

use crate::agent_event::TurnError;
use crate::api_error::{self, Outage, Trouble};
use crate::ask::{Answer, Asks};
use crate::event::{Created, Entry, Event, ExitCause, FinalState, Limit, Position, PromptKind, Record};
use crate::id::DispatchId;
use crate::opening::{CallFailure, Opening};
use crate::result::AgentResult;
use crate::transcript::{Session, Standing};
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Open calls kept in mind. More at once are no longer told apart from none by who watches for stalls.
const MOST_CALLS: usize = 256;

#[derive(Debug, Clone, PartialEq)]
pub struct Dispatch {
    pub id: DispatchId,
    /// As it was asked for. Shared: it never changes, and each event makes a copy of all else.
    pub created: Arc<Created>,
    pub created_at: Timestamp,
    /// Of the record that created it: nothing about it is older.
    pub created_seq: u64,
    pub phase: Phase,
    pub since: Timestamp,
    pub last_activity: Option<Timestamp>,
    pub reason: Option<String>,
    pub attempts: u32,
    /// The newest spool epoch; 0 before the first start.
    pub epoch: u32,
    pub turns: u32,
    pub restarts: u32,
    /// Shims in a row that died before they released their agent.
    pub start_failures: u32,
    pub session_id: Option<String>,
    pub session_model: Option<String>,
    /// How many sessions were begun under ids of our choosing and came to nothing.
    pub sessions_spoiled: u32,
    /// The session that was to go on and that its CLI no longer has.
    pub session_lost: Option<String>,
    /// Why it is not known what became of a prompt.
    pub doubt: Option<String>,
    /// How far the opening of its session has come, of an agent spoken to by calls.
    pub opening: Opening,
    /// Why the present process is being ended.
    pub call_failed: Option<CallFailure>,
    /// What the agent said last in its turn, where nothing but that is its answer.
    pub said: Option<String>,
    pub containment: Option<String>,
    pub prompts: Vec<Prompt>,
    pub spend: Spend,
    pub position: Position,
    pub stop: Option<Stop>,
    /// The model somebody asked for after it was made: the next process gets it.
    pub model_wanted: Option<String>,
    /// How its open session changes models, where it is spoken to by calls and can.
    pub model_by: Option<String>,
    /// That its running CLI is to be told, under this key; and what it had before.
    pub model_change: Option<(String, Option<String>)>,
    /// What its agent waits to be told.
    pub asks: Asks,
    /// Calls of tools that have not come to an end, as far as it is known.
    pub calls: Vec<String>,
    /// Those among them that subagents made.
    pub subcalls: Vec<String>,
    /// What its agent has told people in this attempt.
    pub notices: Vec<String>,
    /// The newest interrupt that was asked for and has not ended a turn.
    pub interrupt: Option<String>,
    pub result: Option<AgentResult>,
    pub result_faults: Vec<String>,
    pub repair_used: bool,
    pub blocked_by_us: bool,
    pub first_started: Option<Timestamp>,
    /// The model API's trouble, since it last answered.
    pub outage: Option<Outage>,
    /// Awake time of all its processes that have ended.
    pub used_ms: u64,
    /// Of the newest process: the shim's clock when it began, and how long it lived once that is over.
    pub began_ms: u64,
    pub lived_ms: u64,
    /// How often the model has spoken, as far as the events tell: once for a prompt, and once for the
    /// results of its tools.
    pub model_turns: u32,
    /// What is said next is another model turn.
    pub model_owes: bool,
    /// Somebody spoke to it while it was being ended for its silence.
    pub spoken_to: bool,
    /// The machine was started anew since its newest attempt began: nothing of that lives, and what was not synced
    /// may be lost. So nobody can tell by what is there that its agent has not run.
    pub rebooted: bool,
    /// The machine was started anew while this was unfinished, and its agent has not ended a turn since: what was
    /// written last, by the agent or for it, may be lost.
    pub unsynced: bool,
    /// How often it had ended and was spoken to again.
    pub reopened: u32,
    pub fetched: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// Durable; waits for the pool.
    Queued,
    /// The intent to start epoch `epoch` is durable; its agent may or may not run yet.
    Starting {
        attempt: u32,
        epoch: u32,
    },
    Working {
        attempt: u32,
        epoch: u32,
        pid: u32,
        shim_pid: u32,
        turn: Turn,
    },
    /// The process of `attempt` is gone; how the attempt ended is not yet recorded.
    Gone {
        attempt: u32,
        epoch: u32,
        exit: Exit,
        turn: Turn,
    },
    Backoff {
        attempt: u32,
        until: Timestamp,
        delay_ms: u64,
    },
    /// `spoken_to`: somebody spoke too late for the decision to end, so the end is a beginning.
    Closing {
        state: FinalState,
        reason: String,
        spoken_to: bool,
    },
    Finished {
        state: FinalState,
    },
}

/// What a place in the pool is promised for: a dispatch that has had it, or has ended and waits anew, needs another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    epoch: u32,
    reopened: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    /// No prompt is being worked on since the process began.
    None,
    Running {
        key: String,
    },
    /// The last turn ended so. `leaving`: nothing was left to say to this process, so its stdin is
    /// being closed; who speaks from now on speaks to its successor.
    Done {
        ok: bool,
        error: Option<TurnError>,
        status: Option<u16>,
        text: String,
        leaving: bool,
    },
}

#[derive(Debug, Clone, PartialEq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub cause: ExitCause,
    pub stderr_tail: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pub key: String,
    pub kind: PromptKind,
    pub state: PromptState,
    /// What the transcript said, since it was last sent.
    pub standing: Option<Standing>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptState {
    Queued,
    /// On its way to this process; no receipt yet.
    Sent,
    /// The CLI has it: its turn runs.
    Taken,
    Done,
    /// Its turn was cut by a crash and a `Continue` prompt stands for it; or by the end of the
    /// dispatch, and what was said next in its session does.
    Superseded,
    /// Not even the CLI's transcript tells whether it was taken: a person is asked.
    Doubtful,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Stop {
    Kill {
        reason: String,
    },
    Limit {
        limit: Limit,
        detail: String,
    },
    Stall {
        silent_s: u64,
        evidence: String,
    },
    /// The model API is not asked any more.
    Api {
        reason: String,
    },
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spend {
    pub cost_usd: f64,
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
    pub per_model: BTreeMap<String, crate::agent_event::ModelUsage>,
    /// What the current OS process has reported and is already counted, by model.
    pub process: BTreeMap<String, crate::agent_event::ModelUsage>,
    /// What the current process told last as the cost of the whole session.
    pub told_usd: Option<f64>,
    /// The same of all processes its session has had.
    pub session: BTreeMap<String, crate::agent_event::ModelUsage>,
}

impl Turn {
    pub fn was_interrupted(&self) -> bool {
        matches!(self, Self::Done { error: Some(TurnError::Interrupted), .. })
    }

    /// The session is whole and can be spoken to.
    pub fn ended_well(&self) -> bool {
        matches!(self, Self::Done { ok: true, .. }) || self.was_interrupted()
    }
}

impl Dispatch {
    pub fn new(id: DispatchId, created: Created, at: Timestamp) -> Self {
        Self {
            id,
            created: Arc::new(created),
            created_at: at,
            created_seq: 0,
            phase: Phase::Queued,
            since: at,
            last_activity: None,
            reason: None,
            attempts: 0,
            epoch: 0,
            turns: 0,
            restarts: 0,
            start_failures: 0,
            session_id: None,
            session_model: None,
            sessions_spoiled: 0,
            session_lost: None,
            doubt: None,
            opening: Opening::Ready,
            call_failed: None,
            said: None,
            containment: None,
            prompts: vec![],
            spend: Spend::default(),
            position: Position::default(),
            stop: None,
            model_wanted: None,
            model_by: None,
            model_change: None,
            asks: Asks::default(),
            calls: vec![],
            subcalls: vec![],
            notices: vec![],
            interrupt: None,
            result: None,
            result_faults: vec![],
            repair_used: false,
            blocked_by_us: false,
            first_started: None,
            outage: None,
            used_ms: 0,
            began_ms: 0,
            lived_ms: 0,
            model_turns: 0,
            model_owes: false,
            spoken_to: false,
            rebooted: false,
            unsynced: false,
            reopened: 0,
            fetched: None,
        }
    }

    /// The state as `status` shows it (contract.md, "States and outcomes").
    pub fn state(&self) -> &'static str {
        match &self.phase {
            _ if self.waits_for_api() => "waiting",
            Phase::Queued => "queued",
            Phase::Starting { .. } | Phase::Backoff { .. } => "starting",
            Phase::Working { turn, .. } if turn.was_interrupted() && !self.has_unheard() => "waiting",
            Phase::Working { .. } if self.waits_for_an_answer() => "waiting",
            Phase::Working { .. } | Phase::Gone { .. } | Phase::Closing { .. } => "running",
            Phase::Finished { state } => state.as_str(),
        }
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished { .. })
    }

    /// The model API owes it an answer and has only made trouble since it was asked.
    pub fn waits_for_api(&self) -> bool {
        let asks = self.phase == Phase::Queued || self.owes_an_answer().is_some();
        asks && self.stop.is_none() && self.outage.is_some()
    }

    /// It has begun, or is about to end, and has not ended.
    pub fn is_active(&self) -> bool {
        !matches!(self.phase, Phase::Queued | Phase::Finished { .. })
    }

    /// At work, as the pool counts: it has an agent, or will have one without being let in again. One that closes has
    /// none any more, or never had one: being killed while it waited is no way in.
    pub fn is_at_work(&self) -> bool {
        self.is_active() && !matches!(self.phase, Phase::Closing { .. })
    }

    /// Its clone may be there in part, and nobody has worked in it: it is to be made again.
    pub fn distrusts_clone(&self) -> bool {
        self.unsynced && self.containment.is_none()
    }

    /// The process of this epoch has been given something to do and is not done with it: what
    /// [`crate::stall`] watches.
    pub fn owes_an_answer(&self) -> Option<u32> {
        match &self.phase {
            Phase::Working { epoch, turn, .. } if self.stop.is_none() => {
                let sent = self.prompts.iter().any(|p| p.state == PromptState::Sent);
                (sent || matches!(turn, Turn::Running { .. })).then_some(*epoch)
            }
            _ => None,
        }
    }

    /// Somebody has to say something before its agent goes on.
    pub fn waits_for_an_answer(&self) -> bool {
        matches!(self.phase, Phase::Working { .. }) && self.stop.is_none() && self.asks.open().next().is_some()
    }

    /// The model its next process is started with; `None` leaves it to the CLI.
    pub fn model(&self) -> Option<&String> {
        self.model_wanted.as_ref().or(self.created.model.as_ref())
    }

    pub fn next_prompt(&self) -> Option<&Prompt> {
        self.prompts.iter().find(|p| p.state == PromptState::Queued)
    }

    /// There is a prompt that no agent is known to have taken.
    pub fn has_unheard(&self) -> bool {
        self.prompts.iter().any(|p| matches!(p.state, PromptState::Queued | PromptState::Sent))
    }

    /// The next prompt whose fate only the transcript can tell, now that its process is gone. A turn
    /// that ended by the agent's own word, or by a person's, needs no other.
    pub fn to_probe(&self) -> Option<&Prompt> {
        let Phase::Gone { turn, .. } = &self.phase else { return None };
        if !self.created.transcripts {
            return None;
        }
        let told = matches!(turn, Turn::Done { .. }) || self.interrupt.is_some();
        self.prompts.iter().find(|p| match p.state {
            PromptState::Sent => true,
            PromptState::Taken => p.standing.is_none() && !told,
            _ => false,
        })
    }

    /// A prompt's turn was cut by the end of its process.
    pub fn is_cut_short(&self) -> bool {
        self.prompts.iter().any(|p| p.state == PromptState::Taken)
    }

    /// Where the turn was cut that is to be gone on with, as the transcript tells.
    pub fn cut_at(&self) -> Option<Standing> {
        let mut cut = self
            .prompts
            .iter()
            .rev()
            .filter(|p| matches!(p.state, PromptState::Superseded | PromptState::Taken));
        cut.find_map(|p| p.standing)
    }

    /// Its session holds something: a prompt was taken in it.
    pub fn has_history(&self) -> bool {
        let heard = |p: &Prompt| matches!(p.state, PromptState::Taken | PromptState::Done | PromptState::Superseded);
        self.prompts.iter().any(heard)
    }

    pub fn prompt(&self, key: &str) -> Option<&Prompt> {
        self.prompts.iter().find(|p| p.key == key)
    }

    pub fn pid(&self) -> Option<u32> {
        match self.phase {
            Phase::Working { pid, .. } => Some(pid),
            _ => None,
        }
    }

    /// Folds one durable record of this dispatch into its state.
    pub fn apply(&mut self, record: &Record) {
        let Entry { event, at, .. } = &record.entry;
        if let Some(at) = at {
            self.position = self.position.max(*at);
            self.last_activity = Some(record.ts);
        }
        let before = self.state();
        self.apply_event(event, record.ts);
        self.apply_to_calls(event, record.ts);
        if self.state() != before {
            self.since = record.ts;
        }
    }

    fn apply_event(&mut self, event: &Event, ts: Timestamp) {
        match event {
            Event::PromptQueued { key, kind, .. } => {
                if self.prompt(key).is_some() {
                    return;
                }
                // It is being ended for its own sake or the API's, and wanted all the same.
                let silenced = matches!(self.stop, Some(Stop::Stall { .. } | Stop::Api { .. }));
                self.spoken_to |= silenced && *kind == PromptKind::Send;
                match (kind, &mut self.phase) {
                    (PromptKind::Continue, _) => self.supersede_taken(),
                    (PromptKind::Repair, Phase::Working { turn: Turn::Done { leaving, .. }, .. }) => {
                        *leaving = !self.created.multi_turn;
                    }
                    (PromptKind::Send, Phase::Closing { spoken_to, .. }) => *spoken_to = true,
                    _ => {}
                }
                // A repair or a continuation goes before what people queued meanwhile.
                let prompt = Prompt { key: key.clone(), kind: *kind, state: PromptState::Queued, standing: None };
                let urgent = matches!(kind, PromptKind::Repair | PromptKind::Continue);
                let place =
                    if urgent { self.prompts.iter().position(|p| p.state == PromptState::Queued) } else { None };
                self.prompts.insert(place.unwrap_or(self.prompts.len()), prompt);
                if self.is_finished() && self.created.resumable {
                    self.reopen();
                }
            }
            Event::AttemptStarted { attempt, epoch, resume } => {
                self.attempts = *attempt;
                self.epoch = *epoch;
                self.rebooted = false;
                self.first_started.get_or_insert(ts);
                self.spend.process.clear();
                self.spend.told_usd = None;
                if resume.is_none() {
                    self.spend.session.clear();
                }
                self.interrupt = None;
                self.session_lost = None;
                self.notices.clear();
                // This process is started with it.
                self.model_change = None;
                self.opening = Opening::Ready;
                self.call_failed = None;
                self.blocked_by_us = false;
                // There is more to do: what was the result is none.
                self.result = None;
                for prompt in &mut self.prompts {
                    // Sent without a receipt goes again under its key, which the CLI knows; in a
                    // fresh session nothing was ever said.
                    let again = match prompt.state {
                        PromptState::Sent => true,
                        PromptState::Taken => resume.is_none() && !self.created.transcripts,
                        _ => false,
                    };
                    if again {
                        prompt.state = PromptState::Queued;
                    }
                }
                self.position = self.position.max(Position { epoch: *epoch, ..Position::default() });
                self.phase = Phase::Starting { attempt: *attempt, epoch: *epoch };
                self.reason = None;
            }
            Event::AgentSpawned { pid, shim_pid, containment, awake_ms } => {
                (self.began_ms, self.lived_ms) = (*awake_ms, 0);
                if let Phase::Starting { attempt, epoch } = self.phase {
                    self.containment = Some(containment.clone());
                    self.start_failures = 0;
                    if self.created.calls.is_some() {
                        self.opening = Opening::Greeting;
                    }
                    self.phase = Phase::Working { attempt, epoch, pid: *pid, shim_pid: *shim_pid, turn: Turn::None };
                }
            }
            Event::SessionStarted { session_id, model } => {
                self.session_id = Some(session_id.clone());
                self.session_model = model.clone().or(self.session_model.take());
            }
            Event::AgentGreeted { load, .. } => self.opening = Opening::Session { load: load.clone() },
            Event::SessionOpened { set_model_by, model_by, .. } => {
                self.model_by.clone_from(model_by);
                self.opening = match set_model_by {
                    Some(by) => Opening::Model { by: by.clone() },
                    None => Opening::Ready,
                };
            }
            Event::SessionModelSet { model } => {
                self.opening = Opening::Ready;
                self.session_model = Some(model.clone());
            }
            Event::CallFailed { call, reason, for_good } => {
                let failure = CallFailure { call: call.clone(), reason: reason.clone(), for_good: *for_good };
                self.call_failed = Some(failure);
            }
            Event::PromptSent { key } => self.set_prompt(key, PromptState::Sent),
            Event::PromptFolded { key, .. } => self.set_prompt(key, PromptState::Taken),
            Event::PromptProbed { key, standing, session, session_id, detail, .. } => {
                self.probed(key, *standing, *session, session_id.as_ref(), detail);
            }
            Event::SessionLost { .. } => self.lose_session(),
            Event::TurnStarted { turn, key } => {
                self.turns = *turn;
                self.said = None;
                self.model_owes = true;
                self.set_prompt(key, PromptState::Taken);
                if self.prompt(key).is_some_and(|prompt| prompt.kind == PromptKind::Send) {
                    // A new question: its answer may be mended as well.
                    self.result = None;
                    self.repair_used = false;
                }
                if let Phase::Working { turn, .. } = &mut self.phase {
                    *turn = Turn::Running { key: key.clone() };
                }
            }
            // It was answered, and works with the answer.
            Event::ToolCalled { parent, .. } => {
                self.outage = None;
                // A subagent's turns are not the agent's.
                if parent.is_none() {
                    self.spoke();
                }
            }
            Event::AgentSaid { text } => {
                self.spoke();
                // Some CLIs say in their agent's place that there is trouble: it is not over, but what
                // follows may be another.
                if let Some(outage) = &mut self.outage {
                    outage.since_ms = None;
                }
                if self.created.said_is_answer() {
                    self.said = Some(text.clone());
                }
            }
            Event::ToolFinished { call_id } | Event::ToolFailed { call_id, .. } => {
                self.model_owes |= !self.subcalls.contains(call_id);
            }
            Event::UsageRecorded { cumulative, .. } => {
                // Told as it comes, and not of a process that is gone.
                if !cumulative && matches!(self.phase, Phase::Working { .. }) {
                    self.outage = None;
                }
                self.count(event);
            }
            Event::ApiRetried { attempt, max, status, delay_s, awake_ms } => {
                let until = api_error::after(ts, api_error::wait(*delay_s));
                self.trouble(Trouble::of_status(*status), *status, until, false, *awake_ms);
                if let Some(outage) = &mut self.outage {
                    outage.tried = Some((*attempt, *max));
                }
            }
            Event::RateLimited { until, wait_s, awake_ms } => {
                let until = until.unwrap_or_else(|| api_error::after(ts, api_error::wait(*wait_s)));
                self.trouble(Trouble::RateLimit, None, until, true, *awake_ms);
            }
            Event::ApiWaiting { trouble, status, until, told, waits, spent_ms } if !self.is_finished() => {
                let (trouble, status, until) = (*trouble, *status, *until);
                let (told, waits, spent_ms) = (*told, *waits, *spent_ms);
                let since_ms = self.outage.as_ref().and_then(|before| before.since_ms);
                self.outage = Some(Outage { trouble, status, until, told, tried: None, waits, spent_ms, since_ms });
                self.phase = Phase::Queued;
            }
            Event::ApiGivenUp { reason, .. } if self.stop.is_none() && !self.is_finished() => {
                self.stop = Some(Stop::Api { reason: reason.clone() });
            }
            Event::AgentNotice { text } => self.notices.push(text.clone()),
            Event::TurnFinished { ok, error, status, text, .. } => {
                self.interrupt = None;
                if *ok {
                    self.outage = None;
                    self.unsynced = false;
                }
                let interrupted = *error == Some(TurnError::Interrupted);
                let mut answered = false;
                for prompt in self.prompts.iter_mut().filter(|p| p.state == PromptState::Taken) {
                    // A turn that failed is gone on with after a restart.
                    if *ok || interrupted {
                        prompt.state = PromptState::Done;
                        answered = true;
                    }
                }
                if *ok && answered {
                    self.restarts = 0;
                }
                // A process of one prompt has nothing to wait for.
                let stays = interrupted || (*ok && self.has_unheard());
                let leaving = !self.created.multi_turn || !stays;
                if let Phase::Working { turn, .. } | Phase::Gone { turn, .. } = &mut self.phase {
                    *turn = Turn::Done { ok: *ok, error: *error, status: *status, text: text.clone(), leaving };
                }
            }
            Event::ResultReceived { result } => {
                self.result = Some(result.clone());
                self.result_faults.clear();
            }
            Event::ResultInvalid { faults, repair } => {
                self.result = None;
                self.result_faults = faults.clone();
                self.repair_used |= repair;
            }
            Event::BlockedByUs { on } => self.blocked_by_us = *on,
            Event::ModelRequested { key, model, .. } => {
                let before = self.model_wanted.replace(model.clone());
                self.model_change = Some((key.clone(), before));
            }
            Event::ModelChanged { key, model } => {
                self.session_model = Some(model.clone());
                self.model_change.take_if(|(pending, _)| pending == key);
            }
            Event::ModelRefused { key, .. } => {
                if let Some((_, before)) = self.model_change.take_if(|(pending, _)| pending == key) {
                    self.model_wanted = before;
                }
            }
            Event::InterruptRequested { key, .. } => self.interrupt = Some(key.clone()),
            Event::KillRequested { reason, .. } if !self.is_finished() => {
                self.stop = Some(Stop::Kill { reason: reason.clone() });
            }
            Event::LimitReached { limit, detail } if self.stop.is_none() => {
                self.stop = Some(Stop::Limit { limit: *limit, detail: detail.clone() });
            }
            Event::StallDetected { silent_s, evidence } if self.stop.is_none() => {
                self.stop = Some(Stop::Stall { silent_s: *silent_s, evidence: evidence.clone() });
            }
            Event::StartFailed { epoch, error, permanent } => {
                if let Phase::Starting { attempt, .. } | Phase::Working { attempt, .. } = self.phase {
                    self.start_failures += u32::from(!permanent);
                    let cause = if *permanent { ExitCause::CannotStart } else { ExitCause::NeverRan };
                    let exit = Exit { code: None, signal: None, cause, stderr_tail: error.clone() };
                    self.phase = Phase::Gone { attempt, epoch: *epoch, exit, turn: Turn::None };
                }
            }
            Event::AgentExited { epoch, code, signal, cause, stderr_tail, used_ms } => {
                self.lived_ms = *used_ms;
                self.used_ms = self.used_ms.saturating_add(*used_ms);
                let exit = Exit { code: *code, signal: *signal, cause: *cause, stderr_tail: stderr_tail.clone() };
                self.start_failures += u32::from(*cause == ExitCause::NeverRan);
                match &self.phase {
                    Phase::Starting { attempt, .. } => {
                        self.phase = Phase::Gone { attempt: *attempt, epoch: *epoch, exit, turn: Turn::None };
                    }
                    Phase::Working { attempt, turn, .. } => {
                        self.phase = Phase::Gone { attempt: *attempt, epoch: *epoch, exit, turn: turn.clone() };
                    }
                    _ => {}
                }
            }
            Event::AttemptFinished { counted, reason, .. } => {
                if *counted {
                    self.restarts += 1;
                }
                self.reason = Some(reason.clone());
            }
            Event::RestartScheduled { until, delay_ms } => {
                self.phase = Phase::Backoff { attempt: self.attempts, until: *until, delay_ms: *delay_ms };
            }
            Event::DispatchClosing { state, reason } => {
                // Who spoke just before, as this was being decided, was overlooked.
                let ended_well = matches!(&self.phase, Phase::Gone { turn, .. } if turn.ended_well());
                // What is doubtful is asked about first.
                let overlooked = ended_well && self.stop.is_none() && self.doubt.is_none() && self.has_unheard();
                let spoken_to = overlooked || std::mem::take(&mut self.spoken_to);
                self.phase = Phase::Closing { state: *state, reason: reason.clone(), spoken_to };
                self.reason = Some(reason.clone());
            }
            Event::WorkFetched { branch, .. } => self.fetched = Some(branch.clone()),
            Event::DispatchFinished { state, reason, result } => {
                let spoken_to = matches!(self.phase, Phase::Closing { spoken_to: true, .. });
                let killed = *state == FinalState::Killed || matches!(self.stop, Some(Stop::Kill { .. }));
                self.phase = Phase::Finished { state: *state };
                self.reason = (!reason.is_empty()).then(|| reason.clone());
                if result.is_some() {
                    self.result = result.clone();
                }
                // Somebody spoke in the moment it ended: that is a further turn, not a lost word.
                if spoken_to && !killed && self.created.resumable {
                    self.reopen();
                }
            }
            _ => {}
        }
    }

    /// What its agent has begun and what it waits for.
    fn apply_to_calls(&mut self, event: &Event, ts: Timestamp) {
        match event {
            Event::ToolCalled { call_id, parent, .. } if !call_id.is_empty() && !self.calls.contains(call_id) => {
                if self.calls.len() >= MOST_CALLS {
                    let oldest = self.calls.remove(0);
                    self.subcalls.retain(|call| *call != oldest);
                }
                self.calls.push(call_id.clone());
                if parent.is_some() {
                    self.subcalls.push(call_id.clone());
                }
            }
            Event::ToolFinished { call_id } | Event::ToolFailed { call_id, .. } => {
                self.calls.retain(|open| open != call_id);
                self.subcalls.retain(|open| open != call_id);
                self.asks.call_ended(call_id);
            }
            Event::PermissionRequested { request_id, ask, .. } => self.asks.request(request_id, ask, ts),
            Event::PermissionAnswered { request_id, answer, text, key, .. } => {
                self.asks.heard(key, request_id, *answer);
                self.asks.answer(request_id, Answer { verdict: *answer, text: text.clone() });
            }
            Event::PermissionClosed { request_id } => self.asks.close(request_id),
            // What a process was asked or had begun is over with its turn, and with itself.
            Event::TurnFinished { .. }
            | Event::AttemptStarted { .. }
            | Event::AgentExited { .. }
            | Event::StartFailed { .. }
            | Event::ApiWaiting { .. }
            | Event::DispatchClosing { .. } => {
                self.calls.clear();
                self.subcalls.clear();
                self.asks.clear();
            }
            _ => {}
        }
    }

    fn spoke(&mut self) {
        if std::mem::take(&mut self.model_owes) {
            self.model_turns = self.model_turns.saturating_add(1);
        }
    }

    /// What is known of an outage that goes on stays: how often and how long it was waited for.
    fn trouble(&mut self, trouble: Trouble, status: Option<u16>, until: Timestamp, told: bool, awake_ms: Option<u64>) {
        let before = self.outage.take();
        // A clock that begins anew, with the machine, is behind.
        let since_ms = before.as_ref().and_then(|before| before.since_ms);
        let since_ms = since_ms.filter(|since| awake_ms.is_none_or(|now| *since <= now)).or(awake_ms);
        let (waits, spent_ms) = before.as_ref().map_or((0, 0), |before| (before.waits, before.spent_ms));
        // A CLI's own next try does not make a limit end sooner than the API said.
        let kept = before.filter(|before| before.told && !told && before.until > until);
        let (until, told) = kept.map_or((until, told), |before| (before.until, true));
        self.outage = Some(Outage { trouble, status, until, told, tried: None, waits, spent_ms, since_ms });
    }

    /// For the place it waits for now, or waited for last.
    pub fn ticket(&self) -> Ticket {
        Ticket { epoch: self.epoch, reopened: self.reopened }
    }

    /// A further turn of a dispatch that had ended: it waits for the pool again.
    fn reopen(&mut self) {
        self.reopened += 1;
        if self.session_id.is_some() || self.created.transcripts {
            // What the end cut short is not taken up again unasked: who speaks now knows of it.
            self.supersede_taken();
            for prompt in &mut self.prompts {
                let ours = matches!(prompt.kind, PromptKind::Repair | PromptKind::Continue);
                if ours && matches!(prompt.state, PromptState::Queued | PromptState::Sent) {
                    prompt.state = PromptState::Superseded;
                }
            }
        }
        for prompt in self.prompts.iter_mut().filter(|p| p.state == PromptState::Doubtful) {
            prompt.state = PromptState::Superseded;
        }
        self.session_lost = None;
        self.doubt = None;
        self.phase = Phase::Queued;
        self.stop = None;
        self.restarts = 0;
        self.start_failures = 0;
        self.result = None;
        self.result_faults.clear();
        self.repair_used = false;
        self.fetched = None;
        self.reason = None;
        self.outage = None;
        self.spoken_to = false;
    }

    fn probed(&mut self, key: &str, standing: Standing, session: Session, id: Option<&String>, detail: &str) {
        let had_history = self.has_history();
        self.set_prompt(
            key,
            match standing {
                Standing::NotTaken => PromptState::Queued,
                Standing::Unknown => PromptState::Doubtful,
                _ => PromptState::Taken,
            },
        );
        if let Some(prompt) = self.prompts.iter_mut().find(|p| p.key == key) {
            prompt.standing = Some(standing);
        }
        if standing == Standing::Unknown {
            // Nothing is known, so nothing is changed: the session may well be there.
            self.doubt = Some(detail.to_string());
            return;
        }
        match session {
            Session::Held => self.session_id = id.cloned().or(self.session_id.take()),
            Session::Empty | Session::Lost if had_history => self.lose_session(),
            Session::Empty => {
                self.session_id = None;
                self.sessions_spoiled += 1;
            }
            Session::Missing | Session::Lost => self.session_id = None,
            Session::Unread => {}
        }
    }

    /// The next session begins anew, knowing nothing.
    fn lose_session(&mut self) {
        if let Some(id) = self.session_id.take() {
            self.session_lost = Some(id);
            self.sessions_spoiled += 1;
        }
    }

    fn supersede_taken(&mut self) {
        for prompt in self.prompts.iter_mut().filter(|p| p.state == PromptState::Taken) {
            prompt.state = PromptState::Superseded;
        }
        if let Phase::Working { turn, .. } = &mut self.phase
            && matches!(turn, Turn::Running { .. })
        {
            *turn = Turn::None;
        }
    }

    fn set_prompt(&mut self, key: &str, state: PromptState) {
        if let Some(prompt) = self.prompts.iter_mut().find(|p| p.key == key) {
            prompt.state = state;
            prompt.standing = None;
        }
    }

    fn count(&mut self, event: &Event) {
        let Event::UsageRecorded { model, input, output, cache_read, cache_write, cost_usd, cumulative, total_usd } =
            event
        else {
            return;
        };
        self.spend.told_usd = total_usd.or(self.spend.told_usd);
        let mut books = vec![self.spend.per_model.entry(model.clone()).or_default()];
        if *cumulative {
            books.push(self.spend.process.entry(model.clone()).or_default());
            books.push(self.spend.session.entry(model.clone()).or_default());
        }
        for book in books {
            book.model.clone_from(model);
            book.input = book.input.saturating_add(*input);
            book.output = book.output.saturating_add(*output);
            book.cache_read = book.cache_read.saturating_add(*cache_read);
            book.cache_write = book.cache_write.saturating_add(*cache_write);
            book.cost_usd += cost_usd;
        }
        self.spend.cost_usd += cost_usd;
        self.spend.input = self.spend.input.saturating_add(*input);
        self.spend.output = self.spend.output.saturating_add(*output);
        self.spend.cache_read = self.spend.cache_read.saturating_add(*cache_read);
        self.spend.cache_write = self.spend.cache_write.saturating_add(*cache_write);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use crate::event::{Created, Limits};

    /// A dispatch of no particular kind, for tests.
    pub fn created() -> Created {
        let limits =
            Limits { budget_usd: None, max_turns: None, timeout_s: None, inactivity_timeout_s: 300, max_restarts: 3 };
        let text = |text: &str| text.to_string();
        Created {
            role: text("developer"),
            category: text("coding"),
            project: text("/p"),
            feature: text("f"),
            backend: text("rehearsal"),
            model: None,
            model_source: None,
            limits,
            worktree: None,
            branch: None,
            journal: text("/p/j.md"),
            parent: None,
            by: text("operator"),
            multi_turn: true,
            resumable: true,
            wants_result: true,
            calls: None,
            trace: None,
            ask_on_crash: false,
            permissions: crate::permission::Policy::default(),
            can_ask: true,
            transcripts: false,
            folds: false,
            api: crate::api_error::Terms::default(),
            fingerprint: text("x"),
        }
    }
}
