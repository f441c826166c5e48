//! Writes each event as one line without control characters, whatever its values contain.

use std::fmt;
use std::str::FromStr;

use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::{DefaultFields, Format, Json, JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, layer as fmt_layer};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use crate::escape::{Escaping, escape_json};

#[cfg(test)]
mod tests;

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// A text for people.
    #[default]
    Text,
    /// One JSON object per line, for collectors.
    Json,
}

/// The text is neither `text` nor `json`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the log format is {0:?}; it must be text or json")]
pub struct InvalidFormat(String);

impl FromStr for LogFormat {
    type Err = InvalidFormat;

    fn from_str(text: &str) -> Result<Self, InvalidFormat> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(InvalidFormat(other.to_owned())),
        }
    }
}

/// Writes lines to `writer`, with colours if `is_terminal`.
pub(super) fn layer<W>(
    format: LogFormat,
    is_terminal: bool,
    writer: W,
) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    match format {
        LogFormat::Text => {
            fmt_layer().with_ansi(is_terminal).fmt_fields(EscapedFields).with_writer(writer).boxed()
        }
        LogFormat::Json => {
            let events = EscapedJson(tracing_subscriber::fmt::format().json().flatten_event(true));
            fmt_layer().fmt_fields(JsonFields::new()).event_format(events).with_writer(writer).boxed()
        }
    }
}

/// Fields in the usual form `name=value`, with the message and all values escaped. Names are not
/// coloured, so every control character comes from a value.
struct EscapedFields;

impl<'writer> FormatFields<'writer> for EscapedFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut escaping = Escaping(&mut writer);
        DefaultFields::new().format_fields(Writer::new(&mut escaping), fields)
    }
}

/// Events in the usual JSON form, with further escapes: JSON itself does not escape DEL, C1
/// controls, line separators and bidirectional controls.
struct EscapedJson(Format<Json>);

impl<S> FormatEvent<S, JsonFields> for EscapedJson
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.0.format_event(context, Writer::new(&mut line), event)?;
        writer.write_str(&escape_json(&line))
    }
}
