use crate::beads::*;
use jiff::Timestamp;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("a time")
}

fn run(beads: &mut Beads, op: &Op, fresh: &str) -> Answer {
    let change = apply(beads, op, at(beads.len() as i64), fresh).expect("applies");
    for bead in change.put {
        beads.insert(bead.id.clone(), bead);
    }
    for id in change.delete {
        beads.remove(&id);
    }
    change.answer
}

fn create(title: &str) -> Op {
    serde_json::from_value(serde_json::json!({"op": "create", "title": title})).expect("an op")
}

#[test]
fn bead_is_opened_closed_and_reopened() {
    let mut beads = Beads::new();
    run(&mut beads, &create("one"), "aaaa");
    run(&mut beads, &create("two"), "bbbb");
    run(&mut beads, &Op::DepAdd { id: "a".into(), on: "bbbb".into() }, "");
    let ready = run(&mut beads, &Op::Ready { labels: vec![] }, "");
    assert_eq!(ready.beads.iter().map(|bead| bead.id.as_str()).collect::<Vec<_>>(), ["bbbb"]);
    run(
        &mut beads,
        &Op::Close { id: "bbbb".into(), reason: "did it".into(), no_change: false },
        "",
    );
    assert_eq!(beads["bbbb"].close_reason.as_deref(), Some("did it"));
    let since = beads["bbbb"].closed_at.clone();
    // Closing again keeps the known fields and adds new ones.
    run(&mut beads, &Op::Close { id: "bbbb".into(), reason: String::new(), no_change: true }, "");
    assert_eq!(
        (beads["bbbb"].close_reason.as_deref(), beads["bbbb"].no_change),
        (Some("did it"), true)
    );
    run(
        &mut beads,
        &Op::Close { id: "bbbb".into(), reason: "by hand".into(), no_change: true },
        "",
    );
    assert_eq!(beads["bbbb"].close_reason.as_deref(), Some("by hand"));
    assert_eq!(beads["bbbb"].closed_at, since);
    let ready = run(&mut beads, &Op::Ready { labels: vec![] }, "");
    assert_eq!(ready.beads[0].id, "aaaa");
    run(&mut beads, &Op::Reopen { id: "bbbb".into() }, "");
    assert_eq!((&beads["bbbb"].status, &beads["bbbb"].closed_at), (&Status::Open, &None));
}

#[test]
fn labels_are_anded_staged_beads_are_hidden_and_keys_are_answered_not_repeated() {
    let mut beads = Beads::new();
    let op = |labels: &[&str], key: Option<&str>, staged: Option<&str>| Op::Create {
        title: "t".into(),
        description: String::new(),
        issue_type: "task".into(),
        priority: 1,
        labels: labels.iter().map(|label| (*label).to_string()).collect(),
        depends_on: vec![],
        key: key.map(Into::into),
        staged: staged.map(Into::into),
    };
    run(&mut beads, &op(&["x", "y"], Some("k"), None), "aaaa");
    run(&mut beads, &op(&["x"], None, Some("r:1")), "bbbb");
    assert_eq!(run(&mut beads, &op(&["x", "y"], Some("k"), None), "cccc").beads[0].id, "aaaa");
    let list = |labels: &[&str], staged: Option<&str>| Op::List {
        labels: labels.iter().map(|label| (*label).to_string()).collect(),
        status: None,
        staged: staged.map(Into::into),
    };
    assert_eq!(run(&mut beads, &list(&["x"], None), "").beads.len(), 1);
    assert_eq!(run(&mut beads, &list(&["x"], Some("r:1")), "").beads.len(), 2);
    assert_eq!(run(&mut beads, &list(&["x", "y"], Some("r:1")), "").beads.len(), 1);
    run(&mut beads, &Op::Discard { run: "r".into(), keep: Some("r:1".into()) }, "");
    assert!(beads.contains_key("bbbb"));
    run(&mut beads, &Op::Discard { run: "r".into(), keep: None }, "");
    assert!(!beads.contains_key("bbbb"));
}

#[test]
fn faults_name_the_invalid_field() {
    let mut beads = Beads::new();
    run(&mut beads, &create("one"), "aabb");
    run(&mut beads, &create("two"), "aacc");
    let fault = |op: &Op| apply(&beads, op, at(0), "zzzz").expect_err("a fault").code;
    assert_eq!(fault(&Op::Show { id: "aa".into() }), "E_AMBIGUOUS");
    assert_eq!(fault(&Op::Show { id: "x".into() }), "E_NOT_FOUND");
    assert_eq!(fault(&Op::Show { id: String::new() }), "E_NOT_FOUND");
    assert_eq!(fault(&create("  ")), "E_BAD_INPUT");
    assert_eq!(fault(&Op::DepAdd { id: "aabb".into(), on: "aabb".into() }), "E_GRAPH_CYCLE");
    let list = Op::List { labels: vec![], status: Some("done".into()), staged: None };
    assert_eq!(fault(&list), "E_BAD_INPUT");
}

#[test]
fn imported_epic_is_preserved_and_none_is_created() {
    let mut beads = Beads::new();
    run(&mut beads, &create("here"), "bd-1");
    let kept = Bead { id: "bd-2".into(), issue_type: "epic".into(), ..beads["bd-1"].clone() };
    run(&mut beads, &Op::Import { beads: vec![kept] }, "");
    run(&mut beads, &Op::Close { id: "bd-2".into(), reason: String::new(), no_change: false }, "");
    let change = |id: &str, title: Option<&str>, kind: Option<&str>| Op::Update {
        id: id.into(),
        title: title.map(Into::into),
        description: None,
        status: None,
        priority: None,
        issue_type: kind.map(Into::into),
        add_labels: vec![],
        remove_labels: vec![],
    };
    run(&mut beads, &change("bd-2", Some("renamed"), None), "");
    assert_eq!(
        (beads["bd-2"].title.as_str(), beads["bd-2"].issue_type.as_str()),
        ("renamed", "epic")
    );
    let mut made = create("one");
    if let Op::Create { issue_type, .. } = &mut made {
        *issue_type = "epic".into();
    }
    for op in [made, change("bd-1", None, Some("epic"))] {
        let fault = apply(&beads, &op, at(0), "bd-3").expect_err("a fault");
        assert_eq!(fault.code, "E_BAD_INPUT");
        assert!(fault.hint.starts_with("use one of bug, task, feature, chore;"), "{}", fault.hint);
    }
}

#[test]
fn import_is_validated_and_keeps_newer_beads() {
    let mut beads = Beads::new();
    run(&mut beads, &create("here"), "bd-1");
    let here = beads["bd-1"].clone();
    let with = |change: &dyn Fn(&mut Bead)| {
        let mut bead = here.clone();
        change(&mut bead);
        bead
    };
    let import = |bead: Bead| apply(&beads, &Op::Import { beads: vec![bead] }, at(9), "");
    let older = |bead: &mut Bead| {
        (bead.title, bead.updated_at) = ("older".into(), "1960-01-01T00:00:00+02:00".into());
    };
    let kept = import(with(&older)).expect("is left out");
    assert!(kept.put.is_empty() && kept.answer.warnings.len() == 1, "{kept:?}");
    let newer = |bead: &mut Bead| {
        (bead.title, bead.updated_at) = ("newer".into(), "2100-01-01T00:00:00Z".into());
    };
    assert_eq!(import(with(&newer)).expect("is taken").put[0].title, "newer");
    let refused = |field: &str, change: &dyn Fn(&mut Bead)| {
        let fault = import(with(change)).expect_err(field);
        assert!(fault.code == "E_BAD_INPUT" && fault.message.starts_with(field), "{fault:?}");
    };
    refused("`title`", &|bead| bead.title = " ".into());
    refused("`priority`", &|bead| bead.priority = 5);
    refused("`created_at`", &|bead| bead.created_at = "yesterday".into());
    refused("`updated_at`", &|bead| bead.updated_at = "today".into());
    refused("`closed_at`", &|bead| bead.closed_at = Some("then".into()));
}

/// `bd` leaves out the time of the last change, and its deleted beads remain as tombstones.
#[test]
fn import_without_time_of_change_keeps_what_was_changed_here() {
    let line = r#"{"id":"b-1","title":"x","created_at":"2026-01-01T00:00:00Z"}"#;
    let bead: Bead = serde_json::from_str(line).expect("a bead");
    let mut beads = Beads::new();
    let import = Op::Import { beads: vec![bead.clone()] };
    assert_eq!(run(&mut beads, &import, "").beads.len(), 1);
    assert!(run(&mut beads, &import, "").beads.is_empty(), "it is the same");
    let here = Bead { title: "y".into(), updated_at: "2026-02-01T00:00:00Z".into(), ..bead };
    run(&mut beads, &Op::Import { beads: vec![here] }, "");
    let answer = run(&mut beads, &import, "");
    assert_eq!((answer.warnings.len(), beads["b-1"].title.as_str()), (1, "y"));
}

#[test]
fn beads_in_states_of_other_programs_are_never_ready_and_block_as_in_bd() {
    let mut beads = Beads::new();
    let states = ["deferred", "hooked", "tombstone", "done", "pinned", "closed"];
    for (at, state) in states.into_iter().enumerate() {
        let lines = [
            format!(r#"{{"id":"on-{at}","title":"x","status":"{state}"}}"#),
            format!(
                r#"{{"id":"w-{state}","title":"x","dependencies":[{{"depends_on_id":"on-{at}"}}]}}"#
            ),
        ];
        let new = lines.iter().map(|line| serde_json::from_str(line).expect("a bead")).collect();
        run(&mut beads, &Op::Import { beads: new }, "");
    }
    let ready = run(&mut beads, &Op::Ready { labels: vec![] }, "");
    let mut ids: Vec<_> = ready.beads.iter().map(|bead| bead.id.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["w-closed", "w-done", "w-pinned", "w-tombstone"]);
}

#[test]
fn issues_jsonl_line_round_trips() {
    let line = concat!(
        r#"{"id":"bd-1","title":"T","description":"","status":"deferred","priority":1,"#,
        r#""issue_type":"bug","labels":[],"dependencies":[{"issue_id":"bd-1","#,
        r#""depends_on_id":"bd-2","type":"discovered-from","created_by":"me"}],"#,
        r#""created_at":"2025-10-16T13:36:17.123456-07:00","#,
        r#""updated_at":"2025-10-16T13:36:17-07:00","closed_at":null,"close_reason":null,"#,
        r#""estimated_minutes":30,"comments":[{"id":1}]}"#,
    );
    let bead: Bead = serde_json::from_str(line).expect("parses");
    assert_eq!(serde_json::to_string(&bead).expect("writes"), line);
    assert_eq!(bead.blockers().count(), 0);
}

/// A title stands in prompts, tables and journals: a line feed could begin a section there.
#[test]
fn title_with_a_control_character_is_refused_at_every_entrance() {
    let mut beads = Beads::new();
    run(&mut beads, &create("plain"), "aaaa");
    for title in ["a\nb", "a\rb", "a\tb", "a\u{1b}[31mb", "a\u{7f}b", "a\u{85}b", "a\u{9b}b"]
        .into_iter()
        .chain(["a\0b", "a\u{2028}b", "a\u{2029}b", "a\u{202e}b", "a\u{2066}b", "\u{1b}c"])
    {
        let update = serde_json::json!({"op": "update", "id": "aaaa", "title": title});
        let foreign = Bead { id: "x-1".into(), title: title.into(), ..beads["aaaa"].clone() };
        assert!(check_foreign(&foreign).is_err(), "{title:?}");
        for op in [
            create(title),
            serde_json::from_value(update).expect("an op"),
            Op::Import { beads: vec![foreign] },
        ] {
            let fault = apply(&beads, &op, at(9), "bbbb").expect_err(title);
            assert!(fault.message.contains("title"), "{title:?}: {}", fault.message);
        }
    }
    // White space around a title is left out, and text of any language is text.
    for (title, expected) in
        [(" a b \n", "a b"), ("ä 漢 🦀", "ä 漢 🦀"), ("שלום\u{200f}!", "שלום\u{200f}!")]
    {
        let made = apply(&beads, &create(title), at(9), "bbbb").expect(title);
        assert_eq!(made.put[0].title, expected);
    }
}
