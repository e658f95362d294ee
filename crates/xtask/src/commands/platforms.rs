//! `cargo xtask platforms`: checks that the product compiles for platforms on which no test runs:
//! macOS, another processor, another C library.
//!
//! `cargo check` links nothing, so the C in our dependencies needs no headers and no tools: their
//! build scripts get a compiler that makes empty objects. The tests' own crates support only the
//! tested platform, and are left out.
//!
//! It needs each target's standard library, which `rustup` fetches. If one cannot be had it reports
//! a skip, which is no failure (`--require` makes it one).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use xtask::{Failure, workspace};

const TARGETS: [&str; 3] =
    ["aarch64-apple-darwin", "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-musl"];

/// The time limit of a download: a standard library has 30 MB, and without network rustup retries
/// for long.
const PATIENCE: Duration = Duration::from_secs(180);

/// A compiler that makes the file after `-o`, or each archive that is named, and compiles nothing.
const NO_COMPILER: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
    case "$1" in
        -o) shift; : > "$1" ;;
        *.a) : > "$1" ;;
    esac
    shift
done
"#;

pub fn run(args: &[String]) -> Result<(), Failure> {
    let require = match args {
        [] => false,
        [flag] if flag == "--require" => true,
        _ => return Err("platforms takes only --require".into()),
    };
    let none = no_compiler()?;
    // One cargo checks all targets, so that the crates of one fill the pauses of another.
    let mut cargo = workspace::cargo();
    cargo.args(["check", "-p", "muleteer"]).env("RUSTFLAGS", "-D warnings");
    let mut checked = vec![];
    for target in TARGETS {
        if let Err(why) = library(target) {
            if require {
                return Err(format!("{target} cannot be checked here: {why}").into());
            }
            eprintln!("SKIPPED: platforms: {why}");
            continue;
        }
        cargo.args(["--target", target]);
        for tool in ["CC", "AR", "RANLIB"] {
            cargo.env(format!("{tool}_{}", target.replace('-', "_")), &none);
        }
        checked.push(target);
    }
    if !checked.is_empty() {
        workspace::run(&mut cargo)?;
        eprintln!("xtask: it compiles for {}", checked.join(", "));
    }
    Ok(())
}

/// Fetches the standard library of a target if it is missing.
fn library(target: &str) -> Result<(), Failure> {
    let output = Command::new("rustc")
        .args(["--print", "sysroot"])
        .current_dir(workspace::root())
        .output()
        .map_err(|error| format!("rustc: {error}"))?;
    let library =
        Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("lib/rustlib").join(target);
    if library.exists() {
        return Ok(());
    }
    let mut rustup = Command::new("rustup");
    rustup.args(["target", "add", target]).current_dir(workspace::root()).stdin(Stdio::null());
    let mut fetching = rustup
        .spawn()
        .map_err(|error| format!("the target {target} is not installed, and rustup: {error}"))?;
    let begun = Instant::now();
    let ended = loop {
        match fetching.try_wait() {
            Ok(None) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(100))
            }
            ended => break ended,
        }
    };
    match ended {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(format!("rustup target add {target}: {status}").into()),
        _ => {
            let _ = fetching.kill().and_then(|()| fetching.wait());
            let limit = PATIENCE.as_secs();
            Err(format!("rustup target add {target}: not done after {limit} s").into())
        }
    }
}

fn no_compiler() -> Result<PathBuf, Failure> {
    let path = workspace::target_dir()?.join("no-compiler");
    fs::write(&path, NO_COMPILER)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}
