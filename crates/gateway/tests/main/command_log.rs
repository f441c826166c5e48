//! Plays the owner for turns, tasks and control commands: reads what gateways put into the stream,
//! and acts as a test specifies.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bus::{ExpectedStream, PartitionReader, ReaderEvent};
use model::{Command, Control, PartitionCount, PartitionId, Seq, Task, TurnOpened};
use runtime::spawn_named;
use sqlx::PgPool;
use tokio::task::JoinHandle;
use wire::{DecodeLimits, Decoded};

use crate::fixture::Fixture;

/// The commands read so far.
pub(crate) struct CommandLog {
    orders: Arc<Mutex<Vec<Command>>>,
    task: JoinHandle<()>,
}

impl Drop for CommandLog {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl CommandLog {
    /// Reads from the beginning of the stream. Audits each control command with the verdict of
    /// `judge`: the reason of a refusal, or `None`.
    pub(crate) async fn read(fixture: &Fixture, judge: fn(&Control) -> Option<&'static str>) -> Self {
        let mut reader =
            PartitionReader::open(&fixture.bus, PartitionId(0), 1, Seq(1), ExpectedStream::default())
                .await
                .unwrap();
        let pool = fixture.database.pool().await.unwrap();
        let orders: Arc<Mutex<Vec<Command>>> = Arc::default();
        let log = Arc::clone(&orders);
        let task = spawn_named("orders", async move {
            loop {
                let ReaderEvent::Entries(entries) = reader.next_batch(100).await else { continue };
                for entry in entries {
                    let limits =
                        DecodeLimits { chunk_bytes: 1 << 16, partitions: PartitionCount::new(1).unwrap() };
                    let decoded = wire::decode_entry(
                        PartitionId(0),
                        &entry.subject,
                        entry.content_type.as_deref(),
                        &entry.payload,
                        &limits,
                    );
                    let Ok(Decoded::Command(order)) = decoded else { panic!("{decoded:?}") };
                    if let Command::Control(act) = &order {
                        audit(&pool, act, judge(act)).await;
                    }
                    log.lock().unwrap().push(order);
                }
            }
        });
        Self { orders, task }
    }

    async fn nth(&self, n: usize) -> Command {
        for _ in 0..400 {
            if let Some(order) = self.orders.lock().unwrap().get(n) {
                return order.clone();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("order {n} never came");
    }

    pub(crate) async fn turn(&self, n: usize) -> TurnOpened {
        match self.nth(n).await {
            Command::Turn(opened) => *opened,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn task(&self, n: usize) -> Task {
        match self.nth(n).await {
            Command::Task(task) => task,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn act(&self, n: usize) -> Control {
        match self.nth(n).await {
            Command::Control(act) => act,
            other => panic!("{other:?}"),
        }
    }

    /// The number of commands, after commands in flight had time to arrive.
    pub(crate) async fn count(&self) -> usize {
        tokio::time::sleep(Duration::from_millis(150)).await;
        self.orders.lock().unwrap().len()
    }
}

/// Writes the audit entry of a control command as its owner does.
async fn audit(pool: &PgPool, act: &Control, refused: Option<&str>) {
    sqlx::query(
        "INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, error)
         VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
    )
    .bind(model::Bucket::of_key(act.subject.as_str()).get() as i16)
    .bind(act.subject.as_str())
    .bind(act.id.as_str())
    .bind(&*act.actor)
    .bind(act.kind.name())
    .bind(act.kind.target())
    .bind(refused)
    .execute(pool)
    .await
    .unwrap();
}

impl Fixture {
    /// Writes rows as owners do. `$bucket(<key>)` in the statement becomes the bucket of the key.
    pub(crate) async fn write(&self, statement: &str) {
        let mut sql = String::new();
        let mut rest = statement;
        while let Some((before, after)) = rest.split_once("$bucket(") {
            let (key, after) = after.split_once(')').unwrap();
            sql.push_str(before);
            sql.push_str(&model::Bucket::of_key(key).get().to_string());
            rest = after;
        }
        sql.push_str(rest);
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&self.database.pool().await.unwrap()).await.unwrap();
    }

    /// The texts that a query finds, sorted.
    pub(crate) async fn texts(&self, query: &'static str) -> Vec<String> {
        let mut found: Vec<String> =
            sqlx::query_scalar(query).fetch_all(&self.database.pool().await.unwrap()).await.unwrap();
        found.sort();
        found
    }

    pub(crate) async fn columns_of(&self, table: &str) -> Vec<String> {
        sqlx::query_scalar("SELECT column_name::text FROM information_schema.columns WHERE table_name = $1")
            .bind(table)
            .fetch_all(&self.database.pool().await.unwrap())
            .await
            .unwrap()
    }

    /// A turn in the history: input, steps with the streamed texts, answer.
    pub(crate) async fn write_turn(&self, turn: &model::TurnId, run: u32, first: i64, texts: &[&str]) {
        let batch = format!("'t1', $bucket(t1), {first}, 'user_request', '{{}}'");
        let mut rows = vec![format!("({batch}, {first}, '{}', 0, 'user', 'question')", turn.input())];
        for (n, text) in texts.iter().enumerate() {
            let at = first + 1 + n as i64;
            let is_last = n + 1 == texts.len();
            let id = if is_last { turn.answer(run) } else { turn.step(run, n as u32) };
            rows.push(format!("({batch}, {at}, '{id}', {}, 'assistant', '{text}')", n + 1));
        }
        self.write(&format!(
            "INSERT INTO threads (bucket, thread_id) VALUES ($bucket(t1), 't1') ON CONFLICT DO NOTHING;
             INSERT INTO messages (thread_id, bucket, batch_id, batch_type, metadata, position, message_id, sequence_num,
                                   role, content) VALUES {}",
            rows.join(", ")
        ))
        .await;
    }
}
