//! The stdin of a verb on its way to the other host: in pieces, each behind its length, and an
//! empty one as the end. So the end of a connection is not taken for the end of the input: half of
//! a prompt would be a prompt too.
//!
//! ```text
//!  u32 length (big-endian) │ bytes      at most LIMIT of them
//!  0                                    the input has ended
//! ```

use std::io::{self, Read, Write};

/// The most bytes of one piece.
pub const LIMIT: usize = 16 << 10;

/// Writes one piece of at most [`LIMIT`] bytes; an empty one is the end.
///
/// # Errors
/// If `to` cannot be written.
pub fn write(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    to.write_all(&[&length.to_be_bytes()[..], bytes].concat())?;
    to.flush()
}

/// Copies the bytes of all pieces. Returns at the end that [`write()`] wrote.
///
/// # Errors
/// If `from` ends before, cannot be read or has a piece that is too long, or if `to` cannot be
/// written.
pub fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut piece = vec![0; LIMIT];
    loop {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length == 0 {
            return Ok(());
        }
        let too_long =
            || io::Error::new(io::ErrorKind::InvalidData, "a piece of stdin is too long");
        let piece = piece.get_mut(..length).ok_or_else(too_long)?;
        from.read_exact(piece)?;
        to.write_all(piece)?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_the_written_end_is_the_end() {
        let mut sent = vec![];
        for piece in [&b"half of "[..], b"a prompt", b""] {
            write(&mut sent, piece).unwrap();
        }
        let mut got = vec![];
        copy(&sent[..], &mut got).unwrap();
        assert_eq!(got, b"half of a prompt");
        for cut in 0..sent.len() {
            assert!(copy(&sent[..cut], io::sink()).is_err(), "cut after {cut} bytes");
        }
        let long = u32::try_from(LIMIT + 1).unwrap().to_be_bytes();
        assert!(copy(long.chain(io::repeat(0)), io::sink()).is_err());
    }
}
