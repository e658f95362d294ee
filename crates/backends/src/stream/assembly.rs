//! Joins the chunks of an agent's messages and tool calls: a message becomes one text, and a call
//! is reported once, with its input.
//!
//! An assembly keeps state across lines, so it is not a parser. Text that it holds back is not
//! accounted for until it returns it. So a daemon that loses an assembly reads the same lines
//! again.

use crate::acp::{broken_off, unanswered};
use crate::stream::text::RESULT_TEXT_LIMIT;
use muleteer_model::agent::acp_handshake::CallAnswer;
use muleteer_model::agent::event::{AgentEvent, TEXT_LIMIT, cut};
use muleteer_model::agent::result;
use serde_json::Value;
use std::collections::VecDeque;

/// How many reported calls are remembered. An update of an older call would be reported as a new
/// call.
const MOST_CALLS: usize = 256;
/// A call whose input grows chunk by chunk is reported after this many chunks.
const MOST_PIECES: u32 = 4096;
/// How many announced calls are held back. The oldest of more is reported as it is.
const MOST_ANNOUNCED: usize = 64;
/// The most bytes of earlier fields that are kept for a call whose newer report lacks them.
const KEPT_LIMIT: usize = 1024 * 1024;
/// How many costs may be held back. They arrive between the chunks of a message and follow it.
const MOST_COSTS: usize = 64;

#[derive(Debug)]
pub struct Assembly {
    /// A message is returned at this length, in bytes, although it has not ended.
    most: usize,
    /// Prose is cut to this length, in bytes; a result document is not.
    keep: usize,
    held: Option<Held>,
    /// The id of the current message, if the agent gives its messages ids.
    message: Option<String>,
    /// Calls that the agent announced without their input. They are reported with it, or when they
    /// run, are asked about, or end. A later line reports each of them again, so they need not be
    /// accounted for.
    announced: VecDeque<Announced>,
    /// Costs that arrived during the message that is held back.
    costs: Vec<AgentEvent>,
    pieces: u32,
    told: VecDeque<String>,
    /// The running turn broke off; the text that follows gives the reason.
    broken_off: bool,
    said: Option<String>,
    /// The running turn has no answer of the model, and must not end without one.
    unanswered: bool,
    /// The agent has reported the use of single model calls in the running turn.
    counted: bool,
    /// The cost of the session as reported last.
    total_usd: Option<f64>,
}

#[derive(Debug)]
enum Held {
    Text { chars: u64, text: String },
    Thinking { chars: u64, text: String },
    Call { id: String, name: String, input: Value },
}

#[derive(Debug)]
struct Announced {
    id: String,
    name: String,
    input: Value,
}

impl Default for Assembly {
    fn default() -> Self {
        Self {
            most: RESULT_TEXT_LIMIT,
            keep: TEXT_LIMIT,
            held: None,
            message: None,
            announced: VecDeque::new(),
            costs: vec![],
            pieces: 0,
            told: VecDeque::new(),
            broken_off: false,
            said: None,
            unanswered: false,
            counted: false,
            total_usd: None,
        }
    }
}

impl Assembly {
    /// Returns an assembly for a reader of whole messages: it cuts no text, and returns a message
    /// of more than `most` bytes as several events.
    pub fn whole(most: usize) -> Self {
        Self { most, keep: usize::MAX, ..Self::default() }
    }

    /// Takes the events of one line and returns the events that are complete now.
    pub fn push(&mut self, events: impl IntoIterator<Item = AgentEvent>) -> Vec<AgentEvent> {
        let mut out = Vec::new();
        for event in events {
            self.take(event, &mut out);
        }
        out
    }

    /// Returns everything that is held back, complete or not.
    pub fn finish(&mut self) -> Vec<AgentEvent> {
        let mut all = self.flush();
        while let Some(call) = self.announced.pop_front() {
            all.push(self.report(call));
        }
        all
    }

    /// Returns the message or the call that is held back, complete or not.
    fn flush(&mut self) -> Vec<AgentEvent> {
        let held = self.take_held();
        held.into_iter().chain(std::mem::take(&mut self.costs)).collect()
    }

    /// Returns the announced call of this id, if it was not reported yet.
    fn release(&mut self, id: &str) -> Option<AgentEvent> {
        let call = self.take_announced(id)?;
        Some(self.report(call))
    }

    fn take_announced(&mut self, id: &str) -> Option<Announced> {
        let at = self.announced.iter().position(|call| call.id == id)?;
        self.announced.remove(at)
    }

    fn report(&mut self, call: Announced) -> AgentEvent {
        let Announced { id, name, input } = call;
        if self.told.len() >= MOST_CALLS {
            self.told.pop_front();
        }
        self.told.push_back(id.clone());
        AgentEvent::ToolCall { id, name, input }
    }

    fn take_held(&mut self) -> Option<AgentEvent> {
        self.pieces = 0;
        Some(match self.held.take()? {
            Held::Text { chars, text } => {
                // A result document is at the end of the answer and must not be cut.
                let is_result = result::find_in_text(&text).is_some();
                if self.broken_off {
                    self.said = Some(cut(&text, TEXT_LIMIT));
                }
                AgentEvent::Text {
                    chars,
                    text: if is_result { text } else { cut(&text, self.keep) },
                }
            }
            Held::Thinking { chars, text } => {
                AgentEvent::Thinking { chars, text: cut(&text, self.keep) }
            }
            Held::Call { id, name, input } => self.report(Announced { id, name, input }),
        })
    }

    /// Whether a message or a call is held back.
    pub fn holds(&self) -> bool {
        self.held.is_some()
    }

    /// Whether calls are announced of which nothing was reported.
    pub fn awaits_call(&self) -> bool {
        !self.announced.is_empty()
    }

    /// Whether the message or call has grown so long that it is returned without its end.
    pub fn is_full(&self) -> bool {
        match &self.held {
            Some(Held::Text { text, .. } | Held::Thinking { text, .. }) => text.len() >= self.most,
            Some(Held::Call { .. }) => self.pieces >= MOST_PIECES,
            None => false,
        }
    }

    fn take(&mut self, event: AgentEvent, out: &mut Vec<AgentEvent>) {
        match (&mut self.held, event) {
            (Some(Held::Text { chars, text }), AgentEvent::Text { chars: more, text: piece })
            | (
                Some(Held::Thinking { chars, text }),
                AgentEvent::Thinking { chars: more, text: piece },
            ) => {
                *chars += more;
                text.push_str(&piece);
            }
            (
                Some(Held::Call { id, name, input }),
                AgentEvent::ToolCall { id: same, name: newer, input: more },
            ) if *id == same => {
                self.pieces += 1;
                merge(input, more);
                name_better(name, newer);
            }
            // Agents report the context size at any time, also in the middle of a message.
            (
                _,
                AgentEvent::Usage {
                    total_usd,
                    cost_usd,
                    input,
                    output,
                    cache_read,
                    cache_write,
                    model,
                    call,
                },
            ) => {
                let since =
                    total_usd.map(|total| (total - self.total_usd.unwrap_or_default()).max(0.0));
                let cost_usd = since.unwrap_or(cost_usd);
                self.total_usd = total_usd.or(self.total_usd);
                let is_cost = total_usd.is_some() || call.is_none();
                self.counted |= call.is_none();
                let usage = AgentEvent::Usage {
                    total_usd,
                    cost_usd,
                    input,
                    output,
                    cache_read,
                    cache_write,
                    model,
                    call,
                };
                match self.held {
                    // Usage follows a complete message of the model, so the call is complete.
                    Some(Held::Call { .. }) => {
                        out.extend(self.flush());
                        out.push(usage);
                    }
                    // A cost becomes a durable event, and nothing may be held back before one.
                    // Returning the message here would cut it, and its document could not be read.
                    Some(_) if is_cost => {
                        self.costs.push(usage);
                        if self.costs.len() >= MOST_COSTS {
                            out.extend(self.flush());
                        }
                    }
                    _ => out.push(usage),
                }
            }
            (
                Some(Held::Call { id: same, .. }),
                AgentEvent::CallAnswer(CallAnswer::ToolAnnounced { id }),
            ) if *same == id => {
                if let Some(Held::Call { id, name, input }) = self.held.take() {
                    self.announced.push_back(Announced { id, name, input });
                }
                self.pieces = 0;
                if self.announced.len() > MOST_ANNOUNCED
                    && let Some(oldest) = self.announced.pop_front()
                {
                    let oldest = self.report(oldest);
                    out.push(oldest);
                }
            }
            (held, AgentEvent::CallAnswer(CallAnswer::Says { message })) => {
                let speaks = matches!(held, Some(Held::Text { .. } | Held::Thinking { .. }));
                if speaks && self.message.as_ref() != Some(&message) {
                    out.extend(self.flush());
                }
                self.message = Some(message);
            }
            (_, event) => {
                out.extend(self.flush());
                self.begin(event, out);
            }
        }
        if self.is_full() {
            out.extend(self.flush());
        }
    }

    fn begin(&mut self, event: AgentEvent, out: &mut Vec<AgentEvent>) {
        if matches!(
            event,
            AgentEvent::Text { .. } | AgentEvent::Thinking { .. } | AgentEvent::ToolCall { .. }
        ) {
            self.unanswered = false;
        }
        match event {
            AgentEvent::Text { chars, text } => self.held = Some(Held::Text { chars, text }),
            AgentEvent::Thinking { chars, text } => {
                self.held = Some(Held::Thinking { chars, text })
            }
            AgentEvent::ToolCall { id, .. } if self.told.contains(&id) && id != PLAN => {}
            AgentEvent::ToolCall { id, mut name, mut input } => {
                if let Some(call) = self.take_announced(&id) {
                    // The input of an announcement is at most a title.
                    if is_empty(&input) {
                        input = call.input;
                    }
                    let newer = std::mem::replace(&mut name, call.name);
                    name_better(&mut name, newer);
                }
                self.held = Some(Held::Call { id, name, input });
            }
            AgentEvent::CallAnswer(CallAnswer::ToolAnnounced { .. }) => {}
            AgentEvent::ToolResult { ref id, .. }
            | AgentEvent::CallAnswer(
                CallAnswer::ToolRuns { ref id } | CallAnswer::ToolOutput { ref id },
            ) => {
                out.extend(self.release(id));
                out.push(event);
            }
            AgentEvent::Permission { ref ask, .. } => {
                out.extend(ask.call_id.as_deref().and_then(|id| self.release(id)));
                out.push(event);
            }
            AgentEvent::Result(mut result) => {
                out.extend(self.finish());
                result.cost_usd = result.cost_usd.or(self.total_usd);
                // The calls of the turn were counted one by one.
                if std::mem::take(&mut self.counted) {
                    result.per_model_turn.clear();
                }
                if std::mem::take(&mut self.broken_off) && result.ok {
                    broken_off(&mut result, self.said.take().as_deref());
                }
                if std::mem::take(&mut self.unanswered) && result.ok {
                    unanswered(&mut result);
                }
                out.push(AgentEvent::Result(result));
            }
            AgentEvent::CallAnswer(CallAnswer::BrokeOff {}) => self.broken_off = true,
            AgentEvent::CallAnswer(CallAnswer::TurnRuns {}) => self.unanswered = true,
            other => out.push(other),
        }
    }
}

/// The call id of plans. An agent writes its plan repeatedly, and each time is a new call.
pub(crate) const PLAN: &str = "plan";

/// Adds a newer report of a call's input. A request for permission may repeat only a part of it.
/// Earlier fields that it lacks are kept unless they are too long.
fn merge(input: &mut Value, more: Value) {
    match (input, more) {
        (Value::Object(fields), Value::Object(more)) => {
            let earlier = fields.iter().filter(|(key, _)| !more.contains_key(*key));
            let kept: usize = earlier.map(|(key, value)| key.len() + value.to_string().len()).sum();
            if kept > KEPT_LIMIT {
                fields.clear();
            }
            fields.extend(more);
        }
        (_, more) if is_empty(&more) => {}
        (input, more) => *input = more,
    }
}

/// Replaces the name of a call by a newer one that tells more.
fn name_better(name: &mut String, newer: String) {
    if name.is_empty() || (newer.starts_with("mcp__") && !name.starts_with("mcp__")) {
        *name = newer;
    }
}

fn is_empty(input: &Value) -> bool {
    match input {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn text(text: &str) -> AgentEvent {
        AgentEvent::Text { chars: text.chars().count() as u64, text: text.into() }
    }

    fn call(id: &str, input: Value) -> AgentEvent {
        AgentEvent::ToolCall { id: id.into(), name: "Bash".into(), input }
    }

    fn done(id: &str) -> AgentEvent {
        AgentEvent::ToolResult { id: id.into(), ok: true, text: String::new(), exit_code: None }
    }

    #[test]
    fn pieces_of_a_message_are_one_text() {
        let mut assembly = Assembly::default();
        assert!(assembly.push([text("I wr"), text("ite")]).is_empty() && assembly.holds());
        assert_eq!(assembly.push([call("c", json!({"command": "ls"}))]), [text("I write")]);
        assert_eq!(assembly.push([done("c")]), [call("c", json!({"command": "ls"})), done("c")]);
        assert_eq!(assembly.finish(), []);
    }

    #[test]
    fn tool_call_is_reported_once_with_its_input() {
        let mut assembly = Assembly::default();
        let mut told = assembly.push([call("c", json!({}))]);
        told.extend(
            assembly
                .push([call("c", json!({"command": "l"})), call("c", json!({"command": "ls"}))]),
        );
        assert!(told.is_empty());
        told.extend(assembly.push([AgentEvent::Output { text: "x".into() }]));
        // The agent keeps reporting the state of the call.
        told.extend(assembly.push([call("c", json!({"command": "ls"})), done("c")]));
        let expected = [
            call("c", json!({"command": "ls"})),
            AgentEvent::Output { text: "x".into() },
            done("c"),
        ];
        assert_eq!(told, expected);
    }

    /// An agent may report a call thousands of times, each time with another long field.
    #[test]
    fn fields_of_earlier_reports_are_kept_within_a_limit() {
        let kept = |first: usize, second: usize| {
            let mut assembly = Assembly::default();
            let reports = [("a", first), ("b", second)];
            let reports = reports.map(|(key, bytes)| call("c", json!({ key: "x".repeat(bytes) })));
            assert_eq!(assembly.push(reports), []);
            match &assembly.finish()[..] {
                [AgentEvent::ToolCall { input, .. }] => {
                    input.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(kept(10, KEPT_LIMIT), ["a", "b"]);
        assert_eq!(kept(KEPT_LIMIT, 10), ["b"]);
    }

    #[test]
    fn unfinished_message_is_emitted_at_its_limit() {
        let mut assembly = Assembly::default();
        let piece = "x".repeat(1000);
        let given: Vec<_> = (0..1000).flat_map(|_| assembly.push([text(&piece)])).collect();
        assert_eq!(given.len(), 3);
    }

    #[test]
    fn a_document_stays_whole_and_prose_is_cut() {
        let mut assembly = Assembly::default();
        let document = json!({"status": "success", "summary": "y".repeat(6000)}).to_string();
        assembly.push([text("Done.\n\n"), text(&document)]);
        let [AgentEvent::Text { text: whole, .. }] = &assembly.finish()[..] else {
            panic!("a text")
        };
        assert!(whole.ends_with(&document));
        assembly.push([text(&"z".repeat(6000))]);
        let [AgentEvent::Text { text: cut, chars }] = &assembly.finish()[..] else {
            panic!("a text")
        };
        assert!(cut.len() <= TEXT_LIMIT && *chars == 6000);
    }

    #[test]
    fn whole_messages_are_not_cut() {
        let mut assembly = Assembly::whole(10_000);
        assembly.push((0..6000).map(|_| text("x")));
        assert_eq!(assembly.finish(), [text(&"x".repeat(6000))]);
        let given = assembly.push([text(&"y".repeat(6000)), text(&"y".repeat(6000))]);
        assert_eq!(given, [text(&"y".repeat(12_000))]);
    }

    /// Agents report context size and cost at any time.
    #[test]
    fn costs_between_pieces_do_not_cut_a_message() {
        let cost = |total: Option<f64>| AgentEvent::Usage {
            input: 1,
            output: 0,
            cost_usd: 0.0,
            cache_read: 0,
            cache_write: 0,
            model: None,
            call: Some("context".into()),
            total_usd: total,
        };
        let mut assembly = Assembly::default();
        let mut told = assembly.push([
            text("{\"sta"),
            cost(None),
            text("tus\":"),
            cost(Some(0.5)),
            text("1}"),
        ]);
        told.extend(assembly.finish());
        let texts: Vec<_> =
            told.iter().filter(|event| matches!(event, AgentEvent::Text { .. })).collect();
        assert_eq!(texts, [&text("{\"status\":1}")]);
        let AgentEvent::Usage { cost_usd, total_usd, .. } = told.last().unwrap() else {
            panic!("{told:?}")
        };
        assert_eq!((*cost_usd, *total_usd), (0.5, Some(0.5)), "what it cost follows the message");
    }

    /// Codex prints a warning about a model before its first message, with nothing between them.
    #[test]
    fn messages_with_names_of_their_own_are_texts_of_their_own() {
        let says =
            |message: &str| AgentEvent::CallAnswer(CallAnswer::Says { message: message.into() });
        let mut assembly = Assembly::default();
        let pieces = [
            text("Warn"),
            text("ing."),
            says("1"),
            text("I wr"),
            says("1"),
            text("ite."),
            says("2"),
            text("Done."),
        ];
        let mut told = assembly.push(pieces);
        told.extend(assembly.finish());
        assert_eq!(told, [text("Warning."), text("I write."), text("Done.")]);
    }
}
