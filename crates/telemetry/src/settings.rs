//! The OpenTelemetry variables that Muleteer supports.

use muleteer_model::config::otlp_endpoint::{BadEndpoint, Endpoint, VARIABLE};
use muleteer_model::event::trace_context::Context;
use opentelemetry::trace::{SpanKind, TraceContextExt, TraceId};
use opentelemetry_sdk::trace::{Sampler as SdkSampler, SamplingDecision, ShouldSample};
use std::time::Duration;

/// The default interval between two exports of metrics.
const METRICS_EVERY: Duration = Duration::from_secs(60);
/// The timeout of one request to a collector.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The collector as configured. If there are several, the first of them, for display.
    pub endpoint: Endpoint,
    /// The collector for signals without an endpoint of their own.
    pub base: Option<Endpoint>,
    pub traces: Option<Target>,
    pub metrics: Option<Target>,
    /// `service.name` and the other attributes of this daemon.
    pub resource: Vec<(String, String)>,
    pub sampler: Sampler,
    pub metrics_every: Duration,
    pub timeout: Duration,
    /// Requested settings that are not supported, for people.
    pub unheeded: Vec<String>,
}

/// The address for one kind of document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub endpoint: Endpoint,
    /// The path after the endpoint's prefix.
    pub path: &'static str,
    pub headers: Vec<(String, String)>,
    pub protocol: Protocol,
}

/// The form of a document (`OTEL_EXPORTER_OTLP_PROTOCOL`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    #[default]
    Json,
    Protobuf,
}

impl Protocol {
    fn named(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "http/json" => Some(Self::Json),
            "http/protobuf" => Some(Self::Protobuf),
            _ => None,
        }
    }
}

impl Target {
    /// Returns the whole URL.
    pub fn url(&self) -> String {
        format!("{}{}", self.endpoint, self.path)
    }
}

/// Which traces are sampled (`OTEL_TRACES_SAMPLER`). With `parent_based`, the caller decides.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    parent_based: bool,
    /// The sampled share of traces that begin here, between 0 and 1.
    ratio: f64,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { parent_based: true, ratio: 1.0 }
    }
}

impl Sampler {
    fn named(name: &str, argument: Option<&str>) -> Option<Self> {
        let (parent_based, kind) =
            name.strip_prefix("parentbased_").map_or((false, name), |kind| (true, kind));
        let ratio = match kind {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => match argument {
                None => 1.0,
                Some(text) => text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio))?,
            },
            _ => return None,
        };
        Some(Self { parent_based, ratio })
    }

    /// Returns OpenTelemetry's sampler. The caller of a command is not in this process, but
    /// decides as a parent in this process does.
    pub fn sdk(self) -> SdkSampler {
        let root = SdkSampler::TraceIdRatioBased(self.ratio);
        if self.parent_based { SdkSampler::ParentBased(Box::new(root)) } else { root }
    }

    /// Returns whether to sample a trace that begins here. All participants decide alike.
    pub fn root(self, trace: [u8; 16]) -> bool {
        self.samples(&opentelemetry::Context::new(), trace)
    }

    /// Returns whether to sample a trace that a caller began.
    pub fn below(self, caller: Context) -> bool {
        let above = opentelemetry::Context::new()
            .with_remote_span_context(crate::otlp::context(caller, true));
        self.samples(&above, caller.trace)
    }

    fn samples(self, above: &opentelemetry::Context, trace: [u8; 16]) -> bool {
        let trace = TraceId::from_bytes(trace);
        let kind = SpanKind::Internal;
        let result = self.sdk().should_sample(Some(above), trace, "", &kind, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }
}

impl Settings {
    /// Like [`Self::from_env`], with the configuration's endpoint as a fallback for the variables.
    ///
    /// # Errors
    /// As [`Self::from_env`].
    pub fn with_default(
        endpoint: Option<&str>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, BadEndpoint> {
        Self::from_env(&|name| {
            let said = env(name).filter(|value| !value.trim().is_empty());
            said.or_else(|| endpoint.filter(|_| name == VARIABLE).map(str::to_string))
        })
    }

    /// Reads the variables. Returns `None` if telemetry is off, which is the default without an
    /// endpoint.
    ///
    /// # Errors
    /// An endpoint is not supported.
    pub fn from_env(env: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, BadEndpoint> {
        let value = |name: &str| {
            env(name).map(|value| value.trim().to_string()).filter(|value| !value.is_empty())
        };
        let is = |name: &str, wanted: &str| {
            value(name).is_some_and(|value| value.eq_ignore_ascii_case(wanted))
        };
        if is("OTEL_SDK_DISABLED", "true") {
            return Ok(None);
        }
        let base = value(VARIABLE).map(|text| Endpoint::parse(&text)).transpose()?;
        let target = |signal: &str, path: &'static str| -> Result<Option<Target>, BadEndpoint> {
            if is(&format!("OTEL_{signal}_EXPORTER"), "none") {
                return Ok(None);
            }
            let of = |what: &str| value(&format!("OTEL_EXPORTER_OTLP_{signal}_{what}"));
            let headers =
                of("HEADERS").or_else(|| value("OTEL_EXPORTER_OTLP_HEADERS")).unwrap_or_default();
            let headers = pairs(&headers);
            let known = |name: String| value(&name).and_then(|name| Protocol::named(&name));
            let protocol = known(format!("OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"))
                .or_else(|| known("OTEL_EXPORTER_OTLP_PROTOCOL".into()))
                .unwrap_or_default();
            let target = match of("ENDPOINT") {
                // A signal's own endpoint is used without the default path.
                Some(text) => {
                    let endpoint = Endpoint::parse(&text)?;
                    let path = if endpoint.prefix.is_empty() { "/" } else { "" };
                    Some(Target { endpoint, path, headers, protocol })
                }
                None => base.clone().map(|endpoint| Target { endpoint, path, headers, protocol }),
            };
            // The exporter takes only what this parser takes.
            let parsed = target.as_ref().map(|target| target.url().parse::<http::Uri>());
            parsed.transpose().map_err(|error| BadEndpoint::NoUrl(error.to_string()))?;
            Ok(target)
        };
        let (traces, metrics) =
            (target("TRACES", "/v1/traces")?, target("METRICS", "/v1/metrics")?);
        let named =
            base.as_ref().or(traces.as_ref().or(metrics.as_ref()).map(|target| &target.endpoint));
        let Some(endpoint) = named.cloned() else { return Ok(None) };
        let span = |name: &str, unset: Duration| {
            value(name).and_then(|value| value.parse().ok()).map_or(unset, Duration::from_millis)
        };
        let mut unheeded = unheeded(&value);
        let sampler = value("OTEL_TRACES_SAMPLER").map_or(Some(Sampler::default()), |name| {
            Sampler::named(&name, value("OTEL_TRACES_SAMPLER_ARG").as_deref())
        });
        if sampler.is_none() {
            unheeded.push(
                "OTEL_TRACES_SAMPLER is unknown, or its argument is not a ratio: exporting all \
                 spans"
                    .into(),
            );
        }
        let mut resource = pairs(&value("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default());
        let named = value("OTEL_SERVICE_NAME");
        if named.is_some() || !resource.iter().any(|(key, _)| key == "service.name") {
            resource.retain(|(key, _)| key != "service.name");
            resource.insert(0, ("service.name".into(), named.unwrap_or_else(|| "muleteer".into())));
        }
        if !resource.iter().any(|(key, _)| key == "service.version") {
            resource.push(("service.version".into(), env!("CARGO_PKG_VERSION").into()));
        }
        Ok(Some(Self {
            endpoint,
            base,
            traces,
            metrics,
            resource,
            sampler: sampler.unwrap_or_default(),
            metrics_every: span("OTEL_METRIC_EXPORT_INTERVAL", METRICS_EVERY)
                .max(Duration::from_millis(100)),
            timeout: span("OTEL_EXPORTER_OTLP_TIMEOUT", TIMEOUT)
                .clamp(Duration::from_millis(100), TIMEOUT * 6),
            unheeded,
        }))
    }

    /// Adds the id of this daemon. Without it, two daemons that send sums under one name would
    /// overwrite each other's.
    pub fn of_instance(&mut self, id: &str) {
        const KEY: &str = "service.instance.id";
        if !self.resource.iter().any(|(key, _)| key == KEY) {
            self.resource.push((KEY.into(), id.into()));
        }
    }
}

/// Returns what was requested of the export and is not supported.
fn unheeded(value: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut unheeded = vec![];
    for signal in ["", "TRACES_", "METRICS_"] {
        let name = format!("OTEL_EXPORTER_OTLP_{signal}PROTOCOL");
        if let Some(protocol) = value(&name).filter(|name| Protocol::named(name).is_none()) {
            unheeded
                .push(format!("{name}={protocol}: only http/json and http/protobuf are supported"));
        }
        let name = format!("OTEL_EXPORTER_OTLP_{signal}COMPRESSION");
        if let Some(kind) = value(&name).filter(|kind| !kind.eq_ignore_ascii_case("none")) {
            unheeded.push(format!("{name}={kind}: nothing is compressed"));
        }
    }
    unheeded
}

/// Parses `a=b,c=d`, percent-encoded.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pair = |part: &str| {
        let (key, value) = part.split_once('=')?;
        // A value with control characters would break the HTTP header, so it is dropped.
        let clean = |text: &str| {
            Some(decoded(text.trim())).filter(|text| !text.chars().any(char::is_control))
        };
        Some((clean(key).filter(|key| !key.is_empty())?, clean(value)?))
    };
    text.split(',').filter_map(pair).collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after
            .get(..2)
            .and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match code.filter(|_| byte == b'%') {
            Some(code) => {
                bytes.push(code);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vars: &[(&str, &str)]) -> Result<Option<Settings>, BadEndpoint> {
        Settings::from_env(&|name| {
            vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_string())
        })
    }

    #[test]
    fn off_unless_an_endpoint_is_named() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[(VARIABLE, " ")]), Ok(None));
        assert_eq!(of(&[(VARIABLE, "http://c"), ("OTEL_SDK_DISABLED", "TRUE")]), Ok(None));
        assert_eq!(of(&[(VARIABLE, "c:1")]), Err(BadEndpoint::NoScheme));
        let configured = |said: Option<&str>| {
            let env = |name: &str| said.filter(|_| name == VARIABLE).map(str::to_string);
            let settings =
                Settings::with_default(Some("http://mine"), &env).expect("good").expect("on");
            settings.endpoint.host
        };
        assert_eq!(
            [configured(None), configured(Some("")), configured(Some("http://theirs"))],
            ["mine", "mine", "theirs"]
        );
    }

    #[test]
    fn other_otel_variables_are_used() {
        let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
        let version = pair("service.version", env!("CARGO_PKG_VERSION"));
        let plain = of(&[(VARIABLE, "http://c")]).expect("good").expect("on");
        assert_eq!(plain.resource, [pair("service.name", "muleteer"), version.clone()]);
        let traces = plain.traces.expect("on");
        assert_eq!((traces.url().as_str(), traces.headers), ("http://c:4318/v1/traces", vec![]));
        assert!(plain.metrics.is_some() && plain.unheeded.is_empty());
        let all = of(&[
            (VARIABLE, "http://c/below"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x = y,=z,bad=a%0d%0ab"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=x,host.name=h,service.instance.id=i"),
            ("OTEL_SERVICE_NAME", "mine"),
            ("OTEL_METRICS_EXPORTER", "none"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "5000"),
        ]);
        let mut all = all.expect("good").expect("on");
        all.of_instance("another");
        let named = [
            pair("service.name", "mine"),
            pair("host.name", "h"),
            pair("service.instance.id", "i"),
            version,
        ];
        assert_eq!(all.resource, named);
        let traces = all.traces.expect("on");
        assert_eq!(traces.url(), "http://c:4318/below/v1/traces");
        assert_eq!(traces.headers, [pair("api-key", "a b"), pair("x", "y")]);
        assert_eq!((all.metrics, all.metrics_every), (None, Duration::from_secs(5)));
    }

    #[test]
    fn traces_and_metrics_can_have_separate_endpoints() {
        let own = of(&[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://t:1/custom"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "k=traces"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "k=all"),
        ]);
        let own = own.expect("good").expect("it is on without the plain variable");
        let traces = own.traces.expect("on");
        assert_eq!(
            (traces.url().as_str(), traces.headers[0].1.as_str()),
            ("http://t:1/custom", "traces")
        );
        assert_eq!((own.metrics, own.base), (None, None));
        let both =
            of(&[(VARIABLE, "http://c"), ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://m")]);
        let both = both.expect("good").expect("on");
        let urls = [both.traces, both.metrics].map(|target| target.expect("on").url());
        assert_eq!(urls, ["http://c:4318/v1/traces", "http://m:4318/"]);
    }

    #[test]
    fn protocol_of_a_signal_precedes_the_general_one_and_an_unknown_one_counts_as_unset() {
        let protocols = |vars: &[(&str, &str)]| {
            let vars: Vec<_> = vars.iter().copied().chain([(VARIABLE, "http://c")]).collect();
            let settings = of(&vars).expect("good").expect("on");
            [settings.traces, settings.metrics].map(|target| target.expect("on").protocol)
        };
        const ALL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
        const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";
        let (json, protobuf) = (Protocol::Json, Protocol::Protobuf);
        assert_eq!(protocols(&[]), [json, json]);
        assert_eq!(protocols(&[(ALL, "HTTP/Protobuf")]), [protobuf, protobuf]);
        assert_eq!(protocols(&[(TRACES, "http/protobuf")]), [protobuf, json]);
        assert_eq!(protocols(&[(ALL, "http/protobuf"), (TRACES, "http/json")]), [json, protobuf]);
        let unknown = [(ALL, "http/protobuf"), (TRACES, "grpc")];
        assert_eq!(protocols(&unknown), [protobuf, protobuf]);
        assert_eq!(protocols(&[(ALL, "grpc")]), [json, json]);
    }

    #[test]
    fn address_that_no_exporter_takes_is_an_error() {
        for address in ["http://c/a b", "http://c/<", "http://b\u{fc}cher.example"] {
            assert!(matches!(of(&[(VARIABLE, address)]), Err(BadEndpoint::NoUrl(_))), "{address}");
        }
        for address in ["http://c_d", "http://[::1]:9/x", "http://c/a%20b"] {
            assert!(of(&[(VARIABLE, address)]).is_ok(), "{address}");
        }
    }

    #[test]
    fn new_trace_uses_the_sampler_and_continued_trace_the_callers_flag() {
        let sampler = |name: &str, argument: &str| {
            let vars = [
                (VARIABLE, "http://c"),
                ("OTEL_TRACES_SAMPLER", name),
                ("OTEL_TRACES_SAMPLER_ARG", argument),
            ];
            of(&vars).expect("good").expect("on").sampler
        };
        let trace = |half: u8| std::array::from_fn(|at| if at == 8 { half } else { 0 });
        let (low, high) = (trace(0x3f), trace(0xc0));
        let asked = |sampler: Sampler| (sampler.root(low), sampler.root(high));
        assert_eq!(asked(Sampler::default()), (true, true));
        assert_eq!(asked(sampler("always_off", "")), (false, false));
        assert_eq!(asked(sampler("parentbased_traceidratio", "0.5")), (true, false));
        let caller = |sampled| Context { trace: high, span: [1; 8], sampled };
        for (name, argument, wanted) in [
            ("parentbased_always_off", "", [false, true]),
            ("parentbased_always_on", "", [false, true]),
            ("always_on", "", [true, true]),
            ("traceidratio", "0.5", [false, false]),
        ] {
            assert_eq!(
                [false, true].map(|said| sampler(name, argument).below(caller(said))),
                wanted,
                "{name}"
            );
        }
    }

    #[test]
    fn ignored_otel_variables_are_reported() {
        let told = |vars: &[(&str, &str)]| {
            let vars: Vec<_> = vars.iter().copied().chain([(VARIABLE, "http://c")]).collect();
            of(&vars).expect("good").expect("on").unheeded
        };
        assert_eq!(told(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]), Vec::<String>::new());
        assert!(told(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")])[0].contains("grpc"));
        assert!(told(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")]).is_empty());
        assert!(told(&[("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "gzip")])[0].contains("gzip"));
        assert!(told(&[("OTEL_EXPORTER_OTLP_COMPRESSION", "none")]).is_empty());
        for (name, argument) in
            [("jaeger_remote", ""), ("traceidratio", "2"), ("traceidratio", "half")]
        {
            let said =
                told(&[("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", argument)]);
            assert_eq!(said.len(), 1, "{name} {argument}");
        }
    }
}
