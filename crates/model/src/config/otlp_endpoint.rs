//! The address of the telemetry collector, as in OpenTelemetry's variables.

use std::fmt;

/// The variable that switches telemetry on.
pub const VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// A collector that speaks OTLP over plain HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Without the brackets around an IPv6 address.
    pub host: String,
    pub port: u16,
    /// The path before `/v1/traces`, without a final slash; usually empty.
    pub prefix: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEndpoint {
    #[error("it does not begin with http://")]
    NoScheme,
    /// Not supported: a collector on this machine accepts plain HTTP and can forward with TLS.
    #[error(
        "https is not supported: name a collector on this machine (http://127.0.0.1:4318) that \
         forwards the data"
    )]
    Https,
    #[error("it has no host")]
    NoHost,
    #[error("`{0}` is not a port")]
    Port(String),
    #[error("it is no URL: {0}")]
    NoUrl(String),
    #[error("a user name or password in it is not supported: use OTEL_EXPORTER_OTLP_HEADERS")]
    UserInfo,
}

impl Endpoint {
    /// The default port of OTLP over HTTP.
    pub const DEFAULT_PORT: u16 = 4318;

    /// Parses the address.
    ///
    /// # Errors
    /// The reason why it is invalid.
    pub fn parse(text: &str) -> Result<Self, BadEndpoint> {
        let text = text.trim();
        if text.starts_with("https://") {
            return Err(BadEndpoint::Https);
        }
        let rest = text.strip_prefix("http://").ok_or(BadEndpoint::NoScheme)?;
        // Before anything is split: a password may have any character.
        if has_login(rest) {
            return Err(BadEndpoint::UserInfo);
        }
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) =
            rest.split_once('/').map_or((rest, ""), |(authority, path)| (authority, path));
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, after) = v6.split_once(']').ok_or(BadEndpoint::NoHost)?;
                (host, after.strip_prefix(':'))
            }
            None => match authority.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(BadEndpoint::NoHost);
        }
        let port = match port.filter(|port| !port.is_empty()) {
            None => Self::DEFAULT_PORT,
            Some(text) => text.parse().map_err(|_| BadEndpoint::Port(text.into()))?,
        };
        let path = path.trim_matches('/');
        let prefix = if path.is_empty() { String::new() } else { format!("/{path}") };
        Ok(Self { host: host.into(), port, prefix })
    }
}

/// Whether an address without its scheme has a user name or a password. A `@` of the path, after a
/// host that can be one, is none.
fn has_login(rest: &str) -> bool {
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_host = host.rsplit_once(':').is_none_or(|(_, port)| {
        port.ends_with(']') || port.bytes().all(|byte| byte.is_ascii_digit())
    });
    host.contains('@') || (rest.contains('@') && !is_host)
}

/// Returns a rejected address without what may be secret in it: a login, and the query.
pub fn without_secrets(text: &str) -> String {
    let text = text.trim();
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), text),
    };
    let (login, rest) = match rest.rsplit_once('@') {
        Some((_, rest)) => ("…@", rest),
        None => ("", rest),
    };
    let (rest, query) = match rest.find(['?', '#']) {
        Some(at) => (&rest[..at], "?…"),
        None => (rest, ""),
    };
    format!("{scheme}{login}{rest}{query}")
}

/// Formats the address with its port.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, prefix } = self;
        if host.contains(':') {
            write!(f, "http://[{host}]:{port}{prefix}")
        } else {
            write!(f, "http://{host}:{port}{prefix}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_as_people_write_them() {
        for (text, shown) in [
            ("http://localhost:4318", "http://localhost:4318"),
            (" http://127.0.0.1:4318/ ", "http://127.0.0.1:4318"),
            ("http://collector", "http://collector:4318"),
            ("http://c:80/otlp/", "http://c:80/otlp"),
            ("http://[::1]:4318", "http://[::1]:4318"),
            ("http://[::1]", "http://[::1]:4318"),
            ("http://c:4318/a/b?x=1", "http://c:4318/a/b"),
            ("http://c:4318/a@b", "http://c:4318/a@b"),
            ("http://[::1]:1/a@b", "http://[::1]:1/a@b"),
        ] {
            assert_eq!(Endpoint::parse(text).expect(text).to_string(), shown);
        }
        for (text, error) in [
            ("localhost:4318", BadEndpoint::NoScheme),
            ("", BadEndpoint::NoScheme),
            ("https://c:4318", BadEndpoint::Https),
            ("http://", BadEndpoint::NoHost),
            ("http://:4318", BadEndpoint::NoHost),
            ("http://[::1", BadEndpoint::NoHost),
            ("http://c d:1", BadEndpoint::NoHost),
            ("http://c:99999", BadEndpoint::Port("99999".into())),
            ("http://u:p@c:1", BadEndpoint::UserInfo),
            ("http://u:p/w@c:1", BadEndpoint::UserInfo),
            ("http://u:p#w@c:1", BadEndpoint::UserInfo),
            ("http://u:p?w@c:1", BadEndpoint::UserInfo),
        ] {
            assert_eq!(Endpoint::parse(text), Err(error), "{text}");
        }
    }

    /// A rejected address is shown to a person, and in reports that people send to others.
    #[test]
    fn rejected_address_is_shown_without_its_password() {
        for (text, shown) in [
            ("https://u:secret@c:4318/v1", "https://…@c:4318/v1"),
            ("http://u:secret@c:1", "http://…@c:1"),
            ("u:secret@c:1", "…@c:1"),
            ("grpc://secret@c", "grpc://…@c"),
            ("http://u:sec/secret@c", "http://…@c"),
            ("http://u:s@secret#secret@c", "http://…@c"),
            ("http://c:x?key=secret", "http://c:x?…"),
            ("localhost:4318", "localhost:4318"),
        ] {
            assert_eq!(without_secrets(text), shown, "{text}");
            let error = Endpoint::parse(text).map_err(|error| error.to_string());
            assert!(error.is_err_and(|error| !error.contains("secret")), "{text}");
        }
    }
}
