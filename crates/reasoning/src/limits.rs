//! Bounds of a session.

/// Longest text of one message, in bytes.
pub const MAX_CONTENT_BYTES: usize = 1024 * 1024;
/// Longest summary, in bytes.
pub const MAX_SUMMARY_BYTES: usize = 64 * 1024;
/// Messages of one append.
pub const MAX_MESSAGES_PER_APPEND: usize = 100;
/// Calls of one message.
pub const MAX_CALLS_PER_MESSAGE: usize = 128;
/// Longest arguments of one call, in bytes.
pub const MAX_ARGUMENTS_BYTES: usize = 256 * 1024;
/// Longest signature of a provider, in bytes.
pub const MAX_SIGNATURE_BYTES: usize = 64 * 1024;
/// The highest number that an append gives.
pub const MAX_MESSAGES_PER_SESSION: u64 = 100_000;
/// The highest number that a summary takes: a session that is full can still be compressed.
pub const MAX_SUMMARY_NUMBER: u64 = 110_000;
/// Numbers in one request.
pub const MAX_NUMBERS_PER_REQUEST: usize = 10_000;
/// Summaries that are shown at the same time: each layer says what is shown, and so is as long as there are summaries in it.
pub const MAX_SUMMARIES_SHOWN: usize = 1_000;
/// Items of a plan.
pub const MAX_PLAN_ITEMS: usize = 100;
/// Longest item of a plan, in bytes.
pub const MAX_PLAN_ITEM_BYTES: usize = 1_000;
/// Checkpoints of a session.
pub const MAX_CHECKPOINTS: usize = 100;
/// Base layers of a session.
pub const MAX_SOURCES: usize = 16;
/// Longest name of a tool, a call, a checkpoint or a request, in bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// Characters that a page of the discarded log shows of a message.
pub const DISCARDED_SHOWN_CHARS: u32 = 200;
/// Characters that it shows of a summary.
pub const SUMMARY_SHOWN_CHARS: u32 = 1_000;
/// A longer tool result is shown with its size alone. Blocks that a store has made keep what this said when they were made.
pub const TOOL_RESULT_SHOWN_CHARS: u32 = 200;
