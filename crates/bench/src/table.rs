//! The table that a benchmark prints, also as JSON.

use std::{collections::BTreeMap, fmt, fs, path::Path};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde_json::{Map, Value};

/// The median; 0 for an empty list.
pub(super) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// A row of the table.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    /// The part of the benchmark, such as `a`.
    pub(super) part: char,
    pub(super) what: String,
    /// The figure with its unit.
    pub(super) value: String,
    /// True if there is a figure. If not, the note contains the reason.
    pub(super) is_measured: bool,
    /// More figures, by the names of their columns.
    #[serde(skip)]
    pub(super) columns: Vec<(&'static str, String)>,
    /// The goal as text, if there is one.
    pub(super) goal: Option<String>,
    /// True if the goal is met; `None` without a goal.
    pub(super) is_met: Option<bool>,
    pub(super) note: String,
    /// The raw figures, for programs.
    pub(super) figures: Map<String, Value>,
    /// Figures of the program that `ANTIPHON_BIN` names, keyed by their units. Two builds are
    /// compared by them.
    pub(super) of_binary: BTreeMap<String, f64>,
}

impl Row {
    pub(super) fn new(part: char, what: impl Into<String>, value: impl Into<String>) -> Self {
        let (what, value) = (what.into(), value.into());
        Self {
            part,
            what,
            value,
            is_measured: true,
            columns: Vec::new(),
            goal: None,
            is_met: None,
            note: String::new(),
            figures: Map::new(),
            of_binary: BTreeMap::new(),
        }
    }

    /// A row without a figure, for a contender that is not available.
    pub(super) fn missing(part: char, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { is_measured: false, ..Self::new(part, what, "not measured").note(why) }
    }

    /// A row without a figure, for a contender that failed.
    pub(super) fn failed(part: char, what: impl Into<String>, why: impl Into<String>) -> Self {
        Self { is_measured: false, ..Self::new(part, what, "failed").note(why) }
    }

    pub(super) fn goal(mut self, goal: impl Into<String>, is_met: bool) -> Self {
        (self.goal, self.is_met) = (Some(goal.into()), Some(is_met));
        self
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    pub(super) fn column(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.columns.push((name, value.into()));
        self
    }

    pub(super) fn figure(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.figures.insert(name.to_owned(), value.into());
        self
    }

    pub(super) fn of_binary(mut self, unit: &str, value: f64) -> Self {
        self.of_binary.insert(unit.to_owned(), value);
        self
    }

    fn verdict(&self) -> &'static str {
        match self.is_met {
            None => "",
            Some(true) => "OK",
            Some(false) => "MISSED",
        }
    }

    fn cells(&self, columns: &[&str]) -> Vec<String> {
        let of = |name: &&str| {
            let value = self.columns.iter().find(|(column, _)| column == name);
            value.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        let mut cells = vec![self.part.to_string(), self.what.clone(), self.value.clone()];
        cells.extend(columns.iter().map(of));
        cells.extend([self.goal.clone().unwrap_or_default(), self.verdict().to_owned(), self.note.clone()]);
        cells
    }
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Table {
    /// The rows in the order of the parts.
    pub(super) rows: Vec<Row>,
}

impl Table {
    pub(super) fn is_met(&self) -> bool {
        self.rows.iter().all(|row| row.is_met != Some(false))
    }

    /// Writes the figures as JSON, if a path is given.
    pub(super) fn write_json(&self, path: Option<&Path>) -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        let json = serde_json::to_vec_pretty(self)?;
        fs::write(path, json).with_context(|| format!("writing {}", path.display()))
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut columns: Vec<&str> = Vec::new();
        for (name, _) in self.rows.iter().flat_map(|row| &row.columns) {
            if !columns.contains(name) {
                columns.push(name);
            }
        }
        let head = ["", "what", "measured"].into_iter().chain(columns.iter().copied());
        let head = head.chain(["goal", "", "with it"]).map(str::to_owned).collect();
        let rows = self.rows.iter().map(|row| row.cells(&columns));
        let lines: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
        let width = |at: usize| lines.iter().map(|cells| cells[at].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns.len() + 6).map(width).collect();
        for cells in &lines {
            let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            writeln!(f, "{}", padded.collect::<Vec<_>>().join(" | ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_share_the_columns_that_any_of_them_has() {
        let rows = vec![
            Row::new('a', "one", "1/s").column("cpu", "7").note("n"),
            Row::new('b', "two", "2/s").column("wal", "9").goal("> 1", false),
        ];
        let text = Table { rows }.to_string();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
        assert_eq!(lines[0], ["", "what", "measured", "cpu", "wal", "goal", "", "with it"]);
        assert_eq!(lines[1], ["a", "one", "1/s", "7", "", "", "", "n"]);
        assert_eq!(lines[2], ["b", "two", "2/s", "", "9", "> 1", "MISSED", ""]);
    }
}
