//! The start state of a turn: settings, compactions, and as many messages as its context needs.

use batches::compaction::{Compaction, Provenance, Strategy};
use batches::context::{Builder, ContextRules, LastMessages, NextRead};
use batches::tokens::PER_MESSAGE;
use batches::{Item, SharedItem};
use model::{AgentId, Bucket, MessageId, Position, TaskId, ThreadId, Timestamp};
use serde_json::{Map, Value};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::compactions::PendingCompaction;
use crate::error::StoreError;
use crate::history::StoredMessage;
use crate::history::message;
use crate::row::column_error;
use crate::store::Store;
use crate::thread_version::ThreadVersion;

/// Number of messages of a thread that are read first; most contexts need no more.
const FIRST_PAGE: i64 = 64;
/// Minimum of the first page for small budgets: only a whole batch shows whether it fits.
const LEAST_PAGE: i64 = 8;
/// Later pages double up to this size, so that unneeded messages are never more than needed ones.
const MOST_PAGE: i64 = 512;

/// A turn that is to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextWanted {
    pub thread: ThreadId,
    /// The agent whose settings apply.
    pub agent: AgentId,
    /// Decides whether the agent's backoff and pause are checked.
    pub gate: Gate,
    /// The thread whose text the input carries, if any; see
    /// [`model::TaskOrigin::source_thread`].
    pub source_thread: Option<ThreadId>,
    /// The version of the thread for which the caller remembers the last messages. If the thread
    /// still continues this version, only later messages are read.
    pub known: Option<ThreadVersion>,
}

/// Decides whether a turn is held back by the agent's backoff, its pause, both or neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// Checks neither: this is a task of the agent's own queue, which has checked both.
    Queue,
    /// Checks the backoff of a person's input, if the settings have `foreground_during_backoff:
    /// refuse`.
    Foreground,
    /// Checks backoff and pause of a background turn.
    Background,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct StartContext {
    /// True if the thread was erased, or the thread whose text the input carries. The turn must not
    /// begin.
    pub is_erased: bool,
    /// True if the thread is temporary: nothing follows its turns.
    pub is_temporary: bool,
    /// The workflow that takes the turn; `None` when the agent has no settings.
    pub workflow: Option<String>,
    /// Empty when the agent has no settings.
    pub settings: Map<String, Value>,
    /// True if the agent is paused and the pause applies to the turn.
    pub paused: bool,
    /// Remaining backoff in ms by the database clock, if it applies to the turn.
    pub wait_ms: Option<i64>,
    /// Time left in the period of an exhausted budget, in ms by the database clock; `None`: no
    /// budget is exhausted.
    pub over_budget_ms: Option<i64>,
    /// The effective compaction of the thread, without its provenance.
    pub compaction: Option<Compaction>,
    /// A newer compaction that waits for its summary.
    pub pending: Option<PendingCompaction>,
    /// The version of the thread when the turn began; `None` when the thread has no message.
    pub version: Option<ThreadVersion>,
    /// True if the thread continues [`ContextWanted::known`]. `messages` then has only messages
    /// after the head of that version.
    pub goes_on: bool,
    /// The last messages of the thread: at most 64, or fewer if the agent's contexts have room for
    /// less. [`Store::fill`] reads more.
    pub messages: LastMessages,
}

/// A compaction with its author and time.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredCompaction {
    pub compaction: Compaction,
    pub actor: String,
    /// Time of creation by the database clock.
    pub created_at: Timestamp,
    /// True while the compaction waits for its summary and has no effect.
    pub is_pending: bool,
}

impl Store {
    /// Reads the start state of each of these turns, in their order. Two statements read all turns,
    /// or one if there are no new messages. One more statement checks the turns whose tenant has
    /// budgets.
    pub async fn contexts(&self, wanted: &[ContextWanted]) -> Result<Vec<StartContext>, StoreError> {
        let mut contexts = vec![StartContext::default(); wanted.len()];
        if wanted.is_empty() {
            return Ok(contexts);
        }
        let threads: Vec<_> = wanted.iter().map(|one| one.thread.as_str()).collect();
        let buckets: Vec<_> = threads.iter().map(|thread| bucket(thread)).collect();
        let begin = sqlx::query(include_str!("context/begin.sql"))
            .bind(wanted.iter().map(|one| bucket(one.agent.as_str())).collect::<Vec<_>>())
            .bind(wanted.iter().map(|one| one.agent.as_str()).collect::<Vec<_>>())
            .bind(buckets.clone())
            .bind(threads.clone())
            .bind(wanted.iter().map(|one| one.gate == Gate::Foreground).collect::<Vec<_>>())
            .bind(wanted.iter().map(|one| one.gate == Gate::Queue).collect::<Vec<_>>())
            .bind(
                wanted
                    .iter()
                    .map(|one| one.source_thread.as_ref().map(|id| bucket(id.as_str())))
                    .collect::<Vec<_>>(),
            )
            .bind(
                wanted.iter().map(|one| one.source_thread.as_ref().map(ThreadId::as_str)).collect::<Vec<_>>(),
            );
        let mut budgeted = vec![];
        for row in self.rows(begin).await? {
            if row.try_get("has_budgets")? {
                budgeted.push(row.try_get::<i64, _>("place")?);
            }
            if let Some(context) = numbered(&mut contexts, &row)? {
                context.is_erased = row.try_get("is_erased")?;
                context.is_temporary = row.try_get::<Option<_>, _>("is_temporary")?.unwrap_or_default();
                context.workflow = row.try_get("workflow")?;
                context.settings =
                    row.try_get::<Option<Value>, _>("settings")?.map_or(Ok(Map::new()), object)?;
                context.paused = row.try_get::<Option<_>, _>("paused")?.unwrap_or_default();
                context.wait_ms = row.try_get::<Option<i64>, _>("wait_ms")?.filter(|left| *left > 0);
                context.compaction = compaction(&row, Provenance::default())?;
                context.pending = pending(&row)?;
                context.version = version(&row)?;
            }
        }
        self.check_budgets(wanted, &budgeted, &mut contexts).await?;
        self.newest(wanted, &mut contexts).await?;
        Ok(contexts)
    }

    /// Records exhausted budgets for the turns with these indices, which count from 1.
    async fn check_budgets(
        &self,
        wanted: &[ContextWanted],
        places: &[i64],
        contexts: &mut [StartContext],
    ) -> Result<(), StoreError> {
        let at = |place: &i64| usize::try_from(place - 1).ok().filter(|at| *at < wanted.len());
        let places: Vec<usize> = places.iter().filter_map(at).collect();
        if places.is_empty() {
            return Ok(());
        }
        let turns: Vec<_> = places.iter().map(|at| (&wanted[*at].thread, &wanted[*at].agent, None)).collect();
        for (at, over) in places.iter().zip(self.over_budget(&turns).await?) {
            contexts[*at].over_budget_ms = over.map(|over| over.for_ms);
        }
        Ok(())
    }

    /// Reads the newest unknown messages of the threads, as of their versions.
    async fn newest(
        &self,
        wanted: &[ContextWanted],
        contexts: &mut [StartContext],
    ) -> Result<(), StoreError> {
        let mut reads = Vec::new();
        for (place, (one, context)) in wanted.iter().zip(contexts.iter_mut()).enumerate() {
            let Some(now) = context.version else {
                context.messages.is_all = true;
                continue;
            };
            let most = first_page(&context.settings);
            let known = one.known.and_then(|known| Some((known.head, known.behind(now)?)));
            let known = known.filter(|(_, more)| *more < most);
            context.goes_on = known.is_some_and(|(_, more)| more == 0);
            if !context.goes_on {
                reads.push(NewestRead { place, thread: &one.thread, known, until: now.head, most });
            }
        }
        self.read_newest(&reads, contexts).await?;
        // If fewer messages than expected follow the known head, other messages were written or
        // deleted before the head. All messages are then read again.
        let is_false = |read: &NewestRead<'_>| read.known.is_some() && !contexts[read.place].goes_on;
        let again: Vec<_> =
            reads.into_iter().filter(is_false).map(|read| NewestRead { known: None, ..read }).collect();
        self.read_newest(&again, contexts).await
    }

    async fn read_newest(
        &self,
        reads: &[NewestRead<'_>],
        contexts: &mut [StartContext],
    ) -> Result<(), StoreError> {
        if reads.is_empty() {
            return Ok(());
        }
        let after = |read: &NewestRead<'_>| read.known.map_or(i64::MIN, |(head, _)| head.get());
        let statement = sqlx::query(include_str!("context/newest.sql"))
            .bind(reads.iter().map(|read| bucket(read.thread.as_str())).collect::<Vec<_>>())
            .bind(reads.iter().map(|read| read.thread.as_str()).collect::<Vec<_>>())
            .bind(reads.iter().map(after).collect::<Vec<_>>())
            .bind(reads.iter().map(|read| read.until.get()).collect::<Vec<_>>())
            .bind(reads.iter().map(|read| read.most).collect::<Vec<_>>());
        let mut found = vec![Vec::new(); reads.len()];
        for row in self.rows(statement).await? {
            if let Some(found) = numbered(&mut found, &row)? {
                found.extend(message(&row)?.map(|message| message.item.into()));
            }
        }
        for (read, found) in reads.iter().zip(found) {
            let context = &mut contexts[read.place];
            let count = found.len() as i64;
            match read.known {
                Some((_, more)) => context.goes_on = count == more,
                None => context.messages.is_all = count < read.most,
            }
            context.messages.newest = found;
        }
        Ok(())
    }

    /// Feeds the builder until it has enough. The `known` last messages come first, then older ones
    /// that are read here. The cost does not depend on the length of the thread, because the
    /// builder stops when its budget is full.
    ///
    /// Returns the older messages that were read.
    pub async fn fill(
        &self,
        thread: &ThreadId,
        known: &LastMessages,
        builder: &mut Builder<'_>,
    ) -> Result<LastMessages, StoreError> {
        let (mut older, mut size) = (LastMessages::default(), FIRST_PAGE);
        loop {
            match known.feed(builder) {
                NextRead::Nothing => return Ok(older),
                NextRead::Older(before) => {
                    let page = self.before(thread, before, size).await?;
                    let page: Vec<SharedItem> = page.into_iter().map(|message| message.item.into()).collect();
                    builder.page(page.iter().cloned());
                    if (page.len() as i64) < size {
                        builder.end();
                        older.is_all = true;
                    }
                    older.newest.extend(page);
                    size = (size * 2).min(MOST_PAGE);
                }
                NextRead::Batches(wanted) => {
                    let mut items = self.batches(thread, &wanted).await?;
                    for id in wanted {
                        let rest = items.split_off(items.partition_point(|item| item.batch_id <= id));
                        builder.batch(id, items.into_iter().map(Item::from));
                        items = rest;
                    }
                }
            }
        }
    }

    /// The last messages before this position, newest first.
    async fn before(
        &self,
        thread: &ThreadId,
        before: Option<Position>,
        most: i64,
    ) -> Result<Vec<StoredMessage>, StoreError> {
        let statement = sqlx::query(include_str!("context/older.sql"))
            .bind(bucket(thread.as_str()))
            .bind(thread.as_str().to_owned())
            .bind(before.map_or(i64::MAX, Position::get))
            .bind(most);
        messages(&self.rows(statement).await?)
    }

    /// True if the thread has the first message of this batch.
    pub async fn has_batch(&self, thread: &ThreadId, batch: Position) -> Result<bool, StoreError> {
        let statement = sqlx::query(
            "SELECT FROM messages WHERE bucket = $1 AND thread_id = $2 AND position = $3 AND batch_id = position",
        )
        .bind(bucket(thread.as_str()))
        .bind(thread.as_str().to_owned())
        .bind(batch.get());
        Ok(!self.rows(statement).await?.is_empty())
    }

    /// All messages of these batches of the thread, ordered by batch and sequence number. A missing
    /// batch yields no messages.
    pub async fn batches(
        &self,
        thread: &ThreadId,
        wanted: &[Position],
    ) -> Result<Vec<StoredMessage>, StoreError> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let statement = sqlx::query(include_str!("context/batches.sql"))
            .bind(bucket(thread.as_str()))
            .bind(thread.as_str().to_owned())
            .bind(wanted.iter().map(|id| id.get()).collect::<Vec<_>>());
        let mut found = messages(&self.rows(statement).await?)?;
        found.sort_by_key(|message| (message.batch_id, message.sequence_num, message.position));
        Ok(found)
    }

    /// The ids of the last batches that begin before this position, newest first; `None` when there
    /// is no such thread.
    pub async fn batch_ids(
        &self,
        thread: &ThreadId,
        before: Option<Position>,
        most: u32,
    ) -> Result<Option<Vec<Position>>, StoreError> {
        let statement = sqlx::query(include_str!("context/batch_ids.sql"))
            .bind(bucket(thread.as_str()))
            .bind(thread.as_str().to_owned())
            .bind(before.map_or(i64::MAX, Position::get))
            .bind(i64::from(most));
        positions(&self.rows(statement).await?)
    }

    /// The ids of the last batches before this position whose parent batch is `parent`, newest
    /// first; `None` when there is no such thread.
    pub async fn batches_within(
        &self,
        thread: &ThreadId,
        parent: Position,
        before: Option<Position>,
        most: u32,
    ) -> Result<Option<Vec<Position>>, StoreError> {
        let statement = sqlx::query(include_str!("context/batches_within.sql"))
            .bind(bucket(thread.as_str()))
            .bind(thread.as_str().to_owned())
            .bind(parent.get())
            .bind(before.map_or(i64::MAX, Position::get))
            .bind(i64::from(most));
        positions(&self.rows(statement).await?)
    }

    /// The batch of a message of the thread; `None` when there is no such message.
    pub async fn batch_of(
        &self,
        thread: &ThreadId,
        message: &MessageId,
    ) -> Result<Option<Position>, StoreError> {
        let statement = sqlx::query(
            "SELECT batch_id AS position FROM messages WHERE bucket = $1 AND thread_id = $2 AND message_id = $3",
        )
        .bind(bucket(thread.as_str()))
        .bind(thread.as_str().to_owned())
        .bind(message.as_str().to_owned());
        self.rows(statement).await?.first().map_or(Ok(None), |row| position(row, "position"))
    }

    /// All compactions of the thread, the oldest first.
    pub async fn compactions(&self, thread: &ThreadId) -> Result<Vec<StoredCompaction>, StoreError> {
        let statement = sqlx::query(include_str!("context/compactions.sql"))
            .bind(bucket(thread.as_str()))
            .bind(thread.as_str().to_owned());
        let stored = |row: &PgRow| -> Result<Option<StoredCompaction>, StoreError> {
            let Some(compaction) = compaction(row, provenance(row)?)? else { return Ok(None) };
            let (actor, created_ms) = (row.try_get("actor")?, row.try_get("created_ms")?);
            let is_pending = row.try_get::<Option<String>, _>("pending_task")?.is_some();
            Ok(Some(StoredCompaction { compaction, actor, created_at: Timestamp(created_ms), is_pending }))
        };
        self.rows(statement).await?.iter().filter_map(|row| stored(row).transpose()).collect()
    }
}

/// A row of the parameters of `newest.sql`.
struct NewestRead<'a> {
    /// The index of its context.
    place: usize,
    thread: &'a ThreadId,
    /// The known head, and the number of messages that should follow it.
    known: Option<(Position, i64)>,
    until: Position,
    most: i64,
}

/// Size of the first page. Each message takes some tokens, so a small budget has room for few
/// messages only, and no more are read.
fn first_page(settings: &Map<String, Value>) -> i64 {
    let (rules, _) = ContextRules::of(settings);
    i64::try_from(rules.tokens / PER_MESSAGE).unwrap_or(i64::MAX).clamp(LEAST_PAGE, FIRST_PAGE)
}

fn messages(rows: &[PgRow]) -> Result<Vec<StoredMessage>, StoreError> {
    rows.iter().filter_map(|row| message(row).transpose()).collect()
}

/// The compaction of a row; `None` when its id is NULL.
fn compaction(row: &PgRow, provenance: Provenance) -> Result<Option<Compaction>, StoreError> {
    let Some(id) = position(row, "compaction_id")? else { return Ok(None) };
    let strategy: String = row.try_get("strategy")?;
    Ok(Some(Compaction {
        id,
        through: Position::from_stored(row.try_get("through_position")?),
        kept: row.try_get::<Vec<i64>, _>("kept_positions")?.into_iter().map(Position::from_stored).collect(),
        summary: row.try_get("summary")?,
        strategy: Strategy::from_name(&strategy).ok_or_else(|| column_error("strategy", &strategy))?,
        provenance,
        previous: position(row, "previous_id")?,
        counts_from: Position::from_stored(row.try_get("valid_from_position")?),
        undone_at: position(row, "undone_at_position")?,
    }))
}

fn provenance(row: &PgRow) -> Result<Provenance, StoreError> {
    let value: Value = row.try_get("provenance")?;
    serde_json::from_value(value.clone()).map_err(|_| column_error("provenance", &value))
}

fn pending(row: &PgRow) -> Result<Option<PendingCompaction>, StoreError> {
    let Some(id) = position(row, "pending_id")? else { return Ok(None) };
    let text = |column: &str| -> Result<String, StoreError> { Ok(row.try_get(column)?) };
    let (agent, task) = (text("pending_agent")?, text("pending_task")?);
    Ok(Some(PendingCompaction {
        id,
        agent: AgentId::parse(&agent).map_err(|error| column_error("pending_agent", &error))?,
        task: TaskId::parse(&task).map_err(|error| column_error("pending_task", &error))?,
        waits_ms: row.try_get("pending_ms")?,
    }))
}

/// The positions of all rows. A thread without batches has one row without a position; `None`:
/// there is no row.
fn positions(rows: &[PgRow]) -> Result<Option<Vec<Position>>, StoreError> {
    if rows.is_empty() {
        return Ok(None);
    }
    let all = rows.iter().filter_map(|row| position(row, "position").transpose());
    all.collect::<Result<_, _>>().map(Some)
}

fn position(row: &PgRow, column: &str) -> Result<Option<Position>, StoreError> {
    Ok(row.try_get::<Option<i64>, _>(column)?.map(Position::from_stored))
}

fn numbered<'a, T>(items: &'a mut [T], row: &PgRow) -> Result<Option<&'a mut T>, StoreError> {
    let place: i64 = row.try_get("place")?;
    Ok(usize::try_from(place - 1).ok().and_then(|at| items.get_mut(at)))
}

fn version(row: &PgRow) -> Result<Option<ThreadVersion>, StoreError> {
    let Some(head) = position(row, "head_position")? else { return Ok(None) };
    let (created_us, revision) = (row.try_get("created_us")?, row.try_get("revision")?);
    Ok(Some(ThreadVersion { created_us, revision, head, messages: row.try_get("message_count")? }))
}

fn object(value: Value) -> Result<Map<String, Value>, StoreError> {
    match value {
        Value::Object(map) => Ok(map),
        other => Err(column_error("settings", &other)),
    }
}

fn bucket(key: &str) -> i16 {
    Bucket::of_key(key).get() as i16
}
