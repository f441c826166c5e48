//! Limits of a session.

/// Maximum bytes of one message's text.
pub const MAX_CONTENT_BYTES: usize = 1024 * 1024;
/// Maximum bytes of a summary.
pub const MAX_SUMMARY_BYTES: usize = 64 * 1024;
/// Maximum messages in one append.
pub const MAX_MESSAGES_PER_APPEND: usize = 100;
/// Maximum calls in one message.
pub const MAX_CALLS_PER_MESSAGE: usize = 128;
/// Maximum bytes of one call's arguments.
pub const MAX_ARGUMENTS_BYTES: usize = 256 * 1024;
/// Maximum bytes of a provider's signature.
pub const MAX_SIGNATURE_BYTES: usize = 64 * 1024;
/// The highest number that an append assigns.
pub const MAX_MESSAGES_PER_SESSION: u64 = 100_000;
/// The highest number that a summary can have. It is higher, so that a full session can still be
/// compressed.
pub const MAX_SUMMARY_NUMBER: u64 = 110_000;
/// Maximum numbers in one request.
pub const MAX_NUMBERS_PER_REQUEST: usize = 10_000;
/// Maximum summaries shown at the same time. Each layer lists the shown messages, so its size grows
/// with the number of summaries.
pub const MAX_SUMMARIES_SHOWN: usize = 1_000;
/// Maximum items of a plan.
pub const MAX_PLAN_ITEMS: usize = 100;
/// Maximum bytes of a plan's item.
pub const MAX_PLAN_ITEM_BYTES: usize = 1_000;
/// Maximum checkpoints of a session.
pub const MAX_CHECKPOINTS: usize = 100;
/// Maximum base layers of a session.
pub const MAX_SOURCES: usize = 16;
/// Maximum bytes of the name of a tool, a call, a checkpoint or a request.
pub const MAX_NAME_BYTES: usize = 128;
/// Characters of a message shown in the discarded log.
pub const DISCARDED_SHOWN_CHARS: u32 = 200;
/// Characters of a summary shown there.
pub const SUMMARY_SHOWN_CHARS: u32 = 1_000;
/// Maximum characters of a tool result that is shown; of a longer result, only the size is shown.
/// Stored blocks keep the limit that applied when they were made.
pub const TOOL_RESULT_SHOWN_CHARS: u32 = 200;
