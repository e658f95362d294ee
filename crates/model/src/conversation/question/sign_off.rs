//! The sign-off of a spec: a person approves the text that was shown, and may start its run.
//!
//! ```text
//!  /signoff PATH ──▶ open ── sign_off ──▶ the thread has the sign-off
//!                     │────── start_run ─▶ the run begins, once
//!                     │────── revise ────▶ the thread's agent gets the text of the answer
//!                     └─ the file changed ─▶ withdrawn, and asked again with the new text
//! ```
//!
//! The question has the hash of the text that was shown. An approval counts only while the file has
//! that hash, and the run gets a copy with that hash. The id of the run follows from the question,
//! so a repeated answer starts no second run.

use crate::agent::event::cut;
use crate::question::event::{AnsweredBy, Choice, Kind, QuestionAsked};
use crate::question::fold::Questions;
use crate::question::{Answer, Question, TEXT_LIMIT};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The option that approves the spec.
pub const SIGN_OFF: &str = "sign_off";
/// The option that approves the spec and starts its run.
pub const START_RUN: &str = "start_run";
/// The option that gives the text of the answer to the thread's agent.
pub const REVISE: &str = "revise";

/// The most bytes of the spec's text in the question. A longer one is shown in part.
const SHOWN: usize = TEXT_LIMIT - 1024;
/// The most bytes of a title.
const TITLE_LIMIT: usize = 100;

/// The spec of a question, in its `detail`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The absolute path of the file.
    pub path: String,
    /// The top of the repository in which its run works.
    pub repo: String,
    pub title: String,
    /// The hash of the text that was shown.
    pub sha256: String,
    pub bytes: u64,
}

impl Spec {
    /// Returns the spec of a question; `None` for a question of another kind.
    pub fn of(question: &Question) -> Option<Self> {
        let detail = (question.kind == Kind::SignOff).then(|| question.detail.clone())?;
        serde_json::from_value(detail).ok()
    }

    /// Returns the path for people.
    fn shown(&self) -> &str {
        let below = self.path.strip_prefix(&self.repo).and_then(|path| path.strip_prefix('/'));
        below.unwrap_or(&self.path)
    }
}

/// The copy of a text that was shown in a thread.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShownCopy {
    pub thread: String,
    pub sha256: String,
}

impl ShownCopy {
    /// Returns the copy of a question; `None` for a question of another kind.
    pub fn of(question: &Question) -> Option<Self> {
        let sha256 = Spec::of(question)?.sha256;
        Some(Self { thread: question.thread.clone()?, sha256 })
    }
}

/// Returns the copies from which a run may still start: those of the questions that are open, or
/// whose answer is not carried out yet. A run that has begun has a copy of its own.
pub fn needed_copies(questions: &Questions) -> BTreeSet<ShownCopy> {
    questions.unsettled().filter_map(|question| ShownCopy::of(question)).collect()
}

/// Returns the newer question about the same file in the same thread, which has another text. Only
/// that one can be approved, so an open older one is withdrawn.
pub fn superseded_by<'a>(question: &Question, questions: &'a Questions) -> Option<&'a Question> {
    let spec = Spec::of(question)?;
    let is_later = |other: &&Question| {
        other.kind == Kind::SignOff
            && other.thread == question.thread
            && other.asked_at > question.asked_at
            && Spec::of(other)
                .is_some_and(|later| (later.path == spec.path) && later.sha256 != spec.sha256)
    };
    questions.iter().map(|other| &**other).find(is_later)
}

/// Returns the reason of a question that is withdrawn because question `newer` has the new text.
pub fn superseded(newer: &str) -> String {
    format!("the spec changed after it was shown: question {newer} has its new text")
}

/// Returns the question about a spec with this text.
pub fn question(
    spec: &Spec,
    text: &str,
    thread: &str,
    asked_by: &str,
    id: String,
) -> QuestionAsked {
    let title = cut(&spec.title, TITLE_LIMIT);
    let rest = match text.len() > SHOWN {
        true => format!("\n\nThis is the beginning. The file {} has the rest.", spec.shown()),
        false => String::new(),
    };
    let head = format!("Sign off the spec {} ({title})?", spec.shown());
    QuestionAsked {
        question: id,
        kind: Kind::SignOff,
        text: cut(&format!("{head}\n\n{}{rest}", cut(text.trim(), SHOWN)), TEXT_LIMIT),
        options: vec![
            Choice::new(SIGN_OFF, "the spec is approved as it is shown"),
            Choice::new(START_RUN, "the spec is approved, and its run starts"),
            Choice::new(REVISE, "the agent of the thread gets your text"),
        ],
        multi: false,
        free_text: false,
        detail: serde_json::to_value(spec).unwrap_or_default(),
        default: None,
        deadline: None,
        thread: Some(thread.into()),
        shown_in: vec![],
        dispatch: None,
        asked_by: asked_by.into(),
        subject: format!("sign_off/{thread}/{}/{}", spec.sha256, spec.path),
    }
}

/// Whether an answer approves the text that was shown.
pub fn approves(answer: &Answer) -> bool {
    answer.is(SIGN_OFF) || answer.is(START_RUN)
}

/// Returns the id of the run that an answer starts. The same question starts the same run.
pub fn run_id(question: &Question) -> String {
    let at = question.answered_at.unwrap_or(Timestamp::UNIX_EPOCH);
    format!("run-{}-{}", at.strftime("%Y-%m-%d"), question.id)
}

/// The result of the start of a run that an approval asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunStart {
    Started {
        id: String,
        /// The variables for its push that the thread's opener gave and the daemon no longer has.
        lost: Vec<String>,
    },
    /// The reason why none started.
    Failed(String),
}

/// Returns the message about an approval. `run` is absent if it asks for none.
pub fn outcome(spec: &Spec, by: &AnsweredBy, run: Option<&RunStart>) -> String {
    let name = format!("{} (sha256 {})", spec.shown(), spec.sha256);
    let signed = format!("{} ({}) signed off {name}.", by.user, by.adapter);
    match run {
        None => signed,
        Some(RunStart::Started { id, lost }) if lost.is_empty() => {
            format!("{signed} Started the run {id}.")
        }
        Some(RunStart::Started { id, lost }) => format!(
            "{signed} Started the run {id}. It pushes without {}, because the daemon to which the \
             thread's opener gave that has ended. To give it, run `muleteer run stop {id}`, then \
             `muleteer run resume {id}` in a terminal that has it.",
            lost.join(", ")
        ),
        Some(RunStart::Failed(why)) => format!("{signed} Its run did not start: {why}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::question::answer::read;

    fn spec() -> Spec {
        Spec {
            path: "/repo/docs/plan.md".into(),
            repo: "/repo".into(),
            title: "The plan".into(),
            sha256: "ab12".into(),
            bytes: 9,
        }
    }

    fn asked(text: &str) -> Question {
        let asked = question(&spec(), text, "thrdabcd", "anna", "q2345678".into());
        Question::of_event(&asked, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn question_shows_the_text_and_records_its_hash() {
        let question = asked("# The plan\n");
        assert!(question.text.starts_with("Sign off the spec docs/plan.md (The plan)?"));
        assert!(question.text.contains("# The plan") && !question.text.contains("the rest"));
        assert_eq!(Spec::of(&question), Some(spec()));
        let long = asked(&"long ".repeat(10_000));
        assert!(long.text.len() <= TEXT_LIMIT && long.text.ends_with("docs/plan.md has the rest."));
    }

    #[test]
    fn approval_with_further_words_decides_nothing() {
        let question = asked("text");
        for text in ["start_run later", "sign_off but rename it", "go on"] {
            assert!(read(&question, &[text]).is_err(), "{text}");
        }
        assert_eq!(read(&question, &["start_run"]), Ok(Answer::option(START_RUN)));
        let revise = Answer { options: vec![REVISE.into()], text: "name the files".into() };
        assert_eq!(read(&question, &["revise: name the files"]), Ok(revise));
    }

    #[test]
    fn same_question_starts_the_same_run() {
        let question = Question { answered_at: Some(Timestamp::UNIX_EPOCH), ..asked("text") };
        assert_eq!(run_id(&question), "run-1970-01-01-q2345678");
    }
}
