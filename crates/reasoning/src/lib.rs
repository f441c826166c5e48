//! Focused reasoning threads: an agent sees its thread with numbers, replaces a range of it by a
//! summary in place, and can undo that exactly.
//!
//! Entry points: [`ShownThread`] is the shown part of a session, [`render`] formats it for a model,
//! [`compress()`] validates a compression, [`append()`] validates new messages.
//! [`ReasoningThreadStack`] is a whole session in memory: the reference for how a store applies
//! these decisions.
//!
//! Invariants: messages are never changed or deleted; a [`Layer`] lists which are shown, and in
//! which order. A number is assigned once. A call and its result are shown together or not at all.
//! A refusal changes nothing. This crate does not know where sessions are stored.

mod append;
mod compress;
mod layer;
mod limits;
mod message;
mod plan;
mod refusal;
mod runs;
mod session;
mod stack;
mod text;
mod thread;
mod token;
mod valid;
mod view;

pub use append::{NewMessage, NewMessages, append};
pub use compress::{Compression, CompressionRequest, Selection, compress};
pub use layer::{Checkpoint, Layer, LayerId, checkpoint_name, restorable};
pub use limits::{
    DISCARDED_SHOWN_CHARS, MAX_ARGUMENTS_BYTES, MAX_CALLS_PER_MESSAGE, MAX_CHECKPOINTS, MAX_CONTENT_BYTES,
    MAX_MESSAGES_PER_APPEND, MAX_MESSAGES_PER_SESSION, MAX_NAME_BYTES, MAX_NUMBERS_PER_REQUEST,
    MAX_PLAN_ITEM_BYTES, MAX_PLAN_ITEMS, MAX_SIGNATURE_BYTES, MAX_SOURCES, MAX_SUMMARIES_SHOWN,
    MAX_SUMMARY_BYTES, MAX_SUMMARY_NUMBER, SUMMARY_SHOWN_CHARS, TOOL_RESULT_SHOWN_CHARS,
};
pub use message::{Number, ReasoningRole, SessionCall, SessionMessage, message_id, number_of_message_id};
pub use plan::{Plan, PlanItem, PlanState};
pub use refusal::{Reason, Refusal, Valid};
pub use runs::{Runs, numbers_text};
pub use session::{ContextSource, ReasoningSession};
pub use stack::{Discarded, ReasoningThreadStack};
pub use text::check_text;
pub use thread::{ShownMessage, ShownThread};
pub use token::SnapshotToken;
pub use view::{ViewLine, message_text, plan_text, render};
