//! Measures the fill level of streams that refuse publishers when full: the streams of the held
//! partitions, and the stream of turn requests.

use std::collections::BTreeSet;
use std::time::Duration;

use metrics::gauge;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use wire::subject;

use crate::context::Context;
use crate::metrics::STREAM_FILL_RATIO;

/// Interval of one query per stream: a stream of 1 GiB takes longer to fill its last tenth.
const INTERVAL: Duration = Duration::from_secs(10);

/// Measures until `stop`. Values that are no longer known are not shown.
pub(crate) async fn measure(context: Context, stop: CancellationToken) {
    let mut shown = BTreeSet::new();
    while stop.run_until_cancelled(sleep(INTERVAL)).await.is_some() {
        let partitions = context.gauges.partitions().into_iter().map(subject::stream_name);
        let streams: BTreeSet<String> = partitions.chain([subject::WORK_STREAM.to_owned()]).collect();
        for stream in &streams {
            let ratio = fill_ratio(&context, stream).await.unwrap_or(f64::NAN);
            gauge!(STREAM_FILL_RATIO, "stream" => stream.clone()).set(ratio);
        }
        for gone in shown.difference(&streams) {
            gauge!(STREAM_FILL_RATIO, "stream" => String::clone(gone)).set(f64::NAN);
        }
        shown = streams;
    }
}

/// `None`: there is no such stream, it has no bound, or NATS does not answer.
async fn fill_ratio(context: &Context, stream: &str) -> Option<f64> {
    let usage = context.bus.stream_usage(stream).await.ok()??;
    let max = usage.max_bytes.filter(|max| *max > 0)?;
    Some(usage.bytes as f64 / max as f64)
}
