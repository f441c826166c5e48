//! Leaving a server that is cut off from the rest of its cluster.
//!
//! Its connections stand and its pings are answered, so no client library leaves it, but no stream can be written or read there: what has a
//! majority is on the other side.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use wire::subject;

use crate::connection::Bus;
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

impl Bus {
    /// Connects to another server of the cluster whenever this one has not known for ten seconds who leads the stream of turn requests. Never
    /// returns. Where that stream has one replica, or there is no other server, it does nothing.
    pub async fn leave_isolated_servers(self) {
        let (mut is_replicated, mut led_at, mut pause) = (false, Instant::now(), FIRST_PAUSE);
        loop {
            let info = self.info_of(subject::WORK_STREAM.to_owned()).await;
            // Of one that has never answered it is not known that it has replicas on other servers.
            is_replicated = info.as_ref().map_or(is_replicated, |info| info.config.num_replicas > 1);
            let is_single = info.as_ref().is_ok_and(|info| info.config.num_replicas <= 1);
            let is_led = info.is_ok_and(|info| is_led(&info));
            if is_led {
                pause = FIRST_PAUSE;
            }
            if is_led || !is_replicated || !self.is_connected() {
                led_at = Instant::now();
            } else if led_at.elapsed() >= LEADERLESS_LIMIT {
                tracing::warn!("this NATS server knows no leader of the streams: changing to another one");
                crate::metrics::server_changed();
                self.change_servers().await;
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                led_at = Instant::now();
            }
            sleep(if is_single { SINGLE_REPLICA_INTERVAL } else { CHECK_INTERVAL }).await;
        }
    }
}
