//! What an error of the model API means for a dispatch. It is an event in its life, not a failure
//! of its agent.
//!
//! | what came | trouble | then |
//! |---|---|---|
//! | 401, 403; a CLI that is not logged in | `refused` | stop, and say which key; while the CLI itself tries again, at the second refusal: a login may just have been renewed |
//! | any other 4xx | `rejected` | stop: the same request would be rejected again |
//! | 429; a limit told in words | `rate_limit` | wait until the time that was told, else by backoff; no attempt is counted |
//! | 503, 529 | `overload` | the same |
//! | 408, 409, any other 5xx | `error` | a restart by backoff, counted |
//! | no status: a cut stream, a silent one, no connection | `no_answer` | the same |
//!
//! Both kinds of waiting are bounded by awake time since the API last answered: limits by
//! `api_patience`, what should not last by `api_timeout`, whoever it is that tries again.

use crate::agent::event::TurnError;
use crate::config::{Price, Span};
use crate::restart::{self, Backoff};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Where no time is told: enough for a limit counted by the minute to be over soon, and not so
/// often that we add to an overload.
const UNTOLD: Backoff =
    Backoff { base: Duration::from_secs(5), max: Duration::from_secs(300), jitter: 0.2 };
/// Of a wait that an API tells, so much is believed: weekly limits are the longest.
pub const LONGEST_WAIT: Duration = Duration::from_secs(8 * 86_400);
/// The refusals in a row after which a CLI need not go on trying.
const REFUSALS: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    Refused,
    Rejected,
    RateLimit,
    Overload,
    Error,
    NoAnswer,
    /// Of a newer version.
    #[serde(other)]
    Unknown,
}

/// What to do when a turn has ended in trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    Stop,
    /// Wait, and count nothing.
    Wait,
    /// A counted restart.
    Restart,
}

/// What a dispatch's way to the model API is, decided when it is made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// What opens the door, by name: a variable or a login, never a value.
    pub credential: String,
    /// What shares limits: backend, credential and address. Empty: the backend.
    pub channel: String,
    pub patience_s: u64,
    pub timeout_s: u64,
    /// Of the dispatch's model, where its CLI reports no cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            credential: String::new(),
            channel: String::new(),
            patience_s: 6 * 3600,
            timeout_s: 15 * 60,
            price: None,
        }
    }
}

/// The model API has not answered since: what is folded of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Outage {
    pub trouble: Trouble,
    pub status: Option<u16>,
    /// It is asked again then, by the CLI or by us.
    pub until: Timestamp,
    /// The API itself said so.
    pub told: bool,
    /// The CLI's own count of its tries: this one, and the most.
    pub tried: Option<(u32, u32)>,
    /// Attempts of ours that ended in it.
    pub waits: u32,
    /// Awake time it has taken so far, as far as we have waited or seen others wait.
    pub spent_ms: u64,
    /// When it began, on the shims' clock of awake time, where a CLI was seen to try again.
    pub since_ms: Option<u64>,
}

/// What comes after a turn that ended in trouble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    Stop { reason: String },
    Wait { until: Timestamp, told: bool, waits: u32, spent_ms: u64, reason: String },
    Restart { reason: String },
}

impl Trouble {
    /// Of an HTTP status, or of none.
    pub fn of_status(status: Option<u16>) -> Self {
        match status {
            Some(401 | 403) => Self::Refused,
            Some(429) => Self::RateLimit,
            Some(503 | 529) => Self::Overload,
            Some(408 | 409) => Self::Error,
            Some(400..=499) => Self::Rejected,
            Some(_) => Self::Error,
            None => Self::NoAnswer,
        }
    }

    /// Of the error a turn ended with; `None` where the model API is not to blame.
    pub fn of_turn(error: Option<TurnError>, status: Option<u16>) -> Option<Self> {
        match (error?, status) {
            (TurnError::Auth, _) => Some(Self::Refused),
            (TurnError::RateLimit, _) => Some(Self::RateLimit),
            (TurnError::ApiError, status) => Some(Self::of_status(status)),
            _ => None,
        }
    }

    pub fn course(self) -> Course {
        match self {
            Self::Refused | Self::Rejected => Course::Stop,
            Self::RateLimit | Self::Overload => Course::Wait,
            Self::Error | Self::NoAnswer | Self::Unknown => Course::Restart,
        }
    }

    /// Others who share the limit should hold back.
    pub fn presses(self) -> bool {
        self.course() == Course::Wait
    }

    /// How long, in awake time, it may last in all.
    pub fn limit(self, terms: &Terms) -> Duration {
        Duration::from_secs(if self.presses() { terms.patience_s } else { terms.timeout_s })
    }

    fn key(self) -> &'static str {
        if self.presses() { "api_patience" } else { "api_timeout" }
    }

    /// `rate limited (HTTP 429)`.
    pub fn describe(self, status: Option<u16>) -> String {
        let what = match self {
            Self::Refused => "refused the key",
            Self::Rejected => "rejected the request",
            Self::RateLimit => "rate limited",
            Self::Overload => "overloaded",
            Self::Error | Self::Unknown => "an error",
            Self::NoAnswer => "no answer",
        };
        match status {
            Some(status) => format!("{what} (HTTP {status})"),
            None => what.to_string(),
        }
    }
}

impl Outage {
    /// For `status`: what is waited for, and until when.
    pub fn waiting(&self, now: Timestamp) -> String {
        let what = self.trouble.describe(self.status);
        let tried = self
            .tried
            .map(|(attempt, max)| format!(", try {attempt} of {max}"))
            .unwrap_or_default();
        if self.until > now {
            format!("waiting for the model API until {:.0}: {what}{tried}", self.until)
        } else {
            format!("waiting for the model API, which was asked again: {what}{tried}")
        }
    }
}

/// Who met the trouble.
#[derive(Debug, Clone, Copy)]
pub struct Whose<'a> {
    pub id: &'a str,
    pub category: &'a str,
    pub terms: &'a Terms,
}

/// A turn that ended in trouble.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    pub trouble: Trouble,
    pub status: Option<u16>,
    pub said: &'a str,
    /// Awake time of its attempt.
    pub used_ms: u64,
}

/// The sentence a dispatch that is refused ends with.
pub fn refused(terms: &Terms, status: Option<u16>, said: &str) -> String {
    let is_variable = terms.credential.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    let key = match terms.credential.as_str() {
        "" => "the key".to_string(),
        name if is_variable => format!("the key {name}"),
        login => login.to_string(),
    };
    with(format!("the model API refused {key}{}", http(status)), said)
}

/// What comes after a turn that ended in trouble. `before`: what was known of the outage until
/// then.
pub fn next(ended: Ended<'_>, whose: Whose<'_>, before: Option<&Outage>, now: Timestamp) -> Next {
    let Ended { trouble, status, said, used_ms } = ended;
    match trouble.course() {
        Course::Stop if trouble == Trouble::Refused => {
            Next::Stop { reason: refused(whose.terms, status, said) }
        }
        Course::Stop => Next::Stop {
            reason: with(format!("the model API rejected the request{}", http(status)), said),
        },
        Course::Restart => {
            Next::Restart { reason: with(format!("model API error{}", http(status)), said) }
        }
        Course::Wait => {
            let waits = before.map_or(0, |outage| outage.waits).saturating_add(1);
            let told = before
                .filter(|outage| outage.told && outage.until > now)
                .map(|outage| outage.until);
            let until = told.map(|told| told.min(after(now, LONGEST_WAIT)));
            let until =
                until.unwrap_or_else(|| after(now, UNTOLD.delay(waits, restart::seed(whose.id))));
            let wait_ms = u64::try_from(until.duration_since(now).as_millis()).unwrap_or(0);
            // The first attempt's time is its work's; of those after it, nothing but trouble came.
            let used_ms = if waits > 1 { used_ms } else { 0 };
            let spent_ms = before
                .map_or(0, |outage| outage.spent_ms)
                .saturating_add(used_ms)
                .saturating_add(wait_ms);
            let what = with(trouble.describe(status), said);
            if Duration::from_millis(spent_ms) > trouble.limit(whose.terms) {
                let until = format!(" until {until:.0}");
                return Next::Stop { reason: given_up(trouble, whose, &format!("{what}{until}")) };
            }
            Next::Wait { until, told: told.is_some(), waits, spent_ms, reason: what }
        }
    }
}

/// The sentence for trouble that has lasted too long, or would.
pub fn given_up(trouble: Trouble, whose: Whose<'_>, what: &str) -> String {
    let limit = Span(trouble.limit(whose.terms));
    format!(
        "the model API: {what}; more than {limit} (categories.{}.{})",
        whose.category,
        trouble.key()
    )
}

/// Whether a CLI that tries again by itself need not: it is stopped with this reason.
pub fn hopeless(
    trouble: Trouble,
    status: Option<u16>,
    attempt: u32,
    delay_s: f64,
    whose: Whose<'_>,
) -> Option<String> {
    if trouble == Trouble::Refused && attempt >= REFUSALS {
        return Some(refused(whose.terms, status, ""));
    }
    let delay = wait(delay_s);
    let what = || {
        format!(
            "{}, to be asked again in {}",
            trouble.describe(status),
            Span::from_secs(delay.as_secs())
        )
    };
    (delay > trouble.limit(whose.terms)).then(|| given_up(trouble, whose, &what()))
}

/// Seconds that somebody told, as a wait that can be believed.
pub fn wait(seconds: f64) -> Duration {
    let seconds =
        if seconds.is_finite() { seconds.clamp(0.0, LONGEST_WAIT.as_secs_f64()) } else { 0.0 };
    Duration::from_secs_f64(seconds)
}

/// `wait` after `now`, whole milliseconds.
pub fn after(now: Timestamp, wait: Duration) -> Timestamp {
    let millis = i64::try_from(wait.min(LONGEST_WAIT).as_millis()).unwrap_or(i64::MAX);
    now.checked_add(SignedDuration::from_millis(millis)).unwrap_or(now)
}

/// The moment an agent claims a limit to end at, in Unix seconds.
pub fn moment(unix_s: f64) -> Option<Timestamp> {
    // What is beyond the calendar saturates, and is refused.
    unix_s
        .is_finite()
        .then(|| Timestamp::from_millisecond((unix_s * 1000.0) as i64).ok())
        .flatten()
}

fn http(status: Option<u16>) -> String {
    status.map(|status| format!(" (HTTP {status})")).unwrap_or_default()
}

fn with(what: String, said: &str) -> String {
    let said = said.trim();
    if said.is_empty() { what } else { format!("{what}: {said}") }
}

/// What opens the model API's door to a CLI, as far as its environment tells. `has` says whether a
/// variable is set; values are never looked at.
pub fn credential(backend: &str, has: impl Fn(&str) -> bool) -> String {
    let first = |names: &[&str], login: &str| {
        let found = names.iter().find(|name| has(name));
        found.map_or_else(|| login.to_string(), |name| (*name).to_string())
    };
    match backend {
        "claude-code" if has("CLAUDE_CODE_USE_BEDROCK") => {
            "the AWS credentials of CLAUDE_CODE_USE_BEDROCK".into()
        }
        "claude-code" if has("CLAUDE_CODE_USE_VERTEX") => {
            "the Google credentials of CLAUDE_CODE_USE_VERTEX".into()
        }
        // In the order in which Claude Code prefers them.
        "claude-code" => first(
            &["ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN"],
            "the login of `claude` (/login renews it)",
        ),
        "codex" => first(
            &["CODEX_API_KEY", "OPENAI_API_KEY"],
            "the login of `codex` (`codex login` renews it)",
        ),
        _ => String::new(),
    }
}

/// What shares a limit, as far as it can be told: backend, credential, and where it is asked. The
/// model is left out: whose limit it was is not told, and limits of an account are the common ones.
pub fn channel(backend: &str, credential: &str, base_url: Option<&str>) -> String {
    let name = credential.split(" (").next().unwrap_or_default();
    let mut channel = backend.to_string();
    if !name.is_empty() {
        channel = format!("{channel}, {name}");
    }
    match base_url.map(host).filter(|host| !host.is_empty()) {
        Some(host) => format!("{channel} at {host}"),
        None => channel,
    }
}

/// Host and port only: an address may carry a name and a password, or a token in its path.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
    rest.rsplit('@').next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
