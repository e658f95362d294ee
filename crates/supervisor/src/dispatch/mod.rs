//! Dispatches from the request to the shim: who runs, with which program, under which limits.
//!
//! - `control`: creates, prompts, interrupts, kills and awaits dispatches; `answer`: answers an
//!   agent, and changes its model. Every caller goes through these two;
//! - [`request`]: checks a request; `saved`, `prompt_files`: the private files of a dispatch;
//! - [`pool`]: admission; [`launch`]: the start of an agent; [`confine`]: the sandbox of a run's
//!   agents; [`shim`]: the shims.

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
