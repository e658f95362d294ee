//! Everything that runs git: in a person's working directory, for clones of agents, and for
//! repairs.
//!
//! - [`command`]: the git commands, hardened, and their runs with limits;
//! - [`user_repo`]: a person's working directory, and the clones of task-list workers;
//! - [`worktree`]: the clones of dispatches, and how their work comes home;
//! - [`spec_run`]: the repositories of a spec run, and how its result comes home;
//! - [`git_files`], [`reflog`], [`untrusted_path`]: a git directory read as plain files;
//! - [`git_repair`]: damage that a power cut leaves;
//! - `partial_clone`: repositories that lack objects;
//! - `lfs`: files that a person keeps with git-lfs;
//! - [`error`]: the errors of all these.
//!
//! Callers pass paths and plain values. This crate knows no actor and no request.

pub mod command;
pub mod error;
pub mod git_files;
pub mod git_repair;
mod lfs;
mod partial_clone;
pub mod reflog;
pub mod spec_run;
pub mod untrusted_path;
pub mod user_repo;
pub mod worktree;
