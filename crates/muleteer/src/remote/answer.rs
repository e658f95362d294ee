//! The answer of the other host: the verb's output, behind the output of a shell there.

use crate::remote::order::BEGUN;
use std::io::{self, Read, Write};

/// The most that a shell may print before the verb begins.
const NOISE_LIMIT: usize = 64 << 10;

/// How far the output of a verb came.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The verb began on the other host.
    pub has_begun: bool,
    /// The verb printed something.
    pub has_printed: bool,
    /// The text before the verb began; all of it if it never began.
    pub noise: Vec<u8>,
}

/// Copies the verb's output to `to`, without delay.
///
/// # Errors
/// If `from` cannot be read or `to` cannot be written.
pub fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<Answer> {
    let mut answer = Answer::default();
    let mut buffer = [0; 16 << 10];
    while !answer.has_begun && answer.noise.len() <= NOISE_LIMIT {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(answer),
            Ok(count) => answer.noise.extend_from_slice(buffer.get(..count).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        if let Some(at) = answer.noise.windows(BEGUN.len()).position(|bytes| bytes == BEGUN) {
            answer.has_begun = true;
            let rest = answer.noise.split_off(at).split_off(BEGUN.len());
            answer.has_printed = !rest.is_empty();
            to.write_all(&rest)?;
            to.flush()?;
        }
    }
    if answer.has_begun {
        answer.has_printed |= relay(from, to)?;
    }
    Ok(answer)
}

/// Copies until the end of `from`, without delay. Returns whether there was anything to copy.
///
/// # Errors
/// As [`copy`].
pub fn relay(mut from: impl Read, mut to: impl Write) -> io::Result<bool> {
    let mut buffer = [0; 16 << 10];
    let mut has_copied = false;
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return Ok(has_copied),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        has_copied = true;
        to.write_all(buffer.get(..count).unwrap_or_default())?;
        to.flush()?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Gives its bytes one by one, as a slow connection does.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let count = self.0.len().min(1);
            self.0.read(&mut to[..count])
        }
    }

    #[test]
    fn only_the_output_of_the_verb_is_copied() {
        for (said, begun, printed, noise) in [
            (&b"\0muleteer\0{}\n"[..], true, &b"{}\n"[..], &b""[..]),
            (b"welcome to box\n\0muleteer\0{}\n", true, b"{}\n", b"welcome to box\n"),
            (b"\0muleteer\0", true, b"", b""),
            (b"This account is not available.\n", false, b"", b"This account is not available.\n"),
            (b"\0mule", false, b"", b"\0mule"),
            (b"", false, b"", b""),
        ] {
            let mut to = vec![];
            let answer = copy(Slow(said), &mut to).unwrap();
            assert_eq!((to.as_slice(), &answer.noise[..]), (printed, noise));
            assert_eq!((answer.has_begun, answer.has_printed), (begun, !printed.is_empty()));
        }
    }

    #[test]
    fn endless_noise_is_bounded() {
        let answer = copy(io::repeat(b'x'), io::sink()).unwrap();
        assert!(!answer.has_begun && answer.noise.len() < 2 * NOISE_LIMIT);
    }
}
