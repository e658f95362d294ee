//! `cargo xtask install`: builds both programs for use and copies them to a folder on PATH.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use xtask::binaries::{NAMES, refresh};
use xtask::{Failure, workspace};

/// Builds `muleteer` and `muleteer-shim` for use and copies them to `--to DIR`, by default cargo's
/// own folder of programs.
///
/// # Errors
/// When the arguments are wrong, cargo fails, or a file cannot be written.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let cargo_home =
        std::env::var_os("CARGO_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let dir = folder(args, cargo_home, home)?;
    println!(
        "building muleteer and muleteer-shim for use: the first time this takes several minutes"
    );
    let target = workspace::target_dir()?;
    let mut cargo = workspace::cargo();
    cargo.args([
        "build",
        "--locked",
        "--release",
        "-p",
        "muleteer",
        "-p",
        "muleteer-shim",
        "--bins",
    ]);
    cargo.arg("--target-dir").arg(&target);
    workspace::run(&mut cargo)?;
    put(&target.join("release"), &dir)?;
    println!("installed {} in {}", NAMES.join(" and "), dir.display());
    for warning in warnings(&dir, &std::env::var_os("PATH").unwrap_or_default()) {
        println!("warning: {warning}");
    }
    println!("next: muleteer doctor");
    Ok(())
}

/// Returns the folder for the programs.
fn folder(
    args: &[String],
    cargo_home: Option<PathBuf>,
    home: Option<PathBuf>,
) -> Result<PathBuf, Failure> {
    let given = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => None,
        ["--to", dir] if !dir.is_empty() => Some(PathBuf::from(dir)),
        _ => return Err("usage: cargo xtask install [--to DIR]".into()),
    };
    let own = || cargo_home.or_else(|| Some(home?.join(".cargo"))).map(|dir| dir.join("bin"));
    let dir = given.or_else(own).ok_or("neither --to nor HOME says where to install")?;
    Ok(std::path::absolute(dir)?)
}

/// Copies the shim first: a `muleteer` that is there always has its shim beside it.
fn put(from: &Path, dir: &Path) -> Result<(), Failure> {
    let fault = |error: std::io::Error| {
        format!("cannot install in {}: {error}; name another folder with --to", dir.display())
    };
    std::fs::create_dir_all(dir).map_err(fault)?;
    for name in NAMES.iter().rev() {
        refresh(&from.join(name), &dir.join(name))
            .map_err(|error| format!("cannot install {name} in {}: {error}", dir.display()))?;
    }
    Ok(())
}

/// Returns the reasons why a shell does not find the installed programs.
fn warnings(dir: &Path, path: &OsStr) -> Vec<String> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let wanted = real(dir);
    let folders: Vec<_> = std::env::split_paths(path).collect();
    let Some(place) = folders.iter().position(|folder| real(folder) == wanted) else {
        let dir = dir.display();
        return vec![format!(
            "{dir} is not on PATH: add `export PATH=\"{dir}:$PATH\"` to your shell's profile"
        )];
    };
    let others = folders[..place]
        .iter()
        .filter(|folder| real(folder) != wanted)
        .map(|folder| folder.join(NAMES[0]));
    let earlier = others.filter(|program| program.is_file());
    earlier
        .map(|program| format!("{} comes before it on PATH: remove it", program.display()))
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_string()).collect()
    }

    #[test]
    fn folder_is_the_given_one_or_cargos() {
        let of = |args: &[&str], cargo: Option<&str>, home: Option<&str>| {
            folder(&words(args), cargo.map(PathBuf::from), home.map(PathBuf::from)).ok()
        };
        assert_eq!(of(&[], None, Some("/home/ann")), Some("/home/ann/.cargo/bin".into()));
        assert_eq!(of(&[], Some("/cargo"), Some("/home/ann")), Some("/cargo/bin".into()));
        assert_eq!(of(&["--to", "/opt/bin"], Some("/cargo"), None), Some("/opt/bin".into()));
        for (args, home) in [
            (&["--to"][..], Some("/h")),
            (&["--to", ""], Some("/h")),
            (&["/opt"], Some("/h")),
            (&[], None),
        ] {
            assert_eq!(of(args, None, home), None, "{args:?}");
        }
    }

    #[test]
    fn both_programs_are_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("a/to"));
        std::fs::create_dir(&from).unwrap();
        for text in ["one", "another"] {
            for name in NAMES {
                std::fs::write(from.join(name), text).unwrap();
            }
            put(&from, &to).unwrap();
            let read = |name: &str| std::fs::read_to_string(to.join(name)).unwrap();
            assert_eq!(NAMES.map(read), [text, text]);
        }
        assert_eq!(std::fs::read_dir(&to).unwrap().count(), 2, "nothing else is left there");
        std::fs::remove_file(from.join(NAMES[1])).unwrap();
        assert!(put(&from, &to).is_err());
    }

    #[test]
    fn programs_that_hide_the_installed_ones_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| dir.path().join(name));
        for folder in [&old, &new] {
            std::fs::create_dir(folder).unwrap();
        }
        let path = |folders: &[&Path]| std::env::join_paths(folders).unwrap();
        assert!(warnings(&new, &path(&[&old])).concat().contains("is not on PATH"));
        assert_eq!(warnings(&new, &path(&[&old, &new])), Vec::<String>::new());
        std::fs::write(old.join("muleteer"), "").unwrap();
        assert!(warnings(&new, &path(&[&old, &new])).concat().contains("comes before it on PATH"));
        assert_eq!(warnings(&new, &path(&[&new, &old])), Vec::<String>::new());
    }
}
