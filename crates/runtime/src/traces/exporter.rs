//! Sends spans to the receiver in batches, in its own task.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use opentelemetry::Context;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use prost::Message;
use reqwest::{Client, StatusCode};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::settings::TraceSettings;
use crate::backoff::Backoff;
use crate::http::{ClientError, client, read_at_most};
use crate::metrics::{MetricDescription, describe as describe_metrics};
use crate::spawn_named;

const EXPORTED: &str = "antiphon_traces_spans_exported_total";
const DROPPED: &str = "antiphon_traces_spans_dropped_total";

/// Metrics of a process that sends traces.
pub const METRICS: &[MetricDescription] = &[
    MetricDescription::counter(EXPORTED, "Spans that the receiver of traces has accepted"),
    MetricDescription::counter(
        DROPPED,
        "Spans that were not sent, by `reason`: `queue_full`, `unavailable` (the receiver was unavailable for about a \
         minute), `rejected`",
    )
    .by(&["reason"]),
];

/// Maximum number of spans per request.
const BATCH: usize = 512;
/// How long an ended span waits for other spans, which are sent with it.
const GATHER: Duration = Duration::from_secs(1);
/// The timeout of one try.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum tries of one request: about a minute in total.
const TRIES: u32 = 8;
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(15);
/// Minimum interval of log lines about a receiver that accepts no spans.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// Maximum bytes read of the receiver's response.
const ANSWER_BYTES: usize = 64 << 10;

/// The reason why spans were not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DropReason {
    /// Spans ended faster than the receiver accepts them.
    QueueFull,
    /// The receiver was unreachable for too long.
    Unavailable,
    /// The receiver refused the spans.
    Rejected,
}

impl DropReason {
    const ALL: [Self; 3] = [Self::QueueFull, Self::Unavailable, Self::Rejected];

    fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Unavailable => "unavailable",
            Self::Rejected => "rejected",
        }
    }
}

fn count_dropped(reason: DropReason, spans: u64) {
    metrics::counter!(DROPPED, "reason" => reason.name()).increment(spans);
}

pub(super) fn describe() {
    describe_metrics(METRICS);
    metrics::counter!(EXPORTED).increment(0);
    DropReason::ALL.into_iter().for_each(|reason| count_dropped(reason, 0));
}

/// The queue of spans for the exporter. It never blocks.
#[derive(Debug)]
pub(super) struct QueueProcessor(pub(super) mpsc::Sender<SpanData>);

impl SpanProcessor for QueueProcessor {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if self.0.try_send(span).is_err() {
            count_dropped(DropReason::QueueFull, 1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// The task that sends spans.
#[derive(Debug)]
pub(super) struct Exporter {
    flushes: mpsc::Sender<oneshot::Sender<()>>,
}

impl Exporter {
    /// Starts the task; the sender is for [`QueueProcessor`].
    pub(super) fn start(
        settings: TraceSettings,
        resource: &Resource,
    ) -> Result<(Self, mpsc::Sender<SpanData>), ClientError> {
        let (queue, spans) = mpsc::channel(settings.max_queue);
        let (flushes, flush_requests) = mpsc::channel(1);
        let task = ExportTask {
            client: client(Some(TIMEOUT))?,
            resource: resource.into(),
            settings,
            spans,
            flush_requests,
            flushed: None,
            complaint: Complaint::default(),
        };
        spawn_named("traces", task.run());
        Ok((Self { flushes }, queue))
    }

    /// Sends all spans in the queue. Returns false if not all were sent in time.
    pub(super) async fn flush(&self, timeout: Duration) -> bool {
        let flushed = async {
            let (done, is_done) = oneshot::channel();
            self.flushes.send(done).await.is_ok() && is_done.await.is_ok()
        };
        tokio::time::timeout(timeout, flushed).await.unwrap_or(false)
    }
}

struct ExportTask {
    client: Client,
    resource: ResourceAttributesWithSchema,
    settings: TraceSettings,
    spans: mpsc::Receiver<SpanData>,
    flush_requests: mpsc::Receiver<oneshot::Sender<()>>,
    /// Notified when the queue is empty. While it is set, the task does not wait for further spans
    /// or tries.
    flushed: Option<oneshot::Sender<()>>,
    complaint: Complaint,
}

impl ExportTask {
    async fn run(mut self) {
        while let Some(batch) = self.gather().await {
            if !batch.is_empty() {
                self.export(batch).await;
            }
            if self.spans.is_empty()
                && let Some(flushed) = self.flushed.take()
            {
                let _ = flushed.send(());
            }
        }
    }

    /// The next spans; empty when a flush finds none, `None` when the process ends.
    async fn gather(&mut self) -> Option<Vec<SpanData>> {
        let mut batch = Vec::new();
        let mut until = Instant::now();
        while batch.len() < BATCH {
            if self.flushed.is_some() && self.spans.is_empty() {
                break;
            }
            let (was_empty, room) = (batch.is_empty(), BATCH - batch.len());
            tokio::select! {
                biased;
                flush = self.flush_requests.recv(), if self.flushed.is_none() => self.flushed = Some(flush?),
                count = self.spans.recv_many(&mut batch, room) => {
                    if count == 0 {
                        return None;
                    }
                    if was_empty {
                        until = Instant::now() + GATHER;
                    }
                }
                () = sleep_until(until), if !was_empty => break,
            }
        }
        Some(batch)
    }

    async fn export(&mut self, batch: Vec<SpanData>) {
        let count = batch.len() as u64;
        let resource_spans = group_spans_by_resource_and_scope(batch, &self.resource);
        let body = Bytes::from(ExportTraceServiceRequest { resource_spans }.encode_to_vec());
        let mut backoff = Backoff::new(FIRST_DELAY, LONGEST_DELAY);
        for _ in 0..TRIES {
            let error = match self.post(body.clone()).await {
                Ok(rejected) => return self.taken(count, rejected),
                Err(error) => error,
            };
            let is_final = matches!(error, ExportError::Refused(_));
            self.complaint.write(&error);
            if is_final {
                return count_dropped(DropReason::Rejected, count);
            }
            if !self.wait(backoff.next_delay()).await {
                break;
            }
        }
        count_dropped(DropReason::Unavailable, count);
    }

    fn taken(&mut self, count: u64, rejected: u64) {
        metrics::counter!(EXPORTED).increment(count.saturating_sub(rejected));
        if rejected > 0 {
            count_dropped(DropReason::Rejected, rejected);
        }
        self.complaint.is_over();
    }

    /// Waits before another try. Returns false when a flush is requested, because another try would
    /// be too late.
    async fn wait(&mut self, delay: Duration) -> bool {
        if self.flushed.is_some() {
            return false;
        }
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            // After a flush request, the next try is the last one.
            Some(flush) = self.flush_requests.recv() => self.flushed = Some(flush),
        }
        true
    }

    /// Posts the spans, and returns how many the receiver refused.
    async fn post(&self, body: Bytes) -> Result<u64, ExportError> {
        let request = self.client.post(self.settings.endpoint.clone()).headers(self.settings.headers.clone());
        let request = request.header(CONTENT_TYPE, "application/x-protobuf").timeout(TIMEOUT).body(body);
        let response = request.send().await.map_err(|error| ExportError::Away(error.without_url()))?;
        match response.status() {
            status if status.is_success() => {
                let (answer, _) = read_at_most(response, ANSWER_BYTES).await.unwrap_or_default();
                let answer = ExportTraceServiceResponse::decode(answer.as_slice()).unwrap_or_default();
                let rejected = answer.partial_success.map_or(0, |partial| partial.rejected_spans);
                Ok(u64::try_from(rejected).unwrap_or(0))
            }
            // The protocol declares these statuses retryable.
            status @ (StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT) => Err(ExportError::Busy(status)),
            status => Err(ExportError::Refused(status)),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("it cannot be reached: {0}")]
    Away(reqwest::Error),
    #[error("it answers {0}")]
    Busy(StatusCode),
    #[error("it refuses spans with {0}")]
    Refused(StatusCode),
}

/// Limits log lines to one a minute, and one when the fault has ended.
#[derive(Debug, Default)]
struct Complaint {
    written_at: Option<Instant>,
}

impl Complaint {
    fn write(&mut self, error: &ExportError) {
        if self.written_at.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            self.written_at = Some(Instant::now());
            tracing::warn!(%error, "the receiver of traces takes no spans; nothing else depends on it");
        }
    }

    fn is_over(&mut self) {
        if self.written_at.take().is_some() {
            tracing::info!("the receiver of traces takes spans again");
        }
    }
}
