//! How far a long command has got, for the person who waits at the terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

const BETWEEN: Duration = Duration::from_millis(200);

/// One line on standard error that changes; nothing unless that is a terminal.
#[derive(Debug)]
pub(super) struct Progress {
    is_seen: bool,
    shown_at: Option<Instant>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { is_seen: io::stderr().is_terminal(), shown_at: None }
    }

    pub(super) fn show(&mut self, text: impl FnOnce() -> String) {
        if !self.is_seen || self.shown_at.is_some_and(|at| at.elapsed() < BETWEEN) {
            return;
        }
        self.shown_at = Some(Instant::now());
        write!(io::stderr(), "\r{}\x1b[K", text()).ok();
    }

    /// The line goes: what comes next stands in its place.
    pub(super) fn clear(&mut self) {
        if self.shown_at.take().is_some() {
            write!(io::stderr(), "\r\x1b[K").ok();
        }
    }
}
