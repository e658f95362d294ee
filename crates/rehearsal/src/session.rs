//! The state of a rehearsed agent that survives its death: the contents of its session file.
//!
//! ```text
//!            take(new key)                      turn_over
//!   idle ───────────────────▶ open at step 0 ───────────────▶ idle
//!    ▲                          │ step_done: at step n+1
//!    │ take(known key):         ▼
//!    │ acknowledged only      process dies, is resumed; take(new key): goes on at step n
//! ```
//!
//! The file is replaced after a step's effect and before the effect is reported. So a resumed agent
//! never repeats a reported step. An interrupted step is done again.

use crate::Vars;
use crate::scenario::{Crash, Scenario, Step};
use muleteer_backends::rehearsal::transcript::VERSION;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub v: u32,
    pub session_id: String,
    /// Keys of the accepted prompts.
    pub keys: Vec<String>,
    /// How many turns have begun.
    pub begun: u32,
    /// Turns of the scenario that no prompt can start any more.
    pub used: BTreeSet<usize>,
    pub open: Option<Open>,
    /// Steps with `once` that have happened: (turn, step).
    pub once: BTreeSet<(usize, usize)>,
}

/// A turn that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// Index in the scenario; the index after the last turn is `otherwise`.
    pub turn: usize,
    /// The turn's number in the session, from 1.
    pub number: u32,
    /// How many steps are done.
    pub done: usize,
    pub prompt: String,
}

/// The effect of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    Began,
    /// The prompt continues the turn that a crash interrupted.
    WentOn,
    /// The key is known: the agent acknowledges the prompt and does nothing else.
    Known,
}

impl Session {
    pub fn new(session_id: impl Into<String>) -> Self {
        Self {
            v: VERSION,
            session_id: session_id.into(),
            keys: vec![],
            begun: 0,
            used: BTreeSet::new(),
            open: None,
            once: BTreeSet::new(),
        }
    }

    /// Accepts a prompt while no turn is running in this process.
    pub fn take(
        &mut self,
        scenario: &Scenario,
        vars: &Vars,
        key: Option<&str>,
        text: &str,
    ) -> Taken {
        if let Some(key) = key {
            if self.keys.iter().any(|known| known == key) {
                return Taken::Known;
            }
            self.keys.push(key.to_string());
        }
        if self.open.is_some() {
            return Taken::WentOn;
        }
        let turn = scenario
            .turns
            .iter()
            .enumerate()
            .find(|(at, turn)| !self.used.contains(at) && holds(&turn.when, vars, text))
            .map(|(at, turn)| (at, turn.repeat));
        let (turn, repeat) = turn.unwrap_or((scenario.turns.len(), true));
        if !repeat {
            self.used.insert(turn);
        }
        self.begun += 1;
        self.open = Some(Open { turn, number: self.begun, done: 0, prompt: text.to_string() });
        Taken::Began
    }

    /// Returns the step to do now; `None` if the turn has no more steps, or there is no turn. Steps
    /// with `once` that have happened are skipped.
    pub fn next<'a>(&mut self, scenario: &'a Scenario) -> Option<&'a Step> {
        let open = self.open.as_mut()?;
        loop {
            let step = scenario.steps(open.turn).get(open.done)?;
            if !self.once.contains(&(open.turn, open.done)) {
                return Some(step);
            }
            open.done += 1;
        }
    }

    /// Records that the step from [`Self::next`] is done.
    pub fn step_done(&mut self, scenario: &Scenario) {
        let Some(open) = self.open.as_mut() else {
            return;
        };
        if let Some(Step::Crash(Crash { once: true, .. })) =
            scenario.steps(open.turn).get(open.done)
        {
            self.once.insert((open.turn, open.done));
        }
        open.done += 1;
    }

    /// Records that the turn has ended, with a result or by an interrupt.
    pub fn turn_over(&mut self) {
        self.open = None;
    }
}

fn holds(when: &crate::scenario::When, vars: &Vars, prompt: &str) -> bool {
    when.prompt.as_ref().is_none_or(|part| prompt.contains(part.as_str()))
        && when.env.iter().all(|(name, value)| vars.get(name) == Some(value.as_str()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn scenario(text: &str) -> Scenario {
        Scenario::parse(text, "test.yaml").unwrap()
    }

    const TWO: &str = "
v: 1
turns:
  - steps: [{say: a}, {crash: {code: 3, once: true}}, {say: b}]
  - when: {prompt: fix}
    repeat: true
    steps: [{say: c}]
";

    fn said(session: &mut Session, scenario: &Scenario) -> Option<String> {
        match session.next(scenario)? {
            Step::Say(text) => Some(text.clone()),
            other => Some(format!("{other:?}")),
        }
    }

    #[test]
    fn resumed_session_continues_after_its_last_step() {
        let scenario = scenario(TWO);
        let vars = Vars::default();
        let mut session = Session::new("s");
        assert_eq!(session.take(&scenario, &vars, Some("k1"), "go"), Taken::Began);
        session.step_done(&scenario);
        // A `once` crash is stored before the process dies of it.
        session.step_done(&scenario);
        let file = serde_json::to_string(&session).unwrap();

        let mut resumed: Session = serde_json::from_str(&file).unwrap();
        assert_eq!(resumed.take(&scenario, &vars, Some("k1"), "go"), Taken::Known);
        assert_eq!(resumed.take(&scenario, &vars, Some("k2"), "go on"), Taken::WentOn);
        assert_eq!(said(&mut resumed, &scenario).as_deref(), Some("b"));
        assert_eq!(resumed.open.as_ref().unwrap().prompt, "go");
        resumed.step_done(&scenario);
        assert_eq!(said(&mut resumed, &scenario), None);
    }

    #[test]
    fn prompt_takes_the_first_matching_turn() {
        let scenario = scenario(TWO);
        let vars = Vars::default();
        let mut session = Session::new("s");
        let mut turn = |text: &str| {
            session.take(&scenario, &vars, None, text);
            let turn = session.open.as_ref().unwrap().turn;
            session.turn_over();
            turn
        };
        assert_eq!(
            [turn("do it"), turn("please fix"), turn("fix again"), turn("thanks")],
            [0, 1, 1, 2]
        );
    }

    #[test]
    fn a_crash_that_is_not_once_happens_every_time() {
        let scenario = scenario("{v: 1, turns: [{steps: [{crash: {signal: KILL}}]}]}");
        let mut session = Session::new("s");
        session.take(&scenario, &Vars::default(), None, "go");
        assert!(matches!(session.next(&scenario), Some(Step::Crash(_))));
        let mut resumed = session.clone();
        assert!(matches!(resumed.next(&scenario), Some(Step::Crash(_))));
    }
}
