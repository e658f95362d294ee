//! What developers, CI and the system tests share: where the checkout, its binaries and the pinned
//! agent CLIs are, and how they come to be there.
//!
//! - [`workspace`]: the checkout and its `target`.
//! - [`binaries`]: `muleteer` and `muleteer-shim` as the system tests want them.
//! - [`rotel`]: a real collector of traces, in a cache too.
//! - [`agents`]: the pinned agent CLIs, in a cache outside the checkout.
//!
//! Invariant: nothing here depends on the product's crates, so a product that does not compile can
//! still be built, linted and reported on.

// Developer tooling runs cargo, git and npm: it is one of the places where starting a process is
// the point (docs/architecture.md, "The crates").
#![allow(clippy::disallowed_methods)]

pub mod agents;
pub mod binaries;
pub mod rotel;
pub mod workspace;

/// What went wrong, in words for the person at the terminal.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
