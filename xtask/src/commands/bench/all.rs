//! `bench all`: every benchmark in a short form, and one table of all goals.

use std::time::Instant;

use anyhow::Result;

use super::{
    columns::columns,
    figures::BenchFigures,
    forms::FORMS,
    programs::{BenchBuild, install_peers},
};
use crate::commands::{INTERRUPTED, Tools, interrupt, say};

const HEAD: [&str; 6] = ["bench", "what", "measured", "goal", "", "why"];

/// Runs all benchmarks one after another. Returns 0 if every goal is met, or with `is_quick` if
/// every benchmark has run.
pub(super) fn all(build: BenchBuild<'_>, is_quick: bool) -> Result<i32> {
    if let Some(code) = build.build()? {
        return Ok(code);
    }
    let (tools, begun) = (Tools::resolve()?, Instant::now());
    let mut goals = GoalTable::default();
    for form in FORMS {
        let args = form.judged(is_quick);
        say(&format!("bench {} {}", form.name, args.join(" ")));
        // Peers are built in release, which is too slow for a quick run.
        let installed = if is_quick { Ok(()) } else { install_peers(form.name) };
        let outcome = installed.and_then(|()| build.measure(form.name, &args, &tools, None));
        if interrupt::received() {
            return Ok(INTERRUPTED);
        }
        match outcome {
            Ok(outcome) => goals.add(form.name, &outcome.figures, outcome.code == 0 || is_quick),
            Err(error) => goals.add_failure(form.name, &format!("{error:#}")),
        }
    }
    println!("\n{}", columns(&goals.lines()));
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    println!("{} met, {} missed, in {minutes:.0} minutes", goals.count("met"), goals.count("MISSED"));
    Ok(i32::from(!goals.is_met))
}

/// The goals of all benchmarks, and the measurements that could not be made.
#[derive(Debug)]
struct GoalTable {
    rows: Vec<[String; 6]>,
    /// Whether every benchmark has run and met its goals.
    is_met: bool,
}

impl Default for GoalTable {
    fn default() -> Self {
        Self { rows: Vec::new(), is_met: true }
    }
}

impl GoalTable {
    fn add(&mut self, bench: &str, figures: &BenchFigures, is_met: bool) {
        self.is_met &= is_met;
        for row in &figures.rows {
            let goal = row.goal.clone().unwrap_or_default();
            let (verdict, why) = match row.is_met {
                Some(true) => ("met", ""),
                Some(false) => ("MISSED", ""),
                None if row.is_measured => continue,
                None => ("", row.note.as_str()),
            };
            let cells = [bench, &row.what, &row.value, &goal, verdict, why].map(str::to_owned);
            // A missing contender is missing in every part, so it is listed once.
            if row.is_measured || !self.rows.contains(&cells) {
                self.rows.push(cells);
            }
        }
    }

    /// Adds a benchmark that has no figures.
    fn add_failure(&mut self, bench: &str, why: &str) {
        self.is_met = false;
        self.rows.push([bench, "all of it", "failed", "", "", why].map(str::to_owned));
    }

    fn count(&self, verdict: &str) -> usize {
        self.rows.iter().filter(|cells| cells[4] == verdict).count()
    }

    fn lines(&self) -> Vec<[String; 6]> {
        std::iter::once(HEAD.map(str::to_owned)).chain(self.rows.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(rows: &str) -> BenchFigures {
        BenchFigures::parse(format!("{{\"rows\": [{rows}]}}").as_bytes()).unwrap()
    }

    fn row(what: &str, is_measured: bool, is_met: Option<bool>) -> String {
        let goal = is_met.map_or("null".to_owned(), |_| "\"<= 1\"".to_owned());
        let is_met = is_met.map_or("null".to_owned(), |is_met| is_met.to_string());
        format!(
            r#"{{"what": "{what}", "value": "v", "is_measured": {is_measured}, "goal": {goal}, "is_met": {is_met},
                "note": "because", "of_binary": {{}}}}"#
        )
    }

    #[test]
    fn goals_and_what_is_missing_are_gathered() {
        let mut goals = GoalTable::default();
        let rows = [
            row("good", true, Some(true)),
            row("plain", true, None),
            row("bad", true, Some(false)),
            row("peer", false, None),
            row("peer", false, None),
        ];
        goals.add("tasks", &figures(&rows.join(",")), false);
        goals.add_failure("sse", "no core");
        let expected = [
            ["tasks", "good", "v", "<= 1", "met", ""],
            ["tasks", "bad", "v", "<= 1", "MISSED", ""],
            ["tasks", "peer", "v", "", "", "because"],
            ["sse", "all of it", "failed", "", "", "no core"],
        ];
        assert_eq!(goals.rows, expected.map(|cells| cells.map(str::to_owned)));
        assert_eq!((goals.count("met"), goals.count("MISSED"), goals.is_met), (1, 1, false));
    }

    #[test]
    fn one_bench_that_has_not_run_is_enough() {
        let mut goals = GoalTable::default();
        goals.add("growth", &figures(&row("good", true, Some(true))), true);
        assert!(goals.is_met);
        goals.add_failure("memory", "why");
        assert!(!goals.is_met);
    }
}
