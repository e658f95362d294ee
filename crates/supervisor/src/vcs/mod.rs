//! Everything that runs git: a person's working directory, clones of agents, repairs.

pub(crate) mod git_repair;
pub mod untrusted_path;
pub mod user_repo;
pub mod worktree;
