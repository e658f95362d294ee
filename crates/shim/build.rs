//! The shim is linked at a fixed place: relocations are most of the private memory of a program this small, and there is
//! one for each agent.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        println!("cargo::rustc-link-arg-bin=muleteer-shim=-no-pie");
    }
}
