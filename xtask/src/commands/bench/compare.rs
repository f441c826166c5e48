//! `bench --compare`: the binary of another commit and that of this one, measured in turn by the
//! same programs.

use std::path::Path;

use anyhow::Result;
use devservices::workspace;

use super::{columns::columns, figures::BenchFigures, forms::BenchForm, programs::BenchBuild};
use crate::commands::{INTERRUPTED, Tools, interrupt, say, upgrade};

/// What is compared, and how often.
#[derive(Debug)]
pub(super) struct Comparison<'a> {
    pub(super) commit: &'a str,
    pub(super) rounds: usize,
    pub(super) is_quick: bool,
    /// Replaces the arguments of the form.
    pub(super) args: &'a [String],
}

/// Builds both binaries and measures each `rounds` times. Returns 0 if everything ran, whatever the
/// figures are.
pub(super) fn compare(
    forms: &[&BenchForm],
    build: BenchBuild<'_>,
    comparison: &Comparison<'_>,
) -> Result<i32> {
    let commit = upgrade::git(workspace::root(), &["rev-parse", "--short", comparison.commit])?;
    say(&format!("cargo xtask bench: {commit} beside this build"));
    let Some(other) = upgrade::build_earlier(&commit, build.profile, build.features)? else { return Ok(1) };
    if let Some(code) = build.build()? {
        return Ok(code);
    }
    let tools = Tools::resolve()?;
    let mut table = ComparisonTable::default();
    for form in forms {
        let Some(args) = comparison.args_of(form) else { continue };
        for round in 1..=comparison.rounds {
            for side in sides(round) {
                let name = [commit.as_str(), "this"][side.index()];
                say(&format!("bench {} {}: round {round}, {name}", form.name, args.join(" ")));
                let binary: Option<&Path> = (side == Side::Other).then_some(other.as_path());
                let outcome = build.measure(form.name, &args, &tools, binary);
                if interrupt::received() {
                    return Ok(INTERRUPTED);
                }
                match outcome {
                    Ok(outcome) => table.add(form.name, side, &outcome.figures),
                    Err(error) => {
                        table.failures.push(format!("{}, round {round}, {name}: {error:#}", form.name));
                    }
                }
            }
        }
    }
    println!("\n{}", columns(&table.lines(&commit)));
    table.failures.iter().for_each(|failure| println!("not measured: {failure}"));
    Ok(i32::from(!table.failures.is_empty()))
}

impl Comparison<'_> {
    /// The arguments of one round; `None`: this benchmark measures no binary.
    fn args_of(&self, form: &BenchForm) -> Option<Vec<String>> {
        let args = form.compared(self.is_quick)?;
        if self.args.is_empty() {
            return Some(args);
        }
        let once = ["--rounds", "1"].map(str::to_owned);
        Some(self.args.iter().cloned().chain(once).collect())
    }
}

/// One of the two binaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Other,
    This,
}

impl Side {
    fn index(self) -> usize {
        self as usize
    }
}

/// Alternates which side goes first, so that a machine that becomes slower does not favour one.
fn sides(round: usize) -> [Side; 2] {
    if round % 2 == 1 { [Side::Other, Side::This] } else { [Side::This, Side::Other] }
}

/// A figure of both binaries, by round.
#[derive(Debug, PartialEq)]
struct ComparedFigure {
    bench: String,
    what: String,
    unit: String,
    /// Values of the other binary, and of this one.
    values: [Vec<f64>; 2],
}

impl ComparedFigure {
    /// This binary's median divided by the other's; `None`: one of the two binaries has no figures.
    fn ratio(&self) -> Option<f64> {
        let [other, this] = [median(&self.values[0])?, median(&self.values[1])?];
        (other != 0.0).then(|| this / other)
    }

    fn cells(&self) -> Option<[String; 6]> {
        let [other, this] = &self.values;
        if other.is_empty() || this.is_empty() {
            return None;
        }
        let ratio = self.ratio().map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        Some([self.bench.clone(), self.what.clone(), self.unit.clone(), texts(other), texts(this), ratio])
    }
}

/// All figures, in the order in which they were first measured.
#[derive(Debug, Default)]
struct ComparisonTable {
    figures: Vec<ComparedFigure>,
    failures: Vec<String>,
}

impl ComparisonTable {
    fn add(&mut self, bench: &str, side: Side, figures: &BenchFigures) {
        for row in &figures.rows {
            for (unit, value) in row.of_binary() {
                let is_same = |figure: &&mut ComparedFigure| {
                    figure.bench == bench && figure.what == row.what && figure.unit == unit
                };
                match self.figures.iter_mut().find(is_same) {
                    Some(figure) => figure.values[side.index()].push(value),
                    None => {
                        let mut values = [Vec::new(), Vec::new()];
                        values[side.index()].push(value);
                        let (bench, what, unit) = (bench.to_owned(), row.what.clone(), unit.to_owned());
                        self.figures.push(ComparedFigure { bench, what, unit, values });
                    }
                }
            }
        }
    }

    /// The lines of the figures that both binaries have.
    fn lines(&self, commit: &str) -> Vec<[String; 6]> {
        let head = ["bench", "what", "unit", commit, "this", "this / other"].map(str::to_owned);
        std::iter::once(head).chain(self.figures.iter().filter_map(ComparedFigure::cells)).collect()
    }
}

/// The median; for an even count the mean of the two middle values.
fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.get(sorted.len().saturating_sub(1) / 2)?, sorted.get(sorted.len() / 2)?);
    Some((low + high) / 2.0)
}

/// All rounds, with three significant digits.
fn texts(values: &[f64]) -> String {
    let text = |value: &f64| match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    };
    values.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(what: &str, of_binary: &str) -> BenchFigures {
        let json = format!(
            r#"{{"rows": [{{"what": "{what}", "value": "v", "is_measured": true, "goal": null, "is_met": null,
                "note": "", "of_binary": {{{of_binary}}}}}]}}"#
        );
        BenchFigures::parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn rounds_of_both_stand_beside_each_other() {
        let mut table = ComparisonTable::default();
        for (side, rate) in
            [(Side::Other, 100.0), (Side::This, 150.0), (Side::This, 130.5), (Side::Other, 80.0)]
        {
            table.add("chunks", side, &figures("worker", &format!("\"chunks/s\": {rate}")));
        }
        table.add("sse", Side::This, &figures("only this", "\"ms\": 1.0"));
        let lines = table.lines("abc");
        assert_eq!(lines[0][3..], ["abc", "this", "this / other"]);
        let expected = ["chunks", "worker", "chunks/s", "100, 80.0", "150, 130", "1.56"];
        assert_eq!(lines[1..], [expected.map(str::to_owned)]);
    }

    #[test]
    fn ratio_is_that_of_medians_unless_there_is_none() {
        let ratio = |other: &[f64], this: &[f64]| {
            let (bench, what, unit) = (String::new(), String::new(), String::new());
            ComparedFigure { bench, what, unit, values: [other.to_vec(), this.to_vec()] }.ratio()
        };
        assert_eq!(ratio(&[1.0, 9.0, 2.0], &[1.0, 3.0]), Some(1.0));
        assert_eq!((ratio(&[0.0], &[1.0]), ratio(&[], &[1.0])), (None, None));
    }

    #[test]
    fn each_side_goes_first_in_every_second_round() {
        assert_eq!([1, 2].map(sides), [[Side::Other, Side::This], [Side::This, Side::Other]]);
    }
}
