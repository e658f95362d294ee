//! Writes answers of Gemini's API. `false` means: close the connection.

use super::step::Step;
use super::words::in_words_of;
use super::{Shared, http};
use serde_json::{Value, json};
use std::io;
use std::net::TcpStream;

pub(super) fn content(
    out: &TcpStream,
    shared: &Shared,
    path: &str,
    request: &Value,
    step: &Step,
) -> io::Result<bool> {
    let text = step.whole_text();
    let mut parts = vec![];
    if !text.is_empty() {
        parts.push(json!({"text": text}));
    }
    for (name, input) in &step.tools {
        let (name, args) = in_words_of(request, name, input);
        parts.push(json!({"functionCall": {"name": name, "args": args}}));
    }
    let [input, output] = step.tokens();
    let usage = json!({"promptTokenCount": input, "candidatesTokenCount": output,
        "totalTokenCount": input + output});
    let answer = |parts: Value, end: Option<&str>| {
        json!({"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": end,
            "index": 0}], "usageMetadata": usage, "modelVersion": "gemini-2.5-pro"})
    };
    if !path.contains("stream") {
        http::json(out, 200, &step.headers, &answer(json!(parts), Some("STOP")))?;
        return Ok(true);
    }
    http::stream(out, &step.headers)?;
    if step.die_mid || step.hang_mid.is_some() {
        http::data(out, answer(json!([{"text": "I begin."}]), None))?;
        shared.pause(step.hang_mid.unwrap_or_default());
        return Ok(false);
    }
    http::data(out, answer(json!(parts), Some("STOP")))?;
    http::end_of_stream(out)?;
    Ok(true)
}

/// Returns an error as Gemini's API words it.
pub(super) fn error(status: u16) -> Value {
    let (message, kind) = match status {
        401 => ("API key not valid. Please pass a valid API key.", "UNAUTHENTICATED"),
        429 => ("Resource has been exhausted (e.g. check quota).", "RESOURCE_EXHAUSTED"),
        _ => ("An internal error has occurred.", "INTERNAL"),
    };
    json!({"error": {"code": status, "message": message, "status": kind}})
}
