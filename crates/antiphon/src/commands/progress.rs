//! Shows the progress of a long command at the terminal.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

const BETWEEN: Duration = Duration::from_millis(200);

/// A line on standard error that is updated in place; nothing is shown if standard error is not a
/// terminal.
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

    /// Removes the line; the next output takes its place.
    pub(super) fn clear(&mut self) {
        if self.shown_at.take().is_some() {
            write!(io::stderr(), "\r\x1b[K").ok();
        }
    }
}
