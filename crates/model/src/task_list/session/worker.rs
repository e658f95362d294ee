//! The state machine of one worker of a run. Its state is in the run, folded from the events.
//!
//! ```text
//!   idle ──Begin──▶ begun ──Judge──▶ judged ──Close──▶ idle
//!                     │               │  ▲
//!                     │               └──┘ Judge: its work cannot land
//!                     └────────────Close─────────────▶ idle
//! ```

use crate::event::Event;
use crate::event::id::DispatchId;
use crate::task_list::session::{Run, Verdict, Work};

/// The result of a worker's step, as its effect reports it.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// It takes a task.
    Begin { task: String, dispatch: DispatchId, base: String, resumed: bool },
    /// The attempt is judged, perhaps again.
    Judge(Verdict),
    /// The task is over for this worker, and its outcome is in the list.
    Close { status: String, message: String, counted: bool },
}

/// The next step of a worker. A daemon that was killed during a step repeats it, so each step first
/// finds out how far it came.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Take a task, or wait for one.
    Take,
    /// Take the task from its present state, which the list has, to its verdict or its end.
    GoOn(Work),
    /// Carry out a verdict that this worker has just made.
    Conclude(Work, Verdict),
}

/// The idempotency key of an effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EffectKey {
    /// The number of steps that the worker has ended. It looks for a task again after each.
    Take {
        steps: u64,
    },
    GoOn {
        dispatch: DispatchId,
    },
    Conclude {
        dispatch: DispatchId,
        passed: bool,
    },
}

impl Effect {
    pub fn key(&self, steps: u64) -> EffectKey {
        match self {
            Self::Take => EffectKey::Take { steps },
            Self::GoOn(work) => EffectKey::GoOn { dispatch: work.dispatch.clone() },
            Self::Conclude(work, verdict) => {
                EffectKey::Conclude { dispatch: work.dispatch.clone(), passed: verdict.passed }
            }
        }
    }
}

/// Decides the event that records the result of a step. A result that the state has no use for
/// gives none.
pub fn decide(run: &Run, worker: u32, input: Input) -> Option<Event> {
    let list = run.started.list.clone();
    match (input, run.workers.get(&worker)) {
        (Input::Begin { task, dispatch, base, resumed }, None) => {
            Some(Event::TaskBegun { list, worker, task, dispatch, base, resumed })
        }
        (Input::Judge(verdict), Some(work)) => {
            Some(Event::TaskJudged { list, worker, task: work.task.clone(), verdict })
        }
        (Input::Close { status, message, counted }, Some(work)) => {
            let task = work.task.clone();
            Some(Event::TaskEnded { list, worker, task, status, message, counted })
        }
        (Input::Begin { .. }, Some(_)) | (Input::Judge(_) | Input::Close { .. }, None) => None,
    }
}

/// Returns the effect that is due. `judged` is the dispatch of the work that this incarnation of
/// the worker has judged: only then is the state of its list known.
pub fn effect(run: Option<&Run>, worker: u32, judged: Option<&DispatchId>) -> Effect {
    let Some(work) = run.and_then(|run| run.workers.get(&worker)) else { return Effect::Take };
    match &work.verdict {
        Some(verdict) if judged == Some(&work.dispatch) => {
            Effect::Conclude(work.clone(), verdict.clone())
        }
        _ => Effect::GoOn(work.clone()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::task_list::session::Started;
    use std::collections::BTreeMap;

    const WORKER: u32 = 3;

    fn run() -> Run {
        let started = Started {
            list: "l".into(),
            root: "/r".into(),
            concurrency: 1,
            max_tasks: None,
            branch: None,
            role: "developer".into(),
            backend: None,
            by: "operator".into(),
            trace: None,
        };
        Run {
            started,
            created_seq: 1,
            session: Some(1),
            workers: BTreeMap::new(),
            done: 0,
            stopping: None,
            stopped_by: String::new(),
            finished: None,
        }
    }

    fn dispatch() -> DispatchId {
        DispatchId::try_from("abcd2345".to_string()).unwrap()
    }

    fn begin() -> Input {
        Input::Begin { task: "t".into(), dispatch: dispatch(), base: "b".into(), resumed: false }
    }

    fn judge(passed: bool) -> Input {
        Input::Judge(Verdict { passed, category: None, message: String::new() })
    }

    fn close() -> Input {
        Input::Close { status: "completed".into(), message: String::new(), counted: true }
    }

    fn apply(run: &mut Run, input: Input) {
        let event = decide(run, WORKER, input).unwrap();
        run.apply(&event);
    }

    #[test]
    fn task_is_begun_judged_and_closed_in_turn() {
        let mut run = run();
        assert_eq!(effect(Some(&run), WORKER, None), Effect::Take);
        apply(&mut run, begin());
        let work = run.workers[&WORKER].clone();
        assert_eq!(effect(Some(&run), WORKER, None), Effect::GoOn(work));
        apply(&mut run, judge(true));
        let judged = dispatch();
        let due = effect(Some(&run), WORKER, Some(&judged));
        assert!(matches!(due, Effect::Conclude(_, Verdict { passed: true, .. })), "{due:?}");
        apply(&mut run, close());
        assert_eq!(effect(Some(&run), WORKER, Some(&judged)), Effect::Take);
        assert_eq!(run.done, 1);
    }

    /// Work that passed and cannot land has failed, and its failure is carried out as well.
    #[test]
    fn second_verdict_has_another_key() {
        let mut run = run();
        apply(&mut run, begin());
        let keys = [true, false].map(|passed| {
            apply(&mut run, judge(passed));
            effect(Some(&run), WORKER, Some(&dispatch())).key(0)
        });
        assert_ne!(keys[0], keys[1]);
    }

    /// An earlier daemon judged the work, and may have changed the list before it was killed.
    #[test]
    fn verdict_of_an_earlier_daemon_is_checked_against_the_list() {
        let mut run = run();
        apply(&mut run, begin());
        apply(&mut run, judge(true));
        assert!(matches!(effect(Some(&run), WORKER, None), Effect::GoOn(_)));
    }

    #[test]
    fn results_that_do_not_fit_the_state_are_ignored() {
        let mut run = run();
        for input in [judge(true), close()] {
            assert_eq!(decide(&run, WORKER, input), None);
        }
        apply(&mut run, begin());
        assert_eq!(decide(&run, WORKER, begin()), None);
        assert_eq!(effect(None, WORKER, None), Effect::Take, "the run is gone");
    }
}
