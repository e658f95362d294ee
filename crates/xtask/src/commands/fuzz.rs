//! `cargo xtask fuzz`: runs every decoder under libFuzzer, from the checked-in samples.
//!
//! The oracles are in `tests/fuzz`. Finds stay in the build directory under `fuzz/<name>`. Make a
//! find a sample or a test there, so that every later run tries it without libFuzzer too.

use std::path::Path;
use xtask::{Failure, workspace};

const DEFAULT_SECONDS: &str = "60";
const GET: &str = "it needs `cargo install cargo-fuzz` and a nightly compiler (`rustup toolchain \
    install nightly`)";

pub fn run(args: &[String]) -> Result<(), Failure> {
    let mut seconds = DEFAULT_SECONDS.to_string();
    let mut wanted = vec![];
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => seconds = args.next().ok_or("--seconds wants a number")?.clone(),
            name => wanted.push(name.to_string()),
        }
    }
    let output = workspace::cargo()
        .args(["run", "--quiet", "-p", "muleteer-fuzz", "--bin", "oracles"])
        .output()?;
    let list = String::from_utf8(output.stdout)?;
    let known: Vec<Vec<&str>> =
        list.lines().map(|line| line.split_whitespace().collect()).collect();
    let names: Vec<&str> = known.iter().filter_map(|words| words.first().copied()).collect();
    if let Some(unknown) = wanted.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(format!("no decoder `{unknown}`; there are {names:?}").into());
    }
    for words in &known {
        let Some((name, seeds)) = words.split_first() else { continue };
        if !wanted.is_empty() && !wanted.iter().any(|one| one == name) {
            continue;
        }
        let place = workspace::target_dir()?.join("fuzz").join(name);
        let (corpus, finds) = (place.join("corpus"), place.join("finds"));
        std::fs::create_dir_all(&corpus)?;
        std::fs::create_dir_all(&finds)?;
        for below in seeds {
            sow(&workspace::root().join(below), &corpus)?;
        }
        let mut cargo = workspace::cargo();
        cargo.env("RUSTUP_TOOLCHAIN", "nightly").env("MULETEER_FUZZ", name);
        // SQLite, in one file, has two constants of one name, which the sanitizer reports as two
        // objects in one place.
        cargo.env("ASAN_OPTIONS", "detect_odr_violation=0");
        cargo.args([
            "fuzz",
            "run",
            "--fuzz-dir",
            "tests/fuzz",
            "--features",
            "libfuzzer",
            "decode",
        ]);
        cargo.arg(&corpus).arg("--");
        cargo
            .arg(format!("-max_total_time={seconds}"))
            .arg("-max_len=65536")
            .arg("-timeout=10")
            .arg("-rss_limit_mb=2048");
        cargo.arg(format!("-artifact_prefix={}/", finds.display()));
        workspace::run(&mut cargo).map_err(|failure| format!("{name}: {failure}\n{GET}"))?;
    }
    Ok(())
}

/// Copies the samples below `from` into one folder, under names that cannot collide.
fn sow(from: &Path, corpus: &Path) -> Result<(), Failure> {
    for entry in std::fs::read_dir(from)? {
        let path = entry?.path();
        if path.is_dir() {
            sow(&path, corpus)?;
        } else if path.extension().is_none_or(|kind| kind != "rs") {
            let name = path.to_string_lossy().replace(['/', '\\'], "-");
            std::fs::copy(&path, corpus.join(name.trim_start_matches('-')))?;
        }
    }
    Ok(())
}
