//! The `muleteer` program: see the library for what it does.

use std::process::ExitCode;

fn main() -> ExitCode {
    muleteer_cli::main(std::env::args_os().collect())
}
