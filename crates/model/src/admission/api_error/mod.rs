//! Errors of the model API, and the course of a dispatch after each. Such an error is an event in
//! the dispatch's life, not a failure of its agent.
//!
//! | response | trouble | course |
//! |---|---|---|
//! | 401, 403; a CLI that is not logged in | `refused` | stop, and name the key; while the CLI itself retries, at the second refusal, because a login may just have been renewed |
//! | any other 4xx | `rejected` | stop: the same request would be rejected again |
//! | 429; a limit that the CLI reports | `rate_limit` | wait until the reported time, else by backoff; no attempt is counted |
//! | a usage limit with a reset time ([`usage_limit`](super::usage_limit)) | `rate_limit` | the same, also longer than `api_patience` |
//! | 503, 529 | `overload` | the same |
//! | 408, 409, any other 5xx | `error` | a restart by backoff, counted |
//! | no status: a cut stream, a silent one, no connection | `no_answer` | the same |
//!
//! Both kinds of waiting are bounded by awake time since the API last answered: `api_patience`
//! bounds limits, and `api_timeout` bounds errors that should not last. It does not matter whether
//! the CLI or Muleteer retries. The reset time of a usage limit is a date, which may be days away;
//! only [`PARK_CHARGE`] of each such wait counts.

pub mod unknown_model;

use crate::agent::event::TurnError;
use crate::config::span::Span;
use crate::config::types::Price;
use crate::restart::{self, Backoff};
use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The backoff if the API names no time. It is short enough for limits that are counted by the
/// minute, and long enough not to add to an overload.
const UNTOLD: Backoff =
    Backoff { base: Duration::from_secs(5), max: Duration::from_secs(300), jitter: 0.2 };
/// The longest wait that is accepted from an API: weekly limits are the longest.
pub const LONGEST_WAIT: Duration = Duration::from_secs(8 * 86_400);
/// The part of a wait for a reset time that counts toward `api_patience`. Without it, an API that
/// always names another time would be asked for ever.
pub const PARK_CHARGE: Duration = Duration::from_secs(30);
/// The number of refusals in a row after which a CLI's retries are stopped.
const REFUSALS: u32 = 2;

/// The kind of trouble with the model API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// The API refused the credential.
    Refused,
    /// The API rejected the request, and would reject it again.
    Rejected,
    /// A rate limit is reached.
    RateLimit,
    /// The API is overloaded.
    Overload,
    /// The API answered with another error.
    Error,
    /// There was no answer, or it broke off.
    NoAnswer,
    /// A kind of a newer version.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// The course after a turn that ended in trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    Stop,
    /// Wait, and count no attempt.
    Wait,
    /// Restart, and count the attempt.
    Restart,
}

/// The settings by which a dispatch uses the model API, decided when it is created.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(rename = "ApiTerms")]
pub struct Terms {
    /// The name of the credential, a variable or a login; never a value.
    pub credential: String,
    /// The channel that shares limits: backend, credential and address. Empty: the backend.
    pub channel: String,
    /// The most awake seconds to wait for limits since the API last answered.
    pub patience_s: u64,
    /// The most awake seconds to wait for errors since the API last answered.
    pub timeout_s: u64,
    /// The price of the dispatch's model, if its CLI reports no cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
    /// The prices of all models that have one. The agent may use another model than the requested
    /// one, and name it with its tokens.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub prices: BTreeMap<String, Price>,
    /// The time zone of the agent (`TZ`), if its environment names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

impl Terms {
    /// Returns the price of the first of these models that has one, else that of the requested
    /// model. Some agents put the provider before the name: `openai/gpt-6`.
    pub fn price_of<'a>(&self, models: impl IntoIterator<Item = &'a str>) -> Option<Price> {
        let named = |model: &str| {
            let bare = model.rsplit('/').next().unwrap_or(model);
            self.prices.get(model).or_else(|| self.prices.get(bare)).copied()
        };
        models.into_iter().find_map(named).or(self.price)
    }
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            credential: String::new(),
            channel: String::new(),
            patience_s: 6 * 3600,
            timeout_s: 15 * 60,
            price: None,
            prices: BTreeMap::new(),
            zone: None,
        }
    }
}

/// The folded state of an API that has not answered since the first trouble.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outage {
    pub trouble: Trouble,
    pub status: Option<u16>,
    /// The time of the next request, by the CLI or by Muleteer.
    pub until: Timestamp,
    /// The API itself named the time.
    pub told: bool,
    /// `until` is a date at which a limit ends, not a pause between two requests.
    pub usage_limit: bool,
    /// The CLI's own count of its tries: this one, and the most.
    pub tried: Option<(u32, u32)>,
    /// The number of our attempts that ended in it.
    pub waits: u32,
    /// The awake time of the outage so far, as far as Muleteer waited or saw others wait.
    pub spent_ms: u64,
    /// The start of the outage on the shims' clock of awake time, if a CLI was seen to retry.
    pub since_ms: Option<u64>,
}

/// The decision after a turn that ended in trouble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    Stop { reason: String },
    Wait { until: Timestamp, told: bool, waits: u32, spent_ms: u64, reason: String },
    Restart { reason: String },
}

impl Trouble {
    /// Returns the kind of trouble for an HTTP status, or for none.
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

    /// Returns the trouble that a turn's error means; `None` if the model API is not to blame.
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

    /// Whether other dispatches that share the limit should hold back.
    pub fn presses(self) -> bool {
        self.course() == Course::Wait
    }

    /// Returns the longest awake time that the trouble may last in all.
    pub fn limit(self, terms: &Terms) -> Duration {
        Duration::from_secs(if self.presses() { terms.patience_s } else { terms.timeout_s })
    }

    fn key(self) -> &'static str {
        if self.presses() { "api_patience" } else { "api_timeout" }
    }

    /// Describes the trouble for people: `rate limited (HTTP 429)`.
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
    /// Describes the wait for `status`: the trouble, and its end.
    pub fn waiting(&self, now: Timestamp) -> String {
        let what = match self.usage_limit {
            true => format!("usage limit reached{}", http(self.status)),
            false => self.trouble.describe(self.status),
        };
        let tried = self
            .tried
            .map(|(attempt, max)| format!(", attempt {attempt} of {max}"))
            .unwrap_or_default();
        if self.until > now {
            format!("waiting for the model API until {:.0}: {what}{tried}", self.until)
        } else {
            format!("waiting for the model API, retrying: {what}{tried}")
        }
    }
}

/// The dispatch that met the trouble.
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
    /// The awake time of its attempt.
    pub used_ms: u64,
}

/// Returns the final reason of a dispatch whose credential was refused.
pub fn refused(terms: &Terms, status: Option<u16>, said: &str) -> String {
    if let Some(name) = missing_variable(said) {
        return format!("{name} is not set");
    }
    let is_variable = terms.credential.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    let key = match terms.credential.as_str() {
        "" => "the key".to_string(),
        name if is_variable => format!("the key {name}"),
        login => login.to_string(),
    };
    with(format!("the model API refused {key}{}", http(status)), said)
}

/// Returns the variable of a CLI's complaint about a missing credential: ``Missing environment
/// variable: `OPENAI_API_KEY`.``
fn missing_variable(said: &str) -> Option<&str> {
    let (_, rest) = said.split_once("Missing environment variable")?;
    let name = rest.trim_start_matches([':', ' ', '`']);
    let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(name.len());
    Some(&name[..end]).filter(|name| !name.is_empty())
}

/// Decides the course after a turn that ended in trouble. `before` is the outage as known until
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
            // The time of the first attempt counts as work; later attempts met nothing but trouble.
            let used_ms = if waits > 1 { used_ms } else { 0 };
            let is_parked = told.is_some() && before.is_some_and(|outage| outage.usage_limit);
            let charge_ms = if is_parked {
                wait_ms.min(u64::try_from(PARK_CHARGE.as_millis()).unwrap_or(u64::MAX))
            } else {
                wait_ms
            };
            let spent_ms = before
                .map_or(0, |outage| outage.spent_ms)
                .saturating_add(used_ms)
                .saturating_add(charge_ms);
            let what = with(trouble.describe(status), said);
            if Duration::from_millis(spent_ms) > trouble.limit(whose.terms) {
                let until = format!(" until {until:.0}");
                return Next::Stop { reason: given_up(trouble, whose, &format!("{what}{until}")) };
            }
            Next::Wait { until, told: told.is_some(), waits, spent_ms, reason: what }
        }
    }
}

/// Returns the reason for trouble that has lasted too long, or would.
pub fn given_up(trouble: Trouble, whose: Whose<'_>, what: &str) -> String {
    let limit = Span(trouble.limit(whose.terms));
    format!(
        "the model API: {what}; longer than {limit} (categories.{}.{})",
        whose.category,
        trouble.key()
    )
}

/// Returns a reason to stop a CLI whose own retries are useless.
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
            "{}, next attempt in {}",
            trouble.describe(status),
            Span::from_secs(delay.as_secs())
        )
    };
    (delay > trouble.limit(whose.terms)).then(|| given_up(trouble, whose, &what()))
}

/// Converts reported seconds to a wait within bounds.
pub fn wait(seconds: f64) -> Duration {
    let seconds =
        if seconds.is_finite() { seconds.clamp(0.0, LONGEST_WAIT.as_secs_f64()) } else { 0.0 };
    Duration::from_secs_f64(seconds)
}

/// Returns the time `wait` after `now`, in whole milliseconds.
pub fn after(now: Timestamp, wait: Duration) -> Timestamp {
    let millis = i64::try_from(wait.min(LONGEST_WAIT).as_millis()).unwrap_or(i64::MAX);
    now.checked_add(SignedDuration::from_millis(millis)).unwrap_or(now)
}

/// Converts the end of a limit that an agent reports, in Unix seconds.
pub fn moment(unix_s: f64) -> Option<Timestamp> {
    // A time beyond the calendar saturates, and is rejected.
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

/// Returns the channel that shares a limit, as far as known: backend, credential and host. The
/// model is left out, because no CLI reports the model of a limit, and limits of an account are the
/// common ones.
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

/// Returns host and port only: an address may contain a name and a password, or a token in its
/// path.
fn host(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
    rest.rsplit('@').next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
