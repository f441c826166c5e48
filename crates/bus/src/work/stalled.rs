//! Detects stalled consumers of turn requests.
//!
//! After servers of a cluster were killed or cut off, a consumer may miss entries that its stream
//! stored while the consumer's leader caught up. The stream has requests, but the consumer delivers
//! none to waiting services, without an error, until it gets another leader (seen with nats-server
//! 2.15.1). So workers compare the reports of both.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::consumer::{Consumer, Info, pull};
use async_nats::jetstream::response::Response;
use futures_util::TryStreamExt;
use model::WorkflowName;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use wire::subject;

use crate::connection::Bus;
use crate::error::BusError;
use crate::stream::is_led;

/// Interval of comparisons.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The interval while comparisons fail, and with one replica, because more replicas may be added
/// while the process runs.
const LONG_INTERVAL: Duration = Duration::from_secs(60);
/// Number of consecutive failures before a warning. It is more than an election or a restarting
/// server causes, so the NATS user may lack the permissions.
const FAILURES_TO_LOG: u32 = 4;
/// Consecutive comparisons that must find a stall. For a busy consumer, one answer may be from
/// before an acknowledgement and the other from after it.
const STALLED_CHECKS: u32 = 3;
/// Maximum number of these comparisons. The number doubles after each change of leader, up to ten
/// minutes. One cause of useless changes: requests beyond their delivery limit stay stored and are
/// not pending.
const MOST_CHECKS: u32 = 120;

impl Bus {
    /// Changes the leader of stalled consumers of turn requests. A consumer is stalled if it
    /// delivers nothing for ten seconds in one of two cases. Either the stream has requests unknown
    /// to the consumer, or services wait for requests that it has.
    ///
    /// Never returns. Does nothing if the stream has one replica.
    pub async fn recover_stalled_consumers(self) {
        let (mut watched, mut failures) = (HashMap::new(), 0_u32);
        loop {
            let interval = match self.check_consumers(&mut watched).await {
                Ok(is_replicated) => {
                    failures = 0;
                    if is_replicated { CHECK_INTERVAL } else { LONG_INTERVAL }
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    if failures == FAILURES_TO_LOG && self.is_connected() {
                        tracing::warn!(%error, "the consumers of turn requests cannot be checked");
                    }
                    if failures < FAILURES_TO_LOG { CHECK_INTERVAL } else { LONG_INTERVAL }
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
        let mut checked = Ok(true);
        for (subject, stored) in stored {
            let Some(workflow) = subject::workflow_of_work(&subject) else { continue };
            let watched = watched.entry(subject).or_default();
            // If a consumer does not answer, the others must still be checked.
            if let Err(error) =
                self.check_consumer(&workflow, stored as u64, leader.as_deref(), watched).await
            {
                checked = Err(error);
            }
        }
        checked
    }

    async fn check_consumer(
        &self,
        workflow: &WorkflowName,
        stored: u64,
        stream_leader: Option<&str>,
        watched: &mut Watched,
    ) -> Result<(), BusError> {
        let name = subject::work_consumer(workflow);
        let Some(consumer) = self.consumer_of_work(&name).await? else { return Ok(()) };
        let progress = ConsumerProgress::of(&consumer);
        if !watched.has_stalled(stored, &progress) {
            return Ok(());
        }
        tracing::warn!(%workflow, stored, ?progress, "the consumer of turn requests has stalled: changing its leader");
        crate::metrics::consumer_had_stalled();
        self.change_leader(&name, stream_leader, &consumer).await
    }

    /// The state of a workflow's consumer; `None`: no service of the workflow has ever run.
    async fn consumer_of_work(&self, name: &str) -> Result<Option<Info>, BusError> {
        let found: Result<Consumer<pull::Config>, _> =
            self.shared.api.get_consumer_from_stream(name, subject::WORK_STREAM).await;
        match found.map_err(BusError::from) {
            Ok(consumer) => Ok(Some(consumer.cached_info().clone())),
            Err(BusError::JetStream { code: 10014, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Moves the consumer's leader to the server of the stream's leader, which has all entries. If
    /// it is there already, moves it to any other server.
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
    /// The last delivered sequence.
    delivered: u64,
    /// Undelivered requests, as far as the consumer knows.
    pending: u64,
    /// Requests delivered but not acknowledged.
    in_hand: u64,
    /// The limit of `in_hand`.
    most_in_hand: u64,
    /// True if services wait for requests.
    is_waited_for: bool,
}

impl ConsumerProgress {
    fn of(info: &Info) -> Self {
        Self {
            delivered: info.delivered.stream_sequence,
            pending: info.num_pending,
            in_hand: info.num_ack_pending as u64,
            most_in_hand: u64::try_from(info.config.max_ack_pending).unwrap_or(u64::MAX),
            is_waited_for: info.num_waiting > 0,
        }
    }

    /// True if the consumer should be delivering some of the `stored` requests, or does not know of
    /// all of them.
    fn is_suspicious(&self, stored: u64) -> bool {
        let misses_some = stored > self.pending + self.in_hand;
        let should_deliver = stored > self.in_hand && self.is_waited_for && self.in_hand < self.most_in_hand;
        misses_some || should_deliver
    }
}

/// The result of the last comparisons.
#[derive(Debug)]
struct Watched {
    delivered: u64,
    checks: u32,
    /// The number of suspicious checks that count as a stall.
    limit: u32,
}

impl Default for Watched {
    fn default() -> Self {
        Self { delivered: 0, checks: 0, limit: STALLED_CHECKS }
    }
}

impl Watched {
    /// Counts a check, and returns true if it completes a stall. `stored` is the number of requests
    /// that the stream has for the workflow.
    fn has_stalled(&mut self, stored: u64, consumer: &ConsumerProgress) -> bool {
        if !consumer.is_suspicious(stored) {
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

    /// A consumer with two of at most ten requests in hand, none pending, and waiting services.
    const IDLE: ConsumerProgress =
        ConsumerProgress { delivered: 1_394, pending: 0, in_hand: 2, most_in_hand: 10, is_waited_for: true };

    fn checks(count: usize, stored: u64, consumer: &ConsumerProgress) -> Vec<bool> {
        let mut watched = Watched::default();
        (0..count).map(|_| watched.has_stalled(stored, consumer)).collect()
    }

    #[test]
    fn a_consumer_that_misses_requests_has_stalled() {
        let expected = [false, false, true, false, false, false, false, false, true, false];
        assert_eq!(checks(10, 23, &IDLE), expected, "the second time after twice as long");
        let without_services = ConsumerProgress { is_waited_for: false, ..IDLE };
        assert_eq!(checks(3, 23, &without_services), expected[..3]);
    }

    #[test]
    fn a_consumer_that_keeps_requests_from_services_has_stalled() {
        let knowing = ConsumerProgress { pending: 21, ..IDLE };
        assert_eq!(checks(3, 23, &knowing), [false, false, true]);
        let without_services = ConsumerProgress { is_waited_for: false, ..knowing };
        assert_eq!(checks(20, 23, &without_services), [false; 20], "no service is there");
        let at_its_limit = ConsumerProgress { in_hand: 10, pending: 13, ..IDLE };
        assert_eq!(checks(20, 23, &at_its_limit), [false; 20], "its services have as many as they may");
        assert_eq!(checks(20, 2, &IDLE), [false; 20], "all are in hand");
    }

    #[test]
    fn a_consumer_that_delivers_has_not_stalled() {
        let mut watched = Watched::default();
        for delivered in 1..20 {
            let consumer = ConsumerProgress { delivered, pending: 7, ..IDLE };
            assert!(!watched.has_stalled(23, &consumer), "acknowledged between both answers");
        }
    }

    #[test]
    fn recovering_begins_the_count_again() {
        let mut watched = Watched::default();
        for _ in 0..3 {
            assert!(!watched.has_stalled(23, &IDLE));
            assert!(!watched.has_stalled(23, &IDLE));
            assert!(!watched.has_stalled(2, &IDLE));
        }
    }
}
