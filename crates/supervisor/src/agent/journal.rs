//! Keeps one journal file: our lines follow from the ledger, so they can always be restored; lines
//! of the agent (or a person) are picked up and become events.
//!
//! The actor's only state that matters is the ledger and the file: killed anywhere, the next one
//! works out from both what is missing.

use crate::context::Daemon;
use crate::ledger::{append, entry};
use crate::watch::WatchMsg;
use jiff::tz::Offset;
use muleteer_model::event::{Event, Record};
use muleteer_model::id::DispatchId;
use muleteer_model::journal::{self, Header, Status};
use muleteer_process::fault;
use muleteer_store::tail;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// A journal larger than this is no journal: it is left alone from there on, and said so.
const FILE_LIMIT: u64 = 8 * 1024 * 1024;

#[derive(Debug)]
pub enum JournalMsg {
    Boot,
    /// Events of this dispatch that are durable.
    Records(Vec<Record>),
    FileChanged,
    WatchAgain,
    /// Answered when the file holds everything that is durable.
    Flush(RpcReplyPort<()>),
}

pub struct Journal;

pub struct State {
    daemon: Arc<Daemon>,
    id: DispatchId,
    path: PathBuf,
    header: Header,
    /// By the seq of their records.
    ours: BTreeMap<u64, String>,
    /// The agent's lines that are events already.
    theirs: BTreeMap<u64, String>,
    too_large: bool,
}

impl Actor for Journal {
    type Msg = JournalMsg;
    type State = State;
    type Arguments = (Arc<Daemon>, DispatchId);

    async fn pre_start(
        &self,
        myself: ActorRef<JournalMsg>,
        (daemon, id): (Arc<Daemon>, DispatchId),
    ) -> Result<State, ActorProcessingErr> {
        let dispatch = daemon.snapshot().get(&id).cloned().ok_or("the dispatch is not in the ledger")?;
        let created = &dispatch.created;
        let header = Header {
            feature: created.feature.clone(),
            spec: None,
            project: created.project.clone(),
            branch: created.branch.clone().unwrap_or_else(|| "-".into()),
            started: dispatch.created_at,
        };
        let path = PathBuf::from(&created.journal);
        daemon.agent(&id).journal.set(myself.clone());
        myself.cast(JournalMsg::Boot)?;
        Ok(State { daemon, id, path, header, ours: BTreeMap::new(), theirs: BTreeMap::new(), too_large: false })
    }

    async fn handle(
        &self,
        _: ActorRef<JournalMsg>,
        message: JournalMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            JournalMsg::Boot => {
                state.replay()?;
                state.write()?;
                state.watch();
                state.pick_up().await?;
            }
            JournalMsg::Records(records) => {
                for record in records {
                    state.take(&record);
                }
                state.write()?;
            }
            JournalMsg::FileChanged => {
                state.pick_up().await?;
                state.write()?;
            }
            JournalMsg::WatchAgain => state.watch(),
            JournalMsg::Flush(reply) => {
                state.pick_up().await?;
                state.write()?;
                state.daemon.watcher.cast(WatchMsg::Unwatch(state.id.clone()));
                let _ = reply.send(());
            }
        }
        Ok(())
    }
}

impl State {
    fn watch(&self) {
        self.daemon.watcher.cast(WatchMsg::Watch(self.path.clone(), self.id.clone()));
    }

    /// Reads what happened to this dispatch so far.
    fn replay(&mut self) -> Result<(), ActorProcessingErr> {
        let dispatch = self.daemon.snapshot().get(&self.id).cloned().ok_or("the dispatch is not in the ledger")?;
        let (start, known) = self.daemon.history(&dispatch);
        known.iter().for_each(|record| self.take(record));
        let mut reader = tail::Reader::follow(&self.daemon.paths.events(), start)?;
        while let Some(line) = reader.next_line()? {
            if line.record.entry.dispatch_id.as_ref() == Some(&self.id) {
                self.take(&line.record);
            }
        }
        Ok(())
    }

    /// Renders a record once. They come by several ways (life, gate, our own appends) and so in no
    /// certain order; the file has them in the order of the log.
    fn take(&mut self, record: &Record) {
        if let Event::JournalEntry { text } = &record.entry.event {
            self.theirs.entry(record.seq).or_insert_with(|| text.clone());
        } else if let Some(line) = journal::harness_line(record, Offset::UTC) {
            self.ours.entry(record.seq).or_insert(line);
        }
    }

    fn expected(&self) -> Vec<String> {
        self.ours.values().cloned().collect()
    }

    /// Makes events of the lines the agent has added since.
    async fn pick_up(&mut self) -> Result<(), ActorProcessingErr> {
        let Some(text) = self.read()? else { return Ok(()) };
        let fresh = journal::agent_lines(&text, &self.expected(), &self.theirs.values().cloned().collect::<Vec<_>>());
        let entries = fresh
            .into_iter()
            .map(|text| entry(&self.id, None, Event::JournalEntry { text }))
            .collect();
        for record in append(&self.daemon, entries).await? {
            self.take(&record);
        }
        Ok(())
    }

    fn status(&self) -> Status {
        self.daemon
            .snapshot()
            .get(&self.id)
            .map_or(Status::InProgress, |dispatch| journal::status_of(dispatch))
    }

    /// Brings the file up to date: by appending where that is all it takes, since an agent may be
    /// appending at the same moment; else by replacing it.
    fn write(&mut self) -> Result<(), ActorProcessingErr> {
        let Some(existing) = self.read()? else { return Ok(()) };
        let Some(wanted) = journal::reconcile(&existing, &self.header, &self.expected(), self.status(), Offset::UTC)
        else {
            return Ok(());
        };
        fault::point("journal.mid_batch");
        match wanted.strip_prefix(existing.as_str()) {
            Some(rest) if !existing.is_empty() => {
                let mut file = std::fs::OpenOptions::new().append(true).open(&self.path)?;
                file.write_all(rest.as_bytes())?;
            }
            _ => {
                if let Some(folder) = self.path.parent() {
                    std::fs::create_dir_all(folder)?;
                }
                // Somebody may have written since we read: then the watcher calls us again.
                if self.read()?.as_deref() == Some(existing.as_str()) {
                    muleteer_store::atomic::write_atomic(&self.path, wanted.as_bytes(), 0o644)?;
                }
            }
        }
        Ok(())
    }

    /// The file as it is; empty when there is none, `None` when it is out of all proportion.
    fn read(&mut self) -> Result<Option<String>, ActorProcessingErr> {
        let file = match std::fs::File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(String::new())),
            Err(error) => return Err(format!("{}: {error}", self.path.display()).into()),
        };
        let mut bytes = Vec::new();
        file.take(FILE_LIMIT + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > FILE_LIMIT {
            if !std::mem::replace(&mut self.too_large, true) {
                let message = format!("{} has grown beyond {FILE_LIMIT} bytes: it is left alone", self.path.display());
                self.daemon.note(Event::Fault { what: "journal".into(), message });
            }
            return Ok(None);
        }
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }
}
