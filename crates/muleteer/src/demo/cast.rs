//! The cast: the beads of the demo's run, the cost of each, and every effect that must be present
//! exactly once afterwards.

use muleteer_model::spec_run::event::Purpose;

pub const SCENARIO: &str = include_str!("run.yaml");

/// The part of one bead.
#[derive(Debug)]
pub struct Part {
    /// The name of the bead in the demo and in its gates.
    pub key: &'static str,
    pub title: &'static str,
    /// The subjects of its commits, oldest first.
    pub commits: &'static [&'static str],
    /// Lines that the bead *appends*, so that work done twice would add them twice.
    pub lines: &'static [(&'static str, &'static str)],
    /// The text that the bead writes into its journal, if any.
    pub journal: &'static str,
    /// The total cost of its model calls.
    pub cost_usd: f64,
    /// An agent works on the bead when the daemon is killed.
    pub outlives: bool,
}

/// The bead whose agent is killed, and the cost of that agent until then.
pub const VICTIM: &str = "slug";
pub const KILLED_USD: f64 = 0.03;

pub const CAST: [Part; 4] = [
    Part {
        key: "slug",
        title: "Add slug",
        commits: &["Add slug", "Tell of slug in the changes"],
        lines: &[("CHANGES.md", "- slug: a title as the name of a file")],
        journal: "Chose tr over awk: it is everywhere.",
        cost_usd: 0.05,
        outlives: true,
    },
    Part {
        key: "test",
        title: "Test words",
        commits: &["Test words", "Test words at its limits"],
        lines: &[
            ("tests/words.sh", r#"same "$(words '')" 0 "nothing has no words""#),
            (
                "tests/words.sh",
                r#"same "$(words '  *  ')" 1 "a star is a word, not a list of files""#,
            ),
        ],
        journal: "Took the empty text and a star as the limits that matter.",
        cost_usd: 0.025,
        outlives: true,
    },
    Part {
        key: "readme",
        title: "Show both in the README",
        commits: &["Show slug and words in the README"],
        lines: &[(
            "README.md",
            "`slug 'Hello, World'` prints `hello-world`; `words 'one two'` prints `2`.",
        )],
        journal: "",
        cost_usd: 0.01,
        outlives: false,
    },
    Part {
        key: "dash",
        title: "Take the dash off the ends of a slug",
        commits: &["Take the dash off a slug's ends"],
        lines: &[],
        journal: "",
        cost_usd: 0.01,
        outlives: false,
    },
];

/// Returns the beads that agents work on when the daemon is killed.
pub fn survivors() -> impl Iterator<Item = &'static Part> {
    CAST.iter().filter(|part| part.outlives)
}

/// Returns the cost of the model calls of one agent without a bead.
pub fn price(purpose: Purpose) -> f64 {
    match purpose {
        Purpose::Review | Purpose::Acceptance => 0.01,
        Purpose::Decompose | Purpose::Judge => 0.02,
        Purpose::Maintain | Purpose::Structure => 0.005,
        Purpose::Implement | Purpose::Unknown => 0.0,
    }
}

/// The gates at which agents wait (`hold.sh`), in order. Only the victim reaches this one.
pub const CRASH: &str = "crash";
/// All survivors wait here when the daemon is killed. The gate is opened while no daemon is alive.
pub const OUTAGE: &str = "outage";
/// The survivors wait here until the next daemon has adopted them.
pub const ADOPTED: &str = "adopted";

#[cfg(test)]
mod tests {
    use super::*;
    use muleteer_rehearsal::scenario::Scenario;

    #[test]
    fn demo_scenario_is_valid_and_matches_the_checks() {
        let scenario = Scenario::parse(SCENARIO, "run").expect("a scenario");
        // The turns are the criteria, the decomposition, four beads, maintenance, the judge and its
        // two verdicts.
        assert_eq!(scenario.turns.len(), 10);
        for part in CAST {
            for text in part.commits.iter().chain([&part.journal, &part.title]) {
                assert!(SCENARIO.contains(text), "{}: {text}", part.key);
            }
            for gate in [OUTAGE, ADOPTED] {
                let waits = SCENARIO.contains(&format!("hold\" {} {gate},", part.key));
                assert_eq!(waits, part.outlives, "{} at {gate}", part.key);
            }
        }
    }
}
