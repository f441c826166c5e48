//! Streams of partitions, of turn requests, of turns' ends and of tool calls. Creates, describes
//! and purges them.

use std::time::Duration;

use async_nats::jetstream::stream::{
    ClusterInfo, Config, DiscardPolicy, Info, PeerInfo, RetentionPolicy, StorageType, Stream,
    SubjectTransform,
};
use futures_util::StreamExt;
use model::{PartitionCount, PartitionId, Seq, Timestamp};
use runtime::Backoff;
use tokio::time::Instant;
use uuid::Uuid;
use wire::subject;

use crate::connection::Bus;
use crate::error::{BusError, Disposition};
use crate::installation::INSTALLATION;

/// The key of a stream's incarnation id in its metadata. The id is assigned when the stream is
/// created.
pub const INCARNATION: &str = "antiphon.incarnation";

/// Maximum number of readers of one stream: those of its owner and recent owners, and tools of
/// people.
const MAX_CONSUMERS: i32 = 32;

/// The longest life of a turn request. A turn may wait for a person's decision about a tool call,
/// and must not lose its request.
const WORK_MAX_AGE: Duration = TOOL_CALLS_MAX_AGE;
/// How long integrators may be away without missing ends of turns.
const TURNS_MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Results of tools are kept for turns that are retried, as long as a `task_id` stays reserved.
const TOOL_CALLS_MAX_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// The stream of tool calls gets the bytes of another stream divided by this number.
const TOOL_CALLS_PART: i64 = 4;
/// Long enough for a takeover: a new owner may publish messages that the previous owner has
/// published already.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(600);

/// Maximum time since a follower's last message. Replicas elect no other leader for four seconds
/// after a message of their leader, and a leader receives a message from each of them every second.
const LEADERSHIP: Duration = Duration::from_secs(2);

/// How long [`Bus::ensure_streams`] tries while JetStream is starting or electing.
const CREATE_TIMEOUT: Duration = Duration::from_secs(30);
/// Streams created concurrently.
const CONCURRENT_STREAMS: usize = 8;

/// The settings of an installation's streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamOptions {
    /// Number of replicas: 3 in production, with `sync_interval: always` on the servers.
    pub replicas: usize,
    /// Bytes per stream, reserved on disk; the stream of tool calls gets a quarter. When full, the
    /// streams of partitions and of turn requests refuse publishers and never drop entries. Those
    /// of turns' ends and of tool calls drop the oldest entries.
    pub max_bytes: i64,
    /// Largest entry of a partition in bytes, headers included.
    pub max_message_bytes: i32,
    /// The installation that the streams belong to, and whether it takes over streams of another
    /// one.
    pub owner: StreamOwner,
}

/// The owner of streams, which is checked and written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StreamOwner {
    /// Ownership is neither checked nor marked: for a server that only one program uses.
    #[default]
    Unmarked,
    /// Accepts streams of this installation and unmarked ones; refuses those of another one.
    Installation(String),
    /// From now on the streams belong to this installation, even those of another one.
    Adopted(String),
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { replicas: 1, max_bytes: 1 << 30, max_message_bytes: 1 << 20, owner: StreamOwner::Unmarked }
    }
}

/// The state of a partition stream at one moment, reported by its leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamState {
    /// The lowest sequence that the stream still has, or the one after the last when the stream is
    /// empty.
    pub first_seq: Seq,
    /// The last sequence ever assigned.
    pub last_seq: Seq,
    /// The id assigned at creation. Another id means another stream with unrelated sequences.
    pub incarnation: String,
    pub bytes: u64,
    /// Limit of the stream in bytes; `None`: it has no limit of its own.
    pub max_bytes: Option<u64>,
    pub messages: u64,
    /// When the stream was created, by the server clock.
    pub created_at: Timestamp,
    /// The configured number of replicas.
    pub replicas: usize,
}

impl StreamState {
    fn of(info: &Info) -> Self {
        let last_seq = Seq(info.state.last_sequence);
        // A stream that never held an entry reports 0.
        let first_seq =
            if info.state.messages == 0 { last_seq.next() } else { Seq(info.state.first_sequence) };
        Self {
            first_seq,
            last_seq,
            incarnation: info.config.metadata.get(INCARNATION).cloned().unwrap_or_default(),
            bytes: info.state.bytes,
            max_bytes: u64::try_from(info.config.max_bytes).ok().filter(|bytes| *bytes > 0),
            messages: info.state.messages,
            created_at: Timestamp(to_ms(info.created.unix_timestamp_nanos())),
            replicas: info.config.num_replicas,
        }
    }
}

/// True if an answer comes from the stream's leader, and a majority of the replicas follows that
/// leader. Otherwise another leader may have taken over and stored more. Replicas without a leader
/// answer too, and a leader that was cut off answers for up to 20 s.
pub(crate) fn is_led(info: &Info) -> bool {
    info.config.num_replicas <= 1 || info.cluster.as_ref().is_some_and(has_majority)
}

fn has_majority(cluster: &ClusterInfo) -> bool {
    let is_led = cluster.leader.as_ref().is_some_and(|leader| !leader.is_empty());
    // Zero means never active.
    let follows =
        |replica: &&PeerInfo| !replica.active.is_zero() && replica.active < LEADERSHIP && !replica.offline;
    let followers = cluster.replicas.iter().filter(follows).count();
    is_led && (followers + 1) * 2 > cluster.replicas.len() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leader_counts_while_a_majority_follows_it() {
        let cluster = |leader: &str, silent_ms: &[u64]| {
            let replica = |ms: &u64| {
                let ns = ms * 1_000_000;
                serde_json::json!({"name": "n", "current": true, "active": ns, "offline": false})
            };
            let replicas: Vec<_> = silent_ms.iter().map(replica).collect();
            let cluster = serde_json::json!({"name": "c", "leader": leader, "replicas": replicas});
            serde_json::from_value::<ClusterInfo>(cluster).expect("as the server says it")
        };
        assert!(has_majority(&cluster("n0", &[900, 1_100])));
        assert!(has_majority(&cluster("n0", &[900, 60_000])), "two of three");
        assert!(!has_majority(&cluster("n0", &[2_100, 60_000])), "it may have been deposed");
        assert!(!has_majority(&cluster("n0", &[0, 0])), "never heard");
        assert!(!has_majority(&cluster("", &[900, 900])), "nothing leads");
        assert!(!has_majority(&cluster("n0", &[900, 3_000, 3_000, 3_000])), "two of five");
    }
}

fn to_ms(nanos: i128) -> i64 {
    i64::try_from(nanos / 1_000_000).unwrap_or(i64::MAX)
}

pub(crate) fn to_ns(nanos: i128) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

impl Bus {
    /// Creates all streams, or updates them to `options`: those of the partitions, of turn
    /// requests, of turns' ends and of tool calls. A partition's incarnation is written once, when
    /// its stream has none.
    ///
    /// # Errors
    /// [`BusError::OtherInstallation`], before anything is changed. JetStream refuses, or is not
    /// available within half a minute.
    pub async fn ensure_streams(
        &self,
        count: PartitionCount,
        options: &StreamOptions,
    ) -> Result<(), BusError> {
        let kinds = count.all().map(StreamKind::Partition).chain([
            StreamKind::Work,
            StreamKind::Turns,
            StreamKind::ToolCalls,
        ]);
        self.ensure_all(kinds, options).await
    }

    pub(crate) async fn ensure_all(
        &self,
        kinds: impl Iterator<Item = StreamKind> + Clone,
        options: &StreamOptions,
    ) -> Result<(), BusError> {
        let give_up_at = Instant::now() + CREATE_TIMEOUT;
        let names = || kinds.clone().map(StreamKind::name);
        if let StreamOwner::Installation(ours) = &options.owner {
            self.until(give_up_at, || self.check_streams(names(), ours)).await?;
        }
        // The streams are created concurrently: in sequence they take a minute over a slow link.
        let is_last = |kind: &StreamKind| matches!(kind, StreamKind::ToolCalls);
        let ensured = futures_util::stream::iter(kinds.clone().filter(|kind| !is_last(kind)))
            .map(|kind| self.ensure_until(kind, options, give_up_at))
            .buffer_unordered(CONCURRENT_STREAMS);
        // All of these run to their end, because an abandoned request may be carried out after the
        // caller has cleaned up.
        let ensured: Vec<Result<(), BusError>> = ensured.collect().await;
        ensured.into_iter().collect::<Result<(), _>>()?;
        // This stream comes last, because it may fit where the others do not, and would take their
        // room.
        for kind in kinds.clone().filter(is_last) {
            self.ensure_until(kind, options, give_up_at).await?;
        }
        // Another fleet may have created the streams concurrently.
        match &options.owner {
            StreamOwner::Unmarked => Ok(()),
            StreamOwner::Installation(ours) | StreamOwner::Adopted(ours) => {
                self.until(give_up_at, || self.check_streams(names(), ours)).await
            }
        }
    }

    async fn until<F: Future<Output = Result<(), BusError>>>(
        &self,
        give_up_at: Instant,
        ask: impl Fn() -> F,
    ) -> Result<(), BusError> {
        let mut backoff = Backoff::default();
        while let Err(error) = ask().await {
            if error.disposition() != Disposition::Retry || Instant::now() > give_up_at {
                return Err(error);
            }
            tracing::warn!(%error, "the streams cannot be looked at yet");
            tokio::time::sleep(backoff.next_delay()).await;
        }
        Ok(())
    }

    async fn ensure_until(
        &self,
        kind: StreamKind,
        options: &StreamOptions,
        give_up_at: Instant,
    ) -> Result<(), BusError> {
        let mut backoff = Backoff::default();
        let explained = |error| match error {
            BusError::JetStream { code: 10074, .. } => BusError::NoCluster { replicas: options.replicas },
            BusError::JetStream { code: 10047, .. } => {
                BusError::NoStorage { stream: kind.name().to_owned(), max_bytes: kind.max_bytes(options) }
            }
            error => error,
        };
        while let Err(error) = self.ensure_stream(kind, options).await.map_err(explained) {
            if error.disposition() != Disposition::Retry || Instant::now() > give_up_at {
                return Err(error);
            }
            tracing::warn!(stream = kind.name(), %error, "the stream cannot be made yet");
            tokio::time::sleep(backoff.next_delay()).await;
        }
        Ok(())
    }

    async fn ensure_stream(&self, kind: StreamKind, options: &StreamOptions) -> Result<(), BusError> {
        let existing = match self.info_of(kind.name()).await {
            Ok(info) => info,
            Err(BusError::NoStream(_)) => return self.create_stream(kind, options).await,
            Err(error) => return Err(error),
        };
        let wanted = kind.adapt(existing.config.clone(), options);
        if wanted == existing.config {
            return Ok(());
        }
        self.shared.api.update_stream(wanted).await?;
        tracing::info!(stream = kind.name(), "stream updated");
        Ok(())
    }

    async fn create_stream(&self, kind: StreamKind, options: &StreamOptions) -> Result<(), BusError> {
        let new = kind.adapt(kind.new_config(), options);
        match self.shared.api.create_stream(new).await.map_err(BusError::from) {
            // Another process has created it concurrently with another incarnation, which is the
            // valid one.
            Err(BusError::JetStream { code: 10058, .. }) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => {
                tracing::info!(stream = kind.name(), "stream made");
                Ok(())
            }
        }
    }

    /// The state of a partition's stream, from its leader.
    ///
    /// # Errors
    /// [`BusError::NoStream`] when it does not exist. [`BusError::NoLeader`] when no leader has a
    /// majority of its replicas. Otherwise the servers do not answer.
    pub async fn stream_state(&self, partition: PartitionId) -> Result<StreamState, BusError> {
        let info = self.stream_info(partition).await?;
        match is_led(&info) {
            true => Ok(StreamState::of(&info)),
            false => Err(BusError::NoLeader(info.config.name)),
        }
    }

    /// Removes the entries of a partition below `seq` and returns how many.
    ///
    /// # Errors
    /// The errors of [`Self::stream_state`].
    pub async fn purge_below(&self, partition: PartitionId, seq: Seq) -> Result<u64, BusError> {
        // A purge to sequence 0 would empty the stream, and one beyond its end would move the end.
        // Neither is ever intended.
        let end = self.stream_state(partition).await?.last_seq.next();
        let keep_from = seq.min(end).0;
        if keep_from <= 1 {
            return Ok(0);
        }
        let stream = self.stream(partition).await?;
        Ok(stream.purge().sequence(keep_from).await?.purged)
    }

    pub(crate) async fn stream_info(&self, partition: PartitionId) -> Result<Info, BusError> {
        self.info_of(subject::stream_name(partition)).await
    }

    pub(crate) async fn info_of(&self, name: String) -> Result<Info, BusError> {
        Ok(self.named_stream(name).await?.get_info().await?)
    }

    pub(crate) async fn stream(&self, p: PartitionId) -> Result<Stream<()>, BusError> {
        self.named_stream(subject::stream_name(p)).await
    }

    pub(crate) async fn named_stream(&self, name: String) -> Result<Stream<()>, BusError> {
        let stream = self.shared.api.get_stream_no_info(name).await;
        stream.map_err(|error| BusError::Unexpected(error.to_string()))
    }
}

/// The kinds of streams.
#[derive(Debug, Clone, Copy)]
pub(crate) enum StreamKind {
    Partition(PartitionId),
    /// The stream of a partition while the number of partitions is changed. It accepts moved
    /// entries of any size, and nothing from publishers.
    Moving(PartitionId),
    Work,
    Turns,
    /// A key-value bucket: it keeps the last entry of each subject.
    ToolCalls,
}

impl StreamKind {
    fn name(self) -> String {
        match self {
            Self::Partition(partition) | Self::Moving(partition) => subject::stream_name(partition),
            Self::Work => subject::WORK_STREAM.to_owned(),
            Self::Turns => subject::TURNS_STREAM.to_owned(),
            Self::ToolCalls => subject::TOOL_CALLS_STREAM.to_owned(),
        }
    }

    fn max_bytes(self, options: &StreamOptions) -> i64 {
        match self {
            // -1 means unlimited, so it is not divided.
            Self::ToolCalls if options.max_bytes > 0 => (options.max_bytes / TOOL_CALLS_PART).max(1),
            _ => options.max_bytes,
        }
    }

    /// The configuration of a new stream, with the settings that can never be changed.
    fn new_config(self) -> Config {
        let (retention, max_consumers) = match self {
            Self::Partition(_) | Self::Moving(_) => (RetentionPolicy::Limits, MAX_CONSUMERS),
            // One consumer for each workflow.
            Self::Work => (RetentionPolicy::WorkQueue, -1),
            Self::Turns | Self::ToolCalls => (RetentionPolicy::Limits, -1),
        };
        Config {
            name: self.name(),
            max_consumers,
            max_messages: -1,
            max_messages_per_subject: -1,
            storage: StorageType::File,
            retention,
            ..Config::default()
        }
    }

    /// Returns `config` with all changeable settings set to the required values.
    fn adapt(self, mut config: Config, options: &StreamOptions) -> Config {
        config.num_replicas = options.replicas;
        config.max_bytes = self.max_bytes(options);
        config.deny_purge = false;
        config.allow_direct = true;
        match &options.owner {
            StreamOwner::Unmarked => {}
            StreamOwner::Installation(id) => {
                config.metadata.entry(INSTALLATION.to_owned()).or_insert_with(|| id.clone());
            }
            StreamOwner::Adopted(id) => {
                config.metadata.insert(INSTALLATION.to_owned(), id.clone());
            }
        }
        match self {
            Self::Moving(partition) => {
                config = Self::Partition(partition).adapt(config, options);
                (config.max_bytes, config.max_message_size) = (-1, -1);
                config.subjects = vec![subject::moving_subjects(partition)];
                config.subject_transform = Some(SubjectTransform {
                    source: subject::moving_subjects(partition),
                    destination: subject::moved_subjects(partition),
                });
            }
            Self::Partition(partition) => {
                config.subjects = subject::stream_subjects(partition);
                config.subject_transform = None;
                config.max_message_size = options.max_message_bytes;
                config.max_age = Duration::ZERO;
                config.discard = DiscardPolicy::New;
                config.deny_delete = true;
                config.metadata.entry(INCARNATION.to_owned()).or_insert_with(|| Uuid::now_v7().to_string());
            }
            Self::Work => {
                config.subjects = vec![subject::ALL_WORK.to_owned()];
                config.max_age = WORK_MAX_AGE;
                config.duplicate_window = DUPLICATE_WINDOW;
                config.discard = DiscardPolicy::New;
                // Requests that are no longer awaited must be deletable.
                config.deny_delete = false;
            }
            Self::Turns => {
                config.subjects = vec![subject::ALL_TURNS.to_owned()];
                config.max_age = TURNS_MAX_AGE;
                config.duplicate_window = DUPLICATE_WINDOW;
                config.discard = DiscardPolicy::Old;
            }
            Self::ToolCalls => {
                config.subjects =
                    [subject::ALL_TOOL_CALLS, subject::ALL_TOOL_INCIDENTS].map(str::to_owned).to_vec();
                config.max_messages_per_subject = 1;
                config.max_age = TOOL_CALLS_MAX_AGE;
                // If the bucket is full of old results, tools must still be callable.
                config.discard = DiscardPolicy::Old;
            }
        }
        config
    }
}
