//! Groups of events, as patterns for the folds over a log.
//!
//! A fold lists the events that it uses, the other events of the same group, and the groups that do
//! not concern it. A new event belongs to exactly one group ([`Event::group`] does not compile
//! otherwise). So it fails to compile in each fold that has to consider it, and only there.

use crate::event::Event;

/// The log and the part of a log that an event belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    Daemon,
    Dispatch,
    SpecRun,
    TaskList,
    Conversation,
    /// An event of a newer version.
    Unknown,
}

impl Event {
    pub const fn group(&self) -> Group {
        match self {
            crate::daemon_events!() => Group::Daemon,
            crate::dispatch_events!() => Group::Dispatch,
            crate::spec_run_events!() => Group::SpecRun,
            crate::task_list_events!() => Group::TaskList,
            crate::conversation_events!() => Group::Conversation,
            Event::Unknown => Group::Unknown,
        }
    }
}

/// A pattern of all events of the daemon itself.
#[macro_export]
macro_rules! daemon_events {
    () => {
        $crate::event::Event::DaemonStarted { .. }
            | $crate::event::Event::DaemonStopping { .. }
            | $crate::event::Event::LogRecovered { .. }
            | $crate::event::Event::ActorRestarted { .. }
            | $crate::event::Event::ActorEscalated { .. }
            | $crate::event::Event::Fault { .. }
            | $crate::event::Event::SettingChanged { .. }
            | $crate::event::Event::DispatchesArchived { .. }
            | $crate::event::Event::DispatchesRestored { .. }
            | $crate::event::Event::EventsRemoved { .. }
    };
}

/// A pattern of all events of a dispatch.
#[macro_export]
macro_rules! dispatch_events {
    () => {
        $crate::attempt_events!()
            | $crate::prompt_events!()
            | $crate::session_events!()
            | $crate::output_events!()
            | $crate::tool_events!()
            | $crate::permission_events!()
            | $crate::result_events!()
            | $crate::api_events!()
            | $crate::intervention_events!()
    };
}

/// A pattern of the events of a dispatch and its attempts: their starts, processes and ends.
#[macro_export]
macro_rules! attempt_events {
    () => {
        $crate::event::Event::DispatchCreated { .. }
            | $crate::event::Event::WorktreeCreated { .. }
            | $crate::event::Event::AttemptStarted { .. }
            | $crate::event::Event::AgentSpawned { .. }
            | $crate::event::Event::AgentAdopted { .. }
            | $crate::event::Event::StartFailed { .. }
            | $crate::event::Event::AgentExited { .. }
            | $crate::event::Event::SweepFinished { .. }
            | $crate::event::Event::AttemptFinished { .. }
            | $crate::event::Event::RestartScheduled { .. }
            | $crate::event::Event::AnswerAwaited { .. }
            | $crate::event::Event::DispatchClosing { .. }
            | $crate::event::Event::WorkFetched { .. }
            | $crate::event::Event::DispatchFinished { .. }
            | $crate::event::Event::FilesRemoved { .. }
            | $crate::event::Event::CloneRemoved { .. }
            | $crate::event::Event::JournalArchived { .. }
    };
}

/// A pattern of the events of a dispatch's prompts and turns.
#[macro_export]
macro_rules! prompt_events {
    () => {
        $crate::event::Event::PromptQueued { .. }
            | $crate::event::Event::PromptSent { .. }
            | $crate::event::Event::PromptWritten { .. }
            | $crate::event::Event::PromptFolded { .. }
            | $crate::event::Event::PromptProbed { .. }
            | $crate::event::Event::TurnStarted { .. }
            | $crate::event::Event::TurnFinished { .. }
    };
}

/// A pattern of the events of an agent's session, its mode and its model.
#[macro_export]
macro_rules! session_events {
    () => {
        $crate::event::Event::SessionStarted { .. }
            | $crate::event::Event::AgentGreeted { .. }
            | $crate::event::Event::SessionOpened { .. }
            | $crate::event::Event::SessionModeKept { .. }
            | $crate::event::Event::SessionModeChanged { .. }
            | $crate::event::Event::SessionModeStays { .. }
            | $crate::event::Event::SessionModeSet { .. }
            | $crate::event::Event::SessionModeRefused { .. }
            | $crate::event::Event::SessionModelSet { .. }
            | $crate::event::Event::CallFailed { .. }
            | $crate::event::Event::SessionLost { .. }
            | $crate::event::Event::ModelRequested { .. }
            | $crate::event::Event::ModelChanged { .. }
            | $crate::event::Event::ModelRefused { .. }
    };
}

/// A pattern of the events of an agent's other output.
#[macro_export]
macro_rules! output_events {
    () => {
        $crate::event::Event::AgentSaid { .. }
            | $crate::event::Event::AgentNotice { .. }
            | $crate::event::Event::McpCalled { .. }
            | $crate::event::Event::UsageRecorded { .. }
            | $crate::event::Event::JournalEntry { .. }
            | $crate::event::Event::Compacted { .. }
            | $crate::event::Event::OutputRead { .. }
            | $crate::event::Event::BlockedByUs { .. }
    };
}

/// A pattern of the events of an agent's tool calls.
#[macro_export]
macro_rules! tool_events {
    () => {
        $crate::event::Event::ToolCalled { .. }
            | $crate::event::Event::ToolSubject { .. }
            | $crate::event::Event::ToolFailed { .. }
            | $crate::event::Event::ToolFinished { .. }
    };
}

/// A pattern of the events of permissions, questions and the policy.
#[macro_export]
macro_rules! permission_events {
    () => {
        $crate::event::Event::PolicyBroken { .. }
            | $crate::event::Event::PermissionRequested { .. }
            | $crate::event::Event::PermissionAnswered { .. }
            | $crate::event::Event::PermissionClosed { .. }
            | $crate::event::Event::AnswerDelivered { .. }
            | $crate::event::Event::HoldExpired { .. }
    };
}

/// A pattern of the events of an agent's result.
#[macro_export]
macro_rules! result_events {
    () => {
        $crate::event::Event::ResultReceived { .. }
            | $crate::event::Event::ResultInvalid { .. }
            | $crate::event::Event::ResultOvertaken { .. }
            | $crate::event::Event::ResultQuoted { .. }
    };
}

/// A pattern of the events of trouble with the model API.
#[macro_export]
macro_rules! api_events {
    () => {
        $crate::event::Event::ApiRetried { .. }
            | $crate::event::Event::RateLimited { .. }
            | $crate::event::Event::ApiWaiting { .. }
            | $crate::event::Event::ApiGivenUp { .. }
    };
}

/// A pattern of the events by which a person, a limit or a monitor intervenes.
#[macro_export]
macro_rules! intervention_events {
    () => {
        $crate::event::Event::InterruptRequested { .. }
            | $crate::event::Event::KillRequested { .. }
            | $crate::event::Event::LimitReached { .. }
            | $crate::event::Event::StallDetected { .. }
            | $crate::event::Event::MonitorSpoke { .. }
            | $crate::healing_events!()
    };
}

/// A pattern of the events of the healing of a dispatch.
#[macro_export]
macro_rules! healing_events {
    () => {
        $crate::event::Event::HealingBegun { .. }
            | $crate::event::Event::HealingChosen { .. }
            | $crate::event::Event::HealingDone { .. }
    };
}

/// A pattern of all events of a spec run.
#[macro_export]
macro_rules! spec_run_events {
    () => {
        $crate::run_progress_events!()
            | $crate::planning_events!()
            | $crate::bead_events!()
            | $crate::maintenance_events!()
            | $crate::judge_events!()
            | $crate::publishing_events!()
    };
}

/// A pattern of the events of a spec run as a whole: its start and end, its phases and its agents.
#[macro_export]
macro_rules! run_progress_events {
    () => {
        $crate::event::Event::RunStarted { .. }
            | $crate::event::Event::RunResumed { .. }
            | $crate::event::Event::RunApproved { .. }
            | $crate::event::Event::RunStopping { .. }
            | $crate::event::Event::RunRested { .. }
            | $crate::event::Event::RunCompleted { .. }
            | $crate::event::Event::RunFailed { .. }
            | $crate::event::Event::PhaseChanged { .. }
            | $crate::event::Event::IterationStarted { .. }
            | $crate::event::Event::AgentStarted { .. }
            | $crate::event::Event::AgentFinished { .. }
            | $crate::event::Event::AgentRetried { .. }
            | $crate::event::Event::PoolSlowed { .. }
    };
}

/// A pattern of the events that fix the spec, the acceptance criteria and the beads of a spec run.
#[macro_export]
macro_rules! planning_events {
    () => {
        $crate::event::Event::SpecReviewed { .. }
            | $crate::event::Event::SpecAmended { .. }
            | $crate::event::Event::BeadsReplanned { .. }
            | $crate::event::Event::SpecFrozen { .. }
            | $crate::event::Event::AcceptanceSealed { .. }
            | $crate::event::Event::Decomposed { .. }
            | $crate::event::Event::BeadsCreated { .. }
            | $crate::event::Event::BeadsAccepted { .. }
            | $crate::event::Event::PlanChangeRequested { .. }
    };
}

/// A pattern of the events of the single beads of a spec run.
#[macro_export]
macro_rules! bead_events {
    () => {
        $crate::event::Event::BeadAssigned { .. }
            | $crate::event::Event::BeadCompleted { .. }
            | $crate::event::Event::BeadRetried { .. }
            | $crate::event::Event::BeadBlocked { .. }
            | $crate::event::Event::BeadReopened { .. }
            | $crate::event::Event::OutsideClosed { .. }
            | $crate::event::Event::ObservationCreated { .. }
            | $crate::event::Event::PushUndone { .. }
    };
}

/// A pattern of the events of maintenance in a spec run.
#[macro_export]
macro_rules! maintenance_events {
    () => {
        $crate::event::Event::MaintenanceStarted { .. }
            | $crate::event::Event::MaintenanceCoalesced { .. }
            | $crate::event::Event::MaintenanceFinished { .. }
    };
}

/// A pattern of the events of the judge of a spec run.
#[macro_export]
macro_rules! judge_events {
    () => {
        $crate::event::Event::JudgeStarted { .. }
            | $crate::event::Event::JudgeReasoned { .. }
            | $crate::event::Event::JudgeFinished { .. }
            | $crate::event::Event::VerdictApplied { .. }
    };
}

/// A pattern of the events of the branch of a spec run and its pull request.
#[macro_export]
macro_rules! publishing_events {
    () => {
        $crate::event::Event::BranchPublished { .. }
            | $crate::event::Event::BranchPushed { .. }
            | $crate::event::Event::PrCreated { .. }
            | $crate::event::Event::RunWorkKept { .. }
    };
}

/// A pattern of all events of a run of a task list.
#[macro_export]
macro_rules! task_list_events {
    () => {
        $crate::event::Event::TaskListStarted { .. }
            | $crate::event::Event::TaskListSession { .. }
            | $crate::event::Event::TaskBegun { .. }
            | $crate::event::Event::TaskJudged { .. }
            | $crate::event::Event::TaskEnded { .. }
            | $crate::event::Event::TaskListStopping { .. }
            | $crate::event::Event::TaskListFinished { .. }
    };
}

/// A pattern of all events of conversations: threads and questions.
#[macro_export]
macro_rules! conversation_events {
    () => {
        $crate::thread_events!() | $crate::question_events!()
    };
}

/// A pattern of the events of questions that are no requests of agents' CLIs.
#[macro_export]
macro_rules! question_events {
    () => {
        $crate::event::Event::QuestionAsked { .. }
            | $crate::event::Event::QuestionAnswered { .. }
            | $crate::event::Event::QuestionState { .. }
    };
}

/// A pattern of the events of threads, their messages and their tasks.
#[macro_export]
macro_rules! thread_events {
    () => {
        $crate::event::Event::ThreadOpened { .. }
            | $crate::event::Event::MessageAccepted { .. }
            | $crate::event::Event::MessageState { .. }
            | $crate::event::Event::MessageRecorded { .. }
            | $crate::event::Event::ThreadRole { .. }
            | $crate::event::Event::ThreadVerbosity { .. }
            | $crate::event::Event::ThreadTaskOpened { .. }
            | $crate::event::Event::ThreadTaskState { .. }
            | $crate::event::Event::ThreadArchived { .. }
            | $crate::adapter_events!()
            | $crate::schedule_events!()
            | $crate::meeting_events!()
    };
}

/// A pattern of all events of schedules.
#[macro_export]
macro_rules! schedule_events {
    () => {
        $crate::event::Event::ScheduleSet { .. }
            | $crate::event::Event::ScheduleDue { .. }
            | $crate::event::Event::ScheduleDone { .. }
    };
}

/// A pattern of all events of meetings.
#[macro_export]
macro_rules! meeting_events {
    () => {
        $crate::event::Event::MeetingStarted { .. }
            | $crate::event::Event::MeetingTurn { .. }
            | $crate::event::Event::MeetingTurnDone { .. }
            | $crate::event::Event::MeetingEnding { .. }
            | $crate::event::Event::MeetingEnded { .. }
    };
}

/// A pattern of all events of adapters.
#[macro_export]
macro_rules! adapter_events {
    () => {
        $crate::event::Event::AdapterStarted { .. }
            | $crate::event::Event::AdapterLost { .. }
            | $crate::event::Event::AdapterSetAside { .. }
            | $crate::event::Event::AdapterSwitched { .. }
            | $crate::event::Event::PostState { .. }
            | $crate::event::Event::AdapterSignal { .. }
            | $crate::event::Event::StrangerTold { .. }
    };
}

/// A pattern of all events of the daemon's log: those that are in no log of a spec run.
#[macro_export]
macro_rules! daemon_log_events {
    () => {
        $crate::daemon_events!()
            | $crate::dispatch_events!()
            | $crate::task_list_events!()
            | $crate::conversation_events!()
    };
}
