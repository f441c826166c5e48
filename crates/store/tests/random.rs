//! Applies the same random commits to Postgres and to a model in memory, and compares all tables.

mod orders;
mod queues;

use std::collections::BTreeMap;

use model::{Chunk, Message, MessageFailure, MessageKey, PartitionId, Role, Seq, Timestamp};
use partition::{Commit, Save, SpilledMessage};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use store::{Applied, CommitWriter, Committed, Submission};

use self::queues::{QUERIES, Queues};
use crate::fixture::{
    Database, INCARNATION, TTL, commit, dead_entry, dead_message, failed, key, message, submission, thread_of,
};

const PARTITIONS: u64 = 2;
const WORKERS: [&str; 2] = ["a", "b"];
const OPERATIONS: usize = 400;

/// A part of a saved message: attempt, age, chunk ids.
type Saved = (u32, i64, Vec<u32>);

/// A commit, and the numbers of earlier commits and saves that it expects.
type Decided = (Commit, u64, u64);

#[derive(Default)]
struct Lease {
    epoch: u64,
    commits: u64,
    saves: u64,
    owner: Option<&'static str>,
    checkpoint: u64,
    position_ms: i64,
}

/// The expected contents of the tables, in the simplest form.
#[derive(Default)]
struct Expected {
    leases: [Lease; PARTITIONS as usize],
    /// Id, parent and number of a message, by thread and position.
    messages: BTreeMap<(String, i64), (String, Option<i64>, u64)>,
    letters: BTreeMap<String, u16>,
    /// Positions of failures, by message.
    failures: BTreeMap<MessageKey, i64>,
    /// Parts of saved messages, by message and first chunk.
    spilled_messages: BTreeMap<(MessageKey, u32), Saved>,
    queues: Queues,
}

impl Expected {
    fn apply(&mut self, owner: &str, (commit, commits, saves): &Decided) -> Committed {
        let lease = &mut self.leases[usize::from(commit.partition.0)];
        if (lease.epoch, lease.commits, lease.owner) != (commit.epoch, *commits, Some(owner))
            || lease.saves < *saves
        {
            return Committed::Fenced;
        }
        lease.commits += 1;
        (lease.checkpoint, lease.position_ms) = (commit.checkpoint.0, commit.position_high_water.0);
        let won = self.queues.move_heads(commit);
        let turns = Queues::begun(commit, &won).into_iter().filter(|turn| !self.is_known(turn));
        let mut fresh: Vec<&Message> = turns.flatten().collect();
        fresh.extend(commit.messages.iter().filter(|message| !self.is_known(std::slice::from_ref(message))));
        self.write(fresh);
        self.queues.apply(commit, &won);
        for letter in &commit.dead_letters {
            let key = match &letter.source {
                model::DeadLetterSource::Entry { .. } => format!("{INCARNATION}:{}", letter.seq),
                model::DeadLetterSource::Message { key, .. } => key.to_string(),
            };
            self.letters.entry(key).or_insert(commit.partition.0);
        }
        for failed in &commit.failed_messages {
            self.failures.entry(failed.key.clone()).or_insert(failed.position.get());
        }
        for key in &commit.ended_spills {
            self.spilled_messages.retain(|(of, _), _| of != key);
        }
        if won.contains(&false) { Committed::Stale } else { Committed::Applied }
    }

    /// True if the turn of these messages is stored. A turn is written whole or not at all, so its
    /// first or its last message proves it.
    fn is_known(&self, messages: &[Message]) -> bool {
        let is_known = |message: &Message| {
            let key = &message.key;
            self.messages.iter().any(|((thread, _), (id, ..))| {
                thread.as_str() == key.thread.as_str() && id.as_str() == key.message.as_str()
            })
        };
        [messages.first(), messages.last()].into_iter().flatten().any(is_known)
    }

    fn write(&mut self, mut fresh: Vec<&Message>) {
        fresh.sort_by_key(|message| message.placement.position);
        let (mut heads, mut numbers) = (BTreeMap::new(), BTreeMap::<_, u64>::new());
        for (thread, position) in self.messages.keys() {
            heads.insert(thread.clone(), *position);
            *numbers.entry(thread.clone()).or_default() += 1;
        }
        for message in fresh {
            let (thread, position) = (message.key.thread.to_string(), message.placement.position.get());
            let parent = heads.insert(thread.clone(), position);
            let number = numbers.entry(thread.clone()).or_default();
            *number += 1;
            self.messages.insert((thread, position), (message.key.message.to_string(), parent, *number));
        }
    }

    /// Returns true if the save is written.
    fn save(&mut self, known: &Applied, save: &Save) -> bool {
        let lease = &mut self.leases[usize::from(known.partition.0)];
        let is_behind = lease.commits < known.commits || lease.saves < known.saves;
        if lease.epoch != known.epoch || is_behind || lease.owner.is_none() {
            return false;
        }
        lease.saves += 1;
        for part in &save.messages {
            let ids = part.chunks.iter().map(|chunk| chunk.id).collect();
            self.spilled_messages
                .insert((part.key.clone(), part.first_chunk), (part.attempt, part.open_ms, ids));
        }
        self.queues.save(&save.turns);
        true
    }

    fn rows(&self) -> Vec<Value> {
        let leases = self.leases.iter().enumerate().map(|(id, lease)| {
            json!({"p": id, "epoch": lease.epoch, "commits": lease.commits, "saves": lease.saves, "owner": lease.owner, "checkpoint": lease.checkpoint,
                   "position_ms": lease.position_ms})
        });
        let messages = self.messages.iter().map(|((thread, position), (id, parent, number))| {
            json!({"thread": thread, "position": position, "message": id, "parent": parent, "number": number})
        });
        let mut heads = BTreeMap::<&str, (i64, u64)>::new();
        for (thread, position) in self.messages.keys() {
            let head = heads.entry(thread).or_default();
            *head = (*position, head.1 + 1);
        }
        let heads = heads.iter().map(
            |(thread, (head, count))| json!({"thread": thread, "head": head, "count": count, "last": count}),
        );
        let letters = self.letters.iter().map(|(key, partition)| json!({"key": key, "partition": partition}));
        let failures =
            self.failures.iter().map(|(key, position)| json!({"key": key.to_string(), "position": position}));
        let spilled_messages =
            self.spilled_messages.iter().map(|((key, first_chunk), (attempt, open_ms, chunks))| {
                json!({"key": key.to_string(), "first_chunk": first_chunk, "attempt": attempt, "open_ms": open_ms,
                       "chunks": chunks})
            });
        leases
            .chain(messages)
            .chain(heads)
            .chain(letters)
            .chain(failures)
            .chain(spilled_messages)
            .chain(self.queues.rows())
            .collect()
    }
}

async fn stored(database: &Database) -> Vec<Value> {
    let queries = [
        "SELECT partition_id AS p, epoch, commits, coalesce(saves, 0) AS saves, owner, checkpoint, position_ms
         FROM partitions LEFT JOIN partition_saves USING (partition_id) ORDER BY 1",
        r#"SELECT thread_id AS thread, position, message_id AS message, parent_id AS parent, number FROM messages
           ORDER BY thread_id COLLATE "C", position"#,
        r#"SELECT thread_id AS thread, head_position AS head, message_count AS count, last_number AS last FROM threads
           ORDER BY thread_id COLLATE "C""#,
        r#"SELECT key, partition_id AS partition FROM dead_letters ORDER BY key COLLATE "C""#,
        r#"SELECT thread_id || '/' || message_id AS key, position FROM failed_messages
           ORDER BY thread_id COLLATE "C", message_id COLLATE "C""#,
        r#"SELECT thread_id || '/' || message_id AS key, first_chunk, attempt, open_ms,
                  (SELECT coalesce(json_agg(c.chunk -> 'chunk_id' ORDER BY c.number), '[]')
                   FROM json_array_elements(convert_from(s.chunks, 'UTF8')::json) WITH ORDINALITY AS c (chunk, number)) AS chunks
           FROM spilled_messages AS s ORDER BY thread_id COLLATE "C", message_id COLLATE "C", first_chunk"#,
    ];
    let mut rows = Vec::new();
    for query in queries.into_iter().chain(QUERIES) {
        rows.extend(database.rows(query).await.iter().map(|row| serde_json::from_str::<Value>(row).unwrap()));
    }
    rows
}

/// Generates commits. Positions rise; all other values repeat often.
struct Author {
    random: StdRng,
    position: i64,
    threads: [Vec<String>; PARTITIONS as usize],
}

impl Author {
    fn key(&mut self, partition: usize, messages: u32) -> MessageKey {
        let thread = self.random.random_range(0..self.threads[partition].len());
        key(&self.threads[partition][thread], &format!("m{}", self.random.random_range(0..messages)))
    }

    fn commit(&mut self, expected: &Expected, partition: usize) -> Decided {
        let lease = &expected.leases[partition];
        let stale = u64::from(self.random.random_ratio(1, 8));
        let mut commit = commit(PartitionId(partition as u16), lease.epoch.saturating_sub(stale));
        let commits = match self.random.random_range(0..10) {
            0 => lease.commits.saturating_sub(1),
            1 => lease.commits + 1,
            _ => lease.commits,
        };
        commit.checkpoint = Seq(self.random.random_range(0..1_000));
        commit.position_high_water = Timestamp(self.random.random_range(0..1_000));
        for _ in 0..self.random.random_range(0..4) {
            self.position += 1;
            let key = self.key(partition, 60);
            if commit.messages.iter().all(|message| message.key != key) {
                commit.messages.push(message(key.thread.as_str(), key.message.as_str(), self.position));
            }
        }
        if self.random.random_ratio(1, 2) {
            self.rest(partition, &mut commit);
        }
        if self.random.random_ratio(2, 3) {
            self.turns(partition, &mut commit);
        }
        if self.random.random_ratio(1, 2) {
            self.orders(expected, partition, &mut commit);
        }
        (commit, commits, self.saves_known(lease.saves))
    }

    /// Repeats an earlier commit. It is sent as if the store had gone back in time, or as if the
    /// statement were repeated.
    fn again(&mut self, expected: &Expected, past: &[Vec<Decided>]) -> Vec<Decided> {
        let mut group = past[self.random.random_range(0..past.len())].clone();
        if self.random.random() {
            for (commit, commits, _) in &mut group {
                let lease = &expected.leases[usize::from(commit.partition.0)];
                (commit.epoch, *commits) = (lease.epoch, lease.commits);
            }
        }
        group
    }

    fn rest(&mut self, partition: usize, commit: &mut Commit) {
        if self.random.random() {
            commit
                .dead_letters
                .push(dead_entry(self.random.random_range(0..100) * 2 + partition as u64, b"\0"));
            let key = self.key(partition, 60);
            self.position += 1;
            commit.failed_messages.push(failed(key.clone(), self.position, MessageFailure::Stalled));
            commit.dead_letters.push(dead_message(key, 1, MessageFailure::Stalled));
        }
        let ended = self.key(partition, 3);
        commit.ended_spills.push(ended);
    }

    /// The number of saves known to an owner. The owner may not know of the newest save yet, or may
    /// know of one that the store does not have.
    fn saves_known(&mut self, saves: u64) -> u64 {
        match self.random.random_range(0..10) {
            0 => saves.saturating_sub(1),
            1 => saves + 1,
            _ => saves,
        }
    }

    /// A save of open messages and turns, and the owner's knowledge of the store, which may be
    /// wrong.
    fn save(&mut self, expected: &Expected, partition: usize) -> (Applied, Save) {
        let lease = &expected.leases[partition];
        let stale = u64::from(self.random.random_ratio(1, 8));
        let ahead = u64::from(self.random.random_ratio(1, 8));
        let known = Applied {
            partition: PartitionId(partition as u16),
            epoch: lease.epoch.saturating_sub(stale),
            commits: lease.commits + ahead,
            saves: self.saves_known(lease.saves),
            checkpoint: Seq(0),
            position_high_water: Timestamp(0),
        };
        let mut save = Save::default();
        for _ in 0..self.random.random_range(0..3) {
            let part = self.part(partition);
            if save.messages.iter().all(|other| other.key != part.key) {
                save.messages.push(part);
            }
        }
        for _ in 0..self.random.random_range(0..3) {
            let open = self.open(partition);
            if save.turns.iter().all(|other: &partition::OpenTurn| other.opened.turn != open.opened.turn) {
                save.turns.push(open);
            }
        }
        (known, save)
    }

    fn part(&mut self, partition: usize) -> SpilledMessage {
        let count = self.random.random_range(0..4);
        let mut ids: Vec<u32> = (0..count).map(|_| self.random.random_range(0..30)).collect();
        ids.sort_by_key(|id| id % 7);
        ids.dedup();
        SpilledMessage {
            key: self.key(partition, 3),
            attempt: self.random.random_range(0..3),
            first_chunk: self.random.random_range(0..3),
            role: Role::Assistant,
            first_seq: Seq(1),
            open_ms: self.random.random_range(0..1_000),
            gap_ms: None,
            idle_ms: 0,
            chunks: ids.into_iter().map(|id| Chunk::content(id, "x", false).into()).collect(),
            earlier_calls: Vec::new(),
        }
    }
}

async fn submit(writer: &CommitWriter, group: &[Decided]) -> Vec<Committed> {
    let group: Vec<_> = group
        .iter()
        .map(|(commit, commits, saves)| Submission { saves: *saves, ..submission(commit, *commits) })
        .collect();
    writer.commit(&group).await.unwrap()
}

#[tokio::test]
async fn postgres_and_the_model_agree() {
    let seed = std::env::var("ANTIPHON_STORE_SEED").ok().and_then(|seed| seed.parse().ok());
    agree(seed.unwrap_or_else(rand::random)).await;
}

async fn agree(seed: u64) {
    println!("seed {seed}");
    let (database, store) = Database::new(PARTITIONS).await;
    let writers = WORKERS.map(|name| store.writer(name).unwrap());
    let threads = [0, 1].map(|p| (0..3).map(|n| thread_of(PartitionId(p), PARTITIONS, n)).collect());
    let mut author = Author { random: StdRng::seed_from_u64(seed), position: 0, threads };
    let mut expected = Expected::default();
    let mut past: Vec<Vec<Decided>> = Vec::new();
    for operation in 0..OPERATIONS {
        let worker = author.random.random_range(0..WORKERS.len());
        if operation % 10 == 0 {
            hand_over(&store, &mut expected, author.random.random_range(0..2), WORKERS[worker]).await;
        }
        let commits = match author.random.random_range(0..10) {
            0..=1 if !past.is_empty() => author.again(&expected, &past),
            2..=5 => vec![author.commit(&expected, 1), author.commit(&expected, 0)],
            n => vec![author.commit(&expected, n % 2)],
        };
        let outcomes: Vec<_> = commits.iter().map(|commit| expected.apply(WORKERS[worker], commit)).collect();
        assert_eq!(submit(&writers[worker], &commits).await, outcomes, "operation {operation}");
        past.push(commits);
        if author.random.random_ratio(1, 3) {
            let (known, save) = author.save(&expected, operation % 2);
            let is_written = expected.save(&known, &save);
            let outcome = store.save(known, INCARNATION, &save).await;
            assert_eq!(outcome.is_ok(), is_written, "operation {operation}: {outcome:?}");
        }
        if operation % 50 == 49 {
            let (stored, expected) = (stored(&database).await, expected.rows());
            assert_eq!(beyond(&stored, &expected), beyond(&expected, &stored), "after operation {operation}");
            assert!(stored == expected, "another order after operation {operation}");
        }
    }
    assert!(
        expected.messages.len() > 50 && expected.letters.len() > 20 && !expected.spilled_messages.is_empty()
    );
}

/// The rows of `one` that are missing in `other`.
fn beyond<'a>(one: &'a [Value], other: &[Value]) -> Vec<&'a Value> {
    one.iter().filter(|row| !other.contains(row)).collect()
}

/// Releases the partition if it has an owner, and grants it to `worker`.
async fn hand_over(store: &store::Store, expected: &mut Expected, partition: u16, worker: &'static str) {
    let lease = &mut expected.leases[usize::from(partition)];
    if let Some(owner) = lease.owner.take() {
        assert!(store.release(owner, PartitionId(partition), lease.epoch).await.unwrap());
    }
    for grant in store.acquire(worker, TTL, 8).await.unwrap() {
        let lease = &mut expected.leases[usize::from(grant.partition.0)];
        assert!(lease.owner.is_none());
        assert!(grant.epoch > lease.epoch && grant.position_high_water.0 >= lease.position_ms, "{grant:?}");
        assert_eq!((grant.commits, grant.checkpoint.0), (lease.commits, lease.checkpoint));
        (lease.epoch, lease.owner) = (grant.epoch, Some(worker));
        lease.position_ms = grant.position_high_water.0;
    }
}
