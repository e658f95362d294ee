//! Usage limits of an account: a CLI reports in prose that its user has no more use of the model
//! until a certain time ("5-hour limit reached ∙ resets 3pm").
//!
//! Such a limit parks the dispatch: it waits without a process until that time, and no attempt is
//! counted. The time is resolved once, with the clock of the output record, and becomes part of an
//! event. So a daemon that reads the output hours later, or restarts, waits for the same time.

mod reset_time;

use crate::agent::event::{AgentEvent, TurnError, TurnResult};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// The part of a text that is read, in bytes. Reports of a limit are one or two lines.
const READ_LIMIT: usize = 4096;
/// The longest text that is only a report of a limit, in bytes.
const NOTICE_LIMIT: usize = 240;
/// The latest reset that is believed. Monthly limits are the longest.
const FURTHEST: SignedDuration = SignedDuration::from_hours(35 * 24);

/// Phrases of CLIs for a usage limit, in lower case.
const SIGNS: &[&str] = &[
    "usage limit",
    "hour limit reached",
    "daily limit reached",
    "weekly limit reached",
    "monthly limit reached",
    "session limit reached",
    "out of extra usage",
    "quota exceeded",
    "exhausted your capacity",
    "exhausted your daily quota",
    "usage_limit_reached",
    "usage_limit_exceeded",
    "usagelimitexceeded",
];
/// Phrases that report a usage limit if `limit` follows soon: `You've hit your Opus limit`.
const HITS: &[&str] = &["hit your ", "reached your ", "hit the ", "reached the "];
/// The most bytes between such a phrase and `limit`.
const HIT_REACH: usize = 40;
/// How texts begin that are only a report of a limit, in lower case.
const NOTICES: &[&str] = &[
    "claude ai usage limit",
    "claude usage limit",
    "you've hit your",
    "you’ve hit your",
    "you have hit your",
    "you've reached your",
    "you’ve reached your",
    "you have reached your",
    "you're out of extra usage",
    "you’re out of extra usage",
    "5-hour limit reached",
    "usage limit reached",
    "session limit reached",
    "daily limit reached",
    "weekly limit reached",
    "opus weekly limit reached",
];

/// Whether an error's text reports a usage limit.
pub fn is_reported(said: &str) -> bool {
    let said = beginning(said).to_ascii_lowercase();
    if SIGNS.iter().any(|sign| said.contains(sign)) {
        return true;
    }
    let is_reset = said.contains("reset");
    let hit = HITS.iter().any(|hit| {
        said.match_indices(hit).any(|(at, _)| {
            let rest = said.get(at + hit.len()..).unwrap_or_default();
            let reach: String = rest.chars().take(HIT_REACH).collect();
            let is_about_context = reach.contains("context") || reach.contains("token");
            reach.contains("limit") && !is_about_context && (is_reset || hit.ends_with("your "))
        })
    });
    hit || (is_reset && said.contains("limit reached") && !said.contains("context"))
}

/// Returns the time at which the limit of this text ends, if it names one that lies ahead. `now` is
/// when the CLI printed the text, and `zone` is the zone of times that name none.
pub fn reset(said: &str, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let furthest = now.checked_add(FURTHEST).ok()?;
    reset_time::find(beginning(said), now, zone).find(|at| *at > now && *at <= furthest)
}

/// Adds the end of a usage limit before the turn's end that reports it, and corrects a turn's end
/// that presents the report as an answer.
pub fn date(events: &mut Vec<AgentEvent>, now: Timestamp, zone: &TimeZone) {
    let mut at = 0;
    while at < events.len() {
        let (before, rest) = events.split_at_mut(at);
        at += 1;
        let Some(AgentEvent::Result(result)) = rest.first_mut() else { continue };
        let spoken = before.iter().rev().find_map(|event| match event {
            AgentEvent::Text { text, .. } => Some(text.as_str()).filter(|text| is_reported(text)),
            _ => None,
        });
        let said = result.text.as_deref().or(spoken).unwrap_or_default().to_string();
        if !is_limit(result, &said) {
            continue;
        }
        let reset = reset(&said, now, zone);
        if result.ok {
            // An answer that only quotes such a report is an answer.
            if reset.is_none() || !is_notice(&said) {
                continue;
            }
            (result.ok, result.text) = (false, Some(said));
        }
        result.error = Some(TurnError::RateLimit);
        if let Some(reset) = reset {
            let resets_at = Some(reset.as_millisecond() as f64 / 1000.0);
            let limit = AgentEvent::RateLimit { resets_in_s: 0.0, resets_at, warning: false };
            events.insert(at - 1, limit);
            at += 1;
        }
    }
}

fn is_limit(result: &TurnResult, said: &str) -> bool {
    match result.error {
        Some(TurnError::RateLimit) => true,
        Some(TurnError::ApiError | TurnError::Other) => is_reported(said),
        Some(_) => false,
        None => result.structured.is_none() && is_reported(said),
    }
}

/// Whether a text is nothing but the report of a limit.
fn is_notice(said: &str) -> bool {
    let said = said.trim();
    let begins = || {
        let said = said.to_lowercase();
        NOTICES.iter().any(|notice| said.starts_with(notice))
    };
    said.len() <= NOTICE_LIMIT && !said.contains('\n') && begins()
}

fn beginning(said: &str) -> &str {
    let mut end = said.len().min(READ_LIMIT);
    while !said.is_char_boundary(end) {
        end -= 1;
    }
    &said[..end]
}

#[cfg(test)]
mod tests;
