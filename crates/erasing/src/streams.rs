//! Finds and purges entries of erased threads in the streams.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use bus::{Bus, StoredEntry};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use model::{
    AgentId, Bucket, CommandId, Control, ControlKind, Metadata, PartitionCount, PartitionId, Seq, TaskKind,
    Tenant, ThreadId,
};
use serde_json::Value;
use store::{Store, StoreError};
use tokio::time::{Instant, sleep};
use wire::subject;

use crate::attempt::ErasureAttempt;
use crate::error::EraseError;
use crate::progress::{ErasureProgress, Share};

/// Timeout for storing a control command.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two checks of its outcome.
const PAUSE: Duration = Duration::from_millis(100);
/// Entries that come within this time after a purge are purged too.
const QUIET: Duration = Duration::from_millis(500);

/// Partitions that are read to their ends at the same time.
const PARTITIONS_AT_ONCE: usize = 16;

/// A partition, and the thread whose subject the control command uses there.
struct PurgedPartition {
    partition: PartitionId,
    command_thread: ThreadId,
}

/// The entries of erased threads in all streams.
pub(crate) struct ErasedStreams<'a> {
    bus: Option<&'a Bus>,
    store: Store,
    partitions: PartitionCount,
    scope: Scope,
    /// Agents that may hold text of the threads.
    agents: BTreeSet<AgentId>,
}

/// The threads that are erased.
enum Scope {
    Threads(HashSet<ThreadId>),
    /// All threads of a tenant, including those that appear later.
    Tenant(Option<Tenant>),
}

impl Scope {
    fn has(&self, thread: &ThreadId) -> bool {
        match self {
            Self::Threads(threads) => threads.contains(thread),
            Self::Tenant(tenant) => thread.tenant() == *tenant,
        }
    }
}

impl<'a> ErasedStreams<'a> {
    /// Selects the threads of `attempt`.
    pub(crate) fn of_threads(bus: Option<&'a Bus>, attempt: &ErasureAttempt<'_>) -> Self {
        let scope = Scope::Threads(attempt.threads.iter().cloned().collect());
        Self { agents: attempt.agents.clone(), ..Self::new(bus, attempt, scope) }
    }

    /// Selects all threads and agents of a tenant.
    pub(crate) fn of_tenant(
        bus: Option<&'a Bus>,
        attempt: &ErasureAttempt<'_>,
        tenant: Option<&Tenant>,
    ) -> Self {
        Self::new(bus, attempt, Scope::Tenant(tenant.cloned()))
    }

    fn new(bus: Option<&'a Bus>, attempt: &ErasureAttempt<'_>, scope: Scope) -> Self {
        let (store, partitions) = (attempt.store.clone(), attempt.partitions);
        Self { bus, store, partitions, scope, agents: BTreeSet::new() }
    }

    /// Number of entries on the threads' own subjects, by stream.
    pub(crate) async fn entries(&self) -> Result<BTreeMap<String, u64>, EraseError> {
        let Some(bus) = self.bus else { return Ok(BTreeMap::new()) };
        let mut entries = BTreeMap::new();
        for partition in self.partitions_of_threads() {
            let own = self.own_subjects(bus, partition).await?;
            entries.insert(subject::stream_name(partition), own.values().sum());
        }
        entries.insert(subject::TURNS_STREAM.to_owned(), self.ended_turns(bus).await?.values().sum());
        entries.insert(subject::TOOL_CALLS_STREAM.to_owned(), self.tool_calls(bus).await?.values().sum());
        Ok(entries)
    }

    /// Subjects of the threads' tool calls, with their number of entries.
    async fn tool_calls(&self, bus: &Bus) -> Result<BTreeMap<String, u64>, EraseError> {
        let mut calls = tool_calls(bus).await?;
        let is_ours =
            |name: &str| subject::parse_tool_call(name).is_some_and(|place| self.scope.has(&place.thread));
        calls.retain(|name, _| is_ours(name));
        Ok(calls)
    }

    /// Subjects of the ends of the threads' turns, with their number of entries.
    async fn ended_turns(&self, bus: &Bus) -> Result<BTreeMap<String, u64>, EraseError> {
        let mut ends = bus.subjects(subject::TURNS_STREAM, subject::ALL_TURNS).await?;
        let is_ours = |of: &str| ThreadId::parse(of).is_ok_and(|thread| self.scope.has(&thread));
        ends.retain(|subject, _| subject.strip_prefix("turns.").is_some_and(is_ours));
        Ok(ends)
    }

    /// Deletes turn requests of the threads, and of tasks that follow turns of the threads. With
    /// `of_agents`, it also deletes all requests of agents that may hold text of the threads. The
    /// owners then request these turns again, with other contexts.
    pub(crate) async fn drop_requests(&self, of_agents: bool) -> Result<u64, EraseError> {
        let Some(bus) = self.bus else { return Ok(0) };
        let (mut dropped, mut from) = (0, Seq(1));
        while let Some(entry) = bus.next_entry(subject::WORK_STREAM, subject::ALL_WORK, from).await? {
            from = entry.seq.next();
            let Ok(request) = serde_json::from_slice::<wire::work::TurnRequest>(&entry.payload) else {
                continue;
            };
            let Ok(thread) = ThreadId::parse(&request.thread_id) else { continue };
            let is_of_agent = of_agents && self.agents.contains(&thread.agent());
            if !self.scope.has(&thread) && !is_of_agent {
                continue;
            }
            if let Ok(turn) = model::TurnId::parse(&request.turn_id)
                && self.scope.has(&thread)
            {
                // The cancellation is best effort.
                bus.publish_cancel(&turn, request.run).await.ok();
            }
            dropped += u64::from(bus.delete_work(entry.seq).await?);
        }
        Ok(dropped)
    }

    /// Purges every partition that has entries of the threads, the ends of their turns and the
    /// results of their tools. Partitions are purged again until no more entries come. Returns the
    /// streams in which entries are left, with the reason.
    pub(crate) async fn clear(
        &self,
        actor: &str,
        give_up_at: Instant,
        progress: &ErasureProgress,
    ) -> Result<BTreeMap<String, String>, EraseError> {
        let mut pending = BTreeMap::new();
        let Some(bus) = self.bus else { return Ok(pending) };
        let agents =
            self.agents.iter().map(|agent| Bucket::of_key(agent.as_str()).partition(self.partitions));
        let all: BTreeSet<PartitionId> = self.partitions_of_threads().into_iter().chain(agents).collect();
        let mut rest = progress.timed(Share::Streams, self.used(bus, all)).await?;
        while !rest.is_empty() {
            // The purges run at the same time, because each waits for an owner to read its stream.
            let purges: Vec<_> =
                rest.iter().map(|place| self.purge(bus, place, actor, give_up_at, progress)).collect();
            let purging = stream::iter(purges).buffered(PARTITIONS_AT_ONCE).try_collect::<Vec<bool>>();
            let passed = progress.timed(Share::Streams, purging).await?;
            let (read, unread): (Vec<_>, Vec<_>) =
                rest.into_iter().zip(passed).partition(|(_, is_passed)| *is_passed);
            for (place, _) in unread {
                let why = "no worker has read the stream up to its end in time; erase again when one has";
                pending.insert(subject::stream_name(place.partition), why.to_owned());
            }
            if read.is_empty() {
                break;
            }
            progress.timed(Share::Caches, sleep(QUIET)).await;
            rest = Vec::new();
            for (place, _) in read {
                // Only the command itself may be left, if its subject belongs to an erased thread.
                let left: u64 = self.own_subjects(bus, place.partition).await?.values().sum();
                if left <= u64::from(self.scope.has(&place.command_thread)) {
                    continue;
                }
                if Instant::now() >= give_up_at {
                    let why = format!(
                        "{left} entries came meanwhile; erase again when nothing is written any more"
                    );
                    pending.insert(subject::stream_name(place.partition), why);
                    continue;
                }
                rest.push(place);
            }
        }
        progress.timed(Share::Streams, self.clear_shared_streams(bus, progress)).await?;
        Ok(pending)
    }

    /// The partitions that must be read to their ends.
    async fn used(&self, bus: &Bus, all: BTreeSet<PartitionId>) -> Result<Vec<PurgedPartition>, EraseError> {
        let mut used = Vec::new();
        for partition in all {
            let Some(command_thread) = self.command_thread(partition) else { continue };
            let is_tenant = matches!(self.scope, Scope::Tenant(_));
            if !is_tenant || !self.own_subjects(bus, partition).await?.is_empty() {
                used.push(PurgedPartition { partition, command_thread });
            }
        }
        Ok(used)
    }

    /// Purges the subjects of one partition up to where its owner has read. False if the owner has
    /// not read it to its end in time.
    async fn purge(
        &self,
        bus: &Bus,
        PurgedPartition { partition, command_thread }: &PurgedPartition,
        actor: &str,
        give_up_at: Instant,
        progress: &ErasureProgress,
    ) -> Result<bool, EraseError> {
        let passed = self.pass_through(bus, *partition, command_thread, actor, give_up_at).await?;
        let Some(passed) = passed else { return Ok(false) };
        let mut subjects: Vec<String> = self.own_subjects(bus, *partition).await?.into_keys().collect();
        subjects.extend(self.followed_subjects(bus, *partition, passed).await?);
        let name = subject::stream_name(*partition);
        for subject in &subjects {
            progress.add_entries(&name, bus.purge_subject(&name, subject, Some(passed)).await?);
        }
        Ok(true)
    }

    /// Purges the ends of the threads' turns and the results of their tools.
    async fn clear_shared_streams(&self, bus: &Bus, progress: &ErasureProgress) -> Result<(), EraseError> {
        progress.add_entries(subject::TURNS_STREAM, 0);
        progress.add_entries(subject::TOOL_CALLS_STREAM, 0);
        for subject in self.ended_turns(bus).await?.keys() {
            let purged = bus.purge_subject(subject::TURNS_STREAM, subject, None).await?;
            progress.add_entries(subject::TURNS_STREAM, purged);
        }
        for subject in self.tool_calls(bus).await?.keys() {
            let purged = bus.purge_subject(subject::TOOL_CALLS_STREAM, subject, None).await?;
            progress.add_entries(subject::TOOL_CALLS_STREAM, purged);
        }
        Ok(())
    }

    /// Number of entries that came after the streams had been cleared, including requests, ends of
    /// turns and results of tools.
    pub(crate) async fn left(&self, progress: &ErasureProgress) -> Result<u64, EraseError> {
        let Some(bus) = self.bus else { return Ok(0) };
        let requests = self.drop_requests(false).await?;
        progress.add_entries(subject::WORK_STREAM, requests);
        let mut left = requests + self.ended_turns(bus).await?.values().sum::<u64>();
        left += self.tool_calls(bus).await?.values().sum::<u64>();
        for partition in self.partitions_of_threads() {
            // The control commands of this erasure do not count.
            let command_thread = self.command_thread(partition);
            let own = self.own_subjects(bus, partition).await?;
            let others = own.iter().filter(|(name, _)| owner_of(partition, name) != command_thread);
            left += others.map(|(_, count)| count).sum::<u64>();
        }
        Ok(left)
    }

    /// The thread whose subject the control command uses.
    fn command_thread(&self, partition: PartitionId) -> Option<ThreadId> {
        let is_here = |key: &str| Bucket::of_key(key).partition(self.partitions) == partition;
        match &self.scope {
            Scope::Threads(threads) => {
                let thread = threads.iter().filter(|thread| is_here(thread.as_str())).min().cloned();
                thread
                    .or_else(|| self.agents.iter().find(|agent| is_here(agent.as_str())).map(AgentId::thread))
            }
            // A name of the default tenant that has no other use. Subjects named after the erased
            // tenant would have to be purged, too.
            Scope::Tenant(_) => {
                let mut names = (0_u32..).map(|number| format!("erasing-{number}"));
                names.find(|name| is_here(name)).and_then(|name| ThreadId::parse(&name).ok())
            }
        }
    }

    /// Sends a control command through the stream and waits until nothing before it is needed.
    /// Returns its sequence, or `None` on timeout.
    async fn pass_through(
        &self,
        bus: &Bus,
        partition: PartitionId,
        command_thread: &ThreadId,
        actor: &str,
        give_up_at: Instant,
    ) -> Result<Option<Seq>, EraseError> {
        let id = CommandId::parse(&uuid::Uuid::now_v7().simple().to_string());
        let id = id.map_err(|error| StoreError::Row(error.to_string()))?;
        let act = Control {
            id,
            actor: actor.into(),
            subject: command_thread.agent(),
            kind: ControlKind::EraseThread,
        };
        let (subject, payload) =
            (subject::control_subject(self.partitions, &act), wire::encode_control(&act));
        let content_type = Some(wire::CONTENT_TYPE_PROTOBUF);
        let stored = bus.publish_acked(&subject, payload, content_type, PUBLISH_TIMEOUT).await?;
        loop {
            let is_done = self.store.control_outcome(command_thread.as_str(), &act.id).await?.is_some();
            let all = self.store.partitions_status().await?;
            let checkpoint =
                all.iter().find(|status| status.partition == partition).map(|status| status.checkpoint);
            if is_done && checkpoint.is_some_and(|checkpoint| checkpoint >= stored.seq) {
                return Ok(Some(stored.seq));
            }
            if Instant::now() >= give_up_at {
                return Ok(None);
            }
            sleep(PAUSE).await;
        }
    }

    /// The threads' own subjects in a partition, with their number of entries.
    async fn own_subjects(
        &self,
        bus: &Bus,
        partition: PartitionId,
    ) -> Result<BTreeMap<String, u64>, EraseError> {
        let mut own = BTreeMap::new();
        for filter in subject::stream_subjects(partition) {
            for (name, count) in bus.subjects(&subject::stream_name(partition), &filter).await? {
                if owner_of(partition, &name).is_some_and(|owner| self.scope.has(&owner)) {
                    own.insert(name, count);
                }
            }
        }
        Ok(own)
    }

    /// Subjects of agents: their answers to tasks that follow turns of these threads, and their
    /// queues with such tasks. All entries of such a subject up to `below` are purged, since none
    /// is needed any more.
    async fn followed_subjects(
        &self,
        bus: &Bus,
        partition: PartitionId,
        below: Seq,
    ) -> Result<Vec<String>, EraseError> {
        let name = subject::stream_name(partition);
        let mut found = Vec::new();
        for agent in &self.agents {
            // Only the fleet itself sends tasks that follow turns.
            let subject = subject::partition_commands(self.partitions, agent.as_str());
            if Bucket::of_key(agent.as_str()).partition(self.partitions) != partition {
                continue;
            }
            found.push(subject::chunks_in(partition, &agent.thread()));
            let mut from = Seq(1);
            while let Some(entry) =
                bus.next_entry(&name, &subject, from).await?.filter(|entry| entry.seq < below)
            {
                from = entry.seq.next();
                if source_thread(self.partitions, partition, &entry).is_some_and(|of| self.scope.has(&of)) {
                    found.push(subject);
                    break;
                }
            }
        }
        Ok(found)
    }

    fn partitions_of_threads(&self) -> BTreeSet<PartitionId> {
        match &self.scope {
            Scope::Threads(threads) => {
                threads.iter().map(|thread| thread.bucket().partition(self.partitions)).collect()
            }
            Scope::Tenant(_) => self.partitions.all().collect(),
        }
    }
}

/// The thread that the subject belongs to; for an agent's subject, the agent's own thread.
fn owner_of(partition: PartitionId, name: &str) -> Option<ThreadId> {
    ThreadId::parse(subject::parse_stored(partition, name)?.key).ok()
}

/// The thread whose text a task carries.
fn source_thread(
    partitions: PartitionCount,
    partition: PartitionId,
    entry: &StoredEntry,
) -> Option<ThreadId> {
    let limits = wire::DecodeLimits { chunk_bytes: usize::MAX, partitions };
    match wire::decode_entry(partition, &entry.subject, None, &entry.payload, &limits) {
        Ok(wire::Decoded::Command(model::Command::Task(task))) => task.origin.source_thread().cloned(),
        Ok(_) | Err(_) => None,
    }
}

/// The thread whose text is in a task that the database has refused. The dead letter of such a task
/// is JSON on the subject of tasks. It has the kind of the task, which no publisher can set there.
fn source_of_dead_task(partition: PartitionId, entry: &StoredEntry) -> Option<ThreadId> {
    let stored = subject::parse_stored(partition, &entry.subject)?;
    let agent = AgentId::parse(stored.key).ok()?;
    let task: Value = serde_json::from_slice(&entry.payload).ok()?;
    let kind = TaskKind::from_name(task.get("kind")?.as_str()?)?;
    let metadata = Metadata::new(task.get("metadata")?.as_object()?.clone()).ok()?;
    model::stored_source_thread(&agent, kind, &metadata)
}

/// The threads of a tenant that exist only in streams.
pub(crate) async fn threads_of_tenant(
    bus: &Bus,
    store: &Store,
    tenant: Option<&Tenant>,
) -> Result<Vec<ThreadId>, EraseError> {
    let Some(partitions) = store.partition_count().await? else { return Ok(Vec::new()) };
    let mut threads = Vec::new();
    for partition in partitions.all() {
        for filter in subject::stream_subjects(partition) {
            let subjects = bus.subjects(&subject::stream_name(partition), &filter).await?;
            let owners = subjects.keys().filter_map(|name| owner_of(partition, name));
            threads.extend(owners.filter(|owner| owner.tenant().as_ref() == tenant));
        }
    }
    let ends = bus.subjects(subject::TURNS_STREAM, subject::ALL_TURNS).await?;
    let ends = ends.keys().filter_map(|name| ThreadId::parse(name.strip_prefix("turns.")?).ok());
    threads.extend(ends.filter(|owner| owner.tenant().as_ref() == tenant));
    let calls = tool_calls(bus).await?;
    let calls = calls.keys().filter_map(|name| Some(subject::parse_tool_call(name)?.thread));
    threads.extend(calls.filter(|owner| owner.tenant().as_ref() == tenant));
    Ok(threads)
}

/// The subjects of all tool calls and their incidents, with the number of entries.
async fn tool_calls(bus: &Bus) -> Result<BTreeMap<String, u64>, EraseError> {
    let mut calls = bus.subjects(subject::TOOL_CALLS_STREAM, subject::ALL_TOOL_CALLS).await?;
    calls.extend(bus.subjects(subject::TOOL_CALLS_STREAM, subject::ALL_TOOL_INCIDENTS).await?);
    Ok(calls)
}

/// Deletes dead letters that are tasks which follow turns of these threads. Only the payload of a
/// dead letter shows this.
pub(crate) async fn drop_dead_tasks(attempt: &mut ErasureAttempt<'_>) -> Result<u64, EraseError> {
    let (mut after, mut dropped) = ((0, String::new()), 0);
    loop {
        let page = attempt.store.dead_tasks(&after).await?;
        let Some((bucket, key, ..)) = page.last() else { break };
        after = (*bucket, key.clone());
        for (bucket, key, subject, raw) in page {
            // The letter is decoded as it would be today, because the number of partitions may have
            // changed.
            let place = subject::in_fleet(attempt.partitions, &subject);
            let (partition, subject) = place.unwrap_or((PartitionId(bucket), subject));
            let entry = StoredEntry { seq: Seq(0), subject, payload: Bytes::from(raw) };
            let of = source_thread(attempt.partitions, partition, &entry)
                .or_else(|| source_of_dead_task(partition, &entry));
            if of.is_some_and(|of| attempt.threads.contains(&of)) {
                dropped += u64::from(attempt.store.erase_dead_task(bucket, &key).await?);
            }
        }
    }
    if dropped > 0 {
        let rows = BTreeMap::from([("dead_letters_of_agents".to_owned(), dropped)]);
        attempt.progress.add_rows(&rows);
    }
    Ok(dropped)
}
