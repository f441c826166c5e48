//! The description of the API as OpenAPI 3.1.

pub(crate) mod agents;
pub(crate) mod budgets;
pub(crate) mod document;
pub(crate) mod error_codes;
pub(crate) mod events;
pub(crate) mod examples;
pub(crate) mod gateway;
pub(crate) mod keys;
pub(crate) mod memory;
pub(crate) mod operation;
pub(crate) mod pages;
pub(crate) mod protocols;
pub(crate) mod reasoning;
pub(crate) mod refusals;
pub(crate) mod response;
pub(crate) mod schema;
pub(crate) mod tags;
pub(crate) mod tasks;
pub(crate) mod threads;
pub(crate) mod timers;
pub(crate) mod tool_incidents;

#[cfg(test)]
mod tests;
