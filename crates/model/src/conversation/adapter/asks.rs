//! Questions as outbound items: an adapter shows each one, and later that it is closed.

use crate::conversation::adapter::outbox::Content;
use crate::conversation::thread::Thread;
use crate::event::Record;
use crate::question::{Answer, AnsweredBy, Choice, Kind, Question, State};
use serde::{Deserialize, Serialize};

/// A question, as the adapter shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    pub id: String,
    pub text: String,
    /// The answers that are offered.
    pub options: Vec<Choice>,
}

impl Asked {
    fn of(question: &Question) -> Self {
        let mut text = match question.kind {
            Kind::Permission => format!("{}: {}", question.asked_by, question.text.trim()),
            Kind::Question
            | Kind::Approval
            | Kind::Plan
            | Kind::SignOff
            | Kind::Stall
            | Kind::Newer => question.text.trim().to_string(),
        };
        // The text of a request for permission names the tool; the agent's own words say more.
        let more = question.detail["text"].as_str().unwrap_or_default().trim();
        if !more.is_empty() && !text.contains(more) {
            text = format!("{text}\n{more}");
        }
        Self { id: question.id.clone(), text, options: question.options.clone() }
    }
}

/// A question that takes no answer any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    pub id: String,
    /// The end in one line: the answer and its author, or the reason.
    pub text: String,
    pub by: Option<AnsweredBy>,
    /// The options that were chosen.
    pub options: Vec<Choice>,
}

impl Resolved {
    fn of(question: &Question) -> Self {
        let answer = question.answer.as_ref();
        let by = question.answered_by.clone();
        let text = match (&by, question.state) {
            (Some(_), State::Expired) => {
                let answer = answer.map(Answer::describe).unwrap_or_default();
                format!("the deadline passed, so this was taken: {answer}")
            }
            (Some(by), _) => {
                let answer = answer.map(Answer::describe).unwrap_or_default();
                format!("answered by {} ({}): {answer}", by.user, by.adapter)
            }
            (None, state) if question.reason.is_empty() => state.as_str().into(),
            (None, state) => format!("{}: {}", state.as_str(), question.reason),
        };
        let chosen = answer.map(|answer| &answer.options[..]).unwrap_or_default().iter();
        let option = |id: &String| {
            let offered = question.options.iter().find(|option| option.id == *id);
            offered.cloned().unwrap_or_else(|| Choice::new(id, ""))
        };
        Self { id: question.id.clone(), text, by, options: chosen.map(option).collect() }
    }
}

/// A question that the adapter shows, or will show.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown {
    /// Its place in the outside system, once the adapter has posted it.
    place: Option<String>,
    is_open: bool,
}

impl Thread {
    /// Follows a change of a question. Returns whether the thread owes something for it.
    pub(crate) fn follow_question(&mut self, question: &Question, record: &Record) -> bool {
        let is_shown = self.shown.get(&question.id).map(|shown| shown.is_open);
        let (op, content) = match (question.is_open(), is_shown) {
            (true, None) => ("ask", Content::Ask(Box::new(Asked::of(question)))),
            (false, Some(true)) => ("resolve", Content::Resolve(Box::new(Resolved::of(question)))),
            (true, Some(_)) | (false, None | Some(false)) => return false,
        };
        let mut shown = self.shown.get(&question.id).cloned().unwrap_or_default();
        shown.is_open = question.is_open();
        self.shown.insert_mut(question.id.clone(), shown);
        let first = format!("{}/{op}/{}", self.id(), record.seq);
        let key = |number: u64| match number {
            0 => first,
            number => format!("{first}.{number}"),
        };
        self.owe(record.seq, key, content, record.ts);
        true
    }

    /// Notes the place of a question in the outside system.
    pub(super) fn shown_at(&mut self, question: &str, place: &str) {
        if let Some(mut shown) = self.shown.get(question).cloned() {
            shown.place = Some(place.into());
            self.shown.insert_mut(question.into(), shown);
        }
    }

    /// Forgets a question whose end the adapter shows.
    pub(super) fn forget_ask(&mut self, question: &str) {
        self.shown.remove_mut(question);
    }

    /// Returns the place of a question in the outside system.
    pub fn place_of_question(&self, question: &str) -> Option<&str> {
        self.shown.get(question)?.place.as_deref()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::conversation::adapter::event::{PostState, PostStateName};
    use crate::conversation::event::ThreadOpened;
    use crate::dispatch::fleet::Fleet;
    use crate::event::{Entry, Event, VERSION};
    use crate::question::{QuestionAnswered, QuestionAsked};
    use jiff::Timestamp;

    /// Folds an event in, and replaces the fleet by its own snapshot.
    fn apply(fleet: &mut Fleet, event: Event) {
        let seq = fleet.seq + 1;
        let entry = Entry { id: seq.to_string(), dispatch_id: None, at: None, more: false, event };
        let record = Record { v: VERSION, seq, ts: Timestamp::UNIX_EPOCH, entry };
        fleet.apply(&record);
        let saved = serde_json::to_string(fleet).unwrap();
        *fleet = serde_json::from_str(&saved).unwrap();
        // A record that is folded already changes nothing.
        fleet.apply(&record);
        assert_eq!(serde_json::to_string(fleet).unwrap(), saved);
    }

    fn open(fleet: &mut Fleet, thread: &str, external: Option<&str>) {
        apply(
            fleet,
            Event::ThreadOpened(Box::new(ThreadOpened {
                thread: thread.into(),
                role: "analyst".into(),
                project: "/repo".into(),
                title: None,
                adapter: "slack".into(),
                external: external.map(String::from),
                by: "U1".into(),
                bang: None,
            })),
        );
    }

    fn ask(fleet: &mut Fleet, thread: &str, question: &str) {
        apply(
            fleet,
            Event::QuestionAsked(Box::new(QuestionAsked {
                question: question.into(),
                kind: Kind::Stall,
                text: "It stalled.".into(),
                options: vec![Choice::new("respawn", "again"), Choice::new("leave", "")],
                multi: false,
                free_text: false,
                detail: serde_json::Value::Null,
                default: None,
                deadline: None,
                thread: Some(thread.into()),
                shown_in: vec![],
                dispatch: None,
                asked_by: "muleteer".into(),
                subject: String::new(),
            })),
        );
    }

    fn contents(fleet: &Fleet, thread: &str) -> Vec<Content> {
        let thread = fleet.conversations.get(thread).unwrap();
        thread.outbox.values().map(|post| post.content.clone()).collect()
    }

    #[test]
    fn question_of_a_thread_is_shown_once_and_its_end_says_who_answered() {
        let mut fleet = Fleet::default();
        open(&mut fleet, "t1", Some("C1"));
        open(&mut fleet, "t2", None);
        ask(&mut fleet, "t1", "q2345678");
        ask(&mut fleet, "t2", "q3345678");
        assert_eq!(contents(&fleet, "t2"), [], "only adapters are owed questions");
        let all = contents(&fleet, "t1");
        let [Content::Ask(asked)] = &all[..] else { panic!("{all:?}") };
        assert_eq!((asked.id.as_str(), asked.options.len()), ("q2345678", 2));
        let key = fleet.conversations.get("t1").unwrap().outbox.first().unwrap().1.key.clone();
        for state in [PostStateName::Sent, PostStateName::Posted] {
            let changed = PostState {
                thread: "t1".into(),
                key: key.clone(),
                state,
                external_ref: Some("place".into()),
                reason: String::new(),
            };
            apply(&mut fleet, Event::PostState(Box::new(changed)));
        }
        let answered = QuestionAnswered {
            question: "q2345678".into(),
            answer: Answer::option("respawn"),
            by: AnsweredBy::of("slack:U1"),
            key: String::new(),
        };
        apply(&mut fleet, Event::QuestionAnswered(Box::new(answered)));
        let done = State::Delivered;
        let event = Event::QuestionState {
            question: "q2345678".into(),
            state: done,
            reason: String::new(),
        };
        apply(&mut fleet, event);
        let all = contents(&fleet, "t1");
        let [Content::Resolve(resolved)] = &all[..] else { panic!("{all:?}") };
        assert_eq!(resolved.text, "answered by U1 (slack): respawn");
        assert_eq!(resolved.options, [Choice::new("respawn", "again")]);
        let thread = fleet.conversations.get("t1").unwrap();
        assert_eq!(thread.place_of_question("q2345678"), Some("place"));
        assert_eq!(fleet.conversations.adapter("slack").unwrap().pending, 1);
    }
}
