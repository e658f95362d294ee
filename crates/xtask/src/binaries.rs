//! Builds `muleteer` and `muleteer-shim` with fault points into a folder of their own.
//!
//! They are *copied* out of `target/debug`: otherwise a build without fault points during the tests
//! would exchange the binary below a daemon that is about to start a shim. They share the dev
//! profile's target directory, because a second one costs a second compilation of every dependency
//! (two minutes on two cores), and the feature recompiles only our own crates.

use crate::{Failure, workspace};
use std::path::{Path, PathBuf};

/// The variable that names a folder with built binaries. `cargo xtask test` sets it.
pub const DIR_VARIABLE: &str = "MULETEER_TEST_BIN_DIR";
pub const FEATURE: &str = "muleteer/fault-points";
pub const NAMES: [&str; 2] = ["muleteer", "muleteer-shim"];

/// Returns the folder of both binaries, and builds them first unless [`DIR_VARIABLE`] names one.
///
/// # Errors
/// When they do not build.
pub fn ensure() -> Result<PathBuf, Failure> {
    if let Some(dir) = std::env::var_os(DIR_VARIABLE) {
        return Ok(dir.into());
    }
    build()
}

/// Builds only the two, and copies them to `target/system-test`.
///
/// # Errors
/// When cargo fails or a file cannot be copied.
pub fn build() -> Result<PathBuf, Failure> {
    build_with(&["-p", "muleteer", "-p", "muleteer-shim"])
}

/// Builds them as part of the whole workspace with its tests. The dependencies then get the
/// features that `cargo test --workspace` needs too, and none of them is compiled twice.
///
/// # Errors
/// When cargo fails or a file cannot be copied.
pub fn build_workspace() -> Result<PathBuf, Failure> {
    build_with(&["--workspace", "--all-targets"])
}

fn build_with(what: &[&str]) -> Result<PathBuf, Failure> {
    let target = workspace::target_dir()?;
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--quiet"]).args(what).args(["--features", FEATURE]);
    cargo.arg("--target-dir").arg(&target);
    workspace::run(&mut cargo)?;
    let dir = target.join("system-test");
    std::fs::create_dir_all(&dir)?;
    for name in NAMES {
        let built = target.join("debug").join(name);
        if built.exists() {
            refresh(&built, &dir.join(name))?;
        }
    }
    Ok(dir)
}

/// Copies a file by a rename: a running program keeps its inode, and a reader never sees half a
/// file.
///
/// # Errors
/// When a file cannot be read, written or moved to its place.
pub fn refresh(from: &Path, to: &Path) -> Result<(), Failure> {
    let (new, old) = (from.metadata()?, to.metadata().ok());
    if old.is_some_and(|old| old.len() == new.len() && same_time(&old, &new)) {
        return Ok(());
    }
    let temporary = to.with_extension(format!("new{}", std::process::id()));
    std::fs::copy(from, &temporary)?;
    std::fs::File::options().write(true).open(&temporary)?.set_modified(new.modified()?)?;
    std::fs::rename(&temporary, to)?;
    Ok(())
}

fn same_time(a: &std::fs::Metadata, b: &std::fs::Metadata) -> bool {
    matches!((a.modified(), b.modified()), (Ok(a), Ok(b)) if a == b)
}
