//! Decides which matters are due for a notification.

use crate::config::types::notify::Policy;
use crate::conversation::notify::matter::Matter;
use jiff::{SignedDuration, Timestamp};
use rpds::RedBlackTreeMapSync;
use serde::{Deserialize, Serialize};

/// The most matters that one notification names.
pub const MOST_NAMED: usize = 10;
/// The most matters of one notification; more wait for the next.
pub const MOST_TOLD: usize = 100;
/// The most keys of matters that are remembered.
const REMEMBERED: usize = 4096;

/// The matters of which people were notified.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// The matters, with the time of their notification.
    keys: RedBlackTreeMapSync<String, Timestamp>,
    /// The time of the newest notification.
    last: Option<Timestamp>,
}

/// A notification that is to be recorded and then sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    pub matters: Vec<Matter>,
}

/// The decision at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    pub notice: Option<Notice>,
    /// The next moment at which the decision may differ although nothing happened.
    pub look_at: Option<Timestamp>,
}

impl Told {
    /// Notes a notification about these matters.
    pub fn note(&mut self, keys: impl IntoIterator<Item = String>, at: Timestamp) {
        for key in keys {
            self.keys.insert_mut(key, at);
        }
        self.last = self.last.max(Some(at));
        while self.keys.size() > REMEMBERED {
            let oldest = self.keys.iter().min_by_key(|(key, at)| (**at, (*key).clone()));
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            self.keys.remove_mut(&oldest);
        }
    }

    pub fn has(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }
}

/// Decides which of the present matters are due. It never returns a matter that was told before.
pub fn decide(matters: &[Matter], told: &Told, policy: &Policy, now: Timestamp) -> Decision {
    let mut open: Vec<&Matter> = matters
        .iter()
        .filter(|matter| policy.kinds.contains(&matter.kind) && !told.has(&matter.key))
        .collect();
    open.sort_by(|a, b| (a.since, &a.key).cmp(&(b.since, &b.key)));
    // After a clock was set back nobody can tell how long a matter has waited.
    let due_at = |matter: &Matter| match matter.since > now {
        true => now,
        false => after(matter.since, policy.dwell),
    };
    let due: Vec<_> = open.iter().filter(|matter| due_at(matter) <= now).collect();
    let Some(first) = open.iter().map(|matter| due_at(matter)).min() else {
        return Decision::default();
    };
    if due.is_empty() {
        return Decision { notice: None, look_at: Some(first) };
    }
    if let Some(until) = policy.quiet.and_then(|quiet| quiet.until(now, &policy.zone)) {
        return Decision { notice: None, look_at: Some(until) };
    }
    let last = told.last.filter(|last| *last <= now);
    let cool = last.map(|last| after(last, policy.cool_down));
    if let Some(cool) = cool.filter(|cool| *cool > now) {
        return Decision { notice: None, look_at: Some(cool) };
    }
    let matters: Vec<Matter> = due.iter().take(MOST_TOLD).map(|one| (**one).clone()).collect();
    let look_at = (matters.len() < open.len()).then(|| after(now, policy.cool_down));
    Decision { notice: Some(Notice { matters }), look_at }
}

impl Notice {
    /// Returns the title, on one line.
    pub fn title(&self) -> String {
        match self.matters.as_slice() {
            [one] => one.text.clone(),
            all => format!("{} agents need you", all.len()),
        }
    }

    /// Returns one line for each matter, and a count of those that are not named.
    pub fn text(&self) -> String {
        let mut lines: Vec<_> =
            self.matters.iter().take(MOST_NAMED).map(|matter| matter.text.clone()).collect();
        let more = self.matters.len().saturating_sub(MOST_NAMED);
        lines.extend((more > 0).then(|| format!("and {more} more")));
        lines.join("\n")
    }
}

fn after(at: Timestamp, span: std::time::Duration) -> Timestamp {
    SignedDuration::try_from(span)
        .ok()
        .and_then(|span| at.checked_add(span).ok())
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::conversation::notify::matter::Kind;
    use jiff::tz::TimeZone;
    use std::time::Duration;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_767_225_600 + second).unwrap()
    }

    fn matter(key: &str, since: i64) -> Matter {
        Matter {
            key: key.into(),
            kind: Kind::Question,
            since: at(since),
            dispatch: crate::event::id::DispatchId::try_from("abcd2345".to_string()).ok(),
            question: None,
            text: format!("about {key}"),
        }
    }

    fn policy() -> Policy {
        Policy {
            kinds: [Kind::Question].into(),
            dwell: Duration::from_secs(30),
            cool_down: Duration::from_secs(120),
            quiet: None,
            zone: TimeZone::UTC,
        }
    }

    fn keys(decision: &Decision) -> Vec<&str> {
        let notice = decision.notice.iter();
        notice.flat_map(|notice| &notice.matters).map(|matter| matter.key.as_str()).collect()
    }

    #[test]
    fn matter_is_told_once_after_its_dwell() {
        let (mut told, matters) = (Told::default(), [matter("a", 0)]);
        let early = decide(&matters, &told, &policy(), at(29));
        assert_eq!(early, Decision { notice: None, look_at: Some(at(30)) });
        let due = decide(&matters, &told, &policy(), at(30));
        assert_eq!(keys(&due), ["a"]);
        told.note(["a".into()], at(30));
        // The state survives a restart.
        let told: Told = serde_json::from_str(&serde_json::to_string(&told).unwrap()).unwrap();
        for now in [30, 31, 1000, 100_000] {
            assert_eq!(decide(&matters, &told, &policy(), at(now)), Decision::default(), "{now}");
        }
    }

    #[test]
    fn settled_matter_is_not_told() {
        let told = Told::default();
        assert_eq!(decide(&[], &told, &policy(), at(1000)), Decision::default());
        let end = Matter { kind: Kind::End, ..matter("a", 0) };
        assert_eq!(decide(&[end], &told, &policy(), at(1000)), Decision::default(), "not wanted");
    }

    #[test]
    fn matters_within_the_cool_down_share_the_next_notification() {
        let mut told = Told::default();
        told.note(["a".into()], at(100));
        let matters = [matter("b", 90), matter("a", 0), matter("c", 150)];
        let early = decide(&matters, &told, &policy(), at(130));
        assert_eq!(early, Decision { notice: None, look_at: Some(at(220)) });
        let due = decide(&matters, &told, &policy(), at(220));
        assert_eq!(keys(&due), ["b", "c"]);
        assert_eq!(due.notice.unwrap().title(), "2 agents need you");
    }

    #[test]
    fn quiet_hours_delay_and_collect() {
        // The clock of these tests begins at midnight.
        let quiet = Some("22:00-07:00".parse().unwrap());
        let policy = Policy { quiet, ..policy() };
        let matters = [matter("a", 0), matter("b", 3600)];
        let told = Told::default();
        let night = decide(&matters, &told, &policy, at(7200));
        assert_eq!(night, Decision { notice: None, look_at: Some(at(7 * 3600)) });
        assert_eq!(keys(&decide(&matters, &told, &policy, at(7 * 3600))), ["a", "b"]);
    }

    #[test]
    fn clock_that_is_set_back_silences_nothing() {
        let mut told = Told::default();
        told.note(["x".into()], at(100_000));
        let matters = [matter("a", 90_000)];
        assert_eq!(keys(&decide(&matters, &told, &policy(), at(0))), ["a"]);
    }

    #[test]
    fn flood_of_matters_stays_bounded() {
        let mut told = Told::default();
        let matters: Vec<_> = (0..10_000).map(|at| matter(&format!("{at:05}"), 0)).collect();
        let mut now = 1000;
        let mut count = 0;
        loop {
            let decision = decide(&matters[..1000], &told, &policy(), at(now));
            let Some(notice) = decision.notice else { break };
            assert!(notice.matters.len() <= MOST_TOLD && notice.text().lines().count() <= 11);
            count += notice.matters.len();
            told.note(notice.matters.into_iter().map(|matter| matter.key), at(now));
            now += 120;
        }
        assert_eq!(count, 1000);
        told.note(matters.into_iter().map(|matter| matter.key), at(now));
        assert_eq!(told.keys.size(), REMEMBERED);
    }
}
