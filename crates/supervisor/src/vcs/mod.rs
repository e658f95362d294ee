//! Everything that runs git: on a person's working directory, on clones of agents, and for repairs.

pub(crate) mod git_repair;
pub mod untrusted_path;
pub mod user_repo;
pub mod worktree;
