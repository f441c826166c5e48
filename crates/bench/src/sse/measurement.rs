//! The measurements that are made on every server.

use std::time::Duration;

use anyhow::Result;

use super::{load::SteadyLoad, measure, round::SseRound, servers::Servers, target::ServerKind};

/// One measurement, which is the same for every server.
#[derive(Debug, Clone, Copy)]
pub(super) enum Measurement {
    Fanout(SteadyLoad),
    Threads(SteadyLoad),
    Storm { threads: usize, viewers: usize },
    Idle { threads: usize, connections: usize, duration: Duration },
    Slow(SteadyLoad),
}

impl Measurement {
    pub(super) fn part(self) -> char {
        match self {
            Self::Fanout(_) => '1',
            Self::Threads(_) => '2',
            Self::Storm { .. } => '3',
            Self::Idle { .. } => '4',
            Self::Slow(_) => '5',
        }
    }

    pub(super) fn name(self) -> String {
        match self {
            Self::Fanout(SteadyLoad { viewers, burst: 1, .. }) => {
                format!("1 thread, {viewers} viewers, single events")
            }
            Self::Fanout(SteadyLoad { viewers, burst, .. }) => {
                format!("1 thread, {viewers} viewers, bursts of {burst}")
            }
            Self::Threads(SteadyLoad { threads, viewers, rate, .. }) => {
                format!("{threads} threads, {viewers} viewers, {rate:.0} events/s each")
            }
            Self::Storm { threads: 1, viewers } => format!("storm of {viewers} viewers of 1 thread"),
            Self::Storm { threads, viewers } => format!("storm of {viewers} viewers of {threads} threads"),
            Self::Idle { threads, connections, .. } => {
                format!("{connections} idle connections, {threads} threads")
            }
            Self::Slow(SteadyLoad { viewers, slow_every: None, .. }) => format!("{viewers} viewers"),
            Self::Slow(SteadyLoad { viewers, slow_every: Some(every), .. }) => {
                format!("{viewers} viewers, {} read 1 KB/s", viewers / every)
            }
        }
    }

    pub(super) async fn round(self, servers: &mut Servers, kind: ServerKind) -> Result<SseRound> {
        match self {
            Self::Fanout(load) | Self::Threads(load) | Self::Slow(load) => {
                measure::stream(servers, kind, load).await
            }
            Self::Storm { threads, viewers } => measure::storm(servers, kind, threads, viewers).await,
            Self::Idle { threads, connections, duration } => {
                measure::idle(servers, kind, threads, connections, duration).await
            }
        }
    }
}

/// A server with one measurement, and its rounds.
#[derive(Debug)]
pub(super) struct ServerRounds {
    pub(super) measurement: Measurement,
    pub(super) kind: ServerKind,
    pub(super) rounds: Vec<SseRound>,
    /// The error, after which the server is not measured again.
    pub(super) failure: Option<String>,
}
