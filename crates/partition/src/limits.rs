//! All bounds of a partition. The simulation shrinks them.

/// Maximum number of unpublished outbox batches; above it no turn starts and no timer fires.
pub(crate) const MOST_UNSENT: usize = 1_000;

/// Bounds of one partition; the defaults are those of the requirements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionLimits {
    /// Chunks of one message.
    pub chunks_per_message: u32,
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Time after which an open gap fails its message, ms.
    pub gap_timeout_ms: i64,
    /// Time without any chunk after which a message fails, ms.
    pub stall_timeout_ms: i64,
    /// Interval of the check for stalls, ms.
    pub sweep_ms: i64,
    /// Interval of the check for gaps, ms.
    pub tick_ms: i64,
    /// Maximum number of entries that a new owner would read from the checkpoint on; above it, the
    /// oldest open items are saved.
    pub replay_entries: u64,
    /// The same bound in bytes of entries.
    pub replay_bytes: u64,
    /// The same bound in bytes of command keys, which are remembered as far back as the checkpoint.
    pub replay_command_bytes: usize,
    /// Size of a full save in bytes; a message that waits behind a gap may exceed it by its own
    /// size.
    pub save_bytes: usize,
    /// Maximum number of finished inputs in one commit.
    pub commit_turns: usize,
    /// Size of a full commit in bytes.
    pub commit_bytes: usize,
    /// Interval at which a moved checkpoint is written if there is nothing else to write, ms.
    pub checkpoint_ms: i64,
    /// Bytes of the remembered keys of ended messages. Duplicates that follow soon then need no
    /// look-up. Forgotten keys are looked up, so the limit affects only speed.
    pub remembered_bytes: usize,
    /// Largest step of the clock of gaps and stalls, ms: between two entries while the reader is
    /// behind, else between two inputs. An outage of the stream or of this process thus does not
    /// count as silence of the publishers. Must be above `tick_ms`.
    pub stream_step_ms: i64,
    /// Maximum number of turns under way; further ones wait.
    pub active_turns: usize,
    /// Maximum number of inputs that wait because their agent cannot start them yet. They are held
    /// in memory, because the commands that end the wait come through the same stream. A further
    /// input fails and can be retried.
    pub postponed_turns: usize,
    /// Tasks of one agent in memory; the others wait in the store.
    pub queue_window: usize,
    /// Timers in memory, those due next; the others wait in the store.
    pub timer_window: usize,
    /// Bytes of chunks in one frame to gateways, well below the NATS message limit.
    pub frame_bytes: usize,
    /// Threads whose last frame number is remembered; see [`FrameNumber`](model::FrameNumber).
    pub numbered_threads: usize,
    /// Bytes of refused entries that wait to be stored as dead letters; above it, reading stops
    /// until the store has some of them.
    pub refused_bytes: usize,
    /// True: agents and threads are created when they are first used.
    pub create_agents: bool,
    /// Whether [`MachineReport::OutOfOrder`](crate::MachineReport) and `Finalized` are reported.
    pub reports_chunks: bool,
}

impl Default for PartitionLimits {
    fn default() -> Self {
        Self {
            chunks_per_message: 10_000,
            message_bytes: 4 << 20,
            gap_timeout_ms: 30_000,
            stall_timeout_ms: 300_000,
            sweep_ms: 30_000,
            tick_ms: 1_000,
            replay_entries: 500_000,
            // This bounds the time of a takeover, whatever the size of the stream.
            replay_bytes: 256 << 20,
            replay_command_bytes: 8 << 20,
            save_bytes: 256 << 10,
            commit_turns: 256,
            commit_bytes: 1 << 20,
            checkpoint_ms: 1_000,
            remembered_bytes: 256 << 10,
            stream_step_ms: 2_000,
            active_turns: 1_000,
            postponed_turns: 256,
            queue_window: 8,
            timer_window: 4_096,
            frame_bytes: 256 << 10,
            numbered_threads: 65_536,
            refused_bytes: 8 << 20,
            create_agents: true,
            reports_chunks: false,
        }
    }
}
