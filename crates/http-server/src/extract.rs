//! Extractors of handlers: path, query, headers, body.

pub mod body;
pub mod headers;
pub mod path;
pub mod query;
