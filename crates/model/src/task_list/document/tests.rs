use crate::task_list::document::*;

/// The protocol's example file, unchanged.
pub const REFERENCE: &str = r#"{
  "version": 2,
  "created": "2025-07-01T10:00:00Z",
  "session_config": {
    "concurrency_mode": "exclusive",
    "max_tasks_per_session": 20,
    "max_sessions": 50
  },
  "tasks": [
    {
      "id": "task-001",
      "title": "Implement user authentication",
      "status": "completed",
      "priority": "P0",
      "depends_on": [],
      "attempts": 1,
      "max_attempts": 3,
      "started_at_commit": "def5678",
      "validation": {
        "command": "npm test -- --testPathPattern=auth",
        "timeout_seconds": 300
      },
      "on_failure": {
        "cleanup": null
      },
      "error_log": [],
      "checkpoints": [],
      "completed_at": "2025-07-01T10:15:30Z"
    },
    {
      "id": "task-002",
      "title": "Add rate limiting",
      "status": "failed",
      "priority": "P1",
      "depends_on": [],
      "attempts": 1,
      "max_attempts": 3,
      "started_at_commit": "abc1234",
      "validation": {
        "command": "npm test -- --testPathPattern=rate-limit",
        "timeout_seconds": 120
      },
      "on_failure": {
        "cleanup": "docker compose down redis"
      },
      "error_log": [
        "[TASK_EXEC] Redis connection refused"
      ],
      "checkpoints": [],
      "completed_at": null
    }
  ],
  "session_count": 1,
  "last_session": "2025-07-01T10:20:02Z"
}
"#;

#[test]
fn reference_file_round_trips_byte_for_byte() {
    let list = TaskList::parse(REFERENCE).expect("the reference's own file");
    assert_eq!(list.tasks[1].cleanup.as_deref(), Some("docker compose down redis"));
    assert_eq!((list.tasks[1].status, list.tasks[1].timeout()), (Status::Failed, 120));
    assert_eq!(list.to_text(), REFERENCE);
}

#[test]
fn unknown_fields_and_key_order_are_preserved() {
    let text = concat!(
        r#"{"zeta":1,"tasks":[{"owner":{"b":1,"a":2},"title":"A","id":"a","validation":"#,
        r#"{"shell":"zsh","command":"true"},"checkpoints":[{"step":1,"total":2,"note":"kept","#,
        r#""description":"d","timestamp":"t"}]}],"version":2,"alpha":[3]}"#,
    );
    let mut list = TaskList::parse(text).expect("a list");
    let compact =
        |list: &TaskList| serde_json::from_str::<Value>(&list.to_text()).expect("JSON").to_string();
    assert_eq!(compact(&list), text, "an unchanged list changes nothing");
    list.tasks[0].status = Status::InProgress;
    list.tasks[0].checkpoints.push(Checkpoint {
        step: 2,
        total: 2,
        description: "e".into(),
        timestamp: "u".into(),
        tree: None,
    });
    list.tasks[0].timeout_seconds = Some(5);
    let written = compact(&list);
    let owner = written.find("\"owner\"").expect("owner");
    assert!(owner < written.find("\"title\"").expect("title"), "{written}");
    for part in [
        concat!(
            r#"{"step":1,"total":2,"note":"kept","description":"d","timestamp":"t"},{"step":2,"#,
            r#""total":2"#,
        ),
        r#"{"shell":"zsh","command":"true","timeout_seconds":5}"#,
        r#""status":"in_progress""#,
        r#""alpha":[3]"#,
    ] {
        assert!(written.contains(part), "{part} in {written}");
    }
    assert_eq!(TaskList::parse(&list.to_text()).expect("again").tasks[0].checkpoints.len(), 2);
}

#[test]
fn new_list_and_task_match_the_reference() {
    let now = "2025-07-01T10:00:00Z".parse().expect("an instant");
    let mut list = TaskList::new(now);
    assert_eq!(list.next_id(), "task-001");
    list.tasks.push(Task::new(list.next_id(), "First"));
    list.tasks.push(Task::new("task-041", "By hand"));
    list.tasks.push(Task::new("other", "Named"));
    assert_eq!(list.next_id(), "task-042");
    insta::assert_snapshot!(list.to_text());
    let read = TaskList::parse(&list.to_text()).expect("reads");
    assert_eq!(read.to_text(), list.to_text());
}

#[test]
fn faults_name_line_field_and_hint() {
    let text = "{\n \"version\": 3,\n \"session_config\": {\"concurrency_mode\": \"both\"},\
                \n \"tasks\": [\n  {\"id\": \"a\", \"status\": \"blocked\",\
                \n   \"attempts\": \"one\"},\n  {\"id\": \"b]c\"},\
                \n  {\"id\": \"d\", \"validation\": {\"timeout_seconds\": 0}, \"priority\": \
                \"high\"}\n ]\n}";
    let Err(Unreadable::Invalid(faults)) = TaskList::parse(text) else { panic!("it is invalid") };
    let said: Vec<_> = faults.iter().map(|fault| (fault.field.as_str(), fault.line)).collect();
    let wanted = [
        ("version", Some(2)),
        ("session_config.concurrency_mode", Some(3)),
        ("tasks[0].status", Some(5)),
        ("tasks[0].attempts", Some(6)),
        ("tasks[1].id", Some(7)),
        ("tasks[2].priority", Some(8)),
        ("tasks[2].validation.timeout_seconds", Some(8)),
    ];
    assert_eq!(said, wanted);
    assert!(faults.iter().all(|fault| !fault.hint.is_empty()));
}

#[test]
fn an_id_twice_and_a_dependency_on_nothing_are_faults() {
    let text = r#"{"version":2,"tasks":[{"id":"a"},{"id":"a"},{"id":"b","depends_on":["c"]}]}"#;
    let Err(Unreadable::Invalid(faults)) = TaskList::parse(text) else { panic!("it is invalid") };
    let said: Vec<_> = faults.iter().map(|fault| fault.field.as_str()).collect();
    assert_eq!(said, ["tasks[1].id", "tasks[2].depends_on[0]"]);
}

#[test]
fn unparsable_list_is_corrupt() {
    for text in ["", "{", "[]", "null", "{\"version\": 2, \"tasks\": [}", "\0\0\0"] {
        assert!(matches!(TaskList::parse(text), Err(Unreadable::Corrupt { .. })), "{text:?}");
    }
    assert!(matches!(TaskList::parse(r#"{"version":2}"#), Err(Unreadable::Invalid(_))));
}

#[test]
fn list_without_version_is_read_as_version_2_and_written_back_unchanged() {
    let task = r#"{"id":"a","title":"A"}"#;
    for text in
        [format!(r#"{{"tasks":[{task}]}}"#), format!(r#"{{"version":null,"tasks":[{task}]}}"#)]
    {
        let list = TaskList::parse(&text).expect("a list");
        assert_eq!(serde_json::to_string(&list.to_value()).expect("JSON"), text);
    }
    for text in [r#"{"version":3,"tasks":[]}"#, r#"{"version":"2","tasks":[]}"#] {
        assert!(matches!(TaskList::parse(text), Err(Unreadable::Invalid(_))), "{text}");
    }
}

#[test]
fn a_limit_of_zero_is_no_limit() {
    let config = r#"{"max_tasks_per_session":0,"max_sessions":0}"#;
    let list = TaskList::parse(&format!(r#"{{"tasks":[],"session_config":{config}}}"#));
    let list = list.expect("a list");
    assert_eq!((list.max_tasks_per_session, list.max_sessions), (None, None));
    assert_eq!(list.to_value()["session_config"].to_string(), config);
}

/// A tool that cuts a text in JavaScript leaves half of a surrogate pair. Such a list must stay
/// usable.
#[test]
fn list_that_strict_json_refuses_is_repaired_and_can_be_written() {
    for (wrong, kept) in [
        (r#""description":"cut \ud83d""#, "\"description\":\"cut \u{fffd}\""),
        (r#""x":1e999"#, r#""x":null"#),
        (r#""x":NaN"#, r#""x":null"#),
        ("\"title\":\"a\tb\"", r#""title":"a\tb""#),
    ] {
        let text = format!(r#"{{"version":2,"tasks":[{{"id":"a",{wrong}}}]}}"#);
        let list = TaskList::parse(&text).expect("a list");
        let written = list.to_text();
        assert!(written.replace("\": ", "\":").contains(kept), "{written}");
        assert_eq!(TaskList::parse(&written).map(|list| list.to_text()), Ok(written));
    }
    assert!(TaskList::parse("{\"version\":2,\"tasks\":[]}\0\0").is_ok());
    // A repair that loses data is rejected, because the next write would make the loss permanent.
    let deep = format!(r#"{{"version":2,"tasks":[],"x":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    assert!(matches!(TaskList::parse(&deep), Err(Unreadable::Corrupt { .. })));
}

/// A validation or setting of the wrong shape must not be ignored: the task would have no
/// validation, and the setting no effect.
#[test]
fn wrong_shape_is_rejected_with_line_and_field() {
    for (wrong, line, field, hint) in [
        (
            "{\"version\": 2,\n\"tasks\": [{\"id\": \"a\",\n\"validation\": \"npm test\"}]}",
            3,
            "tasks[0].validation",
            "\"command\"",
        ),
        (
            "{\"version\": 2, \"tasks\": [{\"id\": \"a\",\n\"on_failure\": \"make clean\"}]}",
            2,
            "tasks[0].on_failure",
            "\"cleanup\"",
        ),
        (
            "{\"version\": 2,\n\"session_config\": [],\n\"tasks\": []}",
            2,
            "session_config",
            "tasks init",
        ),
    ] {
        let Err(Unreadable::Invalid(faults)) = TaskList::parse(wrong) else { panic!("{wrong}") };
        assert_eq!(
            (faults.len(), faults[0].line, faults[0].field.as_str()),
            (1, Some(line), field),
            "{faults:?}"
        );
        assert!(faults[0].hint.contains(hint), "{faults:?}");
    }
    let none = "{\"version\": 2, \"session_config\": null, \"tasks\": [{\"id\": \"a\", \
                \"validation\": null, \"on_failure\": null}]}";
    assert_eq!(TaskList::parse(none).map(|list| list.tasks[0].command.clone()), Ok(None));
}
