//! This test is alone in its process, because it measures the process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use muleteer_backends::LINE_LIMIT;
use muleteer_backends::NAMES;
use muleteer_backends::by_name;

/// Parses 100 MB and more, half of it one line without a newline. Memory use must not grow.
#[test]
fn flood_of_output_keeps_memory_flat() {
    let resident = || -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let line = [vec![b'y'; 1000], vec![b'\n']].concat().repeat(64);
    let blob = vec![b'x'; 1024 * 1024];
    for name in NAMES {
        let mut parser = by_name(name).unwrap().parser();
        parser.push(&blob.repeat(LINE_LIMIT / blob.len() + 1));
        let before = resident();
        for _ in 0..100 {
            parser.push(&blob);
            parser.push(&line);
        }
        parser.push(b"\n");
        // The same as JSON: a long text, and a list without end.
        for (begin, piece) in
            [("{\"a\":\"", blob.as_slice()), ("{\"a\":[\"", b"x\",\"".repeat(1024).as_slice())]
        {
            parser.push(begin.as_bytes());
            for _ in 0..100 * blob.len() / piece.len() / 4 {
                parser.push(piece);
            }
            parser.push(b"\n");
        }
        let grown = resident().saturating_sub(before);
        assert!(grown < 48 * 1024 * 1024, "{name}: {grown} bytes more");
    }
}
