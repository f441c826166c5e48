//! Extractors of handlers: path, query, headers, body.

pub(crate) mod body;
pub(crate) mod headers;
pub(crate) mod path;
pub(crate) mod query;
