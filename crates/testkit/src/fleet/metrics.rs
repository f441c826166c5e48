//! A scrape in Prometheus' text format, as a map.

use std::collections::BTreeMap;

/// Samples by series: the name with its labels, as the scrape had them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics {
    samples: BTreeMap<String, f64>,
}

impl Metrics {
    /// Reads a scrape; lines that are not samples are passed over.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let sample = |line: &str| {
            let (series, value) = line.trim().rsplit_once(' ')?;
            Some((series.to_owned(), value.parse().ok()?))
        };
        Self { samples: lines.filter_map(sample).collect() }
    }

    /// The sum over all label values of a metric; 0 when there is none.
    pub fn sum(&self, name: &str) -> f64 {
        self.series(name).map(|(_, value)| value).sum()
    }

    /// The sum over the series of a metric that carry `label="value"`.
    pub fn sum_where(&self, name: &str, label: &str, value: &str) -> f64 {
        let wanted = format!("{label}=\"{value}\"");
        self.series(name).filter(|(series, _)| series.contains(&wanted)).map(|(_, value)| value).sum()
    }

    /// The series of one metric.
    pub fn series<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        let same_name = move |series: &str| series.split('{').next() == Some(name);
        self.samples
            .iter()
            .filter(move |(series, _)| same_name(series))
            .map(|(series, value)| (series.as_str(), *value))
    }

    /// All series.
    pub fn samples(&self) -> &BTreeMap<String, f64> {
        &self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_summed_by_name_and_label() {
        let text = "# HELP a_total text\n# TYPE a_total counter\na_total{kind=\"x\"} 2\na_total{kind=\"y\"} 3\na_total_more 9\nb 1.5\n";
        let metrics = Metrics::parse(text);
        assert_eq!((metrics.sum("a_total"), metrics.sum("b"), metrics.sum("c")), (5.0, 1.5, 0.0));
        assert_eq!(metrics.sum_where("a_total", "kind", "y"), 3.0);
    }
}
