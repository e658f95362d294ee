//! Does an agent go in circles?
//!
//! A count of how often a tool is called on the same target would find healthy agents: tests that
//! are run again and again while ever fewer of them fail, a build that is looked at every minute,
//! one file that is edited twenty times. So what is counted is the same call *with the same
//! outcome*, and what happened between two of them:
//!
//! | between two of the same | they count |
//! |---|---|
//! | nothing that was not seen before | whole |
//! | something new, or a wait, and it failed in the same way | half: the edits differ, the failure does not |
//! | something new, and nothing failed | not at all |
//! | nothing, and nothing failed | by the time that it goes on; as looking at something, where it is waited for |
//!
//! So one that tries the same thing without a change is found at once, one whose changes change
//! nothing later, and one that gets somewhere never. What a person says to the agent begins
//! everything anew.

use crate::monitor::Action;
use crate::monitor::Call;
use crate::monitor::Kind;
use crate::monitor::fingerprint;
use std::collections::{HashMap, VecDeque};

/// Calls that are looked back at.
const WINDOW: usize = 80;
/// Outcomes that are known not to be new.
const MOST_KNOWN: usize = 1024;
/// Texts that are looked back at.
const TEXTS: usize = 16;
/// A call that takes so long waits for something, in seconds.
const LONG: f64 = 10.0;
/// An agent that does nothing for so long waits; a model's answer is there sooner.
const PAUSE: f64 = 20.0;

/// What counts as so many of the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    pub warn: f64,
    pub stop: f64,
}

/// The same call that fails in the same way.
const FAILING: Thresholds = Thresholds { warn: 4.0, stop: 6.0 };
/// Different calls that all die of the same.
const SAME_FAULT: Thresholds = Thresholds { warn: 5.0, stop: 8.0 };
/// Searches that find nothing.
const NOTHING: Thresholds = Thresholds { warn: 8.0, stop: 14.0 };
/// Calls of several kinds in a row of which none brings anything new.
const STALE: Thresholds = Thresholds { warn: 15.0, stop: 25.0 };
/// The same edit, made again: between, somebody undid it.
const EDITING: Thresholds = Thresholds { warn: 3.0, stop: 5.0 };
/// The same is read, and nobody waited for it to change.
const READING: Thresholds = Thresholds { warn: 6.0, stop: 10.0 };
/// The same words, and nothing done.
const SAYING: Thresholds = Thresholds { warn: 4.0, stop: 7.0 };
/// The same is done, and well, with never a pause: so often, and for so long, in seconds. Some run
/// a test ten times on purpose, and some cannot wait for a build.
const RESTLESS: [(usize, f64, Action); 2] = [(40, 1200.0, Action::Stop), (11, 300.0, Action::Warn)];
/// Something is looked at, with pauses, that does not change. It may really take so long: that is
/// told, and for a person to judge.
const LOOKING: [(usize, f64, Action); 1] = [(10, 2400.0, Action::Warn)];

/// One call that has come to its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    pub call: Call,
    /// The print of what it returned, by which the same is known again.
    pub returned: u64,
    /// And that by which something new is.
    pub news: u64,
    /// What went wrong, where that can be told from others.
    pub fault: Option<u64>,
    pub failed: bool,
    /// It was a search, and found nothing.
    pub nothing: bool,
    /// Seconds.
    pub began: f64,
    pub ended: f64,
}

#[derive(Debug)]
struct Entry {
    done: Done,
    same: u64,
    /// It brought something that was never seen before.
    novel: bool,
    /// It took long, or its agent paused before it.
    waited: bool,
}

/// The circles of one agent, or of one of its subagents.
#[derive(Debug, Default)]
pub struct Loops {
    window: VecDeque<Entry>,
    /// When the newest call ended.
    ended: Option<f64>,
    /// Outcomes, and which call had them last.
    known: HashMap<u64, u64>,
    /// Calls so far.
    counted: u64,
    /// The newest, each with the calls that were made before it.
    texts: VecDeque<(u64, u64)>,
    /// What came to the same since something new happened.
    looks: HashMap<u64, Looks>,
    /// Of the newest calls in a row that brought nothing new: how many, and which.
    stale: (usize, Vec<u64>),
    prompt: Option<u64>,
}

/// At one thing.
#[derive(Debug)]
struct Looks {
    since: f64,
    times: usize,
    /// It was waited for.
    waited: bool,
}

impl Loops {
    /// A call has ended: whether it brought something new, and what is found, for people.
    pub fn done(&mut self, done: Done) -> (bool, Option<(Action, String)>) {
        let same = self.identity(&done, done.returned);
        let novel = self.learn(self.identity(&done, done.news)) && done.call.kind != Kind::Plan;
        let paused =
            self.ended.replace(done.ended).is_some_and(|before| done.began - before >= PAUSE);
        let waited = paused || done.ended - done.began >= LONG;
        if !done.failed && done.call.kind != Kind::Edit {
            // What worked is no failure any more.
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

    /// The agent has said something whole, with this print.
    pub fn said(&mut self, print: u64, text: &str) -> Option<(Action, String)> {
        let calls = self.counted;
        let again = self.texts.iter().filter(|(said, at)| *said == print && *at == calls).count();
        self.texts.push_back((print, calls));
        if self.texts.len() > TEXTS {
            self.texts.pop_front();
        }
        let times = again + 1;
        let action = SAYING.action(times as f64)?;
        Some((action, format!("said {times} times, with nothing done between: {text}")))
    }

    /// Somebody spoke to the agent. Who says the same again has not helped it: what it says then
    /// may be the same, too.
    pub fn begin_anew(&mut self, prompt: u64) {
        self.window.clear();
        self.looks.clear();
        self.stale = (0, vec![]);
        if self.prompt.replace(prompt) != Some(prompt) {
            self.texts.clear();
        }
    }

    /// Its turn came to nothing, by whosever fault: what was said in it was about that.
    pub fn failed(&mut self) {
        self.texts.clear();
    }

    /// Its context was compacted.
    pub fn forgotten(&mut self) {
        self.stale = (0, vec![]);
    }

    /// Whether this was never seen before. Remembers it.
    fn learn(&mut self, outcome: u64) -> bool {
        self.counted += 1;
        let novel = self.known.insert(outcome, self.counted).is_none();
        if self.known.len() > MOST_KNOWN {
            // The older half goes.
            let newest = self.counted;
            self.known.retain(|_, seen| newest - *seen < (MOST_KNOWN / 2) as u64);
        }
        novel
    }

    /// What makes two calls with their outcomes the same.
    fn identity(&self, done: &Done, returned: u64) -> u64 {
        let call = &done.call;
        let by = match (call.kind, done.failed) {
            _ if call.opaque => return fingerprint::of((self.counted, "opaque")),
            (Kind::Edit, false) => return fingerprint::of((call.whole, 0)),
            // Whatever it was to become: it was refused in the same way.
            (Kind::Edit | Kind::Run, _) => call.key,
            (Kind::Read | Kind::Plan | Kind::Ask, _) => call.whole,
        };
        fingerprint::of((by, returned, done.failed))
    }

    /// How often this has been before.
    fn again(&self, entry: &Entry) -> Option<(Action, String)> {
        let thresholds = match (entry.done.call.kind, entry.done.failed) {
            (_, true) => FAILING,
            (Kind::Edit, false) => EDITING,
            (Kind::Read | Kind::Plan, false) => READING,
            // That is a matter of time: `looking`.
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
        let how = if entry.done.failed { "failed in the same way" } else { "came to the same" };
        let action = thresholds.action(score)?;
        Some((action, format!("{} {how} {times} times", entry.done.call.what)))
    }

    /// How many searches in a row found nothing.
    fn nothing(&self, entry: &Entry) -> Option<(Action, String)> {
        if !entry.done.nothing {
            return None;
        }
        // What was only looked at between does not count either way.
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

    /// Whether calls of several kinds bring nothing new for long.
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
        // One that asks the same again and again may wait for something: that is judged by time.
        let action = STALE.action(*times as f64).filter(|_| kinds.len() > 1)?;
        Some((
            action,
            format!(
                "{times} calls in a row brought nothing new, the last of them {}",
                entry.done.call.what
            ),
        ))
    }

    /// How often other calls have died of the same.
    fn fault(&self, entry: &Entry) -> Option<(Action, String)> {
        let fault = entry.done.fault.filter(|_| entry.done.failed)?;
        let (mut score, mut times) = (1.0, 1);
        let mut worked = false;
        // The same call again is judged by itself: it may fail of the same, and of less of it.
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

    /// Whether something is done, or looked at, again and again that never changes.
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
            format!("{} came to the same {times} times in {}", done.call.what, minutes(lasted)),
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
