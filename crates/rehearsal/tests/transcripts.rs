//! The backend reads the session files that the player writes.

#![allow(clippy::unwrap_used)]

use muleteer_backends::Backend;
use muleteer_backends::rehearsal::Rehearsal;
use muleteer_model::agent::transcript::{self, Reading, Seen, Standing};
use muleteer_rehearsal::Vars;
use muleteer_rehearsal::scenario::Scenario;
use muleteer_rehearsal::session::Session;

fn reading(session: &Session, key: &str) -> Reading {
    let file = serde_json::to_vec(session).unwrap();
    Rehearsal.transcripts().unwrap().read(&mut file.as_slice(), key).unwrap()
}

#[test]
fn a_session_tells_how_far_its_prompt_came() {
    let scenario =
        Scenario::parse("{v: 1, turns: [{steps: [{say: a}, {say: b}]}]}", "test").unwrap();
    let mut session = Session::new("s");
    // The session was created, and the process died before it had a prompt. The session must be
    // resumed, not created again.
    let begun = reading(&session, "k");
    assert_eq!(
        (begun.session, begun.session_id, begun.prompt),
        (transcript::Session::Held, Some("s".into()), Seen::Absent)
    );
    session.take(&scenario, &Vars::default(), Some("k"), "go");
    assert_eq!(reading(&session, "k").prompt, Seen::Present(Standing::Unanswered));
    session.step_done(&scenario);
    assert_eq!(reading(&session, "k").prompt, Seen::Present(Standing::MidTool));
    assert_eq!(reading(&session, "other").prompt, Seen::Absent);
    session.turn_over();
    assert_eq!(reading(&session, "k").prompt, Seen::Present(Standing::Answered));
}
