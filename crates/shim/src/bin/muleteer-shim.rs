//! The shim as its own program: it needs a fifth of the memory that it would need inside
//! `muleteer`.

fn main() -> std::process::ExitCode {
    muleteer_shim::main(std::env::args_os().skip(1))
}
