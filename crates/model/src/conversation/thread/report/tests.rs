use super::*;
use crate::conversation::event::ThreadOpened;
use crate::conversation::fold::Conversations;
use crate::dispatch::tests::created;
use crate::event::{Created, Entry, FinalState, VERSION};

const THREAD: &str = "thrdabcd";

/// Threads and one dispatch, with the records that made them.
struct Case {
    threads: Conversations,
    dispatch: Dispatch,
    seq: u64,
}

impl Case {
    fn new(verbosity: Option<ThreadVerbosity>) -> Self {
        let id = DispatchId::try_from("id000001".to_string()).unwrap();
        let by = format!("thread/{THREAD}");
        let created = Created { by, thread_verbosity: verbosity, role: "dev".into(), ..created() };
        let dispatch = Dispatch::new(id, created, at(0));
        let mut case = Self { threads: Conversations::default(), dispatch, seq: 0 };
        let opened = ThreadOpened {
            thread: THREAD.into(),
            role: "analyst".into(),
            project: "/p".into(),
            title: None,
            adapter: "cli".into(),
            external: None,
            by: "operator".into(),
            bang: None,
        };
        case.add(0, Event::ThreadOpened(Box::new(opened)));
        case
    }

    fn add(&mut self, milliseconds: i64, event: Event) {
        self.seq += 1;
        let is_own = matches!(
            event,
            Event::ThreadOpened(_) | Event::MessageRecorded(_) | Event::ThreadTaskOpened { .. }
        );
        let dispatch_id = (!is_own).then(|| self.dispatch.id.clone());
        let entry = Entry { id: String::new(), dispatch_id, at: None, more: false, event };
        let record = Record { v: VERSION, seq: self.seq, ts: at(milliseconds), entry };
        match is_own {
            true => self.threads.apply(&record),
            false => {
                self.dispatch.apply(&record);
                self.threads.follow(&self.dispatch, &record);
            }
        }
    }

    fn writes(&mut self, milliseconds: i64, text: &str) {
        self.add(milliseconds, Event::JournalEntry { text: text.into() });
    }

    fn next(&self, now: i64) -> Option<MessageRecorded> {
        let thread = self.threads.get(THREAD).unwrap();
        let mut id = || DispatchId::try_from("msgabcde".to_string()).unwrap();
        match next(thread, at(now), &mut id)?.remove(0) {
            Event::MessageRecorded(recorded) => Some(*recorded),
            other => panic!("{other:?}"),
        }
    }

    /// Records the messages that are due, and returns their texts.
    fn told(&mut self, now: i64) -> Vec<String> {
        let mut texts = vec![];
        while let Some(recorded) = self.next(now) {
            texts.push(recorded.text.clone());
            self.add(now, Event::MessageRecorded(Box::new(recorded)));
        }
        texts
    }
}

fn at(milliseconds: i64) -> Timestamp {
    Timestamp::from_millisecond(1_700_000_000_000 + milliseconds).unwrap()
}

#[test]
fn reports_within_five_seconds_are_one_message_by_their_recorded_times() {
    let mut case = Case::new(Some(ThreadVerbosity::Normal));
    case.writes(0, "- 12:34 — [agent] Starting §1");
    case.writes(4_900, "- 12:34 — [agent] Ends\u{1b}[2J §1");
    case.writes(5_100, "free words");
    assert_eq!(case.next(4_999), None);
    // A daemon that starts a year later groups them in the same way.
    let told = case.told(1_000_000_000);
    assert_eq!(told, ["- `dev`: Starting §1\n- `dev`: Ends [2J §1", "`dev`: free words"]);
    assert!(!case.threads.is_busy(THREAD));
}

#[test]
fn report_waits_no_longer_than_its_span_if_the_clock_is_set_back() {
    let mut case = Case::new(Some(ThreadVerbosity::Normal));
    case.writes(3_600_000, "one");
    assert_eq!(case.told(0), ["`dev`: one"]);
}

#[test]
fn report_of_a_record_after_the_decision_is_told_by_the_next_message() {
    let mut case = Case::new(Some(ThreadVerbosity::Normal));
    case.writes(0, "one");
    let decided = case.next(5_000).unwrap();
    case.writes(4_000, "two");
    case.add(5_001, Event::MessageRecorded(Box::new(decided)));
    assert_eq!(case.told(9_000), ["`dev`: two"]);
}

#[test]
fn verbosity_decides_what_is_told() {
    let events = || {
        [
            Event::StallDetected { silent_s: 180, evidence: "no output".into() },
            Event::Compacted { before: 100, after: 10 },
            Event::ToolFailed { call_id: "c".into(), text: "exit 1".into() },
        ]
    };
    let wanted = [
        (Some(ThreadVerbosity::Quiet), 1),
        (Some(ThreadVerbosity::Normal), 2),
        (Some(ThreadVerbosity::All), 3),
        (None, 0),
    ];
    for (verbosity, count) in wanted {
        let mut case = Case::new(verbosity);
        events().into_iter().for_each(|event| case.add(0, event));
        let lines: usize = case.told(5_000).iter().map(|text| text.lines().count()).sum();
        assert_eq!(lines, count, "{verbosity:?}");
    }
}

#[test]
fn end_of_a_task_is_told_at_once_with_its_figures() {
    let mut case = Case::new(Some(ThreadVerbosity::Quiet));
    let (state, reason) = (FinalState::Killed, "by ben.".to_string());
    case.add(65_000, Event::DispatchFinished { state, reason, result: None });
    let wanted = "The agent has ended (killed): by ben. `dev`, id000001: 0 turns, 1m5s, $0.00, ";
    let told = case.told(65_000);
    assert!(told.len() == 1 && told[0].starts_with(wanted), "{told:?}");
}

#[test]
fn flood_of_reports_is_bounded_and_says_how_many_are_left_out() {
    let mut case = Case::new(Some(ThreadVerbosity::Normal));
    (0..1000).for_each(|number| case.writes(0, &format!("{number}")));
    let told = case.told(0);
    assert_eq!(told.len(), MOST_PENDING / MOST);
    assert!(told[0].starts_with("- `dev`: 880\n"), "{told:?}");
    let more = "\n880 older reports are left out; `muleteer journal DISPATCH` shows them.";
    assert!(told[0].ends_with(more) && !told[1].contains("left out"), "{told:?}");
}
