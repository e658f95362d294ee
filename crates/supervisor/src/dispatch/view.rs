//! Renders the folded fleet for `status`, in the same way for a live daemon and from disk.

use crate::daemon::paths::Paths;
use crate::dispatch::saved::{Saved, prompt_file};
use crate::question::view as question;
use jiff::Timestamp;
use muleteer_model::admission;
use muleteer_model::admission::api_backpressure;
use muleteer_model::admission::queue::{Queue, SlotWait};
use muleteer_model::agent::ask::{AskKind, Pending};
use muleteer_model::agent::event::cut;
use muleteer_model::agent::result::AgentResult;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::dispatch::work::WorkHome;
use muleteer_model::dispatch::{Dispatch, Phase};
use muleteer_model::question::Question;
use muleteer_protocol::v1::{
    AskStatus, DispatchStatus, LeftDoc, ProcessStatus, ResultDoc, Tokens, WorkDoc,
};
use std::collections::BTreeSet;
use std::io::Read as _;
use std::sync::{LazyLock, Mutex, PoisonError};
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

/// The limit of a task in a status, in bytes. The prompt's file has all of it.
const TASK_LIMIT: usize = 4000;

/// Returns every dispatch, oldest first.
pub fn statuses(fleet: &Fleet) -> Vec<DispatchStatus> {
    let queue = Queue::of(fleet);
    fleet.iter().map(|dispatch| status_in(&queue, fleet, dispatch)).collect()
}

pub fn status(fleet: &Fleet, d: &Dispatch) -> DispatchStatus {
    let queue = if d.phase == Phase::Queued { Queue::of(fleet) } else { Queue::default() };
    status_in(&queue, fleet, d)
}

fn status_in(queue: &Queue, fleet: &Fleet, d: &Dispatch) -> DispatchStatus {
    let created = &d.created;
    DispatchStatus {
        id: d.id.to_string(),
        role: created.role.clone(),
        project: created.project_name().to_string(),
        feature: created.feature.clone(),
        state: d.state().into(),
        since: time(d.since),
        backend: created.backend.clone(),
        model: d.model_in_use().cloned(),
        model_source: created.model_source.clone(),
        session_id: d.session.id.clone(),
        turns: d.turns,
        attempts: d.attempts,
        last_activity: d.last_activity.map(time),
        cost_usd: d.spend.cost_usd,
        tokens: Tokens {
            input: d.spend.input,
            output: d.spend.output,
            cache_read: d.spend.cache_read,
            cache_write: d.spend.cache_write,
        },
        worktree: created.clone_of_its_own().map(String::from),
        journal: Some(created.journal.clone()),
        pid: d.pid(),
        reason: reason(fleet, d)
            .or_else(|| held_back(fleet, d))
            .or_else(|| queue.wait_of(d).as_ref().map(SlotWait::describe)),
        until: d.outage.as_ref().filter(|_| d.waits_for_api()).map(|outage| time(outage.until)),
        containment: d.containment.clone(),
        waiting_for: asks(fleet, d),
        result: d.result.value.as_ref().filter(|_| d.is_finished()).and_then(on_the_wire),
        work: d.files.work.as_ref().map(|work| work_doc(work, created.worktree.as_deref())),
        title: created.title.clone(),
        spec: created.spec.clone(),
        task: None,
        access: None,
    }
}

/// Returns one dispatch in full: with what its agent may do.
pub fn in_full(fleet: &Fleet, d: &Dispatch) -> DispatchStatus {
    DispatchStatus { access: Some(d.created.access()), ..status(fleet, d) }
}

/// Returns the beginning of a dispatch's first prompt; `None` once its files were removed.
pub fn task(d: &Dispatch, paths: &Paths) -> Option<String> {
    let key = &d.prompts.first()?.key;
    let dir = paths.agent(d.id.as_str());
    let mut bytes = vec![];
    match std::fs::File::open(prompt_file(&dir, key).ok()?) {
        Ok(file) => {
            file.take(TASK_LIMIT as u64 + 4).read_to_end(&mut bytes).ok()?;
        }
        // The file is written when the agent starts.
        Err(_) => {
            bytes = Saved::read(&dir).ok()?.prompt?.into_bytes();
            bytes.truncate(TASK_LIMIT + 4);
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    // The limit may have split a character.
    Some(cut(text.trim_end_matches('\u{fffd}').trim(), TASK_LIMIT))
}

/// Returns a result as the protocol has it. The two types have the same keys, and the protocol's
/// type must not change, so that older clients can read it.
fn on_the_wire(result: &AgentResult) -> Option<ResultDoc> {
    serde_json::to_value(result).and_then(serde_json::from_value).ok()
}

fn work_doc(work: &WorkHome, clone: Option<&str>) -> WorkDoc {
    WorkDoc {
        branch: work.commit.is_some().then(|| work.branch.clone()),
        commit: work.commit.clone(),
        commits: work.commits,
        left: work
            .left
            .iter()
            .map(|left| LeftDoc { name: left.name.clone(), what: left.what.clone() })
            .collect(),
        skipped: work.skipped.clone(),
        trouble: work.trouble.clone(),
        summary: work.describe(clone),
    }
}

/// Adds the time of the agent's last output, which left no event.
pub fn heard(status: &mut DispatchStatus, at: Timestamp) {
    // The texts have one format, so they sort by time.
    status.last_activity = status.last_activity.take().max(Some(time(at)));
}

/// Returns the requests for whose answers a dispatch waits, oldest first.
pub fn asks(fleet: &Fleet, d: &Dispatch) -> Vec<AskStatus> {
    let of_calls = questions(fleet, d).map(question::asked);
    waiting_for(d).map(|pending| waiting(fleet, d, pending)).chain(of_calls).collect()
}

/// Returns the open questions for which calls of MCP tools wait, or waited until the hold.
fn questions<'a>(fleet: &'a Fleet, d: &'a Dispatch) -> impl Iterator<Item = &'a Question> {
    let waits = d.mcp.waits.iter().filter_map(|wait| wait.question.as_ref());
    let ids: BTreeSet<_> = waits.chain(&d.mcp.held).filter(|_| d.waits_for_an_answer()).collect();
    let known = ids.into_iter().filter_map(|id| fleet.questions.get(id));
    known.filter(|question| question.is_open())
}

/// Returns the first of these questions, and the command that answers it.
fn asks_human(fleet: &Fleet, d: &Dispatch) -> Option<String> {
    let question = questions(fleet, d).next()?;
    let text = cut(question.text.lines().next().unwrap_or_default(), 200);
    Some(format!("asks: {text} `muleteer answer {} TEXT`", question.id))
}

/// Returns the requests that a dispatch waits for, one for each question.
fn waiting_for(d: &Dispatch) -> impl Iterator<Item = &Pending> {
    let mut seen = BTreeSet::new();
    let open = d.asks.unanswered().filter(|_| d.waits_for_an_answer());
    open.filter(move |pending| seen.insert(&pending.question))
}

/// Returns the id of the question that a request is.
pub fn request_id<'a>(fleet: &'a Fleet, d: &Dispatch, pending: &'a Pending) -> &'a str {
    let question = fleet.questions.of_request(&d.id, &pending.question);
    question.map_or(&pending.id, |question| &question.id)
}

fn waiting(fleet: &Fleet, d: &Dispatch, pending: &Pending) -> AskStatus {
    let Pending { ask, since, .. } = pending;
    let kind = if ask.kind == AskKind::Question { "question" } else { "permission" };
    AskStatus {
        request_id: request_id(fleet, d, pending).into(),
        kind: kind.into(),
        tool: ask.tool.clone(),
        target: ask.target.clone(),
        text: ask.text.clone(),
        options: ask.options.iter().map(|option| option.name.clone()).collect(),
        since: time(*since),
    }
}

/// Returns what the dispatch waits for, and the command that answers it.
pub fn how_to_answer(d: &Dispatch) -> Option<String> {
    let mut open = waiting_for(d);
    let first = open.next()?;
    let more = open.count();
    let words = if first.ask.kind == AskKind::Question { "TEXT|deny" } else { "allow|deny|TEXT" };
    let which = if more > 0 { format!(" --request {}", first.id) } else { String::new() };
    let rest = if more > 0 { format!(" (and {more} more)") } else { String::new() };
    Some(format!("{}{rest} `muleteer answer {} {words}{which}`", first.ask.describe(), d.id))
}

fn reason(fleet: &Fleet, d: &Dispatch) -> Option<String> {
    if let Some(outage) = d.outage.as_ref().filter(|_| d.waits_for_api()) {
        return Some(outage.waiting(Timestamp::now()));
    }
    match &d.phase {
        Phase::Backoff { until, .. } => {
            let why = match d.reason.as_deref().unwrap_or_default() {
                "" => "its agent cannot load so young a session",
                why => why,
            };
            Some(format!("restarts at {}: {why}", time(*until)))
        }
        Phase::Working { process, .. } if process.blocked_by_us => {
            Some("its output is paused: the spool or the disk is full".into())
        }
        _ if d.waits_for_an_answer() => how_to_answer(d).or_else(|| asks_human(fleet, d)),
        _ if d.waits_for_agents() => Some("waits for other agents (`await_agent`)".into()),
        Phase::Working { turn, .. } if turn.was_interrupted() && !d.has_unheard() => {
            Some(format!("interrupted: continue its session with `muleteer send {} …`", d.id))
        }
        Phase::Working { .. } if d.warnings.monitor.is_some() && d.stop.is_none() => {
            d.warnings.monitor.clone()
        }
        _ => d.reason.clone().filter(|reason| !reason.is_empty()),
    }
}

/// Returns why a dispatch does not start, if others have met a limit of its channel.
fn held_back(fleet: &Fleet, d: &Dispatch) -> Option<String> {
    let channel = api_backpressure::channel(d);
    let pressure = fleet.pressures.get(channel).filter(|_| d.phase == Phase::Queued)?;
    let now = Timestamp::now();
    (pressure.places_at(now) < admission::at_work(fleet, channel).saturating_add(1))
        .then(|| pressure.describe(channel, now))
}

/// Returns what the pool holds back, for `tree`.
pub fn pool_state(fleet: &Fleet, max_agents: u32) -> Option<String> {
    let now = Timestamp::now();
    let pressed =
        fleet.pressures.iter().filter(|(_, pressure)| pressure.places_at(now) < max_agents);
    let texts: Vec<_> =
        pressed.map(|(channel, pressure)| pressure.describe(channel, now)).collect();
    (!texts.is_empty()).then(|| format!("running; {}", texts.join("; ")))
}

fn time(at: Timestamp) -> String {
    format!("{at:.3}")
}

/// Returns memory and CPU use of one process; `None` if it is gone.
pub fn process(pid: u32) -> Option<ProcessStatus> {
    // It is kept between calls, because CPU use is measured from one call to the next.
    static SYSTEM: LazyLock<Mutex<Option<System>>> =
        LazyLock::new(|| Mutex::new(System::new().ok()));
    let mut system = SYSTEM.lock().unwrap_or_else(PoisonError::into_inner);
    let system = system.as_mut()?;
    let pid_of = Pid::from_u32(pid);
    let what = ProcessRefreshKind::nothing().with_memory().with_cpu();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid_of]), true, what);
    let process = system.process(pid_of)?;
    Some(ProcessStatus { pid, rss_bytes: process.memory(), cpu_percent: process.cpu_usage() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use muleteer_model::agent::result::{FIELDS, ResultStatus};

    #[test]
    fn wire_result_keeps_every_field_of_the_result() {
        let result = AgentResult {
            changes: vec!["src/lib.rs".into()],
            issues: vec!["slow".into()],
            questions: vec!["why?".into()],
            pr_url: Some("https://example.org/pr/1".into()),
            ..AgentResult::new(ResultStatus::Partial, "half of it")
        };
        let sent = serde_json::to_value(on_the_wire(&result).unwrap()).unwrap();
        assert_eq!(sent, serde_json::to_value(&result).unwrap());
        assert!(sent.as_object().unwrap().keys().eq(FIELDS.iter()));
    }
}
