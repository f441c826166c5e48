//! The costs of a unit at two sizes, and their evaluation.

use crate::{table::Row, unit_cost::UnitCost};

/// Maximum factor by which the cost of a unit may rise at the larger size.
const GOAL: f64 = 1.1;

/// Selects one of the figures of a unit.
type Figure = fn(&UnitCost) -> f64;

/// Two sizes, and the cost of a unit at each.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) what: String,
    pub(super) unit: &'static str,
    pub(super) before: UnitCost,
    pub(super) after: UnitCost,
}

impl Comparison {
    /// A row with the largest factor, and with each figure at both sizes.
    pub(super) fn row(&self, part: char) -> Row {
        let figures: [(&'static str, Figure); 4] = [
            ("pages", |cost| cost.pages),
            ("WAL", |cost| cost.wal_bytes),
            ("worker us", |cost| cost.worker_us),
            ("Postgres us", |cost| cost.postgres_us),
        ];
        let factor = |figure: Figure| figure(&self.after) / figure(&self.before);
        let most = figures.iter().map(|(_, figure)| factor(*figure)).fold(0.0, f64::max);
        let row = Row::new(part, self.what.clone(), format!("x {most:.2} at most"));
        let row = row.goal(format!("<= {GOAL}"), most <= GOAL).note(format!("for each {}", self.unit));
        figures.into_iter().fold(row, |row, (name, figure)| {
            let (before, after) = (figure(&self.before), figure(&self.after));
            row.column(name, format!("{before:.1} to {after:.1}, x {:.2}", factor(figure)))
                .figure(name, serde_json::json!([before, after]))
                .of_binary(&format!("{name}, few"), before)
                .of_binary(&format!("{name}, many"), after)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_figure_is_judged() {
        let before = UnitCost { worker_us: 10.0, postgres_us: 40.0, pages: 20.0, wal_bytes: 1_000.0 };
        let compared = |after| Comparison { what: "x".to_owned(), unit: "message", before, after };
        let same = compared(UnitCost { pages: 21.0, ..before }).row('a');
        assert_eq!((same.is_met, same.value.as_str()), (Some(true), "x 1.05 at most"));
        let grown = compared(UnitCost { pages: 24.0, wal_bytes: 900.0, ..before }).row('a');
        assert_eq!((grown.is_met, grown.value.as_str()), (Some(false), "x 1.20 at most"));
        assert_eq!(grown.columns[1].1, "1000.0 to 900.0, x 0.90");
    }
}
