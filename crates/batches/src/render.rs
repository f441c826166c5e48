//! Converts a context to the messages of a provider.
//!
//! [`view()`] repairs what a provider would refuse, and lists every repair. It changes only the
//! messages for the provider, never the stored ones. Its messages are the same for all providers;
//! [`openai()`] and [`anthropic()`] write them in their formats.
//!
//! A repair depends only on messages before it, so the rendered prefix stays byte-identical when
//! turns are added.

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

/// The messages for a provider.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendered {
    /// The instructions, if they are not among the messages.
    pub system: Option<Value>,
    pub messages: Vec<Value>,
    /// The repairs, in the order of the messages.
    pub repairs: Vec<Repair>,
}

/// The agent's instructions; `None` if they are blank.
fn instructions(context: &Context) -> Option<&str> {
    context.system.as_deref().filter(|text| !text.trim().is_empty())
}

/// The summary in the form for the model. A model wrote it, so it is part of the first user message
/// and not of the instructions.
fn summary(context: &Context) -> Option<String> {
    let summary = context.summary.as_deref().filter(|text| !text.trim().is_empty());
    summary.map(quoting::summary_text)
}
