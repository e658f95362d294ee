//! The commands that a link sends to its shim.

use muleteer_protocol::shim::v1::{Idem, ToShim};

/// The time between TERM and KILL (docs/design/dispatch-lifecycle.md).
const TERM_GRACE_MS: u64 = 10_000;

/// It is boxed, because each agent's channel has room for 32 of them for as long as the agent
/// lives.
#[derive(Debug, Clone)]
pub struct Command(pub Box<ToShim>);

impl Command {
    pub fn write(key: &str, bytes: Vec<u8>, close: bool) -> Self {
        Self(Box::new(ToShim::WriteStdin { idem: idem(key), close, bytes }))
    }

    pub fn interrupt(key: &str) -> Self {
        const SIGINT: i32 = 2;
        Self(Box::new(ToShim::Signal { idem: idem(key), signo: SIGINT, group: true }))
    }

    pub fn terminate(key: &str) -> Self {
        Self(Box::new(ToShim::Terminate { idem: idem(key), grace_ms: TERM_GRACE_MS }))
    }
}

/// Returns the key of a command as the shim's records show it.
pub fn shown(key: &str) -> String {
    muleteer_shim::control::hex(&idem(key))
}

/// Hashes a command key to the sixteen bytes of the wire format.
pub(crate) fn idem(key: &str) -> Idem {
    let mut high = 0xcbf2_9ce4_8422_2325_u64;
    let mut low = 0x8422_2325_cbf2_9ce4_u64;
    for byte in key.bytes() {
        high = (high ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        low = (low ^ u64::from(byte).rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    let mut idem = [0; 16];
    idem[..8].copy_from_slice(&high.to_le_bytes());
    idem[8..].copy_from_slice(&low.to_le_bytes());
    idem
}
