//! The shim's socket: one folder per version, of which [`v1`] is frozen once released.
//!
//! A shim lives as long as its agent, which may be longer than the daemon that started it, and
//! longer than the binary that daemon came from. So every later version must still be able to
//! open with v1's `Hello`, and falls back to the best version both ends know.

pub mod v1;
