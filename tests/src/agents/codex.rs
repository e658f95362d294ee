//! The real `codex`, isolated from everything but the scripted model.

use crate::World;
use crate::model_server::ModelServer;
use crate::skip::skip;
use std::path::PathBuf;

/// Returns the pinned binary, or `None` after a report that `test` is skipped.
pub fn binary(test: &str) -> Option<PathBuf> {
    // A checkout without its lock file is broken, so this is no reason to skip.
    xtask::agents::installed().expect("the lock file of the agent CLIs");
    match xtask::agents::install() {
        Ok(agents) => Some(agents.codex()),
        Err(failure) => {
            skip(test, &failure.to_string());
            None
        }
    }
}

/// Puts `codex` on the world's `PATH`, and makes a home whose configuration knows only `server`.
pub fn install(world: &World, binary: &PathBuf, server: &ModelServer) {
    std::os::unix::fs::symlink(binary, world.bin().join("codex")).expect("a link to codex");
    std::fs::create_dir(home(world)).expect("a home for codex");
    let config = format!(
        "model_provider = \"scripted\"\n\
         [model_providers.scripted]\n\
         name = \"scripted\"\n\
         base_url = \"{}/v1\"\n\
         wire_api = \"responses\"\n\
         env_key = \"OPENAI_API_KEY\"\n\
         request_max_retries = 1\n\
         stream_max_retries = 2\n\
         [features]\n\
         plugins = false\n",
        server.url()
    );
    std::fs::write(home(world).join("config.toml"), config).expect("the configuration of codex");
}

/// Returns `CODEX_HOME`, which has the sessions.
pub fn home(world: &World) -> PathBuf {
    world.path().join("codex")
}

/// Returns the variables that isolate the CLI, as `--env K=V` options of `muleteer spawn`.
pub fn env_options(world: &World) -> Vec<String> {
    let home = format!("CODEX_HOME={}", home(world).display());
    vec!["--env".into(), home, "--env".into(), "OPENAI_API_KEY=dummy".into()]
}
