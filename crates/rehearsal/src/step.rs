//! Plans a step: the events before it, the action, and the events that report it. This code is
//! pure; the player carries out the action.

use crate::scenario::{Ask, Crash, FileText, Flood, Hang, Loop, Step, ToolCall};
use crate::{UnknownVariable, Vars};
use muleteer_model::agent::ask;
use muleteer_model::agent::event::{AgentEvent, TEXT_LIMIT, TurnError, TurnResult, both_ends, cut};
use muleteer_model::agent::result::{AgentResult, ResultStatus};
use serde_json::{Value, json};
use std::time::Duration;

/// A step, ready to be carried out.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Printed before the action.
    pub before: Vec<AgentEvent>,
    pub act: Act,
    /// The id of the tool call that [`report`] answers.
    pub call: Option<String>,
    /// Printed after the session file records the step as done.
    pub after: Vec<AgentEvent>,
}

/// An action of the player.
#[derive(Debug, Clone, PartialEq)]
pub enum Act {
    Nothing,
    Write {
        path: String,
        text: String,
        append: bool,
    },
    Run {
        command: String,
        may_fail: bool,
        timeout: Option<Duration>,
    },
    Commit {
        message: String,
    },
    /// Does nothing for a while, or for ever without a span. `deaf`: ignores an interrupt.
    Wait {
        span: Option<Duration>,
        deaf: bool,
    },
    /// Waits for the answer to `id` and then prints `answered`.
    Ask {
        id: String,
        patience: Option<Duration>,
        answered: Box<AgentEvent>,
    },
    /// Prints one round after another, with a pause after each.
    Rounds {
        rounds: Vec<Vec<AgentEvent>>,
        every: Duration,
    },
    Noise(Noise),
    /// A line of stderr.
    Complain(String),
    Crash {
        code: Option<i32>,
        signal: Option<String>,
    },
    IgnoreTerm,
    Leak(Duration),
    EndTurn(Box<TurnResult>),
    Exit(i32),
}

/// Bytes for stdout that are not events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Noise {
    Line(String),
    /// `output` events of `line` bytes each.
    Flood {
        bytes: u64,
        line: u64,
    },
    Garbage {
        bytes: u64,
        seed: u64,
    },
    LongLine {
        bytes: u64,
        newline: bool,
    },
}

/// The outcome of an action.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    pub ok: bool,
    pub text: String,
    pub exit_code: Option<i64>,
}

/// Returns the plan of one step. `id` names the step within its session; tool calls use that name.
///
/// # Errors
/// A `${name}` without a value.
pub fn plan(step: &Step, id: &str, model: &str, vars: &Vars) -> Result<Plan, UnknownVariable> {
    let x = |text: &str| vars.expand(text);
    let nothing =
        |before: Vec<AgentEvent>| Plan { before, act: Act::Nothing, call: None, after: vec![] };
    let does = |act: Act| Plan { before: vec![], act, call: None, after: vec![] };
    let tool = |name: &str, input: Value, act: Act| Plan {
        before: vec![AgentEvent::ToolCall { id: id.to_string(), name: name.to_string(), input }],
        act,
        call: Some(id.to_string()),
        after: vec![],
    };
    Ok(match step {
        Step::Say(text) => {
            let text = x(text)?;
            nothing(vec![AgentEvent::Text { chars: text.chars().count() as u64, text }])
        }
        Step::Think(text) => {
            let text = x(text)?;
            nothing(vec![AgentEvent::Thinking { chars: text.chars().count() as u64, text }])
        }
        Step::Write(FileText { path, text }) => {
            let (path, text) = (x(path)?, x(text)?);
            let input = json!({"file_path": path, "content": text});
            tool("Write", input, Act::Write { path, text, append: false })
        }
        Step::Append(FileText { path, text }) => {
            let (path, text) = (x(path)?, x(text)?);
            let input = json!({"file_path": path, "old_string": "", "new_string": text});
            tool("Edit", input, Act::Write { path, text, append: true })
        }
        Step::Run(run) => {
            let act = Act::Run {
                command: run.command.clone(),
                may_fail: run.may_fail,
                timeout: run.timeout.map(|span| span.0),
            };
            tool("Bash", json!({"command": run.command}), act)
        }
        Step::Commit(message) => {
            let message = x(message)?;
            let input = json!({"command": format!("git add -A && git commit -m {message:?}")});
            tool("Bash", input, Act::Commit { message })
        }
        Step::ToolCall(call) => tool_call(call, id, vars)?,
        Step::Usage(usage) => nothing(vec![AgentEvent::Usage {
            total_usd: None,
            input: usage.input,
            output: usage.output,
            cost_usd: usage.cost_usd,
            cache_read: usage.cache_read,
            cache_write: usage.cache_write,
            model: Some(model.to_string()),
            call: None,
        }]),
        Step::Wait(span) => does(Act::Wait { span: Some(span.0), deaf: false }),
        Step::Ask(ask) => asks(ask, id, vars)?,
        Step::Emit(event) => nothing(vec![event.clone()]),
        Step::Print(line) => does(Act::Noise(Noise::Line(x(line)?))),
        Step::Complain(line) => does(Act::Complain(x(line)?)),
        Step::Crash(Crash { code, signal, .. }) => {
            let code = code.or(if signal.is_none() { Some(1) } else { None });
            does(Act::Crash { code, signal: signal.clone() })
        }
        Step::Hang(Hang { patience, deaf }) => {
            does(Act::Wait { span: patience.map(|p| p.0), deaf: *deaf })
        }
        Step::Loop(wanted) => {
            does(Act::Rounds { rounds: rounds(wanted, id, vars)?, every: wanted.every.0 })
        }
        Step::Flood(Flood { bytes, line }) => {
            does(Act::Noise(Noise::Flood { bytes: bytes.0, line: line.0 }))
        }
        Step::Garbage(garbage) => {
            does(Act::Noise(Noise::Garbage { bytes: garbage.bytes.0, seed: garbage.seed }))
        }
        Step::LongLine(long) => {
            does(Act::Noise(Noise::LongLine { bytes: long.bytes.0, newline: long.newline }))
        }
        Step::IgnoreTerm(true) => does(Act::IgnoreTerm),
        Step::IgnoreTerm(false) => does(Act::Nothing),
        Step::Leak(leak) => does(Act::Leak(leak.life.0)),
        Step::Result(doc) => does(Act::EndTurn(Box::new(success(doc, vars)?))),
        Step::InvalidResult(doc) => does(Act::EndTurn(Box::new(TurnResult {
            ok: true,
            text: Some(expand_value(doc, vars)?.to_string()),
            structured: Some(expand_value(doc, vars)?),
            ..TurnResult::default()
        }))),
        Step::Fail(fail) => does(Act::EndTurn(Box::new(TurnResult {
            ok: false,
            error: Some(fail.error),
            status: fail.status,
            text: Some(x(&fail.text)?),
            ..TurnResult::default()
        }))),
        Step::Exit(code) => does(Act::Exit(*code)),
    })
}

/// Returns the events to print after the session file records the step as done.
pub fn report(plan: &Plan, outcome: &Outcome) -> Vec<AgentEvent> {
    let answer = plan.call.as_ref().map(|id| AgentEvent::ToolResult {
        id: id.clone(),
        ok: outcome.ok,
        text: both_ends(&outcome.text, TEXT_LIMIT),
        exit_code: outcome.exit_code,
    });
    plan.after.iter().cloned().chain(answer).collect()
}

/// Returns the result of a turn without further steps: the agent is done and returned no document.
pub fn silent_end() -> TurnResult {
    TurnResult { ok: true, ..TurnResult::default() }
}

/// Returns the result of an interrupted turn.
pub fn interrupted() -> TurnResult {
    TurnResult { ok: false, error: Some(TurnError::Interrupted), ..TurnResult::default() }
}

/// Returns the result of a turn that cannot continue: a command failed that must not, or a file
/// could not be written.
pub fn broken(text: &str) -> TurnResult {
    let text = cut(text, TEXT_LIMIT);
    let doc = AgentResult::new(ResultStatus::Failed, text.clone());
    TurnResult {
        ok: true,
        text: Some(text),
        structured: serde_json::to_value(doc).ok(),
        ..TurnResult::default()
    }
}

fn tool_call(call: &ToolCall, id: &str, vars: &Vars) -> Result<Plan, UnknownVariable> {
    let input = expand_value(&call.input, vars)?;
    let text = vars.expand(&call.text)?;
    let result =
        AgentEvent::ToolResult { id: id.to_string(), ok: call.ok, text, exit_code: call.exit_code };
    Ok(Plan {
        before: vec![AgentEvent::ToolCall { id: id.to_string(), name: call.name.clone(), input }],
        act: Act::Wait { span: Some(call.takes.0), deaf: false },
        call: None,
        after: if call.returns { vec![result] } else { vec![] },
    })
}

fn asks(wanted: &Ask, id: &str, vars: &Vars) -> Result<Plan, UnknownVariable> {
    let id = id.to_string();
    let patience = wanted.patience.map(|span| span.0);
    let (asked, answered) = match &wanted.question {
        Some(question) => (
            vec![AgentEvent::Question { id: id.clone(), text: vars.expand(question)? }],
            Box::new(AgentEvent::Answer { id: id.clone(), text: String::new() }),
        ),
        None => {
            let what = vars.expand(wanted.permission.as_deref().unwrap_or_default())?;
            let about = ask::Ask { text: what.clone(), ..ask::Ask::default() }.bound();
            let asked = vec![
                AgentEvent::Text { chars: what.chars().count() as u64, text: what },
                AgentEvent::Permission { id: id.clone(), ask: Box::new(about) },
            ];
            (asked, Box::new(AgentEvent::PermissionAnswer { id: id.clone() }))
        }
    };
    Ok(Plan { before: asked, act: Act::Ask { id, patience, answered }, call: None, after: vec![] })
}

fn rounds(wanted: &Loop, id: &str, vars: &Vars) -> Result<Vec<Vec<AgentEvent>>, UnknownVariable> {
    let input = expand_value(&wanted.input, vars)?;
    let text = vars.expand(&wanted.text)?;
    let round = |n: u32| {
        let id = format!("{id}.{n}");
        vec![
            AgentEvent::ToolCall {
                id: id.clone(),
                name: wanted.name.clone(),
                input: input.clone(),
            },
            AgentEvent::ToolResult { id, ok: wanted.ok, text: text.clone(), exit_code: None },
        ]
    };
    Ok((1..=wanted.times).map(round).collect())
}

fn success(result: &AgentResult, vars: &Vars) -> Result<TurnResult, UnknownVariable> {
    let text = Some(vars.expand(&result.summary)?);
    let document = serde_json::to_value(result).ok();
    let structured = document.map(|document| expand_value(&document, vars)).transpose()?;
    Ok(TurnResult { ok: true, text, structured, ..TurnResult::default() })
}

fn expand_value(value: &Value, vars: &Vars) -> Result<Value, UnknownVariable> {
    Ok(match value {
        Value::String(text) => Value::String(vars.expand(text)?),
        Value::Array(items) => Value::Array(
            items.iter().map(|item| expand_value(item, vars)).collect::<Result<_, _>>()?,
        ),
        Value::Object(map) => Value::Object(
            map.iter()
                .map(|(key, item)| Ok((key.clone(), expand_value(item, vars)?)))
                .collect::<Result<_, _>>()?,
        ),
        other => other.clone(),
    })
}

impl Noise {
    /// Returns the bytes in pieces, so that memory use does not depend on their number.
    pub fn pieces(&self) -> Box<dyn Iterator<Item = Vec<u8>> + '_> {
        const PIECE: u64 = 64 * 1024;
        let sizes =
            |bytes: u64| (0..bytes.div_ceil(PIECE)).map(move |n| (bytes - n * PIECE).min(PIECE));
        match self {
            Self::Line(line) => Box::new(std::iter::once(format!("{line}\n").into_bytes())),
            Self::Flood { bytes, line } => {
                let text =
                    "x".repeat(usize::try_from(*line).unwrap_or_default().saturating_sub(30));
                let line = format!("{{\"type\":\"output\",\"text\":\"{text}\"}}\n").into_bytes();
                let times = bytes.div_ceil(line.len() as u64);
                let per_piece = (PIECE / line.len() as u64).max(1);
                Box::new((0..times.div_ceil(per_piece)).map(move |n| {
                    let lines = (times - n * per_piece).min(per_piece);
                    line.repeat(usize::try_from(lines).unwrap_or(1))
                }))
            }
            Self::Garbage { bytes, seed } => {
                let mut state = seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15);
                let body = sizes(*bytes).map(move |n| (0..n).map(|_| random(&mut state)).collect());
                Box::new(body.chain(std::iter::once(b"\n".to_vec())))
            }
            Self::LongLine { bytes, newline } => {
                let body =
                    sizes(*bytes).map(|n| vec![b'x'; usize::try_from(n).unwrap_or_default()]);
                let end = newline.then(|| b"\n".to_vec());
                Box::new(body.chain(end))
            }
        }
    }
}

/// xorshift64: the same seed gives the same garbage.
fn random(state: &mut u64) -> u8 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 24) as u8
}
