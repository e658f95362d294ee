#![allow(clippy::unwrap_used)]
use crate::admission::api_error::*;
use proptest::prelude::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn outage(trouble: Trouble, until: Timestamp, told: bool, waits: u32, spent_ms: u64) -> Outage {
    Outage {
        trouble,
        status: None,
        until,
        told,
        usage_limit: false,
        tried: None,
        waits,
        spent_ms,
        since_ms: None,
    }
}

fn terms() -> Terms {
    Terms { credential: "ANTHROPIC_API_KEY".into(), ..Terms::default() }
}

fn whose(terms: &Terms) -> Whose<'_> {
    Whose { id: "abcd2345", category: "coding", terms }
}

fn ended(error: TurnError, status: Option<u16>, before: Option<&Outage>, used_ms: u64) -> Next {
    let trouble = Trouble::of_turn(Some(error), status).unwrap();
    let terms = terms();
    next(Ended { trouble, status, said: "scripted", used_ms }, whose(&terms), before, NOW)
}

#[test]
fn every_status_has_its_trouble_and_every_trouble_its_course() {
    use Course::{Restart, Stop, Wait};
    for (error, status, trouble, course) in [
        (TurnError::Auth, None, Trouble::Refused, Stop),
        (TurnError::Auth, Some(401), Trouble::Refused, Stop),
        (TurnError::ApiError, Some(403), Trouble::Refused, Stop),
        (TurnError::ApiError, Some(400), Trouble::Rejected, Stop),
        (TurnError::ApiError, Some(404), Trouble::Rejected, Stop),
        (TurnError::ApiError, Some(413), Trouble::Rejected, Stop),
        (TurnError::RateLimit, None, Trouble::RateLimit, Wait),
        (TurnError::RateLimit, Some(429), Trouble::RateLimit, Wait),
        (TurnError::ApiError, Some(429), Trouble::RateLimit, Wait),
        (TurnError::ApiError, Some(503), Trouble::Overload, Wait),
        (TurnError::ApiError, Some(529), Trouble::Overload, Wait),
        (TurnError::ApiError, Some(408), Trouble::Error, Restart),
        (TurnError::ApiError, Some(500), Trouble::Error, Restart),
        (TurnError::ApiError, Some(502), Trouble::Error, Restart),
        (TurnError::ApiError, None, Trouble::NoAnswer, Restart),
    ] {
        let told = Trouble::of_turn(Some(error), status).unwrap();
        assert_eq!((told, told.course()), (trouble, course), "{error:?} {status:?}");
    }
    for other in [
        TurnError::MaxTurns,
        TurnError::Budget,
        TurnError::Context,
        TurnError::Interrupted,
        TurnError::Mistakes,
        TurnError::Other,
    ] {
        assert_eq!(Trouble::of_turn(Some(other), Some(500)), None, "{other:?}");
    }
    assert_eq!(Trouble::of_turn(None, None), None);
}

#[test]
fn refusal_names_the_key_and_rejection_quotes_the_api() {
    let Next::Stop { reason } = ended(TurnError::Auth, Some(401), None, 0) else { panic!() };
    assert_eq!(reason, "the model API refused the key ANTHROPIC_API_KEY (HTTP 401): scripted");
    let missing = "Missing environment variable: `OPENAI_API_KEY`.";
    assert_eq!(refused(&Terms::default(), None, missing), "OPENAI_API_KEY is not set");
    let Next::Stop { reason } = ended(TurnError::ApiError, Some(404), None, 0) else { panic!() };
    assert_eq!(reason, "the model API rejected the request (HTTP 404): scripted");
}

#[test]
fn rate_limit_wait_lasts_until_the_reported_time() {
    let told = outage(Trouble::RateLimit, at(3600), true, 0, 0);
    let Next::Wait { until, told, waits, spent_ms, reason } =
        ended(TurnError::RateLimit, Some(429), Some(&told), 50_000)
    else {
        panic!()
    };
    assert_eq!((until, told, waits, spent_ms), (at(3600), true, 1, 3_600_000));
    assert_eq!(reason, "rate limited (HTTP 429): scripted");
}

#[test]
fn unreported_limit_backs_off_exponentially() {
    let mut before = None;
    let mut pauses = vec![];
    for _ in 0..10 {
        match ended(TurnError::ApiError, Some(529), before.as_ref(), 1_000) {
            Next::Wait { until, told: false, waits, spent_ms, .. } => {
                pauses.push(until.duration_since(NOW).as_secs());
                before = Some(outage(Trouble::Overload, until, false, waits, spent_ms));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!((4..=5).contains(&pauses[0]), "{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= 300) && pauses[9] >= 240, "{pauses:?}");
    let nine_attempts = 9_000;
    assert!(before.unwrap().spent_ms >= nine_attempts + 4_000);
}

#[test]
fn exceeded_patience_names_its_setting() {
    for (before, used) in [
        // The API named a time that is too far away.
        (outage(Trouble::RateLimit, at(7 * 3600), true, 0, 0), 0),
        // Earlier waits have used up the patience.
        (outage(Trouble::RateLimit, at(-1), false, 9, 6 * 3_600_000), 0),
        // The attempt has used up the patience.
        (outage(Trouble::RateLimit, at(-1), false, 1, 0), 6 * 3_600_000),
    ] {
        let Next::Stop { reason } = ended(TurnError::RateLimit, Some(429), Some(&before), used)
        else {
            panic!("{before:?}")
        };
        assert!(
            reason.contains("rate limited (HTTP 429)")
                && reason.contains("categories.coding.api_patience"),
            "{reason}"
        );
    }
}

#[test]
fn retries_of_a_cli_are_cut_off_at_the_limit() {
    let of = |status, attempt, delay_s| {
        let trouble = Trouble::of_status(Some(status));
        hopeless(trouble, Some(status), attempt, delay_s, whose(&terms()))
    };
    assert_eq!(of(401, 1, 0.5), None, "a login may have been renewed");
    assert_eq!(
        of(401, 2, 1.0).unwrap(),
        "the model API refused the key ANTHROPIC_API_KEY (HTTP 401)"
    );
    assert_eq!(of(429, 9, 3600.0), None);
    assert!(of(429, 1, 86_400.0).unwrap().contains("api_patience"));
    assert_eq!(of(500, 9, 60.0), None);
    assert!(of(500, 1, 3600.0).unwrap().contains("api_timeout"));
}

#[test]
fn channel_names_its_credential_and_only_the_host_of_its_address() {
    for (url, expected) in [
        (None, "claude-code, ANTHROPIC_API_KEY"),
        (
            Some("https://me:secret@proxy.example:8443/v1?token=x"),
            "claude-code, ANTHROPIC_API_KEY at proxy.example:8443",
        ),
        (Some("localhost:4000"), "claude-code, ANTHROPIC_API_KEY at localhost:4000"),
        (Some(""), "claude-code, ANTHROPIC_API_KEY"),
    ] {
        assert_eq!(channel("claude-code", "ANTHROPIC_API_KEY", url), expected);
    }
    assert_eq!(
        channel("codex", "the login of `codex` (`codex login` renews it)", None),
        "codex, the login of `codex`"
    );
    assert_eq!(channel("rehearsal", "", None), "rehearsal");
}

proptest! {
    /// For any claim of an agent: a wait ends after now, is within bounds, and never lasts beyond
    /// the patience in all.
    #[test]
    fn reported_wait_is_bounded(
        until in -1_000_000_000_000_i64..1_000_000_000_000, told: bool, waits in 0..100_u32,
        spent_ms: u64, used_ms: u64
    ) {
        let until = Timestamp::from_millisecond(until).unwrap();
        let before = outage(Trouble::RateLimit, until, told, waits, spent_ms);
        match ended(TurnError::RateLimit, None, Some(&before), used_ms) {
            Next::Wait { until, spent_ms, .. } => {
                prop_assert!(until > NOW);
                prop_assert!(spent_ms <= terms().patience_s * 1000);
            }
            Next::Stop { .. } => {}
            Next::Restart { .. } => prop_assert!(false),
        }
    }

    #[test]
    fn reported_wait_times_are_capped(seconds: f64) {
        prop_assert!(wait(seconds) <= LONGEST_WAIT);
        let _ = moment(seconds);
    }
}
