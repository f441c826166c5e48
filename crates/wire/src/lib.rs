//! Encoded forms of all messages over NATS: subjects, frames of chunks (protobuf and JSON),
//! commands, messages from owners to gateways and workflows, and queries of gateways to owners.
//!
//! Entry points: [`decode_entry`] for entries of publishers; [`live`], [`query`] and [`status`]
//! between owners and gateways; [`work`] for workflows and integrators; [`tool_calls`] for records
//! of tool calls; [`subject`] for names. No code here reads or writes a socket.

mod command;
mod convert;
mod frame;
mod halves;
mod json;
pub mod live;
mod open_batch;
mod origin;
pub mod query;
mod query_envelope;
mod refused;
pub mod status;
pub mod subject;
pub mod tool_calls;
pub mod work;
mod zero_copy;

/// The generated protobuf types of package `antiphon.v1`.
#[allow(clippy::all, clippy::pedantic, unreachable_pub)]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/antiphon.v1.rs"));
}

pub use command::{
    InvalidCommand, MAX_INPUT_BYTES, check_input, encode_control, encode_delayed_task, encode_note,
    encode_opened, encode_task, encode_task_of_fleet,
};
pub use convert::{InvalidField, parse_rfc3339, rfc3339};
pub use frame::{
    CONTENT_TYPE_JSON, CONTENT_TYPE_PROTOBUF, DecodeLimits, Decoded, decode_entry, encode_frame, encode_json,
};
pub use refused::token_of_refused;
pub use zero_copy::Malformed;

/// Invalid bytes from another process of the fleet.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not the expected protobuf message.
    #[error("not a valid message: {0}")]
    Protobuf(#[from] Malformed),
    /// A field breaks a rule of the model.
    #[error(transparent)]
    Field(#[from] InvalidField),
}

impl From<prost::DecodeError> for DecodeError {
    fn from(error: prost::DecodeError) -> Self {
        Self::Protobuf(error.into())
    }
}

#[cfg(test)]
mod tests;
