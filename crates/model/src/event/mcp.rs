//! The MCP tools of agents: which ones an agent has, and the record of a call.

use crate::event::id::DispatchId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Muleteer sets this variable for servers of clients that wait as long as a call takes.
pub const LONG_CALLS: &str = "MULETEER_MCP_LONG_CALLS";

/// The most bytes of a note or of a report of progress.
pub const TEXT_LIMIT: usize = 4096;
/// The most notes and reports of one agent in a minute.
pub const MOST_IN_A_MINUTE: u32 = 30;
/// The most notes and reports of one agent.
pub const MOST_NOTES: u32 = 2000;
/// The most children of one agent that have not ended.
pub const MOST_LIVING_CHILDREN: usize = 16;
/// The most waiting calls of one agent that are recorded.
pub const MOST_WAITS: usize = 16;
/// The most agents that one agent drafts.
pub const MOST_DRAFTS: usize = 256;

/// A call of an MCP tool that left something behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct McpCalled {
    /// The name of the tool.
    pub tool: String,
    /// The text of a note or a report; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// How much of the work is done, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// The dispatch that the agent drafted. Recorded when the agent's CLI has the answer, so that
    /// an equal call after it is another draft.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<DispatchId>,
    /// The duration of the call, in milliseconds.
    #[serde(default)]
    pub ms: u64,
    /// The call begins or ends to wait. Such a record is no note, and has no text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
}

impl McpCalled {
    /// Returns the record of a call with a text.
    pub fn text(tool: Tool, text: impl Into<String>) -> Self {
        Self {
            tool: tool.name().into(),
            text: text.into(),
            percent: None,
            child: None,
            ms: 0,
            wait: None,
        }
    }
}

/// The wait of a call for a person's answer, or for other agents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wait {
    /// The key of the call.
    pub call: String,
    /// The id of the question; absent in a wait for other agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// The call no longer waits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
}

/// The tools that an agent has. It is fixed when its dispatch is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "McpAccess")]
pub enum Access {
    /// All tools.
    Full,
    /// Tools that read, and those by which it talks with people.
    ReadOnly,
    /// It reports and asks people: a worker of a task list.
    Worker,
    /// It only reports: an agent of a spec run, behind the run's firewall.
    Report,
    /// It has no server.
    #[serde(other)]
    None,
}

/// The work that a dispatch is part of. It bounds the tools whatever the role says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A dispatch of a person, an agent or a thread.
    Own,
    /// A task of a task list.
    TaskList,
    /// A part of a spec run.
    SpecRun,
    /// A part of a spec run that knows the acceptance criteria, or says whether they are met.
    Sealed,
}

/// Decides the tools of an agent. `role` is the value of its role, `talks` whether its category is
/// a conversation, `above` the tools of the agent that drafted it.
pub fn access(
    purpose: Purpose,
    role: Option<Access>,
    talks: bool,
    above: Option<Access>,
) -> Access {
    let usual = if talks { Access::Full } else { Access::ReadOnly };
    let asked = role.unwrap_or(usual);
    let bounded = match purpose {
        Purpose::Sealed => Access::None,
        _ if asked == Access::None => Access::None,
        Purpose::SpecRun => Access::Report,
        Purpose::TaskList => Access::Worker,
        Purpose::Own => asked,
    };
    // A child of an agent behind a firewall is behind it too.
    match above {
        Some(Access::None) => Access::None,
        Some(Access::Report) if bounded != Access::None => Access::Report,
        Some(Access::Worker) if !matches!(bounded, Access::None | Access::Report) => Access::Worker,
        Some(Access::Full | Access::ReadOnly | Access::Report | Access::Worker) | None => bounded,
    }
}

/// A tool of the MCP server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumIter)]
pub enum Tool {
    AskHuman,
    AwaitAnswer,
    Note,
    ReportProgress,
    GetBudget,
    DraftAgent,
    AwaitAgent,
    KillAgent,
    MessageAgent,
    ListAgents,
    GetStatus,
    ListTasks,
    GetTaskContext,
    ReadJournal,
    ReadThread,
    SendMessage,
}

impl Tool {
    pub fn name(self) -> &'static str {
        match self {
            Self::AskHuman => "ask_human",
            Self::AwaitAnswer => "await_answer",
            Self::Note => "note",
            Self::ReportProgress => "report_progress",
            Self::GetBudget => "get_budget",
            Self::DraftAgent => "draft_agent",
            Self::AwaitAgent => "await_agent",
            Self::KillAgent => "kill_agent",
            Self::MessageAgent => "message_agent",
            Self::ListAgents => "list_agents",
            Self::GetStatus => "get_status",
            Self::ListTasks => "list_tasks",
            Self::GetTaskContext => "get_task_context",
            Self::ReadJournal => "read_journal",
            Self::ReadThread => "read_thread",
            Self::SendMessage => "send_message",
        }
    }

    /// Returns all tools, in the order in which clients see them.
    pub fn all() -> impl Iterator<Item = Self> {
        <Self as strum::IntoEnumIterator>::iter()
    }

    /// Returns the tool of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|tool| tool.name() == name)
    }

    /// Whether it only reads.
    pub fn reads(self) -> bool {
        match self {
            Self::GetBudget
            | Self::AwaitAgent
            | Self::ListAgents
            | Self::GetStatus
            | Self::ListTasks
            | Self::GetTaskContext
            | Self::ReadJournal
            | Self::ReadThread => true,
            Self::AskHuman
            | Self::AwaitAnswer
            | Self::Note
            | Self::ReportProgress
            | Self::DraftAgent
            | Self::KillAgent
            | Self::MessageAgent
            | Self::SendMessage => false,
        }
    }

    /// Whether an agent with this access has the tool.
    pub fn is_allowed(self, access: Access) -> bool {
        let reports = matches!(self, Self::Note | Self::ReportProgress | Self::GetBudget);
        let asks = matches!(self, Self::AskHuman | Self::AwaitAnswer);
        match access {
            Access::Full => true,
            Access::ReadOnly => self.reads() || reports || asks,
            Access::Worker => reports || asks,
            Access::Report => reports,
            Access::None => false,
        }
    }
}

/// The traces of an agent's calls in the state of its dispatch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// The newest report of progress: the text, and the percentage if there is one.
    #[serde(default)]
    pub progress: Option<(String, Option<u8>)>,
    /// How many notes and reports it has written.
    #[serde(default)]
    pub notes: u32,
    /// The minute of the newest one since the epoch, and how many it has in that minute.
    #[serde(default)]
    pub minute: (i64, u32),
    /// The drafted dispatches whose ids the agent's CLI has.
    #[serde(default)]
    pub drafted: Vec<DispatchId>,
    /// The calls of its process that wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
    /// The questions for which its process was waiting when Muleteer ended it after the hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<String>,
}

/// Why a note is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoNote {
    #[error("the text is empty")]
    Empty,
    #[error("the text is longer than {TEXT_LIMIT} bytes")]
    TooLong,
    #[error("this agent wrote {MOST_IN_A_MINUTE} notes within a minute")]
    TooFast,
    #[error("this agent wrote {MOST_NOTES} notes")]
    TooMany,
}

impl Calls {
    /// Checks a note or a report.
    ///
    /// # Errors
    /// The limit that it breaks.
    pub fn may_note(&self, text: &str, now: jiff::Timestamp) -> Result<(), NoNote> {
        let (minute, count) = self.minute;
        match () {
            () if text.trim().is_empty() => Err(NoNote::Empty),
            () if text.len() > TEXT_LIMIT => Err(NoNote::TooLong),
            () if self.notes >= MOST_NOTES => Err(NoNote::TooMany),
            () if minute == now.as_second() / 60 && count >= MOST_IN_A_MINUTE => {
                Err(NoNote::TooFast)
            }
            () => Ok(()),
        }
    }

    /// Returns the question of the oldest call that waits for a person.
    pub fn awaited(&self) -> Option<&String> {
        self.waits.iter().find_map(|wait| wait.question.as_ref())
    }

    /// Whether a call waits for other agents.
    pub fn waits_for_agents(&self) -> bool {
        self.waits.iter().any(|wait| wait.question.is_none())
    }

    /// Folds in that a question needs no person any more. With `reached`, its answer also needs no
    /// further process of the agent.
    pub(crate) fn settled(&mut self, question: &str, reached: bool) {
        self.waits.retain(|wait| wait.question.as_deref() != Some(question));
        if reached {
            self.held.retain(|held| held != question);
        }
    }

    /// Folds in that the process is ended because nobody answered.
    pub(crate) fn hold(&mut self) {
        self.held = self.waits.iter().filter_map(|wait| wait.question.clone()).collect();
    }

    fn wait(&mut self, wait: &Wait) {
        self.waits.retain(|known| known.call != wait.call);
        if !wait.over && self.waits.len() < MOST_WAITS {
            self.waits.push(wait.clone());
        }
    }

    /// Folds a recorded call in.
    pub fn apply(&mut self, called: &McpCalled, at: jiff::Timestamp) {
        if let Some(wait) = &called.wait {
            self.wait(wait);
            return;
        }
        if let Some(child) = &called.child {
            if self.drafted.len() < MOST_DRAFTS && !self.drafted.contains(child) {
                self.drafted.push(child.clone());
            }
            return;
        }
        let minute = at.as_second() / 60;
        let count = if self.minute.0 == minute { self.minute.1 } else { 0 };
        self.minute = (minute, count.saturating_add(1));
        self.notes = self.notes.saturating_add(1);
        if called.tool == Tool::ReportProgress.name() {
            self.progress = Some((called.text.clone(), called.percent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purpose_bounds_the_tools_whatever_the_role_says() {
        for role in [None, Some(Access::Full), Some(Access::ReadOnly)] {
            assert_eq!(access(Purpose::Sealed, role, true, None), Access::None);
            assert_eq!(access(Purpose::SpecRun, role, true, None), Access::Report);
            assert_eq!(access(Purpose::TaskList, role, true, None), Access::Worker);
        }
        assert_eq!(access(Purpose::Own, None, true, None), Access::Full);
        assert_eq!(access(Purpose::Own, None, false, None), Access::ReadOnly);
        assert_eq!(access(Purpose::Own, Some(Access::None), true, None), Access::None);
        assert_eq!(access(Purpose::SpecRun, Some(Access::None), true, None), Access::None);
    }

    #[test]
    fn child_of_an_agent_behind_a_firewall_is_behind_it() {
        let child = |above| access(Purpose::Own, Some(Access::Full), true, Some(above));
        assert_eq!(child(Access::Full), Access::Full);
        assert_eq!(child(Access::ReadOnly), Access::Full);
        assert_eq!(child(Access::Worker), Access::Worker);
        assert_eq!(child(Access::Report), Access::Report);
        assert_eq!(child(Access::None), Access::None);
    }

    #[test]
    fn each_access_has_its_tools() {
        let of = |access| {
            let tools = Tool::all().filter(move |tool| tool.is_allowed(access));
            tools.map(Tool::name).collect::<Vec<_>>()
        };
        assert_eq!(of(Access::Full).len(), 16);
        assert_eq!(of(Access::Report), ["note", "report_progress", "get_budget"]);
        assert_eq!(
            of(Access::Worker),
            ["ask_human", "await_answer", "note", "report_progress", "get_budget"]
        );
        assert!(of(Access::None).is_empty());
        for acting in ["draft_agent", "kill_agent", "message_agent", "send_message"] {
            assert!(!of(Access::ReadOnly).contains(&acting), "{acting}");
        }
        assert!(Tool::all().all(|tool| Tool::named(tool.name()) == Some(tool)));
    }

    #[test]
    fn flood_of_notes_is_refused_until_the_next_minute() {
        let at = |second| jiff::Timestamp::from_second(second).unwrap_or_default();
        let note = McpCalled::text(Tool::Note, "x");
        let mut calls = Calls::default();
        for _ in 0..MOST_IN_A_MINUTE {
            assert_eq!(calls.may_note("x", at(600)), Ok(()));
            calls.apply(&note, at(600));
        }
        assert_eq!(calls.may_note("x", at(659)), Err(NoNote::TooFast));
        assert_eq!(calls.may_note("x", at(660)), Ok(()));
        assert_eq!(calls.may_note("", at(660)), Err(NoNote::Empty));
        assert_eq!(calls.may_note(&"x".repeat(TEXT_LIMIT + 1), at(660)), Err(NoNote::TooLong));
        calls.notes = MOST_NOTES;
        assert_eq!(calls.may_note("x", at(660)), Err(NoNote::TooMany));
    }
}
