//! The wire types: everything that crosses a process boundary, without any decisions.
//!
//! - [`v1`]: the daemon's socket (length-delimited rmp-serde, named encoding). Frozen once
//!   released. [`ErrorCode`]: every error code, with its exit code and meaning.
//! - [`codec`]: framing with a size limit and deadlines, for both ends; [`client`]: the end that
//!   every verb, adapter and agent uses; [`socket`]: the local socket between them.
//! - [`shim`]: the shim's socket: a fixed little-endian layout, so that the shim needs no serde on
//!   its hot path and every daemon can talk to an old shim.
//!
//! Invariant: no type here depends on `model`; strings and numbers only. Crates that need the types
//! alone leave out the feature `socket`, and with it tokio.

#[cfg(feature = "socket")]
pub mod client;
#[cfg(feature = "socket")]
pub mod codec;
pub mod error_code;
pub mod shim;
#[cfg(feature = "socket")]
pub mod socket;
pub mod v1;

pub use error_code::{ErrorCode, Exit};
