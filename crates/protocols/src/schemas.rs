//! Forms of texts: what ids, positions and names look like in what is written here, for descriptions of it.
//!
//! None of these types has values. They lend their form to fields that are plain texts in the code.

use model::{BatchType, ChunkKind, FinishReason, MAX_ID_LEN, Role};
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

/// A type without values that lends its form to fields.
#[macro_export]
macro_rules! schema {
    ($(#[doc = $doc:literal])+ $type:ident as $name:literal, $schema:expr) => {
        $(#[doc = $doc])+
        #[derive(Debug)]
        pub enum $type {}

        impl ::utoipa::PartialSchema for $type {
            fn schema() -> ::utoipa::openapi::RefOr<::utoipa::openapi::Schema> {
                let described = concat!($($doc),+).trim();
                ::utoipa::openapi::schema::ObjectBuilder::from($schema).description(Some(described)).into()
            }
        }

        impl ::utoipa::ToSchema for $type {
            fn name() -> ::std::borrow::Cow<'static, str> {
                ::std::borrow::Cow::Borrowed($name)
            }
        }
    };
}

/// Text of a pattern, of at most so many characters.
pub fn text(pattern: &str, most: usize, example: &str) -> Object {
    let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern));
    text.min_length(Some(1)).max_length(Some(most)).examples([example]).build()
}

/// An id.
pub fn id(example: &str) -> Object {
    text("^[A-Za-z0-9_-]{1,128}$", MAX_ID_LEN, example)
}

/// One of these texts.
pub fn one_of<const N: usize>(names: [&'static str; N]) -> Object {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).build()
}

schema! {
    /// Why an answer ended: the model had said all, its text is cut at a limit of tokens, the provider withheld the rest, it asked for tools
    /// whose results did not come, or its turn was stopped.
    FinishReasonSchema as "FinishReason", one_of(FinishReason::ALL.map(FinishReason::name))
}

const BATCH_TYPES: [BatchType; 4] =
    [BatchType::UserRequest, BatchType::AgentToAgent, BatchType::SystemTrigger, BatchType::Continuation];

schema! {
    /// An object with any members. It has a name, because openapi-python-client makes names of anonymous objects in variants twice.
    AnyObject as "AnyObject", ObjectBuilder::new().build()
}

schema! {
    /// The id of a thread.
    ThreadIdSchema as "ThreadName", id("hello")
}

schema! {
    /// The id of an agent.
    AgentIdSchema as "AgentName", id("ann")
}

schema! {
    /// The id of a message, unique within its thread.
    MessageIdSchema as "MessageName", id("u01f3-0198c4d2e5f57a60b1d3c8a94e27f610-a")
}

schema! {
    /// The id of a turn.
    TurnIdSchema as "TurnName", text(
        "^[ut]0[0-3][0-9a-f]{2}-[A-Za-z0-9_-]{1,90}$", 96, "u01f3-0198c4d2e5f57a60b1d3c8a94e27f610",
    )
}

schema! {
    /// The id of a response: `resp_`, and the id of the answer.
    ResponseIdSchema as "ResponseName", text(
        "^resp_[A-Za-z0-9_-]{1,128}$", 133, "resp_u01f3-0198c4d2e5f57a60b1d3c8a94e27f610-a",
    )
}

schema! {
    /// The position of a message, or of the batch that begins with it: a number up to 2^63-1 as text, because JSON's numbers lose
    /// digits. Later messages have higher positions.
    PositionSchema as "PositionText", text("^[0-9]{1,19}$", 19, "7524873984012345344")
}

schema! {
    /// Who says a message.
    RoleSchema as "RoleText", one_of(Role::ALL.map(Role::name))
}

schema! {
    /// What began a batch.
    BatchTypeSchema as "BatchTypeText", one_of(BATCH_TYPES.map(BatchType::name))
}

schema! {
    /// What a chunk holds.
    ChunkTypeSchema as "ChunkTypeText", one_of(ChunkKind::ALL.map(ChunkKind::name))
}

schema! {
    /// The kind of events that are no chunks.
    SystemSchema as "SystemText", one_of(["system"])
}

schema! {
    /// The message is stored.
    MessageCompleteSchema as "MessageCompleteText", one_of(["message_complete"])
}

schema! {
    /// Whether the message is whole, or stored as far as it had come when its turn was stopped.
    StatusSchema as "StatusText", one_of(["completed", "stopped"])
}

schema! {
    /// The kind of the event that a message ends with which was given up.
    ErrorSchema as "ErrorText", one_of(["error"])
}

schema! {
    /// What kind of object it is.
    CompletionSchema as "CompletionText", one_of(["chat.completion"])
}

schema! {
    /// What kind of object it is.
    CompletionChunkSchema as "CompletionChunkText", one_of(["chat.completion.chunk"])
}

schema! {
    /// What kind of object it is.
    ResponseSchema as "ResponseText", one_of(["response"])
}

schema! {
    /// How far a response is.
    ResponseStatusSchema as "ResponseStatusText", one_of(["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"])
}

schema! {
    /// How far an item of a response is.
    ItemStatusSchema as "ItemStatusText", one_of(["in_progress", "completed", "incomplete", "failed"])
}
