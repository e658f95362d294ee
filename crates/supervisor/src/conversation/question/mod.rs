//! Questions: they are asked and answered ([`serve`]), what follows by itself is carried out
//! ([`driver`]), and clients see them ([`view`]). Calls of MCP tools wait for answers ([`waits`]).
//! The rules are in `model::question`.

pub mod driver;
pub mod serve;
pub mod view;
pub mod waiters;
pub mod waits;
