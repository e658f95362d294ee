//! Following a run's events through a daemon's death: what `muleteer run` does, and any script may.
//!
//! A task of its own, so that nothing the play waits for holds it up; dropping the [`Follower`]
//! ends it. It remembers the next sequence number it wants, and so neither loses nor repeats an
//! event.

use crate::cli::context::Context;
use muleteer_model::event::Record;
use muleteer_protocol::client::Next;
use muleteer_protocol::v1::{Item, Request};
use std::time::Duration;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::JoinSet;

/// How long it tries to reach a daemon again.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
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
    /// The run has ended, and nothing more will come.
    Ended,
}

#[derive(Debug)]
pub struct Follower {
    news: Receiver<News>,
    _task: JoinSet<()>,
}

impl Follower {
    /// Follows a run of the daemon that `context` means, from its first event on.
    pub fn start(context: Context, run_id: String) -> Self {
        let (sender, news) = mpsc::channel(AHEAD);
        let mut task = JoinSet::new();
        task.spawn(follow(context, run_id, sender));
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

async fn follow(context: Context, run_id: String, news: Sender<News>) {
    let mut next = 1;
    let mut lost = false;
    while let Ok(mut client) = context.dial_within(PATIENCE).await {
        let wanted = Request::RunEvents { run_id: run_id.clone(), from_seq: next, follow: true };
        let Ok(mut stream) = client.stream(wanted).await else {
            // A daemon that has just started may not have taken the run over yet.
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
                    // Nobody may be listening any more.
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
