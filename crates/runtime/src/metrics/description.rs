//! What metrics count: said once, for the metrics endpoint and for the reference of operators.

use ::metrics::Unit;

/// What is kept of the values of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// It only rises.
    Counter,
    /// It is what it was set to last.
    Gauge,
    /// How many values were how large.
    Histogram,
}

/// A metric. Its unit is in its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricDescription {
    /// Its whole name.
    pub name: &'static str,
    /// What is kept of its values.
    pub kind: MetricKind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// What it counts, and which values its labels have.
    pub help: &'static str,
}

impl MetricDescription {
    /// A counter without labels.
    pub const fn counter(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Counter, labels: &[], help }
    }

    /// A gauge without labels.
    pub const fn gauge(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Gauge, labels: &[], help }
    }

    /// A histogram without labels.
    pub const fn histogram(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: MetricKind::Histogram, labels: &[], help }
    }

    /// The same with these labels.
    pub const fn by(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }

    /// What its values are measured in.
    pub fn unit(&self) -> Option<Unit> {
        [Unit::Seconds, Unit::Bytes]
            .into_iter()
            .find(|unit| self.name.split('_').any(|word| word == unit.as_str()))
    }
}

/// Gives the recorder the help texts.
pub fn describe(metrics: &[MetricDescription]) {
    ::metrics::with_recorder(|recorder| {
        for metric in metrics {
            let (name, unit, help) = (metric.name.into(), metric.unit(), metric.help.into());
            match metric.kind {
                MetricKind::Counter => recorder.describe_counter(name, unit, help),
                MetricKind::Gauge => recorder.describe_gauge(name, unit, help),
                MetricKind::Histogram => recorder.describe_histogram(name, unit, help),
            }
        }
    });
}
