//! Whole situations that tests set up: an agent on a scripted model, a spec run, a task list.

pub mod play;
pub mod scene;
pub mod spec_stage;
pub mod talk;
pub mod tally;
pub mod task_list;
