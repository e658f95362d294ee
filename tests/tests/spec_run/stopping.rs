//! The limits and the stop of a run, clients that leave it, and its resumption.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use crate::verbs::{content, count};
use muleteer_tests::spec_stage::{AGENT, PATIENCE, SpecStage as Stage, last};
use muleteer_tests::{processes, wait_until, wire};
use rustix::process::Signal;

#[test]
fn run_stops_at_its_time_limit_and_resumes_with_a_higher_one() {
    let stage = Stage::new(
        &content().replace("implement)\n", "implement)\n  test -e \"$HOME/out/go\" || sleep 600\n"),
    );
    let daemon = stage.world.daemon();
    let stopped = stage.begin(&["--json", "--max-runtime", "6"]).run().expect_code(4);
    let document = last(&stopped.stdout);
    assert_eq!(document["error"]["code"], "E_MAX_RUNTIME", "{document}");
    assert_eq!(
        (&document["agents"], &document["beads"]["in_progress"]),
        (&0.into(), &0.into()),
        "its agents are ended"
    );
    std::fs::write(stage.world.home().join("out/go"), "").unwrap();
    let run = document["run_id"].as_str().unwrap();
    let args = ["run", "--resume", run, "--max-runtime", "10m", "--json"];
    assert_eq!(last(&stage.muleteer(&args).run().expect_code(0).stdout)["status"], "completed");
    stage.world.finish(Some(daemon));
}

#[test]
fn run_stops_at_its_budget_and_resumes_from_a_phase() {
    let spend = "echo '{\"type\":\"usage\",\"input\":10,\"output\":10,\"cost_usd\":0.4}'\n";
    let stage = Stage::new(&content().replace("implement)\n", &format!("implement)\n  {spend}")));
    let daemon = stage.world.daemon();
    let stopped =
        stage.begin(&["--json", "--budget-usd", "0.5", "--concurrency", "1"]).run().expect_code(4);
    let document = last(&stopped.stdout);
    assert_eq!(document["error"]["code"], "E_BUDGET", "{document}");
    assert!(document["cost_usd"].as_f64().unwrap() >= 0.4, "{document}");
    let run = document["run_id"].as_str().unwrap();
    let args =
        ["run", "--resume", run, "--budget-usd", "50", "--from-phase", "implement", "--json"];
    let done = last(&stage.muleteer(&args).run().expect_code(0).stdout);
    assert_eq!(
        (&done["status"], &done["beads"]["closed"]),
        (&"completed".into(), &3.into()),
        "{done}"
    );
    stage.world.finish(Some(daemon));
}

/// Each agent's own budget is within the rest at its start.
#[test]
fn concurrent_agents_share_the_runs_budget() {
    let spend = r#"
  test -e "$HOME/out/go" || case "$(muleteer bead show "$MULETEER_BEAD_ID" --json)" in *Base*) ;; *)
    echo '{"type":"usage","input":10,"output":10,"cost_usd":0.3}'
    while :; do sleep 0.2; echo '{"type":"usage","input":1,"output":1,"cost_usd":0.0001}'; done ;;
  esac
"#;
    let stage = Stage::new(&content().replace("implement)\n", &format!("implement){spend}")));
    let daemon = stage.world.daemon();
    let stopped =
        stage.begin(&["--json", "--budget-usd", "0.5", "--concurrency", "2"]).run().expect_code(4);
    let document = last(&stopped.stdout);
    assert_eq!(document["error"]["code"], "E_BUDGET", "{document}");
    let run = document["run_id"].as_str().unwrap();
    let spent = document["cost_usd"].as_f64().unwrap();
    assert!((0.6..0.7).contains(&spent), "{document}");
    let events = stage.events(run);
    let counted: Vec<_> = events
        .iter()
        .filter(|event| event["event"] == "bead_retried")
        .map(|event| &event["counted"])
        .collect();
    assert_eq!(counted, [false, false], "that the money is gone is no bead's failure");
    std::fs::write(stage.world.home().join("out/go"), "").unwrap();
    let args = ["run", "--resume", run, "--budget-usd", "50", "--json"];
    let done = last(&stage.muleteer(&args).run().expect_code(0).stdout);
    assert_eq!(
        (&done["status"], &done["beads"]["closed"]),
        (&"completed".into(), &3.into()),
        "{done}"
    );
    let events = stage.world.events();
    let of_category =
        |event: &&serde_json::Value| event["category"] == "coding" && event["purse"]["usd"] == 50.0;
    let mut own = events.iter().filter(of_category).map(|event| &event["limits"]["budget_usd"]);
    assert!(
        own.next().is_some_and(|own| own == 10.0) && own.all(|own| own == 10.0),
        "nobody may have all of it"
    );
    stage.world.finish(Some(daemon));
}

#[test]
fn ctrl_c_stops_the_agents_and_resume_continues_in_their_worktrees() {
    let stage = Stage::new(&content().replace(
        "implement)\n",
        "implement)\n  echo half > half.txt\n  test -e \"$HOME/out/go\" || sleep 600\n",
    ));
    let daemon = stage.world.daemon();
    let client = stage.begin(&["--json"]).start();
    wait_until("a bead to be worked on", PATIENCE, || {
        let status = stage.muleteer(&["run", "--status", "--json"]).run();
        let document: serde_json::Value = serde_json::from_str(&status.stdout).ok()?;
        let half = stage.repo.path.join(".muleteer/worktrees").join(document["run_id"].as_str()?);
        let begun = std::fs::read_dir(half)
            .ok()?
            .flatten()
            .any(|entry| entry.path().join("half.txt").exists());
        (begun && document["beads"]["in_progress"].as_u64()? > 0).then_some(())
    });
    stage.world.signal(client.pid(), Signal::INT);
    let output = client.finish();
    let document = last(&output.stdout);
    assert_eq!(
        (&document["status"], &document["agents"]),
        (&"pending".into(), &0.into()),
        "{document}"
    );
    assert_eq!(document["error"]["code"], "E_RUN_STOPPED", "{document}");
    assert!(output.stderr.contains("--resume"), "{}", output.stderr);
    let run = document["run_id"].as_str().unwrap();
    assert!(
        stage.repo.path.join(".muleteer/worktrees").join(run).exists(),
        "what they were at is kept"
    );
    std::fs::write(stage.world.home().join("out/go"), "").unwrap();
    let done =
        last(&stage.muleteer(&["run", "--resume", run, "--json"]).run().expect_code(0).stdout);
    assert_eq!(done["status"], "completed", "{done}");
    assert!(
        stage
            .repo
            .git(&["ls-tree", "--name-only", &format!("muleteer/{run}")])
            .contains("half.txt")
    );
    stage.world.finish(Some(daemon));
}

/// The run is stopped while eight agents begin, at several moments. Every agent that is reported as
/// ended has ended, no agent begins afterwards, and the run resumes completely.
#[test]
fn stop_ends_agents_that_are_starting() {
    let beads: String =
        (0..8).map(|n| format!("  muleteer bead create --title Part{n}\n")).collect();
    let agent = AGENT.replace("decompose)\n", &format!("decompose)\n{beads}  exit 0\n"));
    let wait = "implement)\n  echo x >> \"$HOME/out/begun\"\n  test -e \"$HOME/out/go\" || \
                sleep 600\n";
    let stage = Stage::new(&agent.replace("implement)\n", wait));
    stage.configure("run: {acceptance: {generate: false}, phases: {judge: {enabled: false}}}\n");
    let daemon = stage.world.daemon();
    let (mut run, mut given) = (String::new(), 0);
    for (round, moment) in [1, 4, 8].into_iter().enumerate() {
        let client = match round {
            0 => stage.begin(&["--json", "--concurrency", "8"]).start(),
            _ => stage.muleteer(&["run", "--resume", &run, "--json"]).start(),
        };
        let folder = stage.repo.path.join(".muleteer/runs");
        run = wait_until("the run to begin", PATIENCE, || {
            std::fs::read_dir(&folder).ok()?.flatten().next()?.file_name().into_string().ok()
        });
        wait_until(&format!("{moment} beads to be given out"), PATIENCE, || {
            (count(&stage, &run, "bead_assigned") >= given + moment).then_some(())
        });
        stage.world.signal(client.pid(), Signal::INT);
        let output = client.finish();
        assert_eq!(output.code, Some(4), "{output:?}");
        assert_eq!(last(&output.stdout)["status"], "pending", "{}", output.stdout);
        let status = stage.world.status();
        let living: Vec<_> = status["dispatches"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| {
                ["queued", "starting", "running"].iter().any(|state| entry["state"] == *state)
            })
            .collect();
        assert!(living.is_empty(), "after {moment} of round {round}: {living:?}");
        let begun = stage.world.home().join("out/begun");
        let begun = std::fs::read_to_string(begun).unwrap_or_default();
        let all = stage.world.processes();
        assert!(
            processes::shims(&all).is_empty(),
            "{} have begun, and {all:?} live",
            begun.lines().count()
        );
        given = count(&stage, &run, "bead_assigned");
    }
    std::fs::write(stage.world.home().join("out/go"), "").unwrap();
    let done =
        last(&stage.muleteer(&["run", "--resume", &run, "--json"]).run().expect_code(0).stdout);
    assert_eq!(
        (&done["status"], &done["beads"]["closed"]),
        (&"completed".into(), &8.into()),
        "{done}"
    );
    stage.world.finish(Some(daemon));
}

/// Exit code 0 says that the judge has passed the run.
#[test]
fn follower_reports_a_missing_daemon_and_continues_with_the_next() {
    // One agent continues if `first` exists, all if `go` exists.
    let first = "test -e \"$HOME/out/first\" && mkdir \"$HOME/out/taken\" 2>/dev/null && break";
    let wait =
        format!("implement)\n  while [ ! -e \"$HOME/out/go\" ]; do {first}; sleep 0.05; done\n");
    let stage = Stage::new(&content().replace("implement)\n", &wait));
    let mut daemon = stage.world.daemon();
    stage.begin(&["--detach"]).run().expect_code(0);
    let look = || stage.muleteer(&["run", "--status", "--follow", "--json"]);
    wait_until("beads to be worked on", PATIENCE, || {
        (stage.status()["beads"]["in_progress"].as_u64()? > 0).then_some(())
    });
    daemon.kill_9();
    let alone = look().run().expect_code(3);
    assert_eq!(alone.error_code(), "E_NO_DAEMON", "{alone:?}");
    let mut daemon = stage.world.daemon();
    let socket = wire::socket(&stage.world);
    wait_until("nobody else to be there", PATIENCE, || (wire::clients(&socket) == 0).then_some(()));
    let onlooker = look().start();
    wait_until("somebody to look on", PATIENCE, || (wire::clients(&socket) > 0).then_some(()));
    std::fs::write(stage.world.home().join("out/first"), "").unwrap();
    wait_until("something to be seen", PATIENCE, || {
        (!onlooker.stdout_so_far().is_empty()).then_some(())
    });
    daemon.kill_9();
    let daemon = stage.world.daemon();
    std::fs::write(stage.world.home().join("out/go"), "").unwrap();
    let seen = onlooker.finish().expect_code(0);
    assert_eq!(last(&seen.stdout)["status"], "completed", "{seen:?}");
    stage.world.finish(Some(daemon));
}

/// A client has started the daemon, so nobody else would end it.
#[test]
fn on_demand_daemon_exits_after_its_run() {
    let stage = Stage::new(&content());
    let args = ["daemon", "--on-demand", "--idle-exit", "3s"];
    let daemon = stage.muleteer(&args).start();
    let pid = daemon.pid();
    wait_until("the daemon to answer", PATIENCE, || {
        (stage.world.status()["daemon"]["pid"] == pid).then_some(())
    });
    let done = last(&stage.begin(&["--json"]).run().expect_code(0).stdout);
    assert_eq!(done["status"], "completed", "{done}");
    assert_eq!(daemon.finish().code, Some(0), "it has gone by itself");
    stage.world.finish(None);
}

/// No client follows the run, so there is no Ctrl-C.
#[test]
fn detached_run_stops_completely_and_resumes() {
    let stage = Stage::new(
        &content().replace("implement)\n", "implement)\n  test -e \"$HOME/out/go\" || sleep 600\n"),
    );
    stage.configure("run: {acceptance: {generate: false}, phases: {judge: {enabled: false}}}\n");
    let daemon = stage.world.daemon();
    assert_eq!(
        stage.muleteer(&["run", "stop", "--json"]).run().expect_code(2).error_code(),
        "E_NOT_FOUND"
    );
    let begin = || stage.begin(&["--detach"]).ok().trim().to_string();
    let run = begin();
    let at_work = || {
        wait_until("a bead to be worked on", PATIENCE, || {
            (stage.status()["beads"]["in_progress"].as_u64()? > 0).then_some(())
        })
    };
    at_work();
    let stop = |args: &[&str]| {
        stage.muleteer(&[&["run", "stop", "--json"], args].concat()).run().expect_code(0).json()
    };
    let stopped = stop(&[]);
    assert_eq!(
        (&stopped["status"], &stopped["agents"]),
        (&"pending".into(), &0.into()),
        "{stopped}"
    );
    assert_eq!(stopped["error"]["code"], "E_RUN_STOPPED", "{stopped}");
    assert!(processes::shims(&stage.world.processes()).is_empty());
    // The run rests already.
    let hash = run.rsplit('-').next().unwrap();
    assert_eq!(stop(&[hash])["status"], "pending");
    stage.muleteer(&["run", "--resume", &run, "--detach"]).run().expect_code(0);
    at_work();
    assert_eq!(stop(&[hash])["status"], "pending");
    std::fs::write(stage.world.home().join("out/go"), "").unwrap();
    let done =
        last(&stage.muleteer(&["run", "--resume", &run, "--json"]).run().expect_code(0).stdout);
    assert_eq!(
        (&done["status"], &done["beads"]["closed"]),
        (&"completed".into(), &3.into()),
        "{done}"
    );
    assert_eq!(stop(&[&run])["status"], "completed");
    stage.world.finish(Some(daemon));
}
