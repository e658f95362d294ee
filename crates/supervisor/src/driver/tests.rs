//! Tests of the driver with a small machine: a kettle that heats, keeps warm, and cools down.
//!
//! ```text
//!   Off ──Press──▶ Heating ──Hot──▶ Warm ──(until)──▶ Off
//!    ▲                │               │
//!    └─────Press──────┴───────────────┘
//! ```

#![allow(clippy::unwrap_used)]

use crate::driver::*;
use std::sync::{Arc, Mutex};
use tokio::sync::{Semaphore, oneshot};

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Off,
    Heating,
    Warm { until: Timestamp },
}

#[derive(Debug)]
enum Input {
    Press,
    Hot { round: u32 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    SwitchedOn,
    Boiled { until: Timestamp },
    SwitchedOff,
}

/// Heating a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Heat(u32);

#[derive(Debug, PartialEq, Eq)]
enum Failure {
    Disk,
    Task(Panicked),
}

impl From<Panicked> for Failure {
    fn from(panic: Panicked) -> Self {
        Self::Task(panic)
    }
}

/// The pure decisions.
fn decide(phase: Phase, round: u32, input: &Input, warm_until: Timestamp) -> Vec<Event> {
    match (phase, input) {
        (Phase::Off, Input::Press) => vec![Event::SwitchedOn],
        (Phase::Heating | Phase::Warm { .. }, Input::Press) => vec![Event::SwitchedOff],
        (Phase::Heating, Input::Hot { round: hot }) if *hot == round => {
            vec![Event::Boiled { until: warm_until }]
        }
        (_, Input::Hot { .. }) => vec![],
    }
}

/// The surroundings of a kettle, which the tests see and control.
#[derive(Clone)]
struct World {
    steps: Arc<Mutex<Vec<String>>>,
    /// Each append takes a permit.
    disk: Arc<Semaphore>,
    is_disk_broken: bool,
    /// Closed when the task of a heating ends.
    heatings: Arc<Mutex<Vec<oneshot::Receiver<()>>>>,
    does_heating_panic: bool,
    warm_until: Timestamp,
    is_disposable: bool,
}

impl World {
    fn new() -> Self {
        Self {
            steps: Arc::default(),
            disk: Arc::new(Semaphore::new(0)),
            is_disk_broken: false,
            heatings: Arc::default(),
            does_heating_panic: false,
            warm_until: Timestamp::MAX,
            is_disposable: false,
        }
    }

    fn with_disk(self) -> Self {
        self.disk.add_permits(1000);
        self
    }

    fn note(&self, step: String) {
        self.steps.lock().unwrap().push(step);
    }

    fn steps(&self) -> Vec<String> {
        self.steps.lock().unwrap().clone()
    }

    async fn heating_ended(&self, nth: usize) {
        let heating = self.heatings.lock().unwrap().remove(nth);
        assert!(tokio::time::timeout(PATIENCE, heating).await.unwrap().is_err());
    }
}

struct Kettle {
    world: World,
    phase: Phase,
    round: u32,
    boiled: u32,
}

impl Machine for Kettle {
    type Input = Input;
    type Event = Event;
    type Record = Event;
    type Effect = Heat;
    type Key = Heat;
    type Report = Input;
    type Error = Failure;

    fn decide(&mut self, input: Input) -> Vec<Event> {
        decide(self.phase, self.round, &input, self.world.warm_until)
    }

    fn advance(&mut self, now: Timestamp) -> Vec<Event> {
        match self.phase {
            Phase::Warm { until } if until <= now => vec![Event::SwitchedOff],
            Phase::Off | Phase::Heating | Phase::Warm { .. } => vec![],
        }
    }

    async fn append(&mut self, events: Vec<Event>) -> Result<Vec<Event>, Failure> {
        self.world.disk.acquire().await.unwrap().forget();
        if self.world.is_disk_broken {
            return Err(Failure::Disk);
        }
        self.world.note(format!("durable {events:?}"));
        Ok(events)
    }

    fn fold(&mut self, records: Vec<Event>) -> Result<(), Failure> {
        for event in records {
            self.phase = match event {
                Event::SwitchedOn => {
                    self.round += 1;
                    Phase::Heating
                }
                Event::Boiled { until } => {
                    self.boiled += 1;
                    Phase::Warm { until }
                }
                Event::SwitchedOff => Phase::Off,
            };
        }
        Ok(())
    }

    async fn publish(&mut self) -> Result<(), Failure> {
        self.world.note(format!("published {:?}", self.phase));
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.world.is_disposable && self.boiled > 0 && self.phase == Phase::Off
    }

    fn due(&self) -> Due<Heat> {
        match self.phase {
            Phase::Off => Due { effects: vec![], wake_at: None },
            Phase::Heating => Due { effects: vec![Heat(self.round)], wake_at: None },
            Phase::Warm { until } => Due { effects: vec![], wake_at: Some(until) },
        }
    }

    fn key(&self, effect: &Heat) -> Heat {
        *effect
    }

    async fn carry_out(&mut self, key: &Heat, _: Heat) -> Result<Carried<Input>, Failure> {
        self.world.note(format!("begun {key:?}"));
        let (heating, ended) = oneshot::channel::<()>();
        self.world.heatings.lock().unwrap().push(ended);
        let (panics, round) = (self.world.does_heating_panic, key.0);
        let is_quick = self.world.is_disposable;
        Ok(Carried::Task(Box::pin(async move {
            let _heating = heating;
            assert!(!panics, "the fuse blew");
            if !is_quick {
                std::future::pending::<()>().await;
            }
            Some(Input::Hot { round })
        })))
    }
}

type Inbox = mpsc::Receiver<ReportOf<Kettle>>;
type Kettles = Driver<Kettle, mpsc::Sender<ReportOf<Kettle>>>;

fn kettle(world: &World) -> (Kettles, Inbox) {
    let (mailbox, inbox) = queue::<Kettle>();
    let machine = Kettle { world: world.clone(), phase: Phase::Off, round: 0, boiled: 0 };
    (Driver::new(machine, mailbox), inbox)
}

async fn step(driver: &mut Kettles, input: Input) -> Result<bool, Failure> {
    let taken = driver.feed(input).await?;
    driver.carry_out().await?;
    Ok(taken)
}

#[tokio::test]
async fn effect_starts_only_after_its_events_are_durable_and_published() {
    let world = World::new();
    let (mut driver, _inbox) = kettle(&world);
    let mut pressing = Box::pin(step(&mut driver, Input::Press));
    assert!(futures_util::poll!(&mut pressing).is_pending(), "the disk is slow");
    assert_eq!(world.steps(), [""; 0]);
    world.disk.add_permits(1);
    assert_eq!(pressing.await, Ok(true));
    assert_eq!(world.steps(), ["durable [SwitchedOn]", "published Heating", "begun Heat(1)"]);
}

#[tokio::test]
async fn failed_append_carries_out_nothing() {
    let mut world = World::new().with_disk();
    world.is_disk_broken = true;
    let (mut driver, _inbox) = kettle(&world);
    assert_eq!(step(&mut driver, Input::Press).await, Err(Failure::Disk));
    driver.carry_out().await.unwrap();
    assert_eq!((world.steps(), driver.machine().phase), (vec![], Phase::Off));
}

#[tokio::test]
async fn input_without_effect_appends_nothing() {
    let world = World::new();
    let (mut driver, _inbox) = kettle(&world);
    assert_eq!(step(&mut driver, Input::Hot { round: 7 }).await, Ok(false));
    assert_eq!(world.steps(), ["published Off"]);
}

#[tokio::test]
async fn effect_of_an_unchanged_key_begins_once() {
    let world = World::new().with_disk();
    let (mut driver, _inbox) = kettle(&world);
    step(&mut driver, Input::Press).await.unwrap();
    step(&mut driver, Input::Hot { round: 7 }).await.unwrap();
    assert_eq!(world.heatings.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn forgotten_key_aborts_the_older_task_when_it_begins_again() {
    let world = World::new().with_disk();
    let (mut driver, _inbox) = kettle(&world);
    step(&mut driver, Input::Press).await.unwrap();
    driver.forget(&Heat(1));
    assert!(world.heatings.lock().unwrap()[0].try_recv().is_err());
    driver.carry_out().await.unwrap();
    world.heating_ended(0).await;
    let newer = world.heatings.lock().unwrap()[0].try_recv();
    assert_eq!(newer, Err(oneshot::error::TryRecvError::Empty), "the newer one runs");
}

#[tokio::test]
async fn tasks_end_with_their_driver() {
    let world = World::new().with_disk();
    let (mut driver, _inbox) = kettle(&world);
    step(&mut driver, Input::Press).await.unwrap();
    drop(driver);
    world.heating_ended(0).await;
}

/// The clock of the test stands still, so only a timer without a wait can fire.
#[tokio::test(start_paused = true)]
async fn wake_up_in_the_past_fires_at_once() {
    let world = World::new().with_disk();
    let (mut driver, mut inbox) = kettle(&world);
    driver.machine_mut().phase = Phase::Warm { until: Timestamp::MIN };
    driver.carry_out().await.unwrap();
    let woken = tokio::time::timeout(Duration::from_millis(2), inbox.recv()).await.unwrap();
    assert!(matches!(woken, Some(Report::Woken)), "{woken:?}");
    driver.woken();
    driver.settle().await.unwrap();
    assert_eq!(driver.machine().phase, Phase::Off);
}

#[tokio::test(start_paused = true)]
async fn later_wake_up_replaces_the_earlier_timer() {
    let world = World::new().with_disk();
    let (mut driver, mut inbox) = kettle(&world);
    for seconds in [10, 3600] {
        let until = Timestamp::now() + Duration::from_secs(seconds);
        driver.machine_mut().phase = Phase::Warm { until };
        driver.carry_out().await.unwrap();
    }
    let early = tokio::time::timeout(Duration::from_secs(60), inbox.recv()).await;
    assert!(early.is_err(), "{early:?}");
    let woken = tokio::time::timeout(Duration::from_secs(3600), inbox.recv()).await.unwrap();
    assert!(matches!(woken, Some(Report::Woken)), "{woken:?}");
    driver.machine_mut().phase = Phase::Off;
    driver.carry_out().await.unwrap();
    assert!(inbox.is_empty());
}

/// A state that still asks for a wake-up after the timer fired gets another one.
#[tokio::test(start_paused = true)]
async fn early_timer_is_set_again() {
    let world = World::new().with_disk();
    let (mut driver, mut inbox) = kettle(&world);
    let until = Timestamp::now() + Duration::from_secs(10);
    driver.machine_mut().phase = Phase::Warm { until };
    for _ in 0..2 {
        driver.carry_out().await.unwrap();
        assert!(matches!(inbox.recv().await, Some(Report::Woken)));
        driver.carry_out().await.unwrap();
        assert!(inbox.is_empty(), "it fires once until the owner was woken");
        driver.woken();
    }
}

#[tokio::test]
async fn inputs_during_an_append_keep_their_order() {
    let mut world = World::new();
    world.is_disposable = true;
    world.warm_until = Timestamp::MIN;
    let (driver, inbox) = kettle(&world);
    let mailbox = driver.mailbox.clone();
    let mut running = Box::pin(driver.run(inbox));
    let presses = [Input::Press, Input::Press, Input::Press];
    for press in presses {
        mailbox.put(Report::Done(press)).await;
        assert!(futures_util::poll!(&mut running).is_pending(), "the disk is slow");
    }
    world.disk.add_permits(1000);
    let over = tokio::time::timeout(PATIENCE, running).await.unwrap().unwrap();
    assert_eq!((over.round, over.boiled), (2, 1));
    let durable = world.steps().into_iter().filter(|step| step.starts_with("durable"));
    let boiled = Event::Boiled { until: Timestamp::MIN };
    let events =
        [Event::SwitchedOn, Event::SwitchedOff, Event::SwitchedOn, boiled, Event::SwitchedOff];
    let expected = events.map(|event| format!("durable [{event:?}]"));
    assert_eq!(durable.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn full_queue_makes_senders_wait() {
    let (driver, _inbox) = kettle(&World::new());
    for _ in 0..QUEUE {
        driver.mailbox.try_send(Report::Done(Input::Press)).unwrap();
    }
    let mut next = Box::pin(driver.mailbox.put(Report::Done(Input::Press)));
    assert!(futures_util::poll!(&mut next).is_pending());
}

#[tokio::test]
async fn panic_of_a_task_ends_the_run() {
    let mut world = World::new().with_disk();
    world.does_heating_panic = true;
    let (driver, inbox) = kettle(&world);
    driver.mailbox.put(Report::Done(Input::Press)).await;
    let ended = tokio::time::timeout(PATIENCE, driver.run(inbox)).await.unwrap();
    let panic = Panicked("the fuse blew".into());
    assert_eq!(ended.err(), Some(Failure::Task(panic)));
}

#[tokio::test]
async fn machine_that_is_over_begins_no_effect() {
    let mut world = World::new().with_disk();
    world.is_disposable = true;
    let (mut driver, inbox) = kettle(&world);
    driver.machine_mut().boiled = 1;
    driver.carry_out().await.unwrap();
    assert!(driver.run(inbox).await.is_ok());
    assert!(world.heatings.lock().unwrap().is_empty());
}
