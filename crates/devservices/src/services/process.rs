//! Child processes that end with this process, and the signals sent to them.
#![allow(unsafe_code, reason = "prctl, kill and pre_exec have no safe form in std")]

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
    sync::{OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};

/// A command, the signal for our own death, and the channel for the result.
type SpawnRequest = (Command, i32, mpsc::Sender<io::Result<Child>>);

/// Starts a child in its own process group (so that it gets no Ctrl-C of the terminal). It gets the
/// signal `on_our_death` when this process dies.
///
/// Linux sends that signal when the *thread* that forked ends, not the process. So one thread,
/// which never ends, does all the forking: otherwise the end of a test's thread, or of one of a
/// blocking pool, would end its servers.
pub(super) fn spawn(command: Command, on_our_death: i32) -> Result<Child> {
    static SPAWNER: OnceLock<mpsc::Sender<SpawnRequest>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, requests) = mpsc::channel::<SpawnRequest>();
        thread::spawn(move || {
            for (command, signal, answer) in requests {
                let _ = answer.send(spawn_here(command, signal));
            }
        });
        sender
    });
    let program = command.get_program().to_string_lossy().into_owned();
    let (answer, answered) = mpsc::channel();
    spawner.send((command, on_our_death, answer)).map_err(|_| anyhow!("the spawning thread is gone"))?;
    answered.recv()?.with_context(|| format!("starting {program}"))
}

fn spawn_here(mut command: Command, on_our_death: i32) -> io::Result<Child> {
    command.process_group(0);
    #[cfg(target_os = "linux")]
    {
        let us = std::process::id();
        // SAFETY: the closure only makes async-signal-safe system calls and allocates nothing.
        unsafe {
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, on_our_death) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // We may have died before prctl took effect: then no signal would reach the child.
                match u32::try_from(libc::getppid()) {
                    Ok(parent) if parent == us => Ok(()),
                    _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
                }
            });
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = on_our_death;
    command.spawn()
}

/// Sends a signal; a process that no longer exists is not an error.
pub(super) fn signal(pid: u32, signal: i32) {
    if let Ok(pid) = libc::pid_t::try_from(pid) {
        // SAFETY: kill has no memory effects; pid is positive, so it never addresses a group.
        unsafe { libc::kill(pid, signal) };
    }
}

/// Waits until the child has ended; `false` on timeout.
pub(super) fn wait_for_end(child: &mut Child, limit: Duration) -> bool {
    wait_until(limit, || child.try_wait().is_ok_and(|status| status.is_some()))
}

/// Polls until `done` returns true; `false` on timeout.
pub(super) fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    loop {
        if done() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// The direct children of a process that are not dead, from the columns of `ps` where there is no
/// `/proc`.
pub(super) fn children_of(parent: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return children_by_ps(parent);
    };
    let mut children: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid| stat(pid).is_some_and(|(state, ppid)| ppid == parent && state != 'Z'))
        .collect();
    children.sort_unstable();
    children
}

fn children_by_ps(parent: u32) -> Vec<u32> {
    let Ok(output) = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output() else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| {
            let mut columns = line.split_whitespace().map(str::parse::<u32>);
            Some((columns.next()?.ok()?, columns.next()?.ok()?))
        })
        .filter_map(|(pid, ppid)| (ppid == parent).then_some(pid))
        .collect()
}

/// True if the process is gone, or is a zombie that only waits for its parent.
pub(super) fn is_dead(pid: u32) -> bool {
    match cfg!(target_os = "linux") {
        true => stat(pid).is_none_or(|(state, _)| state == 'Z'),
        // SAFETY: signal 0 only asks whether the process exists.
        false => libc::pid_t::try_from(pid).is_ok_and(|pid| unsafe { libc::kill(pid, 0) } != 0),
    }
}

/// State letter and parent from `/proc/<pid>/stat`. The name in parentheses before them may contain
/// any characters.
fn stat(pid: u32) -> Option<(char, u32)> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = line.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// The last lines of a log, for an error message.
pub(super) fn log_tail(log: &std::path::Path) -> String {
    let text =
        std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(8)..].join("\n")
}
