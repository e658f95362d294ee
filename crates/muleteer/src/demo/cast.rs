//! Who plays: three roles, what each is asked, its scenario, and every effect that must be found
//! afterwards, once.

/// One agent's part.
#[derive(Debug)]
pub struct Part {
    pub role: &'static str,
    pub prompt: &'static str,
    pub scenario: &'static str,
    /// Subjects of its commits, oldest first.
    pub commits: &'static [&'static str],
    /// Files of its branch that differ from where it began, sorted.
    pub files: &'static [&'static str],
    /// Lines it *appends*, so that work done twice would stand there twice.
    pub lines: &'static [(&'static str, &'static str)],
    /// What it writes into its journal.
    pub journal: &'static str,
    /// What all its model calls cost together, before and after whatever happens to it.
    pub cost_usd: f64,
}

/// The one that is killed.
pub const VICTIM: &str = "developer";

pub const CAST: [Part; 3] = [
    Part {
        role: "developer",
        prompt: "Add a function `slug` to lib/: a title as the name of a file. Note it in CHANGES.md and README.md.",
        scenario: include_str!("developer.yaml"),
        commits: &["Add slug, a title as the name of a file", "Tell of slug in the README"],
        files: &["CHANGES.md", "README.md", "lib/slug.sh"],
        lines: &[
            ("CHANGES.md", "- slug: a title as the name of a file"),
            ("README.md", "`slug 'Hello, World'` prints `hello-world`."),
        ],
        journal: "Chose tr and sed over awk: they are everywhere.",
        cost_usd: 0.05,
    },
    Part {
        role: "tester",
        prompt: "Test `words` in lib/words.sh, at its limits too, and leave the tests in tests/.",
        scenario: include_str!("tester.yaml"),
        commits: &["Test words", "Test words at its limits"],
        files: &["tests/words.sh"],
        lines: &[
            ("tests/words.sh", r#"same "$(words '')" 0 "nothing has no words""#),
            ("tests/words.sh", r#"same "$(words '  *  ')" 1 "a star is a word, not a list of files""#),
        ],
        journal: "Took the empty text and a star as the limits that matter.",
        cost_usd: 0.025,
    },
    Part {
        role: "reviewer",
        prompt: "Review lib/words.sh and write what you find to reviews/words.md, most serious first.",
        scenario: include_str!("reviewer.yaml"),
        commits: &["Review lib/words.sh"],
        files: &["reviews/words.md"],
        lines: &[
            (
                "reviews/words.md",
                "1. It splits at the caller's IFS; with `IFS=:` the text `a:b` has 2 words. Reset it inside.",
            ),
            (
                "reviews/words.md",
                "2. It ends with `set +f`, also where the caller had globbing off. Keep what was set.",
            ),
        ],
        journal: "Tried the IFS suspicion out before writing it down.",
        cost_usd: 0.025,
    },
];

/// Gates an agent waits at (`hold.sh`), in order. Only the victim comes to the first.
pub const CRASH: &str = "crash";
/// All wait here when the daemon is killed; it is opened while none is alive.
pub const OUTAGE: &str = "outage";
/// All wait here until the next daemon has adopted them.
pub const ADOPTED: &str = "adopted";

#[cfg(test)]
mod tests {
    use super::*;
    use muleteer_backends::rehearsal::scenario::Scenario;

    #[test]
    fn every_scenario_is_sound_and_does_what_is_looked_for_afterwards() {
        for part in CAST {
            let scenario = Scenario::parse(part.scenario, part.role).expect("a scenario");
            assert_eq!(scenario.turns.len(), 1, "{}: a resumed agent goes on in the same turn", part.role);
            for text in part.commits.iter().chain(part.files).chain([&part.journal]) {
                assert!(part.scenario.contains(text), "{}: {text}", part.role);
            }
            for gate in [OUTAGE, ADOPTED] {
                assert!(part.scenario.contains(&format!("hold\" {gate},")), "{} waits at {gate}", part.role);
            }
        }
    }
}
