//! What there is to fuzz, for `cargo xtask fuzz`: a line for each decoder, its name and its
//! samples.

fn main() {
    for oracle in muleteer_fuzz::ORACLES {
        println!("{} {}", oracle.name, oracle.seeds.join(" "));
    }
}
