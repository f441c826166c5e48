//! Checks whether commands were taken before, and reads the queues that they filled.

use model::{AgentId, Bucket, Position, QueuedTask, TimerId};
use partition::{CommandKey, CommandVerdict};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::leases::Applied;
use crate::lookup::{check_owner, columns_of};
use crate::row::queued;
use crate::store::Store;
use crate::takeover::{is_null, limit_beyond};
use crate::unreadable_tasks::UnreadableTask;

impl Store {
    /// Checks these commands against the store and returns a verdict for each, in their order.
    ///
    /// Without `create_agents`, a new task of an agent without settings is
    /// [`CommandVerdict::Unknown`], and so is a new turn in a thread that does not exist. A control
    /// command for an agent that does not exist is always unknown. A command for an erased thread,
    /// or with the text of one, is [`CommandVerdict::Erased`]: no data of it is kept.
    ///
    /// # Errors
    /// [`StoreError::NotOwner`]: see [`Store::lookup`].
    pub async fn check(
        &self,
        owner: Option<Applied>,
        keys: &[CommandKey],
        create_agents: bool,
    ) -> Result<Vec<(CommandKey, CommandVerdict)>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let (partition, epoch) = columns_of(owner);
        let wanted: Vec<Wanted<'_>> = keys.iter().map(Wanted::from).collect();
        let statement = sqlx::query(include_str!("command_verdicts/check.sql"))
            .bind(wanted.iter().map(|row| row.kind).collect::<Vec<_>>())
            .bind(wanted.iter().map(|row| Bucket::of_key(row.subject).get() as i16).collect::<Vec<_>>())
            .bind(wanted.iter().map(|row| row.subject).collect::<Vec<_>>())
            .bind(wanted.iter().map(|row| row.id).collect::<Vec<_>>())
            .bind(wanted.iter().map(|row| i32::try_from(row.run).unwrap_or(i32::MAX)).collect::<Vec<_>>())
            .bind(wanted.iter().map(|row| row.input.as_deref()).collect::<Vec<_>>())
            .bind(wanted.iter().map(|row| row.task).collect::<Vec<_>>())
            .bind(
                wanted
                    .iter()
                    .map(|row| row.source_thread.as_ref().map(|id| Bucket::of_key(id).get() as i16))
                    .collect::<Vec<_>>(),
            )
            .bind(wanted.iter().map(|row| row.source_thread.as_deref()).collect::<Vec<_>>())
            .bind(partition)
            .bind(epoch)
            .bind(wanted.iter().map(|row| row.timer.as_ref().map(TimerId::as_str)).collect::<Vec<_>>());
        let rows = self.rows(statement).await?;
        check_owner(&rows)?;
        keys.iter()
            .zip(&rows)
            .map(|(key, row)| Ok((key.clone(), verdict(key, row, create_agents)?)))
            .collect()
    }

    /// Reads the next tasks of these agents that are not marked failed, in queue order, and whether
    /// an agent has more. The result has the order of `queues`. One statement reads all queues.
    ///
    /// # Errors
    /// [`StoreError::NotOwner`]: see [`Store::lookup`].
    pub async fn load_tasks(
        &self,
        owner: Applied,
        queues: &[QueueRead],
    ) -> Result<Vec<(Vec<QueuedTask>, bool)>, StoreError> {
        let bucket = |queue: &QueueRead| Bucket::of_key(queue.agent.as_str()).get() as i16;
        let statement = sqlx::query(include_str!("command_verdicts/tasks.sql"))
            .bind(queues.iter().map(bucket).collect::<Vec<_>>())
            .bind(queues.iter().map(|queue| queue.agent.as_str()).collect::<Vec<_>>())
            .bind(queues.iter().map(|queue| queue.after.get()).collect::<Vec<_>>())
            .bind(queues.iter().map(|queue| limit_beyond(queue.limit)).collect::<Vec<_>>())
            .bind(owner.partition.0.cast_signed())
            .bind(owner.epoch.cast_signed());
        let rows = self.rows(statement).await?;
        check_owner(&rows)?;
        let (mut loaded, mut unreadable) = (vec![(Vec::new(), false); queues.len()], Vec::new());
        let mut seen = vec![0; queues.len()];
        for row in rows.iter().filter(|row| !is_null(row, "position")) {
            let place = usize::try_from(row.try_get::<i64, _>("place")? - 1).unwrap_or(usize::MAX);
            let (Some(queue), Some((tasks, has_more))) = (queues.get(place), loaded.get_mut(place)) else {
                continue;
            };
            seen[place] += 1;
            if seen[place] > queue.limit {
                *has_more = true;
                continue;
            }
            match queued(row, &queue.agent) {
                Ok(task) => tasks.push(task),
                Err(error) => unreadable.push(UnreadableTask::of(row, &queue.agent, &error)?),
            }
        }
        self.fail_unreadable(&unreadable).await?;
        Ok(loaded)
    }
}

/// A range of an agent's queue to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueRead {
    pub agent: AgentId,
    /// Only tasks after this position are read.
    pub after: Position,
    /// Maximum number of tasks.
    pub limit: usize,
}

/// A key as a row of the statement's arrays.
struct Wanted<'a> {
    kind: &'static str,
    subject: &'a str,
    id: &'a str,
    run: u32,
    input: Option<String>,
    task: Option<&'a str>,
    source_thread: Option<String>,
    /// The follow-up that started the turn.
    timer: Option<TimerId>,
}

impl<'a> From<&'a CommandKey> for Wanted<'a> {
    fn from(key: &'a CommandKey) -> Self {
        let (kind, subject, id) = match key {
            CommandKey::Turn(thread, turn, _) => ("turn", thread.as_str(), turn.as_str()),
            CommandKey::Task(agent, task, _) => ("task", agent.as_str(), task.as_str()),
            CommandKey::Control(agent, act, _) => ("act", agent.as_str(), act.as_str()),
        };
        let (run, input, task) = match key {
            CommandKey::Turn(_, turn, run) => (*run, Some(turn.input().as_str().to_owned()), None),
            CommandKey::Task(_, task, _) => (0, None, Some(task.as_str())),
            CommandKey::Control(_, _, task) => (0, None, task.as_ref().map(|task| task.as_str())),
        };
        let source_thread = match key {
            CommandKey::Task(.., source) => source.as_ref().map(|thread| thread.as_str().to_owned()),
            CommandKey::Control(queue, ..) => Some(queue.agent().as_str().to_owned()),
            CommandKey::Turn(..) => None,
        };
        let timer = match key {
            CommandKey::Turn(_, turn, _) => TimerId::of_turn(turn),
            CommandKey::Task(..) | CommandKey::Control(..) => None,
        };
        Self { kind, subject, id, run, input, task, source_thread, timer }
    }
}

fn verdict(key: &CommandKey, row: &PgRow, create_agents: bool) -> Result<CommandVerdict, StoreError> {
    let (is_known, has_subject): (bool, bool) = (row.try_get("is_known")?, row.try_get("has_subject")?);
    let position: Option<i64> = row.try_get("position")?;
    // A control command that was carried out stays known. This covers the command that erases a
    // thread, which is repeated after the thread has its mark.
    let is_done = is_known && matches!(key, CommandKey::Control(..));
    if row.try_get::<bool, _>("is_erased")? && !is_done {
        return Ok(CommandVerdict::Erased);
    }
    Ok(match (key, position) {
        (CommandKey::Task(..), _) if is_known => {
            let digest: Option<i64> = row.try_get("digest")?;
            CommandVerdict::Known { digest: digest.unwrap_or_default().cast_unsigned() }
        }
        _ if is_known => CommandVerdict::Known { digest: 0 },
        // The turn that this task follows proves that the agent exists.
        (CommandKey::Task(agent, ..), _) if agent.background_kind().is_some() => CommandVerdict::New,
        (CommandKey::Control(..), Some(position)) => CommandVerdict::Task {
            position: Position::from_stored(position),
            is_failed: row.try_get("is_failed")?,
        },
        (CommandKey::Control(..), None) if !has_subject => CommandVerdict::Unknown,
        (CommandKey::Control(..), None) => CommandVerdict::New,
        _ if !has_subject && !create_agents => CommandVerdict::Unknown,
        _ => CommandVerdict::New,
    })
}
