#![allow(clippy::unwrap_used)]
//! The frozen layout of the shim's protocol: every frame has a checked-in sample that must decode
//! to the same value for ever, and no input makes decoding panic.

use muleteer_protocol::shim::v1::{
    AgentState, DecodeError, Decoded, FromShim, MAX_BODY, MAX_HELLO_BODY, Outcome, RefusedCode,
    ToShim,
};
use proptest::prelude::*;
use std::path::PathBuf;

const GENERATION: u64 = 0x0102_0304_0506_0708;
const IDEM: [u8; 16] = *b"0123456789abcdef";

fn to_shim() -> Vec<(&'static str, ToShim)> {
    vec![
        ("to-hello", ToShim::Hello { versions: vec![1, 2], key: *b"a 128-bit secret" }),
        (
            "to-write-stdin",
            ToShim::WriteStdin { idem: IDEM, close: true, bytes: b"a prompt\n".to_vec() },
        ),
        ("to-signal", ToShim::Signal { idem: IDEM, signo: 2, group: true }),
        ("to-terminate", ToShim::Terminate { idem: IDEM, grace_ms: 10_000 }),
        ("to-heartbeat", ToShim::Heartbeat { lease_ms: 3_600_000 }),
        ("to-ack", ToShim::Ack { epoch: 3, offset: 1 << 33 }),
        ("to-query", ToShim::Query),
        ("to-unknown", ToShim::Unknown { kind: 0x7f }),
    ]
}

fn from_shim() -> Vec<(&'static str, FromShim)> {
    vec![
        (
            "from-hello-ok",
            FromShim::HelloOk {
                version: 1,
                epoch: 3,
                shim_pid: 4711,
                agent_pid: 4712,
                offset: 1 << 33,
                state: AgentState::Running,
                nonce: "6e6f6e6365".into(),
            },
        ),
        ("from-refused", FromShim::Refused { code: RefusedCode::BadKey, text: "wrong key".into() }),
        ("from-done-ok", FromShim::Done { idem: IDEM, outcome: Outcome::Ok }),
        ("from-done-failed", FromShim::Done { idem: IDEM, outcome: Outcome::Failed { errno: 22 } }),
        ("from-nudge", FromShim::Nudge { epoch: 3, offset: 77 }),
        ("from-exited", FromShim::Exited { epoch: 3, offset: 78 }),
        (
            "from-status",
            FromShim::Status {
                epoch: 3,
                offset: 79,
                state: AgentState::Ending,
                blocked: true,
                stdin_open: false,
                stdin_queued: 12,
                lease_left_ms: 1000,
                acked_epoch: 2,
                acked_offset: 70,
            },
        ),
        ("from-unknown", FromShim::Unknown { kind: 0xff }),
    ]
}

/// Returns the stored bytes of a frame. The file is written once if absent and never changed.
fn sample(name: &str, encoded: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("samples/shim-v1")
        .join(format!("{name}.bin"));
    if !path.exists() && std::env::var_os("MULETEER_BLESS").is_some() {
        std::fs::write(&path, encoded).unwrap();
    }
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_sample_decodes_to_its_frame() {
    for (name, frame) in to_shim() {
        let mut bytes = vec![];
        frame.encode(GENERATION, &mut bytes);
        let sample = sample(name, &bytes);
        let decoded = ToShim::decode(&sample, MAX_BODY).unwrap().unwrap();
        assert_eq!(
            decoded,
            Decoded { frame, generation: GENERATION, used: sample.len() },
            "{name}"
        );
        assert_eq!(bytes, sample, "{name} is encoded differently");
    }
    for (name, frame) in from_shim() {
        let mut bytes = vec![];
        frame.encode(GENERATION, &mut bytes);
        let sample = sample(name, &bytes);
        let decoded = FromShim::decode(&sample).unwrap().unwrap();
        assert_eq!(
            decoded,
            Decoded { frame, generation: GENERATION, used: sample.len() },
            "{name}"
        );
        assert_eq!(bytes, sample, "{name} is encoded differently");
    }
}

#[test]
fn a_body_may_grow_at_its_end() {
    for (name, frame) in to_shim().into_iter().filter(|(name, _)| *name != "to-unknown") {
        let mut bytes = vec![];
        frame.encode(GENERATION, &mut bytes);
        let len = u32::from_le_bytes(bytes[..4].try_into().unwrap()) + 5;
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(b"later");
        assert_eq!(ToShim::decode(&bytes, MAX_BODY).unwrap().unwrap().frame, frame, "{name}");
    }
}

#[test]
fn a_frame_over_the_limit_is_refused_on_its_header() {
    let mut bytes = vec![];
    ToShim::WriteStdin { idem: IDEM, close: false, bytes: vec![0; 300] }.encode(1, &mut bytes);
    assert!(matches!(ToShim::decode(&bytes[..16], MAX_HELLO_BODY), Err(DecodeError::TooLarge(_))));
    assert_eq!(ToShim::decode(&bytes[..16], MAX_BODY), Ok(None));
    let huge = [0xff; 16];
    assert!(matches!(ToShim::decode(&huge, MAX_BODY), Err(DecodeError::TooLarge(_))));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = ToShim::decode(&bytes, MAX_BODY);
        let _ = FromShim::decode(&bytes);
    }

    #[test]
    fn a_plausible_header_over_garbage_never_panics(
        kind in 0u16..0x100, len in 0u32..200,
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = len.to_le_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&[0; 10]);
        bytes.extend_from_slice(&body);
        let decoded = ToShim::decode(&bytes, MAX_BODY);
        if let Ok(Some(frame)) = decoded {
            prop_assert!(frame.used <= bytes.len());
        }
        let _ = FromShim::decode(&bytes);
    }

    #[test]
    fn a_prefix_is_incomplete_and_the_whole_round_trips(
        idem: [u8; 16], close: bool,
        bytes in proptest::collection::vec(any::<u8>(), 0..2000), generation: u64,
    ) {
        let frame = ToShim::WriteStdin { idem, close, bytes };
        let mut encoded = vec![];
        frame.encode(generation, &mut encoded);
        for cut in [0, 3, 15, 16, encoded.len() / 2, encoded.len() - 1] {
            prop_assert_eq!(ToShim::decode(&encoded[..cut.min(encoded.len() - 1)], MAX_BODY),
                Ok(None));
        }
        let used = encoded.len();
        encoded.extend_from_slice(b"next frame");
        prop_assert_eq!(
            ToShim::decode(&encoded, MAX_BODY), Ok(Some(Decoded { frame, generation, used })));
    }
}
