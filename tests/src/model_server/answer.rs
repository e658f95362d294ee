//! Writes answers of the Messages API, whole or streamed. `false` means: close the connection.

use super::step::Step;
use super::words::in_words_of;
use super::{Shared, http};
use serde_json::{Value, json};
use std::io;
use std::net::TcpStream;

/// Answers `/v1/models`, `count_tokens`, and every other secondary request of a CLI.
pub(super) fn other(out: &TcpStream, method: &str, path: &str) -> io::Result<bool> {
    let body = match (method, path) {
        (_, path) if path.ends_with("/count_tokens") => json!({"input_tokens": 1000}),
        (_, path) if path.contains("/models") => json!({
            "data": [{"type": "model", "id": "claude-sonnet-4-5", "display_name": "scripted",
                      "created_at": "2026-01-01T00:00:00Z"}],
            "models": [], "has_more": false, "first_id": "claude-sonnet-4-5",
            "last_id": "claude-sonnet-4-5"
        }),
        ("HEAD", _) => {
            http::json(out, 200, &[], &json!({}))?;
            return Ok(false); // the body above must not be taken for the next answer
        }
        _ => json!({}),
    };
    http::json(out, 200, &[], &body)?;
    Ok(true)
}

/// Does the part that all APIs share: wait, stay silent, refuse with the body that `error` returns
/// for a status. On `None` the step answers.
pub(super) fn early(
    out: &TcpStream,
    shared: &Shared,
    step: &Step,
    error: impl FnOnce(u16) -> Value,
) -> io::Result<Option<bool>> {
    if let Some(delay) = step.pre_delay {
        shared.pause(delay);
    }
    if step.held {
        shared.wait_for_release();
    }
    if let Some(silence) = step.hang {
        shared.pause(silence);
        return Ok(Some(false));
    }
    if let Some(status) = step.status {
        http::json(out, status, &step.headers, &error(status))?;
        return Ok(Some(true));
    }
    Ok(None)
}

pub(super) fn messages(
    out: &TcpStream,
    shared: &Shared,
    request: &Value,
    step: &Step,
) -> io::Result<bool> {
    let message = message(shared, request, step);
    if request["stream"].as_bool() != Some(true) {
        http::json(out, 200, &step.headers, &message)?;
        return Ok(true);
    }
    stream(out, shared, step, message)
}

fn message(shared: &Shared, request: &Value, step: &Step) -> Value {
    let mut content = Vec::new();
    if let Some(text) = &step.text {
        content.push(json!({"type": "text", "text": text}));
    }
    let mut calls = step.tools.clone();
    if let Some(document) = &step.document {
        let enforced = request["tools"]
            .as_array()
            .is_some_and(|tools| tools.iter().any(|tool| tool["name"] == "StructuredOutput"));
        if enforced {
            calls.push(("StructuredOutput".into(), document.clone()));
        } else {
            content.push(json!({"type": "text", "text": document.to_string()}));
        }
    }
    let stop = step.stop_reason.as_deref().unwrap_or(if calls.is_empty() {
        "end_turn"
    } else {
        "tool_use"
    });
    for (name, input) in calls {
        let (name, input) = in_words_of(request, &name, &input);
        content.push(json!({"type": "tool_use", "id": shared.next_id("toolu"), "name": name,
            "input": input}));
    }
    let mut usage = json!({
        "input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
        "output_tokens": 20, "service_tier": "standard"
    });
    for (key, value) in step.usage.iter().filter_map(Value::as_object).flatten() {
        usage[key] = value.clone();
    }
    json!({
        "id": shared.next_id("msg"), "type": "message", "role": "assistant",
        "model": request["model"],
        "content": content, "stop_reason": stop, "stop_sequence": null, "usage": usage
    })
}

fn stream(out: &TcpStream, shared: &Shared, step: &Step, message: Value) -> io::Result<bool> {
    let send = |data: &Value| {
        if let Some(delay) = step.chunk_delay {
            shared.pause(delay);
        }
        http::event(out, data)
    };
    let (content, stop, usage) =
        (message["content"].clone(), message["stop_reason"].clone(), message["usage"].clone());
    let mut start = message;
    start["content"] = json!([]);
    start["stop_reason"] = Value::Null;
    start["usage"]["output_tokens"] = json!(1);

    http::stream(out, &step.headers)?;
    send(&json!({"type": "message_start", "message": start}))?;
    send(&json!({"type": "ping"}))?;
    for (index, block) in content.as_array().into_iter().flatten().enumerate() {
        let (empty, pieces) = pieces(block);
        send(&json!({"type": "content_block_start", "index": index, "content_block": empty}))?;
        for (at, delta) in pieces.into_iter().enumerate() {
            send(&json!({"type": "content_block_delta", "index": index, "delta": delta}))?;
            if at == 0 && step.die_mid {
                return Ok(false);
            }
            if let Some(silence) = step.hang_mid.filter(|_| at == 0) {
                shared.pause(silence);
                return Ok(false);
            }
        }
        send(&json!({"type": "content_block_stop", "index": index}))?;
    }
    send(&json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null},
            "usage": usage}))?;
    send(&json!({"type": "message_stop"}))?;
    http::end_of_stream(out)?;
    Ok(true)
}

/// Returns a content block as it begins, and the deltas that fill it: always several, as a real
/// model sends.
fn pieces(block: &Value) -> (Value, Vec<Value>) {
    let mut empty = block.clone();
    if block["type"] == "text" {
        empty["text"] = json!("");
        let text = block["text"].as_str().unwrap_or_default();
        let parts = split(text).into_iter().map(|part| json!({"type": "text_delta", "text": part}));
        (empty, parts.collect())
    } else {
        empty["input"] = json!({});
        let input = block["input"].to_string();
        let parts = split(&input)
            .into_iter()
            .map(|part| json!({"type": "input_json_delta", "partial_json": part}));
        (empty, parts.collect())
    }
}

pub(super) fn split(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    characters.chunks(40).map(|chunk| chunk.iter().collect()).collect()
}

/// Returns an error as Anthropic's API words it.
pub(super) fn error(status: u16) -> Value {
    json!({"type": "error", "error": {"type": error_type(status),
        "message": format!("scripted {status}")}})
}

fn error_type(status: u16) -> &'static str {
    match status {
        400 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        _ => "api_error",
    }
}
