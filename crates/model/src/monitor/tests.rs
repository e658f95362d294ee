#![allow(clippy::unwrap_used)]
use crate::monitor::*;
use serde_json::json;

/// Feeds events to the monitors, one second apart.
struct Told {
    monitors: Monitors,
    t: f64,
    calls: u32,
}

impl Told {
    fn new() -> Self {
        Self::within(&[], None)
    }

    fn within(scope: &[&str], budget_usd: Option<f64>) -> Self {
        let scope = scope.iter().map(ToString::to_string).collect();
        let all = Response::Stop;
        let terms = Terms {
            responses: Responses { loops: all, drift: all, spiral: all, budget: all },
            scope,
        };
        let mut told = Self { monitors: Monitors::new(&terms, budget_usd), t: 0.0, calls: 0 };
        told.hear(json!({"type": "session", "cwd": "/repo"}));
        told
    }

    fn hear(&mut self, event: Value) -> Vec<(Monitor, Action)> {
        self.t += 1.0;
        let event: AgentEvent = serde_json::from_value(event).unwrap();
        let found = observe(&event).into_iter().flat_map(|seen| self.monitors.hear(seen, self.t));
        found.map(|finding| (finding.monitor, finding.action)).collect()
    }

    fn call(&mut self, tool: &str, input: Value, ok: bool, text: &str) -> Vec<(Monitor, Action)> {
        self.calls += 1;
        let id = self.calls.to_string();
        let mut found =
            self.hear(json!({"type": "tool_call", "id": id, "name": tool, "input": input}));
        found.extend(self.hear(json!({"type": "tool_result", "id": id, "ok": ok, "text": text})));
        found
    }

    fn run(&mut self, command: &str, ok: bool, text: &str) -> Vec<(Monitor, Action)> {
        self.call("Bash", json!({"command": command}), ok, text)
    }

    fn edit(&mut self, file: &str, new: &str) -> Vec<(Monitor, Action)> {
        self.call(
            "Edit",
            json!({"file_path": file, "old_string": "a", "new_string": new}),
            true,
            "done",
        )
    }

    fn read(&mut self, file: &str) -> Vec<(Monitor, Action)> {
        self.call("Read", json!({"file_path": file}), true, &format!("what is in {file}"))
    }
}

/// Runs `one` up to `most` times and returns each decision above a note, with the number of the
/// run.
fn first(
    most: u32,
    mut one: impl FnMut(u32) -> Vec<(Monitor, Action)>,
) -> Vec<(u32, Monitor, Action)> {
    let mut all = Vec::new();
    for n in 1..=most {
        let loud = one(n).into_iter().filter(|(_, action)| *action > Action::Note);
        all.extend(loud.map(|(monitor, action)| (n, monitor, action)));
    }
    all
}

use Action::{Stop, Warn};
use Monitor::{Budget, Drift, Loop, Spiral};

/// The monitor warns first, and ends the agent when it continues.
#[test]
fn repeated_failure_warns_and_then_stops_the_agent() {
    let mut told = Told::new();
    let found = first(10, |n| {
        told.run("make", false, &format!("main.c:{n}: error: no such file (took {n} ms)"))
    });
    assert_eq!(found, [(4, Loop, Warn), (6, Loop, Stop)]);
}

/// One message has several calls, and one of them fails: Claude Code reports an error for each of
/// them.
#[test]
fn sibling_errors_of_one_message_count_as_one_failure() {
    const SIBLING: &str = "<tool_use_error>Sibling tool call errored</tool_use_error>";
    let others = [
        SIBLING,
        "```\n<tool_use_error>Sibling tool call errored</tool_use_error>\n```",
        "Sibling tool call errored",
    ];
    for other in others
        .into_iter()
        .chain(["<tool_use_error>Cancelled: parallel tool call Bash(ls) errored</tool_use_error>"])
    {
        let mut told = Told::new();
        let message = |told: &mut Told, n: u32| {
            for call in 0..6 {
                let input = json!({"command": format!("cat part-{call}")});
                told.hear(json!(
                    {"type": "tool_call", "id": format!("{n}-{call}"), "name": "Bash",
                    "input": input}));
            }
            let texts = ["error: no such file"].into_iter().chain([other; 5]).enumerate();
            let results = texts.map(
                |(call, text)| json!({"type": "tool_result", "id": format!("{n}-{call}"), "ok": false, "text": text}),
            );
            results.flat_map(|result| told.hear(result)).collect::<Vec<_>>()
        };
        let found = first(6, |n| message(&mut told, n));
        assert_eq!(
            found,
            [(4, Loop, Warn), (6, Loop, Stop)],
            "as often as the one call that failed: {other}"
        );
    }
}

/// The text counts as a failure if a program prints it, and not if the call succeeded.
#[test]
fn sibling_error_text_in_program_output_counts() {
    let mut told = Told::new();
    let text = "test failed: expected 'Sibling tool call errored' to be absent";
    assert_eq!(first(6, |_| told.run("make", false, text)), [(4, Loop, Warn), (6, Loop, Stop)]);
}

#[test]
fn alternating_calls_are_a_loop() {
    let mut told = Told::new();
    let found = first(10, |_| {
        [
            told.edit("a.rs", "one"),
            told.edit("a.rs", "two"),
            told.run("make", false, "error: a b c"),
        ]
        .concat()
    });
    assert_eq!(
        found.first().map(|(n, monitor, action)| (*n, *monitor, *action)),
        Some((4, Loop, Warn)),
        "{found:?}"
    );
    assert!(found.iter().any(|found| found.2 == Stop));
}

/// Codex gives only the file name of an edit, and some agents not even that.
#[test]
fn unreported_outcomes_are_never_equal() {
    let mut told = Told::new();
    let found = first(20, |_| {
        let patch =
            told.call("Edit", json!({"file_path": "/repo/a.rs", "kind": "update"}), true, "");
        [patch, told.call("Read", json!({}), true, ""), told.call("Grep", Value::Null, true, "")]
            .concat()
    });
    assert_eq!(found, []);
    let found = first(20, |n| {
        let patch =
            told.call("Edit", json!({"file_path": "/repo/a.rs", "kind": "update"}), true, "");
        [patch, told.run("cargo test", false, &format!("error: it is as it was, after {n}.1s"))]
            .concat()
    });
    assert_eq!(found, [(7, Loop, Warn), (11, Loop, Stop)], "but what failed is");
}

#[test]
fn repeated_no_op_edits_are_found_later() {
    let mut told = Told::new();
    let found = first(20, |n| {
        [
            told.edit("a.rs", &format!("attempt {n}")),
            told.run("cargo test", false, "assertion failed: it is not so"),
        ]
        .concat()
    });
    assert_eq!(found, [(7, Loop, Warn), (11, Loop, Stop)]);
}

#[test]
fn progress_is_not_a_loop() {
    let mut told = Told::new();
    let found = first(30, |n| {
        [
            told.edit("a.rs", &format!("attempt {n}")),
            told.run(
                "cargo test",
                false,
                &format!("test result: FAILED. {} passed; {} failed", n, 40 - n),
            ),
        ]
        .concat()
    });
    assert_eq!(found, []);
    let found = first(30, |n| {
        [told.edit("b.rs", &format!("step {n}")), told.run("cargo check", true, "Finished")]
            .concat()
    });
    assert_eq!(found, [], "what works may be run as often as one likes");
    let found = first(30, |n| told.read(&format!("src/{n}.rs")));
    assert_eq!(found, []);
}

#[test]
fn different_calls_that_die_of_the_same_are_one_circle() {
    let mut told = Told::new();
    let found = first(10, |n| {
        told.run(&format!("npm run test-{n}"), false, "Error: Cannot find module 'jest' here")
    });
    assert_eq!(found, [(5, Loop, Warn), (8, Loop, Stop)]);
}

#[test]
fn polling_each_minute_warns_and_never_stops_the_agent() {
    let mut told = Told::new();
    let found = first(300, |_| {
        told.t += 58.0;
        told.run("gh run view 12", true, "in progress")
    });
    assert_eq!(found, [(41, Loop, Warn)]);
}

/// A server that is not up yet rejects connections until it is ready.
#[test]
fn failure_after_a_wait_counts_half() {
    let mut told = Told::new();
    let found = first(12, |_| {
        told.t += 30.0;
        told.run(
            "curl -sf localhost:3000",
            false,
            "curl: (7) Failed to connect to localhost port 3000",
        )
    });
    assert_eq!(found, [(7, Loop, Warn), (11, Loop, Stop)]);
}

/// Repetition without a pause may be impatience at first.
#[test]
fn repetition_without_pause_warns_after_minutes() {
    for tool in ["Bash", "BashOutput", "mcp__ci__status"] {
        let mut told = Told::new();
        let found = first(400, |_| {
            told.t += 4.0;
            told.call(tool, json!({"command": "git status", "id": 1}), true, "nothing new")
        });
        assert_eq!(found, [(51, Loop, Warn), (201, Loop, Stop)], "{tool}");
    }
}

#[test]
fn message_of_a_person_resets_the_monitors() {
    let mut told = Told::new();
    let round = |told: &mut Told| first(5, |_| told.run("make", false, "error: it does not work"));
    assert_eq!(round(&mut told), [(4, Loop, Warn)]);
    told.hear(json!({"type": "prompt", "text": "try the other Makefile"}));
    assert_eq!(round(&mut told), [(4, Loop, Warn)], "told again, and not ended");
}

#[test]
fn subagent_loops_are_counted_separately() {
    let mut told = Told::new();
    let found = first(3, |n| {
        let mut found = Vec::new();
        for by in ["task1", "task2"] {
            let id = format!("{by}/{n}");
            for event in [
                json!({"type": "tool_call", "id": id, "name": "Bash",
                    "input": {"command": "make"}}),
                json!({"type": "tool_result", "id": id, "ok": false,
                    "text": "error: no such thing"}),
            ] {
                found.extend(told.hear(json!({"type": "subagent", "parent": by, "event": event})));
            }
        }
        found
    });
    assert_eq!(found, []);
    let by = |event: Value| json!({"type": "subagent", "parent": "task1", "event": event});
    let found = first(5, |_| {
        // The agent prompts its subagent; no person has sent a message.
        told.hear(by(json!({"type": "prompt", "text": "look for it"})));
        told.run("make", false, "error: it does not work")
    });
    assert_eq!(found, [(4, Loop, Warn)]);
}

#[test]
fn repeated_text_without_actions_is_a_loop() {
    let mut told = Told::new();
    let say = |told: &mut Told, n: u32| {
        told.hear(json!({"type": "text", "text": format!("Let me try again ({n}).")}))
    };
    assert_eq!(first(10, |n| say(&mut told, n)), [(4, Loop, Warn), (7, Loop, Stop)]);
    let mut told = Told::new();
    let found = first(10, |n| [say(&mut told, n), told.read(&format!("{n}.rs"))].concat());
    assert_eq!(found, [], "it does something new each time");
}

#[test]
fn several_edits_outside_the_scope_warn() {
    let mut told = Told::within(&["src/api/**"], None);
    assert_eq!(first(5, |n| told.edit(&format!("/repo/src/api/{n}.rs"), "x")), []);
    assert_eq!(first(3, |n| told.edit(&format!("src/api/tests/{n}.rs"), "x")), []);
    assert_eq!(told.edit("Cargo.lock", "x"), [(Drift, Action::Note)]);
    let found = first(20, |n| told.edit(&format!("src/ui/{n}.rs"), "x"));
    assert_eq!(found.first().map(|found| (found.1, found.2)), Some((Drift, Warn)), "{found:?}");
    let mut told = Told::new();
    assert_eq!(
        first(20, |n| told.edit(&format!("src/ui/{n}.rs"), "x")),
        [],
        "anywhere in its directory"
    );
    assert_eq!(first(20, |n| told.edit(&format!("/tmp/{n}.rs"), "x")), []);
    assert_eq!(
        first(20, |n| told.edit(&format!("/main/.agents/journals/{n}/developer.md"), "x")),
        []
    );
    assert_eq!(first(2, |n| told.edit(&format!("/other/{n}.rs"), "x")), [], "two, of many edits");
    let mut told = Told::new();
    let found = first(4, |n| told.edit(&format!("src/../../tests/{n}.rs"), "x"));
    assert_eq!(
        found,
        [(2, Drift, Warn)],
        "however it is written, and not all that is called tests is ours"
    );
}

#[test]
fn consecutive_compactions_are_a_spiral() {
    let compaction = || json!({"type": "compaction", "before": 160_000, "after": 30_000});
    let mut told = Told::new();
    let found = first(6, |n| {
        let mut found = first(30, |m| told.read(&format!("{n}/{m}.rs")));
        found.extend(first(3, |m| told.edit(&format!("{n}.rs"), &format!("{m}"))));
        assert_eq!(found, []);
        told.hear(compaction())
    });
    assert_eq!(found, [], "each time something new");
    let found = first(8, |_| {
        let mut found = Vec::new();
        for file in ["a.rs", "b.rs", "c.rs"] {
            found.extend(told.read(file));
        }
        found.extend(told.hear(compaction()));
        found.retain(|(monitor, _)| *monitor == Spiral);
        found
    });
    assert_eq!(found, [(2, Spiral, Warn), (4, Spiral, Stop)]);
}

#[test]
fn budget_stops_and_a_cost_surge_warns_before() {
    let cost = |told: &mut Told, usd: f64| told.hear(json!({"type": "usage", "cost_usd": usd}));
    let mut told = Told::within(&[], Some(10.0));
    assert_eq!(first(78, |_| cost(&mut told, 0.1)), []);
    assert_eq!(first(2, |_| cost(&mut told, 0.1)), [], "near, and noted");
    assert_eq!(first(30, |_| cost(&mut told, 0.1)).first(), Some(&(21, Budget, Stop)));
    let mut told = Told::within(&[], Some(100.0));
    let slow = first(60, |_| {
        told.t += 59.0;
        cost(&mut told, 0.05)
    });
    assert_eq!(slow, []);
    let flood = first(60, |_| cost(&mut told, 1.0));
    assert_eq!(flood.first().map(|found| (found.1, found.2)), Some((Budget, Warn)), "{flood:?}");
}

/// The memory of the monitors is bounded, whatever names an agent uses and however much it writes.
#[test]
fn nothing_an_agent_does_fills_the_memory() {
    let mut told = Told::new();
    for n in 0..20_000 {
        told.hear(json!({"type": "tool_call", "id": format!("open{n}"), "name": "Bash",
                "input": {"command": n.to_string()}}));
        told.run(&format!("make {n}"), n % 2 == 0, &format!("word{n}x"));
        told.hear(json!(
            {"type": "subagent", "parent": n.to_string(),
            "event": {"type": "tool_result", "id": "none", "ok": true}}));
    }
    assert!(told.monitors.open.len() <= MOST_OPEN && told.monitors.loops.len() <= MOST_SUBAGENTS);
}

mod streams {
    use super::*;
    use crate::monitor::replay::{Label, Score, Stream, score};

    fn stream(label: &str, onset: Option<f64>, events: &[Value]) -> Stream {
        let header = json!(
            {"stream": 1, "id": "s", "label": label, "archetype": "a", "onset": onset,
            "category": "coding",
            "limits": {"inactivity_timeout": 300, "budget_usd": 10}, "scope": null});
        let lines = std::iter::once(&header).chain(events).map(ToString::to_string);
        Stream::parse(&lines.collect::<Vec<_>>().join("\n")).unwrap()
    }

    fn decided(stream: &Stream) -> Vec<(f64, Monitor, Action)> {
        let decisions = stream.decisions().into_iter();
        decisions
            .map(|decision| (decision.t, decision.finding.monitor, decision.finding.action))
            .collect()
    }

    #[test]
    fn replay_continues_for_an_hour_after_the_last_event() {
        let begun = [
            json!({"t": 0, "type": "prompt", "text": "do it"}),
            json!({"t": 40, "type": "text", "text": "hm"}),
        ];
        let silent = stream("stalled", Some(40.0), &begun);
        assert_eq!(
            decided(&silent),
            [(340.0, Monitor::Stall, Stop)].map(|(t, monitor, action)| (t + 20.0, monitor, action))
        );
        assert_eq!(score(&silent.header, &silent.decisions()), Score::Right);
        let ended = [&begun[..], &[json!({"t": 50, "type": "result", "ok": true})]].concat();
        assert_eq!(decided(&stream("healthy", None, &ended)), [], "between turns nobody is late");
        let exited = [&begun[..], &[json!({"t": 50, "type": "exit", "code": 0})]].concat();
        assert_eq!(decided(&stream("healthy", None, &exited)), []);
    }

    #[test]
    fn evidence_of_life_prevents_a_stall() {
        let begun = json!({"t": 0, "type": "prompt", "text": "do it"});
        let call = json!(
            {"t": 1, "type": "tool_call", "id": "1", "name": "Bash", "input": {"command": "make"}});
        assert_eq!(decided(&stream("healthy", None, &[begun.clone(), call])), []);
        let asks = json!({"t": 1, "type": "permission", "id": "1"});
        assert_eq!(decided(&stream("healthy", None, &[begun.clone(), asks])), []);
        let held = json!({"t": 1, "type": "backpressure", "on": true});
        assert_eq!(decided(&stream("healthy", None, &[begun.clone(), held])), []);
        let busy: Vec<_> = (1..=400)
            .map(|n| json!({"t": n * 10, "type": "process", "cpu_s": 5.0, "children": 1}))
            .collect();
        let until = decided(&stream(
            "stalled",
            Some(4000.0),
            &[std::slice::from_ref(&begun), &busy[..]].concat(),
        ));
        assert_eq!(until.iter().map(|found| found.1).collect::<Vec<_>>(), [Monitor::Stall]);
        assert!(until[0].0 > 4300.0, "{until:?}");
        let limit = json!({"t": 1, "type": "rate_limit", "resets_in_s": 3000});
        let limited = stream("rate_limited", Some(1.0), &[begun, limit]);
        assert_eq!(
            decided(&limited),
            [(1.0, Monitor::Api, Action::Note), (3300.0 + 30.0, Monitor::Stall, Stop)]
        );
        assert_eq!(
            score(&limited.header, &limited.decisions()),
            Score::FalseAlarm,
            "an hour after a limit of 50 minutes"
        );
    }

    #[test]
    fn stopped_agent_has_no_more_findings() {
        let fail = |n: u32| {
            [
                json!({"t": n, "type": "tool_call", "id": n.to_string(), "name": "Bash",
                    "input": {"command": "make"}}),
                json!({"t": n, "type": "tool_result", "id": n.to_string(), "ok": false,
                    "text": "error: no such file"}),
            ]
        };
        let events: Vec<_> = (1..30).chain(500..530).flat_map(fail).collect();
        let looping = stream("looping", Some(2.0), &events);
        // Loops only cause a warning by default; a stall stops the agent.
        assert_eq!(decided(&looping), [(4.0, Loop, Warn), (331.0, Monitor::Stall, Stop)]);
        assert_eq!(score(&looping.header, &looping.decisions()), Score::Right);
        let too_early = stream("looping", Some(5.0), &events);
        assert_eq!(score(&too_early.header, &too_early.decisions()), Score::FalseAlarm);
        assert_eq!(stream("healthy", None, &[]).header.label, Label::Healthy);
    }

    #[test]
    fn a_bad_line_is_named() {
        let good = stream("healthy", None, &[]).header;
        let header = serde_json::to_string(&good).unwrap();
        let bad = |text: String| Stream::parse(&text).unwrap_err();
        assert_eq!(bad(String::new()).line, 1);
        assert_eq!(bad(header.replace("\"stream\":1", "\"stream\":2")).line, 1);
        assert_eq!(
            bad(format!("{header}\n\n{{\"t\":1,\"type\":\"text\",\"text\":\"a\"}}\nno json")).line,
            4
        );
        let backwards = bad(format!(
            "{header}\n{{\"t\":9,\"type\":\"text\",\"text\":\"a\"}}\
             \n{{\"t\":8,\"type\":\"text\",\"text\":\"a\"}}"
        ));
        assert_eq!((backwards.line, backwards.fault.as_str()), (3, "`t` is 8, after 9"));
        let newer =
            Stream::parse(&format!("{header}\n{{\"t\":1,\"type\":\"telepathy\",\"of\":\"a\"}}"))
                .unwrap();
        assert!(matches!(newer.events[0].event, AgentEvent::Unknown { .. }));
    }
}
