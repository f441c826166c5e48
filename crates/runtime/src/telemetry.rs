//! Logs: one line per event, as text or JSON, on standard error.
//!
//! Values may contain text from outside, so they are escaped here, in one place, whatever the call
//! site writes.

mod lines;

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

pub use self::lines::{InvalidFormat, LogFormat};
use crate::spawn::panic_text;

/// The reason why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// The filter cannot be parsed.
    #[error("the log filter {filter:?} is wrong: {source}")]
    Filter { filter: String, source: ParseError },
    /// The process has a subscriber already.
    #[error("logging is already set up: {0}")]
    Already(#[from] TryInitError),
}

/// Sends everything that passes `filter` (`info`, or `warn,worker=debug`) to standard error. Panics
/// are logged too, with their location and without a stack trace.
///
/// `defaults` are directives that the filter may override, such as `library=warn` for a library
/// that logs every small event at `info`.
///
/// # Errors
/// The filter is wrong, or logging is set up already.
pub fn init(filter: &str, format: LogFormat, defaults: &[&str]) -> Result<(), InitError> {
    let filter = parse(filter, defaults)?;
    let lines = lines::layer(format, io::stderr().is_terminal(), io::stderr);
    // The filter is a separate layer, not a filter of the lines layer, which would lose events. A
    // library may ask whether a disabled level is enabled, as sqlx does with each statement. A
    // filter of the lines layer then drops the thread's next event.
    tracing_subscriber::registry().with(lines).with(filter).try_init()?;
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, panic = panic_text(panic.payload()), "panic");
    }));
    Ok(())
}

fn parse(filter: &str, defaults: &[&str]) -> Result<EnvFilter, InitError> {
    // If two directives have the same target, the later one applies, so the operator's directives
    // come last.
    let directives = defaults.iter().copied().chain([filter]).collect::<Vec<_>>().join(",");
    EnvFilter::builder()
        .parse(directives)
        .map_err(|source| InitError::Filter { filter: filter.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filter_overrides_the_defaults() {
        let filter = |text| parse(text, &["chatty=warn"]).map(|filter| filter.to_string());
        assert_eq!(filter("info").ok().as_deref(), Some("chatty=warn,info"));
        assert_eq!(filter("info,chatty=debug").ok().as_deref(), Some("chatty=debug,info"));
        let error = parse("info,=?=", &[]).expect_err("nonsense").to_string();
        assert!(error.starts_with("the log filter \"info,=?=\" is wrong"), "{error}");
    }

    #[test]
    fn formats_have_names() {
        assert_eq!("json".parse(), Ok(LogFormat::Json));
        assert_eq!("text".parse(), Ok(LogFormat::Text));
        let error = "yaml".parse::<LogFormat>().expect_err("unknown").to_string();
        assert_eq!(error, "the log format is \"yaml\"; it must be text or json");
    }
}
