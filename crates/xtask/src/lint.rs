//! `cargo xtask lint`: fails on any warning.

use xtask::{Failure, workspace};

pub fn run() -> Result<(), Failure> {
    // This comes first, because it takes a second and needs no build.
    crate::style::run(&[])?;
    workspace::run(workspace::cargo().args(["fmt", "--all", "--check"]))?;
    let clippy = ["clippy", "--workspace", "--all-targets", "--features", xtask::binaries::FEATURE];
    workspace::run(workspace::cargo().args(clippy).args(["--", "-D", "warnings"]))?;
    // It also checks without the test-only feature: the code of users' builds must be clean.
    workspace::run(workspace::cargo().args(["clippy", "--workspace", "--", "-D", "warnings"]))?;
    let docs = ["doc", "--workspace", "--no-deps", "--document-private-items"];
    workspace::run(workspace::cargo().args(docs).env("RUSTDOCFLAGS", "-D warnings"))?;
    eprintln!("xtask: lint is clean");
    Ok(())
}
