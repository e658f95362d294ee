#![allow(clippy::unwrap_used)]
use crate::admission::api_backpressure::*;
use crate::event::{Entry, VERSION};
use proptest::prelude::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

const OVERLOAD: (Trouble, Option<u16>) = (Trouble::Overload, Some(529));

fn struck(pressures: &mut Pressures, until: i64, at_work: u32, now: i64) {
    fold(pressures, "c", (OVERLOAD.0, OVERLOAD.1, at(until)), at_work, at(now));
}

#[test]
fn back_pressure_halves_the_agents_then_adds_one_at_a_time() {
    let mut pressures = Pressures::new();
    struck(&mut pressures, 100, 8, 40);
    let places = |pressures: &Pressures, now| pressures["c"].places_at(at(now));
    assert_eq!(
        [40, 99, 100, 114, 115, 130, 160].map(|now| places(&pressures, now)),
        [0, 0, 4, 4, 5, 6, 8]
    );
    // All running dispatches meet the same outage.
    struck(&mut pressures, 90, 8, 41);
    struck(&mut pressures, 120, 7, 42);
    assert_eq!((pressures["c"].places, pressures["c"].until), (4, at(120)));
    // A strike during the recovery allows half of what was allowed, and at least one.
    struck(&mut pressures, 140, 9, 135);
    assert_eq!(pressures["c"].places, 2);
    struck(&mut pressures, 200, 1, 141);
    assert_eq!(pressures["c"].places, 1);
}

/// Records that ask to leave the API alone, and the time until which; an agent's own trouble
/// concerns no other dispatch.
#[test]
fn errors_that_slow_a_channel() {
    let said = |event| {
        let entry = Entry { id: String::new(), dispatch_id: None, at: None, more: false, event };
        let struck = strike(&Record { v: VERSION, seq: 1, ts: at(1_000), entry });
        struck.map(|(trouble, status, until)| (trouble, status, until.as_second() - 1_000))
    };
    let retried = |status| Event::ApiRetried {
        attempt: 1,
        max: 9,
        status: Some(status),
        delay_s: 40.0,
        awake_ms: None,
    };
    let limited = |until, wait_s| Event::RateLimited { until, wait_s, awake_ms: None };
    let waiting = |until| Event::ApiWaiting {
        trouble: Trouble::Overload,
        status: Some(529),
        until,
        told: true,
        waits: 1,
        spent_ms: 0,
    };
    assert_eq!(said(retried(529)), Some((Trouble::Overload, Some(529), 40)));
    assert_eq!(said(retried(429)), Some((Trouble::RateLimit, Some(429), 40)));
    assert_eq!(said(retried(401)), None, "its own key is wrong");
    assert_eq!(
        said(limited(Some(at(1_090)), 5.0)),
        Some((Trouble::RateLimit, None, 90)),
        "the time that was told"
    );
    assert_eq!(said(limited(None, 50.0)), Some((Trouble::RateLimit, None, 50)));
    assert_eq!(said(waiting(at(1_070))), Some((Trouble::Overload, Some(529), 70)));
    assert_eq!(said(waiting(at(0))).unwrap().2, SHORTEST.as_secs() as i64, "never shorter");
    assert_eq!(
        said(waiting(Timestamp::MAX)).unwrap().2,
        LONGEST_WAIT.as_secs() as i64,
        "nor longer"
    );
    assert_eq!(said(Event::OutputRead {}), None);
}

#[test]
fn slot_opens_at_the_announced_time() {
    let mut pressures = Pressures::new();
    struck(&mut pressures, 100, 4, 40);
    let pressure = &pressures["c"];
    for at_work in 0..10 {
        let when = pressure.place_for(at_work);
        assert!(pressure.places_at(when) > at_work, "{at_work}");
        assert!(
            when == at(100) || pressure.places_at(when - SignedDuration::from_secs(1)) <= at_work,
            "{at_work}"
        );
    }
}

#[test]
fn channels_are_bounded_and_forgotten() {
    let mut pressures = Pressures::new();
    let strike = (OVERLOAD.0, OVERLOAD.1, at(10));
    for n in 0..5_000 {
        fold(&mut pressures, &n.to_string(), strike, 1, at(0));
    }
    assert_eq!(pressures.len(), MOST_CHANNELS);
    fold(&mut pressures, "new", strike, 1, at(1_000_000));
    assert_eq!(pressures.len(), 1);
}

proptest! {
    #[test]
    fn channel_never_closes_forever(
        strikes in prop::collection::vec((0..1000_i64, 0..1000_i64, 0..20_u32), 1..20),
        at_work in 0..20_u32
    ) {
        let mut pressures = Pressures::new();
        let mut now = 0;
        for (later, wait, busy) in strikes {
            now += later;
            struck(&mut pressures, now + wait, busy, now);
        }
        let pressure = &pressures["c"];
        prop_assert!(pressure.places >= 1);
        let when = pressure.place_for(at_work);
        prop_assert!(when <= at(now + 1000 + 15 * 21));
        prop_assert!(pressure.places_at(when) > at_work);
    }
}

#[test]
fn back_pressure_is_described_with_its_reason() {
    let mut pressures = Pressures::new();
    struck(&mut pressures, 100, 8, 40);
    let said = |now| pressures["c"].describe("anthropic", at(now));
    let what = OVERLOAD.0.describe(OVERLOAD.1);
    assert_eq!(
        said(99),
        format!("no calls to the model API (anthropic) until 1970-01-01T00:01:40Z: {what}")
    );
    assert_eq!(
        said(100),
        format!("the model API (anthropic) was {what}: at most 4 agents at a time for now")
    );
}
