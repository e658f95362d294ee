//! The task-list harness at work: validations, recovery ([`steps`]), and runs of a list ([`run`]),
//! which the daemon hosts. The rules are in `model::tasklist`, the files in `store::tasklist`.

pub mod actor;
pub mod run;
pub mod serve;
pub mod steps;
pub mod worker;
