//! The HTTP client of the exporters: blocking, bounded in time and in the size of the answer, one
//! connection each.
//!
//! OpenTelemetry's own clients bring a runtime, or panic outside of one. An exporter does not
//! return the status, the requested pause or the number of rejected spans, and the position in the
//! log depends on them. So this client records them.

use async_trait::async_trait;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue};
use httparse::Status;
use jiff::Timestamp;
use muleteer_telemetry::Endpoint;
use muleteer_telemetry::settings::Target;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use serde_json::Value;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The limit for reading an answer.
const ANSWER_LIMIT: usize = 64 << 10;
/// The limit for quoting an answer's text.
const SAID_LIMIT: usize = 200;
/// The most header fields of an answer.
const FIELD_LIMIT: usize = 100;
/// The content type of OTLP's binary form.
pub const PROTOBUF: &str = "application/x-protobuf";
/// The content type of OTLP's JSON form.
pub const JSON: &str = "application/json";

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
    /// The exporter failed before it sent anything, and would fail again.
    #[error("the document was not sent: {0}")]
    Unsent(String),
}

impl PostError {
    /// Whether the same post would fail in the same way again.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Unsent(_))
    }

    /// Returns the pause that the collector demands, by its `Retry-After`.
    pub fn after(&self) -> Duration {
        match self {
            Self::Busy { after, .. } => *after,
            _ => Duration::ZERO,
        }
    }
}

/// The number of spans or points that the collector rejected from an accepted document.
pub type Outcome = Result<u64, PostError>;

/// A client for one target.
#[derive(Debug)]
pub struct Client {
    headers: HeaderMap,
    timeout: Duration,
    /// The outcome of the newest request that an exporter sent.
    outcome: Mutex<Option<Outcome>>,
}

impl Client {
    /// Makes a client that adds the target's headers to each request. The exporter reads headers
    /// only from the environment of the process, and the configuration may come from elsewhere.
    pub fn new(target: &Target, timeout: Duration) -> Self {
        let agent = HeaderValue::from_static(concat!("muleteer/", env!("CARGO_PKG_VERSION")));
        let own = (http::header::USER_AGENT, agent);
        let given = target.headers.iter().filter_map(|(name, value)| {
            let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
            // Bytes beyond ASCII are allowed in a value.
            Some((name, HeaderValue::from_bytes(value.as_bytes()).ok()?))
        });
        let headers = std::iter::once(own).chain(given).collect();
        Self { headers, timeout, outcome: Mutex::new(None) }
    }

    /// Posts a document. Blocking.
    ///
    /// # Errors
    /// See [`PostError`]. It takes at most the client's timeout, unless the resolver hangs.
    pub fn post(&self, request: Request<Bytes>) -> Outcome {
        self.send(request)?.outcome()
    }

    /// Takes the outcome of the newest request that an exporter sent.
    pub fn take_outcome(&self) -> Option<Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn record(&self, outcome: Outcome) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }

    fn send(&self, mut request: Request<Bytes>) -> Result<Answer, PostError> {
        for (name, value) in &self.headers {
            request.headers_mut().insert(name.clone(), value.clone());
        }
        exchange(&request, self.timeout).map_err(|source| {
            let authority = request.uri().authority().map_or("", |authority| authority.as_str());
            PostError::Unreachable { endpoint: format!("http://{authority}"), source }
        })
    }
}

#[async_trait]
impl HttpClient for Client {
    /// Blocks the thread that polls it: exporters run on threads of their own.
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = match self.send(request) {
            Ok(answer) => answer,
            Err(error) => {
                let told = error.to_string();
                self.record(Err(error));
                return Err(told.into());
            }
        };
        self.record(answer.outcome());
        Ok(Response::builder().status(answer.status).body(answer.body.into())?)
    }
}

#[derive(Debug)]
struct Answer {
    status: u16,
    retry_after: Option<String>,
    is_protobuf: bool,
    body: Vec<u8>,
}

impl Answer {
    fn outcome(&self) -> Outcome {
        match self.status {
            200..=299 => Ok(self.rejected()),
            status @ (429 | 502..=504) => {
                Err(PostError::Busy { status, after: self.after(Timestamp::now()) })
            }
            status => Err(PostError::Refused { status, said: self.said() }),
        }
    }

    /// Parses `Retry-After: 20`, or a date.
    fn after(&self, now: Timestamp) -> Duration {
        let Some(said) = self.retry_after.as_deref() else { return Duration::ZERO };
        let seconds = said.parse().ok().map(Duration::from_secs);
        let until = || {
            jiff::fmt::rfc2822::parse(said).ok()?.timestamp().duration_since(now).try_into().ok()
        };
        seconds.or_else(until).unwrap_or_default()
    }

    fn said(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        text.chars().filter(|c| !c.is_control()).take(SAID_LIMIT).collect()
    }

    /// Parses the answer of a collector that accepted only a part.
    fn rejected(&self) -> u64 {
        if self.is_protobuf {
            // The answer about metrics has the same fields at the same places.
            let answer = ExportTraceServiceResponse::decode(self.body.as_slice());
            let partial = answer.ok().and_then(|answer| answer.partial_success);
            let count = partial.map_or(0, |partial| partial.rejected_spans);
            return u64::try_from(count).unwrap_or(0);
        }
        // The package's JSON form rejects a number in a string, which the protocol prescribes:
        // `{"partialSuccess":{"rejectedSpans":"3"}}`.
        let document: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let partial = &document["partialSuccess"];
        let counts = ["rejectedSpans", "rejectedDataPoints"].map(|key| match &partial[key] {
            Value::String(text) => text.parse().unwrap_or(0),
            number => number.as_u64().unwrap_or(0),
        });
        counts.into_iter().sum()
    }
}

fn exchange(request: &Request<Bytes>, timeout: Duration) -> io::Result<Answer> {
    let deadline = Instant::now() + timeout;
    let left =
        || Some(deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1)));
    let uri = request.uri();
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let mut stream = connect(host, uri.port_u16().unwrap_or(Endpoint::DEFAULT_PORT), deadline)?;
    stream.set_write_timeout(left())?;
    stream.write_all(&head(request))?;
    stream.write_all(request.body())?;
    let mut bytes = Vec::new();
    let mut chunk = [0; 8192];
    // Reading is bounded in bytes and time: a collector that sends slowly blocks no longer than a
    // dead one.
    while bytes.len() < ANSWER_LIMIT {
        stream.set_read_timeout(left())?;
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
            // The collector need not close the connection: a complete head and the announced length
            // of the body are enough.
            Err(error) if is_late(&error) && parse(&bytes)?.is_some() => break,
            Err(error) => return Err(error),
        }
        if parse(&bytes)?.is_some_and(|(_, whole)| whole) || Instant::now() >= deadline {
            break;
        }
    }
    let no_http = || io::Error::new(io::ErrorKind::InvalidData, "it does not use HTTP");
    let (mut answer, _) = parse(&bytes)?.ok_or_else(no_http)?;
    // A collector that names no type answers in the form of the request.
    let sent = request.headers().get(CONTENT_TYPE);
    answer.is_protobuf |= answer.body.first() != Some(&b'{') && sent.is_some_and(is_protobuf);
    Ok(answer)
}

fn is_protobuf(kind: &HeaderValue) -> bool {
    kind.as_bytes().starts_with(PROTOBUF.as_bytes())
}

/// Returns the request up to its body.
fn head(request: &Request<Bytes>) -> Vec<u8> {
    let uri = request.uri();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let host = uri.authority().map_or("", |authority| authority.as_str());
    let mut head = format!(
        "{} {path} HTTP/1.1\r\n{HOST}: {host}\r\n{CONTENT_LENGTH}: {}\r\nconnection: close\r\n",
        request.method(),
        request.body().len(),
    )
    .into_bytes();
    for (name, value) in request.headers() {
        if [HOST, CONTENT_LENGTH, http::header::CONNECTION].contains(name) {
            continue;
        }
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
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

/// Parses what has arrived, and returns whether that is all. Returns `None` before the head is
/// complete.
fn parse(bytes: &[u8]) -> io::Result<Option<(Answer, bool)>> {
    let mut fields = [httparse::EMPTY_HEADER; FIELD_LIMIT];
    let mut head = httparse::Response::new(&mut fields);
    let parsed = head.parse(bytes).map_err(|error| {
        let told = format!("it does not use HTTP: {error}");
        io::Error::new(io::ErrorKind::InvalidData, told)
    })?;
    let (Status::Complete(len), Some(status)) = (parsed, head.code) else { return Ok(None) };
    let field = |name: &str| {
        let found = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
        found.map(|field| String::from_utf8_lossy(field.value).trim().to_string())
    };
    let rest = bytes.get(len..).unwrap_or_default();
    let is_chunked = field("transfer-encoding")
        .is_some_and(|encoding| encoding.to_ascii_lowercase().contains("chunked"));
    let length = field("content-length").and_then(|length| length.parse().ok());
    let (body, whole) = match length {
        _ if is_chunked => unchunked(rest),
        Some(length) => (rest.get(..length).unwrap_or(rest).to_vec(), rest.len() >= length),
        None => (rest.to_vec(), false),
    };
    let answer = Answer {
        status,
        retry_after: field("retry-after"),
        is_protobuf: field("content-type").is_some_and(|kind| kind.starts_with(PROTOBUF)),
        body,
    };
    Ok(Some((answer, whole)))
}

/// Returns the chunks that have arrived, and whether the last one is among them.
fn unchunked(mut rest: &[u8]) -> (Vec<u8>, bool) {
    let mut body = Vec::new();
    while let Ok(Status::Complete((start, len))) = httparse::parse_chunk_size(rest) {
        if len == 0 {
            return (body, true);
        }
        rest = rest.get(start..).unwrap_or_default();
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(rest.len());
        let (chunk, after) = rest.split_at(len);
        body.extend_from_slice(chunk);
        rest = after.strip_prefix(b"\r\n").unwrap_or(after);
    }
    (body, false)
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

    fn post(target: &Target) -> Outcome {
        let request = Request::post(target.url()).header(CONTENT_TYPE, JSON);
        let request = request.body("{\"a\":1}".into()).expect("a request");
        Client::new(target, PATIENCE).post(request)
    }

    fn posted(answer: &'static str) -> (Outcome, String) {
        let (target, thread) = collector(answer);
        let outcome = post(&target);
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
                       28\r\n{\"partialSuccess\":{\"rejectedSpans\":\"3\"}}\r\n0\r\n\r\n";
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
        assert_eq!(post(&target).expect("taken"), 0);
        thread.join().expect("collector");
        let error = post(&target).expect_err("gone");
        assert!(matches!(error, PostError::Unreachable { .. }) && !error.is_final(), "{error}");
    }

    #[test]
    fn partial_success_in_protobuf_counts_the_rejected_spans() {
        // Field 1 is a message of two bytes, whose field 1 is 3.
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 4\r\n\r\n\
             \u{a}\u{2}\u{8}\u{3}",
            "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\n\
             Transfer-Encoding: chunked\r\n\r\n\
             1\r\n\u{a}\r\n3\r\n\u{2}\u{8}\u{3}\r\n0\r\n\r\n",
        ] {
            assert_eq!(posted(answer).0.expect("taken"), 3, "{answer:?}");
        }
    }

    #[test]
    fn chunks_are_joined_until_the_last_one() {
        let parse = |text: &str| unchunked(text.as_bytes());
        assert_eq!(parse("2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n"), (b"abc".to_vec(), true));
        assert_eq!(parse("4\r\nab"), (b"ab".to_vec(), false));
        for cut in ["", "4", "zz\r\nab", "ffffffffffffffff\r\n"] {
            assert_eq!(parse(cut), (vec![], false), "{cut:?}");
        }
    }

    #[test]
    fn target_headers_replace_those_of_the_exporter() {
        let (target, thread) = collector("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        let request = Request::post(target.url()).header("API-Key", "other");
        let request = request.header("user-agent", "other").body(Bytes::new()).expect("a request");
        let client = Client::new(&target, PATIENCE);
        let answer = futures_executor::block_on(client.send_bytes(request)).expect("an answer");
        assert_eq!(answer.status(), 200);
        assert_eq!(client.take_outcome().expect("recorded").expect("taken"), 0);
        assert!(client.take_outcome().is_none(), "it is taken once");
        let got = thread.join().expect("collector");
        assert!(got.contains("api-key: secret\r\n") && !got.contains("other"), "{got}");
    }
}
