//! The real `tbd`, which stores beads.

use crate::skip::skip;
use crate::{Repo, World};
use std::path::Path;
use std::process::Command;
use xtask::agents::Agents;

/// Returns the pinned set of CLIs, or `None` after a report that `test` is skipped.
pub fn pinned(test: &str) -> Option<Agents> {
    // A checkout without its lock file is broken, so this is no reason to skip.
    xtask::agents::installed().expect("the lock file of the agent CLIs");
    match xtask::agents::install() {
        Ok(agents) => Some(agents),
        Err(failure) => {
            skip(test, &failure.to_string());
            None
        }
    }
}

/// Puts `tbd` on the world's `PATH`, and sets it up in the repository with the id prefix `sup-`.
pub fn install(world: &World, repo: &Repo, agents: &Agents) {
    let program = world.bin().join("tbd");
    let script = format!(
        "#!/bin/sh\nexec '{}' '{}' \"$@\"\n",
        agents.node().display(),
        agents.tbd().display()
    );
    crate::program::write(&program, &script);
    init(&program, &repo.path, &world.home());
}

/// Runs `tbd init` in a repository.
pub fn init(program: &Path, repo: &Path, home: &Path) {
    let output = Command::new(program)
        .args(["init", "--prefix=sup", "--quiet"])
        .current_dir(repo)
        .env("HOME", home)
        .output()
        .expect("tbd runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
