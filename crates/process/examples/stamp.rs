//! A benchmark's agent: records in a file when its `main` began (`cargo xtask bench`). With a
//! second argument, a FIFO, it waits until another process opens the FIFO for writing, so that all
//! agents of a round live until its end, as real agents do.

use rustix::time::{ClockId, clock_gettime};
use std::io::Write;

fn main() -> std::io::Result<()> {
    let now = clock_gettime(ClockId::Monotonic);
    let file = std::env::args_os().nth(1).unwrap_or_else(|| "stamps".into());
    // One appending write keeps the lines of concurrent agents whole.
    let line = format!("{}\n", i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec));
    std::fs::File::options()
        .create(true)
        .append(true)
        .open(file)?
        .write_all(line.as_bytes())?;
    std::env::args_os().nth(2).map_or(Ok(()), |gate| std::fs::File::open(gate).map(drop))
}
