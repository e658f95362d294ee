//! A sample of every event, and its description for `docs/events.md`.
//!
//! A variant of [`Event`] without an entry here does not compile: the macro turns its entries into
//! a match without a wildcard.

use jiff::Timestamp;
use muleteer_model::admission::api_error::{Terms, Trouble};
use muleteer_model::agent::ask::{Ask, AskOption, Verdict};
use muleteer_model::agent::event::TurnError;
use muleteer_model::agent::result::{AgentResult, ResultStatus};
use muleteer_model::agent::transcript::{Session, Standing};
use muleteer_model::config::InForce;
use muleteer_model::dispatch::work::{LeftWork, WorkHome};
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{
    Created, Entry, Event, ExitCause, FinalState, Limit, Limits, Outcome, Position, PromptKind,
    Purse, Record, VERSION,
};
use muleteer_model::monitor::{self, Action, Monitor, Response, Responses};
use muleteer_model::spec_run::event as run;
use muleteer_model::spec_run::judge::{Acceptance, JudgeResult, NewBead, SpecDrift};
use muleteer_model::task_list::session::{Finished, Started, Verdict as Judged};
use muleteer_protocol::ErrorCode;
use serde_json::Value;

macro_rules! catalog {
    ($($variant:ident: $meaning:literal = $sample:expr;)*) => {
        fn meaning(event: &Event) -> &'static str {
            match event {
                $(Event::$variant { .. } => $meaning,)*
                Event::Unknown => "Written by a newer version.",
            }
        }

        fn events() -> Vec<Event> {
            vec![$($sample),*]
        }
    };
}

catalog! {
    DaemonStarted: "A daemon took over the state directory; `generation` fences earlier daemons. \
                    It uses `settings` until it ends; a later daemon that cannot read its \
                    configuration uses them too."
        = Event::DaemonStarted {
            pid: 4711,
            generation: 3,
            version: "0.1.0".into(),
            boot_id: "3c8f1a52".into(),
            settings: Some(InForce { max_agents: 8, max_depth: 2, output_mib: 64 }),
        };
    DaemonStopping: "The daemon was asked to stop. `agents` is `keep` or `stop`; `lease_s` is how \
                     long kept agents run without a daemon."
        = Event::DaemonStopping { agents: "keep".into(), alive: 2, lease_s: 28800 };
    LogRecovered: "At its start the daemon removed an incomplete last write from the events."
        = Event::LogRecovered { cut_bytes: 120 };
    ActorRestarted: "An actor of the supervisor failed and was restarted."
        = Event::ActorRestarted {
            actor: "journal".into(),
            reason: "panicked: index out of bounds".into(),
            restarts_in_window: 1,
            delay_ms: 100,
        };
    ActorEscalated: "An actor failed too often: its parent was asked to restart the whole branch."
        = Event::ActorEscalated { actor: "link".into(), reason: "5 restarts in 60 s".into() };
    Fault: "A fault that has no event of its own."
        = Event::Fault { what: "watcher".into(), message: "inotify limit reached".into() };
    DispatchCreated: "A dispatch was created. It contains every decision made then; later changes \
                      of the configuration do not affect it."
        = Event::DispatchCreated(Box::new(created()));
    PromptQueued: "A prompt was queued; `kind` is `initial`, `send`, `repair` or `continue`."
        = Event::PromptQueued { key: "k1".into(), kind: PromptKind::Initial, by: "operator".into(), trace: Some(TRACE.into()) };
    WorktreeCreated: "The agent got its own clone, created at commit `base`."
        = Event::WorktreeCreated { path: "/repo/.muleteer/worktrees/abcdefgh".into(), base: "9fceb02d".into() };
    AttemptStarted: "Written before the shim starts; `resume` is the CLI session to resume."
        = Event::AttemptStarted { attempt: 1, epoch: 1, resume: Some("session-1".into()) };
    AgentSpawned: "The agent's process runs. `containment` names what terminates it together with \
                   its shim; `awake_ms` is the shim's clock of awake time."
        = Event::AgentSpawned { pid: 4713, shim_pid: 4712, containment: "cgroup".into(), awake_ms: 86_400_000 };
    AgentAdopted: "This daemon adopted a running shim."
        = Event::AgentAdopted { shim_pid: 4712, epoch: 1 };
    StartFailed: "The agent could not be started."
        = Event::StartFailed { epoch: 1, error: "no such file".into(), permanent: true };
    SessionStarted: "The CLI reported its session."
        = Event::SessionStarted { session_id: "session-1".into(), model: Some("sonnet".into()) };
    AgentGreeted: "An ACP agent identified itself. `load` is the session to load; null for a new \
                   session."
        = Event::AgentGreeted { agent: "codex-acp 2.6.0".into(), load: Some("session-1".into()) };
    SessionOpened: "The session is open. `set_model_by`: how the requested model is set next. \
        `model_by`: how the model can be changed later, if it can."
        = Event::SessionOpened {
            session_id: "session-1".into(),
            set_model_by: Some("option model".into()),
            model_by: Some("option model".into()),
            set_mode: None,
        };
    SessionModeSet: "The agent accepted the mode that the policy requires."
        = Event::SessionModeSet { mode: "default".into() };
    SessionModeKept: "The session is in the mode that the policy requires. `by`: how the mode is \
                      set again if the agent leaves it."
        = Event::SessionModeKept { mode: "default".into(), by: "call".into() };
    SessionModeChanged: "The agent switched to another mode. `back`: the mode to restore, because \
                         the new one does not ask for permission and the agent has a policy."
        = Event::SessionModeChanged { mode: "yolo".into(), back: Some("default".into()) };
    SessionModeStays: "The agent does not leave a mode that does not ask for permission, although \
                       it has a policy: Muleteer stops it."
        = Event::SessionModeStays { mode: "yolo".into(), reason: "Muleteer reset the mode, and the \
            agent switched again".into() };
    SessionModeRefused: "The agent refused a mode that does not ask for permission; Muleteer tries \
                         `next`. The policy is open."
        = Event::SessionModeRefused { mode: "bypassPermissions".into(), reason: "not available".into(), next: Some("default".into()) };
    SessionModelSet: "The agent accepted the requested model."
        = Event::SessionModelSet { model: "gpt-5.5".into() };
    CallFailed: "The agent refused a call or did not answer in time, so Muleteer terminates the \
                 process. `for_good`: Muleteer does not retry."
        = Event::CallFailed {
            call: "session/load".into(),
            reason: "no answer within 2m".into(),
            for_good: false,
        };
    PromptSent: "Written before the shim receives the prompt."
        = Event::PromptSent { key: "k1".into() };
    PromptWritten: "The shim acknowledged that it wrote the prompt to the agent's stdin; earlier \
                    output does not belong to it."
        = Event::PromptWritten { key: "k1".into() };
    TurnStarted: "The CLI accepted the prompt `key`."
        = Event::TurnStarted { turn: 1, key: "k1".into() };
    PromptFolded: "The CLI folded the prompt `key`, sent during turn `turn`, into that turn."
        = Event::PromptFolded { key: "k2".into(), turn: 1 };
    PromptProbed: "The state of a prompt in the CLI's transcript after the process died. \
                   `standing` is `not_taken` (it is sent again), `unanswered`, `mid_tool`, \
                   `answered` (the session is resumed) or `unknown` (a person decides); `session` \
                   is `held`, `empty`, `missing`, `lost` or `unread`. `counted`: a \
                   `usage_recorded` beside it has the usage of its turn."
        = Event::PromptProbed {
            key: "k1".into(),
            standing: Standing::MidTool,
            session: Session::Held,
            session_id: Some("session-1".into()),
            counted: true,
            detail: String::new(),
        };
    SessionLost: "The CLI no longer has the session to resume."
        = Event::SessionLost { session_id: "session-1".into() };
    ToolCalled: "The agent called a tool; `target` is its file or command, cut."
        = Event::ToolCalled { call_id: "t1".into(), tool: "Edit".into(), target: "src/lib.rs".into(), parent: Some("t0".into()) };
    ToolSubject: "The full target of the last tool call, if `target` has only its first line. \
                  Recorded for agents with a policy."
        = Event::ToolSubject { call_id: "t1".into(), text: "ls\nrm -rf x".into() };
    ToolFailed: "The tool answered with an error."
        = Event::ToolFailed { call_id: "t1".into(), text: "old_string not found".into() };
    ToolFinished: "The tool call ended without an error."
        = Event::ToolFinished { call_id: "t1".into() };
    PolicyBroken: "The agent used a tool without asking, although `rule` of its policy asks or \
                   denies: Muleteer stops it. `denied`: the agent had asked, and `rule`, or the \
                   person that it names, had denied it."
        = Event::PolicyBroken { call_id: "t1".into(), tool: "Bash".into(), target: "touch x".into(), rule: "mode ask".into(), denied: true };
    PermissionRequested: "The agent requests an answer. `kind` is `permission`, `question` or \
                          `other` (refused at once); `input` may be cut; `answered`: the next line \
                          has the answer, as no person was needed."
        = Event::PermissionRequested { request_id: "r1".into(), answered: true, ask: Box::new(ask()) };
    PermissionAnswered: "Written before the agent gets the answer. `answer` is `allow`, `deny` or \
                         `text`; `rule` decided if `by` is `policy`; `key` is the key of the \
                         client's request."
        = Event::PermissionAnswered {
            request_id: "r1".into(),
            answer: Verdict::Deny,
            text: "use `git clean` instead".into(),
            by: "operator".into(),
            rule: Some("Bash(rm *)".into()),
            key: "k3f9".into(),
        };
    PermissionClosed: "The agent withdrew its request."
        = Event::PermissionClosed { request_id: "r1".into() };
    AgentSaid: "Text of the agent, cut."
        = Event::AgentSaid { text: "The test passes now.".into() };
    AgentNotice: "The agent lacks something: an MCP server, the requested model, settings that are \
                  not trusted. Recorded once in each attempt."
        = Event::AgentNotice { text: "MCP server `docs` does not work".into() };
    UsageRecorded: "Tokens and cost since the last such event."
        = Event::UsageRecorded {
            model: "sonnet".into(),
            input: 1200,
            output: 300,
            cache_read: 9000,
            cache_write: 500,
            cost_usd: 0.0125,
            cumulative: true,
            total_usd: None,
        };
    TurnFinished: "The agent finished a prompt; `status` is the HTTP status that caused a failure."
        = Event::TurnFinished {
            turn: 1,
            ok: false,
            error: Some(TurnError::ApiError),
            status: Some(529),
            text: "overloaded".into(),
        };
    ResultReceived: "The agent returned a valid result."
        = Event::ResultReceived { result: result() };
    ResultInvalid: "The agent returned an invalid result; `repair`: Muleteer asks for it once more."
        = Event::ResultInvalid { faults: vec!["`status` is missing".into()], repair: true };
    ResultQuoted: "The last result follows other text on its line. A result that the program \
                   returns separately replaces it."
        = Event::ResultQuoted {};
    ResultOvertaken: "A command printed more lines after its result, which therefore does not \
                      count: only the last line can be a result."
        = Event::ResultOvertaken {};
    JournalEntry: "The agent wrote this entry into its journal."
        = Event::JournalEntry { text: "Chose a BTreeMap: order matters.".into() };
    ApiRetried: "The CLI retries a call to the model API."
        = Event::ApiRetried { attempt: 1, max: 10, status: Some(529), delay_s: 2.5, awake_ms: Some(90_000) };
    RateLimited: "The model API reported a rate limit until `until`, or for `wait_s` seconds if it \
                  reports only that."
        = Event::RateLimited { until: Some(time()), wait_s: 90.0, awake_ms: Some(90_000) };
    ApiWaiting: "The dispatch waits for the model API until `until`, without a process and without \
                 a slot. `told`: the API reported the time; `waits`: the number of consecutive \
                 waits; `spent_ms`: their total time."
        = Event::ApiWaiting {
            trouble: Trouble::RateLimit,
            status: Some(429),
            until: time(),
            told: true,
            waits: 1,
            spent_ms: 90_000,
        };
    ApiGivenUp: "Muleteer gives up the model API and stops the agent: the API refused the key, or \
                 the patience is exceeded."
        = Event::ApiGivenUp {
            trouble: Trouble::Refused,
            status: Some(401),
            reason: "the model API refused the key ANTHROPIC_API_KEY (HTTP 401)".into(),
        };
    Compacted: "The CLI compacted its context, with the tokens before and after."
        = Event::Compacted { before: 180_000, after: 30_000 };
    OutputRead: "Muleteer read the output up to `at`, without other events."
        = Event::OutputRead {};
    BlockedByUs: "Muleteer paused or resumed reading the agent's output; during a pause, silence \
                  is not a stall."
        = Event::BlockedByUs { on: true };
    ModelRequested: "A client requested another model; a CLI that cannot switch gets it with its \
                     next process."
        = Event::ModelRequested { key: "m1".into(), model: "haiku".into(), by: "operator".into() };
    ModelChanged: "The CLI switched to the model."
        = Event::ModelChanged { key: "m1".into(), model: "haiku".into() };
    ModelRefused: "The CLI refused the model and keeps the previous one."
        = Event::ModelRefused { key: "m1".into(), reason: "no such model".into() };
    InterruptRequested: "A client requested to stop the turn."
        = Event::InterruptRequested { key: "i1".into(), by: "operator".into() };
    KillRequested: "A client requested to kill the agent, which is never restarted."
        = Event::KillRequested { reason: "wrong branch".into(), by: "operator".into() };
    LimitReached: "A limit is reached (`budget`, `turns` or `timeout`): Muleteer stops the agent."
        = Event::LimitReached { limit: Limit::Budget, detail: "$10.02 of $10.00".into() };
    MonitorSpoke: "A monitor (`loop`, `drift`, `spiral`, `budget`) found a fault in a running \
                   agent. `action` is the reaction: `note`, `warn`, or `stop`, which stops the \
                   agent and keeps its session resumable."
        = Event::MonitorSpoke {
            monitor: Monitor::Loop,
            action: Action::Warn,
            reason: "Bash cargo test failed in the same way 4 times".into(),
        };
    StallDetected: "The agent was silent and idle for too long, by `evidence`: Muleteer stops it."
        = Event::StallDetected { silent_s: 300, evidence: "no output, no tool call".into() };
    AgentExited: "The agent's process exited; `cause` names the reason. `used_ms`: its awake time."
        = Event::AgentExited {
            epoch: 1,
            code: Some(0),
            signal: Some(9),
            cause: ExitCause::Exited,
            stderr_tail: "warning: x".into(),
            used_ms: 61_500,
        };
    SweepFinished: "Muleteer searched for processes of a dead shim and killed them."
        = Event::SweepFinished { killed: 1, clean: true };
    AttemptFinished: "The outcome of an attempt, and whether it counts for `max_restarts`."
        = Event::AttemptFinished { attempt: 1, outcome: Outcome::Failure, reason: "exit 1".into(), counted: true };
    RestartScheduled: "The next attempt starts at `until`."
        = Event::RestartScheduled { until: time(), delay_ms: 2000 };
    DispatchClosing: "The final state is decided; the work is fetched next."
        = Event::DispatchClosing { state: FinalState::Success, reason: "result".into() };
    WorkFetched: "Muleteer fetched the work of the agent's clone: its commits as `branch` with the \
                  tip `commit` (null if there is none), other changes as refs (`left`). `skipped` \
                  lists work that remains in the clone; `trouble` is the reason why the commits \
                  remain there."
        = Event::WorkFetched(WorkHome {
            branch: "muleteer/abcdefgh".into(),
            commit: Some("1a2b3c4d".into()),
            commits: Some(2),
            left: vec![LeftWork {
                name: "refs/muleteer/left/abcdefgh/uncommitted".into(),
                what: "uncommitted changes in 3 files".into(),
            }],
            skipped: vec!["core.1234 (2 GiB, too large)".into()],
            trouble: None,
        });
    DispatchFinished: "The dispatch has ended."
        = Event::DispatchFinished { state: FinalState::Success, reason: "result".into(), result: Some(result()) };
    FilesRemoved: "Written before the agent's files (output, prompts, request) are removed. The \
                   dispatch accepts no more messages."
        = Event::FilesRemoved { by: "operator".into() };
    RunStarted: "A run started. Its identity is fixed; `settings` may change when it is resumed."
        = Event::RunStarted(Box::new(run_started()));
    RunResumed: "The run was resumed with the configuration read again."
        = Event::RunResumed { run_id: RUN.into(), settings: Box::new(run_settings()), by: "operator".into(), trace: Some(TRACE.into()) };
    PhaseChanged: "`freeze`, `decompose`, `implement` (with maintenance beside it), `judge` or `finish`."
        = Event::PhaseChanged { phase: run::Phase::Implement };
    SpecFrozen: "The spec was copied and hashed, and the integration branch created at \
                 `base_commit`."
        = Event::SpecFrozen {
            sha256: "a1b2c3d4".into(),
            base_branch: "main".into(),
            base_commit: "9fceb02d".into(),
            target_branch: format!("muleteer/{RUN}"),
        };
    AcceptanceSealed: "The acceptance criteria are sealed with this hash; an empty path means no \
                       criteria."
        = Event::AcceptanceSealed { path: "/home/u/.cache/muleteer/run/acceptance".into(), sha256: "d4c3b2a1".into() };
    Decomposed: "The decomposition agent finished; its beads are staged until all are accepted."
        = Event::Decomposed {};
    BeadsCreated: "The planned beads of the run."
        = Event::BeadsCreated { count: 1, dependency_edges: 0, beads: vec![planned()] };
    BeadsAccepted: "The beads are no longer staged, so every agent sees them."
        = Event::BeadsAccepted {};
    RunApproved: "A person has approved the beads."
        = Event::RunApproved { by: "operator".into() };
    BeadAssigned: "A bead was given to an agent; `claim` is `run:iteration:attempt`."
        = Event::BeadAssigned { bead_id: "k3f9abcd".into(), agent: 1, claim: format!("{RUN}:1:0") };
    AgentStarted: "Written before the agent starts: its number, its purpose, its worktree and its \
                   dispatch."
        = Event::AgentStarted(Box::new(run::AgentStarted {
            agent: 1,
            purpose: run::Purpose::Implement,
            bead_id: Some("k3f9abcd".into()),
            workdir: format!(".muleteer/worktrees/{RUN}/bead-k3f9abcd-1"),
            dispatch: "a1b2c3x3".into(),
            attempt: 0,
            reuse: true,
        }));
    AgentFinished: "The agent ended: `success`, `failure` or `timeout`."
        = Event::AgentFinished(Box::new(run::AgentFinished {
            agent: 1,
            purpose: run::Purpose::Implement,
            bead_id: Some("k3f9abcd".into()),
            status: Outcome::Failure,
            duration_ms: 779_980,
            reason: "exit code 1".into(),
            cost_usd: 0.12,
        }));
    AgentRetried: "An agent that the run needs is restarted."
        = Event::AgentRetried { purpose: run::Purpose::Judge, reason: "exit code 1".into(), counted: true };
    BeadCompleted: "The bead is closed, by the agent or by the harness, and its commits are on the \
                    target branch."
        = Event::BeadCompleted { bead_id: "k3f9abcd".into(), by: "agent".into(), no_change: false, commits: 2 };
    BeadRetried: "The agent did not finish the bead. `reuse`: the next agent continues in the same \
                  worktree; `note`: the text for it."
        = Event::BeadRetried {
            bead_id: "k3f9abcd".into(),
            attempt: 1,
            reason: "incomplete: it ended without closing the bead".into(),
            reuse: true,
            counted: true,
            note: "incomplete".into(),
        };
    BeadBlocked: "The bead has no retries left: it and its dependants wait for a person."
        = Event::BeadBlocked { bead_id: "k3f9abcd".into(), reason: "exit code 1".into(), dependants: vec!["x2ab9999".into()] };
    BeadReopened: "A person reopened a blocked bead; its failure count is reset."
        = Event::BeadReopened { bead_id: "k3f9abcd".into(), by: "operator".into() };
    OutsideClosed: "A dependency outside the run was closed."
        = Event::OutsideClosed { bead_id: "k3f9abcd".into(), on: "bd-7".into() };
    PoolSlowed: "The model API is overloaded or limited: the run starts no agent before `until`, \
                 and counts no attempt."
        = Event::PoolSlowed { until: Timestamp::UNIX_EPOCH, reason: "rate limited".into() };
    ObservationCreated: "An agent recorded an observation for the judge."
        = Event::ObservationCreated { bead_id: "m4n5abcd".into(), created_by: "agent-1".into() };
    MaintenanceStarted: "A maintenance run starts, triggered by the count of beads done in this \
                         iteration."
        = Event::MaintenanceStarted { maintenance: "maint-1".into(), bead_id: "a1b2c3m1".into(), trigger_completed_count: 5 };
    PushUndone: "Muleteer undid an agent's push to the target branch that was not a fast-forward."
        = Event::PushUndone { agent: 2, reason: "undid a push to main that was not a \
            fast-forward".into() };
    MaintenanceCoalesced: "Maintenance was due while another maintenance run was running, which \
                           covers it."
        = Event::MaintenanceCoalesced { completed_count: 10 };
    MaintenanceFinished: "The maintenance run ended: `success`, `failure`, `timeout`, or `stopped` \
                          with its run, to be triggered again."
        = Event::MaintenanceFinished { maintenance: "maint-1".into(), status: "success".into() };
    JudgeStarted: "The judge starts; `round` 2 repeats a round in which it changed files that it \
                   judged."
        = Event::JudgeStarted { iteration: 1, round: 1, observations: vec!["m4n5abcd".into()] };
    JudgeReasoned: "The judge's first pass is done: its reasoning is stored and gets its structure \
                    next."
        = Event::JudgeReasoned { round: 1 };
    JudgeFinished: "The verdict: `pass`, `fail`, `discarded` (the judge changed files that it \
                    judged) or `unreadable`."
        = Event::JudgeFinished(Box::new(run::JudgeFinished {
            iteration: 1,
            verdict: run::Verdict::Fail,
            new_beads: 1,
            reason: "see its result".into(),
            result: Some(verdict()),
        }));
    VerdictApplied: "The verdict was turned into beads, and observations were promoted or \
                     dismissed."
        = Event::VerdictApplied {
            iteration: 1,
            triage: Box::new(run::Triage {
                beads: vec![planned()],
                promoted: vec!["m4n5abcd".into()],
                dismissed: vec!["m4n5abce".into()],
            }),
        };
    IterationStarted: "The run starts an iteration on the findings of the judge."
        = Event::IterationStarted { iteration: 2, beads: vec![planned()] };
    BranchPublished: "The integration branch is in the repository; `merge` is the command to merge \
                      it, `unpushed` the reason why it was not pushed to the remote."
        = Event::BranchPublished { branch: format!("muleteer/{RUN}"), commit: "9fceb02d".into(), merge: "git merge".into(), unpushed: Some("2 of 15 beads are blocked".into()) };
    PrCreated: "The run created a pull request."
        = Event::PrCreated { url: "https://example.org/pull/1".into() };
    BranchPushed: "The branch was pushed to the remote under this name; `page` is the page on \
                   which to create a pull request, if known; `trouble` the reason why `gh` created \
                   none."
        = Event::BranchPushed {
            branch: format!("muleteer/{RUN}"),
            page: Some(format!("https://github.com/o/r/compare/main...muleteer/{RUN}?expand=1")),
            trouble: Some("the pull request could not be made: gh: not logged in".into()),
        };
    RunWorkKept: "The run ended or stopped before it passed: its branch is in the repository. \
                  `clones` are the clones of its agents; `trouble` is the reason why the branch \
                  could not be fetched, and its place."
        = Event::RunWorkKept(run::KeptWork {
            branch: Some(format!("muleteer/{RUN}")),
            commit: Some("9fceb02d".into()),
            commits: 3,
            clones: Some(format!("/repo/.muleteer/worktrees/{RUN}")),
            trouble: Some("cannot fetch the branch into the repository: disk full; the work is in \
                           /state/runs/keep.git".into()),
        });
    RunStopping: "The run starts no more agents and stops the running ones. Without a code it \
                  pauses."
        = Event::RunStopping { code: ErrorCode::Deadlock.into(), message: "all remaining beads depend on \
            blocked beads".into() };
    RunRested: "The run is paused until it is resumed."
        = Event::RunRested {
            status: run::RunStatus::AwaitingApproval,
            reason: "waiting for approval of its beads".into()
        };
    RunCompleted: "The run ended: `completed`, or `partial` if a bead is blocked."
        = Event::RunCompleted { status: run::RunStatus::Completed, total_beads: 15 };
    RunFailed: "The run ended before the judge passed it; the code is one of docs/contract.md."
        = Event::RunFailed {
            code: ErrorCode::MaxIterations.into(),
            message: "the judge found faults in each of 3 iterations".into(),
            status: run::RunStatus::Partial,
        };
    TaskListStarted: "A run of a task list started; `list` is its id, `root` the directory of \
                      `harness-tasks.json`."
        = Event::TaskListStarted(Box::new(Started {
            list: "lstabcde".into(),
            root: "/repo".into(),
            concurrency: 1,
            max_tasks: Some(5),
            branch: Some("main".into()),
            role: "developer".into(),
            backend: Some("claude-code".into()),
            by: "operator".into(),
            trace: Some(TRACE.into()),
        }));
    TaskListSession: "The session was counted; the log's lines have `SESSION-N`."
        = Event::TaskListSession { list: "lstabcde".into(), session: 2 };
    TaskBegun: "Written before a worker claims a task for `dispatch`; `resumed` after an \
                interruption."
        = Event::TaskBegun {
            list: "lstabcde".into(),
            worker: 1,
            task: "task-001".into(),
            dispatch: DispatchId::from_random([1, 2, 3, 4, 5]),
            base: "9fceb02d".into(),
            resumed: false,
        };
    TaskJudged: "The outcome of the attempt by the task's validation; the commit or rollback \
                 follows."
        = Event::TaskJudged {
            list: "lstabcde".into(),
            worker: 1,
            task: "task-001".into(),
            verdict: Judged { passed: false, category: Some("TEST_FAIL".into()), message: "exit 1".into() },
        };
    TaskEnded: "The outcome is in the list; `status` is `completed`, `failed` or `released`."
        = Event::TaskEnded {
            list: "lstabcde".into(),
            worker: 1,
            task: "task-001".into(),
            status: "failed".into(),
            message: "[TEST_FAIL] exit 1".into(),
            counted: true,
        };
    TaskListStopping: "The run was asked to stop: after the running tasks, or `now`."
        = Event::TaskListStopping { list: "lstabcde".into(), now: false, by: "operator".into() };
    TaskListFinished: "The run ended; `status` is `completed`, `failed`, `limit`, `interrupted`, \
                       `invalid`, `environment` or `error`."
        = Event::TaskListFinished {
            list: "lstabcde".into(),
            finished: Finished { status: "completed".into(), reason: "all tasks are completed".into(), code: None },
            stats: "tasks_total=5 completed=5 failed=0 pending=0 blocked=0 attempts_total=6 checkpoints=3".into(),
        };
}

/// Returns one record of every event, in the order of [`Event`], with all optional fields.
pub fn samples() -> Vec<Record> {
    let id = DispatchId::from_random([1, 2, 3, 4, 5]);
    let records = (1..).zip(events()).map(|(seq, event)| {
        let name = event.name();
        // The events before the first dispatch belong to the daemon.
        let of_dispatch = seq > 6;
        let read = matches!(
            event,
            Event::ToolCalled { .. } | Event::UsageRecorded { .. } | Event::OutputRead {}
        );
        let at = Position { epoch: 1, offset: 4096 + seq, skip: 17 };
        let entry = Entry {
            id: format!("{name}-{seq}"),
            dispatch_id: of_dispatch.then(|| id.clone()),
            at: read.then_some(at),
            more: matches!(event, Event::ToolCalled { .. }),
            event,
        };
        Record { v: VERSION, seq, ts: time(), entry }
    });
    records.collect()
}

fn time() -> Timestamp {
    Timestamp::from_millisecond(1_767_261_600_250).unwrap_or_default()
}

fn result() -> AgentResult {
    AgentResult {
        status: ResultStatus::Success,
        summary: "Fixed the parser.".into(),
        changes: vec!["src/lib.rs".into()],
        issues: vec!["slow on large files".into()],
        questions: vec!["keep the old flag?".into()],
        pr_url: Some("https://example.org/pr/1".into()),
    }
}

fn created() -> Created {
    Created {
        role: "developer".into(),
        category: "coding".into(),
        project: "/repo".into(),
        repository: Some("/repo".into()),
        feature: "parser".into(),
        backend: "claude-code".into(),
        model: Some("sonnet".into()),
        model_source: Some("role".into()),
        limits: Limits {
            budget_usd: Some(10.0),
            max_turns: Some(100),
            timeout_s: Some(3600),
            inactivity_timeout_s: 300,
            max_restarts: 3,
        },
        purse: Some(Purse { of: "wxyzabcd".into(), usd: 50.0 }),
        worktree: Some("/repo/.muleteer/worktrees/abcdefgh".into()),
        branch: Some("main".into()),
        journal: "/repo/.agents/journals/parser/developer.md".into(),
        parent: Some(DispatchId::from_random([5, 4, 3, 2, 1])),
        by: "operator".into(),
        multi_turn: true,
        resumable: true,
        wants_result: true,
        calls: None,
        program: None,
        trace: Some(TRACE.into()),
        ask_on_crash: false,
        permissions: muleteer_model::agent::permission::Policy::default(),
        can_ask: true,
        unattended_s: Some(600),
        transcripts: false,
        folds: false,
        api: Terms {
            credential: "ANTHROPIC_API_KEY".into(),
            channel: "claude-code, ANTHROPIC_API_KEY".into(),
            ..Terms::default()
        },
        watched: monitor::Terms {
            responses: Responses {
                loops: Response::Stop,
                drift: Response::Warn,
                spiral: Response::Stop,
                budget: Response::Warn,
            },
            scope: vec!["src/parser/**".into()],
        },
        fingerprint: "5d41402a".into(),
    }
}

fn ask() -> Ask {
    let option = AskOption {
        id: "yes".into(),
        name: "Yes, this once".into(),
        kind: Some("allow_once".into()),
    };
    Ask {
        call_id: Some("t1".into()),
        text: "remove what was built".into(),
        input_cut: true,
        options: vec![option],
        ..Ask::tool("Bash", serde_json::json!({"command": "rm -rf build"}))
    }
}

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const RUN: &str = "run-2026-02-12-a1b2c3";

fn run_started() -> run::RunStarted {
    run::RunStarted {
        run_id: RUN.into(),
        spec: "plan.md".into(),
        title: "Feature X".into(),
        repo: "/repo".into(),
        target: "auto".into(),
        bead_label: Some("v2".into()),
        settings: run_settings(),
        trace: Some(TRACE.into()),
    }
}

fn run_settings() -> run::RunSettings {
    run::RunSettings {
        backend: "claude-code".into(),
        model: Some("opus".into()),
        max_concurrency: 4,
        max_retries: 2,
        timeout_s: 900,
        maintain_every: 5,
        maintain_after_all: false,
        maintain_parallel: true,
        judge: true,
        spec_drift: true,
        acceptance: true,
        acceptance_path: Some("/criteria".into()),
        acceptance_links: false,
        max_iterations: 3,
        judge_only: false,
        human_review: false,
        preview_acceptance: false,
        dry_run: false,
        pull_request: true,
        push: false,
        cleanup: true,
        budget_usd: Some(20.0),
        max_runtime_s: Some(3600),
        confined: false,
        unconfined: "unshare: Operation not permitted (os error 1)".into(),
        exposed: String::new(),
    }
}

fn planned() -> run::Planned {
    run::Planned {
        id: "k3f9abcd".into(),
        title: "Parse the header".into(),
        priority: 1,
        created_at: "2026-02-12T10:00:00.000Z".into(),
        depends_on: vec!["x2ab9999".into()],
        outside: vec!["bd-7".into()],
        closed: true,
    }
}

fn verdict() -> JudgeResult {
    JudgeResult {
        status: "success".into(),
        spec_drift: Some(SpecDrift { detected: true, issues: vec![] }),
        acceptance: Some(Acceptance { passed: true, results: vec![] }),
        new_beads: vec![NewBead {
            title: "Add the callback".into(),
            description: String::new(),
            kind: "task".into(),
        }],
        ..JudgeResult::default()
    }
}

const INTRODUCTION: &str = r#"# Events

<!-- Generated from crates/store/src/events/catalog.rs; a test compares them. Update it with
     UPDATE_DOCS=1 cargo test -p muleteer-store events_doc -->

`events.jsonl` holds one JSON object a line. A line begins with `{"crc":"xxxxxxxx",`: the CRC-32C, in
eight lower-case hex digits, of the bytes after that comma up to the newline. Then, on every line:

| field | is |
|---|---|
| `v` | number: the version of the format, 1 |
| `seq` | number: counts from 1 without gaps |
| `ts` | string: when it was appended, RFC 3339, UTC, milliseconds |
| `id` | string: chosen by who appended it, so that sending it again does not repeat it |
| `dispatch_id` | string: the dispatch it belongs to, if one |
| `at` | object: how far the agent's output had been read (`epoch`, `offset`, `skip`), on events read from it |
| `more` | `true` if the next line belongs to the same batch: a batch is recovered whole or not at all |
| `event` | string: the name, one of those below |
| `info` | `true` if a reader that does not know the event may fold the rest without it |

"or null" means that the field may be null or missing. Viewers skip events they do not know.
"#;

/// Returns the text of `docs/events.md`.
pub fn events_doc() -> String {
    let mut doc = INTRODUCTION.to_string();
    for event in events() {
        doc.push_str(&format!("\n## `{}`\n\n{}\n", event.name(), meaning(&event)));
        let Ok(Value::Object(fields)) = serde_json::to_value(&event) else { continue };
        let fields: Vec<_> = fields.iter().filter(|(name, _)| *name != "event").collect();
        if !fields.is_empty() {
            doc.push_str("\n| field | is | for example |\n|---|---|---|\n");
        }
        for (name, value) in fields {
            let null = if may_be_null(&event, name) { " or null" } else { "" };
            doc.push_str(&format!("| `{name}` | {}{null} | `{}` |\n", kind(value), example(value)));
        }
    }
    doc
}

/// Tries the real parser, so that the documentation cannot be wrong.
fn may_be_null(event: &Event, field: &str) -> bool {
    let mut value = serde_json::to_value(event).unwrap_or_default();
    value[field] = Value::Null;
    serde_json::from_value::<Event>(value).is_ok()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn example(value: &Value) -> String {
    // A bar would end the cell of the table.
    value.to_string().replace('|', "\\|")
}
