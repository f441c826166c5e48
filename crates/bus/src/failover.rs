//! Leaving a server that is cut off from the rest of its cluster.
//!
//! Its connections stand and its pings are answered, so no client library leaves it, but no stream can be written or read there: what has a
//! majority is on the other side.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::context::ContextBuilder;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use wire::subject;

use crate::config::REQUEST_TIMEOUT;
use crate::connection::{Bus, ConnectionHandle};
use crate::error::BusError;
use crate::stream::is_led;

/// From one look to the next.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The same where the stream has one replica: it may get more while the process runs.
const SINGLE_REPLICA_INTERVAL: Duration = Duration::from_secs(60);
/// A stream without a leader for so long: longer than an election mostly takes.
const LEADERLESS_LIMIT: Duration = Duration::from_secs(10);
/// After a change, for a cluster that has a majority nowhere: first, and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// What is known of the server of one connection.
#[derive(Debug)]
struct Watched {
    /// It has known the leader until then, or is given time until then.
    led_at: Instant,
    pause: Duration,
}

impl Watched {
    fn new() -> Self {
        Self { led_at: Instant::now(), pause: FIRST_PAUSE }
    }

    /// Whether the server has known no leader for too long.
    fn is_isolated(&mut self, is_led: bool) -> bool {
        if is_led {
            *self = Self::new();
            return false;
        }
        let is_isolated = self.led_at.elapsed() >= LEADERLESS_LIMIT;
        if is_isolated {
            self.led_at = Instant::now() + self.pause;
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        is_isolated
    }
}

impl Bus {
    /// Moves each connection to another server of the cluster whenever its own has not known for ten seconds who leads the stream of turn requests:
    /// the connections of a process may be at different servers. Never returns. Where that stream has one replica, or there is no other server, it
    /// does nothing.
    pub async fn leave_isolated_servers(self) {
        let (mut is_replicated, mut watched) = (false, HashMap::new());
        loop {
            let connections = self.connections().await;
            let found = join_all(connections.iter().map(|(_, connection)| leadership(connection))).await;
            // Of a stream that has never answered it is not known that it has replicas on other servers.
            let answered = || found.iter().flatten();
            is_replicated = match answered().next() {
                None => is_replicated,
                Some(_) => answered().any(|leadership| leadership.is_replicated),
            };
            for ((role, connection), found) in connections.iter().zip(&found) {
                let is_led = found.as_ref().is_ok_and(|leadership| leadership.is_led);
                let watched = watched.entry(*role).or_insert_with(Watched::new);
                if watched.is_isolated(is_led || !is_replicated || !connection.is_connected()) {
                    tracing::warn!(
                        connection = role,
                        "this NATS server knows no leader of the streams: changing to another one"
                    );
                    crate::metrics::server_changed();
                    // It fails where the connection's task has ended, and is opened anew.
                    let _ = connection.client.force_reconnect().await;
                }
            }
            let is_single = answered().next().is_some() && !is_replicated;
            sleep(if is_single { SINGLE_REPLICA_INTERVAL } else { CHECK_INTERVAL }).await;
        }
    }
}

/// What a server reports of the stream of turn requests.
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
    let stream = api.get_stream_no_info(subject::WORK_STREAM).await;
    let info = stream.map_err(|error| BusError::Unexpected(error.to_string()))?.get_info().await?;
    Ok(Leadership { is_replicated: info.config.num_replicas > 1, is_led: is_led(&info) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_is_left_after_ten_seconds_and_later_more_slowly() {
        let mut watched = Watched::new();
        let (began, mut left) = (Instant::now(), Vec::new());
        for second in 0..120 {
            if watched.is_isolated(second == 3) {
                left.push(began.elapsed().as_secs());
            }
            sleep(Duration::from_secs(1)).await;
        }
        // Pauses of 1, 2, 4, 8, 16 and 32 seconds, each before another ten.
        assert_eq!(left, [13, 24, 36, 50, 68, 94]);
        assert!(!watched.is_isolated(true));
        sleep(LEADERLESS_LIMIT).await;
        assert!(watched.is_isolated(false), "the pauses begin again");
        assert_eq!(watched.pause, FIRST_PAUSE * 2);
    }
}
