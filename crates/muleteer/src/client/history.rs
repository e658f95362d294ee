//! Events from the daemon's stream or from the file, as one sequence of lines.
//!
//! A client that follows survives the daemon's exit: it falls back to the file and continues with
//! the next sequence number. A later daemon may append to that file, or nobody.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::client::file_watch::FileWatch;
use crate::client::offline::stored;
use muleteer_model::event::Record;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::client::{Client, ClientError, Next};
use muleteer_protocol::v1::{Item, Request};
use muleteer_store::events::tail::{self, Reader, Start};
use std::ops::ControlFlow;

/// One event: its stored line and its parsed record. The record is `None` for an event that this
/// version does not know.
#[derive(Debug)]
pub struct Seen<'a> {
    pub line: &'a str,
    pub record: Option<&'a Record>,
}

/// The callback for each event; it may stop the iteration.
pub type Each<'a> = dyn FnMut(Seen<'_>) -> Result<ControlFlow<()>, Failure> + 'a;

/// Passes every event from `from_seq` to `each`, in order and exactly once. The events come from
/// the daemon if `client` is connected to one, else from the file. With `follow` it also waits for
/// new events, until `each` stops. Cancel safe: dropping the future loses only the current
/// position.
///
/// # Errors
/// When neither daemon nor file can be read, or when `each` fails.
pub async fn events(
    context: &Context,
    client: Option<Client>,
    from_seq: u64,
    follow: bool,
    each: &mut Each<'_>,
) -> Result<(), Failure> {
    let mut next = from_seq;
    if let Some(mut client) = client {
        if stream(&mut client, &mut next, follow, each).await?.is_break() || !follow {
            return Ok(());
        }
        context.out.note("the daemon ended; following its event file");
    }
    file(context, next, follow, each).await
}

/// Reads from the daemon. Returns `Continue` if the connection was lost; `next` is then the next
/// sequence number.
async fn stream(
    client: &mut Client,
    next: &mut u64,
    follow: bool,
    each: &mut Each<'_>,
) -> Result<ControlFlow<()>, Failure> {
    let mut stream = client.stream(Request::Events { from_seq: *next, follow }).await?;
    loop {
        match stream.next().await {
            Ok(Next::Item(Item::Event { seq, line })) => {
                let record: Option<Record> = serde_json::from_str(&line).ok();
                *next = (*next).max(seq + 1);
                if each(Seen { line: &line, record: record.as_ref() })?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(Next::Item(_)) => {}
            Ok(Next::End(_)) if !follow => return Ok(ControlFlow::Break(())),
            Ok(Next::End(_)) | Err(ClientError::Lost) => return Ok(ControlFlow::Continue(())),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads from the file, which need not exist yet.
async fn file(
    context: &Context,
    from_seq: u64,
    follow: bool,
    each: &mut Each<'_>,
) -> Result<(), Failure> {
    let path = context.paths.events();
    // The watch starts before the first read. Otherwise a line written in between would stay
    // unnoticed until the next one.
    let watch = if follow { Some(watch_state(context)?) } else { None };
    let mut reader = Reader::open(&path, Start::Seq(from_seq)).map_err(stored)?;
    loop {
        while let Some(line) = reader.next_line().map_err(stored)? {
            if each(Seen { line: &line.raw, record: Some(&line.record) })?.is_break() {
                return Ok(());
            }
        }
        match &watch {
            Some(watch) => watch.changed().await,
            None => return Ok(()),
        }
    }
}

fn watch_state(context: &Context) -> Result<FileWatch, Failure> {
    let dir = &context.paths.state_dir;
    FileWatch::on(&[dir]).map_err(|failure| match dir.exists() {
        true => failure,
        false => Failure::new(
            ErrorCode::NoDaemon,
            format!("nothing to follow: {} does not exist", dir.display()),
        )
        .hint("start a daemon with `muleteer daemon`, or an agent with `muleteer spawn`"),
    })
}

/// Returns the first sequence number that `start` means, according to the local file. Returns 0 if
/// the file cannot be read, as by an agent in its sandbox; the caller then only reads more than it
/// needs.
pub fn first_seq(context: &Context, start: Start) -> u64 {
    let first =
        Reader::open(&context.paths.events(), start).and_then(|mut reader| reader.next_line());
    first.ok().flatten().map_or(0, |line| line.record.seq)
}

/// Returns the sequence number at which the last `count` events begin.
pub fn last_seqs(context: &Context, count: u64) -> u64 {
    let newest = tail::newest_seq(&context.paths.events()).unwrap_or(0);
    (newest + 1).saturating_sub(count)
}
