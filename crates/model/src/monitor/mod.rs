//! Monitors that judge what an agent does. They find an agent that repeats itself (`loops`), works
//! on something else (`drift`), makes no progress between compactions (`spiral`) or spends too fast
//! (`budget`). [`crate::monitor::stall`] judges silence, and [`healing`] decides what follows a
//! dispatch's trouble by itself.
//!
//! ```text
//!   AgentEvent ── observe ──▶ Seen ── Monitors::hear ──▶ Finding { monitor, action, reason }
//! ```
//!
//! [`observe`] reduces an event to hashes and short texts, so that the memory of a monitor does not
//! grow with the agent's output. A finding is reported once. It is reported again only if it has
//! become worse, or after the agent had recovered. [`replay`] runs recorded streams through the
//! same functions.

pub mod healing;
pub mod stall;

mod budget;
mod drift;
mod fingerprint;
mod loops;
pub mod replay;
mod shell;
mod spiral;
#[cfg(test)]
mod tests;

use crate::agent::event::{AgentEvent, cut, target};
use crate::agent::permission::{EDITING, READING};
use crate::config::span::Span;
use loops::{Done, Loops};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

/// The most calls without a result, and the most subagents, that are tracked. The agent chooses
/// their ids, so without a limit it could fill the daemon's memory.
const MOST_OPEN: usize = 1000;
const MOST_SUBAGENTS: usize = 32;
/// Longer paths are not judged.
const LONGEST_PATH: usize = 1000;
/// After this many novel calls in a row without a loop finding, a new loop is reported again.
const CALM: u32 = 8;

/// A monitor of the behaviour of agents (docs/monitors.md).
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Monitor {
    /// No sign of life.
    Stall,
    /// Actions are repeated without progress.
    Loop,
    /// Files outside the scope are edited.
    Drift,
    /// Little progress between compactions of the context.
    Spiral,
    /// Money is spent much faster than before, or the budget is almost used up.
    Budget,
    /// Trouble with the model API.
    Api,
    /// A monitor that only a newer version knows.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The reaction to a finding. The variants are ordered by severity.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The finding is recorded as an event.
    Note,
    /// The user is warned.
    Warn,
    /// The agent is terminated.
    Stop,
    /// An action that only a newer version knows.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Stop => "stop",
            Self::Unknown => "unknown",
        })
    }
}

impl fmt::Display for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stall => "stall",
            Self::Loop => "loop",
            Self::Drift => "drift",
            Self::Spiral => "spiral",
            Self::Budget => "budget",
            Self::Api => "api",
            Self::Unknown => "unknown",
        })
    }
}

/// The strongest reaction to a finding of a monitor.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// The monitor is off.
    #[default]
    Ignore,
    /// Record the finding.
    Note,
    /// Record the finding and warn.
    Warn,
    /// Record and warn, and stop the agent if it continues; its session stays resumable.
    Stop,
}

/// The reaction to each monitor. A dispatch of a version without this record ignores all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Responses {
    /// The agent repeats actions without progress.
    #[serde(rename = "loop")]
    pub loops: Response,
    /// The agent edits files outside its scope or its directory.
    pub drift: Response,
    /// The agent makes little progress between compactions of its context.
    pub spiral: Response,
    /// The agent spends money much faster than before. The budget itself is `budget_usd`.
    pub budget: Response,
}

impl Responses {
    /// Limits the action of a finding to the configured response; `None` if the response is
    /// `ignore`.
    fn to(self, finding: Finding) -> Option<Finding> {
        let most = match finding.monitor {
            Monitor::Loop => self.loops,
            Monitor::Drift => self.drift,
            Monitor::Spiral => self.spiral,
            // The configuration cannot weaken the stop at the budget limit.
            Monitor::Budget if finding.action == Action::Stop => Response::Stop,
            Monitor::Budget => self.budget,
            Monitor::Stall | Monitor::Api | Monitor::Unknown => Response::Stop,
        };
        let most = match most {
            Response::Ignore => return None,
            Response::Note => Action::Note,
            Response::Warn => Action::Warn,
            Response::Stop => Action::Stop,
        };
        Some(Finding { action: finding.action.min(most), ..finding })
    }
}

/// The configured responses and the scope of one agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "MonitorTerms")]
pub struct Terms {
    /// The strongest reaction to each monitor.
    pub responses: Responses,
    /// Globs of files that the agent may edit, relative to its directory. Empty means the whole
    /// directory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<String>,
}

impl Terms {
    /// Returns whether at least one monitor has a response other than `ignore`.
    pub fn is_on(&self) -> bool {
        self.responses != Responses::default()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    pub monitor: Monitor,
    pub action: Action,
    /// One line for people.
    pub reason: String,
}

/// Returns the warning about a tool call that shows no sign of life. The tool is not terminated.
pub fn hung(quiet: Duration) -> Finding {
    let reason = format!("a tool has been running without output or cpu use for {}", Span(quiet));
    Finding { monitor: Monitor::Stall, action: Action::Warn, reason }
}

/// The effect of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reads state that only others change, such as files.
    Read,
    /// Changes the agent's own todo list, which is no progress by itself.
    Plan,
    Edit,
    Run,
    /// Asks another party, which may answer differently each time.
    Ask,
}

/// A tool call, reduced to the hashes by which a repetition is recognized.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub kind: Kind,
    /// Hash of the tool name and its whole input.
    pub whole: u64,
    /// Hash of the tool name and its target.
    pub key: u64,
    /// The tool and its target, for people.
    pub what: String,
    /// The files that the call is known to write.
    pub paths: Vec<String>,
    /// The input does not say what the call does (Codex gives only the file name of an edit). Such
    /// a call never counts as a repetition of another.
    pub opaque: bool,
}

/// An event, reduced to what the monitors need.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen {
    /// A prompt with a text of this hash was sent to the agent.
    Prompted(u64),
    At(String),
    Called {
        by: String,
        id: String,
        call: Call,
    },
    Returned {
        by: String,
        id: String,
        ok: bool,
        text: u64,
        news: u64,
        fault: Option<u64>,
        looks_failed: bool,
        nothing: bool,
    },
    /// A call that never ran or was cancelled because another call of the same message failed.
    GivenUp {
        by: String,
        id: String,
    },
    Said {
        print: u64,
        text: String,
    },
    Cost(f64),
    /// The cost of the whole session, in US dollars.
    Total(f64),
    TurnFailed,
    Compacted {
        before: u64,
        after: u64,
    },
}

/// Reduces an event for [`Monitors::hear`]. Returns `None` for events that no monitor uses.
pub fn observe(event: &AgentEvent) -> Option<Seen> {
    observe_by(event, "")
}

fn observe_by(event: &AgentEvent, by: &str) -> Option<Seen> {
    let by_ = || cut(by, 200);
    Some(match event {
        // A receipt that names no prompt is no message of anybody: opencode prints one with each
        // answer of the model, and codex with each process, which has monitors of its own.
        AgentEvent::Prompt { key: None, text, .. } if text.is_empty() => return None,
        AgentEvent::Prompt { repeated: false, text, .. } if by.is_empty() => {
            Seen::Prompted(fingerprint::text(text))
        }
        AgentEvent::Session { cwd: Some(cwd), .. } if by.is_empty() => {
            Seen::At(cut(cwd, LONGEST_PATH))
        }
        AgentEvent::ToolCall { id, name, input } => {
            let kind = kind(name);
            let target = target(name, input);
            let call = Call {
                kind,
                whole: fingerprint::of((name, input.to_string())),
                key: fingerprint::of((
                    name,
                    subject(name, input).unwrap_or_else(|| input.to_string()),
                )),
                what: format!("{} {}", cut(name, 100), cut(&target, 100)).trim_end().to_string(),
                paths: match kind {
                    Kind::Edit => path(input).into_iter().collect(),
                    Kind::Run => input
                        .get("command")
                        .and_then(Value::as_str)
                        .map(shell::written)
                        .unwrap_or_default(),
                    Kind::Read | Kind::Plan | Kind::Ask => vec![],
                },
                opaque: is_opaque(kind, input),
            };
            Seen::Called { by: by_(), id: cut(id, 200), call }
        }
        AgentEvent::ToolResult { id, ok: false, text, .. } if is_given_up(text) => {
            Seen::GivenUp { by: by_(), id: cut(id, 200) }
        }
        AgentEvent::ToolResult { id, ok, text, exit_code } => Seen::Returned {
            by: by_(),
            id: cut(id, 200),
            ok: *ok && exit_code.is_none_or(|code| code == 0),
            text: fingerprint::text(text),
            news: fingerprint::news(text),
            fault: fingerprint::fault(text),
            looks_failed: fingerprint::looks_failed(text),
            nothing: fingerprint::is_nothing(text)
                || text.trim().is_empty() && *exit_code == Some(1),
        },
        AgentEvent::Text { text, .. } if by.is_empty() && !text.trim().is_empty() => Seen::Said {
            print: fingerprint::text(text),
            text: cut(text.lines().next().unwrap_or_default(), 100),
        },
        AgentEvent::Usage { total_usd: Some(total), .. } => Seen::Total(*total),
        AgentEvent::Usage { cost_usd, .. } => Seen::Cost(*cost_usd),
        AgentEvent::Result(result) if !result.ok => Seen::TurnFailed,
        AgentEvent::Result(result) => Seen::Total(result.cost_usd?),
        AgentEvent::Compaction { before, after } if by.is_empty() => {
            Seen::Compacted { before: *before, after: *after }
        }
        AgentEvent::Subagent { parent, event } => observe_by(event, parent)?,
        _ => return None,
    })
}

/// Returns whether a failure was caused by another call. Claude Code cancels the parallel calls of
/// a message when one of them fails. Only that one counts; otherwise one message with many calls
/// would look like many failures.
fn is_given_up(text: &str) -> bool {
    const SIBLING: &str = "Sibling tool call errored";
    const NOT_RUN: [&str; 3] = [SIBLING, "Cancelled: ", "Error: Streaming fallback"];
    // ACP agents wrap the text of a failure in a code block.
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '`');
    match text.strip_prefix("<tool_use_error>") {
        Some(error) => NOT_RUN.iter().any(|known| error.trim_start().starts_with(known)),
        None => text == SIBLING,
    }
}

fn kind(tool: &str) -> Kind {
    match tool {
        tool if EDITING.contains(&tool) => Kind::Edit,
        tool if READING.contains(&tool) => Kind::Read,
        "TodoWrite" | "TodoRead" => Kind::Plan,
        "Bash" | "Task" => Kind::Run,
        _ => Kind::Ask,
    }
}

/// Returns the normalized target of a call: its command or its path.
fn subject(tool: &str, input: &Value) -> Option<String> {
    let key = match tool {
        "Bash" => "command",
        "Edit" | "Write" | "MultiEdit" => "file_path",
        "NotebookEdit" => "notebook_path",
        _ => return None,
    };
    let text = input.get(key)?.as_str()?;
    let text = if tool == "Bash" { shell::essence(text) } else { text };
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns whether the input of a call does not say what the call does.
fn is_opaque(kind: Kind, input: &Value) -> bool {
    const TELLING: [&str; 7] =
        ["new_string", "old_string", "content", "new_source", "edits", "patch", "diff"];
    let Some(input) = input.as_object().filter(|input| !input.is_empty()) else { return true };
    kind == Kind::Edit && !TELLING.iter().any(|key| input.contains_key(*key))
}

fn path(input: &Value) -> Option<String> {
    ["file_path", "notebook_path", "path"]
        .iter()
        .find_map(|key| Some(cut(input.get(*key)?.as_str()?, LONGEST_PATH)))
}

/// All monitors of one agent, except the stall monitor.
#[derive(Debug)]
pub struct Monitors {
    /// Pending calls and their start times, by the caller (empty for the agent itself) and the
    /// call's id.
    open: HashMap<(String, String), (Call, f64)>,
    loops: BTreeMap<String, Loops>,
    drift: drift::Drift,
    spiral: spiral::Spiral,
    spend: budget::Spend,
    responses: Responses,
    told: BTreeMap<Monitor, Action>,
    calm: u32,
}

impl Monitors {
    pub fn new(terms: &Terms, budget_usd: Option<f64>) -> Self {
        Self {
            open: HashMap::new(),
            loops: BTreeMap::new(),
            drift: drift::Drift::new(&terms.scope),
            spiral: spiral::Spiral::default(),
            spend: budget::Spend::new(budget_usd),
            responses: terms.responses,
            told: BTreeMap::new(),
            calm: 0,
        }
    }

    /// Processes an observation made at `t`, in seconds of any monotonic clock.
    pub fn hear(&mut self, seen: Seen, t: f64) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut find = |monitor, what: Option<(Action, String)>| {
            found.extend(what.map(|what| (monitor, what)))
        };
        match seen {
            Seen::Prompted(print) => self.begin_anew(print),
            Seen::At(cwd) => self.drift.at(&cwd),
            Seen::Called { by, id, call } => {
                if self.open.len() < MOST_OPEN {
                    self.open.insert((by, id), (call, t));
                }
            }
            Seen::Returned { by, id, ok, text, news, fault, looks_failed, nothing } => {
                let Some((call, began)) = self.open.remove(&(by.clone(), id)) else {
                    return vec![];
                };
                let (kind, failed) = (call.kind, !ok || (call.kind == Kind::Run && looks_failed));
                if !failed {
                    call.paths
                        .iter()
                        .for_each(|path| find(Monitor::Drift, self.drift.edited(path)));
                }
                let nothing = nothing && kind != Kind::Edit;
                let done =
                    Done { call, returned: text, news, fault, failed, nothing, began, ended: t };
                if self.loops.len() >= MOST_SUBAGENTS && !self.loops.contains_key(&by) {
                    self.loops.retain(|by, _| by.is_empty());
                }
                let (novel, circle) = self.loops.entry(by.clone()).or_default().done(done);
                if by.is_empty() {
                    self.spiral.done(kind, novel);
                }
                self.calm = if circle.is_none() && novel { self.calm + 1 } else { 0 };
                if self.calm >= CALM {
                    self.told.remove(&Monitor::Loop);
                }
                find(Monitor::Loop, circle);
            }
            Seen::GivenUp { by, id } => drop(self.open.remove(&(by, id))),
            Seen::Said { print, text } => {
                find(
                    Monitor::Loop,
                    self.loops.entry(String::new()).or_default().said(print, &text),
                );
            }
            Seen::Cost(usd) => find(Monitor::Budget, self.spend.cost(usd, t)),
            Seen::TurnFailed => self.loops.values_mut().for_each(Loops::failed),
            Seen::Total(usd) => find(Monitor::Budget, self.spend.total(usd, t)),
            Seen::Compacted { before, after } => {
                // After a compaction the agent may read known files again.
                self.loops.values_mut().for_each(Loops::forgotten);
                find(Monitor::Spiral, self.spiral.compacted(before, after));
            }
        }
        found
            .into_iter()
            .filter_map(|(monitor, (action, reason))| self.tell(monitor, action, reason))
            .collect()
    }

    fn begin_anew(&mut self, prompt: u64) {
        self.loops.values_mut().for_each(|loops| loops.begin_anew(prompt));
        self.drift.begin_anew();
        self.spiral.begin_anew();
        self.told.retain(|monitor, _| *monitor == Monitor::Budget);
    }

    /// Returns a finding only if it is worse than the last reported one, limited to the configured
    /// response.
    fn tell(&mut self, monitor: Monitor, action: Action, reason: String) -> Option<Finding> {
        let Finding { action, reason, .. } =
            self.responses.to(Finding { monitor, action, reason })?;
        if self.told.get(&monitor).is_some_and(|told| *told >= action) {
            return None;
        }
        self.told.insert(monitor, action);
        Some(Finding { monitor, action, reason })
    }
}
