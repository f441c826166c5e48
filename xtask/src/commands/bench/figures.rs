//! The figures that a benchmark writes as JSON.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// The table of one run.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(super) struct BenchFigures {
    pub(super) rows: Vec<FigureRow>,
}

/// A row of the table, without the fields of a single benchmark.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct FigureRow {
    pub(super) what: String,
    pub(super) value: String,
    pub(super) is_measured: bool,
    pub(super) goal: Option<String>,
    pub(super) is_met: Option<bool>,
    pub(super) note: String,
    /// By unit; `None`: not a number.
    of_binary: BTreeMap<String, Option<f64>>,
}

impl BenchFigures {
    pub(super) fn parse(json: &[u8]) -> Result<Self> {
        serde_json::from_slice(json).context("reading the figures of a bench")
    }
}

impl FigureRow {
    /// Figures of the program in `ANTIPHON_BIN`, with their units.
    pub(super) fn of_binary(&self) -> impl Iterator<Item = (&str, f64)> {
        self.of_binary.iter().filter_map(|(unit, value)| Some((unit.as_str(), (*value)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_bench_are_read() {
        let json = r#"{"rows": [{"part": "a", "what": "w", "value": "2/s", "is_measured": true, "goal": ">= 1",
            "is_met": true, "note": "", "figures": {"x": [1]}, "of_binary": {"1/s": 2.0, "ms": null}}]}"#;
        let figures = BenchFigures::parse(json.as_bytes()).unwrap();
        let [row] = &figures.rows[..] else { panic!("{figures:?}") };
        assert_eq!((row.what.as_str(), row.goal.as_deref(), row.is_met), ("w", Some(">= 1"), Some(true)));
        assert_eq!(row.of_binary().collect::<Vec<_>>(), [("1/s", 2.0)]);
    }
}
