//! Processes of the operating system: identity, groups, signals, locks, clocks, the trampoline that
//! starts an agent, and the fault points at which tests crash us.
//!
//! Invariants: only this crate and `shim` have unsafe code. Nothing here is async. No signal goes
//! to a raw pid if the kernel offers a handle that cannot be reused (a pidfd, or a process group
//! whose leader we have not reaped). Abilities that only Linux has are behind [`host::Host`], with
//! a portable fallback that compiles everywhere.

#[cfg(windows)]
compile_error!(
    "Muleteer does not support Windows: it ends an agent with all its processes by process groups, \
     signals and file locks of Unix. Build it in WSL 2."
);

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
