//! The invariants of decoders, for any bytes. Each oracle panics when its invariant does not hold,
//! and a decoder that panics fails it too.
//!
//! libFuzzer drives them (`cargo xtask fuzz`), and the tests below run them over the checked-in
//! samples, whole and mutated from fixed seeds.

mod agents;
mod logs;
mod people;
mod wire;
mod work;

/// Every decoder by name, with the sample files (below the repository) from which fuzzing begins.
pub const ORACLES: &[Oracle] = &[
    Oracle { name: "event-log", check: logs::event_log, seeds: &["crates/store/samples"] },
    Oracle { name: "spool", check: logs::spool, seeds: &["crates/shim/samples/spool"] },
    Oracle { name: "shim-control", check: logs::control, seeds: &[] },
    Oracle { name: "shim-launch", check: logs::launch, seeds: &["crates/shim/samples"] },
    Oracle { name: "daemon-frame", check: wire::daemon, seeds: &["crates/protocol/samples/v1"] },
    Oracle { name: "shim-frame", check: wire::shim, seeds: &["crates/protocol/samples/shim-v1"] },
    Oracle { name: "claude-code", check: agents::claude_code, seeds: &["tests/fixtures/claude"] },
    Oracle { name: "codex", check: agents::codex, seeds: &["tests/fixtures/codex"] },
    Oracle { name: "foreign-json", check: agents::foreign_json, seeds: &["tests/fixtures/codex"] },
    Oracle {
        name: "subprocess",
        check: agents::subprocess,
        seeds: &[
            "tests/fixtures/claude",
            "tests/fixtures/headless",
            "tests/fixtures/opencode",
            "tests/fixtures/pi",
        ],
    },
    Oracle { name: "rehearsal", check: agents::rehearsal, seeds: &["tests/fixtures/codex"] },
    Oracle { name: "acp", check: agents::acp, seeds: &["tests/fuzz/samples/acp"] },
    Oracle {
        name: "claude-transcript",
        check: agents::claude_transcript,
        seeds: &["tests/fixtures/transcripts/claude"],
    },
    Oracle {
        name: "codex-transcript",
        check: agents::codex_transcript,
        seeds: &["tests/fixtures/transcripts/codex"],
    },
    Oracle { name: "config", check: people::config, seeds: &["config"] },
    Oracle { name: "role", check: people::role, seeds: &["roles", "tests/fuzz/samples/role"] },
    Oracle {
        name: "scenario",
        check: people::scenario,
        seeds: &["crates/backends/src/rehearsal", "tests/fuzz/samples/scenario"],
    },
    Oracle { name: "journal", check: people::journal, seeds: &["docs"] },
    Oracle { name: "beads", check: work::beads, seeds: &["tests/fuzz/samples/beads"] },
    Oracle { name: "tbd", check: work::tbd, seeds: &["tests/fuzz/samples/tbd"] },
    Oracle { name: "task-list", check: work::task_list, seeds: &["tests/fuzz/samples/task-list"] },
    Oracle { name: "task-log", check: work::task_log, seeds: &["tests/fuzz/samples/task-log"] },
    Oracle {
        name: "task-import",
        check: work::task_import,
        seeds: &["tests/fuzz/samples/task-import"],
    },
    Oracle {
        name: "hook-settings",
        check: work::hook_settings,
        seeds: &["tests/fuzz/samples/hook-settings"],
    },
    Oracle {
        name: "checkpoint",
        check: work::checkpoint,
        seeds: &["tests/fuzz/samples/checkpoint"],
    },
    Oracle { name: "verdict", check: work::verdict, seeds: &["tests/fuzz/samples/verdict"] },
    Oracle { name: "result", check: work::result, seeds: &["tests/fuzz/samples/result"] },
];

/// A decoder and its invariant.
#[derive(Debug)]
pub struct Oracle {
    pub name: &'static str,
    pub check: fn(&[u8]),
    pub seeds: &'static [&'static str],
}

pub fn oracle(name: &str) -> Option<fn(&[u8])> {
    ORACLES.iter().find(|oracle| oracle.name == name).map(|oracle| oracle.check)
}

pub fn names() -> Vec<&'static str> {
    ORACLES.iter().map(|oracle| oracle.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// The mutants of each sample. libFuzzer makes millions; these only check that the oracles
    /// work.
    const MUTANTS: u64 = 12;
    /// The most bytes of a sample: an oracle may take quadratic time on purpose.
    const LONGEST: usize = 16 << 10;

    fn files(below: &Path, found: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(below) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                files(&path, found);
            } else if path.extension().is_none_or(|kind| kind != "rs") {
                found.push(path);
            }
        }
    }

    /// Flips, cuts, doubles and swaps bytes; the same seed makes the same mutant.
    fn mutant(sample: &[u8], seed: u64) -> Vec<u8> {
        let mut bytes = sample.to_vec();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = |limit: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state).unwrap_or(usize::MAX) % limit.max(1)
        };
        for _ in 0..=next(4) {
            let (at, len) = (next(bytes.len()), bytes.len());
            match next(5) {
                0 if len > 0 => bytes[at] ^= 1 << next(8),
                1 if len > 0 => bytes[at] = [0, 0xff, b'\n', b'"', b'{', 0x7f, b'-', b'9'][next(8)],
                2 => bytes.truncate(at),
                3 if len > 0 => drop(bytes.drain(at..(at + next(32)).min(len))),
                _ => {
                    let piece = bytes[at..(at + next(64)).min(len)].to_vec();
                    let to = next(len + 1);
                    bytes.splice(to..to, piece);
                }
            }
        }
        bytes
    }

    #[test]
    fn every_oracle_holds_for_the_samples_and_their_mutants() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for oracle in ORACLES {
            let mut samples = vec![];
            oracle.seeds.iter().for_each(|below| files(&root.join(below), &mut samples));
            assert!(
                oracle.seeds.is_empty() || !samples.is_empty(),
                "{} has no samples",
                oracle.name
            );
            (oracle.check)(b"");
            samples.sort();
            for (n, path) in samples.iter().enumerate() {
                let mut bytes = fs::read(path).expect("a sample");
                bytes.truncate(LONGEST);
                (oracle.check)(&bytes);
                for seed in 0..MUTANTS {
                    (oracle.check)(&mutant(&bytes, seed + 1000 * n as u64));
                }
            }
        }
    }
}
