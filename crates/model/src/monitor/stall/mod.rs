//! Decides whether a silent agent is working or has stalled.
//!
//! An agent does not count as stalled while one of these signs of life holds, however long it is
//! silent (docs/design/observability.md):
//!
//! | sign of life | source | lasts until |
//! |---|---|---|
//! | the agent wrote output | any output | the same moment |
//! | a tool runs | `tool_call` | its `tool_result`, or the turn's end |
//! | the agent waits for an answer | `permission`, `question` | the answer, or the turn's end |
//! | the agent waits for the model API | `api_retry`, `rate_limit` | the end of that wait |
//! | the daemon does not read | the daemon's back-pressure | the daemon reads again |
//! | the processes are busy | CPU time of tools between two polls ([`own_processes`]) | the next poll |
//!
//! After the last sign of life the agent is quiet. It is stalled once it has been quiet for the
//! inactivity timeout of its category. Where prompts have receipts, the watch knows whether the
//! model owed an answer; then the verdict names the model API.
//!
//! A CLI that retries the API is alive but makes no progress. This is bounded too: the limit of
//! [`crate::admission::api_error`] for that kind of trouble counts from the first retry after the
//! last answer.
//!
//! An agent that reports its tools shows no life by its own CPU time: where no tool runs, even a
//! hung one can use some percent of a core ([`counts_own_cpu`]).
//!
//! All times are awake time. Time in which the daemon did not poll does not count as silence. After
//! a restart in the middle of a turn, the daemon takes the pending calls and questions from the
//! events ([`Known`]). Without them it waits ten times the timeout until the agent writes output.

pub mod own_processes;

use crate::admission::api_error::{self, Terms, Trouble};
use crate::agent::event::{AgentEvent, cut};
use crate::config::BackendChoice;
use crate::dispatch::{Dispatch, PromptState};
use jiff::Timestamp;
use std::collections::BTreeSet;
use std::time::Duration;

/// A program that only waits (timers, heartbeats) uses less than this percentage of one CPU.
const BUSY_PERCENT: u64 = 2;
/// Multiplies the timeout of an agent whose pending calls are unknown, until its first output.
const UNHEARD_PATIENCE: u64 = 10;
/// After this time without CPU use or output, a running tool is reported. It is not terminated,
/// because it may wait for something remote.
const TOOL_PATIENCE: Duration = Duration::from_secs(90 * 60);
/// The most pending calls and questions. The agent chooses their ids, so without a limit it could
/// fill the daemon's memory.
const MOST_PENDING: usize = 1000;

/// A change in what the agent waits for, taken from one of its events.
#[derive(Debug, Clone, PartialEq)]
pub enum Mark {
    ToolBegan(String),
    ToolEnded(String),
    Asked(String),
    Answered(String),
    /// The model API reported trouble; the CLI waits this long before it retries.
    Api(Trouble, Duration),
    /// The model has a prompt and owes an answer.
    Prompted,
    /// The model has answered.
    Spoke,
    TurnEnded,
}

/// Returns the mark of an event, or `None` if the event shows only that the agent lives.
/// `unix_now`, in seconds, converts rate limits that end at a date into a duration.
pub fn mark(event: &AgentEvent, unix_now: f64) -> Option<Mark> {
    let id = |id: &str| cut(id, 200);
    Some(match event {
        AgentEvent::ToolCall { id: call, .. } => Mark::ToolBegan(id(call)),
        AgentEvent::ToolResult { id: call, .. } => Mark::ToolEnded(id(call)),
        AgentEvent::Permission { id: asked, .. } | AgentEvent::Question { id: asked, .. } => {
            Mark::Asked(id(asked))
        }
        AgentEvent::PermissionAnswer { id: asked } | AgentEvent::Answer { id: asked, .. } => {
            Mark::Answered(id(asked))
        }
        AgentEvent::ApiRetry { delay_s, status, .. } => {
            Mark::Api(Trouble::of_status(*status), api_error::wait(*delay_s))
        }
        AgentEvent::RateLimit { resets_in_s, resets_at, warning: false } => {
            let until = resets_at.map_or(0.0, |at| at - unix_now);
            // `f64::max` ignores NaN.
            Mark::Api(Trouble::RateLimit, api_error::wait(resets_in_s.max(until)))
        }
        // Claude reports its session when a turn begins, and echoes the prompt when the model has
        // answered.
        AgentEvent::Session { .. } | AgentEvent::Prompt { .. } => Mark::Prompted,
        AgentEvent::Text { .. } | AgentEvent::Thinking { .. } | AgentEvent::Usage { .. } => {
            Mark::Spoke
        }
        AgentEvent::Result(_) => Mark::TurnEnded,
        // Only tool events of a subagent count. Its other output does not change the parent's
        // state: the parent waits for the tool call that runs the subagent.
        AgentEvent::Subagent { event, .. } => match **event {
            AgentEvent::ToolCall { .. } | AgentEvent::ToolResult { .. } => {
                return mark(event, unix_now);
            }
            _ => return None,
        },
        _ => return None,
    })
}

/// Like [`mark`], for an agent that streams its output in pieces. A piece of text is not the whole
/// answer, so the model owes the rest until it calls a tool or the turn ends.
pub fn mark_of_piece(event: &AgentEvent, unix_now: f64) -> Option<Mark> {
    mark(event, unix_now).filter(|mark| *mark != Mark::Spoke)
}

/// Returns the marks for an answer that was sent to the agent.
pub fn answered(id: &str) -> Vec<Mark> {
    vec![Mark::Answered(cut(id, 200))]
}

/// Returns the marks for a denial that was sent to the agent. Some agents never report the end of
/// a call that was denied.
pub fn refused(id: &str, call: Option<&str>) -> Vec<Mark> {
    let ended = call.map(|call| Mark::ToolEnded(cut(call, 200)));
    ended.into_iter().chain(answered(id)).collect()
}

/// The pending state of a turn, reconstructed from the events after a restart of the daemon.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Known {
    pub tools: Vec<String>,
    pub asked: Vec<String>,
    /// The model owes an answer.
    pub model_owes: bool,
    /// When the model API's trouble began, in awake time, and how long the CLI still waits.
    pub outage: Option<(Option<Duration>, Duration)>,
}

impl Known {
    pub fn of(d: &Dispatch, now: Timestamp) -> Self {
        let outage = d.outage.as_ref().map(|outage| {
            let left = outage.until.duration_since(now).try_into().unwrap_or(Duration::ZERO);
            (outage.since_ms.map(Duration::from_millis), left)
        });
        // A backend that is driven by calls sends no receipt, so a sent prompt counts as received.
        let sent = d.created.calls.is_some()
            && d.prompts.iter().any(|prompt| prompt.state == PromptState::Sent);
        // A `subprocess` agent may have no model; one that has a model reports it in its output.
        let owes =
            d.usage.owes_model_turn && d.created.backend != BackendChoice::Subprocess.as_str();
        Self {
            tools: d.process().calls.open.clone(),
            asked: d.asks.open().map(|pending| cut(&pending.id, 200)).collect(),
            model_owes: owes || sent,
            outage,
        }
    }
}

/// Whether the CPU time of the agent's own processes is a sign of life. It is one only for a plain
/// command, which reports no tools.
pub fn counts_own_cpu(backend: &str) -> bool {
    backend == BackendChoice::Subprocess.as_str()
}

/// The inputs of one poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Look {
    /// CPU time so far of the processes that count, including ended ones; `None` if it cannot be
    /// measured.
    pub cpu: Option<Duration>,
    /// The daemon holds the agent's output back.
    pub blocked_by_us: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There is a sign of life.
    Alive(Sign),
    /// No sign of life for this long, which is less than the timeout.
    Quiet(Duration),
    Stalled(Duration),
    /// A tool has shown no sign of life for this long. Returned once; the tool is not terminated.
    ToolHangs(Duration),
    /// The agent retries, but the model API has returned nothing but this trouble for too long.
    ApiDown(Trouble, Duration),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    Output,
    BlockedByUs,
    Asked,
    Tool,
    ApiWait,
    Cpu,
}

/// The stall watch of one turn. All times are readings of one clock of awake time.
#[derive(Debug, Clone)]
pub struct Watch {
    timeout: Duration,
    /// The pending calls and questions are known, from output or from events.
    heard: bool,
    news: bool,
    quiet_since: Duration,
    looked: Duration,
    cpu: Option<Duration>,
    /// CPU time used between the last two polls, and the time between them.
    used: (Duration, Duration),
    tools: BTreeSet<String>,
    /// A tool ran at some time since the last poll.
    tool_ran: bool,
    asked: BTreeSet<String>,
    /// Since when no running tool has shown a sign of life; `None` once that was reported.
    tool_quiet: Option<Duration>,
    api_wait: Duration,
    /// The newest API trouble, and when the uninterrupted trouble began.
    outage: Option<(Trouble, Duration)>,
    /// When the API trouble began, if that was before this watch. It counts only if there is more
    /// trouble before an answer.
    outage_before: Option<Duration>,
    terms: Terms,
    /// The model owes an answer: it has a prompt, or the results of its tools.
    model_owes: bool,
}

impl Watch {
    /// Creates a watch. `from_the_start` means that the turn just begins, so nothing can be
    /// pending.
    pub fn new(timeout: Duration, terms: &Terms, from_the_start: bool, now: Duration) -> Self {
        Self {
            timeout,
            outage: None,
            outage_before: None,
            terms: terms.clone(),
            model_owes: false,
            heard: from_the_start,
            news: false,
            quiet_since: now,
            looked: now,
            cpu: None,
            used: (Duration::ZERO, Duration::ZERO),
            tools: BTreeSet::new(),
            tool_ran: false,
            asked: BTreeSet::new(),
            tool_quiet: Some(now),
            api_wait: Duration::ZERO,
        }
    }

    /// Continues with the state known from events. API trouble continues even in a new turn,
    /// because the CLI process before this one may have retried already.
    #[must_use]
    pub fn knowing(mut self, known: Known, now: Duration) -> Self {
        self.model_owes = known.model_owes;
        if let Some((since, left)) = known.outage {
            // A start in the future was measured before a reboot reset the clock.
            self.outage_before = since.filter(|since| *since <= now);
            self.api_wait = now.saturating_add(left);
        }
        if !self.heard {
            self.heard = true;
            self.tools.extend(known.tools.into_iter().take(MOST_PENDING));
            self.asked.extend(known.asked.into_iter().take(MOST_PENDING));
            self.tool_ran = !self.tools.is_empty();
        }
        self
    }

    /// Returns the time between two polls.
    pub fn interval(&self) -> Duration {
        (self.timeout / 10).clamp(Duration::from_secs(1), Duration::from_secs(30))
    }

    /// Whether a tool runs now.
    pub fn tool_runs(&self) -> bool {
        !self.tools.is_empty()
    }

    /// Whether a tool ran at some time since the last poll.
    pub fn tool_ran(&self) -> bool {
        self.tool_ran
    }

    /// Records output of the agent, with the marks in it.
    pub fn hear(&mut self, marks: &[Mark], now: Duration) {
        self.heard = true;
        self.news = true;
        (self.quiet_since, self.tool_quiet) = (now, Some(now));
        for mark in marks {
            if matches!(mark, Mark::Spoke | Mark::ToolBegan(_) | Mark::TurnEnded) {
                (self.outage, self.outage_before, self.model_owes) = (None, None, false);
            }
            self.tool_ran |= matches!(mark, Mark::ToolBegan(_));
            match mark {
                Mark::ToolBegan(id) if self.tools.len() < MOST_PENDING => {
                    self.tools.insert(id.clone());
                }
                Mark::Asked(id) if self.asked.len() < MOST_PENDING => {
                    self.asked.insert(id.clone());
                }
                Mark::ToolBegan(_) | Mark::Asked(_) => {}
                Mark::ToolEnded(id) => {
                    self.tools.remove(id);
                    self.model_owes = self.tools.is_empty();
                }
                Mark::Answered(id) => drop(self.asked.remove(id)),
                Mark::Api(trouble, wait) => {
                    self.api_wait = self.api_wait.max(now.saturating_add(*wait));
                    let before = self.outage_before.take().unwrap_or(now);
                    let since = self.outage.map_or(before, |(_, since)| since);
                    self.outage = Some((*trouble, since));
                    self.model_owes = true;
                }
                Mark::Prompted => self.model_owes = true,
                Mark::Spoke => {}
                Mark::TurnEnded => {
                    self.tools.clear();
                    self.asked.clear();
                    self.api_wait = Duration::ZERO;
                }
            }
        }
    }

    /// Judges the agent. The caller polls every [`interval`](Self::interval).
    pub fn look(&mut self, look: Look, now: Duration) -> Verdict {
        let passed = now.saturating_sub(self.looked);
        self.looked = now;
        self.tool_ran = self.tool_runs();
        // The daemon itself may have been stopped; output of that time is still unread.
        let unobserved = passed.saturating_sub(self.interval() * 2);
        self.quiet_since = (self.quiet_since + unobserved).max(self.api_wait).min(now);
        let news = std::mem::take(&mut self.news);
        let used = used(self.cpu, look.cpu);
        self.cpu = look.cpu;
        self.used = (used, passed);
        if let Some((trouble, since)) = &mut self.outage {
            *since = (*since + unobserved).min(now);
            let lasted = now.saturating_sub(*since);
            if lasted >= trouble.limit(&self.terms) && !look.blocked_by_us {
                return Verdict::ApiDown(*trouble, lasted);
            }
        }
        let busy = !used.is_zero() && used * 100 >= passed * BUSY_PERCENT as u32;
        if self.tools.is_empty()
            || !self.asked.is_empty()
            || look.blocked_by_us
            || busy
            || look.cpu.is_none()
        {
            self.tool_quiet = Some(now);
        }
        if let Some(since) = &mut self.tool_quiet {
            *since = (*since + unobserved).min(now);
            let quiet = now.saturating_sub(*since);
            if quiet >= TOOL_PATIENCE {
                (self.tool_quiet, self.quiet_since) = (None, now);
                return Verdict::ToolHangs(quiet);
            }
        }
        let sign = if look.blocked_by_us {
            Some(Sign::BlockedByUs)
        } else if !self.asked.is_empty() {
            Some(Sign::Asked)
        } else if !self.tools.is_empty() {
            Some(Sign::Tool)
        } else if now < self.api_wait {
            Some(Sign::ApiWait)
        } else if busy {
            Some(Sign::Cpu)
        } else {
            None
        };
        if let Some(sign) = sign {
            self.quiet_since = now;
            return Verdict::Alive(sign);
        }
        let silent = now.saturating_sub(self.quiet_since);
        let patience =
            if self.heard { self.timeout } else { self.timeout * UNHEARD_PATIENCE as u32 };
        if silent >= patience {
            Verdict::Stalled(silent)
        } else if news {
            Verdict::Alive(Sign::Output)
        } else {
            Verdict::Quiet(silent)
        }
    }
}

impl Watch {
    /// Lists the missing signs of life, for people.
    pub fn evidence(&self) -> String {
        let (used, passed) = self.used;
        let heard = if self.heard { "no output" } else { "no output since the daemon started" };
        let heard = if self.model_owes {
            format!("the model API did not answer; {heard}")
        } else {
            heard.to_string()
        };
        let cpu = format!("{} ms of cpu in the last {} s", used.as_millis(), passed.as_secs());
        format!("{heard}, no tool call running, no open request, {cpu}")
    }
}

/// Returns the CPU time used between two polls, or zero if it is unknown. The sum decreases when a
/// process ends unobserved.
fn used(before: Option<Duration>, now: Option<Duration>) -> Duration {
    match (before, now) {
        (Some(before), Some(now)) => now.saturating_sub(before),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests;
