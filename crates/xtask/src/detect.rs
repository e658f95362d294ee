//! `cargo xtask detect`: recorded streams of agents through the monitors (docs/monitors.md). The
//! replay is an example of the `model`, since nothing here depends on the product.

use std::process::ExitCode;
use xtask::workspace;

/// Exit 2 for what is no stream, and what cannot be read.
pub fn run(args: &[String]) -> ExitCode {
    let mut cargo = workspace::cargo();
    if let Ok(here) = std::env::current_dir() {
        // Where a relative `--dir` begins.
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
