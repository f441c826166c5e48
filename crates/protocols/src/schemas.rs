//! Schemas of texts: the form of ids, positions and names, for the API description.
//!
//! These types have no values. Fields that are plain texts in the code refer to them for their
//! schema.

use model::{BatchType, ChunkKind, FinishReason, MAX_ID_LEN, Role};
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};

/// Declares a type without values as the schema of fields.
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

/// A text that matches a pattern, of at most `most` characters.
pub fn text(pattern: &str, most: usize, example: &str) -> Object {
    let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern));
    text.min_length(Some(1)).max_length(Some(most)).examples([example]).build()
}

/// The schema of an id.
pub fn id(example: &str) -> Object {
    text("^[A-Za-z0-9_-]{1,128}$", MAX_ID_LEN, example)
}

/// The schema of one of these texts.
pub fn one_of<const N: usize>(names: [&'static str; N]) -> Object {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).build()
}

schema! {
    /// Why an answer ended. The model had finished, a limit of tokens cut the text, the provider
    /// withheld the rest, results of tools did not arrive, or the turn was stopped.
    FinishReasonSchema as "FinishReason", one_of(FinishReason::ALL.map(FinishReason::name))
}

const BATCH_TYPES: [BatchType; 4] =
    [BatchType::UserRequest, BatchType::AgentToAgent, BatchType::SystemTrigger, BatchType::Continuation];

schema! {
    /// An object with any members. It has a name, because openapi-python-client names anonymous
    /// objects in variants twice.
    AnyObject as "AnyObject", ObjectBuilder::new().build()
}

schema! {
    /// Id of a thread.
    ThreadIdSchema as "ThreadName", id("hello")
}

schema! {
    /// Id of an agent.
    AgentIdSchema as "AgentName", id("ann")
}

schema! {
    /// Id of a message, unique within its thread.
    MessageIdSchema as "MessageName", id("u01f3-0198c4d2e5f5-a")
}

schema! {
    /// Id of a turn.
    TurnIdSchema as "TurnName", text(
        "^[ut]0[0-3][0-9a-f]{2}-[A-Za-z0-9_-]{1,90}$", 96, "u01f3-0198c4d2e5f5",
    )
}

schema! {
    /// Id of a response: `resp_`, followed by the id of the answer.
    ResponseIdSchema as "ResponseName", text(
        "^resp_[A-Za-z0-9_-]{1,128}$", 133, "resp_u01f3-0198c4d2e5f5-a",
    )
}

schema! {
    /// Position of a message, or of the batch that begins with it: a number up to 2^63-1 as text,
    /// because JSON's numbers lose digits. Later messages have higher positions.
    PositionSchema as "PositionText", text("^[0-9]{1,19}$", 19, "7524873984012345344")
}

schema! {
    /// Role of a message's author.
    RoleSchema as "RoleText", one_of(Role::ALL.map(Role::name))
}

schema! {
    /// The kind of input that began a batch.
    BatchTypeSchema as "BatchTypeText", one_of(BATCH_TYPES.map(BatchType::name))
}

schema! {
    /// Kind of a chunk's content.
    ChunkTypeSchema as "ChunkTypeText", one_of(ChunkKind::ALL.map(ChunkKind::name))
}

schema! {
    /// Type of the events that are not chunks.
    SystemSchema as "SystemText", one_of(["system"])
}

schema! {
    /// The message is stored.
    MessageCompleteSchema as "MessageCompleteText", one_of(["message_complete"])
}

schema! {
    /// Whether the message is complete, or incomplete because its turn was stopped.
    StatusSchema as "StatusText", one_of(["completed", "stopped"])
}

schema! {
    /// Type of the event that ends a failed message.
    ErrorSchema as "ErrorText", one_of(["error"])
}

schema! {
    /// Type of the object.
    CompletionSchema as "CompletionText", one_of(["chat.completion"])
}

schema! {
    /// Type of the object.
    CompletionChunkSchema as "CompletionChunkText", one_of(["chat.completion.chunk"])
}

schema! {
    /// Type of the object.
    ResponseSchema as "ResponseText", one_of(["response"])
}

schema! {
    /// Progress of a response.
    ResponseStatusSchema as "ResponseStatusText", one_of(["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"])
}

schema! {
    /// Progress of an item of a response.
    ItemStatusSchema as "ItemStatusText", one_of(["in_progress", "completed", "incomplete", "failed"])
}
