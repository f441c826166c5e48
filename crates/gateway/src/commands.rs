//! What requests change, through the stream of a partition. Knows no HTTP route and no feed.

/// Bytes of a digest that stand in a name: 128 bits.
const NAME_BYTES: usize = 16;

pub(crate) mod control;
pub(crate) mod owner_query;
pub(crate) mod publish;
pub(crate) mod submit;
pub(crate) mod tool_incidents;
pub(crate) mod validate;

/// The part of a digest that names something, as hexadecimal digits.
pub(crate) fn digest_name(digest: &[u8]) -> String {
    digest.iter().take(NAME_BYTES).map(|byte| format!("{byte:02x}")).collect()
}
