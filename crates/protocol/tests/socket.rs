//! Tests the daemon's socket without a daemon.

use muleteer_protocol::socket::{Listener, Peer, answers, connect};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

fn names(folder: &Path) -> Vec<String> {
    let all = std::fs::read_dir(folder).expect("a folder");
    all.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect()
}

#[tokio::test]
async fn bytes_pass_both_ways_and_the_listener_sees_the_process_that_connected() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("sock");
    let listener = Listener::bind(&path).expect("bind");
    let mut client = connect(&path).await.expect("connect");
    let mut server = listener.accept().await.expect("accept");
    let own = Peer { uid: rustix::process::getuid().as_raw(), pid: Some(std::process::id()) };
    assert_eq!(server.peer().expect("credentials"), own);
    let (mut reader, mut writer) = (server.clone(), server.clone());
    let mut heard = [0; 3];
    client.write_all(b"ask").await.expect("write");
    reader.read_exact(&mut heard).await.expect("read");
    assert_eq!(&heard, b"ask");
    writer.write_all(b"say").await.expect("write");
    client.read_exact(&mut heard).await.expect("read");
    assert_eq!(&heard, b"say");
    drop((reader, writer));
    server.write_all(b"end").await.expect("it is open as long as one of its clones");
    drop(server);
    let mut rest = vec![];
    client.read_to_end(&mut rest).await.expect("the end");
    assert_eq!(rest, b"end");
}

#[tokio::test]
async fn new_listener_replaces_the_old_one_and_survives_its_drop() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("sock");
    assert!(!answers(&path));
    let former = Listener::bind(&path).expect("bind");
    let listener = Listener::bind(&path).expect("bind again");
    drop(former);
    assert!(answers(&path));
    assert_eq!(path.metadata().expect("the socket").permissions().mode() & 0o777, 0o600);
    assert_eq!(names(dir.path()), ["sock"]);
    drop(listener);
    assert_eq!(names(dir.path()), ["sock"], "it is for the next one to replace");
    assert!(!answers(&path));
    let refused = connect(&path).await.expect_err("no listener");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn socket_with_a_long_path_is_bound_and_reached() {
    let dir = tempfile::tempdir().expect("dir");
    let deep = dir.path().join("d".repeat(90)).join("e".repeat(90));
    std::fs::create_dir_all(&deep).expect("folders");
    let path = deep.join("sock");
    let listener = Listener::bind(&path).expect("bind");
    assert!(answers(&path));
    let (client, server) = tokio::join!(connect(&path), listener.accept());
    client.and(server).expect("a connection");
}

/// The kernel then refuses a client with EAGAIN, and no connection is in progress.
#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
async fn a_client_waits_while_the_queue_of_the_socket_is_full() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("sock");
    let address = SocketAddrUnix::new(&path).expect("an address");
    let socket = |flags| {
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .expect("a socket")
    };
    let listener: OwnedFd = socket(SocketFlags::CLOEXEC);
    rustix::net::bind(&listener, &address).expect("bind");
    rustix::net::listen(&listener, 1).expect("listen");
    let mut queued = vec![];
    loop {
        let client = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        match rustix::net::connect(&client, &address) {
            Ok(()) => queued.push(client),
            Err(rustix::io::Errno::AGAIN) => break,
            Err(error) => panic!("{error}"),
        }
    }
    let waiting = connect(&path);
    tokio::pin!(waiting);
    tokio::select! {
        biased;
        early = &mut waiting => panic!("there is no place for it yet: {early:?}"),
        () = tokio::time::sleep(Duration::from_secs(1)) => {}
    }
    for _ in 0..queued.len() {
        rustix::net::accept(&listener).expect("a client of the queue");
    }
    let mut client = waiting.await.expect("a place");
    client.write_all(b"x").await.expect("write");
    let server = rustix::net::accept(&listener).expect("the client");
    let mut heard = [0; 1];
    assert_eq!(rustix::io::read(&server, &mut heard), Ok(1));
}

/// A reader that always finds data must yield to the deadline beside it.
#[tokio::test]
async fn a_peer_that_sends_without_end_does_not_keep_a_task_to_itself() {
    const MANY: usize = 4096;
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("sock");
    let listener = Listener::bind(&path).expect("bind");
    let mut client = connect(&path).await.expect("connect");
    let mut server = listener.accept().await.expect("accept");
    client.write_all(&[0; MANY]).await.expect("write");
    let read_all = async {
        for _ in 0..MANY {
            server.read_u8().await.expect("a byte");
        }
    };
    tokio::select! {
        biased;
        () = read_all => panic!("nothing else of the task ran"),
        () = std::future::ready(()) => {}
    }
}
