//! Tests of the order of effects, with a real life among stand-ins.

#![allow(clippy::unwrap_used)]

use crate::agent::life::carry_out::LEAVE_GRACE;
use crate::agent::life::*;
use crate::agent::link::played_shim::Asked;
use crate::daemon::context::test_daemon;
use crate::ports::agent::{JournalMsg, Step, StepInput};
use crate::ports::ledger::LedgerMsg;
use crate::ports::tree::BranchMsg;
use muleteer_model::agent::event::AgentEvent;
use muleteer_model::config::Pool;
use muleteer_model::event::{Event, FinalState, Position, PromptKind};
use muleteer_model::monitor;
use ractor::rpc::CallResult;
use std::time::Duration;
use tokio::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(20);

/// A life, and the ledger that it writes to.
struct Scene {
    daemon: Arc<Daemon>,
    id: DispatchId,
    life: ActorRef<LifeMsg>,
    asked: mpsc::Receiver<LedgerMsg>,
    written: Vec<Event>,
}

impl Scene {
    /// Starts the life of a dispatch with this creation and these later events.
    async fn of(
        daemon: Arc<Daemon>,
        created: Event,
        past: impl IntoIterator<Item = Event>,
    ) -> Self {
        let id = test_daemon::id("abcd2345");
        [created].into_iter().chain(past).for_each(|event| daemon.fold(&id, event));
        let (ledger, asked) = test_daemon::stand_in().await;
        daemon.ports.ledger.set(ledger);
        #[allow(clippy::disallowed_methods)]
        let (life, _) = Life::spawn(None, Life, (daemon.clone(), id.clone())).await.unwrap();
        Self { daemon, id, life, asked, written: vec![] }
    }

    /// Writes the next append request.
    fn write(&mut self, asked: LedgerMsg) {
        let LedgerMsg::Append(entries, reply) = asked else { return };
        for entry in entries {
            self.daemon.fold(&self.id, entry.event.clone());
            self.written.push(entry.event);
        }
        reply.send(Ok(vec![])).unwrap();
    }

    /// Serves append requests until `future` is ready.
    async fn until<T>(&mut self, what: &str, future: impl Future<Output = T>) -> T {
        tokio::pin!(future);
        loop {
            tokio::select! {
                done = &mut future => return done,
                asked = tokio::time::timeout(PATIENCE, self.asked.recv()) => match asked {
                    Ok(asked) => self.write(asked.unwrap()),
                    Err(_) => panic!("waited in vain for {what}: {:?}", self.written),
                },
            }
        }
    }

    async fn until_finished(&mut self) {
        let (mut fleet, id) = (self.daemon.fleet.subscribe(), self.id.clone());
        let finished = fleet.wait_for(|fleet| fleet.get(&id).unwrap().is_finished());
        drop(self.until("its end", finished).await.unwrap());
    }

    async fn output(&mut self, steps: &[Step]) {
        let (life, steps) = (self.life.clone(), steps.to_vec());
        let taken = life.call(|reply| LifeMsg::Output(steps, reply), None);
        let taken = self.until("the output to be taken", taken).await;
        assert!(matches!(taken, Ok(CallResult::Success(_))), "{taken:?}");
    }

    fn names(&self) -> String {
        self.written.iter().map(Event::name).collect::<Vec<_>>().join(" ")
    }
}

fn nowhere() -> Arc<Daemon> {
    test_daemon::daemon("/nowhere".as_ref(), Pool::default())
}

fn created() -> Event {
    test_daemon::sample("dispatch_created")
}

fn kill() -> Input {
    Input::Kill { reason: "enough".into(), by: "operator".into() }
}

/// An early answer could be wrong: the daemon may die before the command is durable.
#[tokio::test]
async fn a_command_is_answered_once_it_is_durable() {
    let mut scene = Scene::of(nowhere(), created(), []).await;
    let life = scene.life.clone();
    let answered = life.call(|reply| LifeMsg::Command(kill(), reply), None);
    tokio::pin!(answered);
    let asked = tokio::select! {
        biased;
        answer = &mut answered => panic!("{answer:?} before it was written"),
        asked = scene.asked.recv() => asked.unwrap(),
    };
    scene.write(asked);
    let answer = scene.until("the answer", answered).await;
    assert!(matches!(answer, Ok(CallResult::Success(true))), "{answer:?}");
    assert!(scene.names().starts_with("kill_requested"), "{}", scene.names());
}

/// A client that waits for the end reads the journal then, so it must be complete, and nobody
/// writes it afterwards.
#[tokio::test]
async fn journal_is_complete_before_its_actors_stop() {
    let daemon = nowhere();
    let (journal, mut written) = test_daemon::stand_in().await;
    let (agents, mut asked) = test_daemon::stand_in().await;
    daemon.agent(&test_daemon::id("abcd2345")).journal.set(journal);
    daemon.ports.agents.set(agents);
    let finished =
        Event::DispatchFinished { state: FinalState::Success, reason: String::new(), result: None };
    let scene = Scene::of(daemon, created(), [finished]).await;
    let flushed = tokio::select! {
        Some(message) = written.recv() => message,
        Some(message) = asked.recv() => panic!("{message:?} before the journal was written"),
    };
    let JournalMsg::Flush(reply) = flushed else { panic!("{flushed:?}") };
    assert!(asked.is_empty());
    reply.send(()).unwrap();
    let removed = tokio::time::timeout(PATIENCE, asked.recv()).await;
    assert!(
        matches!(&removed, Ok(Some(BranchMsg::Remove(known))) if *known == scene.id),
        "{removed:?}"
    );
}

/// The effects of a dispatch's first life must be repeated. The dispatch got a message after its
/// end, and was killed while it waited.
#[tokio::test]
async fn work_is_fetched_at_each_end_of_a_dispatch() {
    let past = ["attempt_started", "agent_spawned", "agent_exited", "dispatch_closing"]
        .map(test_daemon::sample);
    let mut scene = Scene::of(nowhere(), created(), past).await;
    scene.until_finished().await;
    let (key, by, kind) = ("k9".into(), "operator".into(), PromptKind::Send);
    scene.daemon.fold(&scene.id, Event::PromptQueued { key, kind, by, trace: None });
    scene.life.cast(LifeMsg::Wake).unwrap();
    let life = scene.life.clone();
    let killed =
        scene.until("the kill", life.call(|reply| LifeMsg::Command(kill(), reply), None)).await;
    assert!(matches!(killed, Ok(CallResult::Success(true))), "{killed:?}");
    scene.until_finished().await;
    let end = "work_fetched dispatch_finished";
    assert_eq!(scene.names(), format!("{end} kill_requested dispatch_closing {end}"));
}

/// A CLI that never exits after its last turn would keep its slot, and the dispatch would never
/// end.
#[tokio::test(start_paused = true)]
async fn an_agent_that_does_not_leave_is_ended() {
    let daemon = nowhere();
    let (shim, mut asked) = mpsc::channel(8);
    daemon.agent(&test_daemon::id("abcd2345")).played.set(shim).unwrap();
    let past = ["attempt_started", "agent_spawned", "turn_started", "turn_finished"]
        .map(test_daemon::sample);
    let _scene = Scene::of(daemon, created(), past).await;
    let mut next =
        async || tokio::time::timeout(LEAVE_GRACE * 2, asked.recv()).await.unwrap().unwrap();
    assert!(matches!(next().await, Asked::Ensure(1)));
    let mut told = async || {
        let Asked::Do(command) = next().await else { panic!() };
        format!("{command:?}")
    };
    let (closes, ends) = (told().await, told().await);
    assert!(closes.contains("close: true") && ends.contains("Terminate"), "{closes}, {ends}");
}

/// A link that restarts reads the unaccounted output again.
#[tokio::test]
async fn repeated_pieces_of_text_are_recorded_once() {
    let Event::DispatchCreated(mut acp) = created() else { unreachable!() };
    acp.backend = "acp".into();
    let past = ["attempt_started", "agent_spawned", "turn_started"].map(test_daemon::sample);
    let daemon = nowhere();
    let slots = daemon.agent(&test_daemon::id("abcd2345"));
    let mut scene = Scene::of(daemon, Event::DispatchCreated(acp), past).await;
    let says =
        |text: &str| AgentEvent::Text { chars: text.chars().count() as u64, text: text.into() };
    let calls =
        AgentEvent::ToolCall { id: "c".into(), name: "Bash".into(), input: serde_json::json!({}) };
    let said = [says("I l"), says("ook."), calls];
    let step = |(at, event): (u64, &AgentEvent)| Step {
        at: Position { epoch: 1, offset: at, skip: 0 },
        input: StepInput::Agent(vec![event.clone()]),
        awake_ms: 0,
        wall_ms: 0,
    };
    let steps: Vec<Step> = (1..).zip(&said).map(step).collect();
    scene.output(&steps[..1]).await;
    scene.life.cast(LifeMsg::LinkUp).unwrap();
    scene.output(&steps).await;
    let texts = scene.written.iter().filter_map(|event| match event {
        Event::AgentSaid { text } => Some(text.as_str()),
        _ => None,
    });
    assert_eq!(texts.collect::<Vec<_>>(), ["I look."], "{:?}", scene.written);
    // The monitors judge actions, so they must see each of them once, and whole.
    let seen = slots.seen.lock().unwrap();
    assert_eq!(*seen, [monitor::observe(&says("I look.")).unwrap()]);
}
