//! Tests of the strategies with real actors: which children restart, in which order, and when a
//! branch gives up.

use crate::daemon::context::{AgentSlots, test_daemon};
use crate::tree::Starting;
use crate::tree::supervisor_actor::*;
use muleteer_model::config::Pool;
use muleteer_model::event::FinalState;
use muleteer_model::restart::{Backoff, Intensity, RestartClass, Strategy};
use std::sync::{Mutex, PoisonError};

/// The starts of every leaf, by name, and the leaves that run now. Each test has names of its own.
static STARTS: Mutex<Vec<&str>> = Mutex::new(vec![]);
static LEAVES: Mutex<Vec<(&str, ActorRef<Die>)>> = Mutex::new(vec![]);

#[derive(Debug)]
enum Die {
    Panic,
    Normally,
}

struct Leaf(&'static str);

impl Actor for Leaf {
    type Msg = Die;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, myself: ActorRef<Die>, (): ()) -> Result<(), ActorProcessingErr> {
        STARTS.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
        let mut leaves = LEAVES.lock().unwrap_or_else(PoisonError::into_inner);
        leaves.retain(|(name, _)| *name != self.0);
        leaves.push((self.0, myself));
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<Die>,
        message: Die,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Die::Panic => panic!("as asked"),
            Die::Normally => myself.stop(None),
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Die>, (): &mut ()) -> Result<(), ActorProcessingErr> {
        if self.0.starts_with("slow") {
            tokio::time::sleep(SLOW).await;
        }
        Ok(())
    }
}

/// A leaf whose name begins with "slow" ends so slowly, which is within the time that it has.
const SLOW: Duration = Duration::from_secs(2);

fn begin(name: &'static str, supervisor: ActorCell) -> Starting {
    Box::pin(
        async move { Ok(Leaf::spawn_linked(None, Leaf(name), (), supervisor).await?.0.get_cell()) },
    )
}

const QUICK: Backoff =
    Backoff { base: Duration::from_millis(1), max: Duration::from_millis(2), jitter: 0.0 };

const fn leaf(name: &'static str, restart: RestartClass, start: crate::tree::StartFn) -> Node {
    let intensity = Intensity { max: 0, window: Duration::from_secs(60) };
    Node {
        name,
        strategy: Strategy::OneForOne,
        restart,
        intensity,
        backoff: QUICK,
        start: Start::Leaf(start),
    }
}

const fn branch(strategy: Strategy, max: u32, children: &'static [Node]) -> Node {
    let intensity = Intensity { max, window: Duration::from_secs(60) };
    let restart = RestartClass::Permanent;
    Node {
        name: "branch",
        strategy,
        restart,
        intensity,
        backoff: QUICK,
        start: Start::Branch(children),
    }
}

macro_rules! leaves {
    ($($name:literal $class:ident),*) => {
        &[$(leaf($name, RestartClass::$class, |_, _, supervisor| begin($name, supervisor))),*]
    };
}

async fn run(
    node: &'static Node,
) -> (ActorRef<BranchMsg>, tokio::task::JoinHandle<()>, Arc<Daemon>) {
    let daemon = test_daemon::daemon(std::path::Path::new("/nowhere"), Pool::default());
    let (actor, ended) = run_for(&daemon, node).await;
    (actor, ended, daemon)
}

async fn run_for(
    daemon: &Arc<Daemon>,
    node: &'static Node,
) -> (ActorRef<BranchMsg>, tokio::task::JoinHandle<()>) {
    let args = Args { daemon: daemon.clone(), node, id: None };
    #[allow(clippy::disallowed_methods)]
    Branch::spawn(None, Branch, args).await.expect("a branch")
}

fn starts(names: &[&str]) -> Vec<&'static str> {
    let starts = STARTS.lock().unwrap_or_else(PoisonError::into_inner);
    starts.iter().copied().filter(|name| names.contains(name)).collect()
}

fn tell(name: &str, message: Die) {
    let leaves = LEAVES.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, leaf) = leaves.iter().find(|(known, _)| *known == name).expect("a running leaf");
    leaf.cast(message).expect("a living leaf");
}

/// Waits until the leaves have started as in `wanted`, in that order.
async fn until(names: &[&str], wanted: &[&str]) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while starts(names) != wanted {
        assert!(
            tokio::time::Instant::now() < deadline,
            "{:?} instead of {wanted:?}",
            starts(names)
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn one_for_one_restarts_the_failed_child_alone() {
    static NODE: Node =
        branch(Strategy::OneForOne, 3, leaves!["a1" Permanent, "a2" Permanent, "a3" Permanent]);
    let names = ["a1", "a2", "a3"];
    let (actor, _, _) = run(&NODE).await;
    until(&names, &["a1", "a2", "a3"]).await;
    tell("a2", Die::Panic);
    until(&names, &["a1", "a2", "a3", "a2"]).await;
    actor.stop_and_wait(None, None).await.expect("stopped");
}

#[tokio::test]
async fn rest_for_one_restarts_later_siblings_only() {
    static NODE: Node =
        branch(Strategy::RestForOne, 3, leaves!["b1" Permanent, "b2" Permanent, "b3" Permanent]);
    let names = ["b1", "b2", "b3"];
    let (actor, _, _) = run(&NODE).await;
    until(&names, &["b1", "b2", "b3"]).await;
    tell("b2", Die::Panic);
    until(&names, &["b1", "b2", "b3", "b2", "b3"]).await;
    actor.stop_and_wait(None, None).await.expect("stopped");
}

#[tokio::test]
async fn one_for_all_restarts_all_children_in_order() {
    static NODE: Node = branch(Strategy::OneForAll, 3, leaves!["c1" Permanent, "c2" Permanent]);
    let names = ["c1", "c2"];
    let (actor, _, _) = run(&NODE).await;
    until(&names, &["c1", "c2"]).await;
    tell("c2", Die::Panic);
    until(&names, &["c1", "c2", "c1", "c2"]).await;
    actor.stop_and_wait(None, None).await.expect("stopped");
}

#[tokio::test]
async fn a_transient_child_that_ends_normally_stays_ended_and_a_permanent_one_does_not() {
    static NODE: Node = branch(Strategy::OneForOne, 3, leaves!["d1" Transient, "d2" Permanent]);
    let names = ["d1", "d2"];
    let (actor, _, _) = run(&NODE).await;
    until(&names, &["d1", "d2"]).await;
    tell("d1", Die::Normally);
    tell("d2", Die::Normally);
    until(&names, &["d1", "d2", "d2"]).await;
    actor.stop_and_wait(None, None).await.expect("stopped");
}

#[tokio::test]
async fn beyond_its_intensity_a_branch_fails_itself_and_every_restart_is_an_event() {
    static NODE: Node = branch(Strategy::OneForOne, 2, leaves!["e1" Permanent]);
    let (_, ended, daemon) = run(&NODE).await;
    until(&["e1"], &["e1"]).await;
    for round in 2..=3 {
        tell("e1", Die::Panic);
        until(&["e1"], &vec!["e1"; round]).await;
    }
    tell("e1", Die::Panic);
    let _ =
        tokio::time::timeout(Duration::from_secs(20), ended).await.expect("the branch gives up");
    let noted: Vec<_> =
        daemon.restarts.waiting().into_iter().map(|entry| entry.event.name()).collect();
    assert_eq!(noted, ["actor_restarted", "actor_restarted", "actor_escalated"]);
}

/// A message to a dispatch that has just ended may arrive before the request to remove its actors.
#[tokio::test]
async fn continuing_dispatch_is_not_removed() {
    static NODE: Node =
        Node { start: Start::PerDispatch(&LEAF), ..branch(Strategy::OneForOne, 3, &[]) };
    static LEAF: Node =
        leaf("f1", RestartClass::Permanent, |_, _, supervisor| begin("f1", supervisor));
    let daemon = test_daemon::daemon(std::path::Path::new("/nowhere"), Pool::default());
    let id = test_daemon::id("abcd2345");
    daemon.fold(&id, test_daemon::sample("dispatch_created"));
    let (actor, _) = run_for(&daemon, &NODE).await;
    until(&["f1"], &["f1"]).await;
    let slots = daemon.agent(&id);
    for (done, kept) in [(None, true), (Some(finished()), false)] {
        done.into_iter().for_each(|event| daemon.fold(&id, event));
        actor.cast(BranchMsg::Remove(id.clone())).expect("a living branch");
        // The answer comes after the removal was handled.
        actor.call(BranchMsg::Ping, None).await.expect("an answer");
        if !kept {
            until_removed(&daemon, &id, &slots).await;
        }
        assert_eq!(Arc::ptr_eq(&slots, &daemon.agent(&id)), kept, "its actors are where they were");
    }
    actor.stop_and_wait(None, None).await.expect("stopped");
}

/// Waits until the actors of a dispatch are removed, which had these slots.
async fn until_removed(daemon: &Daemon, id: &DispatchId, slots: &Arc<AgentSlots>) {
    let mut closed = daemon.agents.closed.subscribe();
    let gone = closed.wait_for(|_| !Arc::ptr_eq(slots, &daemon.agent(id)));
    let gone = tokio::time::timeout(Duration::from_secs(20), gone).await;
    assert!(gone.is_ok_and(|gone| gone.is_ok()), "the actors of {id} are still there");
}

fn finished() -> Event {
    Event::DispatchFinished { state: FinalState::Success, reason: String::new(), result: None }
}

/// A dispatch that is not over, and a branch with a child for it.
async fn run_parts(node: &'static Node) -> (ActorRef<BranchMsg>, Arc<Daemon>) {
    let daemon = test_daemon::daemon(std::path::Path::new("/nowhere"), Pool::default());
    daemon.fold(&test_daemon::id("abcd2345"), test_daemon::sample("dispatch_created"));
    let (actor, _) = run_for(&daemon, node).await;
    (actor, daemon)
}

#[tokio::test]
async fn failed_part_restarts_with_the_parts_after_it() {
    static NODE: Node =
        Node { start: Start::PerDispatch(&GROUP), ..branch(Strategy::OneForOne, 3, &[]) };
    static GROUP: Node = Node {
        start: Start::Parts(leaves!["g1" Permanent, "g2" Permanent, "g3" Permanent]),
        ..branch(Strategy::RestForOne, 3, &[])
    };
    let names = ["g1", "g2", "g3"];
    let (actor, daemon) = run_parts(&NODE).await;
    until(&names, &["g1", "g2", "g3"]).await;
    tell("g2", Die::Panic);
    until(&names, &["g1", "g2", "g3", "g2", "g3"]).await;
    // Its parts end with it.
    let id = test_daemon::id("abcd2345");
    daemon.fold(&id, finished());
    let slots = daemon.agent(&id);
    actor.cast(BranchMsg::Remove(id.clone())).expect("a living branch");
    until_removed(&daemon, &id, &slots).await;
    let leaves = LEAVES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let ours = leaves.iter().filter(|(name, _)| names.contains(name));
    assert!(ours.into_iter().all(|(_, leaf)| leaf.cast(Die::Normally).is_err()));
    actor.stop_and_wait(None, None).await.expect("stopped");
}

/// The dispatch restarts as a whole then, which counts for its supervisor.
#[tokio::test]
async fn parts_beyond_their_intensity_restart_together() {
    static NODE: Node =
        Node { start: Start::PerDispatch(&GROUP), ..branch(Strategy::OneForOne, 3, &[]) };
    static GROUP: Node = Node {
        start: Start::Parts(leaves!["h1" Permanent, "h2" Permanent]),
        ..branch(Strategy::RestForOne, 1, &[])
    };
    let names = ["h1", "h2"];
    let (actor, daemon) = run_parts(&NODE).await;
    until(&names, &["h1", "h2"]).await;
    tell("h2", Die::Panic);
    until(&names, &["h1", "h2", "h2"]).await;
    tell("h2", Die::Panic);
    until(&names, &["h1", "h2", "h2", "h1", "h2"]).await;
    let noted: Vec<_> =
        daemon.restarts.waiting().into_iter().map(|entry| entry.event.name()).collect();
    assert_eq!(noted, ["actor_restarted", "actor_escalated", "actor_restarted"]);
    actor.stop_and_wait(None, None).await.expect("stopped");
}

/// A message to it may revive it in the meantime.
#[tokio::test(start_paused = true)]
async fn slow_removal_delays_no_other_dispatch() {
    static NODE: Node =
        Node { start: Start::PerDispatch(&GROUP), ..branch(Strategy::OneForOne, 3, &[]) };
    static GROUP: Node = Node {
        start: Start::Parts(leaves!["i1" Permanent, "slow-i2" Permanent]),
        ..branch(Strategy::RestForOne, 3, &[])
    };
    let names = ["i1", "slow-i2"];
    let (actor, daemon) = run_parts(&NODE).await;
    until(&names, &["i1", "slow-i2"]).await;
    let id = test_daemon::id("abcd2345");
    daemon.fold(&id, finished());
    let (slots, begin) = (daemon.agent(&id), tokio::time::Instant::now());
    actor.cast(BranchMsg::Remove(id.clone())).expect("a living branch");
    actor.cast(BranchMsg::Remove(id.clone())).expect("a living branch");
    actor.call(BranchMsg::Ping, None).await.expect("an answer");
    assert!(begin.elapsed() < SLOW, "the branch answers while a child ends");
    assert!(Arc::ptr_eq(&slots, &daemon.agent(&id)), "its actors have not ended");
    // It is answered when new actors run.
    actor.call(|reply| BranchMsg::Add(id.clone(), reply), None).await.expect("an answer");
    assert!(begin.elapsed() >= SLOW, "the old actors have ended");
    assert!(!Arc::ptr_eq(&slots, &daemon.agent(&id)), "the new actors have slots of their own");
    assert_eq!(starts(&names), ["i1", "slow-i2", "i1", "slow-i2"]);
    actor.stop_and_wait(None, None).await.expect("stopped");
}

#[tokio::test(start_paused = true)]
async fn slow_escalation_delays_no_other_dispatch() {
    static NODE: Node =
        Node { start: Start::PerDispatch(&GROUP), ..branch(Strategy::OneForOne, 3, &[]) };
    static GROUP: Node = Node {
        start: Start::Parts(leaves!["slow-j1" Permanent, "j2" Permanent]),
        ..branch(Strategy::RestForOne, 0, &[])
    };
    let names = ["slow-j1", "j2"];
    let (actor, daemon) = run_parts(&NODE).await;
    until(&names, &["slow-j1", "j2"]).await;
    let begin = tokio::time::Instant::now();
    tell("j2", Die::Panic);
    let mut escalated = false;
    while !escalated {
        escalated = daemon.restarts.waiting().len() == 2;
        actor.call(BranchMsg::Ping, None).await.expect("an answer");
        assert!(begin.elapsed() < SLOW, "the branch answers while a part ends");
    }
    until(&names, &["slow-j1", "j2", "slow-j1", "j2"]).await;
    actor.stop_and_wait(None, None).await.expect("stopped");
}

/// The pause of the first failure is shorter than that of the second.
#[tokio::test(start_paused = true)]
async fn earlier_restart_does_not_end_the_pause_of_a_later_one() {
    const SLOWER: Backoff =
        Backoff { base: Duration::from_secs(2), max: Duration::from_secs(60), jitter: 0.0 };
    static NODE: Node =
        Node { start: Start::PerDispatch(&GROUP), ..branch(Strategy::OneForOne, 3, &[]) };
    static GROUP: Node = Node {
        start: Start::Parts(leaves!["k1" Permanent, "k2" Permanent]),
        backoff: SLOWER,
        ..branch(Strategy::RestForOne, 3, &[])
    };
    let names = ["k1", "k2"];
    let (actor, daemon) = run_parts(&NODE).await;
    until(&names, &["k1", "k2"]).await;
    let noted = |count: usize| {
        let daemon = daemon.clone();
        async move {
            while daemon.restarts.waiting().len() < count {
                tokio::task::yield_now().await;
            }
        }
    };
    tell("k2", Die::Panic);
    noted(1).await;
    let begin = tokio::time::Instant::now();
    tell("k1", Die::Panic);
    noted(2).await;
    until(&names, &["k1", "k2", "k1", "k2"]).await;
    assert!(begin.elapsed() >= Duration::from_secs(4), "{:?}", begin.elapsed());
    actor.stop_and_wait(None, None).await.expect("stopped");
}

#[tokio::test]
async fn transient_part_that_ends_normally_stays_ended() {
    static NODE: Node =
        Node { start: Start::PerDispatch(&GROUP), ..branch(Strategy::OneForOne, 3, &[]) };
    static GROUP: Node = Node {
        start: Start::Parts(leaves!["l1" Transient, "l2" Permanent]),
        ..branch(Strategy::RestForOne, 3, &[])
    };
    let names = ["l1", "l2"];
    let (actor, _) = run_parts(&NODE).await;
    until(&names, &["l1", "l2"]).await;
    tell("l1", Die::Normally);
    tell("l2", Die::Normally);
    until(&names, &["l1", "l2", "l2"]).await;
    actor.stop_and_wait(None, None).await.expect("stopped");
}
