//! Focused reasoning sessions: reads of their visible state, and writes of changes that the crate
//! `reasoning` has decided.
//!
//! Every change is one statement that compares the state on which it was decided. It applies whole,
//! or not at all if another change came first.

mod apply;
mod changes;
mod export_import;
mod log;
mod shown;
mod undo;
mod values;

use model::{AgentId, Position, ReasoningSessionId, ThreadId, Timestamp};
use reasoning::{
    ContextSource, LayerId, MAX_MESSAGES_PER_SESSION, Number, Plan, PlanItem, PlanState, ReasoningSession,
    Runs, SessionCall, ShownThread, SnapshotToken, ViewLine, render,
};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;
use std::collections::BTreeSet;

use crate::error::StoreError;
use crate::row::{column_error, parse_column};
use crate::store::Store;

use shown::{BLOCK_MESSAGES, ShownPieces, longest_result};
use values::{bucket, number, stored};

pub use changes::{Appended, EarlierReturn, RequestId, Restorable};
pub use export_import::ReasoningRows;
pub use log::{
    DiscardedCursor, DiscardedLayer, DiscardedMessage, DiscardedPage, InvalidDiscardedCursor,
    ReadReasoningMessage,
};
pub use undo::UndoneReasoning;

/// Maximum number of base messages of a session.
const MAX_BASE_MESSAGES: i64 = 10_000;

/// The outcome of creating a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreatedReasoning {
    /// The session was created with this many base messages.
    Made(u64),
    /// The same request created the session before, with this many base messages.
    Before(u64),
    /// The request id was used for another session.
    Reused,
    /// A session with that id exists and does not change.
    Exists,
    /// This thread has no messages in the requested range of batches.
    Nothing(String),
    /// There are more base messages than this limit.
    TooMany(u64),
}

/// The visible state of a session at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct ReasoningThread {
    pub session: ReasoningSession,
    /// The visible entries, in order.
    pub thread: ShownThread,
    /// The texts, if requested, and the tools of results. The entries are in
    /// [`ReasoningThread::thread`].
    shown: ShownPieces,
    pub plan: Plan,
    /// The newest layer that is not undone.
    pub head: LayerId,
    /// Calls in the temp layer that have no result.
    pub waiting: BTreeSet<String>,
    /// The result of an earlier request with the same id.
    pub earlier: Option<EarlierCompression>,
}

/// A compression that was requested with a request id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierCompression {
    pub layer: LayerId,
    pub summary: Number,
    /// Digest of the request.
    pub digest: String,
}

impl ReasoningThread {
    /// The view for a model.
    pub fn view(&self, with_plan: bool) -> String {
        let called = self.thread.called_tools();
        let lines = self.thread.entries.iter().enumerate().map(|(index, entry)| ViewLine {
            number: entry.number,
            role: entry.role,
            content: self.shown.text(index),
            chars: entry.chars,
            calls: &entry.calls,
            tool: self.shown.tools.get(index).and_then(Option::as_deref).or(called[index]),
        });
        render(lines, with_plan.then_some(&self.plan), self.token())
    }

    /// The token that identifies this state.
    pub fn token(&self) -> SnapshotToken {
        self.thread.token()
    }
}

impl Store {
    /// Creates a session whose base messages are copies of the current messages of its sources.
    /// With a `request`, a repetition creates no second session.
    pub async fn create_reasoning(
        &self,
        id: &ReasoningSessionId,
        agent: &AgentId,
        sources: &[ContextSource],
        request: Option<RequestId<'_>>,
        actor: &str,
    ) -> Result<CreatedReasoning, StoreError> {
        let created = self.try_create_reasoning(id, agent, sources, request, actor).await?;
        match created {
            // The same request may be running concurrently: the second try sees its session.
            CreatedReasoning::Exists if request.is_some() => {
                self.try_create_reasoning(id, agent, sources, request, actor).await
            }
            created => Ok(created),
        }
    }

    async fn try_create_reasoning(
        &self,
        id: &ReasoningSessionId,
        agent: &AgentId,
        sources: &[ContextSource],
        request: Option<RequestId<'_>>,
        actor: &str,
    ) -> Result<CreatedReasoning, StoreError> {
        let position = |position: Option<Position>| position.map(Position::get);
        let statement = sqlx::query(include_str!("reasoning_sessions/create.sql"))
            .bind(bucket(id))
            .bind(id.as_str().to_owned())
            .bind(agent.as_str().to_owned())
            .bind(agent.thread().as_str().to_owned())
            .bind(actor.to_owned())
            .bind(MAX_BASE_MESSAGES)
            .bind(sources.iter().map(|source| source.thread.bucket().get() as i16).collect::<Vec<_>>())
            .bind(sources.iter().map(|source| source.thread.as_str().to_owned()).collect::<Vec<_>>())
            .bind(sources.iter().map(|source| position(source.from_batch)).collect::<Vec<_>>())
            .bind(sources.iter().map(|source| position(source.to_batch)).collect::<Vec<_>>())
            .bind(request.map(|request| request.id.to_owned()))
            .bind(request.map(|request| request.digest.to_owned()));
        let rows = self.rows(statement).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("no row of a new session".to_owned()))?;
        let (made, messages): (Option<i64>, i64) = (row.try_get("made")?, row.try_get("messages")?);
        let missing: Option<String> = row.try_get("missing")?;
        let earlier: (Option<String>, Option<String>) =
            (row.try_get("earlier")?, row.try_get("earlier_hash")?);
        if let (Some(request), Some(earlier), Some(digest)) = (request, earlier.0, earlier.1)
            && request.id == earlier
        {
            let count = number(row.try_get("earlier_messages")?);
            let is_same = request.digest == digest;
            return Ok(if is_same { CreatedReasoning::Before(count) } else { CreatedReasoning::Reused });
        }
        Ok(match (made, missing) {
            (Some(messages), _) => {
                if number(messages) >= BLOCK_MESSAGES {
                    self.seal_reasoning(id).await;
                }
                CreatedReasoning::Made(number(messages))
            }
            (None, _) if messages > MAX_BASE_MESSAGES => {
                CreatedReasoning::TooMany(MAX_BASE_MESSAGES.unsigned_abs())
            }
            (None, Some(thread)) => CreatedReasoning::Nothing(thread),
            (None, None) => CreatedReasoning::Exists,
        })
    }

    /// The visible state of a session; `None` when no session has that id. A view needs
    /// `with_contents`, a decision does not. `request` is the id of a request that may have been
    /// made before.
    pub async fn reasoning_thread(
        &self,
        id: &ReasoningSessionId,
        with_contents: bool,
        request: Option<&str>,
    ) -> Result<Option<ReasoningThread>, StoreError> {
        let statement = sqlx::query(include_str!("reasoning_sessions/thread.sql"))
            .bind(bucket(id))
            .bind(id.as_str().to_owned())
            .bind(with_contents)
            .bind(request.map(str::to_owned))
            .bind(longest_result())
            .bind(stored(BLOCK_MESSAGES));
        thread_of(id, &self.rows(statement).await?)
    }
}

/// Builds the state from the session's row and the rows of its pieces; `None` when there is no
/// session.
fn thread_of(id: &ReasoningSessionId, rows: &[PgRow]) -> Result<Option<ReasoningThread>, StoreError> {
    let (mut of_session, mut pieces) = (None, Vec::with_capacity(rows.len()));
    for row in rows {
        match row.try_get::<Option<i64>, _>("first_number")? {
            Some(first) => pieces.push((number(first), row)),
            None => of_session = Some(row),
        }
    }
    let Some(row) = of_session else { return Ok(None) };
    let last_number = number(row.try_get("last_number")?);
    let mut shown = ShownPieces::of(row, pieces)?;
    let entries = std::mem::take(&mut shown.entries);
    Ok(Some(ReasoningThread {
        session: session_of(id, row)?,
        thread: ShownThread { session: id.clone(), entries, last_number },
        shown,
        plan: plan_of(row)?,
        head: number(row.try_get("head_layer")?),
        waiting: row.try_get::<Vec<String>, _>("waiting_calls")?.into_iter().collect(),
        earlier: earlier_of(row)?,
    }))
}

/// Decodes stored calls: `[{"id", "name"}]`, with further details of each: `[{"arguments",
/// "signature"}]`.
fn calls_of(value: &Value, details: &Value) -> Vec<SessionCall> {
    let text = |call: &Value, key: &str| call[key].as_str().map(str::to_owned);
    let call = |(place, call): (usize, &Value)| SessionCall {
        id: text(call, "id").unwrap_or_default(),
        name: text(call, "name").unwrap_or_default(),
        arguments: text(&details[place], "arguments"),
        signature: text(&details[place], "signature"),
    };
    value.as_array().map_or(&[][..], Vec::as_slice).iter().enumerate().map(call).collect()
}

fn session_of(id: &ReasoningSessionId, row: &PgRow) -> Result<ReasoningSession, StoreError> {
    let sources: Value = row.try_get("sources")?;
    let sources = sources.as_array().map_or(&[][..], Vec::as_slice).iter().map(|source| {
        let thread = source["thread_id"].as_str().unwrap_or_default();
        let position =
            |key: &str| source[key].as_str().and_then(|text| text.parse().ok()).map(Position::from_stored);
        Ok(ContextSource {
            thread: ThreadId::parse(thread).map_err(|error| column_error("sources", &error))?,
            from_batch: position("from_batch"),
            to_batch: position("to_batch"),
            as_of: position("as_of"),
            numbers: source["first_number"].as_u64().zip(source["last_number"].as_u64()),
        })
    });
    Ok(ReasoningSession {
        id: id.clone(),
        agent: parse_column(row, "agent_id", AgentId::parse)?,
        sources: sources.collect::<Result<_, StoreError>>()?,
        created_by: row.try_get("created_by")?,
        created_at: Timestamp(row.try_get("created_ms")?),
        applies_to: match row.try_get::<Option<String>, _>("applies_to")? {
            Some(thread) => {
                Some(ThreadId::parse(&thread).map_err(|error| column_error("applies_to", &error))?)
            }
            None => None,
        },
    })
}

fn plan_of(row: &PgRow) -> Result<Plan, StoreError> {
    let plan: Value = row.try_get("plan")?;
    let items = plan.as_array().map_or(&[][..], Vec::as_slice).iter().map(|item| {
        let state = item["state"].as_str().and_then(PlanState::from_name);
        let text = item["text"].as_str().unwrap_or_default().to_owned();
        state.map(|state| PlanItem { text, state }).ok_or_else(|| column_error("plan", &item))
    });
    Plan::new(items.collect::<Result<_, _>>()?).map_err(|error| column_error("plan", &error))
}

fn earlier_of(row: &PgRow) -> Result<Option<EarlierCompression>, StoreError> {
    let Some(layer) = row.try_get::<Option<i64>, _>("earlier_layer")? else { return Ok(None) };
    let (summary, digest): (i64, Option<String>) =
        (row.try_get("earlier_summary")?, row.try_get("earlier_hash")?);
    Ok(Some(EarlierCompression {
        layer: number(layer),
        summary: number(summary),
        digest: digest.unwrap_or_default(),
    }))
}

/// Encodes runs for storage: first, last, first, last.
fn flat(runs: &Runs) -> Vec<i64> {
    runs.runs().iter().flat_map(|(first, last)| [stored(*first), stored(*last)]).collect()
}

/// The highest number that a message of a session can have.
fn highest() -> i64 {
    stored(MAX_MESSAGES_PER_SESSION)
}
