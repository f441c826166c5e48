//! What requests change, through the stream of a partition. Knows no HTTP route and no feed.

pub(crate) mod control;
pub(crate) mod owner_query;
pub(crate) mod publish;
pub(crate) mod submit;
pub(crate) mod tool_incidents;
pub(crate) mod validate;
