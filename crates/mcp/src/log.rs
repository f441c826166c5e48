//! Tools that show the messages that compressions have replaced, or the full text of a message.

use model::quoting;
use reasoning::{SessionCall, SessionMessage, message_id, message_text};
use rmcp::model::JsonObject;
use serde_json::{Value, json};
use store::{DiscardedCursor, DiscardedLayer, DiscardedMessage, InvalidDiscardedCursor};

use crate::answer::{ToolAnswer, ToolError};
use crate::arguments::ToolArguments;
use crate::context::ToolContext;
use crate::tools::ToolName;

/// Minimum and maximum number of compressions on a page of the discarded log.
const PAGE: (i64, i64) = (1, 20);
const DEFAULT_PAGE: i64 = 5;
/// Characters of a message in one answer: as many as suit one model input.
const MESSAGE_CHARS: usize = 20_000;
/// Maximum bytes of arguments and signatures in an answer's JSON; the text has all arguments, in
/// pages.
const MAX_DETAILS_BYTES: usize = 64 * 1024;

pub(crate) async fn discarded(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::Discarded.known())?;
    let id = arguments.session(context.tenant.as_ref())?;
    let limit = arguments.integer("limit")?.unwrap_or(DEFAULT_PAGE);
    if !(PAGE.0..=PAGE.1).contains(&limit) {
        return Err(ToolError::argument(format!("limit must be from {} to {}", PAGE.0, PAGE.1)));
    }
    let wrong = |error: InvalidDiscardedCursor| ToolError::argument(format!("cursor: {error}"));
    let from =
        arguments.text("cursor")?.map(|text| text.parse::<DiscardedCursor>().map_err(wrong)).transpose()?;
    // An empty page does not show whether the session exists.
    context.store.restorable_reasoning(&id).await?.ok_or_else(ToolError::no_session)?;
    let page = context.store.discarded_reasoning(&id, from, limit as u32).await?;
    let count = page.layers.len();
    let plural = if count == 1 { "compression" } else { "compressions" };
    let mut text =
        format!("Discarded log ({count} {plural}, the newest first){}", if count == 0 { "." } else { ":" });
    page.layers.iter().for_each(|layer| push_layer(&mut text, layer));
    if let Some(next) = page.next {
        text.push_str(&format!("\nThere is more: call frs_discarded with the cursor \"{next}\"."));
    }
    let next = page.next.map(|next| next.to_string());
    let layers: Vec<Value> = page.layers.iter().map(layer_json).collect();
    Ok(ToolAnswer { text, json: json!({ "compressions": layers, "next": next }) })
}

fn push_layer(text: &mut String, entry: &DiscardedLayer) {
    let undone = if entry.layer.is_undone { ", taken back" } else { "" };
    let (id, actor, count) = (message_id(entry.layer.summary), quoting::one_line(&entry.actor), entry.count);
    let plural = if count == 1 { "message" } else { "messages" };
    text.push_str(&format!("\n{id} by {actor}{undone} stands for {count} {plural}"));
    let shown = entry.originals.len() as u64;
    if shown < count {
        text.push_str(&format!(" (here {} to {})", entry.skipped + 1, entry.skipped + shown));
    }
    text.push_str(": ");
    push_cut(text, &entry.summary, entry.summary_chars, entry.layer.summary);
    for original in &entry.originals {
        let (message, tool) = (&original.message, tool_of(&original.message));
        text.push_str(&format!("\n  {} {}: {tool}", message_id(message.number), message.role.label()));
        push_cut(text, &message.content, original.chars, message.number);
    }
}

/// The calls of a message without text.
fn tool_of(message: &SessionMessage) -> String {
    if !message.content.trim().is_empty() || message.calls.is_empty() {
        return String::new();
    }
    let names: Vec<_> = message.calls.iter().map(|call| quoting::one_line(&call.name)).collect();
    format!("[calls {}]", names.join(", "))
}

/// Adds a text of which perhaps only the beginning is known, and how to read the rest.
fn push_cut(out: &mut String, text: &str, chars: u32, number: u64) {
    quoting::push_indented(out, text, "    ");
    if text.chars().count() < chars as usize {
        out.push_str(&format!("\u{2026} [{chars} chars: frs_read_message with number {number}]"));
    }
}

fn layer_json(entry: &DiscardedLayer) -> Value {
    json!({
        "layer": entry.layer.id, "summary_id": message_id(entry.layer.summary), "summary": entry.summary,
        "summary_chars": entry.summary_chars, "count": entry.count, "skipped": entry.skipped,
        "originals": entry.originals.iter().map(original_json).collect::<Vec<_>>(), "actor": entry.actor,
        "at_ms": entry.at.0, "undone_by": entry.undone.as_ref().map(|(actor, _)| actor),
        "undone_at_ms": entry.undone.as_ref().map(|(_, at)| at.0),
    })
}

fn original_json(original: &DiscardedMessage) -> Value {
    let mut json = message_json(&original.message);
    json["content"] = original.message.content.as_str().into();
    json["thinking"] = original.message.thinking.as_deref().into();
    json["chars"] = original.chars.into();
    json
}

/// A message without its texts.
fn message_json(message: &SessionMessage) -> Value {
    let calls = message.calls.iter().map(|call| json!({ "id": call.id, "name": call.name }));
    json!({
        "message_id": message_id(message.number), "number": message.number, "role": message.role.name(),
        "tool_calls": calls.collect::<Vec<_>>(), "tool_call_id": message.answers, "tool_name": message.tool,
    })
}

pub(crate) async fn read_message(
    context: &ToolContext,
    arguments: Option<JsonObject>,
) -> Result<ToolAnswer, ToolError> {
    let arguments = ToolArguments::new(arguments, ToolName::ReadMessage.known())?;
    let id = arguments.session(context.tenant.as_ref())?;
    let asked = arguments.required_integer("number")?;
    let offset = arguments.integer("offset")?.unwrap_or(0);
    let offset = usize::try_from(offset)
        .map_err(|_| ToolError::argument("offset must be a number of characters, from 0"))?;
    let number = u64::try_from(asked).unwrap_or(0);
    let read = context.store.reasoning_message(&id, number).await?.ok_or_else(ToolError::no_session)?;
    let last = read.last_number;
    let unknown = || {
        let valid = if last == 0 { "there is none yet".to_owned() } else { format!("valid: 1 to {last}") };
        ToolError::new("unknown_number", format!("no message has the number {asked}; {valid}"))
    };
    let message = read.message.ok_or_else(unknown)?;
    let whole = message_text(&message);
    let chars = whole.chars().count();
    if offset > chars {
        return Err(ToolError::argument(format!(
            "offset is {offset}, and the message has {chars} characters"
        )));
    }
    let text: String = whole.chars().skip(offset).take(MESSAGE_CHARS).collect();
    let end = offset + text.chars().count();
    let next = (end < chars).then_some(end);
    let mut json = message_json(&message);
    json["chars"] = chars.into();
    json["offset"] = offset.into();
    json["next_offset"] = next.into();
    if next.is_none() {
        add_details(&mut json, &message);
    }
    let mut shown = format!("{} {} ({chars} chars", message_id(number), message.role.label());
    if offset > 0 || next.is_some() {
        shown.push_str(&format!(", here {offset} to {end}"));
    }
    shown.push_str("):\n");
    shown.push_str(&text);
    if let Some(next) = next {
        shown.push_str(&format!("\n[There is more: call frs_read_message with offset {next}.]"));
    }
    Ok(ToolAnswer { text: shown, json })
}

/// Adds arguments and signatures, for programs that send the message to its provider again.
fn add_details(json: &mut Value, message: &SessionMessage) {
    let bytes = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let of_calls: usize =
        message.calls.iter().map(|call| bytes(&call.arguments) + bytes(&call.signature)).sum();
    if of_calls + bytes(&message.signature) > MAX_DETAILS_BYTES {
        return;
    }
    let call = |call: &SessionCall| json!({ "id": call.id, "name": call.name, "arguments": call.arguments, "signature": call.signature });
    json["tool_calls"] = message.calls.iter().map(call).collect();
    json["thinking_signature"] = message.signature.as_deref().into();
}
