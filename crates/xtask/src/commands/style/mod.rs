//! `cargo xtask style`: checks the rules of CONTRIBUTING.md that a program can check.
//!
//! It reads only the files of the checkout, and never git, whose history differs between clones.
//! `cargo xtask lint` also runs [`subjects`], which reads the history where there is one.
//! `style-exceptions.txt` lists old violations as counts per rule and file. A count may only
//! shrink: a file with more violations than its line fails, and so does a line that allows more
//! than the file needs. `--update` lowers the counts, and never raises one.

mod files;
mod rules;
pub mod subjects;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use xtask::{Failure, workspace};

/// One violation: the rule, the file or folder relative to the root, the line (0: the whole file),
/// and a description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: &'static str,
    pub path: String,
    pub line: usize,
    pub what: String,
}

/// How many violations each rule has in each file.
type Counts = BTreeMap<(String, String), usize>;

/// Checks the checkout. `--list` prints every violation; `--update` lowers the exceptions.
///
/// # Errors
/// When a file has more violations than its exception allows, or fewer.
pub fn run(args: &[String]) -> Result<(), Failure> {
    let root = workspace::root();
    let violations = rules::all(&files::read(&root)?);
    let path = exceptions_path();
    let listed = parse(&std::fs::read_to_string(&path).unwrap_or_default())?;
    let found = count(&violations);
    match args.first().map(String::as_str) {
        None => {}
        Some("--list") => {
            for one in &violations {
                println!("{}:{}: {}: {}", one.path, one.line, one.rule, one.what);
            }
            return Ok(());
        }
        Some("--update") => {
            let lowered = lower(&listed, &found);
            std::fs::write(&path, print(&lowered))?;
            eprintln!("xtask: {} now holds {} lines", path.display(), lowered.len());
            return Ok(());
        }
        Some(other) => return Err(format!("style takes --list or --update, not `{other}`").into()),
    }
    let problems = compare(&listed, &found, &violations);
    if problems.is_empty() {
        eprintln!("xtask: style is clean, with {} listed exceptions", total(&listed));
        return Ok(());
    }
    for problem in &problems {
        eprintln!("{problem}");
    }
    Err(format!("{} style problems (rules: CONTRIBUTING.md)", problems.len()).into())
}

fn exceptions_path() -> PathBuf {
    workspace::root().join("crates/xtask/style-exceptions.txt")
}

fn total(counts: &Counts) -> usize {
    counts.values().sum()
}

fn count(violations: &[Violation]) -> Counts {
    let mut counts = Counts::new();
    for one in violations {
        *counts.entry((one.rule.to_string(), one.path.clone())).or_default() += 1;
    }
    counts
}

/// Reads `rule path count` lines.
fn parse(text: &str) -> Result<Counts, Failure> {
    let mut counts = Counts::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let (Some(rule), Some(path), Some(count)) = (words.next(), words.next(), words.next())
        else {
            return Err(format!("style-exceptions.txt: `{line}` is not `rule path count`").into());
        };
        counts.insert((rule.to_string(), path.to_string()), count.parse()?);
    }
    Ok(counts)
}

fn print(counts: &Counts) -> String {
    let mut text = String::from(
        "# Violations of CONTRIBUTING.md that existed when the rule was made: rule, file, count.\n\
         # Counts only shrink: `cargo xtask style --update` lowers them after you mended a file.\n",
    );
    for ((rule, path), count) in counts {
        writeln!(text, "{rule} {path} {count}").expect("a String takes every write");
    }
    text
}

/// The exceptions with each count lowered to what was found, and nothing added.
fn lower(listed: &Counts, found: &Counts) -> Counts {
    let kept = |(key, allowed): (&(String, String), &usize)| {
        let now = (*found.get(key)?).min(*allowed);
        Some((key.clone(), now))
    };
    listed.iter().filter_map(kept).collect()
}

/// The messages for every count that differs from its exception.
fn compare(listed: &Counts, found: &Counts, violations: &[Violation]) -> Vec<String> {
    let mut problems = Vec::new();
    for (key, &now) in found {
        let allowed = listed.get(key).copied().unwrap_or(0);
        if now <= allowed {
            continue;
        }
        let (rule, path) = key;
        let of_key = violations.iter().filter(|one| one.rule == rule && &one.path == path);
        for one in of_key {
            let place = if one.line == 0 { path.clone() } else { format!("{path}:{}", one.line) };
            problems.push(format!("{place}: {rule}: {} (allowed here: {allowed})", one.what));
        }
    }
    for (key, &allowed) in listed {
        let now = found.get(key).copied().unwrap_or(0);
        if now < allowed {
            let (rule, path) = key;
            problems.push(format!(
                "{path}: {rule}: {allowed} exceptions are listed and {now} are needed: run `cargo \
                 xtask style --update`"
            ));
        }
    }
    problems
}
