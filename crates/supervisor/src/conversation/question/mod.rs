//! Questions: they are asked and answered ([`serve`]), what follows by itself is carried out
//! ([`driver`]), and clients see them ([`view`]). The rules are in `model::question`.

pub mod driver;
pub mod serve;
pub mod view;
pub mod waiters;
