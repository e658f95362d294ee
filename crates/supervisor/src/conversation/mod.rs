//! Threads: they are opened and written to ([`serve`]), their messages are delivered (`deliver`,
//! [`actor`]), and clients see them ([`view`]). The rules are in `model::conversation`.

pub mod actor;
mod deliver;
mod files;
pub mod serve;
pub mod view;
