//! The wire: what crosses a process boundary, and nothing that decides anything.
//!
//! - [`v1`]: the daemon's socket (length-delimited rmp-serde, named encoding). Frozen once
//!   released.
//! - [`codec`]: framing with a size limit and deadlines, shared by both ends; [`client`]: the end
//!   that every verb, adapter and agent uses; [`socket`]: the local socket between them.
//! - [`shim`]: the shim's socket: a fixed little-endian layout, so that the shim needs no serde
//!   on its hot path and an old shim can always be spoken to.
//!
//! Invariant: no type here depends on `model`; strings and numbers only.

pub mod client;
pub mod codec;
pub mod shim;
pub mod socket;
pub mod v1;
