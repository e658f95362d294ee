//! Dispatches from the request to the shim: who runs, with which program, under which limits.

pub mod acp_program;
pub(crate) mod answer;
pub(crate) mod backend_choice;
pub mod confine;
pub(crate) mod control;
pub mod error;
pub mod launch;
pub mod pool;
pub(crate) mod prompt_files;
pub mod request;
pub(crate) mod saved;
pub mod shim;
pub mod view;
