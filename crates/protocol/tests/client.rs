//! The client against a scripted daemon.

mod frames;

use muleteer_protocol::ErrorCode;
use muleteer_protocol::client::{Client, ClientError, Next};
use muleteer_protocol::codec::{FRAME_LIMIT, FrameReader, FrameWriter};
use muleteer_protocol::v1::*;
use std::path::PathBuf;
use tempfile::TempDir;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};

struct Peer {
    reader: FrameReader<OwnedReadHalf>,
    writer: FrameWriter<OwnedWriteHalf>,
}

impl Peer {
    fn new(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self { reader: FrameReader::new(reader, FRAME_LIMIT), writer: FrameWriter::new(writer) }
    }

    async fn hear(&mut self) -> ClientFrame {
        self.reader.next().await.expect("frame").expect("open")
    }

    async fn say(&mut self, frame: ServerFrame) {
        self.writer.write(&frame).await.expect("write");
    }

    /// Receives a request and returns its id.
    async fn request(&mut self) -> (u64, Request) {
        match self.hear().await {
            ClientFrame::Request { id, body, .. } => (id, body),
            other => panic!("{other:?}"),
        }
    }
}

fn welcome() -> ServerFrame {
    ServerFrame::Welcome(Welcome {
        version: 1,
        daemon_pid: 1,
        daemon_version: "0".into(),
        identity: "operator".into(),
        state_dir: "/s".into(),
        telemetry: None,
    })
}

/// The socket is in a directory that its guard removes.
fn socket() -> (TempDir, PathBuf, UnixListener) {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("sock");
    let listener = UnixListener::bind(&path).expect("bind");
    (dir, path, listener)
}

/// Runs a client against a script of answers that follow the handshake.
async fn against<F: Future<Output = ()>, T>(
    script: impl FnOnce(Peer) -> F,
    client: impl AsyncFnOnce(Client) -> T,
) -> T {
    let (_dir, path, listener) = socket();
    let serve = async {
        let mut peer = Peer::new(listener.accept().await.expect("accept").0);
        assert!(matches!(
            peer.hear().await,
            ClientFrame::Hello(Hello { versions, .. }) if versions == VERSIONS
        ));
        peer.say(welcome()).await;
        script(peer).await;
    };
    let ask = async { client(Client::connect(&path, "test", None).await.expect("connect")).await };
    let ((), answer) = tokio::join!(serve, ask);
    answer
}

#[tokio::test]
async fn missing_socket_means_no_daemon() {
    let (_dir, path, listener) = socket();
    drop(listener);
    let error = Client::connect(&path, "test", None).await.expect_err("no listener");
    assert!(matches!(error, ClientError::NoDaemon { .. }) && error.is_lost(), "{error}");
    let error =
        Client::connect(&path.with_file_name("other"), "test", None).await.expect_err("no socket");
    assert!(matches!(error, ClientError::NoDaemon { .. }), "{error}");
}

#[tokio::test]
async fn client_connects_to_a_socket_with_a_long_path() {
    let above = tempfile::tempdir().expect("dir");
    let dir = above.path().join("d".repeat(120));
    std::fs::create_dir(&dir).expect("dir");
    let error = Client::connect(&dir.join("sock"), "test", None).await.expect_err("no socket");
    assert!(matches!(error, ClientError::NoDaemon { .. }), "{error}");
}

#[tokio::test]
async fn daemon_error_reaches_the_client_unchanged() {
    let error = WireError {
        code: "E_NOT_FOUND".into(),
        message: "no dispatch `x`".into(),
        ..WireError::default()
    };
    let sent = error.clone();
    let script = |mut peer: Peer| async move {
        let (id, _) = peer.request().await;
        // The client must ignore the reply to another request, and an unknown frame.
        peer.say(ServerFrame::Reply { id: id + 9, body: Reply::Pong }).await;
        peer.say(ServerFrame::Unknown).await;
        peer.say(ServerFrame::Error { id, error: sent }).await;
    };
    let answer = against(script, async |mut client| client.call(Request::Ping).await).await;
    assert!(matches!(answer, Err(ClientError::Remote(remote)) if remote == error));
}

#[tokio::test]
async fn lost_answer_is_reported_as_lost() {
    let script = |mut peer: Peer| async move {
        peer.request().await;
    };
    let answer = against(script, async |mut client| client.call(Request::Ping).await).await;
    assert!(answer.expect_err("lost").is_lost());
}

/// An ending daemon's error says no more than a lost connection, so the request may be sent to the
/// next daemon.
#[tokio::test]
async fn stopping_daemon_counts_as_lost() {
    for (code, lost) in [(ErrorCode::DaemonEnding, true), (ErrorCode::Busy, false)] {
        let script = move |mut peer: Peer| async move {
            let (id, _) = peer.request().await;
            let error = WireError { code: code.into(), ..WireError::default() };
            peer.say(ServerFrame::Error { id, error }).await;
        };
        let answer = against(script, async |mut client| client.call(Request::Ping).await).await;
        assert_eq!(answer.expect_err("an error").is_lost(), lost, "{code}");
    }
}

/// Dispatches of an answer too long for one frame precede it, and the client joins them again.
#[tokio::test]
async fn dispatches_that_came_ahead_are_part_of_the_answer() {
    let dispatch = |id: &str| DispatchStatus { id: id.into(), ..frames::status() };
    let script = move |mut peer: Peer| async move {
        let (id, _) = peer.request().await;
        for ahead in ["a", "b"] {
            peer.say(ServerFrame::Item { id, item: Item::Dispatch(Box::new(dispatch(ahead))) })
                .await;
        }
        peer.say(ServerFrame::Reply {
            id,
            body: Reply::Waited { dispatches: vec![dispatch("c")] },
        })
        .await;
    };
    let wait = Request::Wait { ids: vec!["a".into()] };
    let answer = against(script, async |mut client| client.call(wait).await).await;
    let Ok(Reply::Waited { dispatches }) = answer else { panic!("{answer:?}") };
    let ids: Vec<_> = dispatches.iter().map(|dispatch| dispatch.id.as_str()).collect();
    assert_eq!(ids, ["a", "b", "c"]);
}

#[tokio::test]
async fn stream_credits_follow_consumed_items() {
    const ITEMS: u64 = 1000;
    let script = |mut peer: Peer| async move {
        let (id, _) = peer.request().await;
        let mut credits = INITIAL_CREDITS;
        for seq in 0..ITEMS {
            while credits == 0 {
                match peer.hear().await {
                    ClientFrame::Credit { n, .. } => credits += n,
                    other => panic!("{other:?}"),
                }
            }
            credits -= 1;
            peer.say(ServerFrame::Item { id, item: Item::Event { seq, line: String::new() } })
                .await;
        }
        peer.say(ServerFrame::Reply { id, body: Reply::EndOfEvents { next_seq: ITEMS } }).await;
    };
    let seqs = against(script, async |mut client| {
        let mut stream =
            client.stream(Request::Events { from_seq: 0, follow: false }).await.expect("stream");
        let mut seqs = Vec::new();
        loop {
            match stream.next().await.expect("next") {
                Next::Item(Item::Event { seq, .. }) => seqs.push(seq),
                Next::End(Reply::EndOfEvents { next_seq: ITEMS }) => return seqs,
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
    assert!(seqs.into_iter().eq(0..ITEMS));
}

#[tokio::test]
async fn a_cancelled_stream_leaves_the_client_usable() {
    let script = |mut peer: Peer| async move {
        let (id, _) = peer.request().await;
        for seq in 0..3 {
            peer.say(ServerFrame::Item { id, item: Item::Event { seq, line: String::new() } })
                .await;
        }
        assert_eq!(peer.hear().await, ClientFrame::Cancel { id });
        peer.say(ServerFrame::Error { id, error: WireError::default() }).await;
        let (id, _) = peer.request().await;
        peer.say(ServerFrame::Reply { id, body: Reply::Pong }).await;
    };
    let answer = against(script, async |mut client| {
        let mut stream =
            client.stream(Request::Events { from_seq: 0, follow: true }).await.expect("stream");
        assert!(matches!(stream.next().await, Ok(Next::Item(_))));
        stream.cancel().await.expect("cancel");
        client.call(Request::Ping).await
    })
    .await;
    assert!(matches!(answer, Ok(Reply::Pong)));
}
