//! The shim's socket: one folder per version. [`v1`] is frozen once released.
//!
//! A shim lives as long as its agent, which may outlive the daemon that started it, and the binary
//! of that daemon. So every later version must still be able to begin with v1's `Hello`, and falls
//! back to the best version that both ends know.

pub mod v1;
