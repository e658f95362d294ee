//! A parser that begins at any line of a stream, as after a crash of the daemon.

use muleteer_backends::Line;

/// Asserts that a new parser at each line boundary yields the lines that follow there.
pub fn yields_the_same(name: &str, bytes: &[u8], parse: impl Fn(&[u8]) -> Vec<Line>) {
    let whole = parse(bytes);
    assert_eq!(whole.last().map(|line| line.consumed), Some(bytes.len() as u64), "{name}");
    for (n, line) in whole.iter().enumerate() {
        let at = usize::try_from(line.consumed).expect("a position in memory");
        let moved: Vec<_> = parse(&bytes[at..])
            .into_iter()
            .map(|rest| Line { consumed: rest.consumed + line.consumed, ..rest })
            .collect();
        assert_eq!(moved, whole[n + 1..], "{name} after line {n}");
    }
}
