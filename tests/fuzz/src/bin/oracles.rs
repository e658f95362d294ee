//! Lists the decoders for `cargo xtask fuzz`: a line for each, with its name and its samples.

fn main() {
    for oracle in muleteer_fuzz::ORACLES {
        println!("{} {}", oracle.name, oracle.seeds.join(" "));
    }
}
