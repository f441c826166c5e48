//! Which core does what: servers run on one, everything that loads them on the other, so that neither takes the other's time.

use std::{fs, io};

use anyhow::{Context as _, Result, ensure};

/// All servers.
pub(super) const SERVERS: usize = 0;
/// The bench: publishers and viewers.
pub(super) const CLIENTS: usize = 1;

/// While it lives, what this thread starts belongs to the servers' core; afterwards the thread is a client again.
#[derive(Debug)]
pub(super) struct AmongServers(());

impl AmongServers {
    /// Moves this thread to the servers' core: processes that it starts stay there.
    pub(super) fn enter() -> Result<Self> {
        move_to(SERVERS)?;
        Ok(Self(()))
    }
}

impl Drop for AmongServers {
    fn drop(&mut self) {
        if let Err(error) = move_to(CLIENTS) {
            eprintln!("the bench stays on the servers' core: {error:#}");
        }
    }
}

/// Moves this thread, and all that it starts from now on, to one core.
pub(super) fn move_to(core: usize) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    pin(core).with_context(|| {
        format!("this needs core {core} for itself, and may use {cores}: the bench wants two cores, on Linux")
    })
}

#[cfg(target_os = "linux")]
fn pin(core: usize) -> io::Result<()> {
    // SAFETY: the set is plain memory, and the kernel only reads it; 0 is this thread.
    #[allow(unsafe_code, reason = "std knows no affinity")]
    let pinned = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set)
    };
    if pinned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
fn pin(_core: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Lets this process and those that it starts have as many files open as the system allows, and returns whether that is enough.
pub(super) fn allow_files(wanted: u64) -> Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the one struct that they are given.
    #[allow(unsafe_code, reason = "std knows no limits")]
    let is_raised = unsafe {
        let known = libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0;
        // Only root may allow more than is allowed.
        let all = libc::rlimit { rlim_cur: wanted, rlim_max: wanted };
        if known && limit.rlim_max < wanted && libc::setrlimit(libc::RLIMIT_NOFILE, &raw const all) == 0 {
            limit = all;
        }
        limit.rlim_cur = limit.rlim_max;
        known && libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0
    };
    ensure!(is_raised, "the limit of open files: {}", io::Error::last_os_error());
    ensure!(
        limit.rlim_max >= wanted,
        "a process may have {} files open here, and {wanted} are needed: raise `ulimit -Hn`, or ask for fewer \
         connections",
        limit.rlim_max
    );
    Ok(())
}

/// Bytes that the kernel has in its slabs, of the whole machine: sockets are there, those of both ends.
pub(super) fn slab_bytes() -> Option<u64> {
    slab_of(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn slab_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Slab:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// How many processes wanted a core on average in the last minute.
pub(super) fn load_average() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_read_in_bytes() {
        assert_eq!(
            slab_of("MemFree: 1 kB\nSlab:              201 kB\nSReclaimable: 9 kB\n"),
            Some(201 << 10)
        );
        assert_eq!(slab_of("MemFree: 1 kB\n"), None);
    }
}
