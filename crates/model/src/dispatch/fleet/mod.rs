//! All dispatches, folded from the events: the basis of `status` and of recovery.

pub mod archive;
#[cfg(test)]
mod archive_tests;
mod living;
pub mod removal;

use crate::admission::api_backpressure::{self, Pressures};
use crate::agent::backend::TraitsOf;
use crate::config::setting::RuntimeSettings;
use crate::config::{InForce, Pool};
use crate::conversation::fold::Conversations;
use crate::dispatch::Dispatch;
use crate::dispatch::fleet::archive::Part;
use crate::event::id::{self, DispatchId, Unfound};
use crate::event::{Archived, Created, Event, Record};
use crate::monitor::healing::step as healing;
use crate::question::event::Kind;
use crate::question::fold::Questions;
use crate::task_list::session::Runs;
use crate::{conversation_events, dispatch_events, spec_run_events, task_list_events};
use rpds::{RedBlackTreeMapSync, RedBlackTreeSetSync};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The version of this fold. Raise it with any change of the state's form *or* of the effect of an
/// event: snapshots of other versions are not read, and the log is folded from its beginning.
pub const FOLD_VERSION: u32 = 6;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Fleet {
    #[serde(skip)]
    traits: TraitsOf,
    /// Archived dispatches stay in this fleet.
    #[serde(skip)]
    keeps_archived: bool,
    /// All dispatches by id. A snapshot is taken after each event and shares with the one before it
    /// all that has not changed.
    dispatches: RedBlackTreeMapSync<DispatchId, Arc<Dispatch>>,
    /// The ids by the record that created the dispatch.
    order: RedBlackTreeMapSync<u64, DispatchId>,
    /// The dispatches that have not ended, by the record that created them. So they are found
    /// without a search of all dispatches.
    unfinished: RedBlackTreeMapSync<u64, DispatchId>,
    /// The same dispatches themselves: each new one looks at all of them, and finding hundreds by
    /// their ids costs more than the look. A fleet that was just read has none of them; then they
    /// are found by their ids (`living.rs`).
    #[serde(skip)]
    living: RedBlackTreeMapSync<u64, Arc<Dispatch>>,
    pub generation: u64,
    /// The boot id of the machine at the newest daemon's start; it changes with each reboot.
    boot_id: Arc<str>,
    settings: Option<InForce>,
    /// The cost in US dollars of each dispatch together with all its descendants.
    families: RedBlackTreeMapSync<DispatchId, f64>,
    /// The amount spent from each purse in US dollars, by the purse's name.
    purses: RedBlackTreeMapSync<String, f64>,
    /// The back-pressure of the model APIs, by channel.
    pub pressures: Pressures,
    /// Runs of task lists.
    pub task_lists: Runs,
    /// The settings that were changed at run time.
    pub runtime: RuntimeSettings,
    /// Threads between people and agents.
    pub conversations: Conversations,
    /// Everything that waits for the answer of a person.
    #[serde(default)]
    pub questions: Questions,
    /// The stalled dispatches of threads.
    #[serde(default)]
    stalled: RedBlackTreeSetSync<DispatchId>,
    /// The dispatches whose last end is a trouble that may be healed, or that are being healed.
    #[serde(default)]
    troubled: RedBlackTreeSetSync<DispatchId>,
    /// Counts the events after which a healing may go on.
    #[serde(default)]
    troubles: u64,
    /// The number of archived dispatches.
    archived: u64,
    /// The sequence number of the newest record about any dispatch that was ever archived.
    archived_until: u64,
    /// The sequence number of the last removed event.
    #[serde(default)]
    removed_through: u64,
    /// The sequence number of the newest folded record.
    pub seq: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    #[error("no dispatch `{0}`")]
    Unknown(String),
    #[error("`{prefix}` matches {} dispatches: {}", .ids.len(), .ids.join(", "))]
    Ambiguous { prefix: String, ids: Vec<String> },
}

impl Fleet {
    /// Returns an empty fleet whose dispatches get the traits of their backends. Decisions need
    /// them; a fleet that is only shown can be the default.
    pub fn new(traits: TraitsOf) -> Self {
        Self { traits, ..Self::default() }
    }

    /// Returns an empty fleet that keeps archived dispatches and all messages.
    pub fn with_archived() -> Self {
        let conversations = Conversations::with_messages();
        Self { keeps_archived: true, conversations, ..Self::default() }
    }

    /// Returns this fleet with the traits of its dispatches' backends, which no snapshot has.
    pub fn with_traits(mut self, traits: TraitsOf) -> Self {
        for id in self.order.values() {
            if let Some(dispatch) = self.dispatches.get_mut(id) {
                let dispatch = Arc::make_mut(dispatch);
                dispatch.traits = traits.get(&dispatch.created.backend);
            }
        }
        self.traits = traits;
        self.note_all_living();
        self
    }

    /// Folds one record in. Records arrive in order of `seq`; a record that is already folded is
    /// skipped.
    pub fn apply(&mut self, record: &Record) {
        if record.seq <= self.seq {
            return;
        }
        self.seq = record.seq;
        self.apply_new(record);
        let changed = self.questions.take_changed();
        self.conversations.follow_questions(&changed, record);
    }

    fn apply_new(&mut self, record: &Record) {
        self.task_lists.apply(record);
        self.conversations.apply(record);
        self.questions.apply(record);
        match (&record.entry.event, &record.entry.dispatch_id) {
            (Event::DaemonStarted { generation, boot_id, settings, .. }, _) => {
                self.generation = *generation;
                self.settings = settings.or(self.settings);
                self.boot(boot_id);
            }
            (Event::DispatchCreated(created), Some(id)) => self.create(id, created, record),
            (_, Some(id)) => {
                self.press(id, record);
                self.fold(id, record);
            }
            // No dispatch is named, so there is none to fold the event into.
            (dispatch_events!(), None) => {}
            (
                Event::DaemonStopping { .. }
                | Event::LogRecovered { .. }
                | Event::ActorRestarted { .. }
                | Event::ActorEscalated { .. }
                | Event::Fault { .. },
                None,
            ) => {}
            (Event::SettingChanged(changed), None) => self.runtime.apply(changed, record),
            (Event::DispatchesArchived { families }, None) => {
                families.iter().for_each(|family| self.archive(family));
            }
            // [`Fleet::restore`] did it, with the events that it needs.
            (Event::DispatchesRestored(_), None) => {}
            (Event::EventsRemoved(removed), None) => self.forget(removed),
            (
                spec_run_events!() | conversation_events!() | task_list_events!() | Event::Unknown,
                None,
            ) => {}
        }
        let dispatches = &self.dispatches;
        self.questions.forget_old(|question| {
            let about = question.dispatch.as_ref().filter(|_| question.kind == Kind::Stall);
            about.and_then(|id| dispatches.get(id)).is_some_and(|it| it.state() == "stalled")
        });
    }

    fn fold(&mut self, id: &DispatchId, record: &Record) {
        let Some(dispatch) = self.dispatches.get_mut(id) else { return };
        let (was_finished, before) = (dispatch.is_finished(), dispatch.spend.cost_usd.max(0.0));
        let dispatch = Arc::make_mut(dispatch);
        dispatch.apply(record);
        self.conversations.follow(dispatch, record);
        self.questions.follow(dispatch, record);
        let spent = dispatch.spend.cost_usd.max(0.0) - before;
        match dispatch.created.thread().is_some() && dispatch.state() == "stalled" {
            true => self.stalled.insert_mut(id.clone()),
            false => {
                self.stalled.remove_mut(id);
            }
        }
        let is_troubled = healing::trouble(dispatch).is_some();
        match is_troubled || dispatch.healing.is_under_way() {
            true => self.troubled.insert_mut(id.clone()),
            false => {
                self.troubled.remove_mut(id);
            }
        }
        let is_light = healing::is_of_healing(&dispatch.created.by) && dispatch.is_finished();
        if is_troubled || dispatch.healing.is_under_way() || is_light {
            self.troubles += 1;
        }
        match (was_finished, dispatch.is_finished()) {
            (false, true) => {
                self.unfinished.remove_mut(&dispatch.created_seq);
            }
            // A message reopened the dispatch.
            (true, false) => self.unfinished.insert_mut(dispatch.created_seq, id.clone()),
            _ => {}
        }
        self.note_living(id);
        if spent != 0.0 {
            self.pay(id, spent);
        }
    }

    /// Adds an amount to the purse of a dispatch and to the totals of the dispatch and its
    /// ancestors.
    fn pay(&mut self, id: &DispatchId, usd: f64) {
        if let Some(purse) =
            self.dispatches.get(id).and_then(|dispatch| dispatch.created.purse.as_ref())
        {
            let so_far = self.purses.get(&purse.of).copied().unwrap_or_default();
            self.purses.insert_mut(purse.of.clone(), so_far + usd);
        }
        let mut next = self.dispatches.get(id);
        // Ancestors are older, so this ends.
        while let Some(dispatch) = next {
            let so_far = self.families.get(&dispatch.id).copied().unwrap_or_default();
            self.families.insert_mut(dispatch.id.clone(), so_far + usd);
            next = dispatch.created.parent.as_ref().and_then(|parent| self.dispatches.get(parent));
        }
    }

    /// Returns the cost of a dispatch and all its descendants, in US dollars.
    pub fn family_usd(&self, id: &DispatchId) -> f64 {
        self.families.get(id).copied().unwrap_or_default()
    }

    /// Returns the amount spent from a purse, in US dollars.
    pub fn purse_usd(&self, of: &str) -> f64 {
        self.purses.get(of).copied().unwrap_or_default()
    }

    /// Marks the unfinished dispatches if the machine was rebooted since the last daemon started.
    fn boot(&mut self, boot_id: &str) {
        let known = std::mem::replace(&mut self.boot_id, boot_id.into());
        if known.is_empty() || *known == *boot_id {
            return;
        }
        self.task_lists.boot();
        for id in self.unfinished.values() {
            if let Some(dispatch) = self.dispatches.get_mut(id) {
                Arc::make_mut(dispatch).reboot();
            }
        }
        self.note_all_living();
    }

    /// Adds a dispatch. The first creation counts: an id is never given to another dispatch.
    fn create(&mut self, id: &DispatchId, created: &Created, record: &Record) {
        if self.dispatches.contains_key(id) {
            return;
        }
        let mut dispatch = Dispatch::new(id.clone(), created.clone(), record.ts);
        dispatch.traits = self.traits.get(&created.backend);
        dispatch.created_seq = record.seq;
        dispatch.last_seq = record.seq;
        dispatch.boot_id = self.boot_id.clone();
        self.conversations.follow(&dispatch, record);
        self.dispatches.insert_mut(id.clone(), Arc::new(dispatch));
        self.order.insert_mut(record.seq, id.clone());
        self.unfinished.insert_mut(record.seq, id.clone());
        self.note_living(id);
    }

    /// Removes a family of finished dispatches. All of them stay if one has changed since the
    /// decision, or if another dispatch needs one of them.
    fn archive(&mut self, family: &[Archived]) {
        let is_unchanged = |one: &Archived| {
            let dispatch = self.dispatches.get(&one.id);
            dispatch.is_some_and(|it| it.is_finished() && it.last_seq == one.last_seq)
        };
        let is_parent = |parent: &DispatchId| family.iter().any(|one| one.id == *parent);
        let is_needed =
            self.unfinished().any(|it| it.created.parent.as_ref().is_some_and(is_parent));
        if self.keeps_archived || is_needed || !family.iter().all(is_unchanged) {
            return;
        }
        for Archived { id, last_seq } in family {
            self.archived_until = self.archived_until.max(*last_seq);
            let Some(dispatch) = self.dispatches.get(id) else { continue };
            self.order.remove_mut(&dispatch.created_seq);
            self.dispatches.remove_mut(id);
            self.stalled.remove_mut(id);
            self.troubled.remove_mut(id);
            self.families.remove_mut(id);
            self.archived += 1;
        }
    }

    /// Adds archived dispatches again. The caller does so before it folds the record
    /// [`Event::DispatchesRestored`].
    pub fn restore(&mut self, part: Part) {
        let part = part.into_fleet();
        for dispatch in part.iter() {
            if self.dispatches.contains_key(&dispatch.id) {
                continue;
            }
            let mut dispatch = dispatch.clone();
            let (id, seq) = (dispatch.id.clone(), dispatch.created_seq);
            Arc::make_mut(&mut dispatch).traits = self.traits.get(&dispatch.created.backend);
            if let Some(usd) = part.families.get(&id) {
                self.families.insert_mut(id.clone(), *usd);
            }
            if !dispatch.is_finished() {
                self.unfinished.insert_mut(seq, id.clone());
            }
            self.order.insert_mut(seq, id.clone());
            self.dispatches.insert_mut(id.clone(), dispatch);
            self.note_living(&id);
            self.archived = self.archived.saturating_sub(1);
        }
    }

    /// Returns a fleet that is folded from the events of some dispatches only, which begin in the
    /// boot `boot_id`.
    pub(super) fn in_boot(boot_id: &str) -> Self {
        Self { boot_id: boot_id.into(), ..Self::default() }
    }

    /// Returns the number of archived dispatches.
    pub fn archived(&self) -> u64 {
        self.archived
    }

    /// Returns the sequence number of the newest record about any dispatch when it was archived: a
    /// database with all records up to there has all archived dispatches.
    pub fn archived_until(&self) -> u64 {
        self.archived_until
    }

    /// Returns the number of dispatches that are not archived.
    pub fn size(&self) -> usize {
        self.dispatches.size()
    }

    /// Returns the number of finished dispatches that are not archived.
    pub fn finished(&self) -> usize {
        self.dispatches.size() - self.unfinished.size()
    }

    /// Returns all ids that begin with `prefix`; if one is the prefix itself, only that one.
    pub fn matches(&self, prefix: &str) -> Vec<&DispatchId> {
        let all = self.dispatches.keys().map(|id| (id.as_str(), id));
        match id::by_beginning(all, prefix) {
            Ok(id) => vec![id],
            Err(Unfound::Unknown) => vec![],
            Err(Unfound::Ambiguous(_)) => {
                self.dispatches.keys().filter(|id| id.as_str().starts_with(prefix)).collect()
            }
        }
    }

    /// Records that a dispatch met a limit, for all dispatches of its channel.
    fn press(&mut self, id: &DispatchId, record: &Record) {
        let (Some(strike), Some(struck)) =
            (api_backpressure::strike(record), self.dispatches.get(id))
        else {
            return;
        };
        let channel = api_backpressure::channel(struck).to_string();
        let shares = |other: &&Arc<Dispatch>| {
            other.is_at_work() && api_backpressure::channel(other) == channel
        };
        let at_work = u32::try_from(self.unfinished().filter(shares).count()).unwrap_or(u32::MAX);
        api_backpressure::fold(&mut self.pressures, &channel, strike, at_work, record.ts);
    }

    pub fn get(&self, id: &DispatchId) -> Option<&Arc<Dispatch>> {
        self.dispatches.get(id)
    }

    /// All dispatches in order of creation.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Dispatch>> {
        self.order.values().filter_map(|id| self.dispatches.get(id))
    }

    /// Returns the settings for a daemon that cannot read its configuration: those of the daemon
    /// before it. Returns `None` if no dispatch is unfinished, because then nothing is lost while
    /// the daemon does not start. `first` is used if the log is older than the recording of
    /// settings.
    pub fn settings_left(&self, first: InForce) -> Option<InForce> {
        self.unfinished().next()?;
        Some(self.settings.unwrap_or(first))
    }

    /// Returns the limits of the pool under which the newest daemon started.
    pub fn pool(&self) -> Option<Pool> {
        self.settings.map(InForce::pool)
    }

    /// Finds the one dispatch whose id begins with `prefix`.
    ///
    /// # Errors
    /// When no id fits, or more than one.
    pub fn find(&self, prefix: &str) -> Result<&Arc<Dispatch>, LookupError> {
        let all = self.dispatches.iter().map(|(id, dispatch)| (id.as_str(), dispatch));
        id::by_beginning(all, prefix).map_err(|unfound| match unfound {
            Unfound::Unknown => LookupError::Unknown(prefix.into()),
            Unfound::Ambiguous(ids) => LookupError::Ambiguous { prefix: prefix.into(), ids },
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::dispatch::tests::created;
    use crate::event::{Entry, VERSION};
    use jiff::Timestamp;

    fn id(text: &str) -> DispatchId {
        DispatchId::try_from(text.to_string()).unwrap()
    }

    /// Returns a fleet with a dispatch for each pair of id and backend.
    pub(super) fn fleet(of: &[(&str, &str)]) -> Fleet {
        let mut fleet = Fleet::default();
        for (name, backend) in of {
            let mut created = created();
            created.backend = (*backend).into();
            tell(&mut fleet, name, Event::DispatchCreated(Box::new(created)));
        }
        fleet
    }

    pub(super) fn tell(fleet: &mut Fleet, of: &str, event: Event) {
        let entry =
            Entry { id: String::new(), dispatch_id: Some(id(of)), at: None, more: false, event };
        fleet.apply(&Record { v: VERSION, seq: fleet.seq + 1, ts: Timestamp::UNIX_EPOCH, entry });
    }

    /// The result of a passed task may be lost with unsynced files.
    #[test]
    fn after_a_new_boot_a_task_that_had_passed_is_judged_again() {
        use crate::task_list::session::{Started, Verdict};
        let mut fleet = Fleet::default();
        let list = "l".to_string();
        let started = Started {
            list: list.clone(),
            root: "/p".into(),
            concurrency: 2,
            max_tasks: None,
            branch: None,
            role: String::new(),
            backend: None,
            by: String::new(),
            trace: None,
        };
        let boot = |boot: &str| Event::DaemonStarted {
            pid: 1,
            generation: 1,
            version: String::new(),
            boot_id: boot.into(),
            settings: None,
        };
        let begun = |worker, task: &str| Event::TaskBegun {
            list: list.clone(),
            worker,
            task: task.into(),
            dispatch: id("abcd2345"),
            base: String::new(),
            resumed: false,
        };
        let judged = |worker, passed| {
            let verdict = Verdict { passed, category: None, message: String::new() };
            Event::TaskJudged { list: list.clone(), worker, task: String::new(), verdict }
        };
        let events = [
            boot("one"),
            Event::TaskListStarted(Box::new(started)),
            begun(1, "t1"),
            begun(2, "t2"),
            begun(3, "t3"),
        ];
        let doubted = |fleet: &Fleet| -> Vec<bool> {
            fleet.task_lists.get("l").unwrap().workers.values().map(|work| work.doubted).collect()
        };
        let all = |fleet: &mut Fleet, events: Vec<Event>| {
            events.into_iter().for_each(|event| tell(fleet, "abcd2345", event));
        };
        all(&mut fleet, events.into());
        all(&mut fleet, vec![judged(1, true), judged(2, false), boot("one")]);
        assert_eq!(doubted(&fleet), [false, false, false], "on the same machine all is there");
        all(&mut fleet, vec![boot("two"), boot("two")]);
        assert_eq!(doubted(&fleet), [true, false, false]);
        all(&mut fleet, vec![judged(1, true)]);
        assert_eq!(doubted(&fleet), [false, false, false]);
    }

    #[test]
    fn dispatch_is_found_by_a_unique_id_prefix() {
        let fleet =
            fleet(&[("abcdefgh", "x"), ("abcdefghijk", "x"), ("abcxyz22", "x"), ("zzzz2222", "x")]);
        for (prefix, expected) in [
            ("zzzz2222", Ok("zzzz2222")),
            ("z", Ok("zzzz2222")),
            ("abcx", Ok("abcxyz22")),
            // One whole id is the prefix of another.
            ("abcdefgh", Ok("abcdefgh")),
            ("abcdefghi", Ok("abcdefghijk")),
            ("abcd", Err(vec!["abcdefgh", "abcdefghijk"])),
            ("abc", Err(vec!["abcdefgh", "abcdefghijk", "abcxyz22"])),
            ("y", Err(vec![])),
            ("", Err(vec![])),
            ("zzzz22223", Err(vec![])),
        ] {
            match (fleet.find(prefix), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found.id.as_str(), expected, "{prefix}"),
                (Err(LookupError::Unknown(of)), Err(many)) => {
                    assert_eq!((&*of, many), (prefix, vec![]))
                }
                (Err(LookupError::Ambiguous { prefix: of, mut ids }), Err(many)) => {
                    ids.sort();
                    assert_eq!((&*of, ids), (prefix, many.into_iter().map(String::from).collect()));
                }
                (found, expected) => panic!("{prefix}: {found:?} where {expected:?} was expected"),
            }
        }
    }

    /// A reopened dispatch returns to its old position in the order. An earlier snapshot is
    /// unchanged.
    #[test]
    fn message_reopens_a_finished_dispatch() {
        use crate::event::{FinalState, PromptKind};
        let mut fleet = fleet(&[("zzzz", "x"), ("aaaa", "x"), ("mmmm", "x")]);
        let unfinished = |fleet: &Fleet| {
            fleet.unfinished().map(|d| d.id.to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(unfinished(&fleet), "zzzz aaaa mmmm");
        let end = || Event::DispatchFinished {
            state: FinalState::Success,
            reason: String::new(),
            result: None,
        };
        tell(&mut fleet, "zzzz", end());
        tell(&mut fleet, "mmmm", end());
        let snapshot = fleet.clone();
        let again = Event::PromptQueued {
            key: "k".into(),
            kind: PromptKind::Send,
            by: "operator".into(),
            trace: None,
        };
        tell(&mut fleet, "zzzz", again);
        assert_eq!(
            (unfinished(&snapshot), unfinished(&fleet)),
            ("aaaa".into(), "zzzz aaaa".into())
        );
        tell(&mut fleet, "aaaa", end());
        tell(&mut fleet, "zzzz", end());
        assert_eq!(unfinished(&fleet), "");
        assert_eq!(fleet.iter().count(), 3);
    }

    /// A limit halves the agents of its own channel, and counts no others.
    #[test]
    fn api_error_counts_running_agents_of_its_channel() {
        let names = ["aaaa", "bbbb", "cccc", "dddd", "eeee", "ffff"];
        let mut fleet =
            fleet(&names.map(|name| (name, if name < "e" { "codex" } else { "rehearsal" })));
        for name in names {
            tell(&mut fleet, name, Event::AttemptStarted { attempt: 1, epoch: 1, resume: None });
        }
        tell(
            &mut fleet,
            "aaaa",
            Event::ApiRetried {
                attempt: 1,
                max: 9,
                status: Some(429),
                delay_s: 60.0,
                awake_ms: None,
            },
        );
        let places: Vec<_> = fleet
            .pressures
            .iter()
            .map(|(channel, pressure)| (&**channel, pressure.places))
            .collect();
        assert_eq!(places, [("codex", 2)]);
    }
}
