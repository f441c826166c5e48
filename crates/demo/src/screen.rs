//! The output of the demo: plain lines, streamed answers, and a table that changes in place on a
//! terminal.

use std::{
    env,
    io::{IsTerminal, Write, stdout},
    time::{Duration, Instant},
};

/// Interval of printing the changing table if the output is no terminal.
const TABLE_EVERY: Duration = Duration::from_secs(5);
/// Indentation of everything but headings.
const INDENT: &str = "   ";
/// The width of a terminal that does not report its own.
const WIDTH: usize = 100;

#[derive(Debug)]
pub(super) struct Screen {
    /// Lines can be redrawn in place.
    redraws: bool,
    /// Escapes for bold and dim are supported and wanted.
    has_styles: bool,
    /// Number of lines of the table at the end of the output.
    table_lines: usize,
    last_table: Option<Instant>,
    /// The last line has some output and is not ended.
    is_in_line: bool,
}

/// The style of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    /// Events beside the answer.
    Dim,
    Bold,
}

impl Style {
    fn escape(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Dim => "\x1b[2m",
            Self::Bold => "\x1b[1m",
        }
    }
}

impl Screen {
    pub(super) fn new() -> Self {
        let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        let redraws = stdout().is_terminal() && env::var_os("TERM").is_none_or(|term| term != "dumb");
        let has_styles = redraws && !is_set("NO_COLOR");
        Self { redraws, has_styles, table_lines: 0, last_table: None, is_in_line: false }
    }

    /// Prints a heading with its number.
    pub(super) fn heading(&mut self, number: usize, title: &str) {
        self.line("");
        let heading = self.styled(Style::Bold, &format!("{number}  {title}"));
        self.line(&heading);
    }

    /// Prints a line, indented below the heading.
    pub(super) fn text(&mut self, text: &str) {
        self.line(&format!("{INDENT}{text}"));
    }

    /// Prints a dimmed line, indented below the heading.
    pub(super) fn dim(&mut self, text: &str) {
        let text = self.styled(Style::Dim, &visible(text));
        self.text(&text);
    }

    /// Prints a name and its value, aligned.
    pub(super) fn item(&mut self, name: &str, value: impl ToString) {
        self.line(&format!("{INDENT}{name:<36}{}", value.to_string()));
    }

    /// Prints streamed text at once. Control characters in the text cannot move the cursor.
    pub(super) fn piece(&mut self, style: Style, piece: &str) {
        if piece.is_empty() {
            return;
        }
        let start = if std::mem::replace(&mut self.is_in_line, true) { "" } else { INDENT };
        let piece = visible(piece).replace('\n', &format!("\n{INDENT}"));
        self.write(&format!("{start}{}", self.styled(style, &piece)));
    }

    /// Ends streamed text.
    pub(super) fn end_pieces(&mut self) {
        if std::mem::take(&mut self.is_in_line) {
            self.write("\n");
        }
    }

    /// Prints the prompt.
    pub(super) fn prompt(&mut self) {
        self.end_pieces();
        let prompt = self.styled(Style::Bold, "you> ");
        self.write(&format!("{INDENT}{prompt}"));
    }

    /// Records that a person has ended the line, so the cursor is at the beginning of the next one.
    pub(super) fn entered(&mut self) {
        self.is_in_line = false;
    }

    /// Prints a line that the script typed.
    pub(super) fn typed(&mut self, text: &str) {
        self.write(&format!("{text}\n"));
    }

    /// Prints a table that replaces the previous one. Without a terminal it is printed only at
    /// intervals, or if `due`.
    pub(super) fn table(&mut self, lines: &[String], due: bool) {
        let (width, height) = size();
        let fits = height.is_none_or(|height| lines.len() + 1 < height);
        if self.redraws && fits {
            let up = match std::mem::take(&mut self.table_lines) {
                0 => String::new(),
                lines => format!("\x1b[{lines}A\r"),
            };
            let row = |line: &String| format!("{}\x1b[K\n", clip(&format!("{INDENT}{line}"), width));
            // One write, without erasing unchanged parts: erasing them would flicker.
            self.write(&format!("{up}{}\x1b[J", lines.iter().map(row).collect::<String>()));
            self.table_lines = lines.len();
        } else if due || self.last_table.is_none_or(|at| at.elapsed() >= TABLE_EVERY) {
            self.last_table = Some(Instant::now());
            self.line("");
            lines.iter().for_each(|line| self.text(line));
        }
    }

    /// Keeps the table; later output goes below it.
    pub(super) fn keep_table(&mut self) {
        self.table_lines = 0;
    }

    /// Prints a line without indentation. A table at the end is removed, and reprinted with the
    /// next one.
    pub(super) fn line(&mut self, text: &str) {
        self.end_pieces();
        self.wipe_table();
        self.write(&format!("{text}\n"));
    }

    fn wipe_table(&mut self) {
        let lines = std::mem::take(&mut self.table_lines);
        if lines > 0 {
            self.write(&format!("\x1b[{lines}A\r\x1b[J"));
        }
    }

    fn styled(&self, style: Style, text: &str) -> String {
        match style {
            Style::Plain => text.to_owned(),
            _ if !self.has_styles => text.to_owned(),
            style => format!("{}{text}\x1b[0m", style.escape()),
        }
    }

    fn write(&self, text: &str) {
        let mut out = stdout().lock();
        // The reader may be gone; the exit code has the verdict too.
        _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

/// The text without control characters that a terminal would execute.
fn visible(text: &str) -> String {
    text.chars().filter(|c| matches!(c, '\n' | '\t') || !c.is_control()).collect()
}

/// Cuts a line to the width of the terminal.
fn clip(line: &str, width: usize) -> String {
    if line.chars().count() < width {
        return line.to_owned();
    }
    line.chars().take(width.saturating_sub(2)).chain(['~']).collect()
}

/// Columns, and rows if known.
fn size() -> (usize, Option<usize>) {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request writes one winsize, which is ours.
    #[allow(unsafe_code, reason = "std cannot ask for the size of a terminal")]
    let answer = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    match (answer, size.ws_col, size.ws_row) {
        (0, columns @ 1.., rows @ 1..) => (columns.into(), Some(rows.into())),
        _ => (WIDTH, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_left_out() {
        assert_eq!(visible("a\x1b[2Jb\r\nc\td\u{9b}e"), "a[2Jb\nc\tde");
    }

    #[test]
    fn lines_are_clipped_to_the_width() {
        assert_eq!(clip("1234567", 8), "1234567");
        assert_eq!(clip("12345678", 8), "123456~");
        assert_eq!(clip("äöüäöüäö", 8), "äöüäöü~");
    }
}
