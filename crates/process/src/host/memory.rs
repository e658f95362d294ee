//! Returns unused memory that the C library's allocator keeps. Each agent has a shim, so a page
//! that a shim keeps is a page for each agent.

#![allow(unsafe_code)]

/// Returns all whole free pages to the kernel. Does nothing if the C library cannot do that.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes the allocator's own locks, and touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns the stack pages that deeper calls have used to the kernel. Does nothing except on Linux.
///
/// # Safety
/// Only on a process's first thread, because nothing else is near its stack: the kernel keeps a
/// megabyte free below it.
#[inline(never)]
pub unsafe fn give_back_stack() {
    #[cfg(target_os = "linux")]
    {
        /// Deeper than any call whose stack is worth returning.
        const DEEPEST: usize = 256 << 10;
        let here = 0_u8;
        let page = rustix::param::page_size();
        // Keeps the current page and one more, which is enough for the calls from here and a
        // signal's handler.
        let end = (&raw const here).addr() / page * page - page;
        // SAFETY: nothing below the stack's end is in use. Pages that were never used give an
        // error, which is ignored.
        unsafe {
            libc::madvise((end - DEEPEST) as *mut libc::c_void, DEEPEST, libc::MADV_DONTNEED);
        }
    }
}

/// Makes all threads share `count` arenas, because free memory of one arena is useless to the
/// others. Call it before there are threads. Does nothing if the C library has no arenas.
pub fn share_arenas(count: u8) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it sets a number that the allocator reads when a thread allocates for the first time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, count.into());
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = count;
}
