//! The table of this process's open descriptors.

use rustix::process::{Resource, getrlimit};

/// Makes room for `count` descriptors at once, as far as the limit allows. To be called before
/// there are threads: with them, the kernel waits for all processors each time that the table grows
/// (Linux, `expand_fdtable`), some milliseconds.
pub fn make_room(count: u64) {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let highest = count.min(limit).saturating_sub(1);
    if let Ok(highest) = i32::try_from(highest) {
        // It is closed again; the table stays as it is.
        drop(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), highest));
    }
}
