//! The one table that a bench prints, and the same as JSON.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

/// A line of the table.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    /// Which part, `a` to `e`.
    pub(super) part: char,
    /// What was measured.
    pub(super) what: String,
    /// The figure with its unit.
    pub(super) value: String,
    /// What it should be, if there is a goal.
    pub(super) goal: Option<String>,
    /// Whether it is.
    pub(super) is_met: Option<bool>,
    /// What belongs to it.
    pub(super) note: String,
    /// The figures as they are, for programs.
    pub(super) figures: Map<String, Value>,
}

impl Row {
    pub(super) fn new(part: char, what: impl Into<String>, value: impl Into<String>) -> Self {
        let (what, value) = (what.into(), value.into());
        Self { part, what, value, goal: None, is_met: None, note: String::new(), figures: Map::new() }
    }

    pub(super) fn goal(mut self, goal: impl Into<String>, is_met: bool) -> Self {
        (self.goal, self.is_met) = (Some(goal.into()), Some(is_met));
        self
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    pub(super) fn figure(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.figures.insert(name.to_owned(), value.into());
        self
    }

    fn verdict(&self) -> &'static str {
        match self.is_met {
            None => "",
            Some(true) => "OK",
            Some(false) => "MISSED",
        }
    }

    fn cells(&self) -> [String; 6] {
        let goal = self.goal.clone().unwrap_or_default();
        let [part, what, value] = [self.part.to_string(), self.what.clone(), self.value.clone()];
        [part, what, value, goal, self.verdict().to_owned(), self.note.clone()]
    }
}

/// All rows of one run.
#[derive(Debug, Default, Serialize)]
pub(super) struct Table {
    /// In the order of the parts.
    pub(super) rows: Vec<Row>,
}

impl Table {
    pub(super) fn is_met(&self) -> bool {
        self.rows.iter().all(|row| row.is_met != Some(false))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["", "what", "measured", "goal", "", "with it"].map(str::to_owned);
        let lines: Vec<[String; 6]> = std::iter::once(head).chain(self.rows.iter().map(Row::cells)).collect();
        let width = |at: usize| lines.iter().map(|cells| cells[at].chars().count()).max().unwrap_or(0);
        let widths: [usize; 6] = std::array::from_fn(width);
        for cells in &lines {
            let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            writeln!(f, "{}", padded.collect::<Vec<_>>().join(" | ").trim_end())?;
        }
        Ok(())
    }
}
