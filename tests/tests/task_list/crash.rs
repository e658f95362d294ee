//! kill -9 while a task list is worked through: at every named point, and at moments chosen by a
//! seed.
//!
//! `MULETEER_CRASH_SEED` picks one seed, `MULETEER_CRASH_SEEDS` how many from 0.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use muleteer_process::fault::{POINTS, STOP_POINTS};
use muleteer_tests::crash::Dice;
use muleteer_tests::task_list::{RUN, Scene};
use muleteer_tests::{Daemon, processes, wait_until};
use serde_json::json;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SEEDS_IN_CI: u64 = 1;

fn points() -> impl Iterator<Item = &'static str> {
    POINTS.iter().copied().filter(|point| point.starts_with("tasks."))
}

fn seeds() -> Vec<u64> {
    let number =
        |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    match number("MULETEER_CRASH_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("MULETEER_CRASH_SEEDS").unwrap_or(SEEDS_IN_CI)).collect(),
    }
}

/// Starts a daemon that dies at the point. Its answer may be lost with it, so it need only be up.
fn daemon_to_die_at(scene: &Scene, fault: &str) -> Daemon {
    let mut daemon = scene.world.daemon_unready(&[("MULETEER_FAULT", fault)]);
    // A daemon that adopts a run may die of it before anybody can ask it.
    let is_up = |daemon: &mut Daemon| {
        scene.world.status()["daemon"]["running"] == true || !daemon.is_alive()
    };
    wait_until("the daemon to answer", RUN, || is_up(&mut daemon).then_some(()));
    daemon
}

#[test]
fn killed_at_every_point_of_a_task_it_is_done_once() {
    // The list is written for the session, and for the claim and the outcome of each attempt.
    let later = ["tasks.list_written:2", "tasks.list_written:3", "tasks.list_written:5"];
    for point in points().chain(later) {
        let scene = Scene::new();
        scene.add("Twice", "test -f good", &[]);
        let mut daemon = daemon_to_die_at(&scene, point);
        let script = "echo x >> \"$HOME/effects\"; if [ -e \"$HOME/second\" ]; then echo x > good; \
            else \
            touch \"$HOME/second\"; echo y > bad; fi";
        // Only work in a clone has to be brought home.
        let workers =
            if ["git.before_forward", "tasks.landed"].contains(&point) { "2" } else { "1" };
        let run = scene.run(script, &["--concurrency", workers]);
        assert_eq!(run.code, Some(0), "{point}: {run:?}\n{}", scene.log());
        wait_until("the daemon to have died", RUN, || (!daemon.is_alive()).then_some(()));
        daemon.ended();
        assert_eq!(scene.task("task-001")["attempts"], 2, "{point}: {}", scene.log());
        assert_eq!(scene.effects().len(), 2, "{point}: an attempt was made twice\n{}", scene.log());
        assert_eq!(
            scene.log().matches("] Starting [task-001] ").count(),
            2,
            "{point}: {}",
            scene.log()
        );
        assert!(
            !scene.repo.path.join("bad").exists() && scene.repo.path.join("good").exists(),
            "{point}"
        );
        scene.check_done_once();
        scene.end();
    }
}

/// One run of two workers, whose daemon dies at each of the points in turn.
#[test]
fn killed_at_one_point_after_the_other_two_workers_do_each_task_once() {
    let scene = Scene::new();
    for number in 1..=6 {
        scene.add(&format!("Task {number}"), &format!("test -f w{number}"), &[]);
    }
    let script = "n=${MULETEER_TASK_ID#task-00}; echo $n >> \"$HOME/effects\"; \
        if [ -e \"$HOME/again$n\" ]; then echo x > w$n; else touch \"$HOME/again$n\"; echo y > \
        bad$n; fi";
    let mut client = None;
    for point in points() {
        let mut daemon = daemon_to_die_at(&scene, point);
        client.get_or_insert_with(|| scene.begin(script, 2));
        wait_until(&format!("a daemon to die at {point}"), RUN, || {
            assert!(!scene.is_done(), "{point} was not passed any more");
            (!daemon.is_alive()).then_some(())
        });
        daemon.ended();
    }
    let last = scene.world.daemon();
    scene.wait_until_done();
    drop(client);
    let wanted: Vec<_> =
        (1..=6).flat_map(|number| [number.to_string(), number.to_string()]).collect();
    assert_eq!(
        scene.effects(),
        wanted,
        "two attempts each, and none of them twice\n{}",
        scene.log()
    );
    assert!((1..=6).all(|n| scene.repo.path.join(format!("w{n}")).exists()));
    assert_eq!(scene.repo.git(&["rev-list", "--count", "HEAD"]), "7");
    scene.check_done_once();
    scene.world.finish(Some(last));
}

/// The workers of a run that is stopped at once end their agents themselves. So it does not matter
/// what the request to stop could see of a dispatch, or whether its daemon lived on.
#[test]
fn next_daemon_stops_agents_after_a_recorded_stop() {
    let scene = Scene::new();
    scene.add("Slow", "test -f never", &[]);
    let mut daemon = daemon_to_die_at(&scene, STOP_POINTS[0]);
    scene.run("touch \"$HOME/began\"; exec sleep 1000", &["--detach"]).expect_code(0);
    wait_until("the agent to begin", RUN, || scene.home("began").exists().then_some(()));
    // With this variable the client starts no daemon, to which it would send its request again. It
    // waits for another one, so it is killed (dropped) before that.
    let socket = scene.world.status()["daemon"]["socket"].as_str().unwrap().to_string();
    let stop = scene.world.muleteer(&["tasks", "stop", "--now"]).current_dir(&scene.repo.path);
    let client = stop.env("MULETEER_SOCKET", socket).start();
    daemon.ended();
    drop(client);
    let last = scene.world.daemon();
    let released = || scene.log().contains("LOCK released").then_some(());
    wait_until("the run to end", RUN, released);
    assert_eq!(scene.status("task-001"), "in_progress", "{}", scene.log());
    scene.world.finish(Some(last));
}

/// A dead foreign worker's task is recovered. The daemon dies after it has taken the task over,
/// before and after it writes the outcome, and the next one ends in the same state.
#[test]
fn kill_during_a_recovery_validates_the_task_once() {
    let points = [
        "tasks.backup_written",
        "tasks.list_written",
        "tasks.backup_written:2",
        "tasks.list_written:2",
        "tasks.outcome_written",
    ];
    for (point, (text, attempts)) in
        points.iter().flat_map(|point| [(point, ("good", 1)), (point, ("bad", 2))])
    {
        let scene = Scene::new();
        scene.configure("concurrency_mode", json!("concurrent"));
        scene.add("Left", "grep -q good w1", &[]);
        scene.abandon("task-001");
        scene.repo.write("w1", text);
        scene.repo.git(&["add", "w1"]);
        scene.repo.git(&["commit", "-qm", "task-001: some of it"]);
        let mut daemon = daemon_to_die_at(&scene, point);
        let run = scene.run("echo x >> \"$HOME/effects\"; echo good > w1", &[]);
        assert_eq!(run.code, Some(0), "{point} {text}: {run:?}\n{}", scene.log());
        wait_until("the daemon to have died", RUN, || (!daemon.is_alive()).then_some(()));
        daemon.ended();
        assert_eq!(scene.task("task-001")["attempts"], attempts, "{point} {text}: {}", scene.log());
        assert_eq!(scene.effects().len(), attempts - 1, "{point} {text}: {}", scene.log());
        scene.check_done_once();
        scene.end();
    }
}

#[test]
fn two_and_eight_workers_of_a_run_killed_at_random_lose_nothing_and_do_nothing_twice() {
    for seed in seeds() {
        for workers in [2, 8] {
            driver_killed_at_random(seed, workers);
        }
    }
}

/// Kills daemons, shims and agents of one run.
fn driver_killed_at_random(seed: u64, workers: u64) {
    let mut dice = Dice::new(seed * 100 + workers);
    let scene = Scene::new();
    for number in 1..=9 {
        scene.add(
            &format!("Task {number}"),
            &format!("test -f w{number}"),
            &["--max-attempts", "50"],
        );
    }
    let mut daemon = scene.world.daemon();
    let script =
        "n=${MULETEER_TASK_ID#task-00}; echo $n >> \"$HOME/effects\"; sleep 0.3; echo x > w$n";
    let client = scene.begin(script, workers);
    wait_until("the first to begin", RUN, || (!scene.effects().is_empty()).then_some(()));
    let mut struck = vec![];
    for _ in 0..3 + dice.below(3) {
        // This sleep *is* the test's input: a moment chosen by the seed.
        std::thread::sleep(Duration::from_millis(dice.below(900)));
        scene.list();
        let all = scene.world.processes();
        let of_a_task = |one: &&processes::Process| {
            one.variable("MULETEER_TASK_ID").is_some() && !one.is_daemon()
        };
        let shims: Vec<u32> = processes::shims(&all).iter().map(|one| one.pid).collect();
        let agents: Vec<u32> = all
            .iter()
            .filter(of_a_task)
            .map(|one| one.pid)
            .filter(|pid| !shims.contains(pid))
            .collect();
        let what = ["daemon", "daemon", "shim", "agent", "everything"][dice.below(5) as usize];
        let victims: Vec<u32> = match what {
            "daemon" => vec![],
            "shim" => shims
                .get(dice.below(shims.len().max(1) as u64) as usize)
                .copied()
                .into_iter()
                .collect(),
            "agent" => agents
                .get(dice.below(agents.len().max(1) as u64) as usize)
                .copied()
                .into_iter()
                .collect(),
            _ => shims.into_iter().chain(agents).collect(),
        };
        struck.push(what);
        if matches!(what, "daemon" | "everything") {
            daemon.kill_9();
        }
        for pid in victims {
            scene.world.kill_9(pid);
        }
        if matches!(what, "daemon" | "everything") {
            daemon = scene.world.daemon();
        }
    }
    eprintln!("seed {seed}, {workers} workers: killed {struck:?}");
    scene.wait_until_done();
    drop(client);
    scene.check_done_once();
    if struck.iter().all(|what| *what == "daemon") {
        assert_eq!(scene.effects().len(), 9, "each was begun once: {:?}", scene.effects());
    }
    assert!((1..=9).all(|number| scene.repo.path.join(format!("w{number}")).exists()));
    assert_eq!(scene.repo.git(&["status", "--porcelain", "--", "w1", "w9"]), "");
    assert_eq!(scene.repo.git(&["rev-list", "--count", "HEAD"]), "10", "a commit each");
    scene.world.finish(Some(daemon));
}

/// Workers are plain shells, killed at random with all their children. Only the claim keeps them
/// apart.
#[test]
fn two_and_eight_foreign_workers_killed_at_random_lose_nothing_and_do_nothing_twice() {
    for seed in seeds() {
        for workers in [2, 8] {
            shells_killed_at_random(seed, workers);
        }
    }
}

/// A shell in a process group of its own, which ends with it.
struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        drop(self.0.wait());
    }
}

fn shells_killed_at_random(seed: u64, workers: usize) {
    let mut dice = Dice::new(seed * 100 + workers as u64);
    let scene = Scene::new();
    scene.configure("concurrency_mode", json!("concurrent"));
    for number in 1..=10 {
        scene.add(&format!("Task {number}"), "true", &["--max-attempts", "50"]);
    }
    let script = "while :; do id=$(muleteer tasks claim --worker $W --lease 2s -q) || { sleep 0.3; \
        continue; }; \
        sleep 0.1; muleteer tasks complete $id --worker $W -q; done";
    std::os::unix::fs::symlink(scene.world.program(), scene.world.bin().join("muleteer")).unwrap();
    let start = |number: usize| {
        let dir = scene.world.path().join(format!("clone{number}"));
        if !dir.exists() {
            scene.repo.git(&["clone", "-q", scene.repo.to_str(), dir.to_str().unwrap()]);
        }
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(dir).process_group(0);
        scene.world.environment(&mut command);
        command.env("W", format!("w{number}")).env("HARNESS_STATE_ROOT", &scene.repo.path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Shell(command.spawn().unwrap())
    };
    let mut shells: Vec<_> = (0..workers).map(start).collect();
    for _ in 0..8 {
        // This sleep *is* the test's input: a moment chosen by the seed.
        std::thread::sleep(Duration::from_millis(dice.below(400)));
        let victim = dice.below(workers as u64) as usize;
        shells.remove(victim);
        scene.list();
        shells.insert(victim, start(victim));
    }
    wait_until("all to be completed", RUN, || scene.is_done().then_some(()));
    drop(shells);
    // The last killed worker may not have logged its change; the next process that changes the list
    // does.
    scene.tasks(&["claim", "--worker", "next"]).expect_code(3);
    scene.check_done_once();
    scene.world.finish(None);
}
