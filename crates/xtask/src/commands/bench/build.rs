//! `cargo xtask bench build`: the cost of a cold release build, for which a new user waits.
//!
//! It has a target directory of its own, which it empties first. The floor is a program that says
//! hello through tokio, built in the same run: a ratio to it says more than minutes on a shared
//! machine.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use xtask::{Failure, binaries, workspace};

const USAGE: &str = "usage: cargo xtask bench build [--json]";
/// The goal: the most that a build may cost.
const GOAL_CPU_MINUTES: f64 = 10.0;
const GOAL_MEGABYTES: f64 = 35.0;
const SLOWEST: usize = 10;
/// The beginnings of variables by which a user changes what cargo builds, and how.
const SETTINGS: [&str; 7] = [
    "CARGO_BUILD_",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_PROFILE_",
    "CARGO_TARGET_",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTFLAGS",
];

const FLOOR_MANIFEST: &str = r#"[package]
name = "hello"
version = "0.0.0"
edition = "2024"

[workspace]

[dependencies.tokio]
version = "1"
features = ["rt-multi-thread", "macros", "time", "net", "process", "signal"]
"#;
const FLOOR_MAIN: &str = "#[tokio::main]\nasync fn main() {\n    println!(\"hello\");\n}\n";

/// Builds the floor and the product from nothing, and prints the cost of both.
///
/// # Errors
/// When an option is unknown, cargo fails, or the system does not report the time of ended
/// processes.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let is_json = match args {
        [] => false,
        [flag] if flag == "--json" => true,
        _ => return Err(USAGE.into()),
    };
    let target = workspace::target_dir()?.join("bench-build");
    if target.exists() {
        std::fs::remove_dir_all(&target)?;
    }
    let floor = measure(&mut hello(&target.join("floor"))?)?;
    let product = target.join("product");
    let mut cargo = workspace::cargo();
    cargo.args(["build", "--release", "--timings", "--target-dir"]).arg(&product);
    let ours = measure(&mut cargo)?;
    let mut sizes = BTreeMap::new();
    for name in binaries::NAMES {
        sizes.insert(name, std::fs::metadata(product.join("release").join(name))?.len());
    }
    let timings = std::fs::read_to_string(product.join("cargo-timings/cargo-timing.html"))
        .unwrap_or_default();
    print(&Report { ours, floor, sizes, slowest: slowest(&timings) }, is_json);
    Ok(())
}

/// The cost of one build.
#[derive(Debug, Clone, Copy)]
struct Cost {
    cpu_s: f64,
    wall_s: f64,
}

struct Report {
    ours: Cost,
    floor: Cost,
    sizes: BTreeMap<&'static str, u64>,
    /// The seconds from the start to the end of a crate's units, the longest first; empty if cargo
    /// did not report them.
    slowest: Vec<(String, f64)>,
}

fn print(report: &Report, is_json: bool) {
    let minutes = report.ours.cpu_s / 60.0;
    let ratio = report.ours.cpu_s / report.floor.cpu_s;
    if is_json {
        let crates =
            report.slowest.iter().map(|(name, seconds)| json!({"name": name, "seconds": seconds}));
        let cost = |cost: &Cost| json!({"cpu_s": cost.cpu_s, "wall_s": cost.wall_s});
        let document = json!({
            "ours": cost(&report.ours), "floor": cost(&report.floor), "ratio": ratio,
            "bytes": report.sizes, "slowest": crates.collect::<Vec<_>>(),
        });
        println!("{document}");
        return;
    }
    println!("cold release build   {minutes:.1} CPU minutes (goal {GOAL_CPU_MINUTES})");
    println!("wall time            {:.1} minutes", report.ours.wall_s / 60.0);
    println!(
        "floor                {:.2} CPU minutes (hello through tokio): ratio {ratio:.1}",
        report.floor.cpu_s / 60.0
    );
    for (name, bytes) in &report.sizes {
        let goal =
            if *name == "muleteer" { format!(" (goal {GOAL_MEGABYTES})") } else { String::new() };
        #[allow(clippy::cast_precision_loss)] // No program has 2^52 bytes.
        let megabytes = *bytes as f64 / 1e6;
        println!("{name:<20} {megabytes:.1} MB{goal}");
    }
    if report.slowest.is_empty() {
        println!("slowest crates       cargo's timings cannot be read");
    }
    for (name, seconds) in &report.slowest {
        println!("  {seconds:>6.1} s  {name}");
    }
}

/// Returns the command that builds the floor's crate, with the versions of our lock file.
fn hello(folder: &Path) -> Result<Command, Failure> {
    std::fs::create_dir_all(folder.join("src"))?;
    std::fs::write(folder.join("Cargo.toml"), FLOOR_MANIFEST)?;
    std::fs::write(folder.join("src/main.rs"), FLOOR_MAIN)?;
    std::fs::copy(workspace::root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
    let mut cargo = workspace::cargo();
    cargo
        .current_dir(folder)
        .args(["build", "--release", "--target-dir"])
        .arg(folder.join("target"));
    Ok(cargo)
}

fn measure(command: &mut Command) -> Result<Cost, Failure> {
    // Only the product's own settings count, so that every machine builds the same.
    for (name, _) in std::env::vars_os() {
        let is_setting = |name: &str| SETTINGS.iter().any(|setting| name.starts_with(setting));
        if name.to_str().is_some_and(is_setting) {
            command.env_remove(name);
        }
    }
    let (before, start) = (children_cpu_s()?, Instant::now());
    workspace::run(command)?;
    Ok(Cost { cpu_s: children_cpu_s()? - before, wall_s: start.elapsed().as_secs_f64() })
}

/// Returns user and system time of all ended and awaited children and of their children (proc(5):
/// `cutime` and `cstime`).
fn children_cpu_s() -> Result<f64, Failure> {
    let path = PathBuf::from("/proc/self/stat");
    let text =
        std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let ticks =
        children_ticks(&text).ok_or_else(|| format!("{}: no times in `{text}`", path.display()))?;
    #[allow(clippy::cast_precision_loss)] // Centuries of them fit.
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn children_ticks(stat: &str) -> Option<u64> {
    // The program's name may contain anything, also spaces and brackets.
    let (_, rest) = stat.rsplit_once(") ")?;
    let field = |number: usize| rest.split(' ').nth(number - 3)?.parse::<u64>().ok();
    Some(field(16)? + field(17)?)
}

/// Returns the crates that took longest by cargo's report, each with the sum of its units.
fn slowest(html: &str) -> Vec<(String, f64)> {
    let Some((_, rest)) = html.split_once("UNIT_DATA = ") else { return vec![] };
    let Some(Ok(Value::Array(units))) =
        serde_json::Deserializer::from_str(rest).into_iter::<Value>().next()
    else {
        return vec![];
    };
    let mut crates = BTreeMap::<String, f64>::new();
    for unit in units {
        if let (Some(name), Some(seconds)) = (unit["name"].as_str(), unit["duration"].as_f64()) {
            *crates.entry(name.to_string()).or_default() += seconds;
        }
    }
    let mut crates: Vec<_> = crates.into_iter().collect();
    crates.sort_by(|one, other| other.1.total_cmp(&one.1));
    crates.truncate(SLOWEST);
    crates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_crates_are_the_sums_of_their_units() {
        let html = r#"<script>
const UNIT_DATA = [
  {"i": 0, "name": "serde", "mode": "todo", "target": "", "start": 0.1, "duration": 2.5},
  {"i": 1, "name": "serde", "mode": "run-custom-build", "target": " build script", "duration": 0.5},
  {"i": 2, "name": "clap", "duration": 4.0}
];
const CONCURRENCY_DATA = [];"#;
        assert_eq!(slowest(html), [("clap".to_string(), 4.0), ("serde".to_string(), 3.0)]);
        assert_eq!(slowest("<html></html>"), []);
        assert_eq!(slowest("const UNIT_DATA = [{\"name\":"), []);
    }

    #[test]
    fn times_of_children_are_read_past_any_program_name() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 9 8 7 6 11 12 130 40 20 0 1 0 5";
        assert_eq!(children_ticks(stat), Some(170));
        assert_eq!(children_ticks("7 (x) S 1"), None);
    }
}
