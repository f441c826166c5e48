//! The source of a person's lines: a keyboard, or a script.

use std::{collections::VecDeque, io::stdin, thread};

use tokio::sync::mpsc;

/// The scripted lines, used without a terminal.
const SAID: [Scripted; 5] = [
    Scripted { text: "Hello", after_pieces: None },
    Scripted { text: "What is the weather in Lisbon?", after_pieces: None },
    Scripted { text: "Tell me a long story.", after_pieces: None },
    // Late enough that a reader of the log sees some of the answer first.
    Scripted { text: "/stop", after_pieces: Some(14) },
    Scripted { text: "/tasks", after_pieces: None },
];

/// A line, or the end of all lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    Text(String),
    End,
}

#[derive(Debug, Clone, Copy)]
struct Scripted {
    text: &'static str,
    /// Sent within an answer, after this number of its pieces; `None`: sent when nothing is being
    /// answered.
    after_pieces: Option<usize>,
}

/// The source of lines; see [`Lines::next`].
#[derive(Debug)]
pub(super) struct Lines {
    source: LineSource,
    put_back: Option<Line>,
}

#[derive(Debug)]
enum LineSource {
    Script(VecDeque<Scripted>),
    Keyboard(mpsc::UnboundedReceiver<String>),
}

impl Lines {
    pub(super) fn scripted() -> Self {
        Self { source: LineSource::Script(SAID.into()), put_back: None }
    }

    pub(super) fn typed() -> Self {
        Self { source: LineSource::Keyboard(keyboard()), put_back: None }
    }

    /// True if no person is at the keyboard.
    pub(super) fn are_scripted(&self) -> bool {
        matches!(self.source, LineSource::Script(_))
    }

    /// Drops lines that were typed but not read.
    pub(super) fn forget(&mut self) {
        self.put_back = None;
        if let LineSource::Keyboard(lines) = &mut self.source {
            while lines.try_recv().is_ok() {}
        }
    }

    /// The next line while nothing is being answered.
    pub(super) async fn next(&mut self) -> Line {
        if let Some(line) = self.put_back.take() {
            return line;
        }
        match &mut self.source {
            LineSource::Keyboard(lines) => lines.recv().await.map_or(Line::End, Line::Text),
            LineSource::Script(said) => loop {
                match said.pop_front() {
                    // The answer ended before its scripted stop.
                    Some(Scripted { after_pieces: Some(_), .. }) => {}
                    Some(line) => return Line::Text(line.text.to_owned()),
                    None => return Line::End,
                }
            },
        }
    }

    /// The next line within an answer of which `pieces` pieces have arrived. The call can be
    /// cancelled and repeated.
    pub(super) async fn next_while_answering(&mut self, pieces: usize) -> Line {
        if self.put_back.is_some() {
            return std::future::pending().await;
        }
        match &mut self.source {
            LineSource::Keyboard(lines) => match lines.recv().await {
                Some(text) => Line::Text(text),
                None => Line::End,
            },
            LineSource::Script(said) => {
                let is_due = |line: &&Scripted| line.after_pieces.is_some_and(|after| pieces >= after);
                let Some(text) = said.front().filter(is_due).map(|line| line.text) else {
                    return std::future::pending().await;
                };
                said.pop_front();
                Line::Text(text.to_owned())
            }
        }
    }

    /// Returns a line, to be read when the answer is over.
    pub(super) fn put_back(&mut self, line: Line) {
        self.put_back = Some(line);
    }
}

/// Reads on a separate thread: reading a terminal cannot be cancelled, and must not keep the
/// runtime from ending.
fn keyboard() -> mpsc::UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in stdin().lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Line {
        Line::Text(text.to_owned())
    }

    #[tokio::test]
    async fn the_script_stops_in_the_middle_of_an_answer() {
        let mut lines = Lines::scripted();
        assert_eq!(lines.next().await, text("Hello"));
        lines.next().await;
        assert_eq!(lines.next().await, text("Tell me a long story."));
        let early = tokio::time::timeout(std::time::Duration::from_millis(5), lines.next_while_answering(13));
        assert!(early.await.is_err());
        assert_eq!(lines.next_while_answering(14).await, text("/stop"));
        assert_eq!(lines.next().await, text("/tasks"));
        assert_eq!(lines.next().await, Line::End);
    }

    #[tokio::test]
    async fn a_stop_that_came_too_late_is_left_out() {
        let mut lines = Lines::scripted();
        for _ in 0..3 {
            lines.next().await;
        }
        assert_eq!(lines.next().await, text("/tasks"));
    }
}
