//! Reasoning sessions of an export.

use batches::export_import::ReasoningRow;
use model::{AgentId, ReasoningSessionId, ThreadId};
use serde_json::{Map, Value};

use super::super::lookup::not_erased;
use super::{GROUP_BYTES, GROUP_MESSAGES, Importer};
use crate::exit::ExitError;

/// A session that is being read.
#[derive(Debug)]
pub(super) struct SessionImport {
    id: ReasoningSessionId,
    session: Map<String, Value>,
    /// It was there before, and stays as it is.
    is_skipped: bool,
    /// Rows that are not written yet, all of one kind.
    kind: ReasoningRow,
    rows: Vec<Map<String, Value>>,
    bytes: u64,
}

impl Importer<'_> {
    pub(super) async fn begin_session(&mut self, session: Map<String, Value>) -> Result<(), ExitError> {
        self.finish_session().await?;
        let text = |key: &str| session.get(key).and_then(Value::as_str).unwrap_or_default();
        let wrong =
            |why: String| ExitError::Failed(format!("reasoning session {:?}: {why}", text("session_id")));
        let id = ReasoningSessionId::parse(text("session_id")).map_err(|error| wrong(error.to_string()))?;
        AgentId::parse(text("agent_id")).map_err(|error| wrong(format!("agent_id: {error}")))?;
        let threads = session.get("source_threads").and_then(Value::as_array);
        for thread in threads.ok_or_else(|| wrong("source_threads is no array".to_owned()))? {
            let thread = ThreadId::parse(thread.as_str().unwrap_or_default());
            not_erased(self.store, &thread.map_err(|error| wrong(format!("source_threads: {error}")))?)
                .await?;
        }
        let goes_on = self.store.begin_reasoning_import(&id, &session).await?;
        self.totals.reasoning_sessions += 1;
        self.totals.new_reasoning_sessions += u64::from(goes_on);
        let (kind, rows) = (ReasoningRow::Session, Vec::new());
        self.session = Some(SessionImport { id, session, is_skipped: !goes_on, kind, rows, bytes: 0 });
        Ok(())
    }

    pub(super) async fn session_row(
        &mut self,
        kind: ReasoningRow,
        row: Map<String, Value>,
    ) -> Result<(), ExitError> {
        let Some(session) = self.session.as_mut().filter(|session| !session.is_skipped) else {
            return Ok(());
        };
        let bytes = row.get("content").and_then(Value::as_str).map_or(0, str::len) as u64;
        let is_full = session.rows.len() >= GROUP_MESSAGES || session.bytes + bytes > GROUP_BYTES;
        if is_full || session.kind != kind {
            self.write_session().await?;
        }
        if let Some(session) = &mut self.session {
            session.kind = kind;
            session.bytes += bytes;
            session.rows.push(row);
        }
        Ok(())
    }

    async fn write_session(&mut self) -> Result<(), ExitError> {
        let Some(session) = &mut self.session else { return Ok(()) };
        session.bytes = 0;
        let rows = std::mem::take(&mut session.rows);
        if !rows.is_empty() {
            self.store.import_reasoning_rows(&session.id, session.kind, rows).await?;
        }
        Ok(())
    }

    /// All of the session is read.
    pub(super) async fn finish_session(&mut self) -> Result<(), ExitError> {
        self.write_session().await?;
        if let Some(session) = self.session.take().filter(|session| !session.is_skipped) {
            self.store.finish_reasoning_import(&session.id, &session.session).await?;
        }
        Ok(())
    }
}
