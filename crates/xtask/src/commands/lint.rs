//! `cargo xtask lint`: fails on any warning.

use xtask::{Failure, workspace};

/// Selects an example. Beside one, cargo gives every dependency the features that tests need, so
/// that the later checks find the dependencies as the first one left them, and check none again.
const AS_IN_TESTS: [&str; 2] = ["--example", "detect"];

pub fn run() -> Result<(), Failure> {
    // This comes first, because it takes a second and needs no build.
    super::style::run(&[])?;
    super::style::subjects::run(&workspace::root())?;
    workspace::run(workspace::cargo().args(["fmt", "--all", "--check"]))?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--features", xtask::binaries::FEATURE];
    workspace::run(workspace::cargo().args(clippy).args(["--", "-D", "warnings"]))?;
    // It also checks without the test-only feature: the code of users' builds must be clean.
    let clippy = ["clippy", "--workspace", "--lib", "--bins"];
    let mut cargo = workspace::cargo();
    workspace::run(cargo.args(clippy).args(AS_IN_TESTS).args(["--", "-D", "warnings"]))?;
    let docs = ["doc", "--workspace", "--no-deps", "--document-private-items", "--lib"];
    // The other programs have the name of their library.
    let programs = ["--bin", "muleteer", "--bin", "oracles"];
    let mut cargo = workspace::cargo();
    cargo.args(docs).args(programs).args(AS_IN_TESTS).env("RUSTDOCFLAGS", "-D warnings");
    workspace::run(&mut cargo)?;
    eprintln!("xtask: lint is clean");
    Ok(())
}
