//! The pending effects of a run. They follow from the state alone, and each may be carried out
//! twice.

use crate::spec_run::event::Purpose;
use crate::spec_run::judge::JudgeResult;
use crate::spec_run::state::{Decomposition, Job, JudgeStage, PhaseState, Run};
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
    if run.stopping().is_some() {
        return run.jobs.values().cloned().map(Effect::End).collect();
    }
    let mut effects: Vec<Effect> = run.jobs.values().cloned().map(Effect::Agent).collect();
    effects.extend(of_the_phase(run));
    effects.extend(run.not_before().map(Effect::WakeAt));
    if let Some(limit) = run.settings.max_runtime_s {
        let left = (limit as i64 * 1000).saturating_sub(run.runtime.before_ms);
        effects.extend(
            Timestamp::from_millisecond(run.runtime.since.as_millisecond().saturating_add(left))
                .ok()
                .map(Effect::WakeAt),
        );
    }
    effects
}

/// The idempotency key of an effect, which is carried out once for its key. The key has nothing
/// that can change while the effect runs, as a resumption would: two effects of one kind would
/// conflict.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EffectKey {
    /// The version of the spec.
    Freeze(u32),
    /// The version of the spec.
    SealGiven(u32),
    Gather {
        made: bool,
        spawns: u32,
        /// The resumption since which the beads are read again; 0 if they are read once.
        sitting: u32,
    },
    /// The version of the spec.
    AcceptBeads(u32),
    /// The dispatch of the agent.
    Agent(String),
    End(String),
    /// The number of the run's last event.
    LookOutside(u64),
    /// The number of the verdict.
    ApplyVerdict(u32),
    Finish,
    WakeAt(Timestamp),
}

impl Effect {
    pub fn key(&self, run: &Run) -> EffectKey {
        match self {
            Self::Freeze => EffectKey::Freeze(run.versions.current),
            Self::SealGiven => EffectKey::SealGiven(run.versions.current),
            Self::Gather { made } => EffectKey::Gather {
                made: *made,
                spawns: run.spawns,
                sitting: if run.rereads_beads() { run.sitting } else { 0 },
            },
            Self::AcceptBeads => EffectKey::AcceptBeads(run.versions.current),
            Self::Agent(job) => EffectKey::Agent(job.start.dispatch.clone()),
            Self::End(job) => EffectKey::End(job.start.dispatch.clone()),
            Self::LookOutside => EffectKey::LookOutside(run.seq),
            Self::ApplyVerdict { verdict, .. } => EffectKey::ApplyVerdict(*verdict),
            Self::Finish => EffectKey::Finish,
            Self::WakeAt(at) => EffectKey::WakeAt(*at),
        }
    }
}

/// Returns the effect that the phase needs beside its agents.
fn of_the_phase(run: &Run) -> Option<Effect> {
    match &run.phase {
        PhaseState::Freeze => {
            if run.is_unfrozen() {
                return (!run.awaits_review()).then_some(Effect::Freeze);
            }
            let given = run.settings.acceptance_path.is_some();
            let unsealed = run.sealed.is_none() && run.job_of(Purpose::Acceptance).is_none();
            (given && unsealed).then_some(Effect::SealGiven)
        }
        PhaseState::Decompose(Decomposition::Pending { decomposed }) => {
            let made = run.plans_beads();
            (!made || *decomposed).then_some(Effect::Gather { made })
        }
        PhaseState::Decompose(Decomposition::Planned) => Some(Effect::AcceptBeads),
        PhaseState::Decompose(Decomposition::Accepted { reread }) => {
            reread.then_some(Effect::Gather { made: false })
        }
        PhaseState::Implement => {
            let idle = run.jobs.is_empty() && run.schedule.next().is_none();
            let waits = idle && run.beads.values().any(|task| !task.outside.is_empty());
            waits.then_some(Effect::LookOutside)
        }
        PhaseState::Judge(JudgeStage::Apply(result)) => Some(Effect::ApplyVerdict {
            iteration: run.iteration,
            verdict: run.verdicts.len() as u32,
            result: result.clone(),
        }),
        PhaseState::Judge(JudgeStage::Reason { .. } | JudgeStage::Structure { .. }) => None,
        PhaseState::Finish => (!run.awaits_merge()).then_some(Effect::Finish),
        PhaseState::Unknown => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Found by the crash campaign: a resumption during the end of a run started the end a second
    /// time at once.
    #[test]
    fn resume_request_keeps_the_keys_of_effects() {
        let samples = include_str!("../../../store/samples/events-v1.jsonl");
        let started =
            samples.lines().find(|line| line.contains(r#""event":"run_started""#)).unwrap();
        let before = Run::begin(&serde_json::from_str(started).unwrap()).unwrap();
        let mut after = before.clone();
        after.runtime.since += std::time::Duration::from_secs(60);
        let effects = [Effect::Finish, Effect::Freeze, Effect::SealGiven, Effect::AcceptBeads];
        for effect in effects {
            assert_eq!(effect.key(&before), effect.key(&after));
        }
    }
}
