//! Assigns cores: servers run on one, and all processes that load them on the other, so that
//! neither takes time from the other.

use std::{fs, io};

use anyhow::{Context as _, Result, ensure};

/// The core of all servers.
pub(super) const SERVERS: usize = 0;
/// The core of the benchmark: publishers and subscribers.
pub(super) const CLIENTS: usize = 1;

/// While this value exists, processes that this thread starts run on the servers' core. When it is
/// dropped, the thread returns to the clients' core.
#[derive(Debug)]
pub(super) struct AmongServers(());

impl AmongServers {
    /// Moves this thread to the servers' core. Processes that it starts stay there.
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

/// Moves this thread to one core, and with it everything that it starts from now on.
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

/// Raises the limit of open files for this process and its children as far as the system allows.
/// Fails if that is not enough.
pub(super) fn allow_files(wanted: u64) -> Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the one struct that they are given.
    #[allow(unsafe_code, reason = "std knows no limits")]
    let is_raised = unsafe {
        let known = libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0;
        // Only root may raise the hard limit.
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

/// Bytes in the kernel's slabs, for the whole machine. They include the sockets at both ends.
pub(super) fn slab_bytes() -> Option<u64> {
    slab_of(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn slab_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("Slab:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// The load average of the last minute.
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
