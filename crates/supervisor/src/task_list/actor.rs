//! The `task-lists` branch of the tree: an owned task for each run of a list. The runs are in the
//! folded fleet, so a restarted actor resumes all of them.

use crate::daemon::context::Daemon;
use crate::daemon::owned_task::survive;
use crate::ports::task_list::TaskListsMsg;
use crate::task_list::run;
use muleteer_model::event::Event;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// A driver that panics is restarted this often.
const RESTARTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

pub struct TaskLists;

pub struct State {
    daemon: Arc<Daemon>,
    driven: HashSet<String>,
    restarts: HashMap<String, u32>,
    tasks: JoinSet<()>,
}

impl Actor for TaskLists {
    type Msg = TaskListsMsg;
    type State = State;
    type Arguments = Arc<Daemon>;

    async fn pre_start(
        &self,
        myself: ActorRef<TaskListsMsg>,
        daemon: Arc<Daemon>,
    ) -> Result<State, ActorProcessingErr> {
        daemon.ports.task_lists.set(myself.clone());
        myself.cast(TaskListsMsg::Boot)?;
        Ok(State {
            daemon,
            driven: HashSet::new(),
            restarts: HashMap::new(),
            tasks: JoinSet::new(),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<TaskListsMsg>,
        message: TaskListsMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        while state.tasks.try_join_next().is_some() {}
        match message {
            TaskListsMsg::Boot => {
                for run in state.daemon.snapshot().task_lists.active() {
                    myself.cast(TaskListsMsg::Drive(run.started.list.clone()))?;
                }
            }
            TaskListsMsg::Drive(list) => {
                if state.driven.insert(list.clone()) {
                    let daemon = state.daemon.clone();
                    state.tasks.spawn(async move {
                        let ended = survive(run::drive(&daemon, &list)).await.err();
                        let ended = ended.map(|panicked| panicked.to_string());
                        let _ = myself.cast(TaskListsMsg::Ended(list, ended));
                    });
                }
            }
            TaskListsMsg::Ended(list, None) => {
                state.driven.remove(&list);
            }
            TaskListsMsg::Ended(list, Some(message)) => {
                state.driven.remove(&list);
                state.daemon.note(Event::Fault {
                    what: format!("task list {list}"),
                    message: message.clone(),
                });
                let restarts = state.restarts.entry(list.clone()).or_default();
                *restarts += 1;
                if *restarts <= RESTARTS {
                    myself.send_after(PAUSE * *restarts, move || TaskListsMsg::Drive(list));
                } else {
                    let daemon = state.daemon.clone();
                    state.tasks.spawn(async move { run::give_up(&daemon, &list, &message).await });
                }
            }
        }
        Ok(())
    }
}
