//! Reads what the CLIs' transcripts say about a prompt: real ones, cut everywhere, damaged, absurd.

#![allow(clippy::unwrap_used)]

use muleteer_backends::by_name;
use muleteer_model::agent::transcript::{Reading, Seen, Session, Standing};
use proptest::prelude::*;
use std::io::BufReader;
use std::path::Path;

const FIRST: &str = "00000000-0000-4000-8000-000000000001";
const SECOND: &str = "00000000-0000-4000-8000-000000000002";
const NEVER_SENT: &str = "00000000-0000-4000-8000-000000000009";

fn fixture(cli: &str, name: &str) -> Vec<u8> {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/transcripts").join(cli);
    std::fs::read(folder.join(name).with_extension("jsonl")).unwrap()
}

fn read(cli: &str, bytes: &[u8], key: &str) -> Reading {
    let backend = by_name(if cli == "claude" { "claude-code" } else { cli }).unwrap();
    // Smaller than a line, so that lines come in several pieces.
    backend
        .transcripts()
        .unwrap()
        .read(&mut BufReader::with_capacity(100, bytes), key)
        .unwrap()
}

fn seen(cli: &str, name: &str, key: &str) -> Seen {
    read(cli, &fixture(cli, name), key).prompt
}

#[test]
fn real_transcripts_yield_the_state_of_their_prompt() {
    use Standing::{Answered, MidTool, Unanswered};
    for (cli, name, standing) in [
        ("claude", "unanswered", Unanswered),
        ("claude", "mid_tool", MidTool),
        ("claude", "between_tools", MidTool),
        ("claude", "queued", MidTool),
        ("claude", "folded", MidTool),
        ("claude", "answered", Answered),
        ("claude", "answered_in_form", Answered),
        // Text that the CLI writes in the model's name is no answer.
        ("claude", "api_error", Unanswered),
        ("claude", "interrupted", MidTool),
        ("codex", "unanswered", Unanswered),
        ("codex", "mid_tool", MidTool),
        ("codex", "answered", Answered),
        ("codex", "failed", Unanswered),
        ("pi", "mid_tool", MidTool),
        ("pi", "answered", Answered),
        ("pi", "failed", Unanswered),
    ] {
        let reading = read(cli, &fixture(cli, name), FIRST);
        assert_eq!(reading.prompt, Seen::Present(standing), "{cli} {name}");
        assert_eq!(reading.session, Session::Held, "{cli} {name}");
        assert!(reading.session_id.is_some(), "{cli} {name}");
        assert_eq!(seen(cli, name, NEVER_SENT), Seen::Absent, "{cli} {name}");
    }
}

/// pi tells the use of each answer with the answer, so a cut turn has told all of it.
#[test]
fn use_that_was_told_during_the_turn_is_not_read_again() {
    for name in ["mid_tool", "answered"] {
        assert!(read("pi", &fixture("pi", name), FIRST).used.models.is_empty(), "{name}");
    }
}

/// A prompt in the CLI's own queue is lost with the process; a folded one is in the session.
#[test]
fn prompt_folded_into_a_turn_counts_as_taken() {
    assert_eq!(seen("claude", "queued", SECOND), Seen::Absent);
    assert_eq!(seen("claude", "folded", SECOND), Seen::Present(Standing::MidTool));
}

/// A process can be killed within any write. A prompt that is in the session stays there, and the
/// answer is never unclear: the session does not contain a torn last line.
#[test]
fn truncated_transcript_is_read_up_to_the_cut() {
    for (cli, name) in [
        ("claude", "folded"),
        ("claude", "answered"),
        ("codex", "mid_tool"),
        ("codex", "answered"),
        ("pi", "mid_tool"),
        ("pi", "answered"),
    ] {
        let whole = fixture(cli, name);
        let mut taken = false;
        for end in 0..=whole.len() {
            let reading = read(cli, &whole[..end], FIRST);
            match reading.prompt {
                Seen::Present(_) => taken = true,
                Seen::Absent => assert!(!taken, "{cli} {name} at {end}"),
                Seen::Unclear(why) => panic!("{cli} {name} at {end}: {why}"),
            }
            assert!(reading.session == Session::Held || !taken, "{cli} {name} at {end}");
        }
        assert!(taken);
    }
}

/// Claude rejects both resuming and creating such a session; Codex resumes one that has a head.
#[test]
fn a_session_without_a_message_is_empty() {
    let whole = fixture("claude", "answered");
    let queue_only: Vec<u8> =
        whole.split_inclusive(|byte| *byte == b'\n').take(2).flatten().copied().collect();
    let reading = read("claude", &queue_only, FIRST);
    assert_eq!(
        (reading.session, reading.session_id, reading.prompt),
        (Session::Empty, None, Seen::Absent)
    );
    assert_eq!(read("codex", b"", FIRST).session, Session::Empty);
    let whole = fixture("codex", "answered");
    let head: Vec<u8> =
        whole.split_inclusive(|byte| *byte == b'\n').take(1).flatten().copied().collect();
    let reading = read("codex", &head, FIRST);
    assert_eq!((reading.session, reading.prompt), (Session::Held, Seen::Absent));
}

#[test]
fn damaged_prompt_record_is_unclear_and_others_are_skipped() {
    for (cli, name) in [("claude", "answered"), ("codex", "answered")] {
        let whole = String::from_utf8(fixture(cli, name)).unwrap();
        let damaged = |damage: &dyn Fn(&str) -> bool| {
            let lines = whole.lines().map(|line| if damage(line) { &line[1..] } else { line });
            lines.collect::<Vec<_>>().join("\n") + "\n"
        };
        let its = damaged(&|line| line.contains(FIRST));
        assert!(matches!(read(cli, its.as_bytes(), FIRST).prompt, Seen::Unclear(_)), "{cli}");
        let others = damaged(&|line| !line.contains(FIRST));
        assert_eq!(
            read(cli, others.as_bytes(), FIRST).prompt,
            Seen::Present(Standing::Unanswered),
            "{cli}"
        );
    }
}

/// A text of somebody else that contains the key is not the prompt.
#[test]
fn only_the_prompt_itself_counts() {
    let quoted = format!(
        "{{\"type\":\"session_meta\",\"payload\":{{\"id\":\"s\"}}}}\n\
         {{\"type\":\"response_item\",\"payload\":{{\"type\":\"function_call_output\",\
         \"output\":\"x\\n[muleteer:prompt:{FIRST}]\"}}}}\n\
         {{\"type\":\"response_item\",\"payload\":{{\"type\":\"message\",\"role\":\"user\",\
         \"content\":[{{\"type\":\"input_text\",\
         \"text\":\"[muleteer:prompt:{FIRST}]\\nis what I saw\"}}]}}}}\n"
    );
    assert_eq!(read("codex", quoted.as_bytes(), FIRST).prompt, Seen::Absent);
    let quoted = format!(
        "{{\"type\":\"user\",\"uuid\":\"other\",\"sessionId\":\"s\",\
         \"message\":{{\"content\":\"{FIRST}\"}}}}\n\
         {{\"type\":\"user\",\"uuid\":\"{FIRST}\",\"isSidechain\":true,\
         \"message\":{{\"content\":\"a subagent's\"}}}}\n"
    );
    assert_eq!(read("claude", quoted.as_bytes(), FIRST).prompt, Seen::Absent);
}

/// A record that `serde_json` rejects is not a missing one; otherwise the prompt would be sent
/// twice.
#[test]
fn a_record_that_needs_repair_is_read() {
    for (cli, name) in [("claude", "answered"), ("codex", "answered")] {
        let whole = String::from_utf8(fixture(cli, name)).unwrap();
        let expected = read(cli, whole.as_bytes(), FIRST);
        let deep = format!("{{\"x\":{}{},", "[".repeat(200), "]".repeat(200));
        for begin in ["\u{feff}{", "{\"x\":\"\\ud83d\",", "{\"x\":1e999,", deep.as_str()] {
            let lines: Vec<_> = whole.lines().map(|line| line.replacen('{', begin, 1)).collect();
            assert_eq!(
                read(cli, (lines.join("\n") + "\n").as_bytes(), FIRST),
                expected,
                "{cli} {begin}"
            );
        }
        let bytes: Vec<u8> = whole
            .lines()
            .flat_map(|line| [b"{\"x\":\"\xe9\",", &line.as_bytes()[1..], b"\n"].concat())
            .collect();
        assert_eq!(read(cli, &bytes, FIRST), expected, "{cli}");
    }
}

#[test]
fn oversized_record_is_read_in_a_stream() {
    let long = "x".repeat(17 * 1024 * 1024);
    let huge = format!(
        "{{\"type\":\"user\",\"x\":\"{long}\",\"uuid\":\"{FIRST}\",\"sessionId\":\"s\"}}\n"
    );
    let reading = read("claude", huge.as_bytes(), FIRST);
    assert_eq!(
        (reading.prompt, reading.session_id.as_deref()),
        (Seen::Present(Standing::Unanswered), Some("s"))
    );
    assert_eq!(read("claude", huge.as_bytes(), NEVER_SENT).prompt, Seen::Absent);
    let damaged = format!("{{\"type\":\"user\",\"x\":\"{long}\n").into_bytes();
    assert!(matches!(read("claude", &damaged, FIRST).prompt, Seen::Unclear(_)));
    let found = [damaged, fixture("claude", "mid_tool")].concat();
    assert_eq!(read("claude", &found, FIRST).prompt, Seen::Present(Standing::MidTool));
}

#[test]
fn lost_session_is_detected_in_the_last_output() {
    let says =
        |name: &str, stderr: &str| by_name(name).unwrap().transcripts().unwrap().says_lost(stderr);
    assert!(says("claude-code", "No conversation found with session ID: c17293ce\n"));
    assert!(says(
        "codex",
        "Error: thread/resume: thread/resume failed: no rollout found for thread id 081a (code \
         -32600)"
    ));
    assert!(
        !says("codex", "error sending request")
            && !says("claude-code", "Session ID c1 is already in use.")
    );
}

proptest! {
    /// Any file contents give an answer and no panic.
    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        at in any::<prop::sample::Index>()) {
        for (cli, name) in [("claude", "folded"), ("codex", "answered")] {
            read(cli, &bytes, FIRST);
            let mut whole = fixture(cli, name);
            let at = at.index(whole.len());
            let end = (at + bytes.len()).min(whole.len());
            whole.splice(at..end, bytes.iter().copied());
            read(cli, &whole, FIRST);
        }
    }
}

#[test]
fn usage_of_a_prompts_turn_is_read() {
    for (cli, name, input, output) in [
        ("claude", "unanswered", 0, 0),
        ("claude", "answered", 100, 20),
        ("claude", "between_tools", 100, 20),
        // Text that the CLI writes in the model's name costs nothing.
        ("claude", "api_error", 0, 0),
        ("codex", "unanswered", 0, 0),
        ("codex", "answered", 100, 20),
    ] {
        let used = read(cli, &fixture(cli, name), FIRST).used;
        let sum: (u64, u64) =
            used.models.iter().fold((0, 0), |sum, m| (sum.0 + m.input, sum.1 + m.output));
        assert_eq!(sum, (input, output), "{cli} {name}");
        assert_eq!(used.told_again, !used.models.is_empty() && cli == "codex", "{cli} {name}");
        assert_eq!(read(cli, &fixture(cli, name), NEVER_SENT).used.models, []);
    }
}
