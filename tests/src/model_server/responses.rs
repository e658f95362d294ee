//! Writes answers of the Responses API, as Codex asks for them. `false` means: close the
//! connection.

use super::answer::split;
use super::step::Step;
use super::words::in_words_of;
use super::{Shared, http};
use serde_json::{Value, json};
use std::io;
use std::net::TcpStream;

pub(super) fn responses(
    out: &TcpStream,
    shared: &Shared,
    request: &Value,
    step: &Step,
) -> io::Result<bool> {
    let response = response(shared, request, step);
    if request["stream"].as_bool() != Some(true) {
        http::json(out, 200, &step.headers, &response)?;
        return Ok(true);
    }
    stream(out, shared, step, &response)
}

fn response(shared: &Shared, request: &Value, step: &Step) -> Value {
    let mut output = Vec::new();
    let document = step.document.as_ref().map(Value::to_string);
    for text in step.text.iter().chain(&document) {
        let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
        let id = shared.next_id("msg");
        output
            .push(json!({"type": "message", "id": id, "role": "assistant", "status": "completed",
                "content": content}));
    }
    for (name, input) in &step.tools {
        let (name, arguments) = in_words_of(request, name, input);
        let mut call = json!({
            "type": "function_call", "id": shared.next_id("fc"), "call_id": shared.next_id("call"),
            "name": name, "arguments": arguments.to_string(), "status": "completed"
        });
        // Codex names the server and the tool of an MCP call separately.
        if let Some((server, tool)) =
            name.strip_prefix("mcp__").and_then(|rest| rest.split_once("__"))
        {
            (call["name"], call["namespace"]) = (json!(tool), json!(format!("mcp__{server}")));
        }
        output.push(call);
    }
    let mut usage = json!({
        "input_tokens": 100, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 20, "output_tokens_details": {"reasoning_tokens": 0}
    });
    for (key, value) in step.usage.iter().filter_map(Value::as_object).flatten() {
        usage[key] = value.clone();
    }
    let count = |key: &str| usage[key].as_u64().unwrap_or_default();
    usage["total_tokens"] = json!(count("input_tokens") + count("output_tokens"));
    json!({
        "id": shared.next_id("resp"), "object": "response", "status": "completed",
        "model": request["model"], "output": output, "usage": usage
    })
}

fn stream(out: &TcpStream, shared: &Shared, step: &Step, response: &Value) -> io::Result<bool> {
    let mut sequence = 0;
    let mut send = |mut data: Value| {
        if let Some(delay) = step.chunk_delay {
            shared.pause(delay);
        }
        data["sequence_number"] = json!(sequence);
        sequence += 1;
        http::event(out, &data)
    };
    http::stream(out, &step.headers)?;
    let begun =
        json!({"id": response["id"], "object": "response", "status": "in_progress", "output": []});
    send(json!({"type": "response.created", "response": begun}))?;
    for (index, item) in response["output"].as_array().into_iter().flatten().enumerate() {
        let mut empty = item.clone();
        empty["status"] = json!("in_progress");
        let mut pieces = vec![];
        if item["type"] == "message" {
            empty["content"] = json!([]);
            pieces = split(item["content"][0]["text"].as_str().unwrap_or_default());
        }
        send(json!({"type": "response.output_item.added", "output_index": index, "item": empty}))?;
        for piece in pieces {
            send(json!({
                "type": "response.output_text.delta", "item_id": item["id"], "output_index": index,
                "content_index": 0, "delta": piece
            }))?;
        }
        if step.die_mid {
            return Ok(false);
        }
        if let Some(silence) = step.hang_mid {
            shared.pause(silence);
            return Ok(false);
        }
        send(json!({"type": "response.output_item.done", "output_index": index, "item": item}))?;
    }
    send(json!({"type": "response.completed", "response": response}))?;
    http::end_of_stream(out)?;
    Ok(true)
}
