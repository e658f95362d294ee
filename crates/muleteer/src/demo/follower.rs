//! Following the events through a daemon's death: what an operations channel would do.
//!
//! A task of its own, so that nothing the play waits for holds it up; dropping the [`Follower`] ends
//! it. It remembers the next sequence number it wants, and so neither loses nor repeats an event.

use crate::context::Context;
use muleteer_model::event::Record;
use muleteer_protocol::client::Next;
use muleteer_protocol::v1::{Item, Request};
use std::time::Duration;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinSet;

/// How long it tries to reach a daemon again.
const PATIENCE: Duration = Duration::from_secs(30);
/// Read ahead of what was shown. Then the daemon's stream waits, by its credits.
const AHEAD: usize = 64;

#[derive(Debug)]
pub enum News {
    /// An event, as its line is stored and as it reads.
    Event { line: String, record: Option<Box<Record>> },
    /// The daemon went away.
    Lost,
    /// One answers again; the stream goes on with this event.
    Back { next: u64 },
}

#[derive(Debug)]
pub struct Follower {
    news: Receiver<News>,
    _task: JoinSet<()>,
}

impl Follower {
    /// Follows the daemon that `context` means, from the first event on.
    pub fn start(context: Context) -> Self {
        let (sender, news) = mpsc::channel(AHEAD);
        let mut task = JoinSet::new();
        task.spawn(follow(context, sender));
        Self { news, _task: task }
    }

    /// What happened next; never ends, because a daemon may come back. Cancel safe.
    pub async fn next(&mut self) -> News {
        match self.news.recv().await {
            Some(news) => news,
            None => std::future::pending().await,
        }
    }
}

async fn follow(context: Context, news: Sender<News>) {
    let mut next = 1;
    let mut lost = false;
    while let Ok(mut client) = context.dial_within(PATIENCE).await {
        let Ok(mut stream) = client.stream(Request::Events { from_seq: next, follow: true }).await else { continue };
        if lost && news.send(News::Back { next }).await.is_err() {
            return;
        }
        while let Ok(Next::Item(item)) = stream.next().await {
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
