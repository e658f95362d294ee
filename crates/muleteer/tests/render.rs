//! Tests the output that people see.

use anstream::adapter::strip_str;
use jiff::Timestamp;
use muleteer_cli::render::event::Lines;
use muleteer_cli::render::{run, status, tree};
use muleteer_model::event::{Entry, Event};
use muleteer_model::spec_run::event::Planned;
use muleteer_model::spec_run::price::Price;
use muleteer_protocol::v1::{DispatchStatus, ProcessStatus, ResultDoc, Tokens, TreeNode};

fn now() -> Timestamp {
    "2026-01-02T12:00:00Z".parse().expect("time")
}

fn dispatch(id: &str, state: &str, since: &str) -> DispatchStatus {
    DispatchStatus {
        id: id.into(),
        role: "developer".into(),
        project: "/home/u/web".into(),
        feature: "login".into(),
        state: state.into(),
        since: since.into(),
        backend: "claude-code".into(),
        model: Some("claude-opus-4-6".into()),
        model_source: Some("role".into()),
        session_id: None,
        turns: 0,
        attempts: 0,
        last_activity: None,
        cost_usd: 0.0,
        tokens: Tokens::default(),
        worktree: None,
        journal: Some("/home/u/web/.agents/journals/login/developer.md".into()),
        pid: None,
        reason: None,
        until: None,
        containment: None,
        waiting_for: vec![],
        work: None,
        title: None,
        spec: None,
        task: None,
        access: None,
        result: None,
    }
}

fn fleet() -> Vec<DispatchStatus> {
    let tokens =
        Tokens { input: 12_400, output: 3_100, cache_read: 1_250_000, cache_write: 48_000 };
    vec![
        DispatchStatus {
            turns: 3,
            attempts: 2,
            cost_usd: 1.234,
            tokens,
            last_activity: Some("2026-01-02T11:59:48Z".into()),
            session_id: Some("0d2f8a34".into()),
            pid: Some(4242),
            containment: Some("cgroup+pdeathsig".into()),
            title: Some("Let people log in".into()),
            spec: Some("docs/login.md".into()),
            task: Some("# Let people log in\n\nWith a key.".into()),
            access: Some("may do everything without asking, in /home/u/web".into()),
            ..dispatch("k3f9abcd", "running", "2026-01-02T11:47:00Z")
        },
        DispatchStatus {
            role: "tester".into(),
            ..dispatch("m2mzcvqd", "queued", "2026-01-02T11:59:57Z")
        },
        DispatchStatus {
            turns: 12,
            attempts: 1,
            cost_usd: 0.0042,
            result: Some(ResultDoc {
                status: "partial".into(),
                summary: "Fixed the race in the reader\nand left the writer.".into(),
                changes: vec!["src/reader.rs".into(), "tests/race.rs".into()],
                questions: vec!["Is the writer still used?".into()],
                ..ResultDoc::default()
            }),
            ..dispatch("zmfet59s", "partial", "2026-01-01T08:00:00Z")
        },
        DispatchStatus {
            attempts: 4,
            reason: Some(
                "gave up after 3 restarts: exit code 1: \x1b[2Jmodel \"x\" is not \
                available to this account, ask an administrator"
                    .into(),
            ),
            ..dispatch("aaaabbbb", "failed", "2025-12-30T12:00:00Z")
        },
    ]
}

#[test]
fn status_as_a_table() {
    insta::assert_snapshot!(
        "status",
        strip_str(&status::table_within(&fleet(), now(), None)).to_string()
    );
    assert_eq!(status::table(&[], now()), "no dispatches\n");
}

#[test]
fn status_table_fits_into_80_columns() {
    let shown = strip_str(&status::table_within(&fleet(), now(), Some(80))).to_string();
    insta::assert_snapshot!("status_80", shown);
    for line in shown.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

#[test]
fn status_of_one() {
    let all: Vec<_> = fleet()
        .iter()
        .map(|dispatch| strip_str(&status::detail(dispatch, now())).to_string())
        .collect();
    insta::assert_snapshot!("status_one", all.join("\n"));
}

#[test]
fn an_ending_in_a_line() {
    let all: Vec<_> =
        fleet().iter().map(|dispatch| strip_str(&status::ending(dispatch)).to_string()).collect();
    insta::assert_snapshot!("ending", all.join("\n"));
}

fn node(name: &str, strategy: &str, children: Vec<TreeNode>) -> TreeNode {
    TreeNode {
        name: name.into(),
        strategy: strategy.into(),
        restart: "permanent".into(),
        restarts_in_window: 0,
        state: "running".into(),
        children,
        process: None,
    }
}

#[test]
fn the_tree() {
    let process = Some(ProcessStatus { pid: 4242, rss_bytes: 231 << 20, cpu_percent: 12.4 });
    let agent = TreeNode {
        restart: "transient".into(),
        process,
        ..node(
            "agent/k3f9abcd",
            "rest-for-one",
            vec![
                node("journal", "-", vec![]),
                node("life", "-", vec![]),
                node("link", "-", vec![]),
            ],
        )
    };
    let pool =
        TreeNode { restarts_in_window: 2, state: "restarting".into(), ..node("pool", "-", vec![]) };
    let fleet =
        node("fleet", "one-for-all", vec![pool, node("agents", "one-for-one", vec![agent])]);
    let root = TreeNode {
        process: Some(ProcessStatus { pid: 4000, rss_bytes: 19 << 20, cpu_percent: 0.3 }),
        ..node(
            "root",
            "one-for-one",
            vec![node("ledger", "-", vec![]), fleet, node("gate", "-", vec![])],
        )
    };
    insta::assert_snapshot!("tree", strip_str(&tree::draw(&root, None)).to_string());
    for columns in [40, 60, 80] {
        let shown = strip_str(&tree::draw(&root, Some(columns))).to_string();
        assert!(shown.lines().all(|line| line.chars().count() <= columns), "{shown}");
        let agent = shown.lines().find(|line| line.contains("k3f9abcd")).expect("the agent");
        assert!(agent.contains("running"), "{columns}: {agent}");
        assert!(columns < 80 || agent.ends_with("pid 4242, 231.0 MB, 12% cpu"), "{agent}");
    }
}

#[test]
fn expected_cost_is_a_range_or_unknown() {
    let price = Price { low_usd: 1.2, high_usd: 3.456, beads: 4, runs: 1 };
    assert_eq!(run::expected(Some(&price)), "$1.20 to $3.46 for 4 beads, by 1 earlier run here");
    assert!(run::expected(None).starts_with("unknown ("));
}

/// The lines of a run's stream name beads by their titles, also after the event that listed them.
#[test]
fn lines_of_a_run_name_beads_by_their_titles() {
    let lines = Lines::default();
    let line = |event: Event| {
        let entry = Entry { id: "e".into(), dispatch_id: None, at: None, more: false, event };
        lines.describe(&entry).map(|line| strip_str(&line).to_string()).unwrap_or_default()
    };
    let planned = Planned {
        id: "k3f9abcd".into(),
        title: "Parse the header".into(),
        priority: 2,
        created_at: "2026-02-12T10:00:00Z".into(),
        depends_on: vec![],
        outside: vec![],
        closed: false,
    };
    line(Event::BeadsCreated { count: 1, dependency_edges: 0, beads: vec![planned] });
    let (bead_id, reason) = ("k3f9abcd".to_string(), "exit code 1".to_string());
    let name = r#""Parse the header" (k3f9abcd)"#;
    for (event, wanted) in [
        (
            Event::BeadCompleted {
                bead_id: bead_id.clone(),
                by: "agent".into(),
                no_change: false,
                commits: 1,
            },
            format!("bead {name} is done"),
        ),
        (
            Event::BeadBlocked { bead_id: bead_id.clone(), reason, dependants: vec![], kind: None },
            format!("bead {name} is blocked: exit code 1 (0 beads depend on it)"),
        ),
        (
            Event::BeadReopened { bead_id, by: "operator".into() },
            format!("bead {name} was reopened by operator"),
        ),
        (
            Event::ObservationCreated {
                bead_id: "m4n5".into(),
                created_by: "agent-1".into(),
                title: "It leaks".into(),
            },
            r#"agent-1 noted "It leaks" (m4n5) for the judge"#.into(),
        ),
    ] {
        assert_eq!(line(event), wanted);
    }
}
