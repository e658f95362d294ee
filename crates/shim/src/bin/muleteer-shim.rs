//! The shim as a program of its own: a fifth of the memory it would take inside `muleteer`.

fn main() -> std::process::ExitCode {
    muleteer_shim::main(std::env::args_os().skip(1))
}
