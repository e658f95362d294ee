//! The ranges of configuration values, as messages name them.

/// The keys whose numbers have a range of their own. A `*` stands for any name.
const RANGES: [(&str, &str); 9] = [
    ("pool.max_agents", "a number from 1 to 1000"),
    ("pool.max_depth", "a number from 0 to 100"),
    ("categories.*.max_turns", "a number of at least 1, or null for no limit"),
    ("categories.*.max_restarts", "a number from 0 to 1000"),
    ("run.agent.max_concurrency", "a number of at least 1"),
    ("run.phases.maintain.n", "a number of at least 1"),
    ("run.phases.maintain.max_concurrency", "a number of at least 1"),
    ("run.phases.judge.max_iterations", "a number of at least 1"),
    ("retention.output_mib", "a number from 0 to 256"),
];

/// Returns the range of the key at `path`, if it has one of its own.
pub(super) fn of(path: &[impl AsRef<str>]) -> Option<&'static str> {
    let fits = |pattern: &str| {
        let parts: Vec<_> = pattern.split('.').collect();
        parts.len() == path.len()
            && parts
                .iter()
                .zip(path)
                .all(|(part, key)| *part == "*" || *part == key.as_ref().replace('-', "_"))
    };
    RANGES.iter().find(|(pattern, _)| fits(pattern)).map(|(_, range)| *range)
}
