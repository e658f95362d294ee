//! The real `claude`, isolated from everything but the scripted model.

use crate::World;
use crate::model_server::ModelServer;
use crate::skip::skip;
use std::path::{Path, PathBuf};

/// Returns the pinned binary, or `None` after a report that `test` is skipped.
pub fn binary(test: &str) -> Option<PathBuf> {
    // A checkout without its lock file is broken, so this is no reason to skip.
    xtask::agents::installed().expect("the lock file of the agent CLIs");
    match xtask::agents::install() {
        Ok(agents) => Some(agents.claude()),
        Err(failure) => {
            skip(test, &failure.to_string());
            None
        }
    }
}

/// Puts `claude` on the world's `PATH`.
pub fn link(world: &World, binary: &Path) {
    std::os::unix::fs::symlink(binary, world.bin().join("claude")).expect("a link to claude");
}

/// Returns the environment variables that isolate the CLI.
pub fn variables(server: &ModelServer) -> Vec<(&'static str, String)> {
    let on = || "1".to_string();
    vec![
        ("ANTHROPIC_BASE_URL", server.url()),
        ("ANTHROPIC_API_KEY", "dummy".into()),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", on()),
        ("DISABLE_AUTOUPDATER", on()),
        ("DISABLE_TELEMETRY", on()),
        ("DISABLE_ERROR_REPORTING", on()),
        // Without this, Claude Code refuses `--dangerously-skip-permissions` to root.
        ("IS_SANDBOX", on()),
    ]
}

/// Returns the same variables as `--env K=V` options of `muleteer spawn`.
pub fn env_options(server: &ModelServer) -> Vec<String> {
    variables(server)
        .into_iter()
        .flat_map(|(name, value)| ["--env".into(), format!("{name}={value}")])
        .collect()
}
