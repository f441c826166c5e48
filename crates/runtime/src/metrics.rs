//! The process-wide metrics recorder.

mod description;

use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;
use tokio_util::sync::CancellationToken;

use crate::spawn_named;

pub use self::description::{MetricDescription, MetricKind, describe};

/// The suffix of histograms of durations.
const SECONDS: &str = "_seconds";

/// Buckets from half a millisecond, a commit on a local disk, to ten minutes, a long turn.
const SECONDS_BUCKETS: [f64; 19] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
    300.0, 600.0,
];

/// The metrics of every process, besides those of the operating system.
pub const METRICS: &[MetricDescription] = &[BUILD_INFO];

const BUILD_INFO: MetricDescription = MetricDescription::gauge(
    "antiphon_build_info",
    "1; the labels are the version, the commit of the build, and the role of the process",
)
.by(&["version", "revision", "role"]);

const CPU_AS_GAUGE: &str = "# TYPE process_cpu_seconds_total gauge";
const CPU_AS_COUNTER: &str = "# TYPE process_cpu_seconds_total counter";
const UNLIMITED_MEMORY: &str = "process_virtual_memory_max_bytes 0";

const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// The reason why the recorder could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// The buckets were refused.
    #[error("the metrics recorder could not be built: {0}")]
    Build(#[from] BuildError),
    /// This process has a recorder already.
    #[error("a metrics recorder is already installed")]
    AlreadyInstalled,
}

/// The installed recorder, which renders the recorded metrics. Clones share it.
#[derive(Clone)]
pub struct Recorder {
    handle: PrometheusHandle,
    process: Collector,
}

impl Recorder {
    /// Makes this the recorder of all `metrics` macros of the process.
    ///
    /// # Errors
    /// A recorder is installed already, or the buckets are invalid.
    pub fn install() -> Result<Self, InstallError> {
        let recorder = builder()?.build_recorder();
        let handle = recorder.handle();
        ::metrics::set_global_recorder(recorder).map_err(|_| InstallError::AlreadyInstalled)?;
        let process = Collector::default();
        process.describe();
        Ok(Self { handle, process })
    }

    /// All recorded metrics and those of the process, in the Prometheus text format. NaN samples
    /// are left out. The recorder keeps every series, so a gauge is set to NaN when its object no
    /// longer exists.
    pub fn render(&self) -> String {
        self.process.collect();
        with_types_of_process(&without_gone(&self.handle.render()))
    }

    /// Keeps the recorder's memory bounded between scrapes until `token` is cancelled. Without
    /// this, histograms of a process that is never scraped grow forever.
    pub fn spawn_upkeep(&self, token: CancellationToken) {
        let handle = self.handle.clone();
        spawn_named("metrics-upkeep", async move {
            while token.run_until_cancelled(tokio::time::sleep(UPKEEP_EVERY)).await.is_some() {
                handle.run_upkeep();
            }
        });
    }
}

/// Sets the metric with the version, the revision and the role of this process.
pub fn set_build_info(version: &'static str, revision: &'static str, role: &str) {
    describe(METRICS);
    let role = role.to_owned();
    ::metrics::gauge!(BUILD_INFO.name, "version" => version, "revision" => revision, "role" => role).set(1.0);
}

fn without_gone(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.trim_end().ends_with(" NaN")).collect()
}

/// Corrects the metrics of the process for Prometheus. Counters of `metrics` are integers, so the
/// CPU time is recorded as a gauge; it becomes a counter here. An unlimited memory limit is
/// recorded as 0; it is removed here.
fn with_types_of_process(text: &str) -> String {
    let lines = text.split_inclusive('\n').filter(|line| line.trim_end() != UNLIMITED_MEMORY);
    lines.collect::<String>().replace(CPU_AS_GAUGE, CPU_AS_COUNTER)
}

fn builder() -> Result<PrometheusBuilder, BuildError> {
    PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix(SECONDS.to_owned()), &SECONDS_BUCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_buckets_and_other_histograms_do_not() {
        let recorder = builder().expect("buckets").build_recorder();
        ::metrics::with_local_recorder(&recorder, || {
            ::metrics::histogram!("commit_seconds").record(0.003);
            ::metrics::histogram!("batch_turns").record(7.0);
        });
        let text = recorder.handle().render();
        assert!(text.contains("commit_seconds_bucket{le=\"0.005\"} 1"), "{text}");
        assert!(text.contains("batch_turns{quantile="), "{text}");
    }

    #[test]
    fn gauge_that_is_no_number_is_not_shown() {
        let recorder = builder().expect("buckets").build_recorder();
        ::metrics::with_local_recorder(&recorder, || {
            ::metrics::gauge!("held", "partition" => "1").set(f64::NAN);
            ::metrics::gauge!("held", "partition" => "2").set(0.0);
            ::metrics::histogram!("turn_seconds").record(400.0);
        });
        let text = without_gone(&recorder.handle().render());
        assert!(!text.contains("partition=\"1\"") && text.contains("held{partition=\"2\"} 0"), "{text}");
        assert!(text.contains("turn_seconds_bucket{le=\"300\"} 0"), "{text}");
        assert!(text.contains("turn_seconds_bucket{le=\"600\"} 1"), "{text}");
    }

    #[test]
    fn processor_time_has_fractions_of_a_second() {
        let recorder = builder().expect("buckets").build_recorder();
        let process = Collector::default();
        let began = std::time::Instant::now();
        let seconds = || {
            ::metrics::with_local_recorder(&recorder, || process.collect());
            let text = recorder.handle().render();
            let line = text.lines().find_map(|line| line.strip_prefix("process_cpu_seconds_total "));
            line.map(str::to_owned).expect("the metric")
        };
        // If the CPU time were an integer, it would have no fraction, however long this loop runs.
        while !seconds().contains('.') {
            assert!(began.elapsed() < Duration::from_secs(30), "{}", seconds());
        }
    }

    #[tokio::test]
    async fn it_is_installed_once_and_knows_its_process() {
        let recorder = Recorder::install().expect("the first");
        assert!(matches!(Recorder::install(), Err(InstallError::AlreadyInstalled)));
        ::metrics::counter!("seen_total").increment(2);
        let text = recorder.render();
        assert!(text.contains("seen_total 2"), "{text}");
        assert!(text.contains("process_resident_memory_bytes"), "{text}");
        assert!(text.contains(CPU_AS_COUNTER) && !text.contains(CPU_AS_GAUGE), "{text}");
        assert!(!text.lines().any(|line| line == UNLIMITED_MEMORY), "{text}");
        set_build_info("1.2.3", "4c0ffee", "worker");
        let text = recorder.render();
        assert!(
            text.contains("antiphon_build_info{version=\"1.2.3\",revision=\"4c0ffee\",role=\"worker\"} 1"),
            "{text}"
        );
        recorder.spawn_upkeep(CancellationToken::new());
    }
}
