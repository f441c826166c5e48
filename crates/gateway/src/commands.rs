//! Commands: changes that requests make through the stream of a partition. Contains no HTTP routes
//! and no feeds.

/// Bytes of a digest that are used in a name: 128 bits.
const NAME_BYTES: usize = 16;

pub(crate) mod control;
pub(crate) mod models;
pub(crate) mod owner_query;
pub(crate) mod publish;
pub(crate) mod submit;
pub(crate) mod thread_agent;
pub(crate) mod thread_states;
pub(crate) mod tool_incidents;
pub(crate) mod validate;

/// The digest's part for names, as hexadecimal digits.
pub(crate) fn digest_name(digest: &[u8]) -> String {
    digest.iter().take(NAME_BYTES).map(|byte| format!("{byte:02x}")).collect()
}
