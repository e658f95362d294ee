#![allow(clippy::unwrap_used)]

use super::*;
use crate::conversation::rights::project;
use crate::daemon::context::test_daemon;
use muleteer_model::config::Pool;
use muleteer_model::conversation::event::AgentCommand;
use muleteer_model::conversation::event::{
    Author as Written, AuthorKind, MessageAccepted, State, ThreadOpened,
};

const PEOPLE: &str = "people:
  ben: {slack: U1}
  cleo: {slack: U2, may: [set]}
  dora: {slack: U3, may: ['set:project=shop', 'set:role=product-analyst', talk]}
projects: {shop: /p}
";

/// Opens a thread of Slack with a message in it, and returns what the command comes to.
async fn said(daemon: &Arc<Daemon>, kind: AuthorKind, user: &str, text: &str) -> Vec<Event> {
    commanded(daemon, (kind, user, text), None).await
}

/// Like [`said`], with the command of a coordinator.
async fn commanded(
    daemon: &Arc<Daemon>,
    (kind, user, text): (AuthorKind, &str, &str),
    command: Option<AgentCommand>,
) -> Vec<Event> {
    let (thread, message) = ("thrd2345".to_string(), "msga2345".to_string());
    daemon.fold_plain(Event::ThreadOpened(Box::new(ThreadOpened {
        thread: thread.clone(),
        role: "product-analyst".into(),
        project: "/p".into(),
        title: None,
        adapter: "slack".into(),
        external: Some("C1".into()),
        by: user.into(),
        bang: None,
    })));
    daemon.fold_plain(Event::MessageAccepted(Box::new(MessageAccepted {
        thread: thread.clone(),
        message,
        author: Written { kind, id: user.into(), name: user.into() },
        text: text.into(),
        key: "k".into(),
        files: vec![],
        shown: false,
        command,
    })));
    let fleet = daemon.snapshot();
    let thread = fleet.conversations.get(&thread).unwrap();
    let (message, route) = route::due(thread, &fleet.questions).expect("a command");
    carry_out(daemon, thread, message, route).await.expect("an end")
}

fn end(events: &[Event]) -> (String, State, String) {
    let mut text = String::new();
    for event in events {
        match event {
            Event::MessageRecorded(recorded) => text = recorded.text.clone(),
            Event::MessageState { state, reason, .. } => return (text, *state, reason.clone()),
            _ => {}
        }
    }
    panic!("no end: {events:?}")
}

#[tokio::test]
async fn people_without_a_right_are_refused_every_command() {
    let stranger = "U9";
    for (user, text) in [
        (stranger, "!status"),
        (stranger, "!cost"),
        (stranger, "!help"),
        (stranger, "!stop"),
        (stranger, "!kill tester"),
        (stranger, "!model m"),
        (stranger, "!role tester"),
        (stranger, "!set models.default m"),
        (stranger, "!cli /compact"),
        (stranger, "!answer yes"),
        ("operator", "!status"),
        ("U1", "!kill product-analyst"),
        ("U1", "!set models.default m"),
        ("U1", "<@U0> model m"),
        ("U1", "/role tester"),
        ("U1", "/cli /compact"),
        ("U2", "!status"),
        ("U2", "!set people.eve.slack U9"),
        ("U2", "!set backends.codex.command evil"),
        ("U2", "!set sandbox.write /"),
        ("U2", "!set permissions.mode allow"),
        ("U3", "!set models.default m"),
        ("U3", "!kill zzzz"),
        (stranger, "@tester work"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let file = daemon.paths.config_file();
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, PEOPLE).unwrap();
        let events = said(&daemon, AuthorKind::Person, user, text).await;
        let (reply, state, reason) = end(&events);
        assert_eq!(state, State::Refused, "{user} {text}: {reply}");
        assert!(reason.starts_with("E_FORBIDDEN: "), "{user} {text}: {reason}");
        assert_eq!(events.len(), 2, "nothing else happens: {events:?}");
        if user == stranger {
            assert!(reply.contains("NAME: {slack: [U9]}"), "{reply}");
        }
    }
}

#[tokio::test]
async fn listed_people_and_the_operator_act_in_a_thread_of_an_adapter() {
    for (kind, user, text, wanted) in [
        (AuthorKind::Person, "U1", "!status", "Thread thrd2345"),
        (AuthorKind::Person, "U2", "!set models.default m", "`models.default` is m."),
        (AuthorKind::Operator, "operator", "/set people.eve.slack U9", "`people.eve.slack`"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let daemon = test_daemon::daemon(dir.path(), Pool::default());
        let file = daemon.paths.config_file();
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, PEOPLE).unwrap();
        let events = said(&daemon, kind, user, text).await;
        let (reply, state, _) = end(&events);
        assert_eq!(state, State::Answered, "{user} {text}: {reply}");
        assert!(reply.starts_with(wanted), "{user} {text}: {reply}");
    }
}

/// The text that an agent reads could make it name any dispatch and any directory.
#[tokio::test]
async fn coordinator_reaches_only_its_thread_and_configured_projects() {
    let dir = tempfile::tempdir().unwrap();
    let (shop, other) = (dir.path().join("shop"), dir.path().join("other"));
    for folder in [&shop, &other] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let daemon = test_daemon::daemon(dir.path(), Pool::default());
    let file = daemon.paths.config_file();
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, format!("projects: {{shop: {}}}\n", shop.display())).unwrap();
    let foreign = test_daemon::id("frgn2345");
    daemon.fold(&foreign, test_daemon::sample("dispatch_created"));
    let command = |action: &str| AgentCommand { action: action.into(), ..Default::default() };
    let kill = AgentCommand { dispatch_id: Some("frgn2345".into()), ..command("kill") };
    let author = (AuthorKind::Operator, "operator", "/x");
    let (reply, _, _) = end(&commanded(&daemon, author, Some(kill)).await);
    assert!(reply.starts_with("E_NOT_FOUND: this thread has no agent `frgn2345`"), "{reply}");
    let fleet = daemon.snapshot();
    let thread = fleet.conversations.get("thrd2345").unwrap();
    let by_agent = |word: &str, by_agent| {
        project(&daemon, thread, &Spawn::default(), (word, by_agent)).map_err(|error| error.code)
    };
    let other = other.display().to_string();
    assert_eq!(by_agent("shop", true), Ok(shop.canonicalize().unwrap()));
    assert_eq!(by_agent(&other, true), Err("E_PROJECT_NOT_FOUND".into()));
    assert!(by_agent(&other, false).is_ok());
}
