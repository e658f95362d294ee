//! Notifications: a person is told once that something waits for them.

use muleteer_process::fault::NOTIFY_POINTS;
use muleteer_tests::{PATIENCE, Repo, World, wait_until};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
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

fn lines(path: &Path) -> Vec<Value> {
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

/// Serves SMTP, connection after connection: the first ones refuse the recipient with these words,
/// all others take the mail. Returns the port and what each client said.
fn serve_mail(refusals: &'static [&'static str]) -> (u16, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (mails, received) = mpsc::sync_channel(64);
    std::thread::spawn(move || {
        let mut refusals = refusals.iter();
        while let Ok((mut stream, _)) = listener.accept() {
            let refusal = refusals.next();
            let reader = BufReader::new(stream.try_clone().expect("a stream"));
            let (mut mail, mut is_text) = (String::new(), false);
            let _ = stream.write_all(b"220 here\r\n");
            for line in reader.lines().map_while(Result::ok) {
                mail.push_str(&format!("{line}\n"));
                let answer = match line.split([' ', ':']).next().unwrap_or_default() {
                    "." if is_text => "250 ok",
                    _ if is_text => continue,
                    "EHLO" => "250-here\r\n250 AUTH PLAIN",
                    "AUTH" => "235 welcome",
                    "RCPT" => refusal.copied().unwrap_or("250 ok"),
                    "DATA" => "354 go on",
                    "QUIT" => "221 bye",
                    _ => "250 ok",
                };
                is_text = answer.starts_with("354");
                let _ = stream.write_all(format!("{answer}\r\n").as_bytes());
            }
            let _ = mails.send(mail);
        }
    });
    (port, received)
}

fn faults(world: &World) -> Vec<String> {
    let texts = world.events().into_iter().filter(|event| event["what"] == "notifications");
    texts.filter_map(|event| event["message"].as_str().map(String::from)).collect()
}

#[test]
fn mail_that_is_refused_is_told_once_and_its_password_stays_secret() {
    let world = World::new();
    let repo = world.repo("repo");
    let (port, mails) = serve_mail(&["451 the mailbox is full", "451 the mailbox is full"]);
    world.configure(&format!(
        "notify: {{dwell: 0s, cool_down: 0s, mail: {{to: me@example.org, from: m@example.org, \
         server: 127.0.0.1, port: {port}, tls: none, user: me}}}}\n"
    ));
    let daemon = world.daemon_with(&[("MULETEER_MAIL_PASSWORD", "password-secret")]);
    let id = asks(&world, &repo);
    let refused = mails.recv_timeout(PATIENCE).expect("a connection");
    assert!(refused.contains("RCPT TO:<me@example.org>"), "{refused}");
    wait_until("the failure to be visible", PATIENCE, || {
        let doctor = world.muleteer(&["doctor", "--json"]).run().stdout;
        doctor.contains("notify.mail fails: 127.0.0.1 refused the mail").then_some(())
    });
    mails.recv_timeout(PATIENCE).expect("another try");
    let sent = mails.recv_timeout(PATIENCE).expect("a third try");
    assert!(sent.contains("Which colour?") && sent.contains(&id), "{sent}");
    assert!(sent.contains("AUTH PLAIN AG1lAHBhc3N3b3JkLXNlY3JldA=="), "{sent}");
    wait_until("the end of the failure", PATIENCE, || {
        let shown = world.muleteer(&["notify", "--json"]).json();
        shown["channels"][0]["error"].is_null().then_some(())
    });
    let told = faults(&world);
    assert!(told.len() == 1 && told[0].contains("mailbox is full"), "{told:?}");
    let log = daemon.log();
    world.expect_clean_end(Some(daemon));
    for (file, text) in [
        ("events.jsonl", std::fs::read_to_string(world.state().join("events.jsonl"))),
        ("notify.json", std::fs::read_to_string(world.state().join("notify.json"))),
        ("the log", Ok(log)),
    ] {
        let text = text.expect("a file");
        assert!(!text.contains("secret") && !text.contains("AG1lAH"), "{file}: {text}");
    }
}

/// A desktop of macOS needs no session bus.
#[cfg(target_os = "linux")]
#[test]
fn daemon_without_a_desktop_says_so_once() {
    let world = World::new();
    let repo = world.repo("repo");
    let command = configure_command(&world);
    let text = format!(
        "notify: {{dwell: 0s, cool_down: 0s, \"on\": [question], desktop: true, \
         command: \"cat >> {0} && echo >> {0}\"}}\n",
        command.display()
    );
    world.configure(&text);
    let daemon = world.daemon();
    for count in 1..=2 {
        asks(&world, &repo);
        wait_until("the command", PATIENCE, || (lines(&command).len() == count).then_some(()));
    }
    let memory = world.state().join("notify.json");
    wait_until("no further try", PATIENCE, || {
        let text = std::fs::read_to_string(&memory).ok()?;
        let memory: Value = serde_json::from_str(&text).ok()?;
        memory["open"].as_object()?.is_empty().then_some(())
    });
    let told = faults(&world);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("failed to notify by desktop: the daemon has no desktop session"));
    let doctor = world.muleteer(&["doctor", "--json"]).run().stdout;
    assert!(doctor.contains("notify.desktop fails: the daemon has no desktop session"), "{doctor}");
    world.finish(Some(daemon));
}

/// The mail server accepts connections, and never answers.
#[test]
fn mail_server_that_hangs_delays_no_other_channel() {
    let world = World::new();
    let repo = world.repo("repo");
    let told = world.path().join("told");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    // Channels are named in an order: one comes before `mail`, and the other one after it.
    let (address, requests) = serve(&[200, 200, 200]);
    world.configure(&format!(
        "notify: {{dwell: 0s, cool_down: 0s, \"on\": [question], webhook: \"{address}\", \
         command: \"cat >> {0} && echo >> {0}\", mail: {{to: me@example.org, \
         from: m@example.org, server: 127.0.0.1, port: {port}, tls: none}}}}\n",
        told.display()
    ));
    let daemon = world.daemon();
    for count in 1..=3 {
        asks(&world, &repo);
        wait_until("the command", PATIENCE, || (lines(&told).len() == count).then_some(()));
        requests.recv_timeout(PATIENCE).expect("the webhook");
    }
    let file = world.state().join("notify.json");
    wait_until("three notifications without mail", PATIENCE, || {
        let memory: Value = serde_json::from_str(&std::fs::read_to_string(&file).ok()?).ok()?;
        let open = memory["open"].as_object()?;
        let lacks_mail =
            |one: &Value| one["channels"].as_object().is_some_and(|it| it.keys().eq(["mail"]));
        (open.len() == 3 && open.values().all(lacks_mail)).then_some(())
    });
    drop(listener);
    world.finish(Some(daemon));
}

/// The daemon has them for its channels; the client, too, may have them in its environment.
#[test]
fn variables_of_channels_reach_no_agent() {
    const NAMES: [&str; 4] = [
        "DBUS_SESSION_BUS_ADDRESS",
        "MULETEER_MAIL_PASSWORD",
        "MULETEER_NTFY_TOKEN",
        "MULETEER_WEBHOOK_TOKEN",
    ];
    let world = World::new();
    let repo = world.repo("repo");
    let seen = world.path().join("seen");
    let file = world.path().join("prints.yaml");
    let scenario = format!(
        "v: 1\nturns:\n  - repeat: true\n    steps:\n      \
         - run: env > {0}.new && mv {0}.new {0}\n      \
         - result: {{status: success, summary: done}}\n",
        seen.display()
    );
    std::fs::write(&file, scenario).expect("a scenario");
    let file = file.to_str().expect("a path");
    world.configure(&format!(
        "schedules:\n  s: {{cron: \"0 0 1 1 *\", role: developer, prompt: go, project: {}, \
         backend: rehearsal}}\n",
        repo.to_str()
    ));
    let set = NAMES.map(|name| (name, "value-secret"));
    let daemon = world.daemon_with(&[&set[..], &[("MULETEER_SCENARIO", file)]].concat());
    let clean = |kind: &str| {
        let env = wait_until(kind, PATIENCE, || std::fs::read_to_string(&seen).ok());
        std::fs::remove_file(&seen).expect("the file");
        assert!(env.contains("PATH="), "{kind}: {env}");
        for name in NAMES {
            assert!(!env.contains(&format!("{name}=")), "{kind}: {name} in\n{env}");
        }
        assert!(!env.contains("value-secret"), "{kind}: {env}");
    };
    // An agent of a client, with the environment of the client, and one with the daemon's.
    let args = ["spawn", "reviewer", repo.to_str(), "go", "--backend", "rehearsal", "--scenario"];
    let mut spawn = world.muleteer(&[&args[..], &[file]].concat());
    for (name, value) in set {
        spawn = spawn.env(name, value);
    }
    spawn.ok();
    clean("the environment of an agent of a client");
    world.muleteer(&["schedule", "run", "s"]).ok();
    clean("the environment of an agent of a schedule");
    let log = daemon.log();
    assert!(!log.contains("value-secret"), "{log}");
    world.finish(Some(daemon));
}

/// A private session bus, whose notifications are received.
#[cfg(target_os = "linux")]
struct Bus {
    process: std::process::Child,
    address: String,
    shown: mpsc::Receiver<(String, String)>,
    _runtime: tokio::runtime::Runtime,
}

#[cfg(target_os = "linux")]
impl Bus {
    /// Returns `None` where no bus can be started.
    #[allow(clippy::disallowed_methods)]
    fn begin(dir: &Path) -> Option<Self> {
        use std::process::{Command, Stdio};
        let socket = dir.join("desktop-bus");
        let address = format!("unix:path={}", socket.display());
        let mut command = Command::new("dbus-daemon");
        command.args(["--session", "--nofork"]).arg(format!("--address={address}"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let process = command.spawn().ok()?;
        wait_until("the bus", PATIENCE, || socket.exists().then_some(()));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let (sender, shown) = mpsc::sync_channel(64);
        let desktop = runtime.block_on(async {
            let builder = zbus::connection::Builder::address(address.as_str());
            let named = builder.name("org.freedesktop.Notifications").build();
            let named = tokio::time::timeout(PATIENCE, named).await.expect("an answer of the bus");
            named.expect("a name on the bus")
        });
        runtime.spawn(serve_desktop(desktop, sender));
        Some(Self { process, address, shown, _runtime: runtime })
    }
}

#[cfg(target_os = "linux")]
async fn serve_desktop(desktop: zbus::Connection, shown: mpsc::SyncSender<(String, String)>) {
    use futures_util::StreamExt;
    let mut calls = zbus::MessageStream::from(&desktop);
    while let Some(Ok(call)) = calls.next().await {
        if call.header().member().is_none_or(|member| member.as_str() != "Notify") {
            continue;
        }
        type Hints = std::collections::HashMap<String, zbus::OwnedVariant>;
        type Body = (String, u32, String, String, String, Vec<String>, Hints, i32);
        let body = call.body();
        let told: Body = body.deserialize().expect("a notification");
        desktop.reply(&call.header(), &1u32).await.expect("a reply");
        let _ = shown.send((told.3, told.4));
    }
}

#[cfg(target_os = "linux")]
impl Drop for Bus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn desktop_shows_a_question_without_markup() {
    let world = World::new();
    let repo = world.repo("repo");
    let Some(bus) = Bus::begin(world.path()) else {
        muleteer_tests::skip::skip("desktop_shows_a_question_without_markup", "no dbus-daemon");
        return;
    };
    world.configure("notify: {dwell: 0s, cool_down: 0s, desktop: true}\n");
    let daemon = world.daemon_with(&[("DBUS_SESSION_BUS_ADDRESS", &bus.address)]);
    let file = world.path().join("markup.yaml");
    let scenario = ASKS.replace("Which colour?", "<b>Which</b> & colour?");
    std::fs::write(&file, scenario).expect("a scenario");
    let args = ["spawn", "reviewer", repo.to_str(), "go", "--backend", "rehearsal", "--scenario"];
    world.muleteer(&[&args[..], &[file.to_str().expect("a path")]].concat()).ok();
    let (title, text) = bus.shown.recv_timeout(PATIENCE).expect("a notification");
    assert!(title.contains("<b>Which</b> & colour?"), "{title}: a title has no markup");
    assert!(!text.contains('<'), "{text}");
    let test = world.muleteer(&["notify", "test", "desktop", "--json"]);
    let test = test.env("DBUS_SESSION_BUS_ADDRESS", &bus.address).run();
    assert!(test.expect_code(0).json()["channels"][0]["error"].is_null());
    let (title, text) = bus.shown.recv_timeout(PATIENCE).expect("the test");
    assert_eq!(title, "Muleteer: a test");
    assert_eq!(text, "This is a test of Muleteer's notifications.");
    assert!(faults(&world).is_empty(), "{:?}", faults(&world));
    drop(bus);
    world.finish(Some(daemon));
}
