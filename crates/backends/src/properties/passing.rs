//! The environment variables that pass to agents: from the environment of a client, and for threads
//! of adapters from that of the daemon.

use crate::properties::variables::{self, fits};

/// Variables that are passed to every agent, whatever its CLI. A `*` at the end matches any ending.
const FOR_ALL: &[&str] = &[
    // The user and the machine.
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TERM",
    "COLORTERM",
    "TZ",
    "TMPDIR",
    "XDG_*",
    "SSH_AUTH_SOCK",
    "SSH_AGENT_PID",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_AUTHOR_*",
    "GIT_COMMITTER_*",
    // Network access.
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "FTP_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
];

/// Variables for the push and the pull request at the end of a run; no agent gets them. `gh` uses
/// them, also when git asks it for credentials. The daemon holds them in memory.
pub const PUSH: &[&str] = &[
    "GH_TOKEN",
    "GITHUB_TOKEN",
    "GH_ENTERPRISE_TOKEN",
    "GITHUB_ENTERPRISE_TOKEN",
    "GH_HOST",
    "GH_CONFIG_DIR",
];

/// Returns those of `vars` that only the push gets.
pub fn for_push(vars: impl IntoIterator<Item = (String, String)>) -> Vec<(String, String)> {
    vars.into_iter()
        .filter(|(name, value)| PUSH.contains(&name.as_str()) && !value.is_empty())
        .collect()
}

/// Returns the patterns of the variables that are always passed: those for all agents, then those
/// of the agent CLIs.
pub fn built_in() -> impl Iterator<Item = &'static str> {
    FOR_ALL.iter().copied().chain(variables::passed())
}

/// Returns those of `vars` that the built-in list or the configuration's `env.pass` lets pass.
pub fn filter(
    vars: impl IntoIterator<Item = (String, String)>,
    pass: &[String],
) -> Vec<(String, String)> {
    let mut kept: Vec<_> = vars.into_iter().filter(|(name, _)| passes(name, pass)).collect();
    kept.sort();
    kept
}

/// Whether a variable passes, by its name.
pub fn passes(name: &str, pass: &[String]) -> bool {
    // An exact name in `env.pass` is a deliberate choice, so it overrides the nesting markers.
    if pass.iter().any(|wanted| wanted == name) {
        return true;
    }
    let is_passed = |pattern: &str| fits(pattern, name);
    !variables::is_nesting(name)
        && (built_in().any(is_passed) || pass.iter().any(|pattern| is_passed(pattern)))
}
