//! The operating system around the daemon: its signals, and the service manager.

pub mod sd_notify;
pub mod signals;
