//! What becomes of turn requests at the services of their workflows, so that the clients that wait for an answer are shown why none comes.
//!
//! Three sources: what services answer to the server (handed back, in progress, done), how far a workflow's consumer has come, and which requests
//! are stored still. The last two are asked only for turns that have been silent for a second.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bus::{ACK_WAIT, Bus, StoredWork, WorkAck, WorkAckKind, WorkAcks, WorkProgress};
use model::{PartitionId, Seq, TurnId, WorkflowName};
use partition::{Input, RequestNews};
use runtime::{Backoff, retry};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// At most so often servers are asked.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// Workflows that are asked about in one round; the others wait for the next one.
const WORKFLOWS: usize = 64;
/// After the last delivery was handed back, chunks that the service published before have so long to be read.
const LAST_CHUNKS: Duration = Duration::from_secs(1);
/// Of a consumer of which nothing is known yet: what the fleet gives to those that it makes.
const MAX_DELIVERIES: u32 = 16;
/// The log names a workflow without services when a request has waited for so long, ms, and again after a while.
const NO_WORKFLOW_MS: i64 = 5_000;
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// A run of a turn.
pub(crate) type RunKey = (TurnId, u32);

/// The requests of this worker's partitions. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestWatch {
    shared: Arc<RequestTable>,
}

#[derive(Debug, Default)]
struct RequestTable {
    requests: Mutex<Requests>,
    /// Some turn is silent.
    has_silent: Notify,
}

/// Bounded by the turns under way, which partitions bound.
#[derive(Debug, Default)]
struct Requests {
    of_partition: HashMap<PartitionId, HashMap<RunKey, WatchedRequest>>,
    by_seq: HashMap<Seq, (PartitionId, RunKey)>,
    /// What is asked about in the next round.
    silent: BTreeMap<RunKey, (PartitionId, i64)>,
}

/// A request that is stored.
#[derive(Debug)]
struct WatchedRequest {
    seq: Seq,
    workflow: WorkflowName,
    /// To the session of its partition.
    answered: mpsc::Sender<Input>,
    known: Known,
    max_deliveries: u32,
}

/// What the session was told last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    NotTaken,
    /// Since when no sign of life has come.
    Taken(Instant),
    HandedBack,
    Lost,
    Acknowledged,
}

impl WatchedRequest {
    /// What an answer of a service says that is new.
    fn on_ack(&mut self, ack: &WorkAck) -> RequestNews {
        let deliveries = ack.deliveries;
        let (known, news) = match ack.kind {
            WorkAckKind::Done => (Known::Acknowledged, RequestNews::Acknowledged),
            WorkAckKind::InProgress => {
                (Known::Taken(Instant::now()), RequestNews::Taken { deliveries, is_alive: true })
            }
            WorkAckKind::HandedBack(_) if deliveries >= self.max_deliveries => {
                (Known::HandedBack, RequestNews::GivenUp { deliveries })
            }
            WorkAckKind::HandedBack(delay) => {
                let again_ms = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
                (Known::HandedBack, RequestNews::HandedBack { deliveries, again_ms })
            }
        };
        self.known = known;
        news
    }

    /// What the state of the consumer and of the stream say that is new. `progress`: `None` when the workflow's services have never run.
    fn on_state(
        &mut self,
        progress: Option<&WorkProgress>,
        stored: &StoredWork,
        idle_ms: i64,
    ) -> Option<RequestNews> {
        if let Some(most) = progress.and_then(|progress| progress.max_deliveries) {
            self.max_deliveries = most;
        }
        let is_gone = stored.is_gone(self.seq);
        let is_gone =
            is_gone.unwrap_or_else(|| progress.is_some_and(|progress| self.seq <= progress.acknowledged));
        let is_delivered = progress.is_some_and(|progress| self.seq <= progress.delivered);
        let is_silent = idle_ms >= i64::try_from(ACK_WAIT.as_millis()).unwrap_or(i64::MAX);
        let (known, news) = match self.known {
            Known::Acknowledged => return None,
            _ if is_gone => (Known::Acknowledged, RequestNews::Acknowledged),
            Known::Nothing if !is_delivered => (Known::NotTaken, RequestNews::NotTaken),
            Known::Nothing | Known::NotTaken if is_delivered => {
                (Known::Taken(Instant::now()), RequestNews::Taken { deliveries: 0, is_alive: false })
            }
            Known::Taken(since) if is_silent && since.elapsed() >= ACK_WAIT => {
                (Known::Lost, RequestNews::Lost)
            }
            Known::Nothing | Known::NotTaken | Known::Taken(_) | Known::HandedBack | Known::Lost => {
                return None;
            }
        };
        self.known = known;
        Some(news)
    }
}

impl Requests {
    fn get_mut(&mut self, partition: PartitionId, run: &RunKey) -> Option<&mut WatchedRequest> {
        self.of_partition.get_mut(&partition)?.get_mut(run)
    }

    fn on_ack(&mut self, ack: &WorkAck) -> Option<(mpsc::Sender<Input>, Input)> {
        let (partition, run) = self.by_seq.get(&ack.seq).cloned()?;
        let request = self.get_mut(partition, &run)?;
        let news = request.on_ack(ack);
        Some((request.answered.clone(), input(run, news)))
    }

    /// What is new of a request, whether no service has taken it, and where its news go.
    fn on_state(
        &mut self,
        partition: PartitionId,
        run: &RunKey,
        progress: Option<&WorkProgress>,
        stored: &StoredWork,
        idle_ms: i64,
    ) -> Option<(Option<RequestNews>, bool, mpsc::Sender<Input>)> {
        let request = self.get_mut(partition, run)?;
        let news = request.on_state(progress, stored, idle_ms);
        Some((news, request.known == Known::NotTaken, request.answered.clone()))
    }

    /// The turns that are asked about next, by workflow: run, partition, and for how long nothing has come.
    fn take_silent(&mut self) -> BTreeMap<WorkflowName, Vec<(RunKey, PartitionId, i64)>> {
        let mut by_workflow: BTreeMap<WorkflowName, Vec<_>> = BTreeMap::new();
        for (run, (partition, idle_ms)) in std::mem::take(&mut self.silent) {
            let Some(request) = self.get_mut(partition, &run) else { continue };
            let workflow = request.workflow.clone();
            if by_workflow.len() < WORKFLOWS || by_workflow.contains_key(&workflow) {
                by_workflow.entry(workflow).or_default().push((run, partition, idle_ms));
            }
        }
        by_workflow
    }
}

fn input((turn, run): RunKey, news: RequestNews) -> Input {
    Input::Request { turn, run, news }
}

impl RequestWatch {
    /// A request is stored; news of it go to `answered`.
    pub(crate) fn insert(
        &self,
        partition: PartitionId,
        run: RunKey,
        seq: Seq,
        workflow: WorkflowName,
        answered: mpsc::Sender<Input>,
    ) {
        let max_deliveries = MAX_DELIVERIES;
        let request = WatchedRequest { seq, workflow, answered, known: Known::Nothing, max_deliveries };
        let mut requests = self.requests();
        requests.by_seq.insert(seq, (partition, run.clone()));
        requests.of_partition.entry(partition).or_default().insert(run, request);
    }

    /// Forgets the requests of a partition's turns that are not under way any more.
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

    /// Turns of a partition of which nothing has come, and for how long, ms. What has become of their requests is asked soon.
    pub(crate) fn ask(&self, partition: PartitionId, silent: Vec<(TurnId, u32, i64)>) {
        if silent.is_empty() {
            return;
        }
        let of_partition = silent.into_iter().map(|(turn, run, idle_ms)| ((turn, run), (partition, idle_ms)));
        self.requests().silent.extend(of_partition);
        self.shared.has_silent.notify_one();
    }

    /// Runs until `stop`.
    pub(crate) async fn run(self, bus: Bus, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.hear(&bus) => {}
            () = self.ask_servers(&bus) => {}
        }
    }

    /// Takes what services answer.
    async fn hear(&self, bus: &Bus) {
        loop {
            let mut acks: WorkAcks =
                retry(Backoff::default(), "listening to answers about requests", || bus.work_acks()).await;
            while let Some(ack) = acks.next().await {
                let Some((answered, input)) = self.requests().on_ack(&ack) else { continue };
                match &input {
                    Input::Request { news: RequestNews::GivenUp { .. }, .. } => {
                        runtime::spawn_named("given up", async move {
                            sleep(LAST_CHUNKS).await;
                            let _ = answered.send(input).await;
                        });
                    }
                    // A session that is busy hears of it later, or of what follows.
                    _ => drop(answered.try_send(input)),
                }
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
        silent: BTreeMap<WorkflowName, Vec<(RunKey, PartitionId, i64)>>,
        logged: &mut BTreeMap<WorkflowName, Instant>,
    ) -> Result<(), bus::BusError> {
        logged.retain(|_, at| at.elapsed() < LOG_AGAIN);
        let mut found = Vec::new();
        for (workflow, runs) in silent {
            found.push((bus.work_progress(&workflow).await?, workflow, runs));
        }
        // After the consumers: what was delivered and acknowledged in between is gone, and not one that was never taken.
        let stored = bus.stored_work().await?;
        for (progress, workflow, runs) in found {
            let mut oldest_ms = 0;
            for (run, partition, idle_ms) in runs {
                let Some((news, is_not_taken, answered)) =
                    self.requests().on_state(partition, &run, progress.as_ref(), &stored, idle_ms)
                else {
                    continue;
                };
                if is_not_taken {
                    oldest_ms = oldest_ms.max(idle_ms);
                }
                if let Some(news) = news {
                    let _ = answered.send(input(run, news)).await;
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

    fn watched() -> WatchedRequest {
        WatchedRequest {
            seq: Seq(5),
            workflow: WorkflowName::parse("w").unwrap(),
            answered: mpsc::channel(1).0,
            known: Known::Nothing,
            max_deliveries: 3,
        }
    }

    fn progress(delivered: u64, acknowledged: u64) -> WorkProgress {
        let (delivered, acknowledged) = (Seq(delivered), Seq(acknowledged));
        WorkProgress { delivered, acknowledged, max_deliveries: Some(3) }
    }

    fn ack(deliveries: u32, kind: WorkAckKind) -> WorkAck {
        WorkAck { seq: Seq(5), deliveries, kind }
    }

    const TAKEN: RequestNews = RequestNews::Taken { deliveries: 0, is_alive: false };

    #[tokio::test(start_paused = true)]
    async fn state_of_the_servers_says_what_became_of_a_request() {
        let (stored, gone) = (StoredWork::of(1, 9, Some(vec![3])), StoredWork::of(1, 9, Some(vec![5])));
        let mut request = watched();
        assert_eq!(
            request.on_state(None, &stored, 1_000),
            Some(RequestNews::NotTaken),
            "no service has ever run"
        );
        assert_eq!(request.on_state(Some(&progress(4, 4)), &stored, 2_000), None, "as before");
        assert_eq!(request.on_state(Some(&progress(5, 4)), &stored, 3_000), Some(TAKEN));
        assert_eq!(
            request.on_state(Some(&progress(5, 4)), &stored, 31_000),
            None,
            "it may have said that it works"
        );
        tokio::time::advance(ACK_WAIT).await;
        assert_eq!(request.on_state(Some(&progress(5, 4)), &stored, 31_000), Some(RequestNews::Lost));
        assert_eq!(request.on_state(Some(&progress(9, 4)), &gone, 40_000), Some(RequestNews::Acknowledged));
        assert_eq!(request.on_state(Some(&progress(9, 9)), &gone, 50_000), None, "once");
        let unknown = StoredWork::of(1, 9, None);
        assert_eq!(watched().on_state(Some(&progress(9, 4)), &unknown, 1_000), Some(TAKEN));
        assert_eq!(
            watched().on_state(Some(&progress(9, 5)), &unknown, 1_000),
            Some(RequestNews::Acknowledged)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn answers_of_services_say_it_at_once() {
        let stored = StoredWork::of(1, 9, Some(Vec::new()));
        let back = WorkAckKind::HandedBack(Duration::from_secs(2));
        let mut request = watched();
        let alive = RequestNews::Taken { deliveries: 1, is_alive: true };
        assert_eq!(request.on_ack(&ack(1, WorkAckKind::InProgress)), alive);
        assert_eq!(request.on_ack(&ack(1, back)), RequestNews::HandedBack { deliveries: 1, again_ms: 2_000 });
        assert_eq!(
            request.on_state(Some(&progress(5, 4)), &stored, 60_000),
            None,
            "it is not taken again yet"
        );
        assert_eq!(request.on_ack(&ack(3, back)), RequestNews::GivenUp { deliveries: 3 });
        assert_eq!(request.on_ack(&ack(3, WorkAckKind::Done)), RequestNews::Acknowledged);
    }

    #[test]
    fn requests_are_forgotten_with_their_turns() {
        let watch = RequestWatch::default();
        let thread = model::ThreadId::parse("t").unwrap();
        let turn = |name| TurnId::foreground(&thread, name).unwrap();
        let workflow = || WorkflowName::parse("w").unwrap();
        let (answered, _answers) = mpsc::channel(1);
        for (seq, name) in [(1, "a"), (2, "b")] {
            watch.insert(PartitionId(0), (turn(name), 0), Seq(seq), workflow(), answered.clone());
        }
        watch.ask(PartitionId(0), vec![(turn("a"), 0, 1_000), (turn("b"), 0, 1_000), (turn("c"), 0, 1_000)]);
        watch.retain(PartitionId(1), |_| false);
        watch.retain(PartitionId(0), |kept| *kept == turn("b"));
        let mut requests = watch.requests();
        assert_eq!(requests.by_seq.len(), 1);
        let silent = requests.take_silent();
        assert_eq!(
            silent.into_values().flatten().collect::<Vec<_>>(),
            [((turn("b"), 0), PartitionId(0), 1_000)]
        );
        assert!(requests.on_ack(&ack(1, WorkAckKind::Done)).is_none(), "it is not known");
    }
}
