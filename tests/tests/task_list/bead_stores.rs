//! Rules of every bead store, tried with the embedded one and with the real `tbd`.

#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

use jiff::Timestamp;
use muleteer_model::beads::{Answer, Bead, Op, Status};
use muleteer_model::config::{BeadStoreChoice, Beads, Command as Program, Span};
use muleteer_store::beads::Store;
use muleteer_store::beads::embedded::{BeadError, parse_issues, write_issues};
use muleteer_tests::{PATIENCE, World, tbd};
use serde_json::{Value, json};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::mpsc;

/// A store in a repository of its own.
struct Shop {
    world: World,
    store: Store,
    settings: Beads,
    made: u32,
}

impl Shop {
    fn open(choice: BeadStoreChoice, test: &str) -> Option<Self> {
        let world = World::new();
        let repo = world.repo("repo");
        let mut command = None;
        if choice == BeadStoreChoice::Tbd {
            let agents = tbd::pinned(test)?;
            tbd::install(&world, &repo, &agents);
            command = Some(Program::Argv(vec![world.bin().join("tbd").to_str().unwrap().into()]));
        }
        let settings = Beads { store: choice, command, timeout: Span::from_secs(60) };
        let mut shop =
            Self { store: Store::new(&repo.path, &settings, None), world, settings, made: 0 };
        shop.store = shop.another();
        Some(shop)
    }

    /// Opens the store as another process would, which knows only the state on disk.
    fn another(&self) -> Store {
        let variables = [
            ("HOME", self.world.home().display().to_string()),
            ("PATH", std::env::var("PATH").unwrap()),
        ];
        let env = variables.map(|(name, value)| (name.to_string(), value)).to_vec();
        Store::new(&self.world.path().join("repo"), &self.settings, Some(env))
    }

    fn ask(&mut self, op: &Value) -> Answer {
        self.try_ask(op).unwrap_or_else(|error| panic!("{op}: {error}"))
    }

    fn try_ask(&mut self, op: &Value) -> Result<Answer, BeadError> {
        self.made += 1;
        let fresh = format!("fresh{}", self.made);
        let op: Op = serde_json::from_value(op.clone()).unwrap();
        self.store.apply(&op, Timestamp::now(), &fresh)
    }

    fn create(&mut self, title: &str, more: Value) -> String {
        let mut op = json!({"op": "create", "title": title});
        op.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        self.ask(&op).beads.remove(0).id
    }

    fn show(&mut self, id: &str) -> Bead {
        self.ask(&json!({"op": "show", "id": id})).beads.remove(0)
    }

    fn list(&mut self, op: Value) -> Vec<String> {
        self.ask(&op).beads.into_iter().map(|bead| bead.title).collect()
    }

    fn code(&mut self, op: Value) -> String {
        self.try_ask(&op).expect_err("a fault").code().to_string()
    }
}

/// A rule of stores. It gets an empty store.
type Rule = fn(&mut Shop);

const RULES: &[(&str, Rule)] = &[
    ("a bead is what it was made as, and is changed field by field", made_and_changed),
    ("who waits for whom", dependencies),
    ("what is made under a key is made once", keys),
    ("a decomposition is hidden until it is accepted, and gone when it is not", staging),
    ("issues.jsonl goes in and comes out without loss", exchange),
];

fn made_and_changed(shop: &mut Shop) {
    let text = "Two lines,\n\"quoted\" — and  a: [colon]\n\n## Notes of its own\nend";
    let more =
        json!({"description": text, "issue_type": "bug", "priority": 1, "labels": ["b", "a:1/2"]});
    let id = shop.create("-- its 'title' #1", more);
    let bead = shop.show(&id);
    assert_eq!((bead.title.as_str(), bead.description.as_str()), ("-- its 'title' #1", text));
    assert_eq!((bead.issue_type.as_str(), bead.priority, bead.status), ("bug", 1, Status::Open));
    let mut labels = bead.labels;
    labels.sort();
    assert_eq!((labels.len(), labels[0].as_str(), bead.dependencies.len()), (2, "a:1/2", 0));
    shop.ask(
        &json!({"op": "update", "id": id, "status": "in_progress", "priority": 0, "title": "yes",
        "description": "other", "add_labels": ["c"], "remove_labels": ["b"]}),
    );
    let bead = shop.show(&id);
    assert_eq!(
        (bead.title.as_str(), bead.description.as_str(), bead.priority),
        ("yes", "other", 0)
    );
    assert_eq!(
        (bead.status, bead.labels),
        (Status::InProgress, vec!["a:1/2".to_string(), "c".into()])
    );
    shop.ask(&json!({"op": "update", "id": id, "status": "blocked"}));
    assert_eq!(shop.show(&id).status, Status::Blocked);
    shop.ask(&json!({"op": "close", "id": id, "reason": "-done", "no_change": true}));
    let bead = shop.show(&id);
    assert_eq!(
        (bead.status, bead.no_change, bead.close_reason.as_deref()),
        (Status::Closed, true, Some("-done"))
    );
    assert!(bead.closed_at.is_some());
    // A repeated call changes nothing; a different one replaces the first.
    shop.ask(&json!({"op": "close", "id": id, "reason": "-done", "no_change": true}));
    shop.ask(&json!({"op": "close", "id": id, "reason": "with work"}));
    let bead = shop.show(&id);
    assert_eq!(
        (bead.status, bead.no_change, bead.close_reason.as_deref()),
        (Status::Closed, false, Some("with work"))
    );
    shop.ask(&json!({"op": "reopen", "id": id}));
    let bead = shop.show(&id);
    assert_eq!((bead.status, bead.closed_at, bead.close_reason), (Status::Open, None, None));
    shop.ask(&json!({"op": "close", "id": id, "reason": "again"}));
    shop.ask(&json!({"op": "update", "id": id, "status": "in_progress"}));
    let bead = shop.show(&id);
    assert_eq!((bead.status, bead.closed_at), (Status::InProgress, None));
    assert_eq!(
        shop.list(json!({"op": "list", "status": "in_progress", "labels": ["c", "a:1/2"]})),
        ["yes"]
    );
    assert!(shop.list(json!({"op": "list", "labels": ["c", "b"]})).is_empty(), "labels are ANDed");
    // A unique beginning of an id is enough; an unknown id is an error.
    assert_eq!(shop.show(&id[..id.len() - 1]).id, id);
    assert_eq!(shop.code(json!({"op": "show", "id": "nothing"})), "E_NOT_FOUND");
    assert_eq!(shop.code(json!({"op": "update", "id": id, "status": "done"})), "E_BAD_INPUT");
    assert_eq!(shop.code(json!({"op": "create", "title": " "})), "E_BAD_INPUT");
    assert_eq!(
        shop.code(json!({"op": "create", "title": "t", "labels": ["muleteer-key:x"]})),
        "E_BAD_INPUT"
    );
}

fn dependencies(shop: &mut Shop) {
    let a = shop.create("a", json!({}));
    let b = shop.create("b", json!({"depends_on": [a], "priority": 0}));
    let c = shop.create("c", json!({"labels": ["observation"]}));
    assert_eq!(shop.show(&b).blockers().collect::<Vec<_>>(), [a.as_str()]);
    assert!(shop.show(&a).dependencies.is_empty(), "it is b that waits");
    assert_eq!(
        shop.list(json!({"op": "ready"})),
        ["a"],
        "neither who waits nor what is only noted"
    );
    shop.ask(&json!({"op": "dep_add", "id": c, "on": b}));
    shop.ask(&json!({"op": "dep_add", "id": c, "on": b}));
    assert_eq!(shop.show(&c).dependencies.len(), 1, "said twice is said once");
    let warned = shop.ask(&json!({"op": "dep_add", "id": a, "on": c})).warnings;
    assert!(warned.iter().any(|text| text.contains("would create a cycle")), "{warned:?}");
    shop.ask(&json!({"op": "dep_rm", "id": a, "on": c}));
    assert_eq!(shop.code(json!({"op": "dep_rm", "id": a, "on": c})), "E_NOT_FOUND");
    assert_eq!(shop.code(json!({"op": "dep_add", "id": a, "on": a})), "E_GRAPH_CYCLE");
    shop.ask(&json!({"op": "close", "id": a, "reason": "done"}));
    assert_eq!(shop.list(json!({"op": "ready"})), ["b"]);
}

fn keys(shop: &mut Shop) {
    let waited = shop.create("waited for", json!({}));
    let op = json!({"op": "create", "title": "once", "key": "run-2026-02-12-abc/1",
        "depends_on": [waited]});
    let first = shop.ask(&op).beads.remove(0);
    // After a crash there is a store without memory, and another fresh id.
    shop.store = shop.another();
    let again = shop.ask(&op).beads.remove(0);
    assert_eq!((&again.id, again.blockers().next()), (&first.id, Some(waited.as_str())));
    assert_eq!(shop.list(json!({"op": "list"})).len(), 2);
    assert_eq!(shop.show("run-2026-02-12-abc/1").id, first.id, "its maker knows it by its key");
    // The store sees a change by another process at once.
    let close = Op::Close { id: first.id.clone(), reason: "by another".into(), no_change: false };
    shop.another().apply(&close, Timestamp::now(), "").unwrap();
    assert_eq!(shop.show(&first.id).status, Status::Closed);
    // This is the state after a crash between the bead and its dependency.
    shop.ask(&json!({"op": "dep_rm", "id": first.id, "on": waited}));
    shop.ask(&op);
    assert_eq!(shop.show(&first.id).blockers().collect::<Vec<_>>(), [waited.as_str()]);
}

fn staging(shop: &mut Shop) {
    let staged = |mark: &str| json!({"staged": mark, "labels": ["run:r"]});
    let kept = shop.create("kept", staged("r:1"));
    let after = shop.create("after", json!({"staged": "r:1", "depends_on": [kept]}));
    let gone = shop.create("gone", staged("r:2"));
    assert!(shop.list(json!({"op": "list"})).is_empty());
    assert_eq!(shop.list(json!({"op": "list", "staged": "r:1"})), ["kept", "after"]);
    shop.ask(&json!({"op": "discard", "run": "r", "keep": "r:1"}));
    assert_eq!(shop.code(json!({"op": "show", "id": gone})), "E_NOT_FOUND");
    shop.ask(&json!({"op": "accept", "staged": "r:1"}));
    shop.ask(&json!({"op": "accept", "staged": "r:1"}));
    shop.ask(&json!({"op": "discard", "run": "r", "keep": null}));
    assert_eq!(shop.list(json!({"op": "list"})), ["kept", "after"]);
    assert_eq!(shop.show(&after).blockers().collect::<Vec<_>>(), [kept.as_str()]);
    assert_eq!(
        (shop.show(&kept).labels, shop.show(&kept).staged),
        (vec!["run:r".to_string()], None)
    );
}

/// The sample is a file that `br` wrote, with a line for every rare feature.
fn exchange(shop: &mut Shop) {
    let text = include_str!("../../fixtures/beads/issues.jsonl");
    let beads = parse_issues(text).unwrap();
    let import = |beads: &[Bead]| json!({"op": "import", "beads": beads});
    shop.ask(&import(&beads));
    assert_eq!(sorted(&write_issues(shop.another().read().unwrap())), sorted(&canonical(text)));
    assert!(shop.ask(&import(&beads)).beads.is_empty(), "what is the same is left alone");
    // An import replaces a changed bead only if it is newer.
    assert_eq!(shop.list(json!({"op": "ready"})), ["Second"]);
    shop.ask(&json!({"op": "close", "id": "sup-54o", "reason": "fixed"}));
    let bead = shop.show("sup-54o");
    assert_eq!(
        (bead.status, &bead.extra["source_repo"]),
        (Status::Closed, &json!("r")),
        "what is not ours stays"
    );
    let mut newer = beads[0].clone();
    newer.title = "Second, anew".into();
    assert!(
        shop.ask(&import(&[newer.clone()])).beads.is_empty(),
        "what was changed here since is left alone"
    );
    newer.updated_at = "2100-01-01T00:00:00Z".into();
    newer.extra.insert("estimated_minutes".into(), 30.into());
    shop.ask(&import(&[newer]));
    let bead = shop.show("sup-54o");
    assert_eq!((bead.title.as_str(), bead.status.clone()), ("Second, anew", Status::Open));
    assert_eq!(
        (&bead.extra["estimated_minutes"], bead.blockers().collect::<Vec<_>>()),
        (&json!(30), vec!["sup-idj"])
    );
}

/// Returns the file as we write it, with every field of ours.
fn canonical(text: &str) -> String {
    parse_issues(text)
        .unwrap()
        .iter()
        .map(|bead| serde_json::to_string(bead).unwrap() + "\n")
        .collect()
}

fn sorted(text: &str) -> Vec<Value> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn every_rule(choice: BeadStoreChoice, test: &str) {
    std::thread::scope(|scope| {
        for (name, rule) in RULES {
            scope.spawn(move || {
                let Some(mut shop) = Shop::open(choice, test) else { return };
                let kept =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| rule(&mut shop)));
                assert!(kept.is_ok(), "broken: {name}");
            });
        }
    });
}

#[test]
fn embedded_store_follows_every_rule() {
    every_rule(BeadStoreChoice::Embedded, "embedded_store_follows_every_rule");
}

#[test]
fn tbd_store_follows_every_rule() {
    every_rule(BeadStoreChoice::Tbd, "tbd_store_follows_every_rule");
}

/// One `save` for each change made the time grow with the square of the beads.
#[test]
fn tbd_is_read_once_and_called_once_for_each_bead_that_changes() {
    let test = "tbd_is_read_once_and_called_once_for_each_bead_that_changes";
    let Some(mut shop) = Shop::open(BeadStoreChoice::Tbd, test) else { return };
    let first = shop.create("first", json!({}));
    let others: Vec<String> =
        (0..4).map(|at| shop.create(&format!("b{at}"), json!({"depends_on": [first]}))).collect();
    // The store of another process, whose calls are counted.
    let (log, tbd) = (shop.world.path().join("calls"), shop.world.bin().join("tbd"));
    let counted = shop.world.bin().join("counted");
    let script =
        format!("#!/bin/sh\necho \"$*\" >> '{}'\nexec '{}' \"$@\"\n", log.display(), tbd.display());
    std::fs::write(&counted, script).unwrap();
    std::fs::set_permissions(&counted, PermissionsExt::from_mode(0o755)).unwrap();
    shop.settings.command = Some(Program::Argv(vec![counted.to_str().unwrap().into()]));
    shop.store = shop.another();
    let label = |id: &String, label: &str| -> Op {
        let op = json!({"op": "update", "id": id, "add_labels": [label]});
        serde_json::from_value(op).unwrap()
    };
    let ops: Vec<Op> = ["one", "two"]
        .iter()
        .flat_map(|name| others.iter().map(|id| label(id, name)).collect::<Vec<_>>())
        .collect();
    let answers = shop.store.apply_all(&ops, Timestamp::now()).unwrap();
    assert_eq!(answers.len(), 8);
    assert_eq!(shop.list(json!({"op": "list", "labels": ["one", "two"]})).len(), 4);
    shop.ask(&json!({"op": "close", "id": first, "reason": "done"}));
    // A change of the description and of another field is one call.
    let change = json!({"op": "update", "id": others[0], "description": "more", "priority": 0,
        "add_labels": ["three"]});
    shop.ask(&change);
    let bead = shop.show(&others[0]);
    assert_eq!((bead.description.as_str(), bead.priority, bead.labels.len()), ("more", 0, 3));
    assert_eq!(shop.list(json!({"op": "ready"})).len(), 4);
    let calls = std::fs::read_to_string(&log).unwrap();
    let count =
        |verb: &str| calls.lines().filter(|line| line.split(' ').any(|word| word == verb)).count();
    let counts = ["save", "config", "update", "close"].map(count);
    assert_eq!((counts, calls.lines().count()), ([1, 1, 5, 1], 8), "{calls}");
    // A change by tbd itself is seen without another `save`.
    let done = std::process::Command::new(&tbd)
        .args(["update", &others[1], "--title=by hand", "--quiet"])
        .current_dir(shop.world.path().join("repo"))
        .env("HOME", shop.world.home())
        .status();
    assert!(done.unwrap().success());
    assert_eq!(shop.show(&others[1]).title, "by hand");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), calls);
}

/// The export writes to the named file, whose kind stays: it follows links, and does not replace a
/// pipe.
#[test]
fn an_export_follows_links_feeds_pipes_and_keeps_the_mode() {
    let world = World::new();
    let repo = world.repo("repo");
    let bead = |args: &[&str]| world.muleteer(&[&["bead"], args].concat()).current_dir(&repo.path);
    bead(&["create", "--title", "One"]).ok();
    let all = bead(&["export"]).ok();
    repo.write("real.jsonl", "");
    let real = repo.path.join("real.jsonl");
    std::fs::set_permissions(&real, PermissionsExt::from_mode(0o600)).unwrap();
    symlink("real.jsonl", repo.path.join("link")).unwrap();
    assert_eq!(bead(&["export", "link", "--json"]).json()["exported"], 1);
    assert!(repo.path.join("link").is_symlink());
    assert_eq!(repo.read("real.jsonl").trim(), all.trim());
    assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
    let pipe = repo.path.join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let (read, told) = mpsc::channel();
    std::thread::spawn(move || read.send(std::fs::read_to_string(pipe).unwrap()));
    bead(&["export", "pipe"]).ok();
    assert_eq!(told.recv_timeout(PATIENCE).expect("it is written to the pipe").trim(), all.trim());
}
