//! Converts the parts of a thread to lines.

use crate::render::{
    BLUE, BOLD, DIM, GREEN, RED, RESET, YELLOW, clip, clip_line, in_local_time, local_time, safe,
    terminal,
};
use crate::verbs::thread::chat::feed::is_final;
use crate::verbs::thread::chat::markdown::Markdown;
use crate::verbs::thread::chat::questions::Open;
use jiff::Timestamp;
use muleteer_protocol::v1::{AskStatus, MessageDoc, Part};
use std::collections::{HashMap, HashSet, VecDeque};

/// Wider rows are hard to read.
const WIDEST: usize = 100;
/// Text blocks that are remembered, to recognise them as the message that is recorded later.
const BLOCKS: usize = 8;
/// A longer block is not recognised, and so is shown twice.
const BLOCK_LIMIT: usize = 512 * 1024;
/// Calls and waiting messages that are remembered.
const MOST: usize = 256;

/// The lines of one part.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub lines: Vec<String>,
    /// The person is needed.
    pub bell: bool,
}

/// The view that the person has of a thread.
#[derive(Debug, Default)]
pub struct View {
    /// The keys of the messages that were typed here: the terminal shows them already.
    own: HashSet<String>,
    /// The present was reached: earlier parts are history.
    is_present: bool,
    markdown: Markdown,
    /// The block that arrives now.
    block: String,
    blocks: VecDeque<String>,
    /// The name of the agent was shown for this turn.
    is_named: bool,
    calls: HashMap<String, String>,
    last_call: Option<String>,
    role: String,
    agent: Agent,
    questions: Vec<Open>,
    /// The questions whose answer was typed here and is on its way.
    answered: HashSet<String>,
    /// Why each waiting message waits, as it was shown.
    told: HashMap<String, String>,
    /// The newest reason that was not shown yet. It is shown if it lasts.
    waits: Option<(String, String)>,
}

/// The dispatch of the thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Agent {
    pub dispatch: String,
    pub state: String,
}

impl Agent {
    /// Whether it works on a turn that can be interrupted.
    pub fn is_at_work(&self) -> bool {
        matches!(self.state.as_str(), "running" | "starting" | "queued" | "waiting")
    }
}

impl View {
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// The open questions without an answer that is on its way, oldest first.
    pub fn questions(&self) -> impl Iterator<Item = &Open> {
        self.questions.iter().filter(|question| !self.answered.contains(question.id()))
    }

    /// Notes that an answer to a question was typed here. The next line is none to it.
    pub fn answers(&mut self, question: &str) {
        self.answered.insert(question.into());
    }

    /// Notes that the answer to a question could not be sent.
    pub fn not_answered(&mut self, question: &str) {
        self.answered.remove(question);
    }

    /// Notes the key of a message that the person typed here.
    pub fn typed(&mut self, key: &str) {
        self.own.insert(key.into());
    }

    /// Whether a message waits for a reason that was not shown yet.
    pub fn has_news_of_waiting(&self) -> bool {
        self.waits.is_some()
    }

    /// Returns the line about the message that still waits.
    pub fn waiting(&mut self) -> Option<String> {
        let (id, reason) = self.waits.take()?;
        if self.told.len() >= MOST {
            self.told.clear();
        }
        let line = format!("  {DIM}{}{RESET}", in_local_time(&safe(&reason)));
        self.told.insert(id, reason);
        Some(line)
    }

    pub fn part(&mut self, part: Part) -> Shown {
        let mut shown = Shown::default();
        match part {
            Part::Message(message) => self.message(&message, &mut shown),
            Part::Present => self.is_present = true,
            Part::Text { text } => {
                self.name(&mut shown.lines);
                if self.block.len() + text.len() <= BLOCK_LIMIT {
                    self.block.push_str(&text);
                }
                shown.lines.extend(self.markdown.push(&text, width()));
            }
            Part::TextEnd => self.end_block(&mut shown.lines),
            Part::Call { id, name, target } => {
                self.end_block(&mut shown.lines);
                self.name(&mut shown.lines);
                let call = format!("{} {}", safe(&name), clip(&target, 200)).trim().to_string();
                shown.lines.push(fitted(&format!("{BLUE}●{RESET} {call}")));
                if self.calls.len() >= MOST {
                    self.calls.clear();
                }
                self.calls.insert(id.clone(), call);
                self.last_call = Some(id);
            }
            Part::CallEnd { id, ok, text } => {
                let follows = self.last_call.take().as_ref() == Some(&id);
                let call = self.calls.remove(&id).filter(|_| !follows);
                let call = call.map(|call| format!("{call}: ")).unwrap_or_default();
                let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
                let end = match ok {
                    true => format!("{GREEN}ok{RESET} {DIM}{}{RESET}", clip(first, 100)),
                    false => format!("{RED}failed{RESET} {}", clip(first, 160)),
                };
                shown.lines.push(fitted(&format!("{DIM}└{RESET} {call}{end}")));
            }
            Part::TurnEnd { .. } => {
                self.end_block(&mut shown.lines);
                self.is_named = false;
                shown.lines.push(String::new());
                shown.bell = self.is_present;
            }
            Part::Notice { text } => {
                self.end_block(&mut shown.lines);
                shown.lines.push(format!("  {DIM}{}{RESET}", clip(&text, 300)));
            }
            Part::Agent { dispatch_id, role, state, reason, asks, .. } => {
                self.asked(asks, &mut shown);
                self.agent_is(dispatch_id, role, state, reason, &mut shown);
            }
            Part::Unknown => {}
        }
        shown
    }

    /// Shows the agent's name before its first words of a turn.
    fn name(&mut self, lines: &mut Vec<String>) {
        if !std::mem::replace(&mut self.is_named, true) {
            let name = if self.role.is_empty() { "agent" } else { &self.role };
            lines.push(format!("{BOLD}{}{RESET}", safe(name)));
        }
    }

    fn end_block(&mut self, lines: &mut Vec<String>) {
        lines.extend(self.markdown.end(width()));
        let block = std::mem::take(&mut self.block);
        if !block.trim().is_empty() {
            self.blocks.push_back(block);
        }
        while self.blocks.len() > BLOCKS {
            self.blocks.pop_front();
        }
    }

    fn asked(&mut self, asks: Vec<AskStatus>, shown: &mut Shown) {
        let open: Vec<_> = asks.into_iter().map(Open::new).collect();
        let known: HashSet<&str> = self.questions.iter().map(Open::id).collect();
        let new: Vec<_> = open.iter().filter(|one| !known.contains(one.id())).cloned().collect();
        for question in new {
            self.end_block(&mut shown.lines);
            shown.lines.extend(question.lines());
            shown.bell = true;
        }
        self.questions = open;
        let questions = &self.questions;
        self.answered.retain(|id| questions.iter().any(|question| question.id() == id));
    }

    fn agent_is(
        &mut self,
        dispatch: String,
        role: String,
        state: String,
        reason: Option<String>,
        shown: &mut Shown,
    ) {
        self.role = role;
        let was = std::mem::replace(&mut self.agent, Agent { dispatch, state });
        let state = self.agent.state.as_str();
        if state == was.state {
            return;
        }
        let is_end = matches!(state, "failed" | "killed" | "stalled" | "blocked");
        // A thread whose agent ended long ago says so in its messages.
        if is_end && !was.state.is_empty() {
            let reason = reason.map(|reason| format!(": {}", clip(&reason, 300)));
            let reason = in_local_time(&reason.unwrap_or_default());
            shown.lines.push(format!("  {YELLOW}the agent is {state}{reason}{RESET}"));
            shown.bell = true;
        }
    }

    fn message(&mut self, message: &MessageDoc, shown: &mut Shown) {
        match message.direction.as_str() {
            "in" => self.inbound(message, shown),
            _ => self.outbound(message, shown),
        }
    }

    fn inbound(&mut self, message: &MessageDoc, shown: &mut Shown) {
        let is_new = !self.told.contains_key(&message.id)
            && self.waits.as_ref().is_none_or(|(id, _)| *id != message.id);
        let is_own = message.key.as_ref().is_some_and(|key| self.own.contains(key));
        if is_new && !is_own {
            shown.lines.extend(header(message));
            shown.lines.extend(safe(message.text.trim_end()).lines().map(|line| line.to_string()));
            for file in &message.files {
                let name = clip(&file.name, 100);
                shown.lines.push(format!("  {DIM}[{name} · {} bytes]{RESET}", file.bytes));
            }
            self.told.insert(message.id.clone(), String::new());
        }
        if is_final(&message.state) {
            self.waits = self.waits.take().filter(|(id, _)| *id != message.id);
            self.told.remove(&message.id);
            let reason = message.reason.as_deref().unwrap_or_default();
            if message.state != "answered" || !reason.is_empty() {
                let colon = if reason.is_empty() { "" } else { ": " };
                let state = &message.state;
                let line = format!("the message is {state}{colon}{}", clip(reason, 300));
                shown.lines.push(format!("  {YELLOW}{}{RESET}", in_local_time(&line)));
            }
            if let Some(key) = &message.key {
                self.own.remove(key);
            }
            return;
        }
        let is_waiting = matches!(message.state.as_str(), "accepted" | "queued");
        match &message.reason {
            Some(reason) if is_waiting && self.told.get(&message.id) != Some(reason) => {
                self.waits = Some((message.id.clone(), reason.clone()));
            }
            _ => self.waits = self.waits.take().filter(|(id, _)| *id != message.id),
        }
    }

    fn outbound(&mut self, message: &MessageDoc, shown: &mut Shown) {
        let text = message.text.trim();
        let is_shown = self.blocks.iter().position(|block| block.trim() == text);
        // The next turn may have begun to write meanwhile.
        if let Some(at) = is_shown {
            drop(self.blocks.drain(..=at));
            return;
        }
        self.end_block(&mut shown.lines);
        shown.lines.extend(header(message));
        let mut markdown = Markdown::default();
        shown.lines.extend(markdown.push(&message.text, width()));
        shown.lines.extend(markdown.end(width()));
        shown.lines.push(String::new());
        self.is_named = false;
        shown.bell = self.is_present;
    }
}

fn header(message: &MessageDoc) -> Option<String> {
    let at = message.at.parse::<Timestamp>().map(local_time).unwrap_or_default();
    Some(format!("{BOLD}{}{RESET} {DIM}{at}{RESET}", clip(&message.author.name, 60)))
}

fn width() -> usize {
    terminal::width().unwrap_or(80).min(WIDEST)
}

fn fitted(line: &str) -> String {
    clip_line(line, terminal::width().unwrap_or(80).saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use muleteer_protocol::v1::AuthorDoc;

    fn plain(shown: Shown) -> Vec<String> {
        let strip = |line: String| anstream::adapter::strip_str(&line).to_string();
        shown.lines.into_iter().map(strip).filter(|line| !line.is_empty()).collect()
    }

    fn text(text: &str) -> Part {
        Part::Text { text: text.into() }
    }

    fn message(direction: &str, text: &str, state: &str, reason: Option<&str>) -> Part {
        let author = AuthorDoc { name: "someone".into(), ..AuthorDoc::default() };
        Part::Message(Box::new(MessageDoc {
            id: "m".into(),
            direction: direction.into(),
            author,
            text: text.into(),
            state: state.into(),
            reason: reason.map(ToString::to_string),
            key: Some("k".into()),
            ..MessageDoc::default()
        }))
    }

    #[test]
    fn streamed_answer_is_not_shown_again_when_it_is_recorded() {
        let mut view = View::default();
        let mut lines = vec![];
        for part in [text("I look.\nDo"), text("ne."), Part::TextEnd, Part::TurnEnd { ok: true }] {
            lines.extend(plain(view.part(part)));
        }
        assert_eq!(lines, ["agent", "I look.", "Done."]);
        let recorded = message("out", "I look.\nDone.\n", "recorded", None);
        assert_eq!(plain(view.part(recorded.clone())), Vec::<String>::new());
        assert_eq!(plain(view.part(recorded))[1..], ["I look.", "Done."], "another one");
    }

    #[test]
    fn typed_message_shows_only_why_it_waits() {
        let mut view = View::default();
        view.typed("k");
        let waits = message("in", "hello", "queued", Some("queued behind turn 1 of reviewer"));
        assert_eq!(plain(view.part(waits.clone())), Vec::<String>::new());
        assert!(view.waiting().is_some_and(|line| line.contains("queued behind turn 1")));
        view.part(waits);
        assert!(!view.has_news_of_waiting(), "it was shown");
        view.part(message("in", "hello", "read", None));
        assert!(plain(view.part(message("in", "hello", "answered", None))).is_empty());
        let others = plain(view.part(message("in", "hi", "refused", Some("killed"))));
        assert_eq!(others[1..], ["hi", "  the message is refused: killed"]);
    }

    #[test]
    fn call_is_one_line_with_its_end() {
        let mut view = View::default();
        let call = |id: &str| Part::Call {
            id: id.into(),
            name: "Bash".into(),
            target: format!("run {id}\x1b[2J"),
        };
        let end = |id: &str, ok| Part::CallEnd { id: id.into(), ok, text: "\nno\x1b[2J".into() };
        let mut lines = vec![];
        for part in [call("1"), end("1", true), call("2"), call("3"), end("2", false)] {
            lines.extend(plain(view.part(part)));
        }
        assert_eq!(
            lines,
            [
                "agent",
                "● Bash run 1 [2J",
                "└ ok no [2J",
                "● Bash run 2 [2J",
                "● Bash run 3 [2J",
                "└ Bash run 2 [2J: failed no [2J",
            ]
        );
    }

    #[test]
    fn new_question_rings_and_stays_until_it_is_closed() {
        let mut view = View::default();
        let agent = |asks| Part::Agent {
            dispatch_id: "d".into(),
            role: "reviewer".into(),
            state: "waiting".into(),
            turn: 1,
            reason: None,
            asks,
        };
        let ask = AskStatus {
            request_id: "r".into(),
            kind: "question".into(),
            text: "Which?".into(),
            ..AskStatus::default()
        };
        let shown = view.part(agent(vec![ask.clone()]));
        assert!(shown.bell && shown.lines[0].contains("Which?"), "{shown:?}");
        assert_eq!(view.part(agent(vec![ask])), Shown::default());
        assert_eq!(view.questions().count(), 1);
        view.part(agent(vec![]));
        assert_eq!(view.questions().count(), 0);
    }

    #[test]
    fn typed_answer_hides_its_question_until_sending_fails() {
        let mut view = View::default();
        let ask = |id: &str| AskStatus { request_id: id.into(), ..AskStatus::default() };
        let asks = |asks| Part::Agent {
            dispatch_id: "d".into(),
            role: "reviewer".into(),
            state: "waiting".into(),
            turn: 1,
            reason: None,
            asks,
        };
        let ids = |view: &View| -> Vec<String> {
            view.questions().map(|one| one.id().to_string()).collect()
        };
        view.part(asks(vec![ask("one"), ask("two")]));
        view.answers("one");
        assert_eq!(ids(&view), ["two"]);
        let shown = view.part(asks(vec![ask("one"), ask("two")]));
        assert_eq!((ids(&view), shown), (vec!["two".to_string()], Shown::default()));
        view.not_answered("one");
        assert_eq!(ids(&view), ["one", "two"]);
        view.answers("one");
        view.part(asks(vec![ask("two")]));
        view.part(asks(vec![ask("one"), ask("two")]));
        assert_eq!(ids(&view), ["one", "two"], "it is asked again");
    }
}
