//! The clones of agents: their content, the way home of the work, and their removal.

mod clean;
mod foreign_owner;
mod large_files;
mod work_home;
