//! The preparations of a start: the private directories, and why a daemon does not
//! start.

pub mod error;
pub mod private_dir;
