//! One binary for every decoder: `MULETEER_FUZZ` names the one to try. `cargo xtask fuzz` runs it.

#![no_main]

use std::sync::OnceLock;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static ORACLE: OnceLock<fn(&[u8])> = OnceLock::new();
    let oracle = ORACLE.get_or_init(|| {
        let name = std::env::var("MULETEER_FUZZ").unwrap_or_default();
        muleteer_fuzz::oracle(&name)
            .unwrap_or_else(|| panic!("MULETEER_FUZZ must be one of {:?}", muleteer_fuzz::names()))
    });
    oracle(data);
});
