//! Tracks turn requests at the services of their workflows, so that waiting clients are shown why
//! no answer comes.
//!
//! There are three sources: acknowledgments of services (handed back, in progress, done), the
//! progress of a workflow's consumer, and the requests still stored. The last two are queried only
//! for turns that have been silent for a second, and only while the result can change. Sessions
//! fetch the news of their partition every second; only the newest item for each request is kept.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bus::{ACK_WAIT, Bus, StoredWork, WorkAck, WorkAckKind, WorkAcks, WorkProgress};
use model::{PartitionId, Seq, TurnId, WorkflowName};
use partition::RequestNews;
use runtime::{Backoff, retry};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// Minimum interval between queries to the servers.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Interval between queries about a request that a service has taken. It can be long, because
/// acknowledgments arrive without queries.
const ASK_TAKEN_EVERY: Duration = Duration::from_secs(5);
/// Maximum number of workflows queried in one round; the next round starts after the last of them.
const WORKFLOWS: usize = 64;
/// Maximum number of early hand-backs kept for requests that are not watched yet. The hand-backs of
/// all workers' requests are heard; one needs to be kept only until its request is inserted.
const EARLY_HAND_BACKS: usize = 1_024;
/// Waiting time in ms after which a workflow without services is logged; `LOG_AGAIN` is the minimum
/// time until the next such line.
const NO_WORKFLOW_MS: i64 = 5_000;
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// A run of a turn.
pub(crate) type RunKey = (TurnId, u32);

/// Requests of this worker's partitions. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestWatch {
    shared: Arc<RequestTable>,
}

#[derive(Debug, Default)]
struct RequestTable {
    requests: Mutex<Requests>,
    /// Notified when a turn is silent.
    has_silent: Notify,
}

/// The watched requests. Each partition bounds the number of its active turns, and so of its
/// requests.
#[derive(Debug, Default)]
struct Requests {
    of_partition: HashMap<PartitionId, HashMap<RunKey, WatchedRequest>>,
    by_seq: HashMap<Seq, (PartitionId, RunKey)>,
    /// The newest hand-backs of unknown requests. A service may hand a request back before the
    /// confirmation of its publication is read here, and no query to the servers shows that later.
    early: VecDeque<WorkAck>,
    /// Runs to query in the next round.
    silent: SilentRuns,
    /// Last workflow of the previous round.
    asked: Option<WorkflowName>,
}

/// Runs without chunks, by the workflow that they wait for.
type SilentRuns = BTreeMap<WorkflowName, HashMap<RunKey, SilentRun>>;

/// A silent run: its partition, and the time without a chunk in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SilentRun {
    partition: PartitionId,
    idle_ms: i64,
}

/// A stored request.
#[derive(Debug)]
struct WatchedRequest {
    seq: Seq,
    workflow: WorkflowName,
    known: Known,
    /// Time of the last query to the servers.
    asked_at: Option<Instant>,
    /// News that the session has not fetched yet.
    news: Option<RequestNews>,
}

/// Last known state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    NotTaken,
    /// Taken; contains the time of the last sign of life.
    Taken(Instant),
    /// Number of the delivery handed back. The consumer shows whether another one follows.
    HandedBack(u32),
    GivenUp,
    Lost,
    Acknowledged,
}

impl WatchedRequest {
    fn new(seq: Seq, workflow: WorkflowName) -> Self {
        Self { seq, workflow, known: Known::Nothing, asked_at: None, news: None }
    }

    /// Applies an acknowledgment of a service.
    fn on_ack(&mut self, ack: &WorkAck) {
        let deliveries = ack.deliveries;
        let (known, news) = match ack.kind {
            WorkAckKind::Done => (Known::Acknowledged, RequestNews::Acknowledged),
            WorkAckKind::InProgress => {
                (Known::Taken(Instant::now()), RequestNews::Taken { deliveries, is_alive: true })
            }
            WorkAckKind::HandedBack(delay) => {
                let again_ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
                (Known::HandedBack(deliveries), RequestNews::HandedBack { deliveries, again_ms })
            }
        };
        (self.known, self.news) = (known, Some(news));
    }

    /// True if the servers can have news.
    fn is_worth_asking(&self) -> bool {
        match self.known {
            Known::Nothing | Known::NotTaken | Known::HandedBack(_) => true,
            Known::Taken(_) => self.asked_at.is_none_or(|at| at.elapsed() >= ASK_TAKEN_EVERY),
            Known::GivenUp | Known::Lost | Known::Acknowledged => false,
        }
    }

    /// Applies the state of consumer and stream. `progress`: `None` if the workflow's services have
    /// never run.
    fn on_state(&mut self, progress: Option<&WorkProgress>, stored: &StoredWork, idle_ms: i64) {
        self.asked_at = Some(Instant::now());
        let is_gone = stored.is_gone(self.seq);
        let is_gone =
            is_gone.unwrap_or_else(|| progress.is_some_and(|progress| self.seq <= progress.acknowledged));
        let is_delivered = progress.is_some_and(|progress| self.seq <= progress.delivered);
        let most = progress.and_then(|progress| progress.max_deliveries);
        let is_silent = idle_ms >= i64::try_from(ACK_WAIT.as_millis()).unwrap_or(i64::MAX);
        let (known, news) = match self.known {
            Known::Acknowledged | Known::GivenUp | Known::Lost => return,
            _ if is_gone => (Known::Acknowledged, RequestNews::Acknowledged),
            Known::HandedBack(deliveries) if most.is_some_and(|most| deliveries >= most) => {
                (Known::GivenUp, RequestNews::GivenUp { deliveries })
            }
            Known::Nothing if !is_delivered => (Known::NotTaken, RequestNews::NotTaken),
            Known::Nothing | Known::NotTaken if is_delivered => {
                (Known::Taken(Instant::now()), RequestNews::Taken { deliveries: 0, is_alive: false })
            }
            Known::Taken(since) if is_silent && since.elapsed() >= ACK_WAIT => {
                (Known::Lost, RequestNews::Lost)
            }
            Known::Nothing | Known::NotTaken | Known::Taken(_) | Known::HandedBack(_) => return,
        };
        (self.known, self.news) = (known, Some(news));
    }
}

impl Requests {
    fn get_mut(&mut self, partition: PartitionId, run: &RunKey) -> Option<&mut WatchedRequest> {
        self.of_partition.get_mut(&partition)?.get_mut(run)
    }

    /// The sequence of a request is easily guessed, so only acknowledgments from its own workflow
    /// count.
    fn on_ack(&mut self, ack: &WorkAck) {
        let Some((partition, run)) = self.by_seq.get(&ack.seq).cloned() else {
            if matches!(ack.kind, WorkAckKind::HandedBack(_)) {
                self.early.truncate(EARLY_HAND_BACKS - 1);
                self.early.push_front(ack.clone());
            }
            return;
        };
        let request = self.get_mut(partition, &run).filter(|request| request.workflow == ack.workflow);
        if let Some(request) = request {
            request.on_ack(ack);
        }
    }

    /// Takes the runs to query next, by workflow. The number of workflows is limited; the next
    /// round continues after the last of them.
    fn take_silent(&mut self) -> SilentRuns {
        let mut silent = std::mem::take(&mut self.silent);
        let after = self.asked.take().map_or(Bound::Unbounded, Bound::Excluded);
        let later = silent.range((after, Bound::Unbounded)).map(|(workflow, _)| workflow);
        let next: Vec<WorkflowName> = later.chain(silent.keys()).take(WORKFLOWS).cloned().collect();
        self.asked = next.last().cloned();
        next.into_iter().filter_map(|workflow| silent.remove_entry(&workflow)).collect()
    }

    /// Applies the state of the servers. True if no service has taken the request.
    fn on_state(
        &mut self,
        run: &RunKey,
        silent: SilentRun,
        progress: Option<&WorkProgress>,
        stored: &StoredWork,
    ) -> bool {
        let Some(request) = self.get_mut(silent.partition, run) else { return false };
        request.on_state(progress, stored, silent.idle_ms);
        request.known == Known::NotTaken
    }
}

impl RequestWatch {
    /// Adds a stored request.
    pub(crate) fn insert(&self, partition: PartitionId, run: RunKey, seq: Seq, workflow: WorkflowName) {
        let mut requests = self.requests();
        let mut request = WatchedRequest::new(seq, workflow);
        // The newest: it has the highest number of deliveries.
        let early = requests.early.iter().find(|ack| ack.seq == seq && ack.workflow == request.workflow);
        early.into_iter().for_each(|ack| request.on_ack(ack));
        let before = requests.of_partition.entry(partition).or_default().insert(run.clone(), request);
        if let Some(before) = before {
            requests.by_seq.remove(&before.seq);
        }
        requests.by_seq.insert(seq, (partition, run));
    }

    /// Forgets the requests of a partition's turns that are not active any more.
    pub(crate) fn retain(&self, partition: PartitionId, is_active: impl Fn(&TurnId) -> bool) {
        let mut requests = self.requests();
        let Requests { of_partition, by_seq, .. } = &mut *requests;
        if let Some(of_partition) = of_partition.get_mut(&partition) {
            of_partition.retain(|(turn, _), request| {
                let is_kept = is_active(turn);
                if !is_kept {
                    by_seq.remove(&request.seq);
                }
                is_kept
            });
        }
    }

    /// News about the requests of a partition.
    pub(crate) fn take_news(&self, partition: PartitionId) -> Vec<(TurnId, u32, RequestNews)> {
        let mut requests = self.requests();
        let Some(of_partition) = requests.of_partition.get_mut(&partition) else { return Vec::new() };
        let news = of_partition
            .iter_mut()
            .filter_map(|((turn, run), request)| request.news.take().map(|news| (turn.clone(), *run, news)));
        news.collect()
    }

    /// Queues queries about silent turns of a partition, each with the time without a chunk in ms.
    pub(crate) fn ask(&self, partition: PartitionId, silent: Vec<(TurnId, u32, i64)>) {
        let mut requests = self.requests();
        for (turn, run, idle_ms) in silent {
            let run = (turn, run);
            let Some(request) = requests.get_mut(partition, &run).filter(|it| it.is_worth_asking()) else {
                continue;
            };
            let workflow = request.workflow.clone();
            requests.silent.entry(workflow).or_default().insert(run, SilentRun { partition, idle_ms });
        }
        if !requests.silent.is_empty() {
            self.shared.has_silent.notify_one();
        }
    }

    /// Runs until `stop`.
    pub(crate) async fn run(self, bus: Bus, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.hear(&bus) => {}
            () = self.ask_servers(&bus) => {}
        }
    }

    /// Receives acknowledgments of services.
    async fn hear(&self, bus: &Bus) {
        loop {
            let mut acks: WorkAcks =
                retry(Backoff::default(), "listening to answers about requests", || bus.work_acks()).await;
            while let Some(ack) = acks.next().await {
                self.requests().on_ack(&ack);
            }
        }
    }

    async fn ask_servers(&self, bus: &Bus) {
        let mut logged = BTreeMap::new();
        loop {
            self.shared.has_silent.notified().await;
            let silent = self.requests().take_silent();
            if !silent.is_empty()
                && let Err(error) = self.ask_about(bus, silent, &mut logged).await
            {
                tracing::debug!(%error, "it is not known what has become of turn requests");
            }
            sleep(ASK_EVERY).await;
        }
    }

    async fn ask_about(
        &self,
        bus: &Bus,
        silent: SilentRuns,
        logged: &mut BTreeMap<WorkflowName, Instant>,
    ) -> Result<(), bus::BusError> {
        logged.retain(|_, at| at.elapsed() < LOG_AGAIN);
        let mut found = Vec::new();
        for (workflow, runs) in silent {
            // A consumer that does not answer must not prevent queries about the others.
            match bus.work_progress(&workflow).await {
                Ok(progress) => found.push((progress, workflow, runs)),
                Err(error) => {
                    tracing::debug!(%workflow, %error, "a consumer of turn requests does not answer")
                }
            }
        }
        // Queried after the consumers: if a request is missing here, it was delivered and
        // acknowledged in between, and does not count as one that was never taken.
        let stored = bus.stored_work().await?;
        for (progress, workflow, runs) in found {
            let mut oldest_ms = 0;
            for (run, silent) in &runs {
                if self.requests().on_state(run, *silent, progress.as_ref(), &stored) {
                    oldest_ms = oldest_ms.max(silent.idle_ms);
                }
            }
            if oldest_ms >= NO_WORKFLOW_MS && !logged.contains_key(&workflow) {
                tracing::warn!(
                    %workflow, waiting_ms = oldest_ms, has_ever_run = progress.is_some(),
                    "no service takes the requests of a workflow: is one running, and connected to this NATS?"
                );
                logged.insert(workflow, Instant::now());
            }
        }
        Ok(())
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workflow(name: &str) -> WorkflowName {
        WorkflowName::parse(name).unwrap()
    }

    fn turn(name: &str) -> TurnId {
        TurnId::foreground(&model::ThreadId::parse("t").unwrap(), name).unwrap()
    }

    fn watched() -> WatchedRequest {
        WatchedRequest::new(Seq(5), workflow("w"))
    }

    fn progress(delivered: u64, acknowledged: u64) -> WorkProgress {
        let (delivered, acknowledged) = (Seq(delivered), Seq(acknowledged));
        WorkProgress { delivered, acknowledged, max_deliveries: Some(3) }
    }

    fn ack(deliveries: u32, kind: WorkAckKind) -> WorkAck {
        WorkAck { workflow: workflow("w"), seq: Seq(5), deliveries, kind }
    }

    impl WatchedRequest {
        fn heard(&mut self, ack: &WorkAck) -> Option<RequestNews> {
            self.on_ack(ack);
            self.news.take()
        }

        fn asked(
            &mut self,
            progress: Option<WorkProgress>,
            stored: &StoredWork,
            idle_ms: i64,
        ) -> Option<RequestNews> {
            self.on_state(progress.as_ref(), stored, idle_ms);
            self.news.take()
        }
    }

    const TAKEN: RequestNews = RequestNews::Taken { deliveries: 0, is_alive: false };

    #[tokio::test(start_paused = true)]
    async fn state_of_the_servers_says_what_became_of_a_request() {
        let (stored, gone) = (StoredWork::of(1, 9, Some(vec![3])), StoredWork::of(1, 9, Some(vec![5])));
        let mut request = watched();
        assert_eq!(
            request.asked(None, &stored, 1_000),
            Some(RequestNews::NotTaken),
            "no service has ever run"
        );
        assert_eq!(request.asked(Some(progress(4, 4)), &stored, 2_000), None, "as before");
        assert_eq!(request.asked(Some(progress(5, 4)), &stored, 3_000), Some(TAKEN));
        assert!(!request.is_worth_asking());
        assert_eq!(
            request.asked(Some(progress(5, 4)), &stored, 31_000),
            None,
            "it may have said that it works"
        );
        tokio::time::advance(ACK_WAIT).await;
        assert!(request.is_worth_asking());
        assert_eq!(request.asked(Some(progress(5, 4)), &stored, 31_000), Some(RequestNews::Lost));
        let unknown = StoredWork::of(1, 9, None);
        assert_eq!(watched().asked(Some(progress(9, 4)), &unknown, 1_000), Some(TAKEN));
        assert_eq!(watched().asked(Some(progress(9, 5)), &unknown, 1_000), Some(RequestNews::Acknowledged));
        assert_eq!(watched().asked(Some(progress(9, 4)), &gone, 1_000), Some(RequestNews::Acknowledged));
    }

    #[tokio::test(start_paused = true)]
    async fn answers_of_services_say_it_at_once() {
        let stored = StoredWork::of(1, 9, Some(Vec::new()));
        let back = WorkAckKind::HandedBack(Duration::from_secs(2));
        let handed_back = |deliveries| Some(RequestNews::HandedBack { deliveries, again_ms: 2_000 });
        let mut request = watched();
        let alive = RequestNews::Taken { deliveries: 1, is_alive: true };
        assert_eq!(request.heard(&ack(1, WorkAckKind::InProgress)), Some(alive));
        assert_eq!(request.heard(&ack(1, back)), handed_back(1));
        assert_eq!(request.asked(Some(progress(5, 4)), &stored, 60_000), None, "it comes again");
        assert_eq!(request.heard(&ack(3, back)), handed_back(3));
        let unbounded = WorkProgress { max_deliveries: None, ..progress(5, 4) };
        assert_eq!(request.asked(Some(unbounded), &stored, 1_000), None, "its consumer has no bound");
        let given_up = Some(RequestNews::GivenUp { deliveries: 3 });
        assert_eq!(request.asked(Some(progress(5, 4)), &stored, 1_000), given_up);
        assert!(!request.is_worth_asking());
        assert_eq!(request.heard(&ack(3, WorkAckKind::Done)), Some(RequestNews::Acknowledged));
    }

    #[test]
    fn a_request_handed_back_before_it_is_watched_is_shown_so() {
        let (watch, p) = (RequestWatch::default(), PartitionId(0));
        let back = |seq, deliveries| WorkAck {
            seq: Seq(seq),
            ..ack(deliveries, WorkAckKind::HandedBack(Duration::ZERO))
        };
        let others = 6..6 + EARLY_HAND_BACKS as u64;
        let heard = [back(4, 1), back(5, 1), back(5, 2)].into_iter();
        for ack in heard.chain(others.skip(2).map(|seq| back(seq, 1))) {
            watch.requests().on_ack(&ack);
        }
        assert_eq!(watch.requests().early.len(), EARLY_HAND_BACKS);
        watch.insert(p, (turn("other"), 0), Seq(7), workflow("other"));
        watch.insert(p, (turn("lost"), 0), Seq(4), workflow("w"));
        assert_eq!(watch.take_news(p), [], "of another workflow, or too long ago");
        watch.insert(p, (turn("a"), 0), Seq(5), workflow("w"));
        let news = RequestNews::HandedBack { deliveries: 2, again_ms: 0 };
        assert_eq!(watch.take_news(p), [(turn("a"), 0, news)]);
    }

    #[test]
    fn requests_are_forgotten_with_their_turns() {
        let (watch, p) = (RequestWatch::default(), PartitionId(0));
        for (seq, name) in [(1, "a"), (2, "b"), (3, "b")] {
            watch.insert(p, (turn(name), 0), Seq(seq), workflow("w"));
        }
        assert_eq!(watch.requests().by_seq.len(), 2, "a request replaces one of the same run");
        watch.ask(p, vec![(turn("a"), 0, 1_000), (turn("b"), 0, 1_000), (turn("c"), 0, 1_000)]);
        watch.retain(PartitionId(1), |_| false);
        watch.retain(p, |kept| *kept == turn("b"));
        let acknowledged =
            |name| WorkAck { workflow: workflow(name), seq: Seq(3), ..ack(1, WorkAckKind::Done) };
        watch.requests().on_ack(&WorkAck { seq: Seq(1), ..acknowledged("w") });
        watch.requests().on_ack(&acknowledged("other"));
        assert_eq!(watch.take_news(p), [], "it is not known, or its services are others");
        watch.requests().on_ack(&acknowledged("w"));
        assert_eq!(watch.take_news(p), [(turn("b"), 0, RequestNews::Acknowledged)]);
        assert_eq!(watch.take_news(p), [], "once");
    }

    #[test]
    fn each_workflow_has_its_turn_to_be_asked_about() {
        let (watch, p) = (RequestWatch::default(), PartitionId(0));
        let names: Vec<String> = (0..100).map(|number| format!("w{number:03}")).collect();
        for (seq, name) in (1..).zip(&names) {
            watch.insert(p, (turn(name), 0), Seq(seq), workflow(name));
        }
        let mut asked = std::collections::BTreeSet::new();
        for _ in 0..2 {
            watch.ask(p, names.iter().map(|name| (turn(name), 0, 1_000)).collect());
            let silent = watch.requests().take_silent();
            assert_eq!(silent.len(), WORKFLOWS);
            asked.extend(silent.into_keys());
        }
        assert_eq!(asked.len(), 100);
    }
}
