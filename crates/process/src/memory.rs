//! What the C library's allocator keeps of memory that nobody uses any more. There is one shim for each agent,
//! so a page that each of them keeps is a page for each agent.

#![allow(unsafe_code)]

/// Gives the kernel back all whole pages that are free. Does nothing where the C library has no way to.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes the allocator's own locks, and touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets all threads share `count` arenas: each has free room of its own that the others cannot use. To be called
/// before there are threads. Does nothing where the C library knows no arenas.
pub fn share_arenas(count: u8) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets a number that is looked at when a thread allocates for the first time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, count.into());
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = count;
}
