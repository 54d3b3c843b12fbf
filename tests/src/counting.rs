//! An allocator that counts what one thread asks of it.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicI32, AtomicU64, Ordering},
};

/// The system's allocator; a test binary makes it its own.
pub struct Counting;

static WATCHED_THREAD: AtomicI32 = AtomicI32::new(0);
static CALLS: AtomicU64 = AtomicU64::new(0);

/// Counts the calls of this thread from now on, and of no other.
pub fn watch(tid: i32) {
    WATCHED_THREAD.store(tid, Ordering::Relaxed);
}

/// Calls of all threads that were watched so far.
pub fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

fn note() {
    let watched = WATCHED_THREAD.load(Ordering::Relaxed);
    // SAFETY: no preconditions.
    if watched != 0 && watched == unsafe { libc::gettid() } {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: everything is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}
