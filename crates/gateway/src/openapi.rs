//! Building blocks for the description of the API (OpenAPI 3.1): operations with their refusals,
//! schemas of texts, streams of events.

pub(crate) mod error_codes;
pub(crate) mod events;
pub(crate) mod examples;
pub(crate) mod operation;
pub(crate) mod refusals;
pub(crate) mod response;
pub(crate) mod schema;
pub(crate) mod schemas;
pub(crate) mod tags;
