//! Decides which variables of the client's environment reach the agent (contract.md, `env.pass`).
//! They are a list of names, because an agent must not see every secret of the user's shell.
//!
//! Variables that Muleteer's own agents set (`MULETEER_SOCKET`, `CLAUDECODE` and other nesting
//! markers) are never passed on. With them the new agent would take itself for the old one.

pub use muleteer_backends::passing::{PUSH, built_in, filter, for_push, passes};
use muleteer_telemetry as telemetry;

/// Variables that Muleteer sets for each agent, or for the agents of a run (contract.md, "Variables
/// every agent gets"). Any other value for them is discarded.
const OURS: &[&str] = &[
    "MULETEER_SOCKET",
    "MULETEER_DISPATCH_ID",
    "MULETEER_ROLE",
    "MULETEER_JOURNAL",
    "MULETEER_PROMPT_FILE",
    "MULETEER_NONCE",
    "MULETEER_PURPOSE",
    "MULETEER_RUN_ID",
    "MULETEER_ITERATION",
    "MULETEER_ATTEMPT",
    "MULETEER_BEAD_ID",
    "MULETEER_TARGET_BRANCH",
    "MULETEER_REMOTE",
    "MULETEER_SPEC_FILE",
    "MULETEER_ACCEPTANCE_DIR",
    "MULETEER_OBSERVATIONS",
    "TRACEPARENT",
];

/// Returns whether only Muleteer may set this variable for an agent.
pub fn is_ours(name: &str) -> bool {
    OURS.contains(&name)
}

/// Returns `TRACESTATE` if there is a valid `TRACEPARENT`; without one it has no meaning.
pub fn trace_state(vars: impl IntoIterator<Item = (String, String)>) -> Option<(String, String)> {
    let (mut parent, mut state) = (None, None);
    for (name, value) in vars {
        match name.as_str() {
            "TRACEPARENT" => parent = telemetry::Context::parse(&value),
            "TRACESTATE" => state = telemetry::trace_state(&value).map(str::to_string),
            _ => {}
        }
    }
    parent.and(state).map(|state| ("TRACESTATE".to_string(), state))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(vars: &[&str], pass: &[&str]) -> Vec<String> {
        let vars = vars.iter().map(|name| ((*name).to_string(), "x".to_string()));
        let pass: Vec<_> = pass.iter().map(|name| (*name).to_string()).collect();
        filter(vars, &pass).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn needed_variables_pass_and_other_secrets_do_not() {
        let vars = [
            "PATH",
            "LC_ALL",
            "ANTHROPIC_API_KEY",
            "https_proxy",
            "DATABASE_URL",
            "GITHUB_TOKEN",
            "MULETEER_SOCKET",
        ];
        assert_eq!(names(&vars, &[]), ["ANTHROPIC_API_KEY", "LC_ALL", "PATH", "https_proxy"]);
    }

    #[test]
    fn trace_state_accompanies_the_trace_parent() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let given = |vars: &[(&str, &str)]| {
            let vars = vars.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string()));
            trace_state(vars).map(|(name, value)| format!("{name}={value}"))
        };
        let state = ("TRACESTATE", "a=b");
        assert_eq!(given(&[state, ("TRACEPARENT", parent)]).as_deref(), Some("TRACESTATE=a=b"));
        for vars in [
            &[state][..],
            &[state, ("TRACEPARENT", "nonsense")],
            &[("TRACEPARENT", parent)],
            &[("TRACEPARENT", parent), ("TRACESTATE", "nonsense")],
        ] {
            assert_eq!(given(vars), None, "{vars:?}");
        }
    }

    #[test]
    fn push_credentials_are_withheld_from_agents() {
        let vars =
            || ["GH_TOKEN", "PATH", "GITHUB_TOKEN"].map(|name| (name.to_string(), "x".to_string()));
        let given: Vec<_> = for_push(vars()).into_iter().map(|(name, _)| name).collect();
        assert_eq!(given, ["GH_TOKEN", "GITHUB_TOKEN"]);
        assert!(PUSH.iter().all(|name| !passes(name, &[])));
        let empty = [("GH_TOKEN".to_string(), String::new())];
        assert_eq!(for_push(empty), [], "set to nothing is not set");
    }

    #[test]
    fn contract_variables_are_set_by_muleteer() {
        let contract = include_str!("../../../../docs/contract.md");
        let (_, section) =
            contract.split_once("## Variables every agent gets\n").expect("the section");
        // The list ends before the paragraph about an agent's answers.
        let (section, _) = section.trim_start().split_once("\n\n").expect("a paragraph");
        let named = section
            .split('`')
            .filter(|word| word.starts_with("MULETEER_") || *word == "TRACEPARENT");
        let named: Vec<_> = named.collect();
        assert!(named.len() > 10 && named.iter().all(|name| is_ours(name)), "{named:?}");
    }

    #[test]
    fn the_configuration_adds_names_and_patterns() {
        assert_eq!(
            names(&["GITHUB_TOKEN", "CARGO_HOME", "OTHER"], &["GITHUB_TOKEN", "CARGO_*"]),
            ["CARGO_HOME", "GITHUB_TOKEN"]
        );
    }

    #[test]
    fn nesting_marks_pass_only_by_their_full_name() {
        let vars = ["CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_USE_BEDROCK"];
        assert_eq!(names(&vars, &[]), ["CLAUDE_CODE_USE_BEDROCK"]);
        assert_eq!(names(&vars, &["CLAUDECODE"]), ["CLAUDECODE", "CLAUDE_CODE_USE_BEDROCK"]);
    }
}
