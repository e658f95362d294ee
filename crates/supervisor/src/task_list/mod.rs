//! The task-list harness: validations and recovery ([`steps`]), and runs of a list ([`run`]), which
//! the daemon hosts. The rules are in `model::task_list`, the files in `store::task_list`.

pub mod actor;
mod confine;
pub mod registry;
pub mod run;
pub mod serve;
mod session;
pub mod steps;
pub mod worker;
