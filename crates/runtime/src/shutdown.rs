//! Shutdown of a process: a signal starts the drain.

use std::io;
use std::sync::{Arc, OnceLock};

use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::spawn_named;

/// The reason why a process stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownReason {
    /// SIGTERM, sent by an orchestrator or an operator.
    Sigterm,
    /// SIGINT, for example from Ctrl-C.
    Sigint,
    /// The process stops itself, because an indispensable part has ended.
    Internal,
}

impl ShutdownReason {
    /// The name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sigterm => "SIGTERM",
            Self::Sigint => "SIGINT",
            Self::Internal => "internal",
        }
    }

    /// The exit code that shells expect if a process ends for this reason before it has drained.
    fn exit_code(self) -> i32 {
        match self {
            Self::Sigterm => 143,
            Self::Sigint => 130,
            Self::Internal => 1,
        }
    }
}

/// A stop signal for everything in the process. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    token: CancellationToken,
    reason: Arc<OnceLock<ShutdownReason>>,
}

impl Shutdown {
    /// Listens for SIGTERM and SIGINT: the first cancels the token, the second ends the process at
    /// once.
    ///
    /// # Errors
    /// The signal handlers could not be installed.
    pub fn on_signals() -> io::Result<Self> {
        let shutdown = Self::default();
        let (sigterm, sigint) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        spawn_named("signals", shutdown.clone().listen(sigterm, sigint));
        Ok(shutdown)
    }

    /// A token that is cancelled when the process must drain.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Cancels the token; the first reason is kept.
    pub fn trigger(&self, reason: ShutdownReason) {
        if self.reason.set(reason).is_ok() {
            tracing::info!(reason = reason.name(), "shutting down");
        }
        self.token.cancel();
    }

    /// The reason, if the stop was triggered.
    pub fn reason(&self) -> Option<ShutdownReason> {
        self.reason.get().copied()
    }

    async fn listen(self, mut sigterm: Signals, mut sigint: Signals) {
        self.trigger(next_signal(&mut sigterm, &mut sigint).await);
        let second = next_signal(&mut sigterm, &mut sigint).await;
        tracing::warn!(signal = second.name(), "second signal: exiting without a drain");
        std::process::exit(second.exit_code());
    }
}

async fn next_signal(sigterm: &mut Signals, sigint: &mut Signals) -> ShutdownReason {
    tokio::select! {
        _ = sigterm.recv() => ShutdownReason::Sigterm,
        _ = sigint.recv() => ShutdownReason::Sigint,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_cause_stays() {
        let shutdown = Shutdown::default();
        assert_eq!(shutdown.reason(), None);
        shutdown.trigger(ShutdownReason::Internal);
        shutdown.clone().trigger(ShutdownReason::Sigint);
        shutdown.token().cancelled().await;
        assert_eq!(shutdown.reason(), Some(ShutdownReason::Internal));
    }

    #[tokio::test]
    async fn sigterm_trips_the_token() {
        let shutdown = Shutdown::on_signals().expect("handlers");
        let pid = std::process::id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().expect("kill").success());
        shutdown.token().cancelled().await;
        assert_eq!(shutdown.reason(), Some(ShutdownReason::Sigterm));
    }
}
