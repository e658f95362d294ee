//! Questions that outlive the process that asked: the hold, the crash and the successor.

use crate::agent::ask::{Answer, Ask};
use crate::agent::permission::Mode;
use crate::dispatch::answer_prompt;
use crate::dispatch::life::tests::*;
use crate::question::fold::Questions;

/// The id of the question in each test: it follows from the place of the request in the output.
const QUESTION: &str = "g5hjitka";

impl Told {
    /// Returns an agent that waits for a permission in the middle of a turn.
    fn waiting() -> Self {
        let mut told = Self::busy();
        let created = Arc::make_mut(&mut told.d.created);
        created.permissions.mode = Mode::Ask;
        created.hold_s = Some(1800);
        told.d.session.id = Some("s1".into());
        told.asks_bash("r1");
        told
    }

    fn asks_bash(&mut self, id: &str) {
        let ask = Ask::tool("Bash", json!({"command": "make"}));
        self.line(vec![AgentEvent::Permission { id: id.into(), ask: Box::new(ask) }]);
    }

    fn allow_request(&mut self, id: &str) -> bool {
        let answer = Answer::allow();
        self.feed(Input::Answer { id: id.into(), answer, by: "operator".into(), key: "k".into() })
    }

    fn hold_over(&mut self) -> bool {
        self.feed(Input::HoldOver { epoch: self.d.epoch })
    }

    fn question(&self) -> (String, &str) {
        let mut questions = Questions::default();
        let entry = Entry {
            id: String::new(),
            dispatch_id: Some(self.d.id.clone()),
            at: None,
            more: false,
            event: Event::OutputRead {},
        };
        questions.follow(&self.d, &Record { v: VERSION, seq: 1, ts: self.now, entry });
        let question = questions.iter().next().expect("a question");
        (question.id.clone(), question.state.as_str())
    }
}

#[test]
fn agent_that_nobody_answers_is_ended_after_the_hold_and_resumed_by_the_answer() {
    let mut told = Told::waiting();
    assert!(told.hold_over());
    assert!(effects(&told.d).contains(&Effect::Terminate));
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!((told.d.state(), &told.d.phase), ("waiting", &Phase::Queued));
    assert_eq!(effects(&told.d), [], "no slot is asked for");
    assert_eq!(told.question(), (QUESTION.into(), "open"));
    assert!(told.allow_request("r1"));
    assert_eq!(told.d.state(), "queued");
    assert_eq!(effects(&told.d), [Effect::Admit]);
    told.admit();
    told.spawn();
    let key = told.d.prompts.iter().find(|prompt| prompt.kind == PromptKind::Continue);
    let key = key.expect("a prompt that continues").key.clone();
    assert!(told.d.asks.left().all(|left| left.told_in.as_ref() == Some(&key)));
    assert!(told.d.asks.left().all(|left| left.delivered), "the shim wrote the prompt");
    assert_eq!(told.question(), (QUESTION.into(), "delivered"));
}

#[test]
fn hold_needs_a_session_that_can_be_resumed() {
    let mut told = Told::waiting();
    told.d.session.id = None;
    assert!(!told.hold_over());
    let mut told = Told::waiting();
    Arc::make_mut(&mut told.d.created).resumable = false;
    assert!(!told.hold_over());
    let mut told = Told::waiting();
    assert!(told.allow_request("r1"));
    assert!(!told.hold_over(), "it was answered in time");
}

#[test]
fn successor_that_asks_the_same_again_is_the_same_question() {
    let mut told = Told::waiting();
    told.exit_by(None, ExitCause::Exited);
    assert_eq!(told.question(), (QUESTION.into(), "open"), "the question outlives the process");
    told.restarted();
    told.asks_bash("r2");
    let pending: Vec<_> = told.d.asks.all().map(|one| one.id.as_str()).collect();
    assert_eq!(pending, ["r2"], "one question");
    assert!(told.allow_request("r2"));
}

#[test]
fn answer_to_a_dead_process_answers_its_successor_once() {
    let mut told = Told::waiting();
    told.exit_by(None, ExitCause::Exited);
    assert!(told.allow_request("r1"));
    assert!(!told.allow_request("r1"), "the first answer counts");
    told.restarted();
    assert_eq!(told.question(), (QUESTION.into(), "delivered"));
    let before = told.log.len();
    told.asks_bash("r2");
    let answers = told.log[before..]
        .iter()
        .filter(|event| matches!(event, Event::PermissionAnswered { .. }))
        .count();
    assert_eq!((answers, told.d.state()), (1, "running"), "nobody is asked twice");
    assert_eq!(told.question(), (QUESTION.into(), "delivered"));
}

#[test]
fn answer_that_the_shim_wrote_is_not_sent_to_the_successor() {
    let mut told = Told::waiting();
    assert!(told.allow_request("r1"));
    let (epoch, id) = (told.d.epoch, "r1".to_string());
    let at = told.next();
    assert!(told.feed(Input::AnswerWritten { at, epoch, id }));
    assert_eq!(told.question(), (QUESTION.into(), "delivered"));
    told.exit_by(None, ExitCause::Exited);
    assert!(told.d.asks.is_empty());
}

#[test]
fn answer_that_was_not_written_is_told_to_the_successor() {
    let mut told = Told::waiting();
    assert!(told.allow_request("r1"));
    told.exit_by(None, ExitCause::Exited);
    assert_eq!(told.question(), (QUESTION.into(), "answered"));
    told.restarted();
    assert_eq!(told.question(), (QUESTION.into(), "delivered"));
}

#[test]
fn late_answer_reaches_a_successor_that_does_not_ask_again() {
    let mut told = Told::waiting();
    told.exit_by(None, ExitCause::Exited);
    told.restarted();
    let question = told.d.asks.left().next().expect("it is open").question.clone();
    assert!(told.allow_request("r1"));
    let key = answer_prompt(&told.d.id, &question);
    assert!(told.d.prompt(&key).is_some(), "a prompt of its own tells it");
    told.asks_bash("r2");
    assert_eq!(told.d.prompt(&key), None, "the same request got the answer");
}

#[test]
fn end_of_the_dispatch_ends_its_questions() {
    let mut told = Told::waiting();
    told.kill();
    told.exit_by(None, ExitCause::Terminated);
    assert!(told.d.asks.is_empty());
    assert!(!told.allow_request("r1"));
}

/// Returns an agent of a thread whose process stays after its first turn.
fn idle() -> Told {
    let mut told = Told::busy();
    let created = Arc::make_mut(&mut told.d.created);
    created.by = format!("{}t", crate::conversation::BY);
    (created.wants_result, created.idle_hold_s) = (false, Some(60));
    told.result(chat());
    told
}

#[test]
fn process_of_a_conversation_stays_idle_and_ends_after_the_hold() {
    let mut told = idle();
    assert_eq!((told.d.state(), told.d.gives_up_slot()), ("idle", true));
    assert!(told.d.is_finished_or_idle() && !told.d.is_finished());
    assert!(!told.has(&Effect::CloseStdin));
    assert!(told.hold_over());
    assert!(told.has(&Effect::CloseStdin), "the process ends by itself");
    assert!(!told.hold_over(), "once");
    told.exit(0);
    assert_eq!((told.d.state(), told.finished()), ("idle", FinalState::Success));
    told.send("p2");
    assert_eq!(effects(&told.d), [Effect::Admit], "the session is resumed");
}

#[test]
fn message_within_the_hold_goes_to_the_same_process() {
    let mut told = idle();
    told.send("p2");
    assert_eq!((told.delivers(), told.d.state()), (Some("p2".into()), "running"));
    assert!(!told.d.gives_up_slot());
    assert!(!told.hold_over(), "it works");
    told.receipt("p2");
    told.result(chat());
    assert_eq!((told.d.state(), told.d.epoch, told.d.turns), ("idle", 1, 2));
}

#[test]
fn message_that_is_durable_before_the_end_of_the_hold_keeps_the_process() {
    let mut told = idle();
    let by = "operator".to_string();
    let queued = Event::PromptQueued { key: "p2".into(), kind: PromptKind::Send, by, trace: None };
    told.fold(None, queued);
    told.fold(None, Event::HoldExpired { idle: true });
    told.settle();
    assert!(!told.has(&Effect::CloseStdin));
    assert_eq!(told.delivers(), Some("p2".into()));
}

#[test]
fn process_that_dies_within_the_hold_leaves_an_idle_conversation() {
    for cause in [ExitCause::Exited, ExitCause::LeaseExpired, ExitCause::ShimLost] {
        let mut told = idle();
        told.exit_by(None, cause);
        assert_eq!((told.d.state(), told.finished()), ("idle", FinalState::Success), "{cause:?}");
    }
}

#[test]
fn process_of_a_failed_turn_is_not_held() {
    let mut told = Told::busy();
    Arc::make_mut(&mut told.d.created).idle_hold_s = Some(60);
    told.result(failed(TurnError::Context));
    assert!(told.has(&Effect::CloseStdin) && !told.d.holds_idle());
}

mod calls {
    //! Calls of `ask_human` and `await_agent`.

    use super::*;
    use crate::event::mcp::{McpCalled, Tool, Wait};
    use crate::question::event::{Answer, AnsweredBy, QuestionAnswered, State};

    impl Told {
        fn calling(question: Option<&str>) -> Self {
            let mut told = Self::waiting();
            assert!(told.allow_request("r1"));
            told.deliver("r1");
            told.waits(question, false);
            told
        }

        fn deliver(&mut self, id: &str) {
            self.fold(None, Event::AnswerDelivered { request_id: id.into() });
        }

        fn waits(&mut self, question: Option<&str>, over: bool) {
            let wait = Wait { call: "c1".into(), question: question.map(String::from), over };
            let tool = if question.is_some() { Tool::AskHuman } else { Tool::AwaitAgent };
            let called = McpCalled { wait: Some(wait), ..McpCalled::text(tool, "") };
            self.fold(None, Event::McpCalled(Box::new(called)));
        }

        fn answered(&mut self) {
            self.fold(
                None,
                Event::QuestionAnswered(Box::new(QuestionAnswered {
                    question: "q1".into(),
                    answer: Answer::text("blue"),
                    by: AnsweredBy::of("operator"),
                    key: String::new(),
                })),
            );
        }

        /// The driver of questions queues the prompt with the answer.
        fn sends_answer(&mut self) -> String {
            let key = answer_prompt(&self.d.id, "q1");
            let by = "operator".to_string();
            let event =
                Event::PromptQueued { key: key.clone(), kind: PromptKind::Send, by, trace: None };
            self.fold(None, event);
            key
        }
    }

    #[test]
    fn call_that_waits_gives_up_the_slot_until_it_is_over() {
        for question in [Some("q1"), None] {
            let mut told = Told::calling(question);
            assert_eq!((told.d.state(), told.d.gives_up_slot()), ("waiting", true));
            told.waits(question, true);
            assert_eq!((told.d.state(), told.d.gives_up_slot()), ("running", false));
        }
        let mut told = Told::calling(Some("q1"));
        told.answered();
        assert_eq!((told.d.state(), told.d.gives_up_slot()), ("running", false));
        assert!(told.d.mcp.notes == 0, "a wait is no note");
    }

    #[test]
    fn wait_for_agents_has_no_hold() {
        let mut told = Told::calling(None);
        assert!(!told.hold_over());
    }

    #[test]
    fn answer_after_the_hold_begins_the_turn_of_the_successor() {
        let mut told = Told::calling(Some("q1"));
        assert!(told.hold_over());
        told.waits(Some("q1"), true);
        told.exit_by(None, ExitCause::Terminated);
        assert_eq!((told.d.state(), told.d.awaits_answer()), ("waiting", true));
        assert_eq!(effects(&told.d), [], "no slot is asked for");
        told.answered();
        assert_eq!(effects(&told.d), [], "the prompt with the answer is not there yet");
        let key = told.sends_answer();
        assert_eq!(effects(&told.d), [Effect::Admit]);
        told.admit();
        let continues = |prompt: &&crate::dispatch::Prompt| prompt.kind == PromptKind::Continue;
        assert!(told.d.prompts.iter().find(continues).is_none(), "{:?}", told.d.prompts);
        told.spawn();
        let sent = told.d.prompts.iter().find(|prompt| prompt.key == key).expect("the answer");
        assert_ne!(sent.state, PromptState::Queued);
        assert!(told.d.mcp.held.is_empty());
    }

    #[test]
    fn question_that_is_withdrawn_after_the_hold_lets_the_agent_go_on() {
        let mut told = Told::calling(Some("q1"));
        assert!(told.hold_over());
        told.exit_by(None, ExitCause::Terminated);
        told.fold(
            None,
            Event::QuestionState {
                question: "q1".into(),
                state: State::Withdrawn,
                reason: String::new(),
            },
        );
        assert_eq!(effects(&told.d), [Effect::Admit]);
    }
}
