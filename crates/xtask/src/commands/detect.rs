//! `cargo xtask detect`: replays recorded streams of agents through the monitors
//! (docs/monitors.md). The replay is an example of the crate `model`, because nothing here depends
//! on the product.

use std::process::ExitCode;
use xtask::workspace;

/// Exits with 2 for a file that is no stream or cannot be read.
pub fn run(args: &[String]) -> ExitCode {
    let mut cargo = workspace::cargo();
    if let Ok(here) = std::env::current_dir() {
        // A relative `--dir` begins here.
        cargo.current_dir(here);
    }
    let manifest = workspace::root().join("Cargo.toml");
    cargo.args(["run", "--quiet", "--manifest-path"]).arg(manifest);
    cargo.args(["-p", "muleteer-model", "--example", "detect", "--"]).args(args);
    match cargo.status() {
        Ok(status) => {
            ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(4))
        }
        Err(error) => {
            eprintln!("xtask: detect: {error}");
            ExitCode::from(4)
        }
    }
}
