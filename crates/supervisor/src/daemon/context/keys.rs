//! Random keys.

/// Returns sixteen random bytes in the alphabet of ids.
pub fn random_key() -> String {
    let mut bytes = [0u8; 16];
    // Without randomness there are no safe keys, so the process must not continue.
    if let Err(error) = getrandom::fill(&mut bytes) {
        panic!("failed to get random bytes: {error}");
    }
    muleteer_model::event::id::encode(&bytes)
}
