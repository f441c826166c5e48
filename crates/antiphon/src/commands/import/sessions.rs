//! Imports reasoning sessions of an export.

use batches::export_import::ReasoningRow;
use model::{AgentId, ReasoningSessionId, ThreadId};
use serde_json::{Map, Value};
use store::Store;

use super::super::lookup::erasure;
use crate::exit::ExitError;
use crate::output::eprint_line;

/// Maximum number of rows that are written together.
const GROUP_ROWS: usize = 1_000;
/// Maximum size in bytes of rows that are written together.
const GROUP_BYTES: u64 = 4 << 20;

/// Writes sessions row by row.
#[derive(Debug, Default)]
pub(super) struct SessionImporter {
    session: Option<OpenSession>,
    /// Number of sessions that were read.
    pub(super) read: u64,
    /// Number of sessions that did not exist before.
    pub(super) new: u64,
}

/// The session that is being read.
#[derive(Debug)]
struct OpenSession {
    id: ReasoningSessionId,
    /// The store in the scope of the session's tenant: writes are refused once the tenant is
    /// erased.
    store: Store,
    session: Map<String, Value>,
    /// The session existed before, and stays unchanged.
    is_skipped: bool,
    /// Kind of the rows that are not written yet.
    kind: ReasoningRow,
    rows: Vec<Map<String, Value>>,
    bytes: u64,
}

impl SessionImporter {
    pub(super) async fn row(
        &mut self,
        store: &Store,
        kind: ReasoningRow,
        row: Map<String, Value>,
    ) -> Result<(), ExitError> {
        if kind == ReasoningRow::Session {
            self.finish().await?;
            return self.begin(store, row).await;
        }
        let Some(session) = self.session.as_mut().filter(|session| !session.is_skipped) else {
            return Ok(());
        };
        let bytes = row.get("content").and_then(Value::as_str).map_or(0, str::len) as u64;
        let is_full = session.rows.len() >= GROUP_ROWS || session.bytes + bytes > GROUP_BYTES;
        if is_full || session.kind != kind {
            session.write().await?;
        }
        session.kind = kind;
        session.bytes += bytes;
        session.rows.push(row);
        Ok(())
    }

    async fn begin(&mut self, store: &Store, session: Map<String, Value>) -> Result<(), ExitError> {
        let text = |key: &str| session.get(key).and_then(Value::as_str).unwrap_or_default();
        let wrong =
            |why: String| ExitError::Failed(format!("reasoning session {:?}: {why}", text("session_id")));
        let id = ReasoningSessionId::parse(text("session_id")).map_err(|error| wrong(error.to_string()))?;
        let agent = AgentId::parse(text("agent_id")).map_err(|error| wrong(format!("agent_id: {error}")))?;
        let threads = session.get("source_threads").and_then(Value::as_array);
        for thread in threads.ok_or_else(|| wrong("source_threads is no array".to_owned()))? {
            let thread = ThreadId::parse(thread.as_str().unwrap_or_default());
            let thread = thread.map_err(|error| wrong(format!("source_threads: {error}")))?;
            if let Some(erasure) = erasure(store, &thread).await? {
                eprint_line(&format!("reasoning session {id} is left out: {erasure}"));
                self.read += 1;
                return Ok(());
            }
        }
        let store = store.for_tenant(agent.tenant());
        let goes_on = store.begin_reasoning_import(&id, &session).await?;
        self.read += 1;
        self.new += u64::from(goes_on);
        let (kind, rows) = (ReasoningRow::Session, Vec::new());
        self.session = Some(OpenSession { id, store, session, is_skipped: !goes_on, kind, rows, bytes: 0 });
        Ok(())
    }

    /// Finishes the session, which was read completely.
    pub(super) async fn finish(&mut self) -> Result<(), ExitError> {
        let Some(mut session) = self.session.take().filter(|session| !session.is_skipped) else {
            return Ok(());
        };
        session.write().await?;
        Ok(session.store.finish_reasoning_import(&session.id, &session.session).await?)
    }
}

impl OpenSession {
    async fn write(&mut self) -> Result<(), ExitError> {
        self.bytes = 0;
        let rows = std::mem::take(&mut self.rows);
        if !rows.is_empty() {
            self.store.import_reasoning_rows(&self.id, self.kind, rows).await?;
        }
        Ok(())
    }
}
