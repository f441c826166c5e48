//! Records SIGINT, SIGTERM and SIGHUP, so that services and their folders are cleaned up.
#![allow(unsafe_code, reason = "signal handlers have no safe form in std")]

use std::{
    process::Child,
    sync::atomic::{AtomicI32, Ordering},
};

/// A bit for each signal.
static RECEIVED: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    RECEIVED.fetch_or(1 << signal, Ordering::SeqCst);
}

/// From now on these signals are only recorded.
pub(crate) fn install() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler: extern "C" fn(libc::c_int) = note;
        // SAFETY: the handler only writes an atomic, which is async-signal-safe.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
    // std ignores SIGPIPE and then panics in `println!`. `cargo xtask doctor | head` should only
    // end.
    // SAFETY: the default action needs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// True if any of them was received.
pub(crate) fn received() -> bool {
    RECEIVED.load(Ordering::SeqCst) != 0
}

/// True if a signal other than SIGINT was received; the terminal sends SIGINT to our children too.
pub(crate) fn terminated() -> bool {
    RECEIVED.load(Ordering::SeqCst) & !(1 << libc::SIGINT) != 0
}

/// Sends SIGTERM to a child.
pub(crate) fn terminate(child: &Child) {
    if let Ok(pid) = libc::pid_t::try_from(child.id()) {
        // SAFETY: kill has no memory effects, and the child is ours and not reaped yet.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
}
