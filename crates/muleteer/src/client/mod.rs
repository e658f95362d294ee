//! The client of the daemon, and its work without a daemon: connections, files, live views.

pub mod connect;
pub mod env_pass;
pub mod file_watch;
pub mod history;
pub mod interrupt;
pub mod live_fleet;
pub mod live_run;
pub mod offline;
pub mod on_demand;
pub mod run_files;
pub mod spool_lines;
pub mod verb_span;
pub mod watch_report;
