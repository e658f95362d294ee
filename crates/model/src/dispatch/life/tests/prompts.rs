//! Prompts whose fate the transcript decides, and prompts that arrive during a turn.

use crate::agent::transcript::{Seen, Session, Standing, Used};
use crate::dispatch::life::tests::*;
use std::sync::Arc;

impl Told {
    /// Returns an agent with transcripts whose first prompt is on its way.
    fn kept(capabilities: (bool, bool)) -> Self {
        let mut told = Self::new(capabilities);
        Arc::make_mut(&mut told.d.created).transcripts = true;
        Arc::make_mut(&mut told.d.created).folds = capabilities == MULTI;
        told.admit();
        told.spawn();
        told
    }

    /// Feeds a reading of the transcript for `key`.
    fn reads(&mut self, key: &str, session: Session, prompt: Seen) -> bool {
        self.reads_use(key, session, prompt, Used::default())
    }

    fn reads_use(&mut self, key: &str, session: Session, prompt: Seen, used: Used) -> bool {
        let session_id = (session == Session::Held).then(|| "s1".to_string());
        let reading = Reading { session, session_id, prompt, used };
        self.feed(Input::Probed { epoch: self.d.epoch, key: key.into(), reading })
    }

    fn taken(&mut self, key: &str, standing: Standing) {
        assert!(self.reads(key, Session::Held, Seen::Present(standing)));
    }

    /// Returns the key of the prompt that must be probed before anything else happens.
    fn asks(&self) -> Option<String> {
        effects(&self.d).into_iter().find_map(|effect| match effect {
            Effect::Probe { key } => Some(key),
            _ => None,
        })
    }

    fn resumes(&self) -> Option<String> {
        effects(&self.d).into_iter().find_map(|effect| match effect {
            Effect::EnsureShim { resume, .. } => resume,
            _ => None,
        })
    }

    fn state_of(&self, key: &str) -> PromptState {
        self.d.prompt(key).unwrap().state
    }
}

/// A CLI that resumes a session leaves out a cut turn's use, or includes it in its sums.
#[test]
fn usage_of_an_interrupted_turn_is_counted_once() {
    let tokens = |input| ModelUsage { model: "m".into(), input, ..ModelUsage::default() };
    for told_again in [false, true] {
        let mut told = Told::kept(MULTI);
        let mid_tool = Seen::Present(Standing::MidTool);
        told.exit_by(None, ExitCause::Exited);
        let used = Used { models: vec![tokens(300)], told_again };
        assert!(told.reads_use("p1", Session::Held, mid_tool, used));
        assert_eq!(told.d.spend.input, 300);
        told.restarted();
        let per_session = vec![tokens(if told_again { 350 } else { 50 })];
        told.line(vec![AgentEvent::Result(TurnResult {
            ok: true,
            per_session,
            ..TurnResult::default()
        })]);
        assert_eq!(told.d.spend.input, 350, "told again: {told_again}");
    }
}

#[test]
fn usage_of_folded_prompts_is_counted_with_the_turn() {
    let mut told = Told::kept(MULTI);
    told.receipt("p1");
    told.send("p2");
    told.exit_by(None, ExitCause::Exited);
    let used = || Used {
        models: vec![ModelUsage { input: 10, ..ModelUsage::default() }],
        told_again: false,
    };
    for key in ["p1", "p2"] {
        assert!(
            told.reads_use(key, Session::Held, Seen::Present(Standing::MidTool), used()),
            "{key}"
        );
    }
    assert_eq!(told.d.spend.input, 10);
    let counted = told.log.iter().filter_map(|event| match event {
        Event::PromptProbed { key, counted, .. } => Some((key.as_str(), *counted)),
        _ => None,
    });
    assert_eq!(counted.collect::<Vec<_>>(), [("p1", true), ("p2", false)]);
}

#[test]
fn crash_waits_for_the_transcript_probe() {
    let mut told = Told::kept(MULTI);
    told.exit_by(None, ExitCause::Exited);
    assert_eq!(effects(&told.d), [Effect::Probe { key: "p1".into() }]);
    assert!(matches!(told.d.phase, Phase::Gone { .. }));
    assert!(!told.reads("another", Session::Missing, Seen::Absent));
    let reading = Reading::missing();
    assert!(
        !told.feed(Input::Probed { epoch: told.d.epoch + 1, key: "p1".into(), reading }),
        "of another process"
    );
    assert!(told.reads("p1", Session::Missing, Seen::Absent));
    assert!(!told.reads("p1", Session::Missing, Seen::Absent), "once is enough");
}

/// A person who kills the agent and sends it a message later does not want the old queue first.
#[test]
fn kill_withdraws_queued_messages_but_not_the_task() {
    let mut told = Told::busy();
    told.send("more");
    told.kill();
    told.exit_by(None, ExitCause::Terminated);
    assert_eq!(
        (told.finished(), told.state_of("more")),
        (FinalState::Killed, PromptState::Withdrawn)
    );
    told.send("instead");
    told.admit();
    told.spawn();
    assert_eq!(told.delivers().as_deref(), Some("instead"));

    let mut queued = Told::new(MULTI);
    queued.send("more");
    queued.kill();
    assert_eq!(queued.finished(), FinalState::Killed);
    queued.send("after all");
    queued.admit();
    queued.spawn();
    assert_eq!(queued.delivers().as_deref(), Some("p1"));
}

#[test]
fn prompt_not_in_the_transcript_is_resent_with_its_key() {
    for session in [Session::Missing, Session::Empty] {
        let mut told = Told::kept(MULTI);
        let chosen = new_session_id(&told.d);
        told.exit_by(None, ExitCause::Exited);
        told.reads("p1", session, Seen::Absent);
        told.restarted();
        assert_eq!((told.delivers(), told.resumes()), (Some("p1".into()), None));
        // The next session takes the same id only if that id was never used, so that there cannot
        // be two sessions.
        assert_eq!(new_session_id(&told.d) == chosen, session == Session::Missing);
    }
}

/// The shim died before anybody read a line; the session with the id that we chose exists all the
/// same.
#[test]
fn prompt_taken_in_an_unreported_session_is_resumed_there() {
    let mut told = Told::kept(MULTI);
    told.shim_lost(true, true);
    told.taken("p1", Standing::MidTool);
    told.restarted();
    assert_eq!(
        (told.state_of("p1"), told.d.session.id.as_deref()),
        (PromptState::Superseded, Some("s1"))
    );
    assert_eq!(told.kind(&told.delivers().unwrap()), PromptKind::Continue);
    assert!(told.log.contains(&Event::AttemptStarted {
        attempt: 2,
        epoch: 2,
        resume: Some("s1".into())
    }));
    assert_eq!(told.d.cut_at(), Some(Standing::MidTool));
}

/// Codex prints `turn.started` before it writes the prompt down: the transcript counts, not the
/// receipt.
#[test]
fn receipt_without_a_transcript_record_does_not_count() {
    let mut told = Told::kept(BY_TURNS);
    told.begins("s1");
    told.shim_lost(true, true);
    assert_eq!(told.asks().as_deref(), Some("p1"));
    assert!(told.reads("p1", Session::Held, Seen::Absent));
    told.restarted();
    assert_eq!(told.delivers().as_deref(), Some("p1"));
    assert!(told.log.contains(&Event::AttemptStarted {
        attempt: 2,
        epoch: 2,
        resume: Some("s1".into())
    }));
}

#[test]
fn prompt_with_an_unknown_fate_blocks_and_is_not_resent() {
    let unclear = || Seen::Unclear("the disk says no".into());
    for capabilities in [MULTI, BY_TURNS] {
        let mut told = Told::kept(capabilities);
        told.session("s1");
        told.exit_by(None, ExitCause::Exited);
        told.reads("p1", Session::Unread, unclear());
        assert_eq!(
            (told.finished(), told.state_of("p1")),
            (FinalState::Blocked, PromptState::Doubtful)
        );
        let reason = told.d.reason.clone().unwrap();
        assert!(
            reason.contains("the disk says no") && reason.contains("muleteer send abcd2345"),
            "{reason}"
        );
        // A person's message continues the session, and the doubtful prompt is not sent again with
        // it.
        told.send("more");
        told.admit();
        told.spawn();
        assert_eq!(
            (told.delivers().as_deref(), told.state_of("p1")),
            (Some("more"), PromptState::Superseded)
        );
        assert!(told.log.contains(&Event::AttemptStarted {
            attempt: 2,
            epoch: 2,
            resume: Some("s1".into())
        }));
    }
}

#[test]
fn used_session_without_a_transcript_is_lost_not_empty() {
    let mut told = Told::kept(MULTI);
    told.session("s1");
    told.receipt("p1");
    told.exit_by(None, ExitCause::Exited);
    told.reads("p1", Session::Missing, Seen::Absent);
    assert_eq!(told.finished(), FinalState::Blocked);
    assert_eq!(told.d.session.id.as_deref(), Some("s1"), "it may be elsewhere");
}

#[test]
fn reported_end_of_a_turn_needs_no_transcript() {
    let mut told = Told::kept(MULTI);
    told.session("s1");
    told.receipt("p1");
    told.result(failed(TurnError::ApiError));
    told.exit(1);
    assert_eq!(told.asks(), None);
    told.restarted();
    assert_eq!(told.kind(&told.delivers().unwrap()), PromptKind::Continue);

    let mut told = Told::kept(MULTI);
    told.session("s1");
    told.receipt("p1");
    told.result(well());
    told.exit(0);
    assert_eq!(told.finished(), FinalState::Success);
}

#[test]
fn kill_records_prompts_that_were_not_taken() {
    let mut told = Told::kept(MULTI);
    told.session("s1");
    told.kill();
    told.exit_by(None, ExitCause::Terminated);
    told.reads("p1", Session::Held, Seen::Present(Standing::MidTool));
    assert_eq!(told.finished(), FinalState::Killed);
    told.send("more");
    told.admit();
    told.spawn();
    assert_eq!(
        told.delivers().as_deref(),
        Some("more"),
        "what the kill cut short is not taken up unasked"
    );
}

#[test]
fn untaken_continuation_is_resent_once() {
    let mut told = Told::kept(BY_TURNS);
    told.begins("s1");
    told.shim_lost(true, true);
    told.taken("p1", Standing::Unanswered);
    told.restarted();
    let go_on = told.delivers().unwrap();
    told.shim_lost(true, true);
    assert_eq!(told.asks().as_ref(), Some(&go_on));
    told.reads(&go_on, Session::Held, Seen::Absent);
    told.restarted();
    assert_eq!(told.delivers(), Some(go_on));
}

// ---- A session that is no longer there

#[test]
fn lost_session_blocks_without_counted_restarts() {
    let lost = || TurnResult { session_lost: true, ..failed(TurnError::Other) };
    let mut told = Told::kept(MULTI);
    told.session("s1");
    told.receipt("p1");
    told.result(well());
    told.exit(0);
    told.send("more");
    told.admit();
    told.spawn();
    let chosen = new_session_id(&told.d);
    told.result(lost());
    told.exit(1);
    told.reads("more", Session::Missing, Seen::Absent);
    assert_ne!(new_session_id(&told.d), chosen, "its id has been used");
    assert_eq!(
        (told.finished(), told.counted(), told.state_of("more")),
        (FinalState::Blocked, 0, PromptState::Queued)
    );
    assert!(
        told.d.reason.as_ref().unwrap().contains("no longer has the session s1"),
        "{:?}",
        told.d.reason
    );
    // The next message begins a new session, which first gets the message that found no session.
    told.send("again");
    told.admit();
    assert_eq!(told.resumes(), None);
    told.spawn();
    assert_eq!(told.delivers().as_deref(), Some("more"));
}

#[test]
fn final_output_reports_a_lost_session() {
    let mut told = Told::kept(BY_TURNS);
    told.begins("s1");
    told.answers(ANSWER);
    told.send("more");
    told.admit();
    told.spawn();
    told.exit(1);
    told.reads("more", Session::Lost, Seen::Absent);
    assert_eq!((told.finished(), told.counted()), (FinalState::Blocked, 0));
    assert_eq!(told.d.session.id, None);
}

// ---- A prompt in the middle of a turn

#[test]
fn message_to_a_busy_agent_is_folded_into_its_turn() {
    let mut told = Told::kept(MULTI);
    told.session("s1");
    told.receipt("p1");
    told.send("and this");
    assert_eq!(told.delivers().as_deref(), Some("and this"));
    told.line(vec![AgentEvent::Text { chars: 2, text: "hm".into() }]);
    assert_eq!(
        told.state_of("and this"),
        PromptState::Sent,
        "words of the turn are no receipt for it"
    );
    told.receipt("and this");
    assert!(told.log.contains(&Event::PromptFolded { key: "and this".into(), turn: 1 }));
    told.result(TurnResult { keys: vec!["p1".into(), "and this".into()], ..well() });
    told.exit(0);
    assert_eq!((told.finished(), told.d.turns), (FinalState::Success, 1));
}

/// The receipt may be lost; the result names the prompts that it answers.
#[test]
fn message_known_from_the_result_is_folded_into_the_turn() {
    let mut told = Told::kept(MULTI);
    told.session("s1");
    told.receipt("p1");
    told.send("and this");
    told.result(TurnResult { keys: vec!["p1".into(), "and this".into()], ..well() });
    let ended = |event: &Event| matches!(event, Event::TurnFinished { turn: 1, ok: true, .. });
    assert!(told.log.iter().any(ended), "{:?}", told.log);
    assert_eq!((told.d.turns, told.state_of("and this")), (1, PromptState::Done));
}

#[test]
fn late_message_gets_its_own_turn() {
    let mut told = Told::kept(MULTI);
    told.session("s1");
    told.receipt("p1");
    told.send("and this");
    told.result(TurnResult { keys: vec!["p1".into()], ..well() });
    assert!(told.d.result.value.is_none(), "there is more to come");
    told.receipt("and this");
    assert_eq!((told.d.turns, told.state_of("and this")), (2, PromptState::Taken));
    told.result(TurnResult { keys: vec!["and this".into()], ..well() });
    told.exit(0);
    assert_eq!((told.finished(), told.d.turns), (FinalState::Success, 2));
}

#[test]
fn crash_separates_folded_and_queued_messages() {
    let mut told = Told::kept(MULTI);
    told.session("s1");
    told.receipt("p1");
    told.send("folded");
    told.receipt("folded");
    told.send("waiting");
    told.shim_lost(true, true);
    told.taken("p1", Standing::MidTool);
    told.taken("folded", Standing::MidTool);
    told.reads("waiting", Session::Held, Seen::Absent);
    told.restarted();
    assert_eq!(told.kind(&told.delivers().unwrap()), PromptKind::Continue);
    assert_eq!(
        ["p1", "folded", "waiting"].map(|key| told.state_of(key)),
        [PromptState::Superseded, PromptState::Superseded, PromptState::Queued]
    );
}

/// The turn had ended and the next one had begun without a receipt when the process died.
#[test]
fn unreported_turn_after_a_finished_one_is_resumed() {
    let mut told = Told::kept(MULTI);
    told.session("s1");
    told.receipt("p1");
    told.send("and this");
    told.result(TurnResult { keys: vec!["p1".into()], ..well() });
    told.shim_lost(true, true);
    told.taken("and this", Standing::MidTool);
    told.spawn();
    assert_eq!(told.kind(&told.delivers().unwrap()), PromptKind::Continue);
}

#[test]
fn stopping_turn_folds_no_messages() {
    let mut told = Told::kept(MULTI);
    told.session("s1");
    told.receipt("p1");
    told.feed(Input::Interrupt { key: "i1".into(), by: "operator".into() });
    told.send("and this");
    assert_eq!(told.delivers(), None);
    told.result(failed(TurnError::Interrupted));
    assert_eq!(told.delivers().as_deref(), Some("and this"));
}

/// A queued message is no answer to the question about the doubtful prompt.
#[test]
fn doubtful_prompt_blocks_before_other_prompts() {
    let mut told = Told::kept(MULTI);
    told.session("s1");
    told.receipt("p1");
    told.send("on its way");
    told.send("waiting");
    told.result(TurnResult { keys: vec!["p1".into()], ..well() });
    told.shim_lost(true, true);
    told.reads("on its way", Session::Held, Seen::Unclear("it is damaged".into()));
    assert_eq!(
        (told.finished(), told.state_of("waiting")),
        (FinalState::Blocked, PromptState::Queued)
    );
}
