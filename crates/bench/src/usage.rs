//! Resource usage from `/proc`: processor time and resident memory of a process and its children.

use std::{
    fs,
    time::{Duration, Instant},
};

/// Unit of `/proc/*/stat`; the kernel's interface uses 100 on every machine.
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES: u64 = 4096;

/// Processor time of a process and all its children, living and reaped.
pub(super) fn cpu(pid: u32) -> Duration {
    let children = children_of(pid).into_iter().filter_map(stat).map(|stat| stat.own_ticks);
    let ticks = stat(pid).map_or(0, |stat| stat.own_ticks + stat.reaped_ticks) + children.sum::<u64>();
    Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND)
}

/// Resident bytes of a process.
pub(super) fn resident(pid: u32) -> u64 {
    stat(pid).map_or(0, |stat| stat.resident_pages * PAGE_BYTES)
}

/// Resident bytes of a process and its living children. Shared pages count for each process.
pub(super) fn resident_of_all(pid: u32) -> u64 {
    resident(pid) + children_of(pid).into_iter().map(resident).sum::<u64>()
}

/// Processor time of the whole machine.
pub(super) fn machine() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().skip(1).filter_map(|field| field.parse().ok()).collect();
    // The fields are user, nice, system, idle, iowait, irq, softirq, steal. Guest time is part of
    // user already.
    let busy =
        ticks.iter().take(8).enumerate().filter(|(at, _)| !matches!(at, 3 | 4)).map(|(_, ticks)| ticks);
    Duration::from_secs_f64(busy.sum::<u64>() as f64 / TICKS_PER_SECOND)
}

/// Processor time of this process alone.
fn own() -> Duration {
    let ticks = stat(std::process::id()).map_or(0, |stat| stat.own_ticks);
    Duration::from_secs_f64(ticks as f64 / TICKS_PER_SECOND)
}

struct Stat {
    parent: u32,
    own_ticks: u64,
    reaped_ticks: u64,
    resident_pages: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain blanks.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        parent: u32::try_from(number(1)?).ok()?,
        own_ticks: number(11)? + number(12)?,
        reaped_ticks: number(13)? + number(14)?,
        resident_pages: number(21)?,
    })
}

fn children_of(parent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == parent)).collect()
}

/// The processes of one measurement, and their usage at its start.
#[derive(Debug)]
pub(super) struct Meter {
    processes: Vec<(&'static str, u32, Duration)>,
    machine: Duration,
    own: Duration,
    begun: Instant,
}

/// The usage during a measurement.
#[derive(Debug, Clone)]
pub(super) struct Used {
    /// Processor time by the names given to [`Meter::start`].
    pub(super) processes: Vec<(&'static str, Duration)>,
    pub(super) own: Duration,
    /// Duration of the measurement.
    pub(super) seconds: f64,
    /// Load of other processes, in cores. It shows how much the machine was shared.
    pub(super) foreign_cores: f64,
}

impl Meter {
    pub(super) fn start(processes: &[(&'static str, u32)]) -> Self {
        Self {
            processes: processes.iter().map(|(name, pid)| (*name, *pid, cpu(*pid))).collect(),
            machine: machine(),
            own: own(),
            begun: Instant::now(),
        }
    }

    /// The usage since the start.
    pub(super) fn used(&self) -> Used {
        let since =
            |(name, pid, before): &(&'static str, u32, Duration)| (*name, cpu(*pid).saturating_sub(*before));
        let processes: Vec<_> = self.processes.iter().map(since).collect();
        let own = own().saturating_sub(self.own);
        let watched: Duration = processes.iter().map(|(_, used)| *used).sum();
        let foreign = machine().saturating_sub(self.machine).saturating_sub(own + watched);
        let seconds = self.begun.elapsed().as_secs_f64();
        Used { processes, own, seconds, foreign_cores: foreign.as_secs_f64() / seconds }
    }
}
