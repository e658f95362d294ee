//! Threads: they are opened and written to ([`serve`]), their messages are delivered (`deliver`,
//! [`actor`]), and clients see them ([`view`]) or watch them live ([`follow`]). The rules are in `model::conversation`.

pub mod actor;
mod deliver;
mod files;
pub mod follow;
mod output;
pub mod serve;
pub mod view;
