//! Notifications: a person is told once that something waits for them.

use muleteer_process::fault::NOTIFY_POINTS;
use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

const ASKS: &str = "
v: 1
turns:
  - steps:
      - ask: {question: \"Which colour?\"}
      - result: {status: success, summary: done}
";

/// Spawns an agent that asks a question, and waits until it does.
fn asks(world: &World, repo: &Repo) -> String {
    let file = world.path().join("asks.yaml");
    std::fs::write(&file, ASKS).expect("a scenario");
    let file = file.to_str().expect("a path").to_string();
    let args = ["spawn", "reviewer", repo.to_str(), "go", "--backend", "rehearsal"];
    let id = world.muleteer(&[&args[..], &["--scenario", &file]].concat()).ok();
    world.wait_for_state(&id, &["waiting"]);
    id
}

/// Configures a command that adds each notification to a file.
fn configure_command(world: &World) -> std::path::PathBuf {
    let told = world.path().join("told");
    let command = format!("cat >> {0} && echo >> {0}", told.display());
    world.configure(&format!(
        "notify: {{dwell: 0s, cool_down: 0s, \"on\": [question], command: \"{command}\"}}\n"
    ));
    told
}

fn lines(path: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn question_is_told_once_whatever_daemon_is_killed() {
    for point in NOTIFY_POINTS {
        let world = World::new();
        let repo = world.repo("repo");
        let told = configure_command(&world);
        let mut killed = world.daemon_with(&[("MULETEER_FAULT", &format!("{point}=kill"))]);
        let id = asks(&world, &repo);
        killed.ended();
        let daemon = world.daemon();
        // The daemon tells of a second question, so it has had the time for the first.
        let second = asks(&world, &repo);
        let about = |id: &str| {
            let all = lines(&told).into_iter();
            all.filter(|one| one["matters"][0]["dispatch_id"] == id).count()
        };
        wait_until("the second notification", PATIENCE, || (about(&second) > 0).then_some(()));
        // Nobody can tell whether a try that a kill cut off has reached the person.
        let wanted = usize::from(*point != "notify.tried");
        assert_eq!(about(&id), wanted, "{point}: {:?}", lines(&told));
        world.finish(Some(daemon));
    }
}

/// Serves one request after another with these statuses, and returns the requests.
fn serve(statuses: &'static [u16]) -> (String, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let (requests, received) = mpsc::sync_channel(64);
    std::thread::spawn(move || {
        for status in statuses {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut reader = BufReader::new(stream.try_clone().expect("a stream"));
            let (mut head, mut length) = (String::new(), 0);
            while let Ok(2..) = reader.read_line(&mut head) {
                let line = head.lines().last().unwrap_or_default().to_ascii_lowercase();
                if line.is_empty() {
                    break;
                }
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap_or(0);
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).expect("the body");
            let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes());
            let _ = requests.send(format!("{head}{}", String::from_utf8_lossy(&body)));
        }
    });
    (address, received)
}

#[test]
fn webhook_that_fails_is_tried_again_and_its_token_stays_secret() {
    let world = World::new();
    let repo = world.repo("repo");
    let (address, requests) = serve(&[503, 200]);
    world.configure(&format!(
        "notify: {{dwell: 0s, cool_down: 0s, webhook: \"{address}/path-secret\"}}\n"
    ));
    let daemon = world.daemon_with(&[("MULETEER_WEBHOOK_TOKEN", "token-secret")]);
    let id = asks(&world, &repo);
    let first = requests.recv_timeout(PATIENCE).expect("a request");
    assert!(first.contains("POST /path-secret"), "{first}");
    assert!(first.to_ascii_lowercase().contains("authorization: bearer token-secret"), "{first}");
    let body = first.lines().last().unwrap_or_default();
    let body: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(body["matters"][0]["dispatch_id"], *id, "{body}");
    assert!(body["title"].as_str().is_some_and(|text| text.contains("Which colour?")), "{body}");
    let failing = wait_until("the failure to be visible", PATIENCE, || {
        let shown = world.muleteer(&["notify", "--json"]).json();
        shown["channels"][0]["error"].as_str().map(String::from)
    });
    assert!(failing.contains("503"), "{failing}");
    let doctor = world.muleteer(&["doctor", "--json"]).run().stdout;
    assert!(doctor.contains("notify.webhook fails"), "{doctor}");
    let second = requests.recv_timeout(PATIENCE).expect("another try");
    assert!(second.contains("Which colour?"), "{second}");
    wait_until("the end of the failure", PATIENCE, || {
        let shown = world.muleteer(&["notify", "--json"]).json();
        shown["channels"][0]["error"].is_null().then_some(())
    });
    world.expect_clean_end(Some(daemon));
    for file in ["events.jsonl", "notify.json"] {
        let text = std::fs::read_to_string(world.state().join(file)).expect("a file");
        assert!(!text.contains("secret"), "{file}: {text}");
    }
}

#[test]
fn test_notification_reports_each_channel() {
    let world = World::new();
    let (address, requests) = serve(&[200]);
    world.configure(&format!("notify: {{command: \"exit 3\", ntfy: \"{address}/topic\"}}\n"));
    let output = world.muleteer(&["notify", "test", "--json"]).run().expect_code(4);
    let channels = &output.json()["channels"];
    assert!(channels[0]["error"].as_str().is_some_and(|e| e.contains("failed")), "{channels}");
    assert!(channels[1]["error"].is_null(), "{channels}");
    let request = requests.recv_timeout(PATIENCE).expect("a request").to_ascii_lowercase();
    assert!(request.contains("title: muleteer: a test"), "{request}");
    world.muleteer(&["notify", "test", "webhook"]).run().expect_code(2);
}
