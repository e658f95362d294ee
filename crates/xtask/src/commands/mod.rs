//! The commands of `cargo xtask`, one module each.

pub mod agents;
pub mod bench;
pub mod crash;
pub mod detect;
pub mod fuzz;
pub mod install;
pub mod lint;
pub mod platforms;
pub mod style;
pub mod systemd_test;
pub mod test;
