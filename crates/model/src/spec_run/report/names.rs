//! Names of a run's beads for people, and the command that continues a run.

use crate::beads::named;
use crate::spec_run::event::RunStatus;
use crate::spec_run::state::Run;

impl Run {
    /// Returns the title of a bead, an observation or the bead of a maintenance run.
    pub fn title_of(&self, id: &str) -> Option<&str> {
        let planned = self.beads.get(id).map(|task| task.planned.title.as_str());
        let noted = || self.observations.titles.get(id).map(String::as_str);
        let maintained = || self.maintenance.runs.iter().any(|one| one.bead_id == id);
        planned.or_else(noted).or_else(|| maintained().then_some(MAINTENANCE))
    }

    /// Returns a bead for a sentence: `"Parse dates" (xk9e8v2e)`, or the id if its title is
    /// unknown.
    pub fn named(&self, id: &str) -> String {
        named(id, self.title_of(id))
    }

    /// Returns beads of which each waits for the next one.
    pub fn chain<'a>(&self, ids: impl IntoIterator<Item = &'a String>) -> String {
        ids.into_iter().map(|id| self.named(id)).collect::<Vec<_>>().join(" → ")
    }

    /// Returns the command that continues the run. If the run waits for an approval, or will wait
    /// for one at once, the command approves.
    pub fn resume_command(&self) -> String {
        let waits = self.status() == RunStatus::AwaitingApproval;
        // A dry run rests before the approval of its beads.
        let unapproved = self.settings.human_review && !self.approved && self.has_accepted_beads();
        let yes = if waits || (unapproved && !self.is_live()) { " --yes" } else { "" };
        format!("muleteer run --resume {}{yes}", self.id())
    }
}

/// The title of a bead of maintenance.
pub const MAINTENANCE: &str = "Maintenance";
