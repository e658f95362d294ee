//! Threads: they are opened and written to ([`serve`]), their messages are delivered (`deliver`,
//! [`actor`]), their commands are carried out (`commands`), clients see them ([`view`]; messages
//! that left the memory: [`older`]) or watch them live ([`follow`]), and other systems take part in
//! them ([`adapter`]). Schedules write to them at configured times ([`schedule`]), runs tell their
//! ends in them (`question::run_end`), and meetings are held in them ([`meeting`]). The rules are
//! in `model::conversation`.

pub mod actor;
pub mod adapter;
pub(crate) mod commands;
mod deliver;
pub(crate) mod files;
pub mod follow;
pub mod meeting;
pub mod older;
pub mod question;
pub(crate) mod rights;
pub mod schedule;
pub mod serve;
pub mod view;

pub(crate) use deliver::new_id;
pub(crate) use files::ATTACHED;
