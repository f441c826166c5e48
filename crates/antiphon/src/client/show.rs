//! Prints answers.

use std::io::{self, Write};

use reqwest::Response;
use runtime::escape::{escape_json, is_unsafe};
use serde_json::{Map, Value, json};

use super::arguments::Call;
use super::refusal::unreachable;
use super::table::AnswerView;
use crate::exit::ExitError;
use crate::output::{self, OutputFormat, Table, cell};

/// Maximum number of characters of a text in a cell of a list.
const MAX_CELL_CHARS: usize = 160;

/// Prints an answer. An act that its owner has rejected is an error.
pub(super) fn answer(call: &Call, answer: &Value, is_cut: bool) -> Result<(), ExitError> {
    if let (true, Some(error)) = (answer["command_id"].is_string(), answer["error"].as_str()) {
        return Err(ExitError::Failed(error.to_owned()));
    }
    let format = call.output.format();
    if let (OutputFormat::Table, AnswerView::Text(field)) = (format, &call.command.shown) {
        return text(&format!("{}\n", cell(&answer[*field])));
    }
    output::print(format, answer, || table(&call.command.shown, answer))?;
    if is_cut && format == OutputFormat::Table {
        let next = cell(&answer["next"]);
        output::eprint_line(&format!("there is more: --all, a higher --limit, or --next {next}"));
    }
    Ok(())
}

/// Prints a text as it is, without characters that move the cursor of a terminal.
pub(super) fn text(text: &str) -> Result<(), ExitError> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        // Lines of CSV end with both; a carriage return alone would let a text overwrite its line.
        let is_line_end = c == '\n' || (c == '\r' && rest.peek() == Some(&'\n'));
        plain.push(if is_unsafe(c) && !is_line_end { ' ' } else { c });
    }
    let mut out = io::stdout().lock();
    out.write_all(plain.as_bytes()).and_then(|()| out.flush()).map_err(|error| output::write_error(&error))
}

fn table(shown: &AnswerView, answer: &Value) -> Table {
    match shown {
        AnswerView::Rows(list, columns) => rows(&answer[*list], columns),
        AnswerView::RowsBelow(list, columns) => {
            let single = answer.as_object().into_iter().flatten();
            let single: Map<String, Value> = single
                .filter(|(name, value)| name != list && !value.is_array())
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            output::key_value_table(&Value::Object(single)).with_below(rows(&answer[*list], columns))
        }
        AnswerView::Fields | AnswerView::Text(_) | AnswerView::Awaited => output::key_value_table(answer),
    }
}

fn rows(items: &Value, columns: &[&str]) -> Table {
    let titles = columns.iter().map(|column| column.replace(['_', '.'], " ").to_uppercase());
    let mut table = Table::new(titles.collect::<Vec<_>>());
    for item in items.as_array().into_iter().flatten() {
        table.row(columns.iter().map(|column| shortened(&cell(field(item, column)))).collect::<Vec<_>>());
    }
    table
}

/// A field, or a nested field with dots in its name. An item that is a single value is returned
/// itself.
fn field<'a>(item: &'a Value, column: &str) -> &'a Value {
    match item {
        Value::Object(_) => column.split('.').fold(item, |value, name| &value[name]),
        single => single,
    }
}

/// Shortens texts with white space, so that ids are never cut.
fn shortened(text: &str) -> String {
    match text.contains(char::is_whitespace) {
        true => text.chars().take(MAX_CELL_CHARS).collect(),
        false => text.to_owned(),
    }
}

/// Prints the events of a stream as they come, one per line.
pub(super) async fn events(call: &Call, mut response: Response) -> Result<(), ExitError> {
    let (mut bytes, mut event) = (Vec::new(), Event::default());
    while let Some(chunk) = response.chunk().await.map_err(|error| unreachable(call, &error))? {
        bytes.extend_from_slice(&chunk);
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = bytes.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(event) = event.take(line.trim_end_matches(['\r', '\n'])) {
                print(&event, call.output.format())?;
            }
        }
    }
    Ok(())
}

fn print(event: &Event, format: OutputFormat) -> Result<(), ExitError> {
    let line = match format {
        OutputFormat::Json => {
            let data = serde_json::from_str(&event.data).unwrap_or_else(|_| Value::from(event.data.as_str()));
            let line = json!({ "event": event.name, "id": event.id, "data": data });
            escape_json(&line.to_string()).into_owned()
        }
        OutputFormat::Table => {
            format!("{} {}", event.name, event.data.replace('\n', " ")).trim_start().to_owned()
        }
    };
    text(&format!("{line}\n"))
}

/// An event of `text/event-stream`.
#[derive(Debug, Default)]
struct Event {
    name: String,
    id: String,
    data: String,
}

impl Event {
    /// Takes a line; returns the event that it ends.
    fn take(&mut self, line: &str) -> Option<Self> {
        if line.is_empty() {
            let ended = std::mem::take(self);
            return (!ended.data.is_empty() || !ended.name.is_empty()).then_some(ended);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "id" => value.clone_into(&mut self.id),
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            _ => {}
        }
        None
    }
}
