//! The `adapters` leaf of the tree: an owned task for each enabled adapter. Adapters fail one by
//! one, and never fail this actor.

use crate::conversation::adapter::registry::LiveState;
use crate::conversation::adapter::supervise::{Plan, supervise};
use crate::conversation::adapter::view::unknown;
use crate::conversation::deliver::entries;
use crate::conversation::rights::own_config;
use crate::daemon::context::Daemon;
use crate::daemon::owned_task::{own, survive};
use crate::dispatch::error::unappended;
use crate::ledger::try_append;
use crate::ports::adapter::{Act, AdaptersMsg};
use muleteer_model::conversation::adapter::event::AdapterSwitched;
use muleteer_model::conversation::adapter::settings;
use muleteer_model::event::Event;
use muleteer_protocol::v1::WireError;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// The pause before an adapter whose task panicked is started again.
const PAUSE: Duration = Duration::from_secs(1);

pub struct Adapters;

pub struct State {
    daemon: Arc<Daemon>,
    tasks: HashMap<String, Running>,
}

/// The task of an adapter.
struct Running {
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
}

impl Actor for Adapters {
    type Msg = AdaptersMsg;
    type State = State;
    type Arguments = Arc<Daemon>;

    async fn pre_start(
        &self,
        myself: ActorRef<AdaptersMsg>,
        daemon: Arc<Daemon>,
    ) -> Result<State, ActorProcessingErr> {
        daemon.ports.adapters.set(myself.clone());
        myself.cast(AdaptersMsg::Boot)?;
        Ok(State { daemon, tasks: HashMap::new() })
    }

    async fn handle(
        &self,
        myself: ActorRef<AdaptersMsg>,
        message: AdaptersMsg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            AdaptersMsg::Boot => match configured(&state.daemon) {
                Ok(all) => {
                    for (name, raw) in all {
                        state.start(&myself, &name, raw, None);
                    }
                }
                Err(error) => state.daemon.note(Event::Fault {
                    what: "adapters".into(),
                    message: format!("no adapter is started: {}", error.message),
                }),
            },
            AdaptersMsg::Act { name, act, by, reply } => {
                if let Err(error) = state.act(&myself, &name, act, &by, reply).await {
                    let (error, reply) = *error;
                    let _ = reply.send(Err(error));
                }
            }
            AdaptersMsg::Panicked(name, message) => {
                let what = format!("adapter {name}");
                state.daemon.note(Event::Fault { what, message });
                myself.send_after(PAUSE, move || AdaptersMsg::Again(name));
            }
            AdaptersMsg::Again(name) => {
                if let Some(raw) =
                    configured(&state.daemon).ok().and_then(|mut all| all.remove(&name))
                {
                    state.start(&myself, &name, raw, None);
                }
            }
        }
        Ok(())
    }
}

type Reply = oneshot::Sender<Result<(), WireError>>;

impl State {
    /// Carries out what a person wants. The reply follows the effect.
    async fn act(
        &mut self,
        myself: &ActorRef<AdaptersMsg>,
        name: &str,
        act: Act,
        by: &str,
        reply: Reply,
    ) -> Result<(), Box<(WireError, Reply)>> {
        let raw = match configured(&self.daemon) {
            Ok(mut all) => all.remove(name),
            Err(error) => return Err(Box::new((error, reply))),
        };
        let Some(raw) = raw else { return Err(Box::new((unknown(name), reply))) };
        let enabled = match act {
            Act::Enable => Some(true),
            Act::Disable => Some(false),
            Act::Restart => None,
        };
        if let Some(enabled) = enabled {
            let switched = AdapterSwitched { adapter: name.into(), enabled, by: by.into() };
            let event = Event::AdapterSwitched(Box::new(switched));
            if let Err(error) = try_append(&self.daemon, entries(vec![event])).await {
                return Err(Box::new((unappended(&error), reply)));
            }
        }
        self.start(myself, name, raw, Some(reply));
        Ok(())
    }

    /// Starts the task of an adapter, which first ends the one before. A disabled adapter only gets
    /// its state.
    fn start(
        &mut self,
        myself: &ActorRef<AdaptersMsg>,
        name: &str,
        raw: Value,
        reply: Option<Reply>,
    ) {
        let before = self.tasks.remove(name);
        let stop = CancellationToken::new();
        let (daemon, myself) = (self.daemon.clone(), myself.clone());
        let (adapter, token) = (name.to_string(), stop.clone());
        let task = own(async move {
            if let Some(before) = before {
                before.stop.cancel();
                let _ = before.task.await;
            }
            let (started, ready) = oneshot::channel();
            let running = run(&daemon, &adapter, raw, token, started);
            let answered = async {
                let _ = ready.await;
                if let Some(reply) = reply {
                    let _ = reply.send(Ok(()));
                }
            };
            let both = async { tokio::join!(running, answered) };
            if let Err(panicked) = survive(both).await {
                let _ = myself.cast(AdaptersMsg::Panicked(adapter, panicked.to_string()));
            }
        });
        self.tasks.insert(name.into(), Running { stop, task });
    }
}

async fn run(
    daemon: &Arc<Daemon>,
    name: &str,
    raw: Value,
    stop: CancellationToken,
    started: oneshot::Sender<()>,
) {
    let settings = match settings::read(name, &raw) {
        Ok(settings) => settings,
        Err(error) => {
            daemon.adapters.enter(name, LiveState::SetAside, Some(error.to_string()));
            return drop(started);
        }
    };
    daemon.adapters.change(name, |live| live.settings = settings.clone());
    let switched = daemon.snapshot().conversations.adapter(name).and_then(|known| known.switched);
    if !switched.unwrap_or(settings.is_enabled()) {
        daemon.adapters.enter(name, LiveState::Disabled, None);
        return drop(started);
    }
    supervise(daemon, Plan { name: name.into(), settings, raw, stop }, started).await;
}

/// Returns the settings of all adapters, as the configuration has them now.
fn configured(daemon: &Daemon) -> Result<BTreeMap<String, Value>, WireError> {
    Ok(own_config(daemon)?.adapters.clone())
}
