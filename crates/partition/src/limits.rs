//! Every number that bounds a partition. The simulation shrinks them.

/// Batches of the outbox that may wait to be published; beyond it no turn begins and no timer fires.
pub(crate) const MOST_UNSENT: usize = 1_000;

/// Bounds of one partition; the defaults are those of the requirements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionLimits {
    /// Chunks of one message.
    pub chunks_per_message: u32,
    /// Bytes of one message.
    pub message_bytes: usize,
    /// A gap that is open for so long, ms, fails its message.
    pub gap_timeout_ms: i64,
    /// A message without any chunk for so long, ms, fails.
    pub stall_timeout_ms: i64,
    /// How often stalls are looked for, ms.
    pub sweep_ms: i64,
    /// How often gaps are checked, ms.
    pub tick_ms: i64,
    /// Where a new owner would read more entries than this from the checkpoint on, what is open is saved, the oldest first.
    pub replay_entries: u64,
    /// The same in bytes of entries.
    pub replay_bytes: u64,
    /// The same in bytes of the keys of commands, which are remembered as far as the checkpoint is behind.
    pub replay_command_bytes: usize,
    /// Size in bytes at which one save is full; a message that waits behind a gap may exceed it by its own size.
    pub save_bytes: usize,
    /// Most finished inputs in one commit.
    pub commit_turns: usize,
    /// Size in bytes at which a commit is full.
    pub commit_bytes: usize,
    /// A checkpoint that moved without anything to write is written this often, ms.
    pub checkpoint_ms: i64,
    /// Bytes of the keys of ended messages that are remembered, so that duplicates that follow soon need no look-up. Whatever
    /// is forgotten is looked up, so nothing but speed depends on it.
    pub remembered_bytes: usize,
    /// Most that the time of gaps and stalls moves between two entries while the reader is behind, and between two
    /// inputs while it is not, ms: an outage of the stream or of this process is no silence of the publishers. Above
    /// `tick_ms`.
    pub stream_step_ms: i64,
    /// Turns under way at once; further ones wait.
    pub active_turns: usize,
    /// Inputs that wait because their agent may not begin them. They are in memory, and what would end the wait comes through the same stream: a
    /// further one fails, and can be retried.
    pub postponed_turns: usize,
    /// Tasks of one agent that are in memory; the others wait in the store.
    pub queue_window: usize,
    /// Timers that are in memory, the next ones that are due; the others wait in the store.
    pub timer_window: usize,
    /// Bytes of chunks in one frame to gateways, well below what NATS takes in one message.
    pub frame_bytes: usize,
    /// Threads whose last frame is remembered; see [`FrameNumber`](model::FrameNumber).
    pub numbered_threads: usize,
    /// Bytes of refused entries that wait to be stored as dead letters; at more nothing is read until the store has some of them.
    pub refused_bytes: usize,
    /// Agents and threads may be created by using them.
    pub create_agents: bool,
    /// Whether [`MachineReport::OutOfOrder`](crate::MachineReport) and `Finalized` are wanted, for a log that shows them.
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
