//! What the demo says: plain lines, and one line that changes in place on a terminal.

use std::{
    io::{IsTerminal, Write, stdout},
    time::{Duration, Instant},
};

/// On anything but a terminal the changing line is printed this often.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Standard output.
#[derive(Debug)]
pub(super) struct Screen {
    is_terminal: bool,
    has_status: bool,
    last_status: Option<Instant>,
}

impl Screen {
    pub(super) fn new() -> Self {
        Self { is_terminal: stdout().is_terminal(), has_status: false, last_status: None }
    }

    /// A heading with its number.
    pub(super) fn heading(&mut self, number: usize, title: &str) {
        let (bold, plain) = if self.is_terminal { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        self.line("");
        self.line(&format!("{bold}{number}  {title}{plain}"));
    }

    /// A line of its own, indented below the heading.
    pub(super) fn text(&mut self, text: &str) {
        self.line(&format!("   {text}"));
    }

    /// A name and its value, aligned.
    pub(super) fn item(&mut self, name: &str, value: impl ToString) {
        self.line(&format!("   {name:<36}{}", value.to_string()));
    }

    /// A line that replaces the last status.
    pub(super) fn status(&mut self, text: &str) {
        if self.is_terminal {
            print!("\r\x1b[2K   {text}");
            self.has_status = true;
            // A terminal that is gone ends us by its signal.
            _ = stdout().flush();
            return;
        }
        if self.last_status.is_none_or(|at| at.elapsed() >= LINE_EVERY) {
            self.last_status = Some(Instant::now());
            println!("   {text}");
        }
    }

    /// A line without indentation. A status before it stays as it is.
    pub(super) fn line(&mut self, text: &str) {
        if std::mem::take(&mut self.has_status) {
            println!();
        }
        self.last_status = None;
        println!("{text}");
    }
}

/// 1234567 as `1,234,567`.
pub(super) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped() {
        let pairs = [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")];
        assert!(pairs.iter().all(|(number, text)| grouped(*number) == *text));
    }
}
