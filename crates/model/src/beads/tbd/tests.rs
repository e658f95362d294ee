use super::*;
use crate::beads::{Change, Op, apply};

fn file(id: &str, front: &str, body: &str) -> (String, String) {
    let head =
        format!("type: is\nid: is-{id}\nkind: task\nstatus: open\npriority: 2\nversion: 1\n");
    let times = "created_at: 2026-11-22T08:55:17.804Z\nupdated_at: 2026-11-22T08:55:21.140Z\n";
    (format!("is-{id}.md"), format!("---\n{head}{front}{times}---\n{body}"))
}

fn two() -> Known {
    let blocker = "title: yes\nlabels:\n  - muleteer-key:r/1\n  - x\ndependencies:\
                   \n  - type: blocks\n    target: is-b\n";
    let files = [
        file("a", blocker, "Two\nlines\n\n## Notes\n\nnoted\n"),
        file("b", "title: \"2026\"\nlabels: []\n", ""),
        file("c", "title: gone\nlabels: [muleteer-discarded]\n", ""),
    ];
    read(&files, "1e3: a\n\"007\": b\nc: c\n", "sup").unwrap()
}

fn said(known: &Known, op: Value) -> Vec<String> {
    let op: Op = serde_json::from_value(op).unwrap();
    let change = apply(&known.beads, &op, Timestamp::UNIX_EPOCH, "fresh").unwrap();
    calls(known, &change)
        .into_iter()
        .map(|call| {
            let file = call
                .file
                .map(|file| format!(" {} {:?}", file.option, file.text))
                .unwrap_or_default();
            format!("{}{file}", call.args.join(" "))
        })
        .collect()
}

#[test]
fn tbd_blocks_become_dependencies() {
    let known = two();
    assert_eq!(known.beads.keys().collect::<Vec<_>>(), ["sup-007", "sup-1e3"]);
    let (a, b) = (&known.beads["sup-1e3"], &known.beads["sup-007"]);
    assert_eq!((a.title.as_str(), b.title.as_str()), ("yes", "2026"));
    assert!(a.dependencies.is_empty());
    assert_eq!(b.blockers().collect::<Vec<_>>(), ["sup-1e3"]);
    assert_eq!(
        (a.key.as_deref(), a.labels.as_slice()),
        (Some("r/1"), ["x".to_string()].as_slice())
    );
    assert_eq!((a.description.as_str(), &a.extra["notes"]), ("Two\nlines", &Value::from("noted")));
}

#[test]
fn an_issue_that_cannot_be_read_is_named() {
    for (text, why) in [
        ("", "begin"),
        ("---\nid: is-a\n", "not closed"),
        ("---\nid: [\n---\n", "is-a.md"),
        ("---\nid: is-a\n---\n", "title"),
    ] {
        let (file, told) = read(&[("is-a.md".into(), text.into())], "", "sup").unwrap_err();
        assert_eq!(file, "is-a.md");
        assert!(format!("{file} {told}").contains(why), "{text:?}: {told}");
    }
    assert_eq!(read(&[], "a: [", "sup").unwrap_err().0, "ids.yml");
}

/// A change and the calls that it needs.
#[test]
fn bead_change_becomes_the_missing_tbd_calls() {
    let known = two();
    let table = [
        (
            serde_json::json!(
                {"op": "create", "title": "-t", "description": "d", "labels": ["l"], "key": "k",
                "depends_on": ["sup-007"]}),
            vec![
                "create --type=task --priority=2 --label=l --label=muleteer-key:k -- -t \
                 --file \"d\"",
                "dep add fresh sup-007",
            ],
        ),
        (serde_json::json!({"op": "create", "title": "again", "key": "r/1"}), vec![]),
        (
            serde_json::json!(
                {"op": "create", "title": "again", "key": "r/1", "depends_on": ["sup-007"]}),
            vec!["dep add sup-1e3 sup-007"],
        ),
        (
            serde_json::json!(
                {"op": "update", "id": "sup-1e3", "status": "in_progress", "priority": 0,
                "add_labels": ["y"], "remove_labels": ["x"]}),
            vec![
                "update sup-1e3 --priority=0 --status=in_progress --add-label=y \
                 --remove-label=x",
            ],
        ),
        // The call repeats the notes, which tbd would otherwise drop with the old description.
        (
            serde_json::json!({"op": "update", "id": "sup-1e3", "description": "new\n## \
                Notes\nof its own"}),
            vec![
                "update sup-1e3 --from-file \"---\\ntitle: \\\"yes\\\"\\n---\\nnew\\n##  \
                 Notes\\nof its own\\n\\n## Notes\\n\\nnoted\\n\"",
            ],
        ),
        // tbd ignores options beside a file, so the file has all changes.
        (
            serde_json::json!({"op": "update", "id": "sup-1e3", "description": "d", "priority": 0,
                "status": "blocked", "add_labels": ["y"]}),
            vec![
                "update sup-1e3 --from-file \"---\\ntitle: \\\"yes\\\"\\npriority: 0\\nstatus: \
                 \\\"blocked\\\"\\nlabels: \
                 [\\\"muleteer-key:r/1\\\",\\\"x\\\",\\\"y\\\"]\\n---\\n\
                 d\\n\\n## Notes\\n\\nnoted\\n\"",
            ],
        ),
        (
            serde_json::json!(
                {"op": "close", "id": "sup-007", "reason": "r", "no_change": true}),
            vec!["update sup-007 --add-label=muleteer-no-change", "close sup-007 --reason=r"],
        ),
        (serde_json::json!({"op": "reopen", "id": "sup-007"}), vec![]),
        (
            serde_json::json!({"op": "dep_rm", "id": "sup-007", "on": "sup-1e3"}),
            vec!["dep remove sup-007 sup-1e3"],
        ),
    ];
    for (op, wanted) in table {
        assert_eq!(said(&known, op.clone()), wanted, "{op}");
    }
    let gone = Change { delete: vec!["sup-007".into()], ..Change::default() };
    assert_eq!(
        calls(&known, &gone)[0].args[2..],
        ["--status=closed", "--add-label=muleteer-discarded"]
    );
}

/// Calls for one bead are made in order, and calls for others beside them.
#[test]
fn calls_for_different_beads_have_different_chains() {
    let known = two();
    let mut change = Change::default();
    for (id, bead) in &known.beads {
        let mut bead = bead.clone();
        bead.labels.push("new".into());
        bead.status = Status::Closed;
        assert_eq!(&bead.id, id);
        change.put.push(bead);
    }
    let made = calls(&known, &change);
    let chains: Vec<_> = made.iter().map(|call| (call.args[1].as_str(), call.chain)).collect();
    assert_eq!(chains, [("sup-007", 0), ("sup-007", 0), ("sup-1e3", 2), ("sup-1e3", 2)]);
    assert!(!made.iter().any(Call::is_first));
}

#[test]
fn a_closed_bead_is_opened_before_it_is_anything_else() {
    let closed = "title: t\nclosed_at: 2026-11-22T08:55:17.804Z\nclose_reason: r\
                  \nlabels: [muleteer-no-change]\n";
    let (name, text) = file("a", closed, "");
    let known =
        read(&[(name, text.replace("status: open", "status: closed"))], "a: a", "sup").unwrap();
    assert!(known.beads["sup-a"].no_change);
    let told = |op| said(&known, op);
    assert_eq!(
        told(serde_json::json!({"op": "update", "id": "sup-a", "status": "blocked"})),
        ["reopen sup-a", "update sup-a --status=blocked --remove-label=muleteer-no-change"]
    );
    assert_eq!(
        told(serde_json::json!({"op": "close", "id": "sup-a", "reason": "other"})),
        [
            "reopen sup-a",
            "update sup-a --remove-label=muleteer-no-change",
            "close sup-a --reason=other"
        ]
    );
    assert_eq!(
        told(serde_json::json!({"op": "close", "id": "sup-a", "reason": "r", "no_change": true})),
        [""; 0]
    );
}

#[test]
fn tbd_import_round_trips_and_rejects_another_prefix() {
    let line = concat!(
        r#"{"id":"sup-x","title":"T","description":" d \n## Notes\ne","status":"tombstone","#,
        r#""priority":1,"issue_type":"question","labels":["b","a"],"dependencies":"#,
        r#"[{"issue_id":"sup-x","depends_on_id":"sup-y","type":"parent-child","#,
        r#""created_by":"me"},{"issue_id":"sup-x","depends_on_id":"gone","type":"blocks"}],"#,
        r#""created_at":"2025-10-16T13:36:17.123456-07:00","#,
        r#""updated_at":"2025-10-16T13:36:17-07:00","closed_at":null,"close_reason":null,"#,
        r#""assignee":"a","due_date":"soon","comments":[{"id":1}]}"#,
    );
    let bead: Bead = serde_json::from_str(line).unwrap();
    let change =
        apply(&Beads::new(), &Op::Import { beads: vec![bead] }, Timestamp::UNIX_EPOCH, "").unwrap();
    let known = Known::default();
    let fresh = || ["01m817f21c9ant6y2ekbcavnrp".to_string()].into_iter();
    let calls = import(&known, &change, "sup", &mut fresh(), Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!((calls.len(), calls[0].args.join(" ")), (1, "import --dir".into()));
    let [(_, ids), (name, text)] = calls[0].folder.as_slice() else {
        panic!("{:?}", calls[0].folder)
    };
    assert_eq!(name, "issues/is-01m817f21c9ant6y2ekbcavnrp.md");
    let back = read(&[(name.clone(), text.clone())], ids, "sup").unwrap();
    assert_eq!(serde_json::to_string(&back.beads["sup-x"]).unwrap(), line);
    let refused = import(&known, &change, "bd", &mut fresh(), Timestamp::UNIX_EPOCH).unwrap_err();
    assert!(
        refused.message.contains("would change the id") && refused.hint.contains("--prefix=sup"),
        "{refused:?}"
    );
}

/// tbd accepts any title. One that Muleteer refuses must neither stop a run nor reach a prompt.
#[test]
fn title_of_tbd_is_read_as_one_line_of_text() {
    let front = "title: \"a\\n## The spec\\e[2J\\u202Eb\"\n";
    let known = read(&[file("a", front, "")], "", "sup").unwrap();
    let titles: Vec<_> = known.beads.values().map(|bead| bead.title.as_str()).collect();
    assert_eq!(titles, ["a ## The spec [2J b"]);
    assert_eq!(said(&known, serde_json::json!({"op": "list"})), [""; 0]);
}
