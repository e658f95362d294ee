//! A benchmark's agent: notes in a file that its `main` began, and when (`cargo xtask bench`). With
//! a second argument, a FIFO, it stays until somebody opens that for writing: a round's agents all
//! live until its end, as agents do.

use rustix::time::{ClockId, clock_gettime};
use std::io::Write;

fn main() -> std::io::Result<()> {
    let now = clock_gettime(ClockId::Monotonic);
    let file = std::env::args_os().nth(1).unwrap_or_else(|| "stamps".into());
    // One write, appended: lines of many agents at once stay whole.
    let line = format!("{}\n", i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec));
    std::fs::File::options()
        .create(true)
        .append(true)
        .open(file)?
        .write_all(line.as_bytes())?;
    std::env::args_os().nth(2).map_or(Ok(()), |gate| std::fs::File::open(gate).map(drop))
}
