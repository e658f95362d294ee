//! Events, from the daemon's stream or from the file, as one sequence of lines.
//!
//! Who follows is not let down when the daemon goes away: the same lines go on coming from the
//! file, from the next one wanted, whether a new daemon writes them or nobody does.

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::client::file_watch::FileWatch;
use crate::client::offline::stored;
use muleteer_model::event::Record;
use muleteer_protocol::client::{Client, ClientError, Next};
use muleteer_protocol::v1::{Item, Request};
use muleteer_store::events::tail::{self, Reader, Start};
use std::ops::ControlFlow;

/// One event: the line as it is stored, and what it says; none of an event that this version does
/// not know.
#[derive(Debug)]
pub struct Seen<'a> {
    pub line: &'a str,
    pub record: Option<&'a Record>,
}

/// What is done with each event; it may break off.
pub type Each<'a> = dyn FnMut(Seen<'_>) -> Result<ControlFlow<()>, Failure> + 'a;

/// Hands over every event from `from_seq` on, in order, each once, from the daemon if `client` is
/// connected to one, else from the file; with `follow` also those to come, until `each` breaks off.
/// Cancel safe in that dropping it loses nothing but the place.
///
/// # Errors
/// When neither daemon nor file can be read, and what `each` fails with.
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
        context.out.note("the daemon went away; following its file");
    }
    file(context, next, follow, each).await
}

/// From the daemon. Continues when the connection was lost, with `next` saying where to go on.
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

/// From the file, which need not exist yet.
async fn file(
    context: &Context,
    from_seq: u64,
    follow: bool,
    each: &mut Each<'_>,
) -> Result<(), Failure> {
    let path = context.paths.events();
    // Watched before it is read, or a line written in between would wait for the one after it.
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
            "E_NO_DAEMON",
            format!("there is nothing to follow: {} does not exist", dir.display()),
        )
        .hint("start a daemon with `muleteer daemon`, or anything with `muleteer spawn`"),
    })
}

/// The first sequence number that `start` means, as far as the file on this disk tells; 0 where it
/// cannot be read (an agent in its sandbox), which only means that more is read than needed.
pub fn first_seq(context: &Context, start: Start) -> u64 {
    let first =
        Reader::open(&context.paths.events(), start).and_then(|mut reader| reader.next_line());
    first.ok().flatten().map_or(0, |line| line.record.seq)
}

/// The sequence number from which the last `count` events follow.
pub fn last_seqs(context: &Context, count: u64) -> u64 {
    let newest = tail::newest_seq(&context.paths.events()).unwrap_or(0);
    (newest + 1).saturating_sub(count)
}
