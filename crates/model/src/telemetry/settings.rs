//! OpenTelemetry's variables, as far as they are about us.

use super::endpoint::{BadEndpoint, Endpoint, VARIABLE};
use std::time::Duration;

/// How often metrics are sent, where nothing else is said.
const METRICS_EVERY: Duration = Duration::from_secs(60);
/// How long a collector may take over one request.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub endpoint: Endpoint,
    pub headers: Vec<(String, String)>,
    /// `service.name` and whatever else describes this daemon.
    pub resource: Vec<(String, String)>,
    pub traces: bool,
    pub metrics: bool,
    pub metrics_every: Duration,
    pub timeout: Duration,
}

impl Settings {
    /// As [`Self::from_env`], with the endpoint of a configuration where the variables name none.
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

    /// None when telemetry is off, which it is unless an endpoint is named.
    ///
    /// # Errors
    /// When the endpoint is none we can speak to.
    pub fn from_env(env: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, BadEndpoint> {
        let value = |name: &str| env(name).map(|value| value.trim().to_string()).filter(|value| !value.is_empty());
        let is = |name: &str, wanted: &str| value(name).is_some_and(|value| value.eq_ignore_ascii_case(wanted));
        let Some(endpoint) = value(VARIABLE).filter(|_| !is("OTEL_SDK_DISABLED", "true")) else { return Ok(None) };
        let endpoint = Endpoint::parse(&endpoint)?;
        let span = |name: &str, unset: Duration| {
            value(name).and_then(|value| value.parse().ok()).map_or(unset, Duration::from_millis)
        };
        let mut resource = pairs(&value("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default());
        let named = value("OTEL_SERVICE_NAME");
        if named.is_some() || !resource.iter().any(|(key, _)| key == "service.name") {
            resource.retain(|(key, _)| key != "service.name");
            resource.insert(0, ("service.name".into(), named.unwrap_or_else(|| "muleteer".into())));
        }
        Ok(Some(Self {
            endpoint,
            headers: pairs(&value("OTEL_EXPORTER_OTLP_HEADERS").unwrap_or_default()),
            resource,
            traces: !is("OTEL_TRACES_EXPORTER", "none"),
            metrics: !is("OTEL_METRICS_EXPORTER", "none"),
            metrics_every: span("OTEL_METRIC_EXPORT_INTERVAL", METRICS_EVERY).max(Duration::from_millis(100)),
            timeout: span("OTEL_EXPORTER_OTLP_TIMEOUT", TIMEOUT).clamp(Duration::from_millis(100), TIMEOUT * 6),
        }))
    }
}

/// `a=b,c=d`, percent-encoded.
fn pairs(text: &str) -> Vec<(String, String)> {
    let pair = |part: &str| {
        let (key, value) = part.split_once('=')?;
        // What would end a header line early is no header.
        let clean = |text: &str| Some(decoded(text.trim())).filter(|text| !text.chars().any(char::is_control));
        Some((clean(key).filter(|key| !key.is_empty())?, clean(value)?))
    };
    text.split(',').filter_map(pair).collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
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
        Settings::from_env(&|name| vars.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_string()))
    }

    #[test]
    fn off_unless_an_endpoint_is_named() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[(VARIABLE, " ")]), Ok(None));
        assert_eq!(of(&[(VARIABLE, "http://c"), ("OTEL_SDK_DISABLED", "TRUE")]), Ok(None));
        assert_eq!(of(&[(VARIABLE, "c:1")]), Err(BadEndpoint::NoScheme));
        let configured = |said: Option<&str>| {
            let env = |name: &str| said.filter(|_| name == VARIABLE).map(str::to_string);
            let settings = Settings::with_default(Some("http://mine"), &env).expect("good").expect("on");
            settings.endpoint.host
        };
        assert_eq!(
            [configured(None), configured(Some("")), configured(Some("http://theirs"))],
            ["mine", "mine", "theirs"]
        );
    }

    #[test]
    fn what_else_is_said_is_heeded() {
        let plain = of(&[(VARIABLE, "http://c")]).expect("good").expect("on");
        assert_eq!(plain.resource, [("service.name".to_string(), "muleteer".to_string())]);
        assert!(plain.traces && plain.metrics && plain.headers.is_empty());
        let all = of(&[
            (VARIABLE, "http://c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x = y,=z,bad=a%0d%0ab"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=x,host.name=h"),
            ("OTEL_SERVICE_NAME", "mine"),
            ("OTEL_METRICS_EXPORTER", "none"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "5000"),
        ]);
        let all = all.expect("good").expect("on");
        let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
        assert_eq!(all.headers, [pair("api-key", "a b"), pair("x", "y")]);
        assert_eq!(all.resource, [pair("service.name", "mine"), pair("host.name", "h")]);
        assert_eq!((all.traces, all.metrics, all.metrics_every), (true, false, Duration::from_secs(5)));
    }
}
