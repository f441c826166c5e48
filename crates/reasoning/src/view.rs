//! Formats a thread for its model. Positions exist only in views, never in a stored text.

use std::fmt::Write as _;

use model::quoting;

use crate::{
    Number, Plan, PlanState, ReasoningRole, SessionCall, SessionMessage, SnapshotToken,
    TOOL_RESULT_SHOWN_CHARS, numbers_text,
};

/// Indent of the later lines of a message.
const INDENT: &str = "    ";
/// Approximate bytes of a line without its content.
const LINE_BYTES: usize = 24;

/// One message of a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewLine<'a> {
    pub number: Number,
    pub role: ReasoningRole,
    /// The text; not needed for a result longer than [`TOOL_RESULT_SHOWN_CHARS`].
    pub content: &'a str,
    /// Number of characters of its text.
    pub chars: u32,
    /// The calls of an assistant message.
    pub calls: &'a [SessionCall],
    /// The tool of a tool message.
    pub tool: Option<&'a str>,
}

impl<'a> From<&'a SessionMessage> for ViewLine<'a> {
    fn from(message: &'a SessionMessage) -> Self {
        Self {
            number: message.number,
            role: message.role,
            content: &message.content,
            chars: message.chars(),
            calls: &message.calls,
            tool: message.tool.as_deref(),
        }
    }
}

/// Formats the view: a line for each message, numbered from 1 without gaps. Further lines of a
/// message are indented, so every line that begins with `[` is a message.
pub fn render<'a>(
    lines: impl ExactSizeIterator<Item = ViewLine<'a>> + Clone,
    plan: Option<&Plan>,
    token: SnapshotToken,
) -> String {
    let count = lines.len();
    let plural = if count == 1 { "message" } else { "messages" };
    // Allocated once, because a long view would be copied each time it grows.
    let bytes: usize = lines.clone().map(|line| line.content.len() + LINE_BYTES).sum();
    let mut view = String::with_capacity(bytes + LINE_BYTES * 4);
    let _ = writeln!(view, "Reasoning Thread ({count} {plural}):");
    let mut numbers = Vec::with_capacity(count);
    for (index, line) in lines.enumerate() {
        numbers.push(line.number);
        let _ = write!(view, "[{}] {}: ", index + 1, line.role.label());
        write_content(&mut view, line);
        view.push('\n');
    }
    if let Some(plan) = plan {
        write_plan(&mut view, plan);
    }
    if !numbers.is_empty() {
        let _ = writeln!(view, "Absolute numbers, in this order: {}", numbers_text(numbers));
    }
    let _ = write!(view, "Snapshot token: {token}");
    view
}

fn write_content(view: &mut String, line: ViewLine<'_>) {
    if line.role == ReasoningRole::Tool && line.chars > TOOL_RESULT_SHOWN_CHARS {
        let tool = quoting::one_line(line.tool.unwrap_or("tool"));
        let _ = write!(view, "[{tool} results - {} chars]", line.chars);
        return;
    }
    if line.content.trim().is_empty() && !line.calls.is_empty() {
        let names: Vec<_> = line.calls.iter().map(|call| quoting::one_line(&call.name)).collect();
        let _ = write!(view, "[calls {}]", names.join(", "));
        return;
    }
    quoting::push_indented(view, line.content, INDENT);
}

/// The whole message as text: its content, its thinking, and the calls with their arguments.
pub fn message_text(message: &SessionMessage) -> String {
    let mut text = message.content.clone();
    let mut push = |part: &str| {
        let gap = if text.is_empty() { "" } else { "\n\n" };
        text.push_str(gap);
        text.push_str(part);
    };
    if let Some(thinking) = &message.thinking {
        push(&format!("Thinking: {thinking}"));
    }
    for call in &message.calls {
        let (tool, id) = (quoting::one_line(&call.name), quoting::one_line(&call.id));
        let arguments = call.arguments.as_deref().unwrap_or("not known");
        push(&format!("Calls {tool} ({id}), arguments: {arguments}"));
    }
    text
}

/// A plan in the form that views have.
pub fn plan_text(plan: &Plan) -> String {
    let mut text = String::new();
    write_plan(&mut text, plan);
    text.truncate(text.trim_end().len());
    text
}

fn write_plan(view: &mut String, plan: &Plan) {
    let count = plan.items().len();
    let plural = if count == 1 { "item" } else { "items" };
    let _ = writeln!(view, "Plan ({count} {plural}):");
    for (index, item) in plan.items().iter().enumerate() {
        let mark = match item.state {
            PlanState::Pending => " ",
            PlanState::InProgress => ">",
            PlanState::Done => "x",
            PlanState::Dropped => "-",
        };
        let _ = writeln!(view, "{}. [{mark}] {}", index + 1, quoting::one_line(&item.text));
    }
}
