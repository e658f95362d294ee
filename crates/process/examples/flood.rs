//! A benchmark's talkative agent: `flood BYTES CHUNK` prints lines of a hundred bytes in writes of
//! CHUNK bytes (`cargo xtask bench`).

use std::io::{Result, Write};
use std::os::fd::AsFd;

fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse::<usize>().ok());
    let (mut left, chunk) =
        (numbers.next().unwrap_or(1 << 20), numbers.next().unwrap_or(65_536).max(100));
    let line = format!("{}\n", "x".repeat(99));
    let block = line.repeat(chunk / 100);
    // std's buffer would use its own write sizes.
    let mut out = std::fs::File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    while left > 0 {
        let size = left.min(block.len());
        out.write_all(&block.as_bytes()[..size])?;
        left -= size;
    }
    Ok(())
}
