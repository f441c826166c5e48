//! Parses a scrape in the Prometheus text format into a map.

use std::collections::BTreeMap;

/// Samples by series: the name with its labels, as in the scrape.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics {
    samples: BTreeMap<String, f64>,
}

impl Metrics {
    /// Parses a scrape; lines that are not samples are ignored.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let sample = |line: &str| {
            let (series, value) = line.trim().rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        };
        Self { samples: lines.filter_map(sample).collect() }
    }

    /// The sum over all label values of a metric; 0 if there is none.
    pub fn sum(&self, name: &str) -> f64 {
        self.series(name).map(|(_, value)| value).sum()
    }

    /// The sum over the series of a metric with `label="value"`.
    pub fn sum_where(&self, name: &str, label: &str, value: &str) -> f64 {
        let wanted = format!("{label}=\"{value}\"");
        self.series(name).filter(|(series, _)| series.contains(&wanted)).map(|(_, value)| value).sum()
    }

    /// The series of one metric.
    ///
    /// # Panics
    /// No process has such a metric; a test of a missing metric would always pass.
    pub fn series<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        assert!(is_documented(name), "no metric is called {name}");
        let same_name = move |series: &str| series.split('{').next() == Some(name);
        self.samples
            .iter()
            .filter(move |(series, _)| same_name(series))
            .map(|(series, value)| (series.as_str(), *value))
    }

    pub fn samples(&self) -> &BTreeMap<String, f64> {
        &self.samples
    }
}

/// True if the operators' reference, which is generated from the code, lists the metric of this
/// series.
fn is_documented(name: &str) -> bool {
    let reference = include_str!("../../../../deploy/REFERENCE.md");
    let suffixes = ["", "_count", "_sum", "_bucket"];
    let mut names = suffixes.iter().filter_map(|suffix| name.strip_suffix(suffix));
    names.any(|name| ["`", "{"].iter().any(|end| reference.contains(&format!("`{name}{end}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_by_name_and_label() {
        let text = "# TYPE antiphon_traces_spans_dropped_total counter\n\
                    antiphon_traces_spans_dropped_total{reason=\"x\"} 2\n\
                    antiphon_traces_spans_dropped_total{reason=\"y\"} 3\n\
                    antiphon_traces_spans_dropped_total_more 9\n\
                    antiphon_build_info 1.5\n";
        let metrics = Metrics::parse(text);
        let dropped = "antiphon_traces_spans_dropped_total";
        assert_eq!((metrics.sum(dropped), metrics.sum("antiphon_build_info")), (5.0, 1.5));
        assert_eq!(metrics.sum("antiphon_traces_spans_exported_total"), 0.0);
        assert_eq!(metrics.sum_where(dropped, "reason", "y"), 3.0);
    }

    #[test]
    #[should_panic(expected = "no metric is called antiphon_traces_spans_lost_total")]
    fn a_metric_that_is_not_documented_is_refused() {
        Metrics::parse("").sum("antiphon_traces_spans_lost_total");
    }
}
