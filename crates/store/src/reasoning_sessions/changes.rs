//! Changes of a session: appends, compressions, undo, checkpoints, the plan.

use model::{ReasoningSessionId, Timestamp};
use reasoning::{
    Checkpoint, Compression, LayerId, MAX_CHECKPOINTS, MAX_MESSAGES_PER_SESSION, NewMessages, Number, Plan,
    Reason, Refusal, SessionCall,
};
use serde_json::{Value, json};
use sqlx::Row;

use super::shown::BLOCK_MESSAGES;
use super::values::{bucket, number, stored};
use super::{ReasoningThread, flat, highest};
use crate::error::StoreError;
use crate::statement::Statement;
use crate::store::Store;

/// The action in the audit log for undoing one compression.
const UNDO: &str = "reasoning_undo";
/// The action in the audit log for undoing all compressions since a checkpoint.
const RESTORE: &str = "reasoning_restore";
/// Maximum tries of an append that conflicts with concurrent appends.
const APPEND_TRIES: u32 = 16;

/// The id and digest of a request that a client may send twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestId<'a> {
    /// Unique in the session.
    pub id: &'a str,
    /// Equal for equal requests.
    pub digest: &'a str,
}

/// The effect of an earlier undo or restore request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlierReturn {
    /// True for an undo; false for the restore of a checkpoint.
    pub is_undo: bool,
    /// The id of the oldest summary that was undone.
    pub oldest: Option<String>,
}

/// The outcome of appending messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Appended {
    /// The messages are stored; the number of the first one.
    Done(Number),
    /// The same request was made before and is not repeated; the number of its first message.
    Before(Number),
    /// The messages do not fit the session.
    Refused(Refusal),
    /// The session does not exist.
    NoSession,
}

/// The checkpoints of a session and its newest layer. The flag of a checkpoint is true while its
/// layer is still in effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restorable {
    /// Ordered by name.
    pub checkpoints: Vec<(Checkpoint, bool)>,
    /// The newest layer that is not undone; 0: none.
    pub head: LayerId,
    /// The head before this layer.
    pub previous: LayerId,
    /// The number of the newest layer's summary.
    pub summary: Option<Number>,
}

impl Store {
    /// Appends messages to the temp layer of a session.
    pub async fn append_reasoning(
        &self,
        id: &ReasoningSessionId,
        new: &NewMessages,
        request: Option<RequestId<'_>>,
    ) -> Result<Appended, StoreError> {
        for _ in 0..APPEND_TRIES {
            let rows = match self.rows(appending(id, new, request)).await {
                // The same request is running concurrently: the next try finds its result.
                Err(error) if error.is_unique_violation() => continue,
                rows => rows?,
            };
            let Some(row) = rows.first() else { return Ok(Appended::NoSession) };
            if let Some(before) = row.try_get::<Option<i64>, _>("before")? {
                let sealed = number(row.try_get("sealed_number")?);
                if number(before) + new.messages.len() as u64 >= sealed + BLOCK_MESSAGES {
                    self.seal_reasoning(id).await;
                }
                return Ok(Appended::Done(number(before) + 1));
            }
            if let (Some(earlier), Some(request)) = (row.try_get::<Option<i64>, _>("earlier")?, request) {
                let digest: Option<String> = row.try_get("earlier_hash")?;
                let is_same = digest.as_deref() == Some(request.digest);
                let reused = || Appended::Refused(Reason::RequestReused(request.id.to_owned()).into());
                return Ok(if is_same { Appended::Before(number(earlier)) } else { reused() });
            }
            let last = number(row.try_get("last_number")?) + new.messages.len() as u64;
            if last > MAX_MESSAGES_PER_SESSION {
                let (what, max) = ("messages of the session", MAX_MESSAGES_PER_SESSION);
                return Ok(Appended::Refused(Reason::TooMany { what, count: last, max }.into()));
            }
            let waiting = row.try_get::<Vec<String>, _>("waiting_calls")?.into_iter().collect();
            if let Err(refusal) = new.settle(&waiting) {
                return Ok(Appended::Refused(refusal));
            }
            // The messages fit the current state, so another append came in between.
        }
        Err(StoreError::TimedOut)
    }

    /// Writes a compression that was decided on for the state `seen`, and returns the layer.
    /// Returns `None` and writes nothing if the session no longer has that state.
    pub async fn compress_reasoning(
        &self,
        seen: &ReasoningThread,
        compression: &Compression,
        summary: &str,
        request: Option<RequestId<'_>>,
        actor: &str,
    ) -> Result<Option<LayerId>, StoreError> {
        let id = &seen.session.id;
        let replaced: Vec<i64> = compression.replaced.iter().map(|number| stored(*number)).collect();
        let statement = sqlx::query(include_str!("compress.sql"))
            .bind(bucket(id))
            .bind(id.as_str().to_owned())
            .bind(stored(seen.head))
            .bind(stored(seen.thread.last_number))
            .bind(replaced)
            .bind(flat(&compression.shown))
            .bind(summary.to_owned())
            .bind(i32::try_from(compression.chars.1).unwrap_or(i32::MAX))
            .bind(compression.in_temp)
            .bind(stored(compression.chars.0))
            .bind(seen.token().to_string())
            .bind(request.map(|request| request.id.to_owned()))
            .bind(request.map(|request| request.digest.to_owned()))
            .bind(actor.to_owned());
        match self.rows(statement).await {
            // The same request is running concurrently.
            Err(error) if error.is_unique_violation() => Ok(None),
            rows => rows?.first().map(|row| Ok(number(row.try_get("head_layer")?))).transpose(),
        }
    }

    /// Undoes a compression if it is still the newest, and returns false if not. With a `request`,
    /// it is undone once: see [`Store::earlier_return`].
    pub async fn undo_reasoning(
        &self,
        id: &ReasoningSessionId,
        seen: &Restorable,
        request: Option<&str>,
        actor: &str,
    ) -> Result<bool, StoreError> {
        Ok(self.back_to(id, seen.head, seen.previous, actor, (UNDO, request)).await?.is_some())
    }

    /// Undoes all compressions above a layer and returns how many. Returns `None` if the newest
    /// layer is no longer the one that the caller has seen. With a `request`, they are undone once:
    /// see [`Store::earlier_return`].
    pub async fn restore_reasoning(
        &self,
        id: &ReasoningSessionId,
        seen: &Restorable,
        layer: LayerId,
        request: Option<&str>,
        actor: &str,
    ) -> Result<Option<u64>, StoreError> {
        self.back_to(id, seen.head, layer, actor, (RESTORE, request)).await
    }

    /// The effect of an earlier undo or restore with this request id, as far back as the audit log
    /// reaches. Call it after reading the session, because an earlier request may have changed the
    /// state that was read.
    pub async fn earlier_return(
        &self,
        id: &ReasoningSessionId,
        request: &str,
    ) -> Result<Option<EarlierReturn>, StoreError> {
        let names: Vec<String> = [UNDO, RESTORE].map(|what| command(what, request)).to_vec();
        let sql = "SELECT action, target FROM audit_log
                   WHERE bucket = $1 AND subject_id = $2 || '+reasoning' AND command_id = ANY($3)";
        let rows = self.rows(of(sql, id).bind(names)).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let is_undo = row.try_get::<String, _>("action")? == UNDO;
        Ok(Some(EarlierReturn { is_undo, oldest: row.try_get("target")? }))
    }

    async fn back_to(
        &self,
        id: &ReasoningSessionId,
        seen: LayerId,
        layer: LayerId,
        actor: &str,
        (what, request): (&str, Option<&str>),
    ) -> Result<Option<u64>, StoreError> {
        let statement = of(include_str!("back.sql"), id)
            .bind(stored(seen))
            .bind(stored(layer))
            .bind(actor.to_owned())
            .bind(what.to_owned())
            .bind(request.map(|request| command(what, request)));
        match self.rows(statement).await {
            // The same request is running concurrently.
            Err(error) if error.is_unique_violation() => Ok(None),
            rows => rows?.first().map(|row| Ok(number(row.try_get("count")?))).transpose(),
        }
    }

    /// Creates a checkpoint of the newest layer. Returns the layer, or the refusal when there are
    /// too many checkpoints. Returns `None` if the session does not exist.
    pub async fn checkpoint_reasoning(
        &self,
        id: &ReasoningSessionId,
        name: &str,
    ) -> Result<Option<Result<LayerId, Refusal>>, StoreError> {
        let statement =
            of(include_str!("checkpoint.sql"), id).bind(name.to_owned()).bind(MAX_CHECKPOINTS as i64);
        let rows = self.rows(statement).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let layer: Option<i64> = row.try_get("layer_id")?;
        let (what, count) = ("checkpoints", number(row.try_get("count")?) + 1);
        let too_many = || Reason::TooMany { what, count, max: MAX_CHECKPOINTS as u64 }.into();
        Ok(Some(layer.map(number).ok_or_else(too_many)))
    }

    /// The layers to which a session can return; `None` if the session does not exist.
    pub async fn restorable_reasoning(
        &self,
        id: &ReasoningSessionId,
    ) -> Result<Option<Restorable>, StoreError> {
        let rows = self.rows(of(include_str!("checkpoints.sql"), id)).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let mut checkpoints = Vec::new();
        for row in &rows {
            let Some(name) = row.try_get::<Option<String>, _>("name")? else { continue };
            let (layer, at) = (number(row.try_get("layer_id")?), Timestamp(row.try_get("made_ms")?));
            checkpoints.push((Checkpoint { name, layer, at }, row.try_get("stands")?));
        }
        let optional =
            |column: &str| Ok::<_, StoreError>(first.try_get::<Option<i64>, _>(column)?.map(number));
        Ok(Some(Restorable {
            checkpoints,
            head: number(first.try_get("head_layer")?),
            previous: optional("previous_id")?.unwrap_or(0),
            summary: optional("summary_number")?,
        }))
    }

    /// Replaces the plan; returns false if the session does not exist.
    pub async fn plan_reasoning(&self, id: &ReasoningSessionId, plan: &Plan) -> Result<bool, StoreError> {
        let item = |item: &reasoning::PlanItem| json!({ "text": item.text, "state": item.state.name() });
        let items: Vec<Value> = plan.items().iter().map(item).collect();
        let sql = "UPDATE reasoning_sessions SET plan = $3, changed_at = clock_timestamp()
                   WHERE bucket = $1 AND session_id = $2 RETURNING true";
        Ok(!self.rows(of(sql, id).bind(Value::Array(items))).await?.is_empty())
    }
}

/// A statement about a session: its bucket is `$1`, its id `$2`.
fn of(sql: &'static str, id: &ReasoningSessionId) -> Statement {
    sqlx::query(sql).bind(bucket(id)).bind(id.as_str().to_owned())
}

/// The key in the audit log of a request that may be sent twice.
fn command(what: &str, request: &str) -> String {
    format!("{what}:{request}")
}

fn appending(id: &ReasoningSessionId, new: &NewMessages, request: Option<RequestId<'_>>) -> Statement {
    let messages = &new.messages;
    let set = |ids: &std::collections::BTreeSet<String>| ids.iter().cloned().collect::<Vec<_>>();
    of(include_str!("append.sql"), id)
        .bind(messages.len() as i64)
        .bind(set(&new.answers))
        .bind(set(&new.calls))
        .bind(set(&new.waiting))
        .bind(highest())
        .bind(request.map(|request| request.id.to_owned()))
        .bind(request.map(|request| request.digest.to_owned()))
        .bind(messages.iter().map(|new| new.role.name().to_owned()).collect::<Vec<_>>())
        .bind(messages.iter().map(|new| new.content.clone()).collect::<Vec<_>>())
        .bind(messages.iter().map(|new| new.content.chars().count() as i32).collect::<Vec<_>>())
        .bind(messages.iter().map(|new| new.thinking.clone()).collect::<Vec<_>>())
        .bind(messages.iter().map(|new| calls_text(&new.calls)).collect::<Vec<_>>())
        .bind(messages.iter().map(|new| new.answers.clone()).collect::<Vec<_>>())
        .bind(messages.iter().map(|new| new.tool.clone()).collect::<Vec<_>>())
        .bind(messages.iter().map(|new| new.signature.clone()).collect::<Vec<_>>())
        .bind(messages.iter().map(|new| details_text(&new.calls)).collect::<Vec<_>>())
}

fn calls_text(calls: &[SessionCall]) -> Option<String> {
    let calls: Vec<Value> = calls.iter().map(|call| json!({ "id": call.id, "name": call.name })).collect();
    (!calls.is_empty()).then(|| Value::Array(calls).to_string())
}

/// The details of calls besides their ids and tools; `None` when no call has any.
fn details_text(calls: &[SessionCall]) -> Option<String> {
    let has_any = calls.iter().any(|call| call.arguments.is_some() || call.signature.is_some());
    let details =
        calls.iter().map(|call| json!({ "arguments": call.arguments, "signature": call.signature }));
    has_any.then(|| Value::Array(details.collect()).to_string())
}
