//! Hostile texts must not pass through the layers that processes install.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use tracing::{Level, debug, error, info, info_span, trace, warn};
use tracing_subscriber::layer::SubscriberExt;

use super::*;
use crate::escape::is_unsafe;

/// The output of layers.
#[derive(Debug, Clone, Default)]
struct WrittenLog(Arc<Mutex<Vec<u8>>>);

impl Write for WrittenLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().map_err(|_| io::Error::other("poisoned"))?.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log that `events` produces in this format.
fn logged(format: LogFormat, is_terminal: bool, events: impl FnOnce()) -> String {
    let lines = WrittenLog::default();
    let writer = lines.clone();
    let layer = super::layer(format, is_terminal, move || writer.clone());
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), events);
    let bytes = lines.0.lock().expect("not poisoned").clone();
    String::from_utf8(bytes).expect("logs are UTF-8")
}

#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct Outer {
    text: String,
    source: Inner,
}

#[derive(Debug, thiserror::Error)]
#[error("because {0}")]
struct Inner(String);

/// A type whose `Debug` does not escape, like types that wrap foreign bytes or texts.
struct Raw<'a>(&'a str);

impl fmt::Debug for Raw<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Logs an event of each level with each kind of field, and returns their number.
fn every_kind(text: &str) -> usize {
    let failure = Outer { text: text.to_owned(), source: Inner(text.to_owned()) };
    let failure: &(dyn std::error::Error + 'static) = &failure;
    let span = info_span!("turn", thread = %text, agent = ?Raw(text), late = tracing::field::Empty);
    let entered = span.enter();
    span.record("late", text);
    error!(error = failure, "a message was given up");
    warn!(failure = %text, "{text}");
    info!(text, raw = ?Raw(text), "text={}", text);
    debug!(list = ?[text, text], option = ?Some(text), count = 1, "debug");
    trace!(target: "bus", is_done = true, bytes = text.as_bytes(), "{:?}", Raw(text));
    drop(entered);
    tracing::event!(Level::INFO, message = %text);
    error!(place = "here", panic = text, "panic");
    7
}

const HOSTILE: &[&str] = &[
    "x\n2026-11-28T00:00:00.000000Z  INFO gateway: FORGED",
    "\r\rx\r\n",
    "\u{1b}[2J\u{1b}]0;title\u{7}\u{1b}[31m",
    "\u{9b}31m\u{90}\u{85}\u{7f}\u{8}\u{c}\u{b}\u{0}",
    "\u{202e}txet\u{202c}\u{2066}\u{2069}\u{200f}\u{61c}",
    "\u{2028}\u{2029}\u{feff}\u{e0041}\u{e007f}",
    "\"},{\"level\":\"ERROR\"}\n{\"a\":\"",
    "\\n \\u{1b} \\x1b",
];

/// Checks the log.
///
/// # Panics
/// The log is not one clean line per event.
fn check(log: &str, events: usize, text: &str) {
    let lines: Vec<&str> = log.split_terminator('\n').collect();
    assert_eq!(lines.len(), events, "{text:?} became {log:?}");
    for line in lines {
        assert!(!line.contains(is_unsafe), "{text:?} became {line:?}");
    }
}

fn check_all(text: &str) {
    let mut events = 0;
    let log = logged(LogFormat::Text, false, || events = every_kind(text));
    check(&log, events, text);
    let log = logged(LogFormat::Json, false, || events = every_kind(text));
    check(&log, events, text);
    // A collector reads the logged values.
    for line in log.lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(value["level"].is_string(), "{line}");
    }
    assert!(log.lines().any(|line| {
        let value: serde_json::Value = serde_json::from_str(line).expect(line);
        value["failure"] == text
    }));
    // On a terminal the formatter's own colours are the only control characters.
    let log = logged(LogFormat::Text, true, || events = every_kind(text));
    let colours = [
        "\u{1b}[0m",
        "\u{1b}[1m",
        "\u{1b}[2m",
        "\u{1b}[31m",
        "\u{1b}[32m",
        "\u{1b}[33m",
        "\u{1b}[34m",
        "\u{1b}[35m",
    ];
    let plain = colours.iter().fold(log, |log, colour| log.replace(colour, ""));
    check(&plain, events, text);
}

#[test]
fn hostile_texts_stay_in_their_line() {
    HOSTILE.iter().for_each(|text| check_all(text));
}

#[test]
fn plain_texts_are_logged_as_they_are() {
    let text = "Grüße, 日本語 \"quoted\" C:\\new";
    let log = logged(LogFormat::Text, false, || warn!(failure = %text, count = 3, "given up: {text}"));
    assert!(log.ends_with(&format!("given up: {text} failure={text} count=3\n")), "{log}");
    let log = logged(LogFormat::Text, false, || info!(failure = %"a\nb\u{1b}[2J", "given up"));
    assert!(log.contains("failure=a\\nb\\") && log.contains("[2J"), "{log}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn one_event_is_one_line_without_control_characters(
        text in proptest::collection::vec(
            prop_oneof![any::<char>(), (0_u32..0x300).prop_filter_map("a char", char::from_u32),
                (0x2000_u32..0x2070).prop_filter_map("a char", char::from_u32)],
            0..40,
        ).prop_map(String::from_iter),
    ) {
        check_all(&text);
    }
}
