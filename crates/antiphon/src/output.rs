//! Prints results as tables for people or as JSON for programs.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use runtime::escape::{escape_json, is_unsafe};
use serde::Serialize;
use serde_json::Value;

use crate::exit::ExitError;

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// A table, for people.
    Table,
    /// One JSON value, for programs.
    Json,
}

/// Options for the format of the output.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArguments {
    // The argument has another id, because `format` is the id of the log's format.
    /// Output format: `table`, for people, or `json`, for programs.
    #[arg(id = "form", short = 'o', value_name = "FORMAT", value_enum, default_value_t = OutputFormat::Table)]
    format: OutputFormat,
    /// The same as `-o json`.
    #[arg(long, conflicts_with = "form")]
    json: bool,
}

impl OutputArguments {
    pub(crate) fn format(&self) -> OutputFormat {
        if self.json { OutputFormat::Json } else { self.format }
    }
}

/// A table that is built row by row.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    below: Option<Box<Self>>,
}

impl Table {
    pub(crate) fn new(titles: impl IntoIterator<Item: Into<String>>) -> Self {
        Self { rows: vec![titles.into_iter().map(Into::into).collect()], below: None }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item: AsRef<str>>) {
        self.rows.push(cells.into_iter().map(|cell| plain(cell.as_ref())).collect());
    }

    /// Appends another table below this one.
    pub(crate) fn with_below(self, below: Self) -> Self {
        Self { below: Some(Box::new(below)), ..self }
    }

    fn text(&self) -> String {
        let columns = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            text += cells.collect::<Vec<_>>().join("  ").trim_end();
            text.push('\n');
        }
        if let Some(below) = &self.below {
            text.push('\n');
            text += &below.text();
        }
        text
    }
}

/// Puts a text on one line, without characters that move the cursor of a terminal or reorder text.
fn plain(text: &str) -> String {
    text.chars().map(|c| if is_unsafe(c) { ' ' } else { c }).collect()
}

/// The JSON form of a value, the same as in the API.
pub(crate) fn json(shown: &impl Serialize) -> Value {
    // Plain structures with string keys always serialize.
    serde_json::to_value(shown).unwrap_or_default()
}

/// A JSON value as a cell.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A table with two columns: names and values of an object.
pub(crate) fn key_value_table(value: &Value) -> Table {
    let mut table = Table { rows: Vec::new(), below: None };
    for (name, value) in value.as_object().into_iter().flatten() {
        table.row([name.clone(), cell(value)]);
    }
    table
}

/// A table of the places in a receipt of an erasure from which something was removed, and of the
/// places where data is left.
pub(crate) fn receipt_table(receipt: &Value) -> Table {
    let mut table = Table::new(["PLACE", "REMOVED"]);
    for (part, prefix) in [("tables", ""), ("streams", "stream ")] {
        for (name, count) in receipt[part].as_object().into_iter().flatten().filter(|(_, count)| **count != 0)
        {
            table.row([format!("{prefix}{name}"), cell(count)]);
        }
    }
    for (part, prefix) in [("pending", "not yet: "), ("elsewhere", "not: ")] {
        for (place, why) in receipt[part].as_object().into_iter().flatten() {
            table.row([format!("{prefix}{place}"), cell(why)]);
        }
    }
    table
}

/// Prints the result in the chosen format.
pub(crate) fn print(
    format: OutputFormat,
    json: &Value,
    table: impl FnOnce() -> Table,
) -> Result<(), ExitError> {
    let text = match format {
        OutputFormat::Table => table().text(),
        OutputFormat::Json => escape_json(&format!("{json:#}\n")).into_owned(),
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| write_error(&error))
}

pub(crate) fn write_error(error: &io::Error) -> ExitError {
    match error.kind() {
        io::ErrorKind::BrokenPipe => ExitError::OutputClosed,
        _ => ExitError::Failed(format!("the output cannot be written: {error}")),
    }
}

/// Prints one line to standard error for the user.
pub(crate) fn eprint_line(text: &str) {
    // When standard error is closed the message cannot be reported.
    writeln!(io::stderr(), "antiphon: {}", plain(text)).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_lists_only_what_was_there() {
        let receipt = serde_json::json!({
            "tables": {"messages": 4, "facts": 0}, "streams": {"WORK": 1, "TURNS": 0},
            "pending": {"PARTITION_1": "no worker"}, "elsewhere": {},
        });
        let expected = "PLACE                 REMOVED\nmessages              4\nstream WORK           1\nnot yet: PARTITION_1  no worker\n";
        assert_eq!(receipt_table(&receipt).text(), expected);
    }

    #[test]
    fn a_reader_that_is_gone_is_no_failure() {
        let error = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(write_error(&error), ExitError::OutputClosed));
        let error = io::Error::from(io::ErrorKind::StorageFull);
        assert!(matches!(write_error(&error), ExitError::Failed(line) if line.contains("cannot be written")));
    }

    #[test]
    fn columns_stand_below_each_other() {
        let mut table = Table::new(["batch", "input"]);
        table.row(["1".to_owned(), "ä\nb\u{1b}\u{9b}\u{202e}".to_owned()]);
        table.row(["1234567".to_owned(), String::new()]);
        assert_eq!(table.text(), "batch    input\n1        ä b\n1234567\n");
    }
}
