//! Maintains one journal file. The harness's lines follow from the ledger, so they can always be
//! restored. Lines of the agent (or a person) are read and become events.
//!
//! The ledger and the file are the only state that matters: an actor that restarts derives from
//! both what is missing.

use crate::daemon::context::Daemon;
use crate::daemon::start::private_dir::private_dir;
use crate::ledger::{append, entry};
use crate::ports::agent::{FileState, JournalMsg};
use crate::ports::watch::WatchMsg;
use jiff::tz::Offset;
use muleteer_backends::TRAITS;
use muleteer_model::dispatch::Dispatch;
use muleteer_model::event::id::DispatchId;
use muleteer_model::event::{Event, Record};
use muleteer_model::journal::writer_detection::{Act, Hand, Need};
use muleteer_model::journal::{self, FILE_LIMIT, Header, Status};
use muleteer_process::fault;
use muleteer_store::atomic;
use muleteer_store::events::tail;
use muleteer_store::links::stay_within;
use muleteer_vcs::untrusted_path;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The limit of agent lines that become events. Each of them stays in the log and in memory for
/// ever.
const ENTRIES: usize = 10_000;
/// The number of lines in one append, because all dispatches share the log.
const BATCH: usize = 256;

pub struct Journal;

pub struct State {
    daemon: Arc<Daemon>,
    id: DispatchId,
    path: PathBuf,
    header: Header,
    /// The harness's lines, by the sequence numbers of their records.
    ours: BTreeMap<u64, String>,
    /// The agent's lines that are events already.
    theirs: BTreeMap<u64, String>,
    too_large: bool,
    /// The error that prevents writing the file. It is recorded once.
    fault: Option<String>,
    settled: Option<Settled>,
    hand: Hand,
    /// The state in which this actor last left the file.
    left: Option<FileState>,
    /// The file was made or found, so an agent may be started.
    begun: bool,
    /// The file must be read again after [`Hand::patience`].
    wants_another_look: bool,
    /// A [`JournalMsg::Still`] is scheduled.
    due: bool,
}

/// The state of the file when it was last complete. While the state is the same, nobody else has
/// written to the file, and an update is one append, however long the file is.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Settled {
    stand: FileState,
    /// The sequence number of the newest record in the file.
    seq: u64,
    status: Status,
}

/// The file as it was read.
struct Seen {
    /// The state of the file before it was read.
    before: Option<Settled>,
    text: String,
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
        let dispatch =
            daemon.snapshot().get(&id).cloned().ok_or("the dispatch is not in the ledger")?;
        let created = &dispatch.created;
        let header = Header {
            feature: created.feature.clone(),
            spec: created.spec.clone(),
            task: created.title.clone(),
            project: created.project.clone(),
            branch: created.branch.clone().unwrap_or_else(|| "-".into()),
            started: dispatch.created_at,
        };
        let path = PathBuf::from(&created.journal);
        daemon.agent(&id).journal.set(myself.clone());
        myself.cast(JournalMsg::Boot)?;
        Ok(State {
            daemon,
            id,
            path,
            header,
            ours: BTreeMap::new(),
            theirs: BTreeMap::new(),
            too_large: false,
            fault: None,
            settled: None,
            hand: Hand::default(),
            left: None,
            begun: false,
            wants_another_look: false,
            due: false,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<JournalMsg>,
        message: JournalMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            JournalMsg::Boot => {
                state.replay()?;
                Box::pin(state.catch_up(false)).await?;
                state.watch();
                // The agent may have written before the watcher started.
                if !state.is_settled() {
                    Box::pin(state.catch_up(false)).await?;
                }
                state.begun = true;
                state.daemon.agent(&state.id).has_journal.store(true, Ordering::SeqCst);
            }
            JournalMsg::Records(records) => {
                for record in records {
                    state.take(&record);
                }
                match state.extend() {
                    Ok(true) => state.fault = None,
                    Ok(false) => Box::pin(state.catch_up(false)).await?,
                    Err(error) => state.complain(&error.to_string()),
                }
            }
            JournalMsg::FileChanged(touches) => {
                let ours = state.left.is_some() && state.left == state.stand();
                state.hand.touched(touches, ours);
                if !state.is_settled() {
                    Box::pin(state.catch_up(false)).await?;
                }
            }
            JournalMsg::Still(then) => {
                state.due = false;
                let still = then == state.stand();
                Box::pin(state.catch_up(still)).await?;
            }
            JournalMsg::WatchAgain => state.watch(),
            JournalMsg::Ready(reply) => {
                let _ = reply.send(());
            }
            JournalMsg::Flush(reply) => {
                // The last update reads the whole file, in case the file system's clock missed a
                // change.
                state.settled = None;
                state.hand.left();
                Box::pin(state.catch_up(true)).await?;
                state.daemon.ports.watcher.cast(WatchMsg::Unwatch(state.id.clone()));
                let _ = reply.send(());
            }
        }
        if state.wants_another_look && !std::mem::replace(&mut state.due, true) {
            let then = state.stand();
            myself.send_after(state.hand.patience(), move || JournalMsg::Still(then));
        }
        state.wants_another_look = false;
        Ok(())
    }
}

impl State {
    fn watch(&mut self) {
        self.hand.watched();
        self.daemon.ports.watcher.cast(WatchMsg::Watch(self.path.clone(), self.id.clone()));
    }

    /// Reads the events of this dispatch so far.
    fn replay(&mut self) -> Result<(), ActorProcessingErr> {
        let dispatch = self
            .daemon
            .snapshot()
            .get(&self.id)
            .cloned()
            .ok_or("the dispatch is not in the ledger")?;
        let known = self.daemon.backlog().history(&dispatch);
        let start = match known {
            Ok(known) => {
                known.iter().for_each(|record| self.take(record));
                return Ok(());
            }
            Err(start) => start,
        };
        let mut reader = tail::Reader::follow(&self.daemon.paths.events(), start)?;
        while let Some(line) = reader.next_line()? {
            if line.record.entry.dispatch_id.as_ref() == Some(&self.id) {
                self.take(&line.record);
            }
        }
        Ok(())
    }

    /// Renders a record once. Records come by several ways (life, gate, own appends), so in no
    /// certain order. The file has them in the order of the log.
    fn take(&mut self, record: &Record) {
        if let Event::AgentExited { .. } = &record.entry.event {
            self.hand.left();
        }
        if let Event::JournalEntry { text } = &record.entry.event {
            self.theirs.entry(record.seq).or_insert_with(|| text.clone());
        } else if let Some(line) = journal::harness_line(record, Offset::UTC, TRAITS) {
            self.ours.entry(record.seq).or_insert(line);
            // A record that came late belongs before the end of the file.
            self.settled = self.settled.filter(|settled| record.seq > settled.seq);
        }
    }

    fn expected(&self) -> Vec<String> {
        self.ours.values().cloned().collect()
    }

    /// Turns the agent's new lines into events, and writes the harness's lines. `still` says that
    /// the file has not changed for [`Hand::patience`].
    async fn catch_up(&mut self, still: bool) -> Result<(), ActorProcessingErr> {
        match self.look() {
            Ok(Some(seen)) => {
                self.pick_up(&seen.text).await?;
                self.write(&seen, still);
            }
            Ok(None) => {}
            Err(error) => self.complain(&error.to_string()),
        }
        Ok(())
    }

    /// Reads the file and its state.
    fn look(&mut self) -> Result<Option<Seen>, ActorProcessingErr> {
        let before = self.settling();
        Ok(self.read()?.map(|text| Seen { before, text }))
    }

    /// Turns lines that the agent has added into events.
    async fn pick_up(&mut self, text: &str) -> Result<(), ActorProcessingErr> {
        let fresh = journal::agent_lines(
            text,
            &self.expected(),
            &self.theirs.values().cloned().collect::<Vec<_>>(),
        );
        let room = ENTRIES.saturating_sub(self.theirs.len());
        if fresh.len() > room {
            self.leave_alone(&format!(
                "has more than {ENTRIES} entries of its agent: ignoring the rest"
            ));
        }
        for batch in fresh[..room.min(fresh.len())].chunks(BATCH) {
            let entries = batch
                .iter()
                .map(|text| entry(&self.id, None, Event::JournalEntry { text: text.clone() }));
            for record in append(&self.daemon, entries.collect()).await? {
                self.take(&record);
            }
        }
        Ok(())
    }

    /// Records once that the file is too large.
    fn leave_alone(&mut self, why: &str) {
        if !std::mem::replace(&mut self.too_large, true) {
            self.daemon.fault(&self.id, "journal", format!("{} {why}", self.path.display()));
        }
    }

    fn status(&self) -> Status {
        self.daemon
            .snapshot()
            .get(&self.id)
            .map_or(Status::InProgress, |dispatch| journal::status_of(dispatch))
    }

    /// Returns `None` if there is no file.
    fn stand(&self) -> Option<FileState> {
        let meta = std::fs::symlink_metadata(&self.path).ok()?;
        Some(FileState {
            inode: meta.ino(),
            len: meta.len(),
            changed: (meta.ctime(), meta.ctime_nsec()),
        })
    }

    fn settling(&self) -> Option<Settled> {
        let seq = self.ours.keys().next_back().copied().unwrap_or_default();
        Some(Settled { stand: self.stand()?, seq, status: self.status() })
    }

    fn is_settled(&self) -> bool {
        self.settled.is_some() && self.settled == self.settling()
    }

    /// Returns whether no agent runs: it has not started yet, or it has ended.
    fn is_alone(&self) -> bool {
        let dispatch = self.daemon.snapshot().get(&self.id).cloned();
        let unbegun = |dispatch: &Dispatch| !self.begun && dispatch.containment.is_none();
        dispatch.is_none_or(|dispatch| unbegun(&dispatch) || dispatch.is_finished())
    }

    /// Appends the new lines to a complete file. Returns `false` if the file must be read first.
    fn extend(&mut self) -> Result<bool, ActorProcessingErr> {
        let (Some(then), Some(now)) = (self.settled, self.settling()) else { return Ok(false) };
        if (Settled { seq: then.seq, ..now }) != then || self.hand.is_at_it() {
            return Ok(false);
        }
        let fresh: String =
            self.ours.range(then.seq + 1..).map(|(_, line)| format!("{line}\n")).collect();
        if !fresh.is_empty() {
            self.append(&fresh)?;
            let now = self.settling();
            // If somebody else's line is before or after ours now, the file must be read.
            self.settled = now.filter(|now| now.stand.len == then.stand.len + fresh.len() as u64);
            self.left = self.settled.map(|now| now.stand);
        }
        Ok(self.settled.is_some())
    }

    fn append(&mut self, text: &str) -> Result<(), ActorProcessingErr> {
        fault::point("journal.mid_batch");
        untrusted_path::append(&self.path, text.as_bytes())?;
        self.hand.appended();
        Ok(())
    }

    /// Updates the file. If that fails, a fault is recorded and the work continues: the lines
    /// follow from the ledger and can be written later.
    fn write(&mut self, seen: &Seen, still: bool) {
        match self.try_write(seen, still) {
            Ok(()) => self.fault = None,
            Err(error) => self.complain(&error.to_string()),
        }
    }

    fn complain(&mut self, error: &str) {
        let message = format!("{}: {error}", self.path.display());
        if self.fault.as_ref() != Some(&message) {
            self.daemon.fault(&self.id, "journal", message.clone());
            self.fault = Some(message);
        }
    }

    /// Appends if that is enough, because an agent may append at the same moment; otherwise it
    /// replaces the file. It does either only when nobody else writes.
    fn try_write(&mut self, seen: &Seen, still: bool) -> Result<(), ActorProcessingErr> {
        self.settled = None;
        let (existing, status) = (seen.text.as_str(), self.status());
        let wanted =
            journal::reconcile(existing, &self.header, &self.expected(), status, Offset::UTC);
        let rest = wanted
            .as_deref()
            .and_then(|wanted| wanted.strip_prefix(existing))
            .filter(|_| seen.before.is_some());
        let shrank = self.left.is_some_and(|left| (existing.len() as u64) < left.len);
        let need = Need::of(wanted.is_none(), rest.is_some(), shrank);
        let wanted = wanted.as_deref().unwrap_or(existing);
        match self.hand.act(need, still, self.is_alone()) {
            Act::Nothing => {
                // The file is complete if it is still the file that was read, up to its final
                // newline.
                self.settled = seen.before.filter(|before| {
                    existing.ends_with('\n')
                        && existing.len() as u64 == before.stand.len
                        && Some(*before) == self.settling()
                });
                return Ok(());
            }
            Act::Append => self.append(rest.unwrap_or_default())?,
            Act::Replace => {
                if !self.replace(existing, wanted)? {
                    self.wants_another_look = true;
                    return Ok(());
                }
            }
            Act::Later => {
                self.wants_another_look = true;
                return Ok(());
            }
            Act::Wait => return Ok(()),
        }
        // If the last line is incomplete, the agent has not written all of it yet.
        let whole = existing.is_empty() || existing.ends_with('\n');
        let now = self.settling().filter(|now| now.stand.len == wanted.len() as u64);
        self.left = now.map(|now| now.stand);
        self.settled = now.filter(|now| whole && now.status == status);
        Ok(())
    }

    /// Replaces the file. Returns false if somebody has written to it since it was read.
    fn replace(&mut self, existing: &str, wanted: &str) -> Result<bool, ActorProcessingErr> {
        fault::point("journal.mid_batch");
        if let Some(folder) = self.path.parent() {
            stay_within(&project_of(folder), folder)?;
            private_dir(folder)?;
        }
        let path = self.path.clone();
        let mut same = || self.read().is_ok_and(|now| now.as_deref() == Some(existing));
        if existing.is_empty() {
            // The harness's lines follow from the ledger, so only an agent's lines need a sync.
            return Ok(
                same() && atomic::write_whole(&path, wanted.as_bytes(), 0o600).map(|()| true)?
            );
        }
        Ok(atomic::write_atomic_if(&path, wanted.as_bytes(), 0o600, same)?)
    }

    /// Reads the file: empty if there is none, `None` if it is too large. The agent may have
    /// replaced it by a link to a file that the agent itself cannot read, or by a pipe that never
    /// ends.
    fn read(&mut self) -> Result<Option<String>, ActorProcessingErr> {
        match untrusted_path::read_file(&self.path, FILE_LIMIT) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Some(String::new())),
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                self.leave_alone(&format!("has grown beyond {FILE_LIMIT} bytes: ignoring it"));
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the directory with the `.agents/journals` that a folder is in; the folder itself if it
/// is elsewhere, in a place of ours.
fn project_of(folder: &Path) -> PathBuf {
    let journals = folder.ancestors().find(|above| above.ends_with(".agents/journals"));
    journals.and_then(|journals| journals.ancestors().nth(2)).unwrap_or(folder).to_path_buf()
}
