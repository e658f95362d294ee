//! The part of HTTP/1.1 that the agent CLIs use: keep-alive, sized and chunked bodies, chunked
//! answers.

use super::Request;
use serde_json::Value;
use std::io::{self, BufRead, Read, Write};

/// Reads the next request. Returns `None` when the client closed the connection between two
/// requests.
pub(crate) fn read(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    Ok(read_raw(reader)?.map(|(request, raw)| {
        let body = serde_json::from_slice(&raw).unwrap_or(Value::Null);
        Request { body, ..request }
    }))
}

/// Reads the next request, and returns its body beside it.
pub(crate) fn read_raw(reader: &mut impl BufRead) -> io::Result<Option<(Request, Vec<u8>)>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut words = first.split_whitespace().map(str::to_string);
    let (Some(method), Some(path)) = (words.next(), words.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let headers = headers(reader)?;
    let find =
        |name: &str| headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let raw = if find("transfer-encoding").is_some_and(|value| value.contains("chunked")) {
        chunked(reader)?
    } else {
        let size = find("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
        let mut body = vec![0; size];
        reader.read_exact(&mut body)?;
        body
    };
    Ok(Some((Request { method, path, headers, body: Value::Null, main: false }, raw)))
}

fn headers(reader: &mut impl BufRead) -> io::Result<Vec<(String, String)>> {
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().into())),
            None => return Ok(headers),
        }
    }
}

fn chunked(reader: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let size = u64::from_str_radix(line.trim(), 16).map_err(|_| io::ErrorKind::InvalidData)?;
        reader.take(size).read_to_end(&mut body)?;
        reader.read_line(&mut line)?;
        if size == 0 {
            return Ok(body);
        }
    }
}

/// Writes a whole JSON answer.
pub(crate) fn json(
    mut out: impl Write,
    status: u16,
    headers: &[(String, String)],
    body: &Value,
) -> io::Result<()> {
    let body = body.to_string();
    let mut text = format!("HTTP/1.1 {status} scripted\r\ncontent-type: application/json\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("content-length: {}\r\n\r\n{body}", body.len());
    out.write_all(text.as_bytes())
}

/// Writes the head of a stream of server-sent events.
pub(super) fn stream(mut out: impl Write, headers: &[(String, String)]) -> io::Result<()> {
    let mut text = String::from(
        "HTTP/1.1 200 scripted\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n\
         transfer-encoding: chunked\r\n",
    );
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    out.write_all((text + "\r\n").as_bytes())
}

/// Writes one event of the stream, named by its data's `type`.
pub(super) fn event(mut out: impl Write, data: &Value) -> io::Result<()> {
    let text = format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default());
    out.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
}

/// Writes one event without a name.
pub(super) fn data(mut out: impl Write, data: impl std::fmt::Display) -> io::Result<()> {
    let text = format!("data: {data}\n\n");
    out.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())
}

pub(super) fn end_of_stream(mut out: impl Write) -> io::Result<()> {
    out.write_all(b"0\r\n\r\n")
}
