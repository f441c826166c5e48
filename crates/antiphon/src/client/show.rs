//! Prints answers.

use std::io::{self, Write};

use protocols::{EventReader, SseItem};
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
        // Lines of CSV end with a carriage return and a line feed; a carriage return alone would
        // let a text overwrite its line.
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
            fields_that(answer, |name, value| name != *list && !value.is_array())
                .with_below(rows(&answer[*list], columns))
        }
        AnswerView::Awaited => {
            let receipt = if answer["receipt"].is_object() { &answer["receipt"] } else { &answer["counts"] };
            fields_that(answer, |_, value| !value.is_object()).with_below(output::receipt_table(receipt))
        }
        AnswerView::Fields | AnswerView::Text(_) | AnswerView::Export | AnswerView::Import => {
            output::key_value_table(answer)
        }
    }
}

/// The fields of an object that `is_shown` selects, as a table.
fn fields_that(answer: &Value, is_shown: impl Fn(&str, &Value) -> bool) -> Table {
    let fields = answer.as_object().into_iter().flatten().filter(|(name, value)| is_shown(name, value));
    let shown: Map<String, Value> = fields.map(|(name, value)| (name.clone(), value.clone())).collect();
    output::key_value_table(&Value::Object(shown))
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
/// unchanged.
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
    let mut reader = EventReader::default();
    while let Some(bytes) = response.chunk().await.map_err(|error| unreachable(call, &error))? {
        let items = reader.feed(&bytes).map_err(|error| ExitError::Failed(error.to_string()))?;
        for item in items {
            if let Some(line) = event_line(&item, call.output.format()) {
                text(&line)?;
            }
        }
    }
    Ok(())
}

/// The line that shows an event; none for a comment.
fn event_line(item: &SseItem, format: OutputFormat) -> Option<String> {
    let SseItem::Event { id, name, data } = item else { return None };
    let (id, name) = (id.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
    let line = match format {
        OutputFormat::Json => {
            let data = serde_json::from_str(data).unwrap_or_else(|_| Value::from(data.as_str()));
            let line = json!({ "event": name, "id": id, "data": data });
            escape_json(&line.to_string()).into_owned()
        }
        OutputFormat::Table => format!("{name} {}", data.replace('\n', " ")).trim_start().to_owned(),
    };
    Some(format!("{line}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_and_a_comment_is_none() {
        let event =
            SseItem::Event { id: Some("7".into()), name: Some("reset".into()), data: "{\"a\":\n1}".into() };
        assert_eq!(event_line(&event, OutputFormat::Table).as_deref(), Some("reset {\"a\": 1}\n"));
        let json = event_line(&event, OutputFormat::Json).unwrap();
        assert_eq!(json, "{\"data\":{\"a\":1},\"event\":\"reset\",\"id\":\"7\"}\n");
        assert_eq!(event_line(&SseItem::Comment("open".into()), OutputFormat::Table), None);
    }
}
