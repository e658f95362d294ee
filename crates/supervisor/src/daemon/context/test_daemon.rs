//! A daemon without actors, except those that a test starts or plays itself.

use crate::daemon::context::*;
use jiff::Timestamp;
use muleteer_model::config::{Pool, Retention};
use muleteer_model::event::Record;
use muleteer_protocol::shim::v1::{AgentState, FromShim, MAX_BODY, ToShim, VERSION};
use ractor::{Actor, ActorProcessingErr, ActorRef, Message};
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;

/// Makes a daemon with its files below `dir`.
pub(crate) fn daemon(dir: &Path, pool_limits: Pool) -> Arc<Daemon> {
    let env = |name: &str| (name == "HOME").then(|| dir.into());
    let settings = Settings {
        generation: 1,
        muleteer: "/nowhere/muleteer".into(),
        lease_ms: 1000,
        pool_limits,
        retention: Retention::default(),
        config_file: None,
        notify: muleteer_model::config::notify::Notify::default(),
        telemetry: None,
    };
    let shim = ShimProgram::open(Path::new("/dev/null"), &[]).expect("a file");
    let boot = Boot { opened: None, backlog: Backlog::default(), shim, settings };
    Arc::new(Daemon::new(Paths::resolve(&env, 0, &Path::to_path_buf).expect("paths"), boot))
}

/// Returns the catalog's sample event of this name. The sample of a dispatch gets the first backend
/// that exists.
pub(crate) fn sample(name: &str) -> Event {
    let mut samples =
        muleteer_store::events::catalog::samples().into_iter().map(|record| record.entry.event);
    let mut event = samples.find(|event| event.name() == name).expect("a sample");
    if let Event::DispatchCreated(created) = &mut event {
        created.backend = muleteer_backends::all()[0].name().into();
    }
    event
}

/// An actor that forwards every message to the test.
struct StandIn<M>(mpsc::Sender<M>);

impl<M: Message> Actor for StandIn<M> {
    type Msg = M;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<M>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _: ActorRef<M>,
        message: M,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(self.0.send(message).await.map_err(|_| "nobody plays this part any more")?)
    }
}

/// Starts an actor that the test plays.
pub(crate) async fn stand_in<M: Message>() -> (ActorRef<M>, mpsc::Receiver<M>) {
    let (heard, messages) = mpsc::channel(64);
    #[allow(clippy::disallowed_methods)]
    let (actor, _) = Actor::spawn(None, StandIn(heard), ()).await.expect("an actor");
    (actor, messages)
}

pub(crate) fn id(text: &str) -> DispatchId {
    DispatchId::try_from(text.to_string()).expect("an id")
}

/// Folds a dispatch that is archived.
pub(crate) fn archived(daemon: &Daemon, id: &DispatchId) {
    ["dispatch_created", "dispatch_finished"]
        .into_iter()
        .for_each(|name| daemon.fold(id, sample(name)));
    let last_seq = daemon.snapshot().seq;
    let one = muleteer_model::event::Archived { id: id.clone(), last_seq };
    daemon.fold_any(None, Event::DispatchesArchived { families: vec![vec![one]] });
    assert_eq!(daemon.snapshot().archived(), 1);
}

/// A shim that the test plays, with a running agent.
pub(crate) struct Shim {
    listener: tokio::net::UnixListener,
    nonce: String,
}

impl Shim {
    pub(crate) fn of(daemon: &Daemon, id: &DispatchId) -> Self {
        ["dispatch_created", "attempt_started", "agent_spawned"]
            .into_iter()
            .for_each(|name| daemon.fold(id, sample(name)));
        let dir = daemon.paths.agent(id.as_str());
        std::fs::create_dir_all(&dir).expect("a directory");
        std::fs::write(dir.join("key"), [7; 16]).expect("a key");
        let meta = muleteer_shim::meta::Meta {
            v: muleteer_shim::meta::VERSION,
            epoch: 1,
            generation: daemon.settings.generation,
            shim: muleteer_process::identity::ProcessId::current(),
            agent: None,
            boot_id: String::new(),
            pid_namespace: 0,
            nonce: random_key(),
            containment: String::new(),
            cgroup: None,
            started_ms: 0,
            version: String::new(),
        };
        let text = serde_json::to_vec(&meta).expect("it encodes");
        std::fs::write(muleteer_shim::meta::Meta::path(&dir), text).expect("a file");
        let listener = tokio::net::UnixListener::bind(dir.join(muleteer_shim::attach::SOCKET));
        Self { listener: listener.expect("a socket"), nonce: meta.nonce }
    }

    /// Waits until a client has connected and renewed the lease, and returns its duration.
    pub(crate) async fn lease_ms(&self) -> u64 {
        let (mut stream, _) = self.listener.accept().await.expect("a connection");
        let mut bytes = vec![];
        loop {
            assert_ne!(stream.read_buf(&mut bytes).await.expect("frames"), 0, "it has gone");
            while let Some(decoded) = ToShim::decode(&bytes, MAX_BODY).expect("a frame") {
                bytes.drain(..decoded.used);
                let answer = match decoded.frame {
                    ToShim::Hello { .. } => FromShim::HelloOk {
                        version: VERSION,
                        epoch: 1,
                        shim_pid: 1,
                        agent_pid: 2,
                        offset: 0,
                        state: AgentState::Running,
                        nonce: self.nonce.clone(),
                    },
                    ToShim::Heartbeat { lease_ms } => return lease_ms,
                    other => panic!("{other:?}"),
                };
                let mut frame = vec![];
                answer.encode(1, &mut frame);
                stream.write_all(&frame).await.expect("an answer");
            }
        }
    }
}

impl Daemon {
    /// Folds an event as a ledger does once it is durable.
    pub(crate) fn fold(&self, id: &DispatchId, event: Event) {
        self.fold_any(Some(id.clone()), event);
    }

    /// Folds an event of no dispatch.
    pub(crate) fn fold_plain(&self, event: Event) {
        self.fold_any(None, event);
    }

    fn fold_any(&self, dispatch_id: Option<DispatchId>, event: Event) {
        let entry = Entry { id: random_key(), dispatch_id, at: None, more: false, event };
        self.fleet.send_modify(|fleet| {
            let seq = fleet.seq + 1;
            let record =
                Record { v: muleteer_model::event::VERSION, seq, ts: Timestamp::now(), entry };
            Arc::make_mut(fleet).apply(&record);
        });
    }
}
