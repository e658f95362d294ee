//! Questions: they are asked and answered ([`serve`]), what follows by itself is carried out
//! ([`driver`]), the threads that show the question of a run are chosen ([`places`]) and told of
//! its end (`run_end`), and clients see them ([`view`]). Calls of MCP tools wait for answers
//! ([`waits`]). The rules are in `model::question`.

pub mod approved;
pub(in crate::conversation) mod confirmed;
mod copies;
pub(crate) mod credentials;
pub mod driver;
pub(crate) mod healing;
pub mod places;
pub(crate) mod run_end;
pub mod serve;
pub(in crate::conversation) mod sign_off;
pub mod view;
pub mod waiters;
pub mod waits;
