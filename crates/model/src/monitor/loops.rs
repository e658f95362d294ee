//! Detects an agent that repeats itself.
//!
//! Counting calls of one tool on one target would flag healthy agents: tests that are run again
//! while ever fewer of them fail, a build that is polled every minute, one file that is edited
//! twenty times. This monitor therefore counts the same call *with the same outcome*, weighted by
//! the events between two repetitions:
//!
//! | between two repetitions | the repetition counts |
//! |---|---|
//! | nothing new | fully |
//! | something new or a wait, and the call failed in the same way | half |
//! | something new, and nothing failed | not at all |
//! | nothing new, and nothing failed | by elapsed time; more leniently if the agent waits |
//!
//! An agent that retries without a change is found at once. An agent whose changes have no effect
//! is found later, and one that makes progress is never found. A message from a person resets the
//! counts.

use crate::monitor::Action;
use crate::monitor::Call;
use crate::monitor::Kind;
use crate::monitor::fingerprint;
use std::collections::{HashMap, VecDeque};

/// Calls in the window.
const WINDOW: usize = 80;
/// Known outcomes, by which a new one is recognized.
const MOST_KNOWN: usize = 1024;
/// Texts in the window.
const TEXTS: usize = 16;
/// A call that takes this many seconds counts as waiting.
const LONG: f64 = 10.0;
/// An agent that is idle for this many seconds counts as waiting; a model answers sooner.
const PAUSE: f64 = 20.0;

/// Repetitions until the agent is warned about and until it is stopped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    pub warn: f64,
    pub stop: f64,
}

/// The same call fails in the same way.
const FAILING: Thresholds = Thresholds { warn: 4.0, stop: 6.0 };
/// Different calls fail for the same reason.
const SAME_FAULT: Thresholds = Thresholds { warn: 5.0, stop: 8.0 };
/// Searches find nothing.
const NOTHING: Thresholds = Thresholds { warn: 8.0, stop: 14.0 };
/// Different calls in a row return nothing new.
const STALE: Thresholds = Thresholds { warn: 15.0, stop: 25.0 };
/// The same edit is repeated, so something undid it in between.
const EDITING: Thresholds = Thresholds { warn: 3.0, stop: 5.0 };
/// The same data is read again, without a wait for a change.
const READING: Thresholds = Thresholds { warn: 6.0, stop: 10.0 };
/// The same text is repeated, without a call in between.
const SAYING: Thresholds = Thresholds { warn: 4.0, stop: 7.0 };
/// The same call succeeds again and again without a pause: repetitions, seconds, action. Some
/// agents run a test ten times on purpose, and some poll a build without a pause.
const RESTLESS: [(usize, f64, Action); 2] = [(40, 1200.0, Action::Stop), (11, 300.0, Action::Warn)];
/// The same call is polled with pauses and never changes. The wait may be genuine, so a person
/// decides.
const LOOKING: [(usize, f64, Action); 1] = [(10, 2400.0, Action::Warn)];

/// A finished call.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    pub call: Call,
    /// Hash of the result, by which a repetition is recognized.
    pub returned: u64,
    /// Hash of the result with its progress counters, by which a new result is recognized.
    pub news: u64,
    /// Hash of the error, if the text contains a specific one.
    pub fault: Option<u64>,
    pub failed: bool,
    /// A search found nothing.
    pub nothing: bool,
    /// Seconds.
    pub began: f64,
    pub ended: f64,
}

#[derive(Debug)]
struct Entry {
    done: Done,
    same: u64,
    /// The outcome was never seen before.
    novel: bool,
    /// The call took long, or the agent paused before it.
    waited: bool,
}

/// The loop state of one agent, or of one of its subagents.
#[derive(Debug, Default)]
pub struct Loops {
    window: VecDeque<Entry>,
    /// When the newest call ended.
    ended: Option<f64>,
    /// Outcomes, each with the number of the newest call that had it.
    known: HashMap<u64, u64>,
    /// Calls so far.
    counted: u64,
    /// The newest texts: hash, and the number of calls before it.
    texts: VecDeque<(u64, u64)>,
    /// Repeated successful calls since the last new outcome.
    looks: HashMap<u64, Looks>,
    /// The newest calls in a row that returned nothing new: their number, and their distinct keys.
    stale: (usize, Vec<u64>),
    prompt: Option<u64>,
}

/// Repetitions of one successful call.
#[derive(Debug)]
struct Looks {
    since: f64,
    times: usize,
    /// The agent waited between the repetitions.
    waited: bool,
}

impl Loops {
    /// Records a finished call. Returns whether its outcome is new, and the finding for people.
    pub fn done(&mut self, done: Done) -> (bool, Option<(Action, String)>) {
        let same = self.identity(&done, done.returned);
        let novel = self.learn(self.identity(&done, done.news)) && done.call.kind != Kind::Plan;
        let paused =
            self.ended.replace(done.ended).is_some_and(|before| done.began - before >= PAUSE);
        let waited = paused || done.ended - done.began >= LONG;
        if !done.failed && done.call.kind != Kind::Edit {
            // A call that succeeded ends the series of its failures.
            self.window.retain(|entry| entry.done.call.key != done.call.key || !entry.done.failed);
        }
        let entry = Entry { done, same, novel, waited };
        let found =
            self.again(&entry).or_else(|| self.fault(&entry)).or_else(|| self.nothing(&entry));
        let stale = self.stale(&entry);
        let found = [found, stale].into_iter().flatten().max_by_key(|(action, _)| *action);
        let looking = self.looking(&entry);
        self.window.push_back(entry);
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
        (novel, found.or(looking))
    }

    /// Records a text of the agent, by its hash.
    pub fn said(&mut self, print: u64, text: &str) -> Option<(Action, String)> {
        let calls = self.counted;
        let again = self.texts.iter().filter(|(said, at)| *said == print && *at == calls).count();
        self.texts.push_back((print, calls));
        if self.texts.len() > TEXTS {
            self.texts.pop_front();
        }
        let times = again + 1;
        let action = SAYING.action(times as f64)?;
        Some((action, format!("said {times} times, with no action in between: {text}")))
    }

    /// Resets the state after a prompt. The texts stay if the prompt is the same as before, because
    /// a repeated prompt may rightly get the same answer.
    pub fn begin_anew(&mut self, prompt: u64) {
        self.window.clear();
        self.looks.clear();
        self.stale = (0, vec![]);
        if self.prompt.replace(prompt) != Some(prompt) {
            self.texts.clear();
        }
    }

    /// Forgets the texts of a failed turn, because they were about the failure.
    pub fn failed(&mut self) {
        self.texts.clear();
    }

    /// Records that the context was compacted.
    pub fn forgotten(&mut self) {
        self.stale = (0, vec![]);
    }

    /// Remembers an outcome and returns whether it is new.
    fn learn(&mut self, outcome: u64) -> bool {
        self.counted += 1;
        let novel = self.known.insert(outcome, self.counted).is_none();
        if self.known.len() > MOST_KNOWN {
            // Drop the older half.
            let newest = self.counted;
            self.known.retain(|_, seen| newest - *seen < (MOST_KNOWN / 2) as u64);
        }
        novel
    }

    /// Returns the identity of a call with its outcome. Repetitions have the same identity.
    fn identity(&self, done: &Done, returned: u64) -> u64 {
        let call = &done.call;
        let by = match (call.kind, done.failed) {
            _ if call.opaque => return fingerprint::of((self.counted, "opaque")),
            (Kind::Edit, false) => return fingerprint::of((call.whole, 0)),
            // A failed edit is identified by its target, because its new text had no effect.
            (Kind::Edit | Kind::Run, _) => call.key,
            (Kind::Read | Kind::Plan | Kind::Ask, _) => call.whole,
        };
        fingerprint::of((by, returned, done.failed))
    }

    /// Counts the repetitions of this call in the window.
    fn again(&self, entry: &Entry) -> Option<(Action, String)> {
        let thresholds = match (entry.done.call.kind, entry.done.failed) {
            (_, true) => FAILING,
            (Kind::Edit, false) => EDITING,
            (Kind::Read | Kind::Plan, false) => READING,
            // `looking` judges these by time.
            (Kind::Run | Kind::Ask, false) => return None,
        };
        let (mut score, mut times) = (1.0, 1);
        let (mut between, mut waited) = (false, entry.waited);
        for older in self.window.iter().rev() {
            if older.same != entry.same {
                between |= older.novel;
                waited |= older.waited;
                continue;
            }
            score += match (entry.done.failed, entry.done.call.kind, between) {
                (true, _, _) if between || waited => 0.5,
                (true, ..) | (false, Kind::Edit, false) => 1.0,
                (false, Kind::Edit, true) => 0.75,
                (false, ..) if between || waited => break,
                (false, ..) => 1.0,
            };
            times += 1;
            (between, waited) = (false, older.waited);
        }
        let how = if entry.done.failed { "failed in the same way" } else { "had the same result" };
        let action = thresholds.action(score)?;
        Some((action, format!("{} {how} {times} times", entry.done.call.what)))
    }

    /// Counts the searches in a row that found nothing.
    fn nothing(&self, entry: &Entry) -> Option<(Action, String)> {
        if !entry.done.nothing {
            return None;
        }
        // Reads and commands between the searches do not end the series.
        let others = self
            .window
            .iter()
            .rev()
            .filter(|older| older.done.nothing || older.done.call.kind == Kind::Edit);
        let times = 1 + others.take_while(|older| older.done.nothing).count();
        let action = NOTHING.action(times as f64)?;
        Some((
            action,
            format!("{times} searches found nothing, the last of them {}", entry.done.call.what),
        ))
    }

    /// Counts the calls in a row that returned nothing new, over at least two different calls.
    fn stale(&mut self, entry: &Entry) -> Option<(Action, String)> {
        if entry.novel || entry.waited {
            self.stale = (0, vec![]);
            return None;
        }
        let (times, kinds) = &mut self.stale;
        *times += 1;
        if !kinds.contains(&entry.done.call.key) && kinds.len() < WINDOW {
            kinds.push(entry.done.call.key);
        }
        // A single repeated call may be polling, which is judged by time.
        let action = STALE.action(*times as f64).filter(|_| kinds.len() > 1)?;
        Some((
            action,
            format!(
                "{times} calls in a row had no new result, the last of them {}",
                entry.done.call.what
            ),
        ))
    }

    /// Counts the different calls that failed for the same reason.
    fn fault(&self, entry: &Entry) -> Option<(Action, String)> {
        let fault = entry.done.fault.filter(|_| entry.done.failed)?;
        let (mut score, mut times) = (1.0, 1);
        let mut worked = false;
        // Repetitions of one call are judged in `again`, so each call counts once here.
        let mut keys = vec![entry.done.call.key];
        for older in self.window.iter().rev() {
            if older.done.fault == Some(fault) && older.done.failed {
                if keys.contains(&older.done.call.key) {
                    continue;
                }
                keys.push(older.done.call.key);
                score += if worked { 0.5 } else { 1.0 };
                times += 1;
                worked = false;
            } else if older.novel
                && !older.done.failed
                && matches!(older.done.call.kind, Kind::Edit | Kind::Run)
            {
                worked = true;
            }
        }
        let action = SAME_FAULT.action(score)?;
        Some((
            action,
            format!(
                "{times} calls failed for the same reason, the last of them {}",
                entry.done.call.what
            ),
        ))
    }

    /// Returns a finding for a successful call that is repeated for long without a new outcome.
    fn looking(&mut self, entry: &Entry) -> Option<(Action, String)> {
        if entry.novel || self.looks.len() >= WINDOW {
            self.looks.clear();
        }
        let done = &entry.done;
        if entry.waited {
            self.looks.values_mut().for_each(|looks| looks.waited = true);
        }
        if done.failed || matches!(done.call.kind, Kind::Edit | Kind::Read | Kind::Plan) {
            return None;
        }
        let looks = self.looks.entry(entry.same).or_insert(Looks {
            since: done.began,
            times: 0,
            waited: false,
        });
        looks.times += 1;
        let (times, lasted) = (looks.times, done.ended - looks.since);
        let bounds: &[_] = if looks.waited { &LOOKING } else { &RESTLESS };
        let (.., action) =
            bounds.iter().find(|(often, long, _)| times >= *often && lasted >= *long)?;
        Some((
            *action,
            format!("{} had the same result {times} times in {}", done.call.what, minutes(lasted)),
        ))
    }
}

fn minutes(seconds: f64) -> String {
    format!("{:.0} minutes", seconds / 60.0)
}

impl Thresholds {
    fn action(self, score: f64) -> Option<Action> {
        if score >= self.stop {
            Some(Action::Stop)
        } else {
            (score >= self.warn).then_some(Action::Warn)
        }
    }
}
