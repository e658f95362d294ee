//! Threads: they are opened and written to ([`serve`]), their messages are delivered (`deliver`,
//! [`actor`]), clients see them ([`view`]) or watch them live ([`follow`]), and other systems take
//! part in them ([`adapter`]). The rules are in `model::conversation`.

pub mod actor;
pub mod adapter;
mod deliver;
mod files;
pub mod follow;
mod output;
pub mod serve;
pub mod view;

pub(crate) use deliver::new_id;
