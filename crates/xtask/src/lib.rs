//! The part that developers, CI and the system tests share: the places of the checkout, its
//! binaries and the pinned agent CLIs, and the ways to build or install them.
//!
//! - [`workspace`]: the checkout and its `target`.
//! - [`binaries`]: `muleteer` and `muleteer-shim` as the system tests need them.
//! - [`module_graph`]: which module of a crate imports which.
//! - [`rotel`]: a real collector of traces, also in a cache.
//! - [`text_error`]: finds results whose error is a text.
//! - [`agents`]: the pinned agent CLIs, in a cache outside the checkout.
//!
//! Invariant: nothing here depends on the product's crates, so a product that does not compile can
//! still be built, linted and reported on.

// Developer tooling runs cargo, git and npm, so it is one of the places that must start processes
// (docs/architecture.md, "The crates").
#![allow(clippy::disallowed_methods)]

pub mod agents;
pub mod binaries;
pub mod module_graph;
pub mod python_mcp;
pub mod rotel;
pub mod text_error;
pub mod workspace;

/// An error with a message for the person at the terminal.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
