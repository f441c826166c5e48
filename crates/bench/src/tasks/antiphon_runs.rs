//! The common part of our two contenders: their tasks, and the rows that they must produce.

use anyhow::{Result, ensure};
use async_nats::jetstream;
use futures_util::TryStreamExt as _;
use model::{AgentId, Bucket, Metadata, PartitionCount, Task, TaskId, TaskKind, TaskOrigin};
use sqlx::{Connection as _, PgConnection};

use super::load::TaskLoad;

/// Number of partitions of the fleet: the default.
pub(super) const PARTITIONS: u16 = 8;
/// SQL for the number of tasks that are not durably completed; `{total}` is replaced.
pub(super) const LEFT: &str = "SELECT {total} - count(*) FROM agent_tasks WHERE status = 'completed'";

pub(super) fn agent(agent: u32) -> Result<AgentId> {
    Ok(AgentId::parse(&format!("agent-{agent}"))?)
}

/// Task `seq` of this agent, with a text of `bytes` bytes.
pub(super) fn task(number: u32, seq: u32, bytes: usize) -> Result<Task> {
    Ok(Task {
        agent: agent(number)?,
        id: TaskId::parse(&format!("{number}-{seq}"))?,
        kind: TaskKind::Task,
        content: "x".repeat(bytes),
        origin: TaskOrigin::SENT,
        metadata: Metadata::EMPTY,
    })
}

/// Agent and queue position, taken from an id of [`task`].
pub(super) fn place(task_id: &str) -> Option<(u32, u32)> {
    let (agent, seq) = task_id.split_once('-')?;
    Some((agent.parse().ok()?, seq.parse().ok()?))
}

/// The places in rounds: the first task of every agent, then the second task of every agent, …
pub(super) fn places(load: TaskLoad) -> impl Iterator<Item = (u32, u32)> {
    (0..load.tasks).flat_map(move |seq| (0..load.agents).map(move |agent| (agent, seq)))
}

/// Deletes streams, because they may have entries of an earlier round.
pub(super) async fn forget_streams(nats_url: &str) -> Result<()> {
    let context = jetstream::new(async_nats::connect(nats_url).await?);
    let names: Vec<String> = context.stream_names().try_collect().await?;
    for name in names {
        context.delete_stream(name).await?;
    }
    Ok(())
}

/// Gives every agent settings that leave the history out of turn requests, because other queues
/// have no history.
pub(super) async fn forgo_history(database_url: &str, agents: u32) -> Result<()> {
    const QUERY: &str = "INSERT INTO agent_settings (bucket, agent_id, workflow, settings) \
        SELECT bucket, agent_id, 'default', '{\"context_tokens\": 1}' \
        FROM unnest($1::smallint[], $2::text[]) AS i (bucket, agent_id)";
    let agents: Vec<String> = (0..agents).map(|agent| format!("agent-{agent}")).collect();
    let buckets: Vec<i16> =
        agents.iter().map(|agent| Bucket::of_key(agent).get().try_into()).collect::<Result<_, _>>()?;
    let mut connection = PgConnection::connect(database_url).await?;
    sqlx::query(QUERY).bind(buckets).bind(agents).execute(&mut connection).await?;
    Ok(connection.close().await?)
}

/// Checks that every turn is stored once with all of its messages, in the order of its agent's
/// tasks.
pub(super) async fn verify(database_url: &str, tasks: u64, rows: u64) -> Result<()> {
    const QUERY: &str = "SELECT count(*), count(*) FILTER (WHERE role = 'user'), \
        (SELECT count(*) FROM ( \
            SELECT split_part(metadata ->> 'task_id', '-', 2)::integer AS seq, \
                   row_number() OVER (PARTITION BY thread_id ORDER BY position) - 1 AS place \
            FROM messages WHERE role = 'user') AS inputs WHERE seq <> place) FROM messages";
    let mut connection = PgConnection::connect(database_url).await?;
    let (messages, turns, displaced): (i64, i64, i64) =
        sqlx::query_as(QUERY).fetch_one(&mut connection).await?;
    connection.close().await?;
    let is_whole = (messages as u64, turns as u64) == (tasks * rows, tasks);
    ensure!(
        is_whole && displaced == 0,
        "{messages} messages of {turns} turns are stored, {displaced} not in their place"
    );
    Ok(())
}

pub(super) fn partitions() -> Result<PartitionCount> {
    Ok(PartitionCount::new(PARTITIONS.into())?)
}
