//! Framing against every kind of bad input.

mod frames;

use frames::{client_samples, server_samples, spawn};
use muleteer_protocol::codec::*;
use muleteer_protocol::v1::*;
use proptest::prelude::*;
use serde_json::json;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, duplex};

fn body(value: &impl serde::Serialize) -> Vec<u8> {
    encode(value).expect("encode")[4..].to_vec()
}

fn request(body: Request) -> ClientFrame {
    ClientFrame::Request { id: 1, trace: None, body }
}

#[test]
fn unknown_fields_of_a_newer_peer_are_ignored() {
    let unknown = [
        json!({"t": "telepathy", "strength": 9}),
        json!({"t": "request", "id": 1, "body": {"verb": "levitate", "height": [1, {"a": 2}]}}),
    ];
    assert_eq!(decode::<ClientFrame>(&body(&unknown[0])).expect("frame"), ClientFrame::Unknown);
    assert_eq!(
        decode::<ClientFrame>(&body(&unknown[1])).expect("frame"),
        request(Request::Unknown)
    );
    let reply = json!({"t": "reply", "id": 1, "body": {"t": "sung", "song": "la"}});
    assert_eq!(
        decode::<ServerFrame>(&body(&reply)).expect("frame"),
        ServerFrame::Reply { id: 1, body: Reply::Unknown }
    );
    let more = json!({"t": "request", "id": 1, "mood": "good",
        "body": {"verb": "kill", "id": "abcd", "softly": true}});
    let kill = request(Request::Kill { id: "abcd".into(), reason: None });
    assert_eq!(decode::<ClientFrame>(&body(&more)).expect("frame"), kill);
}

#[test]
fn versions_are_negotiated() {
    assert_eq!(negotiate(&[1]), Some(1));
    assert_eq!(negotiate(&[9, 1, 3]), Some(1));
    assert_eq!(negotiate(&[2, 3]), None);
    assert_eq!(negotiate(&[]), None);
}

#[test]
fn a_body_is_one_whole_value() {
    let mut bytes = body(&request(Request::Ping));
    assert!(matches!(decode::<ClientFrame>(&[]), Err(FrameError::Empty)));
    bytes.push(0xc0);
    assert!(matches!(decode::<ClientFrame>(&bytes), Err(FrameError::Malformed(_))));
    bytes.truncate(bytes.len() - 2);
    assert!(matches!(decode::<ClientFrame>(&bytes), Err(FrameError::Malformed(_))));
}

#[test]
fn nesting_cannot_overflow_the_stack() {
    // A request with an unknown field of a million nested lists.
    let mut deep = vec![0x83, 0xa1, b't', 0xa6];
    deep.extend(b"cancel");
    deep.extend([0xa2, b'i', b'd', 1, 0xa1, b'x']);
    deep.extend(std::iter::repeat_n(0x91, 1_000_000));
    deep.push(0xc0);
    assert!(matches!(decode::<ClientFrame>(&deep), Err(FrameError::Malformed(_))));
}

#[test]
fn only_prompts_and_files_may_be_long() {
    let long = Spawn { prompt: "x".repeat(PROMPT_LIMIT), ..spawn() };
    let frame = request(Request::Spawn(Box::new(long)));
    let len = body(&frame).len();
    assert!(len <= FRAME_LIMIT);
    assert!(check_size(&frame, len).is_ok());
    let longer = request(Request::Send {
        id: "a".into(),
        key: "b".into(),
        text: "x".repeat(PROMPT_LIMIT + 1),
        cli_command: false,
    });
    assert!(matches!(
        check_size(&longer, len),
        Err(FrameError::TooLong { limit: PROMPT_LIMIT, .. })
    ));
    // The files of an agent's message. A byte above 127 takes two.
    let file = AttachedFile { name: "a".into(), content: vec![255; FILES_LIMIT] };
    let mut call = ToolCall { files: vec![file], ..ToolCall::default() };
    let frame = request(Request::Tool(Box::new(call.clone())));
    assert!(check_size(&frame, body(&frame).len()).is_ok());
    call.files.clear();
    let frame = request(Request::Tool(Box::new(call)));
    assert!(matches!(check_size(&frame, REQUEST_LIMIT + 1), Err(FrameError::TooLong { .. })));
    assert!(matches!(
        check_size(&request(Request::Ping), REQUEST_LIMIT + 1),
        Err(FrameError::TooLong { .. })
    ));
}

#[tokio::test]
async fn fragmented_frames_are_reassembled() {
    let frames: Vec<_> = client_samples().into_iter().map(|(_, frame)| frame).collect();
    let bytes: Vec<u8> = frames.iter().flat_map(|frame| encode(frame).expect("encode")).collect();
    for chunk in [1, 3, 4, 5, 1000, bytes.len()] {
        let (mut theirs, ours) = duplex(1 << 20);
        for part in bytes.chunks(chunk) {
            theirs.write_all(part).await.expect("write");
        }
        drop(theirs);
        let mut reader = FrameReader::new(ours, FRAME_LIMIT);
        for frame in &frames {
            assert_eq!(reader.next::<ClientFrame>().await.expect("frame").as_ref(), Some(frame));
        }
        assert!(reader.next::<ClientFrame>().await.expect("end").is_none());
    }
}

#[tokio::test]
async fn a_frame_over_the_limit_is_refused_before_its_body() {
    let (mut theirs, ours) = duplex(64);
    theirs.write_all(&(HELLO_LIMIT as u32 + 1).to_be_bytes()).await.expect("write");
    let error =
        FrameReader::new(ours, HELLO_LIMIT).next::<ClientFrame>().await.expect_err("too long");
    assert!(matches!(error, FrameError::TooLong { limit: HELLO_LIMIT, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_half_open_frame_has_a_deadline_and_silence_between_frames_has_none() {
    let (mut theirs, ours) = duplex(64);
    let mut reader = FrameReader::new(ours, HELLO_LIMIT);
    let quiet =
        tokio::time::timeout(Duration::from_secs(86_400), reader.next::<ClientFrame>()).await;
    assert!(quiet.is_err(), "silence is no error");
    // One byte before each deadline must not extend the deadline.
    theirs.write_all(&[0, 0]).await.expect("write");
    let drip = async {
        tokio::time::sleep(FRAME_DEADLINE / 2).await;
        theirs.write_all(&[0]).await.expect("write");
        std::future::pending::<()>().await;
    };
    let read =
        tokio::time::timeout(FRAME_DEADLINE + Duration::from_secs(1), reader.next::<ClientFrame>());
    let read =
        tokio::select! { read = read => read.expect("in time"), () = drip => unreachable!() };
    assert!(matches!(read, Err(FrameError::Slow(_))), "{read:?}");
}

#[tokio::test(start_paused = true)]
async fn cancelled_read_loses_no_bytes_and_keeps_its_deadline() {
    let (mut theirs, ours) = duplex(1024);
    let mut reader = FrameReader::new(ours, HELLO_LIMIT);
    let bytes = encode(&request(Request::Ping)).expect("encode");
    theirs.write_all(&bytes[..6]).await.expect("write");
    assert!(tokio::time::timeout(FRAME_DEADLINE / 2, reader.next::<ClientFrame>()).await.is_err());
    theirs.write_all(&bytes[6..]).await.expect("write");
    assert_eq!(reader.next::<ClientFrame>().await.expect("frame"), Some(request(Request::Ping)));
    theirs.write_all(&bytes[..6]).await.expect("write");
    assert!(
        tokio::time::timeout(FRAME_DEADLINE - Duration::from_secs(1), reader.next::<ClientFrame>())
            .await
            .is_err()
    );
    let late = tokio::time::timeout(Duration::from_secs(2), reader.next::<ClientFrame>())
        .await
        .expect("in time");
    assert!(matches!(late, Err(FrameError::Slow(_))), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn write_to_a_stuck_peer_times_out() {
    let (_theirs, ours) = duplex(16);
    let error = FrameWriter::new(ours)
        .write(&request(Request::Spawn(Box::new(spawn()))))
        .await
        .expect_err("stuck");
    assert!(matches!(error, FrameError::Slow(WRITE_DEADLINE)), "{error}");
}

#[tokio::test]
async fn connection_that_ends_inside_a_frame_is_an_error() {
    let (mut theirs, ours) = duplex(1024);
    theirs
        .write_all(&encode(&request(Request::Ping)).expect("encode")[..7])
        .await
        .expect("write");
    drop(theirs);
    let error = FrameReader::new(ours, HELLO_LIMIT).next::<ClientFrame>().await.expect_err("cut");
    assert!(matches!(error, FrameError::Truncated), "{error}");
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        drop(decode::<ClientFrame>(&bytes));
        drop(decode::<ServerFrame>(&bytes));
    }

    #[test]
    fn a_damaged_frame_never_panics(
        which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(),
        byte in any::<u8>(), cut in any::<prop::sample::Index>()
    ) {
        let mut frames: Vec<_> = client_samples().iter().map(|(_, frame)| body(frame)).collect();
        frames.extend(server_samples().iter().map(|(_, frame)| body(frame)));
        let bytes = which.get(&frames);
        let mut flipped = bytes.clone();
        flipped[at.index(bytes.len())] = byte;
        for bytes in [&flipped[..], &bytes[..cut.index(bytes.len())]] {
            drop(decode::<ClientFrame>(bytes));
            drop(decode::<ServerFrame>(bytes));
        }
    }

    #[test]
    fn spawn_request_round_trips(prompt in ".*", n in any::<u64>(), usd in 0.0..1e9) {
        let spawn = Spawn { prompt, timeout_s: Some(n), budget_usd: Some(usd), ..spawn() };
        let frame = request(Request::Spawn(Box::new(spawn)));
        prop_assert_eq!(decode::<ClientFrame>(&body(&frame)).expect("frame"), frame);
    }
}
