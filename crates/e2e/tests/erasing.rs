//! Erasing: a marker is written into every kind of text, and is found nowhere afterwards.

mod over_api;
mod under_load;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use model::{
    AgentId, Bucket, FollowedTurn, Metadata, PartitionCount, Position, Task, TaskId, TaskKind, TaskOrigin,
    ThreadId, TurnId,
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row};
use testkit::{db_snapshot::turns, fleet, fleet::FleetOptions};
use tokio::time::sleep;

use crate::{
    api_client::{SOON, alone, asked_for, said},
    fixture::{Fixture, PARTITIONS},
};

const MARKER: &str = "marker-7f3a9c";
/// The marker in data that is not erased.
const KEPT: &str = "kept-51d08e";

/// Open messages are saved with the next entry, and used entries leave the streams soon.
fn hasty(options: FleetOptions) -> FleetOptions {
    alone(options).with_env("ANTIPHON_REPLAY_ENTRIES", 1).with_env("ANTIPHON_TURN_DEADLINE_SECONDS", 60)
}

fn marked(text: &str) -> String {
    format!("{text} {MARKER}")
}

fn partitions() -> PartitionCount {
    PartitionCount::new(PARTITIONS.into()).unwrap()
}

impl Fixture {
    /// The tables with rows that contain the text, literally or in hexadecimal, with their counts.
    pub(crate) async fn tables_with(&self, text: &str) -> BTreeMap<String, i64> {
        let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        let names = "SELECT table_name::text AS name FROM information_schema.tables
                     WHERE table_schema = 'public' AND table_type = 'BASE TABLE'";
        let tables = sqlx::query(names).fetch_all(&self.pool).await.unwrap();
        let mut found = BTreeMap::new();
        for table in tables {
            let name: String = table.get("name");
            let sql = format!(
                "SELECT count(*) FROM \"{name}\" AS t WHERE strpos(t::text, $1) > 0 OR strpos(t::text, $2) > 0"
            );
            let count: i64 = sqlx::query_scalar(AssertSqlSafe(sql))
                .bind(text)
                .bind(&hex)
                .fetch_one(&self.pool)
                .await
                .unwrap();
            if count > 0 {
                found.insert(name, count);
            }
        }
        found
    }

    /// The streams with entries that contain the text, with their counts.
    pub(crate) async fn streams_with(&self, text: &str) -> BTreeMap<String, u64> {
        let context = self.publisher.context();
        let names = partitions().all().map(wire::subject::stream_name);
        let others =
            [wire::subject::WORK_STREAM, wire::subject::TURNS_STREAM, wire::subject::TOOL_CALLS_STREAM];
        let names = names.chain(others.map(str::to_owned));
        let mut found = BTreeMap::new();
        for name in names {
            let mut stream = context.get_stream(&name).await.unwrap();
            let state = stream.info().await.unwrap().state.clone();
            for seq in state.first_sequence..=state.last_sequence {
                let Ok(entry) = stream.get_raw_message(seq).await else { continue };
                let headers = format!("{:?} {}", entry.headers, entry.subject);
                let bytes = [&entry.payload[..], headers.as_bytes()].concat();
                if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                    *found.entry(name.clone()).or_default() += 1;
                }
            }
        }
        found
    }

    pub(crate) async fn command(&self, words: &str) -> Value {
        let env = self.command_env();
        let words: Vec<&str> = words.split_whitespace().chain(["-o", "json"]).collect();
        let done = fleet::invoke(&words, &env).await.unwrap();
        assert_eq!(done.code, Some(0), "{words:?}: {} {}", done.stdout, done.stderr);
        serde_json::from_str(&done.stdout).unwrap()
    }

    /// Sends a task that follows a turn of `thread`, as workers and their outboxes do.
    async fn background_task(&self, agent: &str, thread: &str, kind: TaskKind, id: &str, content: &str) {
        let thread = ThreadId::parse(thread).unwrap();
        let (turn, position) = (TurnId::foreground(&thread, "x").unwrap(), Position::from_stored(17));
        let origin = match kind {
            TaskKind::Compaction => TaskOrigin::Summary { thread, compaction: position },
            _ => {
                TaskOrigin::AfterTurn(FollowedTurn { answer: turn.answer(0), batch: position, thread, turn })
            }
        };
        let task = Task {
            agent: AgentId::parse(agent).unwrap().queue_of(kind),
            id: TaskId::parse(id).unwrap(),
            kind,
            content: content.to_owned(),
            origin,
            metadata: Metadata::EMPTY,
        };
        let subject = wire::subject::partition_commands(partitions(), task.agent.as_str());
        self.publisher.publish_raw(&subject, None, wire::encode_task_of_fleet(&task)).await.unwrap();
    }

    /// Number of messages in the thread of a queue, which clients cannot name.
    async fn internal_messages(&self, queue: &str) -> i64 {
        let count = "SELECT count(*) FROM messages WHERE thread_id = $1";
        sqlx::query_scalar(count).bind(queue).fetch_one(&self.pool).await.unwrap()
    }

    /// Number of messages in that thread that are marked as synthetic.
    async fn hidden_messages(&self, queue: &str) -> i64 {
        let count = "SELECT hidden_count FROM threads WHERE thread_id = $1";
        sqlx::query_scalar(count).bind(queue).fetch_one(&self.pool).await.unwrap()
    }

    pub(crate) async fn bare(&self, thread: &str, message: &str, chunk: u32, text: &str, is_final: bool) {
        let thread = ThreadId::parse(thread).unwrap();
        let chunk = json!({
            "session_id": thread.as_str(), "message_id": message, "chunk_id": chunk, "chunk": text, "is_final": is_final,
        });
        let subject = wire::subject::partition_chunks(partitions(), &thread);
        self.publisher.publish_raw(&subject, None, chunk.to_string().into_bytes().into()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn erased_thread_leaves_no_text_anywhere() {
    let fixture = Fixture::with(hasty).await;
    let (api, manual_workflow) = (fixture.api(), fixture.manual_workflow().await);
    for agent in ["ann", "cara"] {
        fixture.settle(agent, json!({"workflow": "default"})).await;
    }
    let thread = json!({"thread_id": "secret", "agent_id": "ann", "metadata": {"note": marked("named")}});
    api.create_thread(&thread).await.unwrap();
    // Another thread of the same agent, and one in the same partition.
    let turn = api.say("other", KEPT).await.unwrap();
    asked_for(&manual_workflow, &turn).await.answer(KEPT).await.unwrap();
    fixture.until_messages("other", 2).await;

    // History.
    let turn = api.say("secret", &marked("first")).await.unwrap();
    asked_for(&manual_workflow, &turn).await.answer(&marked("answer")).await.unwrap();
    fixture.until_messages("secret", 2).await;
    // Follow-on work in an agent's own thread: one task that was done, and one that failed and
    // waits.
    fixture.background_task("ann", "secret", TaskKind::WorkRequest, "done", &marked("work on")).await;
    manual_workflow.next(SOON).await.unwrap().answer(&marked("worked")).await.unwrap();
    fixture
        .until("the work is stored", SOON, async || fixture.internal_messages("ann+work_request").await == 2)
        .await;
    assert_eq!(fixture.hidden_messages("ann+work_request").await, 1);
    fixture.background_task("cara", "secret", TaskKind::Compaction, "waits", &marked("summarise")).await;
    let mut asked = manual_workflow.next(SOON).await.unwrap();
    asked.fail(&marked("broken"), json!({"class": "transient"})).await.unwrap();
    asked.ack().await.unwrap();
    fixture
        .until("the task backs off", SOON, async || {
            turns::unsettled(&fixture.pool).await.is_ok()
                && fixture.tables_with(MARKER).await.contains_key("agents")
        })
        .await;
    // A failed turn.
    let turn = api.say("secret", &marked("will fail")).await.unwrap();
    let mut asked = asked_for(&manual_workflow, &turn).await;
    asked.say(&marked("half of")).await.unwrap();
    asked.fail(&marked("no"), json!({"class": "permanent"})).await.unwrap();
    asked.ack().await.unwrap();
    fixture.until_failed("secret", 1).await;
    // A message without a turn that failed, one that is open, and an entry that cannot be decoded.
    fixture.bare("secret", "gap", 0, &marked("gap"), false).await;
    fixture.bare("secret", "gap", 2, &marked("gap"), true).await;
    fixture.bare("secret", "open", 0, &marked("open"), false).await;
    let subject = wire::subject::partition_chunks(partitions(), &ThreadId::parse("secret").unwrap());
    fixture.publisher.publish_raw(&subject, None, marked("{not json").into_bytes().into()).await.unwrap();
    // A turn in progress whose answer continues, an input that waits, and tasks of an agent of that
    // name.
    let key = [("idempotency-key", "once")];
    let taken = api.say_with("secret", &json!({"content": marked("now")}), &key).await.unwrap();
    assert_eq!(taken.status, 202, "{}", taken.text);
    let mut under_way = manual_workflow.next(SOON).await.unwrap();
    under_way.say(&marked("so far")).await.unwrap();
    api.say("secret", &marked("waits")).await.unwrap();
    fixture.send_tasks("secret", [("own".to_owned(), marked("own task"))]).await;
    // Rows that gateways and compactions write.
    for sql in [
        "INSERT INTO responses (bucket, thread_id, turn_id, model, background, metadata)
         VALUES ($1, 'secret', 'u0000-r', 'm', false, jsonb_build_object('x', $2::text))",
        "INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, summary, strategy, valid_from_position)
         VALUES ($1, 'secret', 7, 1, $2, 'summarise', 9223372036854775807)",
        "INSERT INTO usage (bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens, is_partial)
         VALUES ($1, 'secret', 'u0000-r-a', 0, 'a', 'turn', $2, 1, 1, false)",
    ] {
        let bucket = Bucket::of_key("secret").get() as i16;
        sqlx::query(sql).bind(bucket).bind(MARKER).execute(&fixture.pool).await.unwrap();
    }
    let all = [
        "agents",
        "compactions",
        "dead_letters",
        "failed_messages",
        "failed_turns",
        "messages",
        "spilled_turns",
        "responses",
        "spilled_messages",
        "tasks",
        "threads",
        "usage",
    ];
    fixture
        .until("every kind of text is stored", SOON, async || {
            let found = fixture.tables_with(MARKER).await;
            all.iter().all(|table| found.contains_key(*table)) && found["dead_letters"] >= 2
        })
        .await;
    let before = fixture.streams_with(MARKER).await;
    assert!(
        before.contains_key("WORK") && before.keys().any(|name| name.starts_with("PARTITION_")),
        "{before:?}"
    );

    // Erased while the answer continues.
    let stop = Arc::new(AtomicBool::new(false));
    let writing = tokio::spawn({
        let stop = Arc::clone(&stop);
        async move {
            while !stop.load(Ordering::Relaxed) {
                under_way.say(&marked("and on")).await.unwrap();
                sleep(Duration::from_millis(20)).await;
            }
            under_way
        }
    });
    let dry = fixture.command("threads erase secret").await["receipt"].take();
    assert_eq!((&dry["erased"], &dry["tables"]["spilled_turns"]), (&json!(false), &json!(2)), "{dry}");
    let stopping = tokio::spawn({
        let stop = Arc::clone(&stop);
        async move {
            sleep(Duration::from_secs(3)).await;
            stop.store(true, Ordering::Relaxed);
        }
    });
    let receipt = fixture.command("threads erase secret --yes --actor ada").await["receipt"].take();
    stopping.await.unwrap();
    assert_eq!((&receipt["erased"], &receipt["pending"]), (&json!(true), &json!({})), "{receipt}");
    let tables: BTreeSet<&str> = receipt["tables"].as_object().unwrap().keys().map(String::as_str).collect();
    for table in all {
        assert!(
            tables.iter().any(|name| name.starts_with(table)),
            "{table} is not on the receipt: {receipt}"
        );
    }
    let mut under_way = writing.await.unwrap();
    assert_eq!(fixture.tables_with(MARKER).await, BTreeMap::new(), "{receipt}");
    assert_eq!(fixture.streams_with(MARKER).await, BTreeMap::new(), "{receipt}");

    // Late entries bring nothing back: the rest of the answer, the waiting input, the follow-on
    // work.
    under_way.finish(&marked("the end")).await.unwrap();
    fixture.bare("secret", "open", 1, &marked("open"), true).await;
    fixture.background_task("cara", "secret", TaskKind::Compaction, "later", &marked("summarise")).await;
    fixture.send_tasks("secret", [("own-later".to_owned(), marked("own task"))]).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(fixture.tables_with(MARKER).await, BTreeMap::new());
    let refused = api.say_with("secret", &json!({"content": "hello"}), &[]).await.unwrap();
    assert_eq!(refused.status, 410, "{}", refused.text);
    assert!(fixture.metric("antiphon_worker_erased_commands_total").await >= 2.0);
    let again = fixture.command("threads erase secret --yes").await["receipt"].take();
    assert_eq!(again["pending"], json!({}), "{again}");
    assert_eq!(fixture.streams_with(MARKER).await, BTreeMap::new());

    // Nothing else was touched, and everything else continues.
    assert_eq!(said(&fixture.messages_of("other").await), [("user", KEPT), ("assistant", KEPT)]);
    assert_eq!(
        fixture.internal_messages("ann+work_request").await,
        0,
        "of what followed its turns nothing is left"
    );
    assert_eq!(fixture.hidden_messages("ann+work_request").await, 0);
    let turn = api.say("other", "go on").await.unwrap();
    asked_for(&manual_workflow, &turn).await.answer("yes").await.unwrap();
    fixture.until_messages("other", 4).await;
    api.create_thread(&json!({"thread_id": "secret"})).await.unwrap();
    let turn = api.say("secret", "anew").await.unwrap();
    asked_for(&manual_workflow, &turn).await.answer("hello").await.unwrap();
    assert_eq!(said(&fixture.until_messages("secret", 2).await), [("user", "anew"), ("assistant", "hello")]);
    let incidents = fixture.command("incidents list --all").await;
    assert_eq!(incidents, json!({"incidents": [], "has_more": false}));
    let acts = api.call("GET", "/v1/threads/secret/audit", None).await.unwrap();
    assert_eq!(
        (&acts["entries"][0]["action"], &acts["entries"][0]["status"]),
        (&json!("erase_thread"), &json!("done"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_tenant_and_of_a_user_nothing_is_left() {
    let fixture = Fixture::with(hasty).await;
    let (api, manual_workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.command("keys create-first machine --role admin --tenant acme").await;
    for number in 0..20 {
        let thread = format!("acme~{MARKER}-{number}");
        fixture.bare(&thread, "m", 0, &marked("said"), true).await;
        fixture.bare(&thread, "open", 0, &marked("open"), false).await;
    }
    fixture.send_tasks("acme~bot", [("t".to_owned(), marked("task"))]).await;
    manual_workflow.next(SOON).await.unwrap().answer(&marked("done")).await.unwrap();
    fixture.bare("acme-2", "m", 0, KEPT, true).await;
    api.create_thread(&json!({"thread_id": "of-bob", "metadata": {"user_id": "bob"}})).await.unwrap();
    api.create_thread(&json!({"thread_id": "of-ann", "metadata": {"user_id": "ann"}})).await.unwrap();
    for thread in ["of-bob", "of-ann"] {
        let turn = api.say(thread, thread).await.unwrap();
        asked_for(&manual_workflow, &turn).await.answer(&format!("answer {thread}")).await.unwrap();
        fixture.until_messages(thread, 2).await;
    }
    fixture.until_messages("acme~bot", 2).await;
    fixture.until_messages("acme-2", 1).await;

    let dry = fixture.command("erase --tenant acme").await;
    assert_eq!((&dry["erased"], &dry["threads"]), (&json!(false), &json!(21)), "{dry}");
    let receipt = fixture.command("erase --tenant acme --yes --wait-seconds 40").await;
    assert_eq!((&receipt["pending"], &receipt["tables"]["api_keys"]), (&json!({}), &json!(1)), "{receipt}");
    // Only the tenant's mark stays: the names of its threads are in no mark and in no audit.
    assert_eq!(fixture.tables_with(MARKER).await, BTreeMap::new(), "{receipt}");
    assert_eq!(fixture.streams_with(MARKER).await, BTreeMap::new(), "{receipt}");
    assert_eq!(fixture.messages_of("acme-2").await.len(), 1);

    // The streams still have the entry: the thread is not created again, and a later run finds the
    // entry although no row names the user.
    let receipt = fixture.command("erase --user bob --yes --database-only").await;
    assert_eq!(receipt["threads"], json!(1), "{receipt}");
    let anew = json!({"thread_id": "of-bob"});
    let refused = api.call("POST", "/v1/threads", Some(&anew)).await.unwrap_err().to_string();
    assert!(refused.contains("thread_erased"), "{refused}");
    let receipt = fixture.command("erase --user bob --yes --wait-seconds 40").await;
    assert_eq!((&receipt["threads"], &receipt["user"]), (&json!(1), &json!("bob")), "{receipt}");
    api.create_thread(&anew).await.unwrap();
    assert_eq!(fixture.tables_with("answer of-bob").await, BTreeMap::new());
    assert_eq!(fixture.streams_with("answer of-bob").await, BTreeMap::new());
    assert_eq!(fixture.messages_of("of-ann").await.len(), 2);
}
