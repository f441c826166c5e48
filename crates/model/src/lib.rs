//! The domain types of Antiphon: ids, buckets, positions, chunks, messages, metadata. They contain
//! only invariants: every value is valid, and every fallible constructor returns what was wrong.
//!
//! Nothing here knows an encoding, a subject, a table or a clock.

mod agent_setting;
mod answer_calls;
mod answer_report;
mod bucket;
mod chunk;
mod command;
mod dead_letter;
mod failure;
mod follow_up;
mod halves;
mod id;
mod input_author;
mod live_frame;
mod mark;
mod memory_tool;
mod message;
mod metadata;
mod model_call;
mod note;
mod open_input;
mod origin;
mod origin_keys;
mod position;
mod prices;
pub mod quoting;
mod reasoning_tool;
mod status;
mod task;
mod task_kind;
mod task_origin;
mod thread_title;
mod time;
mod timer;
mod token;
mod token_counts;
mod turn;
mod turn_budget;
mod turn_opened;

pub use agent_setting::{AgentSetting, MAX_CONTEXT_TOKENS, MEMORY_LANGUAGES, SettingKind};
pub use answer_calls::AnswerCalls;
pub use answer_report::{AnswerReport, FinishReason};
pub use bucket::{BUCKETS, Bucket, InvalidPartitionCount, PartitionCount, PartitionId};
pub use chunk::{Chunk, ChunkKind, Frame, IncomingChunk, InvalidChunk, MAX_CHUNK_ID, Role};
pub use command::{Command, Control, ControlKind};
pub use dead_letter::{DeadLetter, DeadLetterSource, FailedMessage, RejectedEntry};
pub use failure::{IdRange, MessageFailure};
pub use follow_up::{FollowUpHint, InvalidFollowUpHint, TriggerType};
pub use halves::Halves;
pub use id::{
    AgentId, BudgetName, CommandId, GatewayId, InvalidId, MAX_ID_LEN, MAX_TENANT_LEN, MessageId, MessageKey,
    ReasoningSessionId, ScheduleName, TENANT_MARK, TaskId, Tenant, ThreadId, WorkflowName,
};
pub use input_author::InputAuthor;
pub use live_frame::{LiveFrame, MessageEnd};
pub use mark::Mark;
pub use memory_tool::{MEMORY_SEARCH, MEMORY_TOOLS, is_memory_search, is_memory_tool, is_withheld_tool};
pub use message::{
    BatchType, Cut, FrameNumber, KnownMessage, Message, MessageOutcome, MessageTimes, PartialText, Placement,
};
pub use metadata::{InvalidMetadata, MAX_EXACT_INTEGER, Metadata};
pub use model_call::{ListedCall, ModelCall, UsageKind};
pub use note::Note;
pub use open_input::OpenInput;
pub use origin::{ContinuedBatch, RequestedBatch, TurnOrigin};
pub use position::{Position, PositionMark, Positions};
pub use prices::{InvalidPrices, Price, PriceTable};
pub use reasoning_tool::{REASONING_TOOLS, is_reasoning_tool};
pub use status::{
    ActiveTurn, BusyThread, BusyThreads, OpenBatch, OpenBatchMessage, OpenInputs, OpenMessageStatus,
    QueryTarget, QueueStatus, RequestInfo, WaitNotice, WaitReason, WaitingTurn,
};
pub use task::{DelayedTask, QueuedTask, Task, TaskEdit};
pub use task_kind::TaskKind;
pub use task_origin::{FollowedTurn, TaskOrigin, stored_source_thread};
pub use thread_title::{ThreadTitle, TitleSource};
pub use time::{Seq, Timestamp};
pub use timer::{InvalidTimerId, TimerId, TimerKind};
pub use token::{InvalidTokenKey, TokenKey, TokenKeys, TurnToken};
pub use token_counts::TokenCounts;
pub use turn::{
    BusyPolicy, ErrorClass, InvalidTurnId, RetryHint, TurnError, TurnId, TurnOptions, Unanswered,
};
pub use turn_budget::{InvalidTurnBudget, TurnBudget, TurnUse};
pub use turn_opened::TurnOpened;
