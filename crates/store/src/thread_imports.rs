//! Imports threads from exports, through one function of the database. It runs with the rights of
//! the owner, because gateways may not write messages.

use batches::Item;
use batches::compaction::Compaction;
use model::{AgentId, Bucket, BusyPolicy, CommandId, Position, ThreadId, ThreadTitle, TurnId};
use serde_json::{Value, json};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::api::{FollowUpRow, NewThread};
use crate::error::StoreError;
use crate::feedback::ImportedFeedback;
use crate::row::{parse_column, unsigned};
use crate::statement::Statement;
use crate::store::Store;

/// A whole thread, or a part of a large one. It is imported in one transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadImport {
    pub thread: ThreadId,
    /// The thread as its client created it; `None` if its beginning is stored already.
    pub named: Option<NewThread>,
    /// The messages of whole batches.
    pub items: Vec<Item>,
    /// Batches of the same source that are stored already, begin earlier, and extend beyond the
    /// first of these batches. New batches must follow all other messages of the thread.
    pub beside: Vec<Position>,
    /// The highest number that the thread has assigned; lower numbers are not assigned again, even
    /// if their messages are gone.
    pub last_number: Option<u64>,
    pub compactions: Vec<Compaction>,
    /// A pending follow-up is stored as cancelled, so that it does not fire here.
    pub follow_ups: Vec<FollowUpRow>,
    /// Feedback on messages; what users say about a message here already stays.
    pub feedback: Vec<ImportedFeedback>,
    /// Replaces a title of lower rank.
    pub title: Option<ThreadTitle>,
    /// Whether a new thread is archived.
    pub archived: bool,
}

impl ThreadImport {
    /// A thread with these messages and nothing else.
    pub fn new(thread: ThreadId, named: Option<NewThread>, items: Vec<Item>) -> Self {
        Self {
            thread,
            named,
            items,
            beside: Vec::new(),
            last_number: None,
            compactions: Vec::new(),
            follow_ups: Vec::new(),
            feedback: Vec::new(),
            title: None,
            archived: false,
        }
    }
}

/// The request that imports, for the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportAct {
    pub command: CommandId,
    pub actor: String,
}

/// The outcome of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportOutcome {
    /// All of it is stored now.
    Stored(ImportedRows),
    /// Nothing was written.
    Refused(ImportRefusal),
}

/// What was new. Everything else was stored already, in the same form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImportedRows {
    pub is_new_thread: bool,
    /// The thread existed with another agent, policy or metadata, and keeps them.
    pub keeps_own: bool,
    pub messages: u64,
    pub compactions: u64,
}

/// The first item that is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportRefusal {
    pub item: RefusedItem,
    pub why: RefusalReason,
}

/// An item of an import.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusedItem {
    Thread,
    Batch {
        batch: Position,
        /// The id of the message in that batch that differs from the stored one.
        message: Option<String>,
    },
    Compaction(Position),
}

/// The reason why an item is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RefusalReason {
    /// The stored item with its id has other content, or so has a stored message with the position
    /// or id of one of its messages.
    #[error("it is there already in another form")]
    Other,
    /// The stored batch has more messages than the imported one.
    #[error("it is there already and has gone on since")]
    Longer,
    /// Messages of other batches follow the position at which the batch begins, or later
    /// compactions exist.
    #[error("it comes before what the thread already has")]
    Before,
    /// Its position is in the future, so later items would precede it.
    #[error("its position is later than now by the database's clock")]
    Future,
    /// The thread was erased after the import had begun.
    #[error("the thread has been erased meanwhile")]
    Erased,
}

impl Store {
    /// Imports a thread, all of it or nothing. What is stored in the same form does not change.
    ///
    /// # Errors
    /// `act` is required in the scope of a tenant under the role of a gateway, which may import
    /// nothing without an entry in the audit log.
    pub async fn import_thread(
        &self,
        import: &ThreadImport,
        act: Option<&ImportAct>,
    ) -> Result<ImportOutcome, StoreError> {
        let rows = self.rows(statement(import, act)).await?;
        rows.first().map_or_else(|| Err(StoreError::Row("no outcome".to_owned())), outcome)
    }
}

fn statement(import: &ThreadImport, act: Option<&ImportAct>) -> Statement {
    let items = &import.items;
    let text = |value: &Option<Value>| value.as_ref().map(Value::to_string);
    let stored = |number: u64| i64::try_from(number).ok();
    let sql = "SELECT i.*, CASE WHEN i.why IS NULL THEN antiphon_list_thread($1, $2, $25, $26, $27) END,
                      CASE WHEN i.why IS NULL THEN antiphon_import_feedback($1, $2, $28) END
               FROM antiphon_import_thread($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
                                                    $18, $19, $20, $21, $22, $23, $24) AS i";
    sqlx::query(sql)
        .bind(import.thread.bucket().get() as i16)
        .bind(import.thread.as_str().to_owned())
        .bind(import.named.as_ref().map(named))
        .bind(column(items, |item| item.position.get()))
        .bind(column(items, |item| item.message_id.as_str().to_owned()))
        .bind(column(items, |item| item.batch_id.get()))
        .bind(column(items, |item| item.sequence_num))
        .bind(column(items, |item| item.batch_type.name()))
        .bind(column(items, |item| item.role.name()))
        .bind(column(items, |item| item.content.clone()))
        .bind(column(items, |item| text(&item.tool_calls)))
        .bind(column(items, |item| item.tool_call_id.clone()))
        .bind(column(items, |item| item.metadata.to_value().to_string()))
        .bind(column(items, |item| item.token_count.and_then(stored)))
        .bind(column(items, |item| item.created_at.0))
        .bind(column(items, |item| item.number.and_then(stored)))
        .bind(column(items, started_after_ms))
        .bind(column(&import.beside, |batch| batch.get()))
        .bind(stand_one_after_the_other(items))
        .bind(import.last_number.and_then(stored))
        .bind(serde_json::to_value(&import.compactions).unwrap_or_else(|_| json!([])))
        .bind(Value::Array(import.follow_ups.iter().map(follow_up).collect()))
        .bind(act.map(|act| act.command.to_string()))
        .bind(act.map(|act| act.actor.clone()))
        .bind(import.title.as_ref().map(|title| title.text.clone()))
        .bind(import.title.as_ref().map(|title| title.by.name()))
        .bind(import.archived)
        .bind(Value::Array(import.feedback.iter().map(ImportedFeedback::row).collect()))
}

fn outcome(row: &PgRow) -> Result<ImportOutcome, StoreError> {
    if row.try_get::<Option<&str>, _>("why")?.is_none() {
        return Ok(ImportOutcome::Stored(ImportedRows {
            is_new_thread: row.try_get("is_new")?,
            keeps_own: row.try_get("keeps_own")?,
            messages: unsigned(row, "new_messages")?,
            compactions: unsigned(row, "compactions_written")?,
        }));
    }
    let why = parse_column(row, "why", |name| match name {
        "other" => Ok(RefusalReason::Other),
        "longer" => Ok(RefusalReason::Longer),
        "before" => Ok(RefusalReason::Before),
        "future" => Ok(RefusalReason::Future),
        "erased" => Ok(RefusalReason::Erased),
        _ => Err("no such reason"),
    })?;
    let place = |name| -> Result<Option<Position>, StoreError> {
        Ok(row.try_get::<Option<i64>, _>(name)?.map(Position::from_stored))
    };
    let item = match (place("refused_batch")?, place("refused_compaction")?) {
        (Some(batch), _) => RefusedItem::Batch { batch, message: row.try_get("refused_message")? },
        (None, Some(compaction)) => RefusedItem::Compaction(compaction),
        (None, None) => RefusedItem::Thread,
    };
    Ok(ImportOutcome::Refused(ImportRefusal { item, why }))
}

fn named(named: &NewThread) -> Value {
    json!({
        "agent_id": named.agent.as_ref().map(AgentId::as_str),
        "busy_policy": named.policy.map(BusyPolicy::name),
        "metadata": named.metadata.to_value(),
    })
}

fn follow_up(row: &FollowUpRow) -> Value {
    json!({
        "timer_id": row.timer.to_string(),
        "agent_id": row.agent.as_str(),
        "agent_bucket": Bucket::of_key(row.agent.as_str()).get(),
        "state": row.status.name(),
        "body": row.body.to_value(),
        "created_ms": row.created_at.0,
        "due_ms": row.due_at.0,
        "ended_ms": row.ended_at.map(|at| at.0),
        "ended_by": row.ended_by,
        "fired_turn": row.fired_turn.as_ref().map(TurnId::to_string),
    })
}

fn column<R, T>(rows: &[R], value: impl Fn(&R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

/// The start time relative to the creation time; `None` when it is not known or out of the column's
/// range.
fn started_after_ms(item: &Item) -> Option<i32> {
    item.started_at?.0.checked_sub(item.created_at.0)?.try_into().ok()
}

/// True if each message begins a batch or continues the batch of the previous message, at a higher
/// position.
fn stand_one_after_the_other(items: &[Item]) -> bool {
    let is_start = |item: &Item| item.position == item.batch_id;
    items.first().is_some_and(is_start)
        && items.windows(2).all(|pair| {
            pair[0].position < pair[1].position
                && (pair[1].batch_id == pair[0].batch_id || is_start(&pair[1]))
        })
}
