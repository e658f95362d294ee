//! The control protocol: the requests that `claude` sends to its parent, and our answers.
//!
//! Every request needs an answer, because `claude` waits for it for ever; an unknown request is
//! rejected. Tested with 2.1.330: it ignores an answer to an unknown request and a second answer to
//! the same one; an answer of a wrong form is a failed tool, not a hang; an interrupt withdraws the
//! open request with `control_cancel_request`; `updatedInput` is optional, but older versions
//! require it.

use crate::claude_code::parser::string;
use muleteer_model::agent::ask::{Answer, Ask, AskKind, AskOption, ID_LIMIT, Verdict};
use muleteer_model::agent::event::{AgentEvent, TEXT_LIMIT, cut};
use muleteer_model::agent::permission::{PermissionMode, Policy, Rule};
use serde_json::{Map, Value, json};

/// The tool by which the agent asks a person.
const QUESTION: &str = "AskUserQuestion";

pub(super) fn request(value: &mut Value) -> Option<Vec<AgentEvent>> {
    let id = string(value, "request_id")?;
    let subtype = value.get("request").and_then(|request| string(request, "subtype"));
    match subtype.as_deref() {
        Some("can_use_tool") => {
            let ask = Box::new(can_use_tool(value.get_mut("request")?));
            Some(vec![AgentEvent::Permission { id, ask }])
        }
        // Only clients that registered hooks or MCP servers get these. We register none.
        Some(what @ ("hook_callback" | "mcp_message")) => {
            Some(vec![AgentEvent::Request { id, what: what.into() }])
        }
        other => {
            let what = cut(other.unwrap_or("unknown"), ID_LIMIT);
            let raw = cut(&value.to_string(), TEXT_LIMIT);
            Some(vec![AgentEvent::Unknown { raw }, AgentEvent::Request { id, what }])
        }
    }
}

fn can_use_tool(request: &mut Value) -> Ask {
    let tool = string(request, "tool_name").unwrap_or_default();
    let input = request.get_mut("input").map(Value::take).unwrap_or_default();
    let (kind, asked, options) = match tool.as_str() {
        QUESTION => (AskKind::Question, questions(&input), choices(&input)),
        _ => (AskKind::Permission, None, vec![]),
    };
    let text = asked
        .or_else(|| string(request, "decision_reason"))
        .or_else(|| string(request, "description"));
    let call_id = string(request, "tool_use_id");
    Ask { kind, call_id, text: text.unwrap_or_default(), options, ..Ask::tool(&tool, input) }
        .bound()
}

fn listed(input: &Value) -> impl Iterator<Item = &Value> {
    input.get("questions").and_then(Value::as_array).into_iter().flatten()
}

fn labels(question: &Value) -> Vec<String> {
    let options = question.get("options").and_then(Value::as_array).into_iter().flatten();
    options.filter_map(|option| string(option, "label")).collect()
}

/// Returns each question with the answers it offers, one per line.
fn questions(input: &Value) -> Option<String> {
    let lines: Vec<_> = listed(input)
        .filter_map(|question| {
            let text = string(question, "question")?;
            let labels = labels(question).join(" | ");
            Some(if labels.is_empty() { text } else { format!("{text} ({labels})") })
        })
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Returns the offered answers if there is exactly one question.
fn choices(input: &Value) -> Vec<AskOption> {
    match listed(input).collect::<Vec<_>>().as_slice() {
        [only] => labels(only)
            .into_iter()
            .map(|label| AskOption { id: label.clone(), name: label, kind: None })
            .collect(),
        _ => vec![],
    }
}

/// Reads the response to a request of ours. With `--replay-user-messages` our own answers are
/// echoed in the same form; those contain `behavior`.
pub(super) fn response(response: &Value) -> Option<Vec<AgentEvent>> {
    let id = string(response, "request_id")?;
    if response.get("response").is_some_and(|body| body.get("behavior").is_some()) {
        return Some(vec![]);
    }
    let ok = response.get("subtype").and_then(Value::as_str) != Some("error");
    let text = if ok {
        String::new()
    } else {
        string(response, "error").unwrap_or_else(|| "it was refused".into())
    };
    Some(vec![AgentEvent::Reply { id, ok, text: cut(&text, TEXT_LIMIT) }])
}

/// Returns the line that answers a request.
pub(super) fn answer(id: &str, ask: &Ask, answer: &Answer) -> Value {
    let said = |otherwise: &str| {
        if answer.text.is_empty() { otherwise.to_string() } else { answer.text.clone() }
    };
    let whole = Some(&ask.input).filter(|input| input.is_object() && !ask.input_cut);
    let body = match (ask.kind, answer.verdict) {
        (AskKind::Other, _) => {
            let error = said("not supported");
            return json!({
                "type": "control_response",
                "response": {"subtype": "error", "request_id": id, "error": error},
            });
        }
        (AskKind::Question, Verdict::Text) => {
            match whole.and_then(|input| answers(input, &answer.text)) {
                Some(input) => json!({"behavior": "allow", "updatedInput": input}),
                None => {
                    json!({
                        "behavior": "deny",
                        "message": format!("The answer is: {}", answer.text),
                    })
                }
            }
        }
        (_, Verdict::Allow) => match whole {
            Some(input) => json!({"behavior": "allow", "updatedInput": input}),
            None => json!({"behavior": "allow"}),
        },
        (AskKind::Question, Verdict::Deny) => {
            json!({"behavior": "deny", "message": said("No person will answer this.")})
        }
        (AskKind::Permission, Verdict::Deny | Verdict::Text) => {
            json!({"behavior": "deny", "message": said("This is not allowed.")})
        }
    };
    json!({
        "type": "control_response",
        "response": {"subtype": "success", "request_id": id, "response": body},
    })
}

/// Returns the questions with their answers. The answer text has one line per question in their
/// order, or one text for all.
fn answers(input: &Value, text: &str) -> Option<Value> {
    let asked: Vec<_> = listed(input).filter_map(|question| string(question, "question")).collect();
    if asked.is_empty() {
        return None;
    }
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let one_each = asked.len() > 1 && lines.len() == asked.len();
    let said = |n: usize| if one_each { lines[n] } else { text.trim() };
    let answers: Map<_, _> =
        asked.iter().enumerate().map(|(n, q)| (q.clone(), said(n).into())).collect();
    let mut input = input.clone();
    input.as_object_mut()?.insert("answers".into(), Value::Object(answers));
    Some(input)
}

/// Returns the settings that make the CLI ask about, or reject, certain actions. Allowed actions
/// are not listed: we allow them when the CLI asks, so that each permission is recorded.
pub(crate) fn settings(policy: &Policy) -> Value {
    let ask: Vec<_> = policy.asks().map(Rule::to_string).collect();
    let deny: Vec<_> = policy.denies().map(Rule::to_string).collect();
    json!({"permissions": {"ask": ask, "deny": deny}})
}

/// Returns the permission mode of the CLI. The role's own mode applies if it would let nothing pass
/// that the policy asks about or rejects. `dontAsk` is never passed: Claude Code would reject calls
/// itself, and no rejection would be recorded. The CLI runs in `default` instead, and the policy
/// rejects.
pub(crate) fn mode(policy: &Policy) -> &'static str {
    match policy.permission_mode {
        _ if policy.is_open() => PermissionMode::BypassPermissions.as_str(),
        Some(mode @ PermissionMode::Plan) => mode.as_str(),
        Some(mode @ (PermissionMode::AcceptEdits | PermissionMode::Auto))
            if policy.leaves_the_rest() =>
        {
            mode.as_str()
        }
        _ => PermissionMode::Default.as_str(),
    }
}

/// Returns the built-in tools that the agent gets, if its role names them; asking a person is
/// added. An empty list means no tools.
pub(crate) fn tools(policy: &Policy) -> Option<Vec<String>> {
    let only = policy.only();
    if only.is_empty() {
        return None;
    }
    let mut names: Vec<String> = Vec::new();
    if policy.has_no_tools() {
        return Some(names);
    }
    let given = only.iter().map(Rule::tool).filter(|tool| !tool.starts_with("mcp__"));
    for name in given.chain([QUESTION]).filter(|name| !policy.never().any(|never| never == *name)) {
        if !names.iter().any(|known| known == name) {
            names.push(name.to_string());
        }
    }
    Some(names)
}

/// Returns the tools that the agent does not get at all.
pub(crate) fn never(policy: &Policy) -> Vec<String> {
    let mut names: Vec<String> = policy.never().map(str::to_string).collect();
    names.sort();
    names.dedup();
    names
}
