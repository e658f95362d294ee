//! The subtree of one dispatch: `journal` and `life`, rest-for-one in this order. The life has the
//! link to the shim and the monitor.

pub mod adopt;
pub mod assembler;
mod fetch;
pub mod journal;
pub mod life;
pub mod link;
pub mod monitor;
pub mod spool_decoder;
mod transcript_probe;
