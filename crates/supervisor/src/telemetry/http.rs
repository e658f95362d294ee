//! Posts to a collector: blocking, bounded in time and in the size of the answer, one connection
//! each.
//!
//! An HTTP library would add as much code as a runtime for one request to a nearby collector. The
//! one that OpenTelemetry's SDK would use panics outside of a runtime.

use jiff::Timestamp;
use muleteer_telemetry::settings::Target;
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// The limit for reading an answer.
const ANSWER_LIMIT: u64 = 64 << 10;
/// The limit for quoting an answer's text.
const SAID_LIMIT: usize = 200;

#[derive(Debug, thiserror::Error)]
pub enum PostError {
    #[error("the collector at {endpoint} cannot be reached: {source}")]
    Unreachable { endpoint: String, source: io::Error },
    /// The collector asks for a later retry: 429, 502, 503, 504. By OTLP's specification any other
    /// status is final, and one rejected document must not block all later ones.
    #[error("the collector answered {status}")]
    Busy { status: u16, after: Duration },
    #[error("the collector answered {status}: {said}")]
    Refused { status: u16, said: String },
}

impl PostError {
    /// Whether the same post would fail in the same way again.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// Returns the pause that the collector demands, by its `Retry-After`.
    pub fn after(&self) -> Duration {
        match self {
            Self::Busy { after, .. } => *after,
            _ => Duration::ZERO,
        }
    }
}

/// Posts a document, and returns how many of its spans or points the collector rejected.
///
/// # Errors
/// See [`PostError`]. It takes at most `timeout`, unless the resolver hangs.
pub fn post(target: &Target, timeout: Duration, body: &Value) -> Result<u64, PostError> {
    let answer = exchange(target, timeout, &body.to_string()).map_err(|source| {
        PostError::Unreachable { endpoint: target.endpoint.to_string(), source }
    })?;
    match answer.status {
        200..=299 => Ok(answer.rejected()),
        429 | 502..=504 => {
            Err(PostError::Busy { status: answer.status, after: answer.after(Timestamp::now()) })
        }
        status => Err(PostError::Refused { status, said: answer.said() }),
    }
}

struct Answer {
    status: u16,
    text: String,
}

impl Answer {
    fn body(&self) -> &str {
        self.text.split_once("\r\n\r\n").map_or("", |(_, body)| body)
    }

    /// Parses `Retry-After: 20`, or a date.
    fn after(&self, now: Timestamp) -> Duration {
        let head = self.text.split_once("\r\n\r\n").map_or("", |(head, _)| head);
        let said = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("retry-after").then(|| value.trim())
        });
        let Some(said) = said else { return Duration::ZERO };
        let seconds = said.parse().ok().map(Duration::from_secs);
        let until = || {
            jiff::fmt::rfc2822::parse(said).ok()?.timestamp().duration_since(now).try_into().ok()
        };
        seconds.or_else(until).unwrap_or_default()
    }

    fn said(&self) -> String {
        self.body().chars().filter(|c| !c.is_control()).take(SAID_LIMIT).collect()
    }

    /// Parses `{"partialSuccess":{"rejectedSpans":"3"}}`. Chunked or not, the document is between
    /// braces.
    fn rejected(&self) -> u64 {
        let body = self.body();
        let (Some(from), Some(to)) = (body.find('{'), body.rfind('}')) else { return 0 };
        let document: Value = body
            .get(from..=to)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let partial = &document["partialSuccess"];
        let counts = ["rejectedSpans", "rejectedDataPoints"].map(|key| match &partial[key] {
            Value::String(text) => text.parse().unwrap_or(0),
            number => number.as_u64().unwrap_or(0),
        });
        counts.into_iter().sum()
    }
}

fn exchange(target: &Target, timeout: Duration, body: &str) -> io::Result<Answer> {
    let deadline = Instant::now() + timeout;
    let left =
        || Some(deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
    let endpoint = &target.endpoint;
    let mut stream = connect(&endpoint.host, endpoint.port, deadline)?;
    let host = if endpoint.host.contains(':') {
        format!("[{}]", endpoint.host)
    } else {
        endpoint.host.clone()
    };
    let mut head = format!(
        "POST {}{} HTTP/1.1\r\nHost: {host}:{}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\
         User-Agent: muleteer/{}\r\nConnection: close\r\n",
        endpoint.prefix,
        target.path,
        endpoint.port,
        body.len(),
        env!("CARGO_PKG_VERSION"),
    );
    for (name, value) in &target.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.set_write_timeout(left())?;
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut bytes = Vec::new();
    let mut chunk = [0; 8192];
    // Reading is bounded in bytes and time: a collector that sends slowly blocks no longer than a
    // dead one.
    while (bytes.len() as u64) < ANSWER_LIMIT {
        stream.set_read_timeout(left())?;
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
            // The collector need not close the connection: a complete head and the announced length
            // of the body are enough.
            Err(error) if is_late(&error) && status(&bytes).is_some() => break,
            Err(error) => return Err(error),
        }
        if is_whole(&bytes) || Instant::now() >= deadline {
            break;
        }
    }
    let status = status(&bytes)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it does not use HTTP"))?;
    Ok(Answer { status, text: String::from_utf8_lossy(&bytes).into_owned() })
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn connect(host: &str, port: u16, deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Parses `HTTP/1.1 200 OK`.
fn status(bytes: &[u8]) -> Option<u16> {
    let head = bytes.strip_prefix(b"HTTP/1.")?;
    std::str::from_utf8(head.get(2..5)?).ok()?.parse().ok()
}

/// Whether the head is complete, and the body as long as announced.
fn is_whole(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    length.is_some_and(|length| body.len() >= length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use muleteer_telemetry::{Settings, VARIABLE};
    use std::io::BufRead;
    use std::net::TcpListener;

    const PATIENCE: Duration = Duration::from_secs(2);

    /// Starts a collector that answers one post with `answer`, and returns the request.
    fn collector(answer: &'static str) -> (Target, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let endpoint = format!("http://{}", listener.local_addr().expect("address"));
        let env = move |name: &str| match name {
            VARIABLE => Some(endpoint.clone()),
            "OTEL_EXPORTER_OTLP_HEADERS" => Some("api-key=secret".into()),
            _ => None,
        };
        let settings = Settings::from_env(&env).expect("good").expect("on");
        let target = settings.traces.expect("on");
        let thread = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("accept");
            let mut reader = io::BufReader::new(&stream);
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).expect("line");
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().expect("length");
                }
                head.push_str(&line);
                if line == "\r\n" || line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("body");
            (&stream).write_all(answer.as_bytes()).expect("answer");
            head + &String::from_utf8(body).expect("text")
        });
        (target, thread)
    }

    fn posted(answer: &'static str) -> (Result<u64, PostError>, String) {
        let (target, thread) = collector(answer);
        let outcome = post(&target, PATIENCE, &serde_json::json!({"a": 1}));
        (outcome, thread.join().expect("collector"))
    }

    #[test]
    fn a_post_arrives_and_its_answer_is_understood() {
        let (outcome, got) = posted("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        assert_eq!(outcome.expect("taken"), 0);
        assert!(
            got.starts_with("POST /v1/traces HTTP/1.1\r\n") && got.ends_with("\r\n\r\n{\"a\":1}"),
            "{got}"
        );
        assert!(got.contains("api-key: secret\r\n"), "{got}");
        let partial = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                       2c\r\n{\"partialSuccess\":{\"rejectedSpans\":\"3\"}}\r\n0\r\n\r\n";
        assert_eq!(posted(partial).0.expect("taken"), 3);
        let busy = |head: &'static str| match posted(head).0 {
            Err(error @ PostError::Busy { status: 503, .. }) => error.after().as_secs(),
            other => panic!("{other:?}"),
        };
        assert_eq!(busy("HTTP/1.1 503 Busy\r\n\r\n"), 0);
        assert_eq!(busy("HTTP/1.1 503 Busy\r\nretry-after: 20\r\n\r\n"), 20);
        assert_eq!(
            busy("HTTP/1.1 503 Busy\r\nRetry-After: Wed, 21 Oct 2015 07:28:00 GMT\r\n\r\n"),
            0,
            "it is over"
        );
        assert!(
            busy("HTTP/1.1 503 Busy\r\nRetry-After: Fri, 21 Oct 2095 07:28:00 GMT\r\n\r\n")
                > 1 << 30
        );
        assert_eq!(busy("HTTP/1.1 503 Busy\r\nRetry-After: soon\r\n\r\n"), 0);
        let broken = posted("HTTP/1.1 500 Broken\r\n\r\n").0.expect_err("refused");
        assert!(broken.is_final(), "one document must not hold up the next: {broken}");
        let refused =
            posted("HTTP/1.1 400 Bad\r\nContent-Length: 4\r\n\r\nwhat").0.expect_err("refused");
        assert!(refused.is_final() && refused.to_string().ends_with("400: what"), "{refused}");
        let nonsense = posted("SSH-2.0-OpenSSH\r\n").0.expect_err("no HTTP");
        assert!(!nonsense.is_final(), "{nonsense}");
    }

    #[test]
    fn unreachable_collector_is_reported_and_retried() {
        let (target, thread) = collector("HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(post(&target, PATIENCE, &Value::Null).expect("taken"), 0);
        thread.join().expect("collector");
        let error = post(&target, PATIENCE, &Value::Null).expect_err("gone");
        assert!(matches!(error, PostError::Unreachable { .. }) && !error.is_final(), "{error}");
    }
}
