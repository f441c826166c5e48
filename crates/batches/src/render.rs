//! From a context to the messages that a provider takes.
//!
//! [`view`] repairs what a provider would refuse: in what is shown only, never in what is stored, and every repair is listed. Its
//! messages are the same for all providers; [`openai()`] and [`anthropic()`] write them down in their formats.
//!
//! Repairs depend only on what comes before them, so that the beginning of what is rendered stays byte for byte the same
//! while turns are added at its end.

mod anthropic;
mod ids;
mod openai;
mod repair;
#[cfg(test)]
mod tests;
mod view;

use model::quoting;
use serde_json::Value;

use crate::Context;

pub use anthropic::anthropic;
pub use openai::openai;
pub use repair::{Repair, RepairKind};
pub use view::{Rules, SaidCall, View, ViewMessage, view};

/// What a provider gets.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendered {
    /// Instructions, where they are not among the messages.
    pub system: Option<Value>,
    /// The messages.
    pub messages: Vec<Value>,
    /// What was changed, in the order of the messages.
    pub repairs: Vec<Repair>,
}

/// The agent's instructions; blank ones are none.
fn instructions(context: &Context) -> Option<&str> {
    context.system.as_deref().filter(|text| !text.trim().is_empty())
}

/// What a model reads of the summary: a model wrote it, so it goes into the first message of the user, and not into the instructions.
fn summary(context: &Context) -> Option<String> {
    let summary = context.summary.as_deref().filter(|text| !text.trim().is_empty());
    summary.map(quoting::summary_text)
}
