//! Follows a run's events across the daemon's death, as `muleteer run` does and any script may.
//!
//! It is a task of its own, so that no wait of the play delays it; dropping the [`Follower`] ends
//! it. It remembers the next sequence number, and so neither loses nor repeats an event.

use crate::cli::context::Context;
use muleteer_model::event::Record;
use muleteer_protocol::client::Next;
use muleteer_protocol::v1::{Item, Request};
use std::time::Duration;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinSet;

/// How long it tries to reconnect to a daemon.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// The number of events that are read before they are shown. Beyond it the daemon's stream waits,
/// because it runs out of credits.
const AHEAD: usize = 64;

#[derive(Debug)]
pub enum News {
    /// An event, as its stored line and parsed.
    Event { line: String, record: Option<Box<Record>> },
    /// The connection to the daemon was lost.
    Lost,
    /// A daemon answers again; the stream continues with this event.
    Back { next: u64 },
    /// The run has ended, and no more events will come.
    Ended,
}

#[derive(Debug)]
pub struct Follower {
    news: Receiver<News>,
    _task: JoinSet<()>,
}

impl Follower {
    /// Follows a run of the daemon of `context`, from its first event on.
    pub fn start(context: Context, run_id: String) -> Self {
        let (sender, news) = mpsc::channel(AHEAD);
        let mut task = JoinSet::new();
        task.spawn(follow(context, run_id, sender));
        Self { news, _task: task }
    }

    /// Returns the next news; never ends, because a daemon may come back. Cancel safe.
    pub async fn next(&mut self) -> News {
        match self.news.recv().await {
            Some(news) => news,
            None => std::future::pending().await,
        }
    }
}

async fn follow(context: Context, run_id: String, news: Sender<News>) {
    let mut next = 1;
    let mut lost = false;
    while let Ok(mut client) = context.dial_within(PATIENCE).await {
        let wanted = Request::RunEvents { run_id: run_id.clone(), from_seq: next, follow: true };
        let Ok(mut stream) = client.stream(wanted).await else {
            // A daemon that has just started may not have taken over the run yet.
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        if lost && news.send(News::Back { next }).await.is_err() {
            return;
        }
        loop {
            let item = match stream.next().await {
                Ok(Next::Item(item)) => item,
                Ok(Next::End(_)) => {
                    // The receiver may be gone.
                    drop(news.send(News::Ended).await);
                    return;
                }
                Err(_) => break,
            };
            let Item::Event { seq, line } = item else { continue };
            next = next.max(seq + 1);
            let record = serde_json::from_str(&line).ok().map(Box::new);
            if news.send(News::Event { line, record }).await.is_err() {
                return;
            }
        }
        lost = true;
        if news.send(News::Lost).await.is_err() {
            return;
        }
    }
}
