//! Sends messages to a thread, alternating with a plain write of as many bytes and fdatasync
//! (`cargo xtask bench message_`). Prints `floor_us ours_us` for each round.
//!
//! `talker SOCKET KEY-FILE THREAD DIR ROUNDS`

use muleteer_protocol::client::Client;
use muleteer_protocol::v1::{Reply, Request, ThreadSend};
use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// The length of the event of such a message.
const BYTES: usize = 420;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, key, thread, dir, rounds] = &args[..] else {
        return Err("talker SOCKET KEY-FILE THREAD DIR ROUNDS".into());
    };
    let key = std::fs::read_to_string(key)?.trim().to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(talk(Path::new(socket), key, thread, Path::new(dir), rounds.parse()?))
}

async fn talk(
    socket: &Path,
    key: String,
    thread: &str,
    dir: &Path,
    rounds: usize,
) -> Result<(), Box<dyn Error>> {
    let mut client = Client::connect(socket, "talker", Some(key)).await?;
    let mut bare = std::fs::File::create(dir.join("bare"))?;
    for round in 0..=rounds {
        let begun = Instant::now();
        bare.write_all(&[b'x'; BYTES])?;
        bare.sync_data()?;
        let floor = begun.elapsed();
        let sent = ThreadSend {
            thread: thread.into(),
            text: "a message of the length that people write to an agent in a chat".into(),
            key: format!("bench{round:010}"),
            name: "bench".into(),
            files: vec![],
        };
        let begun = Instant::now();
        match client.call(Request::ThreadSend(Box::new(sent))).await? {
            Reply::MessageAccepted { .. } => {}
            other => return Err(format!("{other:?}").into()),
        }
        let ours = begun.elapsed();
        if round > 0 {
            println!("{} {}", floor.as_secs_f64() * 1e6, ours.as_secs_f64() * 1e6);
        }
    }
    Ok(())
}
