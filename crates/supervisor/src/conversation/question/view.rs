//! Renders questions for `questions` and `thread show`, in the same way for a live daemon and from
//! disk.

use jiff::Timestamp;
use muleteer_model::dispatch::fleet::Fleet;
use muleteer_model::question::entity::{ALLOW, DENY};
use muleteer_model::question::{Kind, Question};
use muleteer_model::spec_run::gate;
use muleteer_protocol::v1::{AnswerDoc, AnsweredByDoc, AskStatus, ChoiceDoc, QuestionDoc};

/// Returns the open questions, oldest first; with `all` the closed ones too.
pub fn questions(fleet: &Fleet, all: bool) -> Vec<QuestionDoc> {
    let mut found: Vec<_> = match all {
        true => fleet.questions.iter().collect(),
        false => fleet.questions.open().collect(),
    };
    found.sort_by_key(|question| (question.asked_at, question.id.clone()));
    found.into_iter().map(|question| document(question)).collect()
}

/// Returns the open questions of runs, oldest first.
pub fn of_runs(fleet: &Fleet) -> Vec<QuestionDoc> {
    let open = fleet.questions.open().filter(|one| gate::run_of(one).is_some());
    let mut found: Vec<_> = open.collect();
    found.sort_by_key(|question| (question.asked_at, question.id.clone()));
    found.into_iter().map(|question| document(question)).collect()
}

pub fn document(question: &Question) -> QuestionDoc {
    let options = question.options.iter().map(|option| ChoiceDoc {
        id: option.id.clone(),
        label: option.label.clone(),
        description: option.description.clone(),
    });
    let by = question.answered_by.as_ref();
    QuestionDoc {
        id: question.id.clone(),
        kind: question.kind.as_str().into(),
        state: question.state.as_str().into(),
        dispatch_id: question.dispatch.as_ref().map(ToString::to_string),
        thread_id: question.thread.clone(),
        asked_by: question.asked_by.clone(),
        text: question.text.clone(),
        options: options.collect(),
        multi: question.multi,
        free_text: question.free_text,
        detail: match question.detail.is_null() {
            true => serde_json::json!({}),
            false => question.detail.clone(),
        },
        default: question.default.clone(),
        deadline: question.deadline.map(time),
        asked_at: time(question.asked_at),
        answered_at: question.answered_at.map(time),
        answered_by: by
            .map(|by| AnsweredByDoc { adapter: by.adapter.clone(), user: by.user.clone() }),
        answer: question
            .answer
            .as_ref()
            .map(|answer| AnswerDoc { options: answer.options.clone(), text: answer.text.clone() }),
        reason: Some(question.reason.clone()).filter(|reason| !reason.is_empty()),
    }
}

/// Returns an open question in the form of a request for which an agent waits.
pub fn asked(question: &Question) -> AskStatus {
    let detail = |key: &str| question.detail[key].as_str().unwrap_or_default().to_string();
    let is_permission = question.kind == Kind::Permission;
    let labels = question.options.iter().map(|option| option.label.clone());
    // Every request for permission takes `allow` and `deny`, so they are no options of it.
    let is_plain = question.options.iter().all(|option| [ALLOW, DENY].contains(&&*option.id));
    AskStatus {
        request_id: question.id.clone(),
        kind: question.kind.as_str().into(),
        tool: detail("tool"),
        target: detail("target"),
        text: if is_permission { detail("text") } else { question.text.clone() },
        options: if is_permission && is_plain { vec![] } else { labels.collect() },
        since: time(question.asked_at),
    }
}

/// Formats a time for documents and messages.
pub fn time(at: Timestamp) -> String {
    format!("{at:.3}")
}
