//! Is an agent at work, or does it hang? Judged on evidence, and on silence only where there is
//! none.
//!
//! These signs of life keep an agent from counting as stalled, however long it is silent
//! (docs/design/observability.md):
//!
//! | sign of life | known from | until |
//! |---|---|---|
//! | it said something | any output | at once |
//! | a tool runs | `tool_call` | its `tool_result`, or the turn's end |
//! | somebody is asked | `permission`, `question` | the answer, or the turn's end |
//! | the model API is waited for | `api_retry`, `rate_limit` | the time that was told |
//! | we don't listen | back-pressure of ours | it is over |
//! | its processes are busy | cpu of agent and descendants between two looks | the next look |
//!
//! From the last of these on it is quiet, and stalled when it has been quiet for the inactivity
//! timeout of its category. Whose turn it was to speak is known where prompts have receipts: then
//! the verdict says that it was the model API that did not answer.
//!
//! A CLI that tries the API again and again is alive and gets nowhere: that is bounded as well,
//! from the first try after the last answer, by what [`crate::admission::api_error`] allows for
//! such trouble.
//!
//! The time is awake time; time in which nobody looked is no silence. What was pending when a
//! daemon began to look (it may have been restarted in the middle of a turn) it knows from the
//! events ([`Known`]); where they do not tell, ten times the timeout is waited until the agent is
//! heard.

use crate::admission::api_error::{self, Terms, Trouble};
use crate::agent::event::{AgentEvent, cut};
use crate::config::BackendChoice;
use crate::dispatch::{Dispatch, PromptState};
use jiff::Timestamp;
use std::collections::BTreeSet;
use std::time::Duration;

/// Less than this share of one cpu is what a program uses that only waits: timers, a heartbeat.
const BUSY_PERCENT: u64 = 2;
/// For an agent that has not been heard since somebody began to look.
const UNHEARD_PATIENCE: u64 = 10;
/// A tool that neither uses the cpu nor lets anything be heard for so long is told of. It is left
/// alone: it may wait for something far away.
const TOOL_PATIENCE: Duration = Duration::from_secs(90 * 60);
/// Ids of calls and questions are the agent's: it may not fill our memory with them.
const MOST_PENDING: usize = 1000;

/// What an agent's event tells about what it waits for.
#[derive(Debug, Clone, PartialEq)]
pub enum Mark {
    ToolBegan(String),
    ToolEnded(String),
    Asked(String),
    Answered(String),
    /// The model API made trouble, and is not asked again for so long.
    Api(Trouble, Duration),
    /// The model is to speak: it has a prompt.
    Prompted,
    /// The model has spoken.
    Spoke,
    TurnEnded,
}

/// The mark an event leaves; none for one that tells no more than that the agent lives. `unix_now`,
/// in seconds, is for limits whose end is told as a time.
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
            // `max` prefers what is a number.
            Mark::Api(Trouble::RateLimit, api_error::wait(resets_in_s.max(until)))
        }
        // Claude tells of its session as a turn begins, and echoes the prompt when the model has
        // answered.
        AgentEvent::Session { .. } | AgentEvent::Prompt { .. } => Mark::Prompted,
        AgentEvent::Text { .. } | AgentEvent::Thinking { .. } | AgentEvent::Usage { .. } => {
            Mark::Spoke
        }
        AgentEvent::Result(_) => Mark::TurnEnded,
        // It is the tool that runs it that is at work; of its own tools the agent is not told.
        AgentEvent::Subagent { event, .. } => match **event {
            AgentEvent::ToolCall { .. } | AgentEvent::ToolResult { .. } => {
                return mark(event, unix_now);
            }
            _ => return None,
        },
        _ => return None,
    })
}

/// As [`mark`], of an agent that says everything in pieces: a piece is not the whole, so the model
/// owes the rest until a tool is called or the turn ends.
pub fn mark_of_piece(event: &AgentEvent, unix_now: f64) -> Option<Mark> {
    mark(event, unix_now).filter(|mark| *mark != Mark::Spoke)
}

/// The marks of an answer that was given to the agent.
pub fn answered(id: &str) -> Vec<Mark> {
    vec![Mark::Answered(cut(id, 200))]
}

/// What the events tell of a turn that somebody else watched before.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Known {
    pub tools: Vec<String>,
    pub asked: Vec<String>,
    /// It is the model's turn.
    pub model_owes: bool,
    /// When the model API's trouble began, on the clock of awake time, and how long it is not asked
    /// again.
    pub outage: Option<(Option<Duration>, Duration)>,
}

impl Known {
    pub fn of(d: &Dispatch, now: Timestamp) -> Self {
        let outage = d.outage.as_ref().map(|outage| {
            let left = outage.until.duration_since(now).try_into().unwrap_or(Duration::ZERO);
            (outage.since_ms.map(Duration::from_millis), left)
        });
        // An agent that is spoken to by calls gives no receipt: what it was sent, it has.
        let sent = d.created.calls.is_some()
            && d.prompts.iter().any(|prompt| prompt.state == PromptState::Sent);
        // A plain command that has a model tells of it.
        let owes = d.model_owes && d.created.backend != BackendChoice::Subprocess.as_str();
        Self {
            tools: d.calls.clone(),
            asked: d.asks.open().map(|pending| cut(&pending.id, 200)).collect(),
            model_owes: owes || sent,
            outage,
        }
    }
}

/// What is seen of an agent at one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Look {
    /// Cpu time its processes have used so far, those that ended included; `None` if it cannot be
    /// told.
    pub cpu: Option<Duration>,
    /// We hold its output back.
    pub blocked_by_us: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// There is a sign of life.
    Alive(Sign),
    /// None, for so long; not yet for long enough.
    Quiet(Duration),
    Stalled(Duration),
    /// A tool runs and shows no sign of life for so long: told once, and it is left alone.
    ToolHangs(Duration),
    /// The agent tries, and the model API has made nothing but this trouble for too long.
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

/// One turn under watch. All times are readings of one clock of awake time.
#[derive(Debug, Clone)]
pub struct Watch {
    timeout: Duration,
    /// Everything before it that could be known is known.
    heard: bool,
    news: bool,
    quiet_since: Duration,
    looked: Duration,
    cpu: Option<Duration>,
    /// Of the newest look: cpu used, in so much time.
    used: (Duration, Duration),
    tools: BTreeSet<String>,
    asked: BTreeSet<String>,
    /// Since when no tool that runs has shown a sign of life; none once that was told.
    tool_quiet: Option<Duration>,
    api_wait: Duration,
    /// What the API does, and since when it has done nothing better.
    outage: Option<(Trouble, Duration)>,
    /// Since when it did nothing better before this watch began: it counts when there is more
    /// trouble before an answer.
    outage_before: Option<Duration>,
    terms: Terms,
    /// It is the model's turn: it has a prompt, or the results of its tools.
    model_owes: bool,
}

impl Watch {
    /// `from_the_start`: its turn only begins, so nothing can be pending.
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
            asked: BTreeSet::new(),
            tool_quiet: Some(now),
            api_wait: Duration::ZERO,
        }
    }

    /// Goes on with what is known. The trouble of the model API goes on also where the turn is new:
    /// the process before it may have tried.
    #[must_use]
    pub fn knowing(mut self, known: Known, now: Duration) -> Self {
        self.model_owes = known.model_owes;
        if let Some((since, left)) = known.outage {
            // One that began after now was timed by a clock that has begun anew.
            self.outage_before = since.filter(|since| *since <= now);
            self.api_wait = now.saturating_add(left);
        }
        if !self.heard {
            self.heard = true;
            self.tools.extend(known.tools.into_iter().take(MOST_PENDING));
            self.asked.extend(known.asked.into_iter().take(MOST_PENDING));
        }
        self
    }

    /// How long to wait from one look to the next.
    pub fn interval(&self) -> Duration {
        (self.timeout / 10).clamp(Duration::from_secs(1), Duration::from_secs(30))
    }

    /// The agent has put something out, with these marks in it.
    pub fn hear(&mut self, marks: &[Mark], now: Duration) {
        self.heard = true;
        self.news = true;
        (self.quiet_since, self.tool_quiet) = (now, Some(now));
        for mark in marks {
            if matches!(mark, Mark::Spoke | Mark::ToolBegan(_) | Mark::TurnEnded) {
                (self.outage, self.outage_before, self.model_owes) = (None, None, false);
            }
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

    /// Looks at the agent and judges. To be called every [`interval`](Self::interval).
    pub fn look(&mut self, look: Look, now: Duration) -> Verdict {
        let passed = now.saturating_sub(self.looked);
        self.looked = now;
        // The daemon itself may have been stopped: what was said meanwhile is still to be read.
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
    /// Where a sign of life was looked for when there was none, for people.
    pub fn evidence(&self) -> String {
        let (used, passed) = self.used;
        let heard = if self.heard { "no output" } else { "no output since the daemon started" };
        let heard = if self.model_owes {
            format!("the model API did not answer; {heard}")
        } else {
            heard.to_string()
        };
        let cpu = format!("{} ms of cpu in the last {} s", used.as_millis(), passed.as_secs());
        format!("{heard}, no tool call running, nobody asked, {cpu}")
    }
}

/// Between two looks. The sum falls when a process ends unseen; then nothing is known of the time.
fn used(before: Option<Duration>, now: Option<Duration>) -> Duration {
    match (before, now) {
        (Some(before), Some(now)) => now.saturating_sub(before),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests;
