//! The order of a verb: `muleteer connect` of the other host reads it before the verb's own
//! stdin. No shell reads it, so every argument arrives unchanged, and no list of processes shows
//! it.
//!
//! It begins with a mark that no frame of the daemon's protocol begins with, because it would be
//! the length of a frame beyond the limit. So one command serves both: `ssh HOST muleteer connect`.

use crate::cli::failure::Failure;
use crate::cli::far_screen::Screen;
use crate::cli::output::Output;
use crate::render::terminal;
use muleteer_protocol::ErrorCode;
use muleteer_protocol::codec::FRAME_LIMIT;
use rustix::io::{Errno, read};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;

/// The version of an order and of the pieces of stdin behind it.
const VERSION: u32 = 1;
const MARK: &[u8; 4] = b"MULE";
const _: () = assert!(u32::from_be_bytes(*MARK) as usize > FRAME_LIMIT);
/// The bytes of the length, which follow the mark.
const LENGTH: usize = 4;
/// The other host prints this before the verb begins. Everything before it is from a shell there.
pub const BEGUN: &[u8] = b"\0muleteer\0";

/// A verb for another host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Order {
    /// The version of this form.
    pub v: u32,
    /// The verb derives its ids and keys from it.
    pub resend_key: String,
    /// The arguments as they were typed, without the name of the program.
    pub args: Vec<String>,
    pub screen: Screen,
}

impl Order {
    /// Describes a verb by the arguments of this program and its terminal.
    ///
    /// # Errors
    /// `E_USAGE` if an argument is no UTF-8.
    pub fn new(resend_key: String, args: &[OsString], out: Output) -> Result<Self, Failure> {
        let text = |arg: &OsString| {
            arg.to_str().map(str::to_string).ok_or_else(|| {
                let message =
                    format!("the argument `{}` is not valid UTF-8", arg.to_string_lossy());
                Failure::new(ErrorCode::Usage, message)
            })
        };
        let args = args.iter().skip(1).map(text).collect::<Result<_, _>>()?;
        Ok(Self { v: VERSION, resend_key, args, screen: terminal::screen(out) })
    }

    /// # Errors
    /// If the arguments are too long.
    pub fn encoded(&self) -> Result<Vec<u8>, Failure> {
        let body = serde_json::to_vec(self).map_err(io::Error::from)?;
        let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= FRAME_LIMIT);
        let length = length
            .ok_or_else(|| Failure::new(ErrorCode::Usage, "the arguments are too long"))?
            .to_be_bytes();
        Ok([&MARK[..], &length, &body].concat())
    }
}

/// The beginning of what `connect` reads.
#[derive(Debug, PartialEq, Eq)]
pub enum First {
    Order(Order),
    /// The first bytes of a peer that speaks the daemon's protocol.
    Relay(Vec<u8>),
}

/// Reads the beginning, and nothing behind it: the rest is the verb's stdin.
///
/// # Errors
/// If the input cannot be read, or is no order although it begins as one.
pub fn first(from: &impl AsFd) -> io::Result<First> {
    let head = up_to(from, MARK.len())?;
    if head != MARK {
        return Ok(First::Relay(head));
    }
    let cut = || io::Error::new(io::ErrorKind::UnexpectedEof, "the order of a verb is cut");
    let length = up_to(from, LENGTH)?.try_into().map_err(|_| cut())?;
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_LIMIT {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the order of a verb is too long"));
    }
    let body = up_to(from, length)?;
    if body.len() < length {
        return Err(cut());
    }
    let order: Order = serde_json::from_slice(&body)?;
    if order.v != VERSION {
        let why = format!("it has version {}; this muleteer knows {VERSION}", order.v);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(First::Order(order))
}

/// Reads this many bytes, or all until the end, past no buffer.
fn up_to(from: &impl AsFd, count: usize) -> io::Result<Vec<u8>> {
    const CHUNK: usize = 64 << 10;
    let mut bytes = vec![];
    let mut chunk = vec![0; count.min(CHUNK)];
    while bytes.len() < count {
        let room = (count - bytes.len()).min(chunk.len());
        match read(from, chunk.get_mut(..room).unwrap_or_default()) {
            Ok(0) => break,
            Ok(got) => bytes.extend_from_slice(chunk.get(..got).unwrap_or_default()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};

    /// Returns what `connect` reads first of these bytes, and the rest.
    fn parted(bytes: &[u8]) -> (io::Result<First>, Vec<u8>) {
        let (mut reader, mut writer) = io::pipe().unwrap();
        writer.write_all(bytes).unwrap();
        drop(writer);
        let begun = first(&reader);
        let mut rest = vec![];
        reader.read_to_end(&mut rest).unwrap();
        (begun, rest)
    }

    fn order(args: &[&str]) -> Order {
        let args: Vec<_> = ["muleteer"].iter().chain(args).map(OsString::from).collect();
        Order::new("k".into(), &args, Output::default()).unwrap()
    }

    #[test]
    fn arguments_arrive_unchanged_and_the_rest_is_the_verbs_input() {
        let sent =
            order(&["send", "k3f9", "it's \"so\"\n$HOME `x` größe \\", "", "--", "--remote"]);
        let (begun, rest) = parted(&[&sent.encoded().unwrap()[..], b"piped"].concat());
        assert_eq!(begun.unwrap(), First::Order(sent));
        assert_eq!(rest, b"piped");
    }

    #[test]
    fn frames_of_the_protocol_are_relayed_from_their_first_byte() {
        for bytes in [&b"\0\0\0\x05hello"[..], b"", b"MU"] {
            let (begun, rest) = parted(bytes);
            let First::Relay(head) = begun.unwrap() else { panic!("{bytes:?}") };
            assert_eq!([head, rest].concat(), bytes);
        }
    }

    #[test]
    fn broken_order_is_an_error() {
        let whole = order(&["status"]).encoded().unwrap();
        assert!(parted(&whole[..whole.len() - 1]).0.is_err(), "cut");
        assert!(parted(b"MULE\xff\xff\xff\xff{}").0.is_err(), "too long");
        assert!(parted(b"MULE\0\0\0\x02[}").0.is_err(), "no JSON");
        assert!(parted(b"MULE\0").0.is_err(), "no length");
        assert!(parted(b"MULE\0\0\0\x07{\"v\":2}").0.is_err(), "another version");
    }
}
