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
    /// Its name in leases and logs; unique among processes.
    pub worker_id: String,
    /// How long a lease lasts without being renewed.
    pub lease: Duration,
    /// Partitions of the fleet, as stored.
    pub partitions: PartitionCount,
    /// Whether a chunk for an unknown thread creates it, or fails its message.
    pub create_threads: bool,
    /// Bounds of each partition.
    pub limits: PartitionLimits,
    /// Bytes of text and metadata of one chunk.
    pub chunk_bytes: usize,
    /// Open messages of the whole worker; beyond it new ones wait in the stream.
    pub open_messages: usize,
    /// Bytes of open messages of the whole worker; beyond it new ones wait in the stream, and beyond twice as much the
    /// largest are forgotten and read again later.
    pub buffer_bytes: usize,
    /// Bytes of the ends of threads that the worker remembers, with their JSON, so that their next turns read and encode only what is new.
    pub thread_cache_bytes: usize,
    /// Connections that commit.
    pub writers: usize,
    /// How long entries stay in the stream after they were used.
    pub stream_retain: Duration,
    /// Age and size limits of operational records.
    pub cleanup: CleanupConfig,
    /// Interval at which the retention rules of agents are applied.
    pub retention_every: Duration,
    /// Rules of turns for agents whose settings do not set them.
    pub rules: TurnRules,
    /// The workflow of agents without settings.
    pub default_workflow: WorkflowName,
    /// How many turns of a workflow, a model or a tenant run at once, in the whole fleet.
    pub turn_limits: TurnLimits,
    /// Makes vectors of facts, and of what memory is asked about; `None`: memory is searched by words alone.
    pub embeddings: Option<Embeddings>,
    /// Workflows that answer inside this process.
    pub local_workflows: LocalWorkflows,
}

impl WorkerConfig {
    /// The defaults of the requirements.
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
            thread_cache_bytes: 64 << 20,
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
