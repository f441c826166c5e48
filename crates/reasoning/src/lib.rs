//! Focused reasoning threads: an agent sees its thread numbered, replaces a stretch of it by a summary in place, and takes that back
//! exactly.
//!
//! Entry points: [`ShownThread`] is what is shown of a session, [`render`] how a model sees it, [`compress`] decides on a compression,
//! [`append`] on new messages. [`ReasoningThreadStack`] is the whole session in memory: what a store must do with these decisions.
//!
//! Invariants: messages are never changed and never deleted, a [`Layer`] says which are shown and in which order; a number is given
//! once; a call and its result are shown both or neither; what is refused changes nothing. Nothing here knows where sessions are kept.

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
