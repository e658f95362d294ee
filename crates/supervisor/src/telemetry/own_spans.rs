//! The daemon's own spans: a slow request, a restart of an actor, a slow recovery. They tell where
//! time went that no event tells.

use crate::telemetry::provider::{TARGET, set_failed, set_parent};
use muleteer_model::event::mcp;
use muleteer_protocol::v1::{Request, ServerFrame};
use muleteer_telemetry::{Context, Settings};
use tracing::Span;
use tracing::field::Empty;

/// A request that is answered within this time has no span. Each request of a slow command would
/// have one otherwise.
const SLOW_REQUEST_MS: i64 = 1_000;
/// A recovery that takes no longer has no span.
const SLOW_RECOVERY_MS: i64 = 5_000;

/// Begins the span of a request below the span that its client sent. Returns a disabled span if
/// there is none.
pub fn request(settings: Option<&Settings>, body: &Request, trace: Option<&str>) -> Span {
    let above = trace.filter(|_| exports(settings)).and_then(Context::parse);
    let Some((above, name)) = above.zip(name(body)) else { return Span::none() };
    let span = tracing::info_span!(
        target: TARGET,
        parent: None,
        "request",
        otel.name = format!("request {name}").as_str(),
        otel.kind = "server",
        muleteer.request = name,
        muleteer.slow_ms = SLOW_REQUEST_MS,
    );
    set_parent(&span, above);
    span
}

/// Marks the span of a request whose answer is an error.
pub fn answered(span: &Span, frame: &ServerFrame) {
    if let ServerFrame::Error { error, .. } = frame {
        set_failed(span, &error.code);
    }
}

/// Begins the span of a restart, from the failure of an actor until it and those that restart with
/// it run again. `trace` is that of the actor's dispatch.
pub fn restart(settings: Option<&Settings>, node: &str, actor: &str, trace: Option<&str>) -> Span {
    if !exports(settings) {
        return Span::none();
    }
    let span = tracing::info_span!(
        target: TARGET,
        parent: None,
        "restart",
        otel.name = format!("restart {node}").as_str(),
        muleteer.actor = actor,
    );
    if let Some(above) = trace.and_then(Context::parse) {
        set_parent(&span, above);
    }
    span
}

/// Begins the span of a daemon's start, which is recovery. Whether it is exported is not known
/// before the configuration is read.
pub fn recovery() -> Span {
    tracing::info_span!(
        target: TARGET,
        parent: None,
        "recovery",
        muleteer.generation = Empty,
        muleteer.events = Empty,
        muleteer.slow_ms = SLOW_RECOVERY_MS,
    )
}

/// Ends the span of a recovery.
pub fn recovered(span: Span, generation: u64, events: u64) {
    let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    span.record("muleteer.generation", number(generation));
    span.record("muleteer.events", number(events));
}

fn exports(settings: Option<&Settings>) -> bool {
    settings.is_some_and(|settings| settings.traces.is_some())
}

/// Returns the name of a request. A request that its client ends, or that lasts as long as the work
/// of an agent, has none.
fn name(body: &Request) -> Option<&'static str> {
    match body {
        Request::Wait { .. }
        | Request::WaitAny { .. }
        | Request::Events { .. }
        | Request::RunEvents { .. }
        | Request::TasksWait { .. }
        | Request::ThreadWait { .. }
        | Request::MeetingWait { .. }
        | Request::Ping
        | Request::Unknown => None,
        Request::Spawn(_) => Some("spawn"),
        Request::Status { .. } => Some("status"),
        Request::Tree => Some("tree"),
        Request::Send { .. } => Some("send"),
        Request::Interrupt { .. } => Some("interrupt"),
        Request::Kill { .. } => Some("kill"),
        Request::Close { .. } => Some("close"),
        Request::Answer { .. } => Some("answer"),
        Request::SetModel { .. } => Some("model"),
        Request::Prune { .. } => Some("prune"),
        Request::Clean(_) => Some("clean"),
        Request::Stop { .. } => Some("stop"),
        Request::Bead { .. } => Some("bead"),
        Request::Run(_) => Some("run"),
        Request::RunAmend(_) => Some("run amend"),
        Request::RunStop { .. } => Some("run stop"),
        Request::TasksRun(_) => Some("tasks run"),
        Request::ThreadNew(_) => Some("thread new"),
        Request::ThreadSend(_) => Some("thread send"),
        Request::ThreadArchive { .. } => Some("thread archive"),
        Request::ConfigSet { .. } => Some("config set"),
        Request::Threads => Some("thread list"),
        Request::ThreadShow { .. } => Some("thread show"),
        Request::ThreadFollow(_) => Some("thread follow"),
        Request::Tool(call) => mcp::Tool::named(&call.tool).map(mcp::Tool::name),
        Request::Tools { .. } | Request::ToolTaken(_) => None,
        Request::Adapters => Some("adapter list"),
        Request::Adapter { .. } => Some("adapter"),
        Request::Schedules => Some("schedule list"),
        Request::ScheduleRun { .. } => Some("schedule run"),
        Request::Meetings { .. } => Some("meeting list"),
        Request::MeetingStart(_) => Some("meeting start"),
        Request::MeetingEnd { .. } => Some("meeting end"),
        Request::Questions { .. } => Some("questions"),
        Request::TasksStop { .. } => Some("tasks stop"),
    }
}
