//! Descriptions of metrics, shared by the metrics endpoint and the reference for operators.

use ::metrics::Unit;

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that only rises.
    Counter,
    /// The last value set.
    Gauge,
    /// A distribution of values.
    Histogram,
}

/// A metric. Its name includes its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetricDescription {
    /// The full name.
    pub name: &'static str,
    pub kind: MetricKind,
    /// Names of the metric's labels.
    pub labels: &'static [&'static str],
    /// Describes what is counted, and the values of the labels.
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

    /// Returns the metric with these labels.
    pub const fn by(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }

    /// The unit, which is taken from the name.
    pub fn unit(&self) -> Option<Unit> {
        [Unit::Seconds, Unit::Bytes]
            .into_iter()
            .find(|unit| self.name.split('_').any(|word| word == unit.as_str()))
    }
}

/// Registers the help texts with the recorder.
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
