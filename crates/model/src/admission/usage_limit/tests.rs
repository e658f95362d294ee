#![allow(clippy::unwrap_used)]
use crate::admission::usage_limit::*;
use proptest::prelude::*;

/// The texts' "now": a Tuesday in summer time, 14:00 in Berlin.
const NOW: &str = "2026-10-06T12:00:00Z";

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn berlin() -> TimeZone {
    TimeZone::get("Europe/Berlin").unwrap()
}

fn failed(error: TurnError, text: &str) -> AgentEvent {
    AgentEvent::Result(TurnResult {
        ok: false,
        error: Some(error),
        text: Some(text.into()),
        ..TurnResult::default()
    })
}

#[test]
fn every_spelling_of_a_reset_gives_its_time() {
    for (said, expected) in [
        ("Claude AI usage limit reached|1791300000", "2026-10-06T15:20:00Z"),
        ("usage limit, resets_at: 1791300000000", "2026-10-06T15:20:00Z"),
        ("{\"type\":\"usage_limit_reached\",\"resets_in_seconds\":3600}", "2026-10-06T13:00:00Z"),
        ("5-hour limit reached ∙ resets 3pm", "2026-10-06T13:00:00Z"),
        ("5-hour limit reached ∙ resets 1pm", "2026-10-07T11:00:00Z"),
        ("You've hit your limit · resets 3:45pm (Europe/Berlin)", "2026-10-06T13:45:00Z"),
        ("You've hit your limit · resets 11pm (America/New_York)", "2026-10-07T03:00:00Z"),
        ("Your limit will reset at 3 PM.", "2026-10-06T13:00:00Z"),
        ("Your limit will reset at 15:30 UTC", "2026-10-06T15:30:00Z"),
        ("Your limit will reset at 15:30 UTC+5", "2026-10-07T10:30:00Z"),
        ("Weekly limit reached ∙ resets Oct 7, 1am (Europe/Berlin)", "2026-10-06T23:00:00Z"),
        ("Weekly limit reached ∙ resets 7 October at 1 a.m.", "2026-10-06T23:00:00Z"),
        ("Opus weekly limit reached ∙ resets Monday at 9am", "2026-10-12T07:00:00Z"),
        ("limit reached, resets tomorrow at noon", "2026-10-07T10:00:00Z"),
        ("limit reached, resets at midnight Pacific time", "2026-10-07T07:00:00Z"),
        ("You've hit your usage limit. Try again in 2 hours 30 minutes.", "2026-10-06T14:30:00Z"),
        (
            "You've hit your usage limit. Try again in 1 day, 3 hours and 5 minutes",
            "2026-10-07T15:05:00Z",
        ),
        ("You've hit your usage limit. Try again in less than a minute.", "2026-10-06T12:01:00Z"),
        (
            "You've hit your usage limit. Try again at Oct 7th, 2026 1:02 AM.",
            "2026-10-06T23:02:00Z",
        ),
        ("You've hit your usage limit. Try again at 3:05\u{202f}PM.", "2026-10-06T13:05:00Z"),
        ("Your quota will reset after 2h30m10s.", "2026-10-06T14:30:10Z"),
        ("Quota exceeded. Please retry in 34.5s", "2026-10-06T12:00:34.5Z"),
        ("usage limit, resets at 2026-10-07T01:00:00Z", "2026-10-07T01:00:00Z"),
        ("usage limit, resets at 2026-10-07T01:00:00+02:00.", "2026-10-06T23:00:00Z"),
        ("usage limit, resets at 2026-10-07 01:00", "2026-10-06T23:00:00Z"),
        ("usage limit, resets at 2026-10-07 01:00 UTC", "2026-10-07T01:00:00Z"),
        (
            "usage limit; see https://example.com/usage. It resets in an hour",
            "2026-10-06T13:00:00Z",
        ),
    ] {
        assert_eq!(reset(said, time(NOW), &berlin()), Some(time(expected)), "{said}");
    }
}

#[test]
fn text_without_a_future_time_gives_none() {
    for said in [
        "",
        "Try again later.",
        "usage limit reached",
        "resets 25pm",
        "resets 13pm",
        "resets 3:99",
        "resets Oct 32, 1am",
        "resets at 1759813200",
        "resets at 99999999999",
        "resets in 400 days",
        "resets in -5 minutes",
        "resets in NaN seconds",
        "resets in 0s",
        "resets at 2026-10-01T01:00:00Z",
        "resets Oct 5, 1am",
        "retry attempt 3 of 5",
        "resets at Europe/../../etc/passwd",
    ] {
        assert_eq!(reset(said, time(NOW), &berlin()), None, "{said}");
    }
}

#[test]
fn time_that_just_passed_is_not_the_next_days() {
    for said in ["resets 2pm", "resets 1:50pm", "resets Oct 6, 1:50pm", "resets Tuesday 1:50pm"] {
        let found = reset(said, time(NOW), &berlin());
        let is_today = found.is_some_and(|at| at < time("2026-10-07T00:00:00Z"));
        assert!(found.is_none() || is_today, "{said}: {found:?}");
    }
}

#[test]
fn changes_of_the_clock_move_the_reset() {
    // In Berlin clocks go back on 2026-10-25 at 03:00 and forward on 2026-03-29 at 02:00.
    for (now, said, expected) in [
        ("2026-10-24T20:00:00Z", "resets 9am", "2026-10-25T08:00:00Z"),
        ("2026-10-24T20:00:00Z", "resets 2:30am", "2026-10-25T00:30:00Z"),
        ("2026-03-28T20:00:00Z", "resets 9am", "2026-03-29T07:00:00Z"),
        ("2026-03-28T20:00:00Z", "resets 2:30am", "2026-03-29T01:30:00Z"),
        ("2026-12-31T20:00:00Z", "resets Jan 1, 1am", "2027-01-01T00:00:00Z"),
        ("2027-01-01T10:00:00Z", "resets Jan 3, 1am", "2027-01-03T00:00:00Z"),
    ] {
        assert_eq!(reset(said, time(now), &berlin()), Some(time(expected)), "{now} {said}");
    }
}

#[test]
fn zone_that_is_unknown_gives_the_agents_zone() {
    let said = "resets 3pm (Mars/Olympus_Mons)";
    assert_eq!(reset(said, time(NOW), &berlin()), Some(time("2026-10-06T13:00:00Z")));
}

#[test]
fn only_reports_of_a_usage_limit_are_recognized() {
    for said in [
        "Claude AI usage limit reached|1759813200",
        "5-hour limit reached ∙ resets 3pm",
        "You've hit your Opus limit",
        "You've hit your session limit · resets 3pm",
        "You've reached your weekly limit",
        "You're out of extra usage · resets 3pm",
        "Limit reached · resets 3pm",
        "Quota exceeded",
    ] {
        assert!(is_reported(said), "{said}");
    }
    for said in [
        "context limit reached; the context resets",
        "You've reached your context limit",
        "the answer reached the token limit",
        "hit the wall",
        "connection reset by peer",
    ] {
        assert!(!is_reported(said), "{said}");
    }
}

#[test]
fn failed_turn_with_a_reset_gets_the_limit_before_it() {
    for error in [TurnError::RateLimit, TurnError::ApiError, TurnError::Other] {
        let mut events = vec![failed(error, "5-hour limit reached ∙ resets 3pm")];
        date(&mut events, time(NOW), &berlin());
        let [AgentEvent::RateLimit { resets_at, warning: false, .. }, AgentEvent::Result(result)] =
            &events[..]
        else {
            panic!("{events:?}")
        };
        assert_eq!(*resets_at, Some(time("2026-10-06T13:00:00Z").as_second() as f64));
        assert_eq!((result.ok, result.error), (false, Some(TurnError::RateLimit)));
    }
    let mut events = vec![failed(TurnError::Context, "usage limit, resets 3pm")];
    let before = events.clone();
    date(&mut events, time(NOW), &berlin());
    assert_eq!(events, before, "another error stays as it is");
}

#[test]
fn answer_that_is_only_the_report_becomes_a_failure() {
    let answer = |text: &str| {
        AgentEvent::Result(TurnResult {
            ok: true,
            text: Some(text.into()),
            ..TurnResult::default()
        })
    };
    let mut events = vec![answer("Claude AI usage limit reached|1791300000")];
    date(&mut events, time(NOW), &berlin());
    assert!(
        matches!(&events[..], [AgentEvent::RateLimit { .. }, AgentEvent::Result(result)]
            if !result.ok && result.error == Some(TurnError::RateLimit)),
        "{events:?}"
    );
    for text in [
        "I fixed the page that says: 5-hour limit reached, resets 3pm",
        "You've hit your usage limit is now the text of the dialog",
    ] {
        let mut events = vec![answer(text)];
        date(&mut events, time(NOW), &berlin());
        assert_eq!(events, [answer(text)], "{text}");
    }
}

proptest! {
    #[test]
    fn any_text_gives_a_time_within_bounds(
        said in "(resets |try again |until |\\|){0,3}[ -~∙·]{0,80}",
        seconds in 0_i64..4_000_000_000,
    ) {
        let now = Timestamp::from_second(seconds).unwrap();
        if let Some(at) = reset(&said, now, &berlin()) {
            prop_assert!(at > now && at.duration_since(now) <= FURTHEST);
        }
    }
}
