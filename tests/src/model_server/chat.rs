//! Writes answers of the Chat Completions API. `false` means: close the connection.

use super::answer::split;
use super::step::Step;
use super::words::in_words_of;
use super::{Shared, http};
use serde_json::{Value, json};
use std::io;
use std::net::TcpStream;

pub(super) fn completions(
    out: &TcpStream,
    shared: &Shared,
    request: &Value,
    step: &Step,
) -> io::Result<bool> {
    let text = step.whole_text();
    let calls: Vec<Value> = step
        .tools
        .iter()
        .enumerate()
        .map(|(index, (name, input))| {
            let (name, arguments) = in_words_of(request, name, input);
            json!({"index": index, "id": shared.next_id("call"), "type": "function",
            "function": {"name": name, "arguments": arguments.to_string()}})
        })
        .collect();
    let end = if calls.is_empty() { "stop" } else { "tool_calls" };
    let [input, output] = step.tokens();
    let usage = json!({"prompt_tokens": input, "completion_tokens": output,
        "total_tokens": input + output});
    let base = json!({"id": shared.next_id("chatcmpl"), "created": 1_700_000_000,
        "model": request["model"]});
    let with = |object: &str, choices: Value, usage: &Value| {
        let mut answer = base.clone();
        answer["object"] = json!(object);
        answer["choices"] = choices;
        answer["usage"] = usage.clone();
        answer
    };
    if request["stream"].as_bool() != Some(true) {
        let mut message = json!({"role": "assistant", "content": text});
        if !calls.is_empty() {
            message["tool_calls"] = json!(calls);
        }
        let choices = json!([{"index": 0, "message": message, "finish_reason": end}]);
        http::json(out, 200, &step.headers, &with("chat.completion", choices, &usage))?;
        return Ok(true);
    }
    http::stream(out, &step.headers)?;
    let send = |delta: Value, end: Option<&str>| {
        if let Some(delay) = step.chunk_delay {
            shared.pause(delay);
        }
        let choices = json!([{"index": 0, "delta": delta, "finish_reason": end}]);
        http::data(out, with("chat.completion.chunk", choices, &Value::Null))
    };
    send(json!({"role": "assistant", "content": ""}), None)?;
    for piece in split(&text) {
        send(json!({"content": piece}), None)?;
    }
    if step.die_mid {
        return Ok(false);
    }
    if let Some(silence) = step.hang_mid {
        shared.pause(silence);
        return Ok(false);
    }
    if !calls.is_empty() {
        send(json!({"tool_calls": calls}), None)?;
    }
    send(json!({}), Some(end))?;
    http::data(out, with("chat.completion.chunk", json!([]), &usage))?;
    http::data(out, "[DONE]")?;
    http::end_of_stream(out)?;
    Ok(true)
}

/// Returns an error as OpenAI's API words it.
pub(super) fn error(status: u16) -> Value {
    let (message, kind, code) = match status {
        401 => (
            "Incorrect API key provided: dummy. You can find your API key in your settings.",
            "invalid_request_error",
            "invalid_api_key",
        ),
        429 => ("Rate limit reached for m1. Please try again.", "requests", "rate_limit_exceeded"),
        _ => ("The server had an error while it processed your request.", "server_error", "error"),
    };
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}
