//! Measures the path of a chunk beside its limits and prints one table. `cargo xtask bench chunks` runs it.
#![allow(unsafe_code, reason = "a global allocator that counts has no safe form")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    process::ExitCode,
};

use anyhow::Result;
use bench::{self, ChunkBenchOptions};
use clap::Parser;

/// The system's allocator, which counts what each thread asks for.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is ending has no counter any more.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call is handed on as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; what we gave out came from the system allocator.
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
