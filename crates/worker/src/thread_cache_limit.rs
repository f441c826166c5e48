//! The memory limit of the thread caches of one worker.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The bytes that the thread caches of all sessions hold together, and their limit.
#[derive(Debug, Default)]
pub(crate) struct ThreadCacheLimit {
    max_bytes: usize,
    used_bytes: AtomicUsize,
}

impl ThreadCacheLimit {
    pub(crate) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, used_bytes: AtomicUsize::new(0) }
    }

    pub(crate) fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Adds to the bytes in use and returns their new number.
    pub(crate) fn take(&self, bytes: usize) -> usize {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    pub(crate) fn give_back(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
