//! The pending effects of a run. They follow from the state alone, and each may be carried out
//! twice.

use crate::spec_run::event::{Phase, Purpose};
use crate::spec_run::judge::JudgeResult;
use crate::spec_run::state::{Job, JudgeStage, Run};
use jiff::Timestamp;

#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Copy the spec, hash it, and create the hub and the integration branch.
    Freeze,
    /// Hash the criteria that a person wrote.
    SealGiven,
    /// Read the beads of the run: existing ones by label, or those of the decomposition agent.
    Gather { made: bool },
    /// Turn staged beads into beads of the run.
    AcceptBeads,
    /// Ensure that the agent's worktree and dispatch exist, and report its end.
    Agent(Job),
    /// Terminate the agent.
    End(Job),
    /// Check whether blockers outside the run have been closed.
    LookOutside,
    /// Apply the verdict with this number to the bead store.
    ApplyVerdict { iteration: u32, verdict: u32, result: Box<JudgeResult> },
    /// Fetch the branch into the user's repository, and make the pull request.
    Finish,
    /// Wake the run at this time.
    WakeAt(Timestamp),
}

pub fn effects(run: &Run) -> Vec<Effect> {
    if !run.is_live() {
        return vec![];
    }
    if run.stopping.is_some() {
        return run.jobs.values().cloned().map(Effect::End).collect();
    }
    let mut effects: Vec<Effect> = run.jobs.values().cloned().map(Effect::Agent).collect();
    match run.phase {
        Phase::Freeze if run.frozen.is_none() => effects.push(Effect::Freeze),
        Phase::Freeze if run.sealed.is_none() && run.job_of(Purpose::Acceptance).is_none() => {
            effects.extend(run.settings.acceptance_path.is_some().then_some(Effect::SealGiven));
        }
        Phase::Decompose if run.beads.is_empty() || run.anew => {
            let made = run.started.bead_label.is_none() && !run.anew;
            if !made || run.decomposed {
                effects.push(Effect::Gather { made });
            }
        }
        Phase::Decompose if !run.accepted => effects.push(Effect::AcceptBeads),
        Phase::Implement => {
            let idle = run.jobs.is_empty() && run.schedule.next().is_none();
            if idle && run.beads.values().any(|task| !task.outside.is_empty()) {
                effects.push(Effect::LookOutside);
            }
        }
        Phase::Judge => {
            if let JudgeStage::Apply(result) = &run.judge {
                let verdict = run.verdicts.len() as u32;
                effects.push(Effect::ApplyVerdict {
                    iteration: run.iteration,
                    verdict,
                    result: result.clone(),
                });
            }
        }
        Phase::Finish => effects.push(Effect::Finish),
        _ => {}
    }
    effects.extend(run.not_before.map(Effect::WakeAt));
    if let Some(limit) = run.settings.max_runtime_s {
        let left = (limit as i64 * 1000).saturating_sub(run.ran_ms);
        effects.extend(
            Timestamp::from_millisecond(run.running_since.as_millisecond().saturating_add(left))
                .ok()
                .map(Effect::WakeAt),
        );
    }
    effects
}
