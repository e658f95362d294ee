//! What the C library's allocator keeps of memory that nobody uses any more. There is one shim for
//! each agent, so a page that each of them keeps is a page for each agent.

#![allow(unsafe_code)]

/// Gives the kernel back all whole pages that are free. Does nothing where the C library has no way
/// to.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes the allocator's own locks, and touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives the kernel back what deeper calls than this one have left on the stack. Does nothing but
/// on Linux.
///
/// # Safety
/// Only on a process's first thread, whose stack nothing else lies near to: the kernel keeps a
/// megabyte free below it.
#[inline(never)]
pub unsafe fn give_back_stack() {
    #[cfg(target_os = "linux")]
    {
        /// Deeper than anything has called that was worth the while.
        const DEEPEST: usize = 256 << 10;
        let here = 0_u8;
        let page = rustix::param::page_size();
        // The page we are in, and one more: what is called from here, and a signal's handler, need
        // no more.
        let end = (&raw const here).addr() / page * page - page;
        // SAFETY: nobody has anything left to find below the stack's end; what was never used is
        // skipped with an error.
        unsafe {
            libc::madvise((end - DEEPEST) as *mut libc::c_void, DEEPEST, libc::MADV_DONTNEED);
        }
    }
}

/// Lets all threads share `count` arenas: each has free room of its own that the others cannot use.
/// To be called before there are threads. Does nothing where the C library knows no arenas.
pub fn share_arenas(count: u8) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets a number that is looked at when a thread allocates for the first time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, count.into());
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = count;
}
