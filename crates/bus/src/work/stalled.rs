//! Consumers of turn requests that have stalled.
//!
//! When servers of a cluster have been killed or cut off, a consumer may miss what its stream stored while the consumer's leader caught up: the
//! stream has requests, but the consumer reports none pending and delivers nothing, without an error, until it gets another leader (seen with
//! nats-server 2.15.1). So workers compare what the two report.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::consumer::{Consumer, Info, pull};
use async_nats::jetstream::response::Response;
use futures_util::TryStreamExt;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use wire::subject;

use crate::connection::Bus;
use crate::error::BusError;
use crate::stream::is_led;

/// Interval of comparisons.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The same with one replica, which may change while the process runs, and after any error but a missing leader.
const LONG_INTERVAL: Duration = Duration::from_secs(60);
/// Comparisons in a row that must find a stall: of a busy consumer one answer may be from before an acknowledgement, the other from after it.
const STALLED_CHECKS: u32 = 3;
/// The number doubles after each change of leader, up to ten minutes: requests beyond their delivery limit stay stored and are not pending.
const MOST_CHECKS: u32 = 120;

impl Bus {
    /// Changes the leader of consumers of turn requests that deliver nothing for ten seconds although the stream has requests that they do not know
    /// of. Never returns. With one replica it does nothing.
    pub async fn recover_stalled_consumers(self) {
        let mut watched = HashMap::new();
        loop {
            let interval = match self.check_consumers(&mut watched).await {
                Ok(true) => CHECK_INTERVAL,
                Ok(false) => LONG_INTERVAL,
                Err(error) => {
                    tracing::debug!(%error, "the consumers of turn requests cannot be checked");
                    if matches!(error, BusError::NoLeader(_)) { CHECK_INTERVAL } else { LONG_INTERVAL }
                }
            };
            sleep(interval).await;
        }
    }

    /// Returns whether the stream is replicated.
    async fn check_consumers(&self, watched: &mut HashMap<String, Watched>) -> Result<bool, BusError> {
        let stream = self.named_stream(subject::WORK_STREAM.to_owned()).await?;
        let unexpected = |error: String| BusError::Unexpected(error);
        let found = stream.info_with_subjects(subject::ALL_WORK).await;
        let found = found.map_err(|error| unexpected(error.to_string()))?;
        if found.info.config.num_replicas <= 1 {
            return Ok(false);
        }
        if !is_led(&found.info) {
            return Err(BusError::NoLeader(subject::WORK_STREAM.to_owned()));
        }
        let leader = found.info.cluster.as_ref().and_then(|cluster| cluster.leader.clone());
        let stored: HashMap<String, usize> =
            found.try_collect().await.map_err(|error| unexpected(error.to_string()))?;
        watched.retain(|subject, _| stored.contains_key(subject));
        for (subject, stored) in stored {
            let Some(workflow) = subject::workflow_of_work(&subject) else { continue };
            let name = subject::work_consumer(&workflow);
            let Some(consumer) = self.consumer_of_work(&name).await? else { continue };
            if watched
                .entry(subject)
                .or_default()
                .has_stalled(stored as u64, &ConsumerProgress::of(&consumer))
            {
                tracing::warn!(%workflow, stored, "the consumer of turn requests has stalled: changing its leader");
                crate::metrics::consumer_had_stalled();
                self.change_leader(&name, leader.as_deref(), &consumer).await?;
            }
        }
        Ok(true)
    }

    /// `None`: no service of the workflow has ever run.
    async fn consumer_of_work(&self, name: &str) -> Result<Option<Info>, BusError> {
        let found: Result<Consumer<pull::Config>, _> =
            self.shared.api.get_consumer_from_stream(name, subject::WORK_STREAM).await;
        match found.map_err(BusError::from) {
            Ok(consumer) => Ok(Some(consumer.cached_info().clone())),
            Err(BusError::JetStream { code: 10014, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// To the stream's leader, which has all entries; to any other server, if the consumer has that leader already.
    async fn change_leader(
        &self,
        consumer: &str,
        stream_leader: Option<&str>,
        info: &Info,
    ) -> Result<(), BusError> {
        let leader = info.cluster.as_ref().and_then(|cluster| cluster.leader.as_deref());
        let preferred = stream_leader.filter(|preferred| leader != Some(*preferred));
        let request = StepDown { placement: preferred.map(|preferred| LeaderPlacement { preferred }) };
        let subject = format!("CONSUMER.LEADER.STEPDOWN.{}.{consumer}", subject::WORK_STREAM);
        match self.shared.api.request::<_, _, Response<Done>>(subject, &request).await? {
            Response::Ok(Done { success: true }) => Ok(()),
            Response::Ok(_) => Err(BusError::Unexpected("the leader does not step down".to_owned())),
            Response::Err { error } => Err(BusError::api(&error)),
        }
    }
}

#[derive(Serialize)]
struct StepDown<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<LeaderPlacement<'a>>,
}

#[derive(Serialize)]
struct LeaderPlacement<'a> {
    preferred: &'a str,
}

#[derive(Deserialize)]
struct Done {
    #[serde(default)]
    success: bool,
}

/// The state that a consumer reports.
#[derive(Debug, Clone, Copy)]
struct ConsumerProgress {
    /// The last sequence that it has delivered.
    delivered: u64,
    /// Requests that it knows of: pending, or delivered and not acknowledged.
    known: u64,
}

impl ConsumerProgress {
    fn of(info: &Info) -> Self {
        Self {
            delivered: info.delivered.stream_sequence,
            known: info.num_pending + info.num_ack_pending as u64,
        }
    }
}

/// What the last comparisons have shown.
#[derive(Debug)]
struct Watched {
    delivered: u64,
    checks: u32,
    /// How many make a stall.
    limit: u32,
}

impl Default for Watched {
    fn default() -> Self {
        Self { delivered: 0, checks: 0, limit: STALLED_CHECKS }
    }
}

impl Watched {
    /// `stored`: requests that the stream has for the workflow.
    fn has_stalled(&mut self, stored: u64, consumer: &ConsumerProgress) -> bool {
        if stored <= consumer.known {
            *self = Self::default();
            return false;
        }
        if consumer.delivered != self.delivered {
            (self.delivered, self.checks) = (consumer.delivered, 0);
        }
        self.checks += 1;
        let has_stalled = self.checks >= self.limit;
        if has_stalled {
            (self.checks, self.limit) = (0, (2 * self.limit).min(MOST_CHECKS));
        }
        has_stalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(watched: &mut Watched, stored: u64, delivered: u64, known: u64) -> bool {
        watched.has_stalled(stored, &ConsumerProgress { delivered, known })
    }

    #[test]
    fn a_consumer_that_misses_requests_has_stalled() {
        let mut watched = Watched::default();
        let found: Vec<bool> = (20..30).map(|stored| checked(&mut watched, stored, 1_394, 2)).collect();
        let expected = [false, false, true, false, false, false, false, false, true, false];
        assert_eq!(found, expected, "the second time after twice as long");
    }

    #[test]
    fn a_consumer_that_delivers_has_not_stalled() {
        let mut watched = Watched::default();
        for delivered in 1..20 {
            assert!(!checked(&mut watched, 9, delivered, 8), "acknowledged between both answers");
        }
        for _ in 0..20 {
            assert!(!checked(&mut watched, 9, 20, 9), "its services are busy");
            assert!(!checked(&mut watched, 9, 20, 10), "stored between both answers");
        }
    }

    #[test]
    fn recovering_begins_the_count_again() {
        let mut watched = Watched::default();
        for _ in 0..3 {
            assert!(!checked(&mut watched, 9, 20, 8));
            assert!(!checked(&mut watched, 9, 20, 8));
            assert!(!checked(&mut watched, 9, 20, 9));
        }
    }
}
