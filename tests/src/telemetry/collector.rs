//! An OTLP collector over HTTP, for JSON and protobuf. It stores what it receives and returns it as
//! plain values.

use crate::model_server::{Request, http};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use rustix::net::{self, AddressFamily, SocketType};
use serde_json::{Value, json};
use std::io::BufReader;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A running collector. Dropping it stops it.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    posts: Mutex<Vec<(String, Value)>>,
    /// The number of accepted posts in protobuf.
    binary: AtomicU32,
    /// The number of further metric reports to refuse.
    refusing: AtomicU32,
    /// The HTTP status of a refusal.
    refusal: AtomicU16,
    /// The collector answers 500 to a post that contains this text.
    breaking: Mutex<Option<String>>,
}

/// A port that refuses connections until a collector takes it over.
#[derive(Debug)]
pub struct Absent(OwnedFd);

impl Absent {
    pub fn on_loopback() -> Self {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port on loopback");
        Self(socket)
    }

    pub fn url(&self) -> String {
        let address = net::getsockname(&self.0).expect("its address");
        format!("http://{}", SocketAddr::try_from(address).expect("an address of the internet"))
    }

    pub fn comes(self) -> Collector {
        net::listen(&self.0, 64).expect("to listen");
        Collector::on(self.0.into())
    }
}

/// A span as it arrived.
#[derive(Debug, Clone)]
pub struct Span {
    pub service: String,
    pub json: Value,
}

impl Span {
    pub fn name(&self) -> &str {
        self.json["name"].as_str().unwrap_or_default()
    }

    pub fn id(&self) -> &str {
        self.json["spanId"].as_str().unwrap_or_default()
    }

    pub fn trace(&self) -> &str {
        self.json["traceId"].as_str().unwrap_or_default()
    }

    /// Returns the parent's id, empty for a root.
    pub fn parent(&self) -> &str {
        self.json["parentSpanId"].as_str().unwrap_or_default()
    }

    /// Returns an attribute as text, whatever its type is.
    pub fn attribute(&self, key: &str) -> Option<String> {
        let all = self.json["attributes"].as_array()?;
        let value = &all.iter().find(|one| one["key"] == key)?["value"];
        let value = value.as_object()?.values().next()?;
        Some(value.as_str().map_or_else(|| value.to_string(), str::to_string))
    }
}

impl Collector {
    /// Starts a collector on a free loopback port.
    pub fn start() -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").expect("a port on loopback"))
    }

    /// Starts a collector on an existing listener: a port that is released may belong to another
    /// test a moment later.
    pub fn on(listener: TcpListener) -> Self {
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared::default());
        let state = shared.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if state.stop.load(Ordering::Relaxed) {
                    return;
                }
                let state = state.clone();
                std::thread::spawn(move || serve(&stream, &state));
            }
        });
        Self { address, shared, thread: Some(thread) }
    }

    /// Refuses the next `count` metric reports permanently, as a collector for traces alone does.
    pub fn refuse_metrics(&self, count: u32) {
        self.shared.refusal.store(400, Ordering::Relaxed);
        self.shared.refusing.store(count, Ordering::Relaxed);
    }

    /// Answers the next `count` metric reports with a temporary error.
    pub fn put_metrics_off(&self, count: u32) {
        self.shared.refusal.store(503, Ordering::Relaxed);
        self.shared.refusing.store(count, Ordering::Relaxed);
    }

    /// Answers 500 to every post that contains `text`.
    pub fn break_on(&self, text: &str) {
        *self.shared.breaking.lock().unwrap_or_else(PoisonError::into_inner) = Some(text.into());
    }

    /// Returns how many reports are still to be refused.
    pub fn refusing(&self) -> u32 {
        self.shared.refusing.load(Ordering::Relaxed)
    }

    /// Returns how many accepted posts were protobuf, and how many were not.
    pub fn posts_by_form(&self) -> (u32, u32) {
        // In this order: a post is counted before it is stored.
        let all = u32::try_from(self.posts().len()).unwrap_or(u32::MAX);
        let binary = self.shared.binary.load(Ordering::Relaxed);
        (binary, all.saturating_sub(binary))
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns every span so far, in order of arrival.
    pub fn spans(&self) -> Vec<Span> {
        let mut spans = Vec::new();
        for (path, body) in self.posts() {
            if path != "/v1/traces" {
                continue;
            }
            for resource in list(&body["resourceSpans"]) {
                let attributes = list(&resource["resource"]["attributes"]);
                let name = attributes.iter().find(|one| one["key"] == "service.name");
                let service = name
                    .and_then(|one| one["value"]["stringValue"].as_str())
                    .unwrap_or_default()
                    .to_string();
                for scope in list(&resource["scopeSpans"]) {
                    let all = list(&scope["spans"]).into_iter();
                    spans.extend(all.map(|json| Span { service: service.clone(), json }));
                }
            }
        }
        spans
    }

    /// Returns the newest report of every metric, by name.
    pub fn metrics(&self) -> Vec<Value> {
        let posts = self.posts();
        let newest = posts.iter().rev().find(|(path, _)| path == "/v1/metrics");
        let Some((_, body)) = newest else { return vec![] };
        list(&body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"])
    }

    fn posts(&self) -> Vec<(String, Value)> {
        self.shared.posts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // The connection wakes the listener's thread, which then sees the flag and ends.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(stream: &TcpStream, shared: &Shared) {
    let mut reader = BufReader::new(stream);
    while let Ok(Some((request, raw))) = http::read_raw(&mut reader) {
        let one_less = |count: u32| count.checked_sub(1);
        let refused = request.path == "/v1/metrics"
            && shared.refusing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok();
        if refused {
            if http::json(stream, shared.refusal.load(Ordering::Relaxed), &[], &json!({})).is_err()
            {
                return;
            }
            continue;
        }
        let Some(body) = body(&request, &raw) else {
            if http::json(stream, 400, &[], &json!({})).is_err() {
                return;
            }
            continue;
        };
        let breaking = shared.breaking.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if breaking.is_some_and(|text| body.to_string().contains(&text)) {
            if http::json(stream, 500, &[], &json!({})).is_err() {
                return;
            }
            continue;
        }
        if is_binary(&request) {
            shared.binary.fetch_add(1, Ordering::Relaxed);
        }
        shared.posts.lock().unwrap_or_else(PoisonError::into_inner).push((request.path, body));
        if http::json(stream, 200, &[], &json!({})).is_err() {
            return;
        }
    }
}

fn is_binary(request: &Request) -> bool {
    let kind = request.headers.iter().find(|(name, _)| name == "content-type");
    kind.is_some_and(|(_, kind)| kind.starts_with("application/x-protobuf"))
}

/// Returns a document as JSON, whichever form it came in. Returns `None` if protobuf is invalid.
fn body(request: &Request, raw: &[u8]) -> Option<Value> {
    if !is_binary(request) {
        return Some(serde_json::from_slice(raw).unwrap_or(Value::Null));
    }
    let document = match request.path.as_str() {
        "/v1/traces" => serde_json::to_value(ExportTraceServiceRequest::decode(raw).ok()?),
        "/v1/metrics" => serde_json::to_value(ExportMetricsServiceRequest::decode(raw).ok()?),
        _ => return None,
    };
    document.ok()
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}
