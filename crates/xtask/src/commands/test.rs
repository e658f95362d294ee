//! `cargo xtask test`: runs everything that must pass, with the binaries and the agent CLIs that it
//! needs.

use std::io::{BufRead, BufReader, Write};
use std::num::NonZero;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;
use xtask::{Failure, agents, binaries, workspace};

/// The file to which tests that could not run append a line (`muleteer_tests::skip`), so that the
/// closing line counts them: libtest knows only passed, failed and ignored.
const SKIP_LOG_VARIABLE: &str = "MULETEER_TEST_SKIP_LOG";

/// The variable from which libtest takes the number of its threads.
const THREADS_VARIABLE: &str = "RUST_TEST_THREADS";
/// System tests mostly wait: for processes, and for the times that a rule of the product sets.
const THREADS_PER_CORE: usize = 3;

pub fn run(args: &[String]) -> Result<(), Failure> {
    let args = args.strip_prefix(&["--".to_string()][..]).unwrap_or(args);
    if let Err(failure) = agents::install() {
        eprintln!("SKIPPED: tests with real agent CLIs cannot run: {failure}");
    }
    let bin_dir = binaries::build_workspace()?;
    let skip_log = workspace::target_dir()?.join("system-test/skipped.log");
    let _ = std::fs::remove_file(&skip_log);

    let mut cargo = workspace::cargo();
    cargo.args(["test", "--workspace", "--no-fail-fast", "--features", binaries::FEATURE]);
    cargo.arg("--").args(args);
    cargo.env(binaries::DIR_VARIABLE, bin_dir).env(SKIP_LOG_VARIABLE, &skip_log);
    if std::env::var_os(THREADS_VARIABLE).is_none() {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        cargo.env(THREADS_VARIABLE, (cores * THREADS_PER_CORE).to_string());
    }
    let begun = Instant::now();
    let said = workspace::said(&cargo);
    eprintln!("xtask: {said}");
    let mut child = cargo.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut tally = Tally::default();
    if let Some(stdout) = child.stdout.take() {
        let mut out = std::io::stdout().lock();
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line?;
            tally.read(&String::from_utf8_lossy(&line));
            out.write_all(&line)?;
            out.write_all(b"\n")?;
            out.flush()?;
        }
    }
    let status = child.wait()?;
    let skipped = repeat_skips(&skip_log);
    println!(
        "{} passed, {} failed, {skipped} skipped",
        tally.passed.saturating_sub(skipped),
        tally.failed
    );
    eprintln!("xtask: the tests took {:.1} minutes", begun.elapsed().as_secs_f64() / 60.0);
    if status.success() { Ok(()) } else { Err(format!("{said}: {status}").into()) }
}

/// Prints every skip once more at the end, where people look.
fn repeat_skips(log: &Path) -> u64 {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    for line in text.lines() {
        eprintln!("SKIPPED: {line}");
    }
    text.lines().count() as u64
}

#[derive(Default)]
struct Tally {
    passed: u64,
    failed: u64,
}

impl Tally {
    /// Reads a line like `test result: ok. 12 passed; 0 failed; 0 ignored; …`.
    fn read(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result: ") else { return };
        let count = |what: &str| {
            let before = rest.split(what).next().filter(|before| before.len() < rest.len())?;
            before.rsplit(' ').next()?.parse::<u64>().ok()
        };
        self.passed += count(" passed").unwrap_or(0);
        self.failed += count(" failed").unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::Tally;

    #[test]
    fn results_of_several_test_binaries_add_up() {
        let mut tally = Tally::default();
        tally.read(
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; \
            finished in 0.01s",
        );
        tally
            .read("test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        tally.read("test something ... ok");
        assert_eq!((tally.passed, tally.failed), (15, 2));
    }
}
