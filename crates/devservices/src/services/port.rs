//! A TCP port on 127.0.0.1 that stays ours while a server on it is down.

use std::{
    fs::{self, File},
    io,
    net::TcpListener,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result, bail};

/// Below the range that systems use for outgoing connections. In that range, a client that keeps
/// reconnecting to a killed server's port will one day connect to itself and hold the port.
const FIRST: u16 = 12_000;
const COUNT: u16 = 16_000;

/// A port reserved by a file lock among the processes of this machine that use this type.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// Finds a port that is neither listened on nor reserved.
    pub fn reserve() -> Result<Port> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dir = lock_dir()?;
        // Processes start at different ports, so that test processes rarely collide.
        let start = std::process::id().wrapping_mul(101);
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let offset = start.wrapping_add(step) % u32::from(COUNT);
            let number = FIRST + u16::try_from(offset)?;
            let lock = File::create(dir.join(number.to_string()))?;
            if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Ok(Port { number, _lock: lock });
            }
        }
        bail!("no free port between {FIRST} and {}", FIRST + COUNT)
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}

fn lock_dir() -> Result<PathBuf> {
    // SAFETY: geteuid has no preconditions and cannot fail.
    #[allow(unsafe_code, reason = "std has no geteuid")]
    let user = unsafe { libc::geteuid() };
    let dir = std::env::temp_dir().join(format!("antiphon-ports-{user}"));
    match fs::create_dir(&dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(error).with_context(|| format!("creating {}", dir.display()))
        }
        _ => Ok(dir),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_differ_and_are_free() {
        let ports: Vec<Port> = (0..20).map(|_| Port::reserve().unwrap()).collect();
        let mut numbers: Vec<u16> = ports.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 20);
        TcpListener::bind(("127.0.0.1", numbers[0])).unwrap();
    }
}
