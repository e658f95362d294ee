//! One file watcher for every journal and for the daemon's configuration, because inotify instances
//! are few (often 128 per user).

use crate::daemon::context::Daemon;
use crate::ports::agent::JournalMsg;
use crate::ports::watch::WatchMsg;
use muleteer_model::event::Event;
use muleteer_model::event::id::DispatchId;
use muleteer_model::journal::writer_detection::{Touch, Touches};
use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{RecommendedWatcher, RecursiveMode, Watcher as _};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

pub struct Watch;

pub struct State {
    daemon: Arc<Daemon>,
    /// `None` if the system allows no more watchers: then agents' lines are read when the agents
    /// end.
    watcher: Option<RecommendedWatcher>,
    files: HashMap<PathBuf, Owner>,
    folders: HashMap<PathBuf, u32>,
    changed: Arc<Mutex<HashMap<PathBuf, Touches>>>,
}

/// The one who is told of a change.
#[derive(PartialEq)]
enum Owner {
    Journal(DispatchId),
    Configuration,
}

impl Actor for Watch {
    type Msg = WatchMsg;
    type State = State;
    type Arguments = Arc<Daemon>;

    async fn pre_start(
        &self,
        myself: ActorRef<WatchMsg>,
        daemon: Arc<Daemon>,
    ) -> Result<State, ActorProcessingErr> {
        daemon.ports.watcher.set(myself.clone());
        myself.cast(WatchMsg::Boot)?;
        Ok(State {
            daemon,
            watcher: None,
            files: HashMap::new(),
            folders: HashMap::new(),
            changed: Arc::default(),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<WatchMsg>,
        message: WatchMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            WatchMsg::Boot => {
                match watcher(myself, state.changed.clone()) {
                    Ok(watcher) => state.watcher = Some(watcher),
                    Err(error) => {
                        let message = format!(
                            "{error}; Muleteer reads agents' journal entries when the agents end"
                        );
                        state.daemon.note(Event::Fault { what: "journal watcher".into(), message });
                    }
                }
                state.watch_configuration();
                // After a restart the living journals must be watched again.
                for dispatch in state.daemon.snapshot().unfinished() {
                    state.daemon.agent(&dispatch.id).journal.cast(JournalMsg::WatchAgain);
                }
            }
            WatchMsg::Watch(file, id) => {
                let Some(folder) = file.parent().map(PathBuf::from) else { return Ok(()) };
                if state.files.insert(file, Owner::Journal(id)).is_none() {
                    let users = state.folders.entry(folder.clone()).or_default();
                    *users += 1;
                    if *users == 1
                        && let Some(watcher) = &mut state.watcher
                        && let Err(error) = watcher.watch(&folder, RecursiveMode::NonRecursive)
                    {
                        state.folders.remove(&folder);
                        let message = format!(
                            "{}: {error}; Muleteer reads the agent's journal entries when it ends",
                            folder.display()
                        );
                        state.daemon.note(Event::Fault { what: "journal watcher".into(), message });
                    }
                }
            }
            WatchMsg::Unwatch(id) => {
                let gone: Vec<_> = state
                    .files
                    .iter()
                    .filter(|(_, owner)| matches!(owner, Owner::Journal(of) if *of == id))
                    .map(|(file, _)| file.clone())
                    .collect();
                for file in gone {
                    state.files.remove(&file);
                    let Some(folder) = file.parent() else { continue };
                    if let Some(users) = state.folders.get_mut(folder) {
                        *users -= 1;
                        if *users == 0 {
                            state.folders.remove(folder);
                            let _ = state.watcher.as_mut().map(|watcher| watcher.unwatch(folder));
                        }
                    }
                }
            }
            WatchMsg::Changed => {
                let changed = std::mem::take(
                    &mut *state.changed.lock().unwrap_or_else(PoisonError::into_inner),
                );
                for (file, touches) in changed {
                    match state.files.get(&file) {
                        Some(Owner::Journal(id)) => {
                            let changed = JournalMsg::FileChanged(touches);
                            state.daemon.agent(id).journal.cast(changed);
                        }
                        Some(Owner::Configuration) => state.daemon.configured.notify_one(),
                        None => {}
                    }
                }
            }
        }
        Ok(())
    }
}

impl State {
    /// Watches the folders of the configuration files. Their readers also look from time to time,
    /// so a folder that does not exist yet is no fault.
    fn watch_configuration(&mut self) {
        let given = self.daemon.settings.config_file.clone();
        for file in std::iter::once(self.daemon.paths.config_file()).chain(given) {
            let Some(folder) = file.parent().map(PathBuf::from) else { continue };
            let watched = |watcher: &mut RecommendedWatcher| {
                watcher.watch(&folder, RecursiveMode::NonRecursive).is_ok()
            };
            if self.watcher.as_mut().is_some_and(watched) {
                *self.folders.entry(folder).or_default() += 1;
                self.files.insert(file, Owner::Configuration);
            }
        }
    }
}

fn watcher(
    actor: ActorRef<WatchMsg>,
    changed: Arc<Mutex<HashMap<PathBuf, Touches>>>,
) -> notify::Result<RecommendedWatcher> {
    notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let Ok(event) = event else { return };
        let touch = match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(Touch::Closed),
            EventKind::Access(_) => return,
            // Without close events (outside of Linux) a writer would count as writing for ever.
            EventKind::Modify(ModifyKind::Data(_)) => {
                cfg!(target_os = "linux").then_some(Touch::Written)
            }
            EventKind::Modify(ModifyKind::Name(_)) | EventKind::Remove(_) => Some(Touch::Renamed),
            // A process that creates a file may not have written to it yet. Other events do not
            // show whether somebody writes.
            _ => None,
        };
        // However fast an agent writes, at most one message is queued.
        let mut all = changed.lock().unwrap_or_else(PoisonError::into_inner);
        let first = all.is_empty();
        for path in event.paths {
            let touches = all.entry(path).or_default();
            touch.into_iter().for_each(|touch| touches.add(touch));
        }
        if first && !all.is_empty() {
            let _ = actor.cast(WatchMsg::Changed);
        }
    })
}
