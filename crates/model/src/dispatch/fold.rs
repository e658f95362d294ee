//! The effect of each event on the state of a dispatch.

use crate::admission::api_error::{self, Outage, Trouble};
use crate::agent::acp_handshake::{CallFailure, Opening};
use crate::agent::event::TurnError;
use crate::agent::transcript::{Session, Standing};
use crate::dispatch::{Dispatch, Exit, Phase, Prompt, PromptState, SessionMode, Stop, Turn};
use crate::event::{Entry, Event, ExitCause, FinalState, ModeStep, Position, PromptKind, Record};
use crate::monitor::Action;
use crate::{daemon_events, spec_run_events, task_list_events};
use jiff::Timestamp;

fn after_mode(model_by: Option<String>) -> Opening {
    model_by.map_or(Opening::Ready, |by| Opening::Model { by })
}

impl Dispatch {
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
                // The agent is being terminated for its silence, a monitor or the API, and somebody
                // still wants it.
                let silenced = matches!(
                    self.stop,
                    Some(Stop::Stall { .. } | Stop::Api { .. } | Stop::Monitor { .. })
                );
                self.spoken_to |= silenced && *kind == PromptKind::Send;
                match (kind, &mut self.phase) {
                    (PromptKind::Continue, _) => self.supersede_taken(),
                    (
                        PromptKind::Repair,
                        Phase::Working { turn: Turn::Done { leaving, .. }, .. },
                    ) => {
                        *leaving = !self.created.multi_turn;
                    }
                    (PromptKind::Send, Phase::Closing { spoken_to, .. }) => *spoken_to = true,
                    _ => {}
                }
                let state = match *kind == PromptKind::Send && self.is_being_killed() {
                    true => PromptState::Withdrawn,
                    false => PromptState::Queued,
                };
                let prompt =
                    Prompt { key: key.clone(), kind: *kind, state, written: false, standing: None };
                // A repair or a continuation goes before the prompts that people queued meanwhile.
                let urgent = matches!(kind, PromptKind::Repair | PromptKind::Continue);
                let place = if urgent {
                    self.prompts.iter().position(|p| p.state == PromptState::Queued)
                } else {
                    None
                };
                self.prompts.insert(place.unwrap_or(self.prompts.len()), prompt);
                if self.is_finished() && self.can_go_on() {
                    self.reopen();
                }
            }
            Event::AttemptStarted { attempt, epoch, resume } => {
                self.attempts = *attempt;
                self.epoch = *epoch;
                self.rebooted = false;
                self.first_started.get_or_insert(ts);
                self.spend.process.clear();
                self.spend.calls_usd = 0.0;
                self.spend.told_usd = None;
                if resume.is_none() {
                    self.spend.session.clear();
                }
                self.interrupt = None;
                self.session_lost = None;
                self.notices.clear();
                // This process is started with the requested model.
                self.model_change = None;
                self.opening = Opening::Ready;
                self.mode = SessionMode::default();
                self.call_failed = None;
                self.blocked_by_us = false;
                // There is more to do, so the earlier result does not count.
                self.result = None;
                self.own_result = false;
                for prompt in &mut self.prompts {
                    // A prompt that was sent without a receipt is sent again under its key, which
                    // the CLI knows. In a fresh session no prompt was ever taken.
                    let again = match prompt.state {
                        PromptState::Sent => true,
                        PromptState::Taken => resume.is_none() && !self.created.transcripts,
                        _ => false,
                    };
                    if again {
                        prompt.state = PromptState::Queued;
                    }
                }
                self.position =
                    self.position.max(Position { epoch: *epoch, ..Position::default() });
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
                    self.phase = Phase::Working {
                        attempt,
                        epoch,
                        pid: *pid,
                        shim_pid: *shim_pid,
                        turn: Turn::None,
                    };
                }
            }
            Event::WorktreeCreated { base, .. } => {
                self.cloned = true;
                self.base = Some(base.clone()).filter(|base| !base.is_empty());
            }
            Event::SessionStarted { session_id, model } => {
                self.session_id = Some(session_id.clone()).filter(|id| !id.is_empty());
                self.session_model = model.clone().or(self.session_model.take());
            }
            Event::AgentGreeted { agent, load } => {
                self.agent.clone_from(agent);
                self.opening = Opening::Session { load: load.clone() };
            }
            Event::SessionOpened { set_model_by, model_by, set_mode, .. } => {
                self.model_by.clone_from(model_by);
                self.opening = match set_mode.as_deref().cloned() {
                    Some(ModeStep { mode, by, otherwise }) => {
                        Opening::Mode { by, mode, otherwise, model_by: set_model_by.clone() }
                    }
                    None => after_mode(set_model_by.clone()),
                };
            }
            Event::SessionModeKept { mode, by } => {
                self.mode.wanted =
                    Some(ModeStep { mode: mode.clone(), by: by.clone(), otherwise: None });
                self.mode.current = Some(mode.clone());
            }
            Event::SessionModeSet { mode } => {
                self.mode.current = Some(mode.clone());
                self.mode.left_for = None;
                if let Opening::Mode { by, model_by, .. } = &self.opening {
                    self.mode.wanted =
                        Some(ModeStep { mode: mode.clone(), by: by.clone(), otherwise: None });
                    self.opening = after_mode(model_by.clone());
                }
            }
            Event::SessionModeChanged { mode, back } => {
                self.mode.current = Some(mode.clone());
                self.mode.changes += 1;
                if back.is_some() {
                    self.mode.left_for = Some(mode.clone());
                    self.mode.was_set_back = true;
                }
            }
            Event::SessionModeStays { mode, reason } if self.stop.is_none() => {
                let reason = format!(
                    "the agent switched to its mode `{mode}`, which does not ask for permission, \
                     and did not leave it: {reason}"
                );
                self.stop = Some(Stop::Policy { reason });
            }
            Event::SessionModeRefused { next: None, .. } => {
                if let Opening::Mode { model_by, .. } = &self.opening {
                    self.opening = after_mode(model_by.clone());
                }
            }
            Event::SessionModeRefused { next: Some(next), .. } => {
                if let Opening::Mode { mode, otherwise, .. } = &mut self.opening {
                    mode.clone_from(next);
                    *otherwise = None;
                }
            }
            Event::PolicyBroken { tool, target, rule, denied, .. } if self.stop.is_none() => {
                let call = format!("{tool}: {target}");
                let call = call.trim_end_matches([':', ' ']);
                let reason = match denied {
                    true => format!("the agent used a tool although {rule} denied it ({call})"),
                    false => format!(
                        "the agent used a tool without asking, although its policy denies or asks \
                         ({rule}): {call}"
                    ),
                };
                self.stop = Some(Stop::Policy { reason });
            }
            Event::SessionModelSet { model } => {
                self.opening = Opening::Ready;
                self.session_model = Some(model.clone());
            }
            Event::CallFailed { call, reason, for_good } => {
                let failure =
                    CallFailure { call: call.clone(), reason: reason.clone(), for_good: *for_good };
                self.call_failed = Some(failure);
            }
            Event::PromptSent { key } => self.set_prompt(key, PromptState::Sent),
            Event::PromptWritten { key } => {
                let sent = |p: &&mut Prompt| p.key == *key && p.state == PromptState::Sent;
                self.prompts.iter_mut().filter(sent).for_each(|prompt| prompt.written = true);
            }
            Event::PromptFolded { key, .. } => {
                self.warned = None;
                self.set_prompt(key, PromptState::Taken);
            }
            Event::PromptProbed { key, standing, session, session_id, detail, .. } => {
                self.probed(key, *standing, *session, session_id.as_ref(), detail);
            }
            Event::SessionLost { .. } => self.lose_session(),
            Event::TurnStarted { turn, key } => {
                self.warned = None;
                self.turns = *turn;
                self.said = None;
                self.model_owes = true;
                self.set_prompt(key, PromptState::Taken);
                if self.prompt(key).is_some_and(|prompt| prompt.kind == PromptKind::Send) {
                    // A follow-up is a new question: its answer may be repaired as well.
                    self.result = None;
                    self.repair_used = false;
                }
                if let Phase::Working { turn, .. } = &mut self.phase {
                    *turn = Turn::Running { key: key.clone() };
                }
            }
            // The API answered, and the agent works with the answer.
            Event::ToolCalled { parent, .. } => {
                self.outage = None;
                // A subagent's turns are not the agent's.
                if parent.is_none() {
                    self.spoke();
                }
            }
            Event::AgentSaid { text } => {
                self.spoke();
                // Some CLIs report trouble as a message of their agent. So the outage is not over,
                // but the next trouble may be another one.
                if let Some(outage) = &mut self.outage {
                    outage.since_ms = None;
                }
                if self.created.said_is_answer() {
                    self.said = Some(text.clone());
                }
            }
            Event::ToolSubject { call_id, text } => {
                if let Some(call) = self.told.iter_mut().rev().find(|call| call.id == *call_id) {
                    call.target.clone_from(text);
                }
            }
            Event::ToolFinished { call_id } | Event::ToolFailed { call_id, .. } => {
                self.model_owes |= !self.subcalls.contains(call_id);
            }
            Event::UsageRecorded { cumulative, .. } => {
                // This use was reported during the turn, and not for a process that is gone.
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
            Event::ApiWaiting { trouble, status, until, told, waits, spent_ms }
                if !self.is_finished() =>
            {
                let (trouble, status, until) = (*trouble, *status, *until);
                let (told, waits, spent_ms) = (*told, *waits, *spent_ms);
                let since_ms = self.outage.as_ref().and_then(|before| before.since_ms);
                self.outage = Some(Outage {
                    trouble,
                    status,
                    until,
                    told,
                    tried: None,
                    waits,
                    spent_ms,
                    since_ms,
                });
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
                    // A failed turn is continued after a restart.
                    if *ok || interrupted {
                        prompt.state = PromptState::Done;
                        answered = true;
                    }
                }
                if *ok && answered {
                    self.restarts = 0;
                }
                // A process that takes one prompt has nothing to wait for.
                let stays = interrupted || (*ok && self.has_unheard());
                let leaving = !self.created.multi_turn || !stays;
                if let Phase::Working { turn, .. } | Phase::Gone { turn, .. } = &mut self.phase {
                    *turn = Turn::Done {
                        ok: *ok,
                        error: *error,
                        status: *status,
                        text: text.clone(),
                        leaving,
                    };
                }
            }
            Event::ResultReceived { result } => {
                self.result = Some(result.clone());
                self.result_faults.clear();
                self.own_result = true;
            }
            Event::ResultInvalid { faults, repair } => {
                self.result = None;
                self.result_faults = faults.clone();
                self.own_result = true;
                self.repair_used |= repair;
            }
            Event::ResultOvertaken {} => {
                self.result = None;
                self.result_faults.clear();
            }
            Event::ResultQuoted {} => self.own_result = false,
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
                if let Some((_, before)) = self.model_change.take_if(|(pending, _)| pending == key)
                {
                    self.model_wanted = before;
                }
            }
            Event::InterruptRequested { key, .. } => self.interrupt = Some(key.clone()),
            Event::KillRequested { reason, .. } if !self.is_finished() => {
                self.stop = Some(Stop::Kill { reason: reason.clone() });
                self.withdraw_queued();
            }
            Event::LimitReached { limit, detail } if self.stop.is_none() => {
                self.stop = Some(Stop::Limit { limit: *limit, detail: detail.clone() });
            }
            Event::StallDetected { silent_s, evidence } if self.stop.is_none() => {
                self.stop = Some(Stop::Stall { silent_s: *silent_s, evidence: evidence.clone() });
            }
            Event::MonitorSpoke { monitor, action: Action::Warn, reason } => {
                self.warned = Some(format!("{monitor}: {reason}"));
            }
            Event::MonitorSpoke { monitor, action: Action::Stop, reason }
                if self.stop.is_none() =>
            {
                self.stop = Some(Stop::Monitor { monitor: *monitor, reason: reason.clone() });
            }
            Event::StartFailed { epoch, error, permanent } => {
                if let Phase::Starting { attempt, .. } | Phase::Working { attempt, .. } = self.phase
                {
                    self.start_failures += u32::from(!permanent);
                    let cause =
                        if *permanent { ExitCause::CannotStart } else { ExitCause::NeverRan };
                    let exit = Exit { code: None, signal: None, cause, stderr_tail: error.clone() };
                    self.phase = Phase::Gone { attempt, epoch: *epoch, exit, turn: Turn::None };
                }
            }
            Event::AgentExited { epoch, code, signal, cause, stderr_tail, used_ms } => {
                self.lived_ms = *used_ms;
                self.used_ms = self.used_ms.saturating_add(*used_ms);
                let exit = Exit {
                    code: *code,
                    signal: *signal,
                    cause: *cause,
                    stderr_tail: stderr_tail.clone(),
                };
                self.start_failures += u32::from(*cause == ExitCause::NeverRan);
                match &self.phase {
                    Phase::Starting { attempt, .. } => {
                        self.phase = Phase::Gone {
                            attempt: *attempt,
                            epoch: *epoch,
                            exit,
                            turn: Turn::None,
                        };
                    }
                    Phase::Working { attempt, turn, .. } => {
                        self.phase = Phase::Gone {
                            attempt: *attempt,
                            epoch: *epoch,
                            exit,
                            turn: turn.clone(),
                        };
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
                self.phase =
                    Phase::Backoff { attempt: self.attempts, until: *until, delay_ms: *delay_ms };
            }
            Event::DispatchClosing { state, reason } => {
                // A message that arrived while the end was being decided was overlooked.
                let ended_well =
                    matches!(&self.phase, Phase::Gone { turn, .. } if turn.ended_well());
                // A doubtful prompt goes to a person first.
                let overlooked =
                    ended_well && self.stop.is_none() && self.doubt.is_none() && self.has_unheard();
                let spoken_to = overlooked || std::mem::take(&mut self.spoken_to);
                self.phase = Phase::Closing { state: *state, reason: reason.clone(), spoken_to };
                self.reason = Some(reason.clone());
            }
            Event::WorkFetched(work) => {
                self.fetched = Some(work.branch.clone());
                self.work = Some(work.clone());
            }
            Event::FilesRemoved { .. } => self.files_removed = true,
            Event::DispatchFinished { state, reason, result } => {
                let spoken_to = matches!(self.phase, Phase::Closing { spoken_to: true, .. });
                let killed =
                    *state == FinalState::Killed || matches!(self.stop, Some(Stop::Kill { .. }));
                self.phase = Phase::Finished { state: *state };
                self.reason = (!reason.is_empty()).then(|| reason.clone());
                if result.is_some() {
                    self.result = result.clone();
                }
                // Somebody sent a message as the dispatch ended: it becomes a further turn, not a
                // lost prompt.
                if spoken_to && !killed && self.created.resumable {
                    self.reopen();
                }
            }
            // The first stop counts, and a dispatch that has ended is not stopped.
            Event::SessionModeStays { .. }
            | Event::PolicyBroken { .. }
            | Event::ApiWaiting { .. }
            | Event::ApiGivenUp { .. }
            | Event::KillRequested { .. }
            | Event::LimitReached { .. }
            | Event::StallDetected { .. }
            | Event::MonitorSpoke { .. } => {}
            // See `apply_to_calls`.
            Event::PermissionRequested { .. }
            | Event::PermissionAnswered { .. }
            | Event::PermissionClosed { .. } => {}
            // These change no state.
            Event::DispatchCreated { .. }
            | Event::AgentAdopted { .. }
            | Event::SweepFinished { .. }
            | Event::JournalEntry { .. }
            | Event::Compacted { .. }
            | Event::OutputRead { .. } => {}
            daemon_events!() | spec_run_events!() | task_list_events!() | Event::Unknown => {}
        }
    }

    fn spoke(&mut self) {
        if std::mem::take(&mut self.model_owes) {
            self.model_turns = self.model_turns.saturating_add(1);
        }
    }

    /// Records trouble of the model API. The count and the duration of the outage's waits are kept.
    fn trouble(
        &mut self,
        trouble: Trouble,
        status: Option<u16>,
        until: Timestamp,
        told: bool,
        awake_ms: Option<u64>,
    ) {
        let before = self.outage.take();
        // After a reboot the clock begins at zero, so an earlier reading may exceed it.
        let since_ms = before.as_ref().and_then(|before| before.since_ms);
        let since_ms =
            since_ms.filter(|since| awake_ms.is_none_or(|now| *since <= now)).or(awake_ms);
        let (waits, spent_ms) =
            before.as_ref().map_or((0, 0), |before| (before.waits, before.spent_ms));
        // The retry of a CLI does not end a limit sooner than the API said.
        let kept = before.filter(|before| before.told && !told && before.until >= until);
        let (until, told) = kept.map_or((until, told), |before| (before.until, true));
        self.outage =
            Some(Outage { trouble, status, until, told, tried: None, waits, spent_ms, since_ms });
    }

    /// Withdraws the queued follow-ups. A person who kills an agent and sends it a message later
    /// does not want the old queue first.
    fn withdraw_queued(&mut self) {
        for prompt in self.prompts.iter_mut().filter(|prompt| prompt.is_waiting()) {
            prompt.state = PromptState::Withdrawn;
        }
    }

    /// Reopens a dispatch that had ended, for a further turn: it waits for the pool again.
    fn reopen(&mut self) {
        self.reopened += 1;
        if self.session_id.is_some() || self.created.transcripts {
            // The end cut this turn. It is not resumed without a request, and the sender knows of
            // the end.
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

    fn probed(
        &mut self,
        key: &str,
        standing: Standing,
        session: Session,
        id: Option<&String>,
        detail: &str,
    ) {
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
            // Nothing is known, so nothing is changed: the session may still exist.
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

    /// Gives the session up: the next session begins without its history.
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
            prompt.written = false;
            prompt.standing = None;
        }
    }

    fn count(&mut self, event: &Event) {
        let Event::UsageRecorded {
            model,
            input,
            output,
            cache_read,
            cache_write,
            cost_usd,
            cumulative,
            total_usd,
        } = event
        else {
            return;
        };
        self.spend.told_usd = total_usd.or(self.spend.told_usd);
        let mut books = vec![self.spend.per_model.entry(model.clone()).or_default()];
        if *cumulative {
            books.push(self.spend.process.entry(model.clone()).or_default());
            books.push(self.spend.session.entry(model.clone()).or_default());
        } else {
            self.spend.calls_usd += cost_usd;
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
