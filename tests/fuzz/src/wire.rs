//! Oracles for frames of peers: a frame is rejected or decoded, and every decoded frame can be sent
//! again.

use muleteer_protocol::codec;
use muleteer_protocol::shim::v1::{FromShim, MAX_BODY, MAX_HELLO_BODY, ToShim};
use muleteer_protocol::v1::{ClientFrame, ServerFrame};

pub fn daemon(data: &[u8]) {
    if let Ok(frame) = codec::decode::<ClientFrame>(data) {
        let again = codec::encode(&frame).expect("what was read can be sent");
        let again: ClientFrame = codec::decode(&again[4..]).expect("what was sent can be read");
        assert_eq!(format!("{frame:?}"), format!("{again:?}"));
    }
    if let Ok(frame) = codec::decode::<ServerFrame>(data) {
        let again = codec::encode(&frame).expect("what was read can be sent");
        let again: ServerFrame = codec::decode(&again[4..]).expect("what was sent can be read");
        assert_eq!(format!("{frame:?}"), format!("{again:?}"));
    }
}

pub fn shim(data: &[u8]) {
    for limit in [MAX_HELLO_BODY, MAX_BODY] {
        if let Ok(Some(decoded)) = ToShim::decode(data, limit) {
            let mut bytes = vec![];
            decoded.frame.encode(decoded.generation, &mut bytes);
            let again = ToShim::decode(&bytes, MAX_BODY)
                .expect("what was sent can be read")
                .expect("it is whole");
            assert_eq!((&decoded.frame, decoded.generation), (&again.frame, again.generation));
        }
    }
    if let Ok(Some(decoded)) = FromShim::decode(data) {
        let mut bytes = vec![];
        decoded.frame.encode(decoded.generation, &mut bytes);
        let again =
            FromShim::decode(&bytes).expect("what was sent can be read").expect("it is whole");
        assert_eq!((&decoded.frame, decoded.generation), (&again.frame, again.generation));
    }
}
