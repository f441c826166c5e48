//! Measures the path of a chunk together with its limits and prints one table. `cargo xtask bench
//! chunks` runs it.
#![allow(unsafe_code, reason = "a global allocator that counts has no safe form")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    process::ExitCode,
};

use anyhow::Result;
use bench::{self, ChunkBenchOptions};
use clap::Parser;

/// The allocator of the system, which also counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending no longer has a counter.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is forwarded unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's guarantees are those that the system allocator needs.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the memory was allocated by the system allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let options = ChunkBenchOptions::parse();
    let is_met = bench::run(&options, || ALLOCATIONS.with(Cell::get)).await?;
    Ok(if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
