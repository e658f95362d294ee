//! The table of this process's open descriptors.

use rustix::process::{Resource, getrlimit};

/// Makes room for `count` descriptors at once, as far as the limit allows. Call it before there are
/// threads: with threads, the kernel waits some milliseconds for all processors each time the table
/// grows (Linux, `expand_fdtable`).
pub fn make_room(count: u64) {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let highest = count.min(limit).saturating_sub(1);
    if let Ok(highest) = i32::try_from(highest) {
        // The descriptor is closed again; the table keeps its size.
        drop(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), highest));
    }
}
