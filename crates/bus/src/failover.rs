//! Leaves a server that is cut off from the rest of its cluster.
//!
//! The connections to such a server stay up and it answers pings, so no client library leaves it.
//! But no stream can be written or read there, because the majority is on the other side.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_nats::jetstream::context::ContextBuilder;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use wire::subject;

use crate::config::REQUEST_TIMEOUT;
use crate::connection::{Bus, ConnectionHandle};
use crate::error::BusError;
use crate::stream::is_led;

/// Interval of checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of checks for a stream with one replica. More replicas may be added while the process
/// runs.
const SINGLE_REPLICA_INTERVAL: Duration = Duration::from_secs(60);
/// How long a stream may be without a leader: longer than most elections take.
const LEADERLESS_LIMIT: Duration = Duration::from_secs(10);
/// The first and the longest pause after a change of server. Pauses are needed in case no part of
/// the cluster has a majority.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Measures how long the server of one connection has known no leader.
#[derive(Debug)]
struct LeaderTimeout {
    /// The start of the timeout, which may be in the future.
    from: Instant,
    /// The pause that is added after the next change.
    pause: Duration,
}

impl LeaderTimeout {
    fn new() -> Self {
        Self { from: Instant::now(), pause: FIRST_PAUSE }
    }

    /// Restarts the timeout. Called while the state is unknown.
    fn restart(&mut self) {
        self.from = self.from.max(Instant::now());
    }

    /// True if the timeout has passed, so that the connection must go to another server.
    fn has_passed(&mut self) -> bool {
        let has_passed = self.from.elapsed() >= LEADERLESS_LIMIT;
        if has_passed {
            self.from = Instant::now() + self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        has_passed
    }
}

impl Bus {
    /// Moves a connection to another server of the cluster whenever its own server has known no
    /// leader for ten seconds. The leader is that of the stream of turn requests. The connections
    /// of a process may be at different servers.
    ///
    /// Never returns. Does nothing if that stream has one replica or there is no other server.
    pub async fn leave_isolated_servers(self) {
        let (mut is_replicated, mut timeouts) = (false, HashMap::new());
        loop {
            let connections = self.connections();
            timeouts.retain(|role, _| connections.iter().any(|(open, _)| open == role));
            let found = join_all(connections.iter().map(|(_, connection)| leadership(connection))).await;
            let answered = || found.iter().flatten();
            // A stream that has never answered may have no replicas on other servers.
            if answered().next().is_some() {
                is_replicated = answered().any(|leadership| leadership.is_replicated);
            }
            // If a server answers one connection, it is good for the other connections too. These
            // may be busy and get their answers late.
            let led: HashSet<String> = (connections.iter().zip(&found))
                .filter(|(_, found)| found.as_ref().is_ok_and(|leadership| leadership.is_led))
                .map(|((_, connection), _)| connection.client.server_info().server_id)
                .collect();
            for (role, connection) in &connections {
                let leader_timeout = timeouts.entry(*role).or_insert_with(LeaderTimeout::new);
                if !is_replicated || led.contains(&connection.client.server_info().server_id) {
                    *leader_timeout = LeaderTimeout::new();
                } else if !connection.is_connected() {
                    leader_timeout.restart();
                } else if leader_timeout.has_passed() {
                    tracing::warn!(
                        connection = role,
                        "this NATS server knows no leader of the streams: changing to another one"
                    );
                    crate::metrics::server_changed();
                    // This fails after the connection's task has ended; the connection is then
                    // opened again. If the queue is full, the next check tries again.
                    let _ = timeout(REQUEST_TIMEOUT, connection.client.force_reconnect()).await;
                }
            }
            let is_single = answered().next().is_some() && !is_replicated;
            sleep(if is_single { SINGLE_REPLICA_INTERVAL } else { CHECK_INTERVAL }).await;
        }
    }
}

/// The report of a server about the stream of turn requests.
#[derive(Debug)]
struct Leadership {
    is_replicated: bool,
    is_led: bool,
}

async fn leadership(connection: &ConnectionHandle) -> Result<Leadership, BusError> {
    if !connection.is_connected() {
        return Err(BusError::Away);
    }
    let api = ContextBuilder::new().timeout(REQUEST_TIMEOUT).build(connection.client.clone());
    let asking = async {
        let stream = api.get_stream_no_info(subject::WORK_STREAM).await;
        Ok(stream.map_err(|error| BusError::Unexpected(error.to_string()))?.get_info().await?)
    };
    // The timeout of the request does not cover waiting for room in the client's queue.
    let info = timeout(REQUEST_TIMEOUT, asking).await;
    let info = info.unwrap_or(Err(BusError::Timeout("the leader of the stream of turn requests")))?;
    Ok(Leadership { is_replicated: info.config.num_replicas > 1, is_led: is_led(&info) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_is_left_after_ten_seconds_and_later_more_slowly() {
        let mut leader_timeout = LeaderTimeout::new();
        let (began, mut left) = (Instant::now(), Vec::new());
        for second in 0..120 {
            if second == 3 {
                leader_timeout.restart();
            }
            if leader_timeout.has_passed() {
                left.push(began.elapsed().as_secs());
                // While the new connection is not up yet, the pause continues.
                leader_timeout.restart();
            }
            sleep(Duration::from_secs(1)).await;
        }
        // The pauses are 1, 2, 4, 8, 16 and 32 seconds, each followed by another ten seconds.
        assert_eq!(left, [13, 24, 36, 50, 68, 94]);
    }
}
