//! OS processes: identity, groups, signals, locks, clocks, the trampoline an agent starts from, and
//! the points at which tests crash us.
//!
//! Invariants: this crate and `shim` are the only ones with unsafe code; nothing here is async;
//! no signal goes to a raw pid where the kernel offers something that cannot be reused (a pidfd, a
//! process group whose leader we have not reaped). What only Linux can do sits behind
//! [`host::Host`], with a portable fallback that compiles everywhere.

pub mod bounded;
pub mod cgroup;
pub mod clock;
pub mod command;
pub mod crash;
pub mod fault;
pub mod group;
pub mod host;
pub mod identity;
pub mod lock;
pub mod sandbox;
pub mod signals;
pub mod spawn;
