//! Reports a test that cannot run here. `cargo xtask test` counts these reports.

use std::io::Write;

/// Reports that `test` did not run, past libtest's capture: a skip that nobody sees is a lie.
pub fn skip(test: &str, why: &str) {
    let line = format!("{test}: {}", why.replace('\n', " "));
    let _ = writeln!(std::io::stderr(), "SKIPPED: {line}");
    if let Some(log) = std::env::var_os("MULETEER_TEST_SKIP_LOG")
        && let Ok(mut log) = std::fs::File::options().create(true).append(true).open(log)
    {
        let _ = writeln!(log, "{line}");
    }
}
