//! Sends spans and metrics to the collector: OpenTelemetry's exporter for spans, its messages for
//! metrics, and [`Client`] below both.

use crate::telemetry::http::{Client, JSON, Outcome, PROTOBUF, PostError};
use http::header::CONTENT_TYPE;
use muleteer_telemetry::otlp;
use muleteer_telemetry::settings::{Protocol, Settings, Target};
use opentelemetry_http::Request;
use opentelemetry_otlp::{
    ExporterBuildError, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as _};
use prost::Message;
use std::sync::Arc;
use std::time::Duration;

/// The exporters of both kinds. All calls block.
#[derive(Debug)]
pub struct Exporter {
    traces: Option<(SpanExporter, Arc<Client>)>,
    metrics: Option<(Target, Client)>,
}

impl Exporter {
    /// Makes the exporters of the signals that have a target.
    ///
    /// # Errors
    /// The exporter's reason. [`Settings::from_env`] has checked the addresses, so that none is
    /// known.
    pub fn new(settings: &Settings) -> Result<Self, ExporterBuildError> {
        let resource = otlp::resource(&settings.resource);
        let traces = settings.traces.as_ref();
        let traces = traces.map(|target| for_spans(target, settings.timeout, &resource));
        let metrics = settings.metrics.clone();
        Ok(Self {
            traces: traces.transpose()?,
            metrics: metrics.map(|target| {
                let client = Client::new(&target, settings.timeout);
                (target, client)
            }),
        })
    }

    /// Makes the exporter of spans alone.
    ///
    /// # Errors
    /// As [`Exporter::new`].
    pub fn of_spans(
        target: &Target,
        timeout: Duration,
        resource: &Resource,
    ) -> Result<Self, ExporterBuildError> {
        Ok(Self { traces: Some(for_spans(target, timeout, resource)?), metrics: None })
    }

    /// Exports spans, and returns how many the collector rejected.
    ///
    /// # Errors
    /// As [`Client::post`].
    pub fn spans(&self, spans: Vec<SpanData>) -> Outcome {
        let Some((exporter, client)) = &self.traces else { return Ok(0) };
        if spans.is_empty() {
            return Ok(0);
        }
        let exported = futures_executor::block_on(exporter.export(spans));
        match (client.take_outcome(), exported) {
            (Some(outcome), _) => outcome,
            (None, Ok(())) => Err(PostError::Unsent("the exporter sent nothing".into())),
            (None, Err(error)) => Err(PostError::Unsent(error.to_string())),
        }
    }

    /// Posts metrics.
    ///
    /// # Errors
    /// As [`Client::post`].
    pub fn metrics(&self, document: &ExportMetricsServiceRequest) -> Outcome {
        let Some((target, client)) = &self.metrics else { return Ok(0) };
        let unsent = |error: &dyn std::error::Error| PostError::Unsent(error.to_string());
        let (kind, body) = match target.protocol {
            Protocol::Json => (JSON, serde_json::to_vec(document).map_err(|error| unsent(&error))?),
            Protocol::Protobuf => (PROTOBUF, document.encode_to_vec()),
        };
        let request = Request::post(target.url()).header(CONTENT_TYPE, kind).body(body.into());
        client.post(request.map_err(|error| unsent(&error))?)
    }
}

/// Makes OpenTelemetry's exporter for spans, and returns it with the client that records what the
/// collector answered.
///
/// # Errors
/// The exporter's reason.
fn for_spans(
    target: &Target,
    timeout: Duration,
    resource: &Resource,
) -> Result<(SpanExporter, Arc<Client>), ExporterBuildError> {
    let client = Arc::new(Client::new(target, timeout));
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_shared_http_client(client.clone())
        .with_endpoint(target.url())
        .with_protocol(match target.protocol {
            Protocol::Json => opentelemetry_otlp::Protocol::HttpJson,
            Protocol::Protobuf => opentelemetry_otlp::Protocol::HttpBinary,
        })
        .with_timeout(timeout)
        // The log is the queue: its reader retries, and backs off for longer than an exporter may.
        .with_retry_policy(RetryPolicy::disabled())
        .build()?;
    exporter.set_resource(resource);
    Ok((exporter, client))
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;
    use muleteer_telemetry::metrics::Meter;
    use muleteer_telemetry::run::metrics::RunSums;
    use muleteer_telemetry::trace::Span;
    use muleteer_telemetry::{Context, VARIABLE};
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// The heads and bodies of requests.
    type Requests = std::thread::JoinHandle<Vec<(String, Vec<u8>)>>;

    /// Starts a collector that answers each of `answers` to one connection, and returns the bodies.
    fn collector(answers: &'static [&'static str]) -> (String, Requests) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let endpoint = format!("http://{}", listener.local_addr().expect("address"));
        let serve = move |answer: &&str| {
            let (mut stream, _) = listener.accept().expect("accept");
            let (mut bytes, mut byte) = (vec![], [0]);
            while !bytes.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).expect("head");
                bytes.push(byte[0]);
            }
            let head = String::from_utf8(bytes).expect("text");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.expect("length").parse().expect("number")];
            stream.read_exact(&mut body).expect("body");
            stream.write_all(answer.as_bytes()).expect("answer");
            (head, body)
        };
        (endpoint, std::thread::spawn(move || answers.iter().map(serve).collect()))
    }

    fn exporter(endpoint: &str, protocol: &str) -> Exporter {
        let settings = Settings::from_env(&|name| match name {
            VARIABLE => Some(endpoint.into()),
            "OTEL_EXPORTER_OTLP_PROTOCOL" => Some(protocol.into()),
            _ => None,
        });
        Exporter::new(&settings.expect("good").expect("on")).expect("an exporter")
    }

    fn spans() -> Vec<SpanData> {
        let place = Context { trace: [7; 16], span: [8; 8], sampled: true };
        otlp::spans(&[Span::new(place, [9; 8], "one".into(), Timestamp::UNIX_EPOCH)])
    }

    #[test]
    fn spans_go_out_in_both_protocols_with_the_same_ids() {
        const ANSWER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        for protocol in ["http/json", "http/protobuf"] {
            let (endpoint, thread) = collector(&[ANSWER, ANSWER]);
            let exporter = exporter(&endpoint, protocol);
            assert_eq!(exporter.spans(spans()).expect("taken"), 0);
            let document = otlp::metrics(
                &[],
                "1",
                (&Meter::default(), &RunSums::default()),
                7,
                Timestamp::UNIX_EPOCH,
            );
            assert_eq!(exporter.metrics(&document).expect("taken"), 0);
            let mut got = thread.join().expect("collector");
            let (metrics_head, metrics) = got.pop().expect("metrics");
            let (head, body) = got.pop().expect("spans");
            assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
            assert!(metrics_head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{metrics_head}");
            let (kind, request, told) = if protocol == "http/json" {
                (
                    JSON,
                    serde_json::from_slice(&body).expect("JSON"),
                    serde_json::from_slice::<ExportMetricsServiceRequest>(&metrics).expect("JSON"),
                )
            } else {
                (
                    PROTOBUF,
                    ExportTraceServiceRequest::decode(body.as_slice()).expect("protobuf"),
                    Message::decode(metrics.as_slice()).expect("protobuf"),
                )
            };
            assert!(head.contains(&format!("content-type: {kind}\r\n")), "{head}");
            assert!(head.contains("user-agent: muleteer/"), "{head}");
            assert_eq!(told, document);
            let span = &request.resource_spans[0].scope_spans[0].spans[0];
            assert_eq!(span.trace_id, [7; 16]);
            assert_eq!(span.span_id, [9; 8]);
            assert_eq!(span.parent_span_id, [8; 8]);
            let resource = request.resource_spans[0].resource.as_ref().expect("a resource");
            assert!(resource.attributes.iter().any(|one| one.key == "service.name"));
        }
    }

    #[test]
    fn an_export_returns_the_answer_of_its_own_request() {
        const ANSWERS: &[&str] = &[
            "HTTP/1.1 200 OK\r\n\r\n{\"partialSuccess\":{\"rejectedSpans\":\"1\"}}",
            "HTTP/1.1 503 Busy\r\nRetry-After: 20\r\n\r\n",
            "HTTP/1.1 400 Bad\r\n\r\nwhat",
        ];
        let (endpoint, thread) = collector(ANSWERS);
        let exporter = exporter(&endpoint, "http/json");
        assert_eq!(exporter.spans(spans()).expect("taken"), 1);
        let busy = exporter.spans(spans()).expect_err("busy");
        assert_eq!((busy.is_final(), busy.after().as_secs()), (false, 20));
        let refused = exporter.spans(spans()).expect_err("refused");
        assert!(refused.is_final() && refused.to_string().ends_with("400: what"), "{refused}");
        thread.join().expect("collector");
        let gone = exporter.spans(spans()).expect_err("gone");
        assert!(matches!(gone, PostError::Unreachable { .. }) && !gone.is_final(), "{gone}");
        assert_eq!(exporter.spans(vec![]).expect("nothing is sent"), 0);
    }
}
