//! The TCP ports by which an agent reaches its model.

use crate::dispatch::request::access_config;
use muleteer_backends::variables::is_of_another;
use muleteer_backends::{Access, Backend, Program};

/// The port of `https`, which a renewal of the login needs too.
const HTTPS: u16 = 443;
const HTTP: u16 = 80;
/// Names are resolved over TCP if an answer is long.
const DNS: u16 = 53;
const PROXIES: [&str; 3] = ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"];

/// Returns the ports of the model's API and of its proxies; `None` if the CLI's address is not
/// known, because it has any provider or may be any CLI.
pub(super) fn model_ports(
    backend: &dyn Backend,
    is_usual: bool,
    args: &[String],
    env: &[(String, String)],
) -> Option<Vec<u16>> {
    let is_known = matches!(backend.program(), Program::OnPath { .. });
    if !is_known || !is_usual || backend.has_any_provider() {
        return None;
    }
    let find = |name: &str| {
        let found = env.iter().rev().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).filter(|value| !value.is_empty())
    };
    let config = access_config(backend.access_file(&find));
    let Access { address, .. } = backend.access(&find, &config, args);
    let mut ports = vec![HTTPS, DNS];
    ports.extend(address.as_deref().map(port));
    // Any address of this CLI: Bedrock's, Vertex's, a gateway's or a collector's.
    let own = env.iter().filter(|(name, value)| {
        !is_of_another(backend, name)
            && (name.ends_with("_URL") || name.ends_with("_ENDPOINT"))
            && !value.is_empty()
    });
    ports.extend(own.filter(|(_, value)| value.contains("://")).map(|(_, value)| port(value)));
    for name in PROXIES {
        for name in [name.to_string(), name.to_lowercase()] {
            ports.extend(find(&name).as_deref().map(port));
        }
    }
    ports.sort_unstable();
    ports.dedup();
    Some(ports)
}

/// Returns the port of an address.
fn port(address: &str) -> u16 {
    let (scheme, rest) = address.split_once("://").unwrap_or(("http", address));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let given = host.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let usual = match scheme {
        "https" | "wss" => HTTPS,
        "socks" | "socks4" | "socks5" | "socks5h" => 1080,
        _ => HTTP,
    };
    given.unwrap_or(usual)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use muleteer_backends::by_name;

    #[test]
    fn model_is_reached_by_its_own_port_and_those_of_proxies() {
        for (address, expected) in [
            ("https://api.anthropic.com", 443),
            ("http://127.0.0.1:8080/v1", 8080),
            ("http://me:secret@proxy:3128", 3128),
            ("proxy:3128", 3128),
            ("http://proxy", 80),
            ("https://[::1]/v1", 443),
            ("socks5h://proxy", 1080),
        ] {
            assert_eq!(port(address), expected, "{address}");
        }
        let env = |all: &[(&str, &str)]| -> Vec<(String, String)> {
            all.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
        };
        let claude = by_name("claude-code").unwrap();
        assert_eq!(model_ports(claude, true, &[], &[]), Some(vec![53, 443]));
        let given = env(&[("ANTHROPIC_BASE_URL", "http://a:81"), ("https_proxy", "http://p:82")]);
        assert_eq!(model_ports(claude, true, &[], &given), Some(vec![53, 81, 82, 443]));
        assert_eq!(model_ports(claude, false, &[], &given), None, "another command");
        for name in ["acp", "opencode", "pi", "subprocess"] {
            assert_eq!(model_ports(by_name(name).unwrap(), true, &[], &given), None, "{name}");
        }
    }
}
