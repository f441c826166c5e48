//! Imports: the lines of an export become threads of the caller's tenant.
//!
//! The response is lines of JSON, too: at intervals the counts so far, a report about each of the
//! first threads that are not simply imported, and the outcome in the last line. A response without
//! that line was cut. Repeating the request is safe, and completes the rest.

use std::time::Duration;

use ::transfer::{
    CutThread, ImportFault, ImportOptions, ImportReport, ImportReports, ImportSource, ImportSubject,
    ImportTotals, PartLimits, ReportKind, TenantOnly,
};
use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::Response;
use batches::export_import::{ExportWriter, ImportLimits, InvalidBatches};
use bytes::Bytes;
use futures_util::stream;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{JSON_LINES, LinesBody};
use http_server::extract::query::QueryParams;
use runtime::spawn_named;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{ImportAct, StoreError};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use crate::api::exports::{CHECK_INTERVAL, json_lines};
use crate::app::request_context::RequestContext;
use crate::backend::transfer_places::TransferPlace;
use crate::commands::control;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::response::ResponseSpec;
use crate::openapi::tags::THREADS;

pub(crate) fn operations() -> Vec<Operation> {
    let lines = || ResponseSpec::text(200, "Lines of JSON; the last one has `end`", JSON_LINES);
    vec![
        Operation::post("/v1/import", "importThreads", "Import threads into the tenant", create)
            .tag(THREADS)
            .description("The body is an export. Each thread is imported whole or not at all, and stored ones do not change: a request can be repeated. Refused threads are reported; the last line is `{\"end\": …}`.")
            .scope(Scope::ImportData)
            .query::<ImportQuery>()
            .actor_header()
            .lines_body(&empty_export())
            .response_with(lines())
            .errors(&[ErrorCode::InvalidImport, ErrorCode::DatabaseBusy, ErrorCode::Draining]),
    ]
}

/// An export without threads, as the example of a body that is accepted.
fn empty_export() -> String {
    let mut writer = ExportWriter::new();
    writer.header() + &writer.trailer()
}

/// How damaged batches are handled.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImportQuery {
    /// Whether damaged batches are imported unchanged; no context ever shows them.
    #[serde(default)]
    keep_invalid: bool,
}

/// Limits for one import, so that all imports of a gateway need little memory. Messages of this
/// fleet are smaller.
const LINE_BYTES: usize = 16 << 20;
const BATCH_BYTES: usize = 32 << 20;
/// What is written in one transaction. It takes much less time than a statement may.
const PART: PartLimits = PartLimits { messages: 5_000, bytes: 8 << 20 };
/// Number of reports in an answer; further ones are only counted. A client may read nothing before
/// it has sent all, and what is under way to it is bounded.
const MAX_REPORTS: usize = 100;
/// Interval of the counts so far. Proxies end a response that is silent.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Lines that wait for the client: all reports, and two others.
const LINES: usize = MAX_REPORTS + 2;
/// How long the rest of a refused body is read, so that its sender reads the response.
const DISCARD_TIME: Duration = Duration::from_secs(5);

async fn create(
    ctx: RequestContext,
    QueryParams(query): QueryParams<ImportQuery>,
    headers: HeaderMap,
    body: LinesBody,
) -> Result<Response, Problem> {
    let act = ImportAct { command: control::new_id()?, actor: ctx.actor(&headers)? };
    let (tenant, drain) = (ctx.tenant().cloned(), ctx.backend()?.drain.clone());
    let invalid_batches = if query.keep_invalid { InvalidBatches::Keep } else { InvalidBatches::Refuse };
    let limits = ImportLimits {
        line_bytes: LINE_BYTES,
        batch_bytes: BATCH_BYTES,
        invalid_batches,
        ..ImportLimits::default()
    };
    let options = ImportOptions {
        limits,
        part: PART,
        cut_thread: CutThread::Drop,
        tenant: Some(TenantOnly(tenant)),
        act: Some(act),
    };
    let place = ctx.backend()?.imports().take(ctx.tenant()).await;
    let place = place.ok_or_else(|| Problem::from(ErrorCode::DatabaseBusy))?;
    let (lines, mut received) = mpsc::channel(LINES);
    let now = Instant::now();
    let client = ImportClient {
        ctx,
        body,
        drain,
        lines,
        totals: ImportTotals::default(),
        reports: 0,
        is_answered: false,
        checked_at: now,
        shown_at: now,
    };
    spawn_named("import of a client", run(client, options, place));
    // The first line decides on the status: an import that has done nothing is refused.
    let first = match received.recv().await {
        Some(AnswerPart::Line(line)) => line,
        Some(AnswerPart::Refusal(problem)) => return Err(problem),
        None => return Err(Problem::from(ErrorCode::InternalError)),
    };
    let body = stream::unfold((Some(first), received), |(first, mut received)| async {
        let line = match first {
            Some(line) => line,
            None => match received.recv().await? {
                AnswerPart::Line(line) => line,
                AnswerPart::Refusal(_) => return None,
            },
        };
        Some((Ok::<_, std::convert::Infallible>(line), (None, received)))
    });
    Ok(json_lines(Body::from_stream(body)))
}

/// A part of the answer.
enum AnswerPart {
    Line(Bytes),
    /// Instead of all lines.
    Refusal(Problem),
}

/// Imports to the end, or until the client has gone. `_place` is given back then.
async fn run(mut client: ImportClient, options: ImportOptions, _place: TransferPlace) {
    let Ok(store) = client.ctx.store().cloned() else { return };
    let actor = options.act.as_ref().map(|act| act.actor.clone()).unwrap_or_default();
    let imported = ::transfer::import(&store, options, &mut client, None).await;
    let ImportTotals { new_threads, new_messages, refused, .. } = client.totals;
    match &imported {
        Ok(_) => tracing::info!(actor, new_threads, new_messages, refused, "an import has ended"),
        Err(ImportStop::ClientGone) => {
            return tracing::info!(actor, new_threads, new_messages, "the client of an import has gone");
        }
        Err(ImportStop::Refused(problem)) => {
            let (code, why) = (problem.code().name(), problem.detail());
            tracing::info!(actor, new_threads, new_messages, code, why, "an import has ended early");
        }
    }
    let problem = imported.err().and_then(ImportStop::into_problem);
    let is_early = problem.is_some();
    if client.end(problem).await && is_early {
        let _ = timeout(DISCARD_TIME, client.body.discard()).await;
    }
}

/// Why an import ends before its last line.
enum ImportStop {
    Refused(Problem),
    ClientGone,
}

impl ImportStop {
    fn into_problem(self) -> Option<Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            Self::ClientGone => None,
        }
    }
}

impl From<StoreError> for ImportStop {
    fn from(error: StoreError) -> Self {
        Self::Refused(error.into())
    }
}

impl From<ImportFault> for ImportStop {
    fn from(fault: ImportFault) -> Self {
        Self::Refused(Problem::new(ErrorCode::InvalidImport, fault.to_string()))
    }
}

impl From<Problem> for ImportStop {
    fn from(problem: Problem) -> Self {
        Self::Refused(problem)
    }
}

/// The client that sends the lines, and its answer.
struct ImportClient {
    ctx: RequestContext,
    body: LinesBody,
    drain: CancellationToken,
    lines: mpsc::Sender<AnswerPart>,
    totals: ImportTotals,
    /// Reports so far, sent or only counted.
    reports: usize,
    /// A line of the answer was sent.
    is_answered: bool,
    checked_at: Instant,
    shown_at: Instant,
}

impl ImportClient {
    /// Sends a line unless the queue is full. Nothing but the last line waits for the client, which
    /// may read nothing before it has sent all.
    fn try_send(&mut self, line: &Value) {
        let line = AnswerPart::Line(Bytes::from(format!("{line}\n")));
        self.is_answered |= self.lines.try_send(line).is_ok();
    }

    async fn end(&mut self, problem: Option<Problem>) -> bool {
        let has_done_nothing = self.totals.threads == 0 && self.totals.reasoning_sessions == 0;
        let part = match problem {
            Some(problem) if has_done_nothing && !self.is_answered => AnswerPart::Refusal(problem),
            problem => {
                let error = problem.map(|problem| EndError::of(&problem));
                let unreported = self.reports.saturating_sub(MAX_REPORTS);
                let is_complete = error.is_none();
                let end = EndLine { complete: is_complete, counts: &self.totals, unreported, error };
                AnswerPart::Line(Bytes::from(format!("{}\n", json!({ "end": end }))))
            }
        };
        self.lines.send(part).await.is_ok()
    }

    /// Checks what ends an import from outside, and shows the counts so far at intervals.
    async fn check(&mut self) -> Result<(), ImportStop> {
        if self.lines.is_closed() {
            return Err(ImportStop::ClientGone);
        }
        if self.drain.is_cancelled() {
            return Err(Problem::from(ErrorCode::Draining).into());
        }
        if self.checked_at.elapsed() >= CHECK_INTERVAL {
            self.checked_at = Instant::now();
            if self.ctx.has_ended().await {
                let detail = "the credential is no longer valid";
                return Err(Problem::new(ErrorCode::Unauthenticated, detail).into());
            }
        }
        let has_room = self.lines.capacity() > MAX_REPORTS;
        if has_room && self.shown_at.elapsed() >= PROGRESS_INTERVAL {
            self.shown_at = Instant::now();
            let progress = json!({ "progress": &self.totals });
            self.try_send(&progress);
        }
        Ok(())
    }
}

impl ImportReports for ImportClient {
    type Error = ImportStop;

    fn report(&mut self, report: ImportReport) -> Result<(), ImportStop> {
        self.reports += 1;
        if self.reports <= MAX_REPORTS {
            self.try_send(&json!({ "report": ReportLine::of(&report) }));
        }
        Ok(())
    }

    fn show(&mut self, totals: &ImportTotals) {
        self.totals = *totals;
    }
}

impl ImportSource for ImportClient {
    async fn read(&mut self) -> Result<Option<Bytes>, ImportStop> {
        loop {
            self.check().await?;
            tokio::select! {
                part = self.body.next() => return Ok(part?),
                () = self.drain.cancelled() => {}
                () = sleep(CHECK_INTERVAL) => {}
            }
        }
    }
}

/// A report about a thread or a session.
#[derive(Serialize)]
struct ReportLine<'a> {
    outcome: ReportKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    thread_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
    detail: &'a str,
}

impl<'a> ReportLine<'a> {
    fn of(report: &'a ImportReport) -> Self {
        let (thread_id, session_id) = match &report.subject {
            ImportSubject::Thread(thread) => (Some(thread.as_str()), None),
            ImportSubject::Session(session) => (None, Some(session.as_str())),
        };
        Self { outcome: report.kind, thread_id, session_id, line: report.line, detail: &report.text }
    }
}

/// The last line.
#[derive(Serialize)]
struct EndLine<'a> {
    /// All lines were read up to the trailer.
    complete: bool,
    counts: &'a ImportTotals,
    /// Number of reports that were not sent.
    unreported: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<EndError>,
}

/// Why the import ended early, as a problem says it.
#[derive(Serialize)]
struct EndError {
    code: &'static str,
    retryable: bool,
    detail: String,
}

impl EndError {
    fn of(problem: &Problem) -> Self {
        let code = problem.code();
        let retryable = code.retry_after_s().is_some();
        Self { code: code.name(), retryable, detail: problem.detail().to_owned() }
    }
}
