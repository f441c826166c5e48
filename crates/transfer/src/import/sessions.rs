//! Imports reasoning sessions of an export.

use batches::export_import::ReasoningRow;
use model::{AgentId, ReasoningSessionId, Tenant, ThreadId};
use serde_json::{Map, Value};
use store::{Store, StoreError};

use super::interface::{ImportFault, ImportReports, ReadEnd, TenantOnly};
use super::outcome::{ImportReport, ImportTotals, ReportKind};
use crate::erasure::erasure;

/// Maximum number of rows that are written together.
const GROUP_ROWS: usize = 1_000;
/// Maximum size in bytes of rows that are written together.
const GROUP_BYTES: u64 = 4 << 20;

/// Writes sessions row by row. The rows of a session are not shown before its last row is written.
#[derive(Debug, Default)]
pub(super) struct SessionImporter {
    /// The session that is being written; `None`: the rows that come are left out.
    session: Option<OpenSession>,
}

/// The session that is being read.
#[derive(Debug)]
struct OpenSession {
    id: ReasoningSessionId,
    /// The line of the session.
    line: u64,
    /// The store in the scope of the session's tenant: writes are refused once the tenant is
    /// erased.
    store: Store,
    session: Map<String, Value>,
    /// Kind of the rows that are not written yet.
    kind: ReasoningRow,
    rows: Vec<Map<String, Value>>,
    bytes: u64,
}

/// The ids in the row of a session.
struct SessionIds {
    id: ReasoningSessionId,
    agent: AgentId,
    threads: Vec<ThreadId>,
}

impl SessionImporter {
    pub(super) async fn row<R: ImportReports>(
        &mut self,
        reports: &mut R,
        (store, only, totals): (&Store, Option<&TenantOnly>, &mut ImportTotals),
        kind: ReasoningRow,
        row: Map<String, Value>,
        line: u64,
    ) -> Result<(), ReadEnd<R::Error>> {
        if kind == ReasoningRow::Session {
            self.finish(reports, totals).await.map_err(ReadEnd::Other)?;
            return self.begin(reports, (store, only, totals), row, line).await;
        }
        let Some(session) = self.session.as_mut() else { return Ok(()) };
        let written = session.take(kind, row).await;
        self.or_refuse(written, reports, totals).map_err(ReadEnd::Other)
    }

    async fn begin<R: ImportReports>(
        &mut self,
        reports: &mut R,
        (store, only, totals): (&Store, Option<&TenantOnly>, &mut ImportTotals),
        session: Map<String, Value>,
        line: u64,
    ) -> Result<(), ReadEnd<R::Error>> {
        let ids = SessionIds::read(&session).map_err(|why| ImportFault::new(line, why))?;
        let id = ids.id.as_str().to_owned();
        if let Some(why) = only.and_then(|only| ids.tenants().find_map(|of| only.refusal(of))) {
            totals.refused += 1;
            let text = format!("line {line}, reasoning session {id}: {why}");
            let report = ImportReport::of_session(ReportKind::Refused, &id, line, text);
            return reports.report(report).map_err(ReadEnd::Other);
        }
        for thread in &ids.threads {
            if let Some(erasure) =
                erasure(store, thread).await.map_err(|error| ReadEnd::Other(error.into()))?
            {
                totals.reasoning_sessions += 1;
                totals.left_out += 1;
                let text = format!("reasoning session {id} is left out: {erasure}");
                let report = ImportReport::of_session(ReportKind::LeftOut, &id, line, text);
                return reports.report(report).map_err(ReadEnd::Other);
            }
        }
        let store = store.for_tenant(ids.agent.tenant());
        let begun = store.begin_reasoning_import(&ids.id, &session).await;
        let (kind, rows) = (ReasoningRow::Session, Vec::new());
        self.session = Some(OpenSession { id: ids.id, line, store, session, kind, rows, bytes: 0 });
        match begun {
            Ok(goes_on) => {
                totals.reasoning_sessions += 1;
                totals.new_reasoning_sessions += u64::from(goes_on);
                if !goes_on {
                    // It is there already, and stays unchanged.
                    self.session = None;
                }
                Ok(())
            }
            Err(error) => self.or_refuse(Err(error), reports, totals).map_err(ReadEnd::Other),
        }
    }

    /// Finishes the session, which was read completely.
    pub(super) async fn finish<R: ImportReports>(
        &mut self,
        reports: &mut R,
        totals: &mut ImportTotals,
    ) -> Result<(), R::Error> {
        let Some(session) = self.session.as_mut() else { return Ok(()) };
        let finished = session.finish().await;
        self.or_refuse(finished, reports, totals)?;
        self.session = None;
        Ok(())
    }

    /// Leaves the rest of the session out if the database refuses a value of it.
    fn or_refuse<R: ImportReports>(
        &mut self,
        written: Result<(), StoreError>,
        reports: &mut R,
        totals: &mut ImportTotals,
    ) -> Result<(), R::Error> {
        let error = match written {
            Err(error) if error.refuses_data() => error,
            Ok(()) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let Some(OpenSession { id, line, .. }) = self.session.take() else { return Err(error.into()) };
        totals.refused += 1;
        let text = format!("line {line}, reasoning session {id}: a value cannot be stored: {error}");
        reports.report(ImportReport::of_session(ReportKind::Refused, id.as_str(), line, text))
    }
}

impl OpenSession {
    async fn take(&mut self, kind: ReasoningRow, row: Map<String, Value>) -> Result<(), StoreError> {
        let bytes = row.get("content").and_then(Value::as_str).map_or(0, str::len) as u64;
        let is_full = self.rows.len() >= GROUP_ROWS || self.bytes + bytes > GROUP_BYTES;
        if is_full || self.kind != kind {
            self.write().await?;
        }
        self.kind = kind;
        self.bytes += bytes;
        self.rows.push(row);
        Ok(())
    }

    async fn write(&mut self) -> Result<(), StoreError> {
        self.bytes = 0;
        let rows = std::mem::take(&mut self.rows);
        if !rows.is_empty() {
            self.store.import_reasoning_rows(&self.id, self.kind, rows).await?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), StoreError> {
        self.write().await?;
        self.store.finish_reasoning_import(&self.id, &self.session).await
    }
}

impl SessionIds {
    fn read(session: &Map<String, Value>) -> Result<Self, String> {
        let text = |key: &str| session.get(key).and_then(Value::as_str).unwrap_or_default();
        let wrong = |why: String| format!("reasoning session {:?}: {why}", text("session_id"));
        let id = ReasoningSessionId::parse(text("session_id"))
            .map_err(|error| wrong(format!("session_id: {error}")))?;
        let agent = AgentId::parse(text("agent_id")).map_err(|error| wrong(format!("agent_id: {error}")))?;
        let threads = session.get("source_threads").and_then(Value::as_array);
        let threads = threads.ok_or_else(|| wrong("source_threads is no array".to_owned()))?;
        let thread = |thread: &Value| ThreadId::parse(thread.as_str().unwrap_or_default());
        let threads: Result<Vec<_>, _> = threads.iter().map(thread).collect();
        let threads = threads.map_err(|error| wrong(format!("source_threads: {error}")))?;
        Ok(Self { id, agent, threads })
    }

    fn tenants(&self) -> impl Iterator<Item = Option<Tenant>> {
        let threads = self.threads.iter().map(ThreadId::tenant);
        [self.id.tenant(), self.agent.tenant()].into_iter().chain(threads)
    }
}
