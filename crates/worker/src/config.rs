//! The configuration of a worker.

use std::time::Duration;

use embeddings::Embeddings;
use model::{PartitionCount, WorkflowName};
use partition::{PartitionLimits, TurnRules};
use scheduling::turn_limits::TurnLimits;

use crate::cleanup::CleanupConfig;
use crate::local_workflows::LocalWorkflows;

/// Settings of a worker.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// Name in leases and logs; unique among processes.
    pub worker_id: String,
    /// Duration of a lease that is not renewed.
    pub lease: Duration,
    /// Number of partitions of the fleet, as stored.
    pub partitions: PartitionCount,
    /// True: a chunk for an unknown thread creates it; false: its message fails.
    pub create_threads: bool,
    /// Limits of each partition.
    pub limits: PartitionLimits,
    /// Maximum bytes of text and metadata of one chunk.
    pub chunk_bytes: usize,
    /// Maximum number of open messages of the whole worker; beyond it new ones wait in the stream.
    pub open_messages: usize,
    /// Maximum bytes of open messages of the whole worker. Beyond it new messages wait in the
    /// stream; beyond twice the limit the largest are dropped and read again later.
    pub buffer_bytes: usize,
    /// Maximum bytes of cached ends of threads and their JSON. With the cache, the next turns read
    /// and encode only new messages.
    pub thread_cache_bytes: usize,
    /// Number of connections that commit.
    pub writers: usize,
    /// Time that entries stay in the stream after use.
    pub stream_retain: Duration,
    /// Age and size limits of operational records.
    pub cleanup: CleanupConfig,
    /// Interval at which the retention rules of agents are applied.
    pub retention_every: Duration,
    /// Rules of turns for agents whose settings do not set them.
    pub rules: TurnRules,
    /// Workflow of agents without settings.
    pub default_workflow: WorkflowName,
    /// Limits on concurrent turns of a workflow, model or tenant, in the whole fleet.
    pub turn_limits: TurnLimits,
    /// Endpoint for vectors of facts and of memory queries; `None`: memory is searched by words
    /// only.
    pub embeddings: Option<Embeddings>,
    /// Workflows that answer inside this process.
    pub local_workflows: LocalWorkflows,
}

impl WorkerConfig {
    /// Creates a configuration with the defaults from the requirements.
    pub fn new(worker_id: String, partitions: PartitionCount, default_workflow: WorkflowName) -> Self {
        Self {
            worker_id,
            lease: Duration::from_secs(10),
            partitions,
            create_threads: true,
            limits: PartitionLimits::default(),
            chunk_bytes: 64 << 10,
            open_messages: 10_000,
            buffer_bytes: 256 << 20,
            // A quarter of the default for open messages, which matter more.
            thread_cache_bytes: 64 << 20,
            // Commits are batched: few connections suffice, and Postgres keeps its own for others.
            writers: 2,
            stream_retain: Duration::from_secs(60),
            cleanup: CleanupConfig::default(),
            retention_every: Duration::from_secs(600),
            rules: TurnRules::default(),
            default_workflow,
            turn_limits: TurnLimits::default(),
            embeddings: None,
            local_workflows: LocalWorkflows::default(),
        }
    }
}
