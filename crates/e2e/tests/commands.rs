//! The operator's commands: the shipped binary on a real Postgres, and the rows that result.

mod budgets;
mod compactions;
mod foreign_threads;
mod imports_of_erased;
pub(crate) mod imports_over_api;
mod memory;
mod messages;
mod timer_acts;
mod timers;
mod usage;

use std::path::{Path, PathBuf};

use devservices::{services::ScratchDir, workspace};
use model::ThreadId;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool, Row, migrate::Migrator};
use testkit::{
    fleet::{Invocation, invoke},
    services::TestDatabase,
};

use crate::fixture::LoneGateway;
use messages::Written;

/// Numbers the messages of all threads like owners do.
const NUMBER: &str = "UPDATE messages AS m SET number = n.number FROM (
        SELECT bucket, thread_id, position, row_number() OVER (PARTITION BY bucket, thread_id ORDER BY position) AS number FROM messages
    ) AS n WHERE (m.bucket, m.thread_id, m.position) = (n.bucket, n.thread_id, n.position);
    UPDATE threads AS t SET last_number = (SELECT count(*) FROM messages AS m WHERE (m.bucket, m.thread_id) = (t.bucket, t.thread_id))";

/// A separate database, and a folder for files.
struct CommandFixture {
    database: TestDatabase,
    pool: PgPool,
    folder: ScratchDir,
    /// For commands of the API.
    gateway: Option<LoneGateway>,
}

impl CommandFixture {
    async fn new() -> Self {
        let database = TestDatabase::create().await.unwrap();
        let pool = database.pool().await.unwrap();
        let migrations = workspace::root().join("migrations");
        Migrator::new(migrations).await.unwrap().run(&pool).await.unwrap();
        sqlx::query("INSERT INTO installation (partitions) VALUES (8)").execute(&pool).await.unwrap();
        Self { database, pool, folder: ScratchDir::new("commands").unwrap(), gateway: None }
    }

    /// Starts a gateway with these variables.
    async fn serve(&mut self, env: &[(&str, String)]) {
        self.gateway = Some(LoneGateway::start(self.database.url(), 8, env).await);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs the binary; the words are separated by spaces.
    async fn invoke(&self, words: &str) -> Invocation {
        let words: Vec<&str> = words.split_whitespace().collect();
        let database = ("DATABASE_URL".to_owned(), self.database.url().to_owned());
        let env: Vec<_> = self.gateway.iter().map(LoneGateway::env).chain([database]).collect();
        invoke(&words, &env).await.unwrap()
    }

    /// The JSON output of a command that must succeed.
    async fn json(&self, words: &str) -> Value {
        let done = self.invoke(&format!("{words} -o json")).await;
        assert_eq!(done.code, Some(0), "{words}: {}", done.stderr);
        serde_json::from_str(&done.stdout).unwrap()
    }

    /// The one error line of a command that must fail.
    async fn refused(&self, words: &str) -> String {
        let done = self.invoke(words).await;
        assert_eq!(done.code, Some(1), "{words}: {} {}", done.stdout, done.stderr);
        let mut lines = done.stderr.lines().filter_map(|line| line.strip_prefix("antiphon: "));
        let last = lines.next_back().unwrap_or_default().to_owned();
        assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
        last
    }

    async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.unwrap();
    }

    /// Every row of a query as JSON.
    async fn rows(&self, sql: &str) -> Vec<Value> {
        let sql = AssertSqlSafe(format!("SELECT row_to_json(q) AS row FROM ({sql}) AS q"));
        let rows = sqlx::query(sql).fetch_all(&self.pool).await.unwrap();
        rows.iter().map(|row| row.get("row")).collect()
    }

    async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool).await.unwrap()
    }

    /// Everything that is stored of threads, except for times.
    async fn stored(&self) -> Vec<Value> {
        let mut all = self.rows("SELECT * FROM (SELECT bucket, thread_id, head_position, message_count, hidden_count, last_number, agent_id, busy_policy, metadata FROM threads) AS t ORDER BY 1, 2").await;
        all.extend(self.rows("SELECT to_jsonb(m) - 'imported_at' AS m FROM messages AS m ORDER BY bucket, thread_id, position").await);
        all.extend(self.rows("SELECT bucket, thread_id, compaction_id, through_position, kept_positions, summary, strategy, provenance, previous_id, valid_from_position, undone_at_position FROM compactions ORDER BY 1, 2, 3").await);
        all
    }

    /// Inserts messages by a script: `13:10.2t=c` is the message at 13, number 2 of batch 10, a
    /// tool's result for call c; `A=c` calls; `!` marks a message that is out of range.
    async fn put(&self, thread: &str, script: &str) {
        let mut before = None;
        for word in script.split_whitespace() {
            let one = Written::read(word);
            let calls = json!([{"id": one.call, "name": "f", "arguments": "{\"a\": 1}"}]);
            sqlx::query(
                "INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, sequence_num, batch_type, role, content,
                     tool_calls, tool_call_id, metadata, token_count, parent_id, created_at, out_of_range, started_after_ms)
                 VALUES ($1, $2, $3, $4, $5, $6, 'user_request', $7, $8, $9, $10, $11, $12, $13,
                         to_timestamp(1700000000) + $3 * interval '1 ms', $14, CASE WHEN $6 > 0 THEN 100 - 37 * $6 END)",
            )
            .bind(bucket(thread))
            .bind(thread)
            .bind(one.position)
            .bind(format!("m{}", one.position))
            .bind(one.batch)
            .bind(one.number)
            .bind(one.role)
            .bind(format!("text \"{word}\" ü\n"))
            .bind((one.role == "assistant" && one.call.is_some()).then_some(calls))
            .bind(one.call.filter(|_| one.role == "tool"))
            .bind(json!({"n": 1.5, "synthetic": one.number == 0}))
            .bind((one.role == "assistant").then_some(7_i64))
            .bind(before)
            .bind(one.is_apart)
            .execute(&self.pool)
            .await
            .unwrap();
            before = Some(one.position);
        }
        self.execute(&format!(
            "INSERT INTO threads (bucket, thread_id, head_position, message_count, hidden_count)
             SELECT bucket, thread_id, max(position), count(*), count(*) FILTER (WHERE metadata -> 'synthetic' = 'true')
             FROM messages WHERE thread_id = '{thread}' GROUP BY 1, 2
             ON CONFLICT (bucket, thread_id) DO UPDATE SET head_position = excluded.head_position,
                 message_count = excluded.message_count, hidden_count = excluded.hidden_count"
        ))
        .await;
        self.execute(NUMBER).await;
    }

    async fn export(&self, name: &str) -> String {
        let path = self.path(name);
        self.json(&format!("database export --all --output {}", path.display())).await;
        std::fs::read_to_string(path).unwrap()
    }
}

fn bucket(thread: &str) -> i16 {
    ThreadId::parse(thread).unwrap().bucket().get().try_into().unwrap()
}

/// Calls, interleaved batches, one that continues much later, and one without an answer.
const TALK: &str = "10:10.0u 11:10.1A=c 12:10.2t=c 13:10.3a 20:20.0u 21:21.0u 22:20.1a! 23:21.1a! 30:10.4u! 31:10.5a! 40:40.0u";

async fn fixture_with_talk() -> CommandFixture {
    let fixture = CommandFixture::new().await;
    fixture.put("t", TALK).await;
    fixture.execute(&format!(
        "INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, kept_positions, summary, strategy, valid_from_position, provenance)
         VALUES ({}, 't', 35, 20, '{{10}}', 'They talked.', 'summarise', 36,
                 '{{\"batches\": [\"20\"], \"messages\": 2, \"tokens_before\": 9, \"tokens_after\": 5}}');
         INSERT INTO threads (bucket, thread_id, agent_id, busy_policy, metadata) VALUES ({}, 'u', 'kind', 'reject', '{{\"title\": \"T\"}}')",
        bucket("t"),
        bucket("u")
    ))
    .await;
    fixture
}

/// Six hundred batches of two messages, and one batch that begins before them and continues between
/// them. That batch has more messages than one transaction takes.
async fn fixture_with_long_thread() -> CommandFixture {
    let fixture = CommandFixture::new().await;
    fixture.put("long", "1000:1000.0u").await;
    fixture.execute(&format!(
        "INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, sequence_num, batch_type, role, content, out_of_range)
         SELECT {0}, 'long', 1000 + 10 * n + k, 'm' || n || '-' || k, 1000 + 10 * n, k, 'user_request',
                CASE k WHEN 0 THEN 'user' ELSE 'assistant' END, 'text', false
         FROM generate_series(1, 600) AS n, generate_series(0, 1) AS k
         UNION ALL
         SELECT {0}, 'long', 1000 + 10 * n + 5, 'on' || n, 1000, n, 'continuation', 'assistant', 'on', true
         FROM generate_series(1, 600) AS n;
         UPDATE messages AS m SET created_at = date_trunc('second', m.created_at),
             parent_id = (SELECT max(o.position) FROM messages AS o WHERE o.thread_id = 'long' AND o.position < m.position);
         UPDATE threads SET message_count = 1801, hidden_count = 1, head_position = 7005",
        bucket("long")
    ))
    .await;
    fixture.execute(NUMBER).await;
    fixture
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_exported_is_imported_once_and_exported_alike() {
    for fixture in [fixture_with_talk().await, fixture_with_long_thread().await] {
        let text = fixture.export("a").await;
        let other = CommandFixture::new().await;
        let import = format!("database import --file {}", fixture.path("a").display());
        let first = other.json(&import).await;
        assert_eq!(first["messages"], first["new_messages"], "{first}");
        assert_eq!(other.stored().await, fixture.stored().await);
        assert_eq!(other.export("b").await, text);
        let before = other.stored().await;
        let versions =
            "SELECT string_agg(xmin::text, ',' ORDER BY bucket, thread_id, position) AS x FROM messages";
        let written = other.rows(versions).await;
        let again = other.json(&import).await;
        assert_eq!(again["messages"], first["messages"]);
        for new in ["new_threads", "new_messages", "new_compactions"] {
            assert_eq!(again[new], json!(0), "{new}");
        }
        assert_eq!(other.stored().await, before);
        assert_eq!(other.rows(versions).await, written, "no row was written again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_cut_is_refused_and_gone_on_with() {
    let fixture = fixture_with_long_thread().await;
    let text = fixture.export("a").await;
    let other = CommandFixture::new().await;
    let (cut, cursor) = (fixture.path("cut"), fixture.path("cursor"));
    std::fs::write(&cut, &text[..text.len() * 4 / 5]).unwrap();
    let lines = text[..text.len() * 4 / 5].lines().count();
    let words =
        |file: &Path| format!("database import --file {} --resume {}", file.display(), cursor.display());
    let why = other.refused(&words(&cut)).await;
    assert!(
        why.starts_with(&format!("line {lines}: not a line of an export, or cut in the middle")),
        "{why}"
    );
    let stored = other.number("SELECT count(*) FROM messages").await;
    assert!(stored > 1_000, "{stored}: everything before it");
    let halves = "SELECT count(*) FROM (SELECT FROM messages WHERE batch_id > 1000 GROUP BY batch_id HAVING count(*) <> 2) AS b";
    assert_eq!(other.number(halves).await, 0);
    assert!(cursor.exists());
    // Another file is refused.
    let strange = fixture_with_talk().await;
    strange.export("s").await;
    let why = other.refused(&words(&strange.path("s"))).await;
    assert!(why.contains("this is not the file whose import began"), "{why}");
    let whole = other.json(&words(&fixture.path("a"))).await;
    assert_eq!(whole["new_messages"], json!(1801 - stored));
    assert!(whole["messages"].as_i64().unwrap() < 1801, "what was stored is not written again: {whole}");
    assert!(!cursor.exists());
    assert_eq!(other.stored().await, fixture.stored().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_taken_is_refused_with_its_line_and_why() {
    let fixture = fixture_with_talk().await;
    let text = fixture.export("a").await;
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let changed = |change: &dyn Fn(&mut Vec<String>)| {
        let mut lines = lines.clone();
        change(&mut lines);
        lines.join("\n") + "\n"
    };
    let of =
        |id: &str| lines.iter().position(|line| line.contains(&format!("\"message_id\":\"{id}\""))).unwrap();
    let (twice, orphan, last) = (of("m20"), of("m11"), of("m40"));
    let cases: [(String, String); 6] = [
        (
            changed(&|l| l[0] = "{\"antiphon_export\":3}".to_owned()),
            "line 1: the file has version 3".to_owned(),
        ),
        (changed(&|l| l[0] = "{}".to_owned()), "line 1: the file does not begin with".to_owned()),
        (
            changed(&|l| l[twice] = l[twice].replace("\"m20\"", "\"m10\"")),
            format!("line {}, message \"m10\": its id has been before", twice + 1),
        ),
        (
            changed(&|l| drop(l.remove(orphan))),
            format!("line {}, message \"m12\": the batch is damaged: ", orphan + 1),
        ),
        (
            changed(&|l| l[last] = l[last].replace("text", "tixt")),
            format!("line {}: the digest does not match", lines.len()),
        ),
        (
            changed(&|l| l[last] = l[last].replace("\"40\"", "\"9223372036854775000\"")),
            format!("line {}: the digest does not match", lines.len()),
        ),
    ];
    for (text, says) in cases {
        let other = CommandFixture::new().await;
        std::fs::write(fixture.path("bad"), &text).unwrap();
        let why = other.refused(&format!("database import --file {}", fixture.path("bad").display())).await;
        let future = why.contains("later than now");
        assert!(why.starts_with(&says) || (says.contains("digest") && future), "{why}\nand not {says}");
        assert_eq!(
            other.number("SELECT count(*) FROM messages WHERE message_id = 'm11' AND batch_id <> 10").await,
            0
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_thread_imports_only_what_follows_it() {
    let fixture = fixture_with_talk().await;
    fixture.export("a").await;
    let import = format!("database import --file {}", fixture.path("a").display());
    for (sql, why) in [
        (
            "UPDATE messages SET content = 'other' WHERE position = 12",
            "message \"m12\", batch 10 of thread t: it is there already in another form",
        ),
        (
            "DELETE FROM messages WHERE position IN (20, 22)",
            "batch 20 of thread t: it comes before what the thread already has",
        ),
        (
            "UPDATE messages SET batch_id = 21, sequence_num = 2, out_of_range = true WHERE position = 40",
            "batch 21 of thread t: it is there already and has gone on since",
        ),
    ] {
        let other = CommandFixture::new().await;
        other.json(&import).await;
        other.execute(sql).await;
        let before = other.stored().await;
        let said = other.refused(&import).await;
        assert!(said.contains(why), "{sql}: {said}");
        assert!(said.starts_with("line "), "{said}");
        assert_eq!(other.stored().await, before);
    }
    // Messages that are missing at the end of the thread are written.
    let other = CommandFixture::new().await;
    other.json(&import).await;
    other.execute("DELETE FROM messages WHERE position = 40; UPDATE threads SET head_position = 31, message_count = 10, hidden_count = 3, last_number = 10 WHERE thread_id = 't'").await;
    assert_eq!(other.json(&import).await["new_messages"], json!(1));
    assert_eq!(other.stored().await, fixture.stored().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_finds_and_mends_what_was_planted_and_nothing_else() {
    let mut fixture = fixture_with_talk().await;
    let well = fixture.json("batches check").await;
    assert_eq!((&well["findings"], &well["remaining"], &well["batches"]), (&json!([]), &json!(0), &json!(4)));
    // A gap in the numbers, a result without a call, a missing mark, a lost beginning.
    let damage = "UPDATE messages SET sequence_num = 5 WHERE position = 13;
                  UPDATE messages SET out_of_range = false WHERE position = 23;";
    fixture.execute(damage).await;
    fixture.put("o", "50:50.0u 51:50.1t=z 52:50.2a").await;
    fixture.put("l", "61:60.1A=c 62:60.2t=c 63:60.3a").await;
    let before = fixture.stored().await;
    let dry = fixture.invoke("batches check -o json").await;
    assert_eq!(dry.code, Some(1));
    assert_eq!(fixture.stored().await, before, "a dry run changes nothing");
    let dry: Value = serde_json::from_str(&dry.stdout).unwrap();
    let mut codes: Vec<_> =
        dry["findings"].as_array().unwrap().iter().map(|one| one["code"].as_str().unwrap()).collect();
    codes.sort_unstable();
    assert_eq!(codes, ["beginning_lost", "number", "number", "orphan_result", "unmarked"]);
    let mended = fixture.invoke("batches check --repair --actor ada -o json").await;
    assert_eq!(mended.code, Some(1), "a beginning is lost for good");
    assert!(mended.stderr.contains("damage remains in 1 messages"), "{}", mended.stderr);
    let mended: Value = serde_json::from_str(&mended.stdout).unwrap();
    assert_eq!(mended["remaining"], json!(1));
    let mut now = fixture.invoke("batches check -o json").await;
    assert_eq!(now.code, Some(1));
    let now: Value = serde_json::from_str(&std::mem::take(&mut now.stdout)).unwrap();
    assert_eq!(now["findings"].as_array().unwrap().len(), 1, "{now}");
    assert_eq!(now["findings"][0]["code"], json!("beginning_lost"));
    let talk = fixture_with_talk().await;
    let messages = "SELECT * FROM messages WHERE thread_id = 't' ORDER BY position";
    assert_eq!(fixture.rows(messages).await, talk.rows(messages).await, "as it was before it was damaged");
    fixture.serve(&[]).await;
    let whole = fixture.json("batches show o 50").await;
    assert_eq!(
        (&whole["state"], &whole["message_count"]),
        (&json!("complete"), &json!(1)),
        "a synthetic input is not counted"
    );
    let alone = fixture.json("batches show o 51").await;
    assert_eq!(alone["incomplete_code"], json!("orphan_result"));
    let acts = fixture.rows("SELECT subject_id, actor, action, target FROM audit_log ORDER BY target").await;
    assert_eq!(acts.len(), 4, "{acts:?}");
    assert!(acts.iter().all(|act| act["actor"] == "ada" && act["action"] == "repair_message"), "{acts:?}");
    let number = acts.iter().find(|act| act["target"].as_str().unwrap().contains("message 13")).unwrap();
    assert!(number["target"].as_str().unwrap().contains("number 5 of batch 10"), "{number}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_has_whole_batches_and_what_counted_then() {
    let mut fixture = fixture_with_talk().await;
    fixture.serve(&[]).await;
    assert_eq!(fixture.json("threads fork t whole --actor ada").await["message_count"], json!(11));
    let of = |thread: &str| {
        format!(
            "SELECT position, parent_id, batch_id, sequence_num, content, out_of_range FROM messages WHERE thread_id = '{thread}' ORDER BY 1"
        )
    };
    assert_eq!(fixture.rows(&of("whole")).await, fixture.rows(&of("t")).await);
    let shown = fixture.json("threads show whole").await;
    assert_eq!((&shown["agent_id"], &shown["last_position"]), (&json!("t"), &json!("40")));
    assert_eq!(shown["message_count"], json!(7), "without the four that the system made up");
    assert_eq!(fixture.number("SELECT count(*) FROM compactions WHERE thread_id = 'whole'").await, 1);
    // Batch 10 continued after 20 began, and is complete nevertheless.
    fixture.json("threads fork t part --at 20").await;
    assert_eq!(fixture.json("threads show part").await["message_count"], json!(6));
    let part: Vec<_> = fixture
        .rows(&of("part"))
        .await
        .iter()
        .map(|row| (row["position"].clone(), row["parent_id"].clone()))
        .collect();
    let places = [10, 11, 12, 13, 20, 22, 30, 31];
    let before = [None, Some(10), Some(11), Some(12), Some(13), Some(20), Some(22), Some(30)];
    assert_eq!(
        part,
        places.iter().zip(before).map(|(at, before)| (json!(at), json!(before))).collect::<Vec<_>>()
    );
    assert_eq!(
        fixture.json("batches show part 10").await["message_count"],
        json!(5),
        "without its synthetic input"
    );
    assert_eq!(fixture.number("SELECT count(*) FROM compactions WHERE thread_id = 'part'").await, 0);
    for (words, code) in [
        ("threads fork t part", "thread_exists"),
        ("threads fork t x --at 11", "unknown_batch"),
        ("threads fork none x", "unknown_thread"),
    ] {
        let why = fixture.refused(words).await;
        assert!(why.contains(code), "{words}: {why}");
    }
    let acts = fixture.rows("SELECT subject_id, actor, action, target FROM audit_log ORDER BY 1").await;
    let whole = json!({"subject_id": "whole", "actor": "ada", "action": "fork_thread", "target": "t"});
    assert_eq!((acts.len(), &acts[1]), (2, &whole));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_thread_that_was_erased() {
    let fixture = fixture_with_long_thread().await;
    fixture.put("other", TALK).await;
    let (bucket, other) = (bucket("long"), bucket("other"));
    fixture.execute(&format!(
        "INSERT INTO dead_letters (bucket, kind, key, partition_id, stream_seq, thread_id, reason, detail, raw)
         VALUES ({bucket}, 'message', 'long/x', 0, 1, 'long', 'gap', '{{}}', ''), (mod({bucket}, 8), 'entry', 's:1', 0, 1, 'long', 'bad', '{{}}', '');
         INSERT INTO spilled_messages (bucket, thread_id, message_id, first_chunk, attempt, role, first_seq, open_ms, idle_ms, chunks)
         VALUES ({bucket}, 'long', 'x', 0, 0, 'user', 1, 1, 1, 'secret');
         INSERT INTO failed_turns (bucket, thread_id, turn_id, agent_id, run, content, metadata, code, text, is_retryable)
         VALUES ({bucket}, 'long', 'u1', 'a', 0, 'secret', '{{}}', 'c', 't', true);
         INSERT INTO failed_messages (bucket, thread_id, position, message_id, attempt, role, batch_type, code, text, is_retryable)
         VALUES ({bucket}, 'long', 1, 'u1', 0, 'assistant', 'user_request', 'c', 'secret', true);
         INSERT INTO spilled_turns (bucket, thread_id, turn_id, agent_id, run, content, metadata, stream_seq, incarnation)
         VALUES ({bucket}, 'long', 'u2', 'a', 0, 'secret', '{{}}', 1, 's');
         INSERT INTO expired_messages (bucket, thread_id, message_id) VALUES ({bucket}, 'long', 'u0');
         INSERT INTO thread_list (bucket, thread_id, tenant, active_at, title, title_by) VALUES ({bucket}, 'long', '-', now(), 'Long', 'client');
         INSERT INTO feedback (bucket, thread_id, message_id, user_id, tenant, agent_id, comment)
             VALUES ({bucket}, 'long', 'm1', 'u', '-', 'a', 'secret');
         INSERT INTO timers (bucket, timer_id, kind, thread_id, agent_id, agent_bucket, due_at) VALUES ({bucket}, 'f1', 'follow_up', 'long', 'a', 0, now());
         INSERT INTO idempotency_keys (bucket, thread_id, key, digest, turn_id) VALUES ({bucket}, 'long', 'k', '', 'u1');
         INSERT INTO responses (bucket, thread_id, turn_id, model, background, metadata) VALUES ({bucket}, 'long', 'u1', 'm', false, '{{}}');
         INSERT INTO usage (bucket, thread_id, message_id, call, agent_id, kind, input_tokens, output_tokens, is_partial)
             VALUES ({bucket}, 'long', 'm1', 0, 'a', 'turn', 1, 1, false);
         INSERT INTO facts (bucket, agent_id, fact_id, scope, thread_id, text, kind, confidence)
             VALUES (mod({bucket} + 1, 1024), 'a', 'm1-f0', 'user:u', 'long', 'secret', 'note', 1);
         INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, strategy, valid_from_position) VALUES ({bucket}, 'long', 1, 1, 'age', 1), ({other}, 'other', 1, 1, 'age', 1)"
    ))
    .await;
    let kept = "SELECT * FROM messages WHERE thread_id = 'other' ORDER BY position";
    let before = fixture.rows(kept).await;
    let dry = fixture.json("erase --thread long --database-only").await;
    assert_eq!(
        (&dry["erased"], &dry["tables"]["messages"], &dry["tables"]["dead_letters"]),
        (&json!(false), &json!(1801), &json!(2))
    );
    assert_eq!(fixture.number("SELECT count(*) FROM messages WHERE thread_id = 'long'").await, 1801);
    let receipt = fixture.json("erase --thread long --database-only --yes --actor ada").await;
    assert_eq!((&receipt["actor"], &receipt["erased"]), (&json!("ada"), &json!(true)));
    assert!(receipt["erased_at"].is_string());
    // Every table with threads is on the receipt, and has no row of this thread.
    let tables = fixture
        .rows(
            "SELECT c.table_name FROM information_schema.columns AS c
             JOIN information_schema.tables AS t USING (table_schema, table_name)
             WHERE c.table_schema = 'public' AND c.column_name = 'thread_id' AND t.table_type = 'BASE TABLE'
               AND c.table_name <> 'erased_threads'",
        )
        .await;
    assert!(tables.len() >= 10);
    for table in tables {
        let table = table["table_name"].as_str().unwrap();
        let left = fixture.number(&format!("SELECT count(*) FROM {table} WHERE thread_id = 'long'")).await;
        assert_eq!(left, 0, "{table}");
        assert_eq!(receipt["tables"][table], dry["tables"][table], "{table}");
        assert!(receipt["tables"][table].as_i64().unwrap() > 0, "{table} was not tried");
    }
    assert_eq!(fixture.rows(kept).await, before);
    assert_eq!(fixture.number("SELECT count(*) FROM compactions").await, 1);
    assert_eq!(
        fixture.json("erase --thread long --database-only --yes").await["tables"],
        receipt["tables"],
        "twice is once"
    );
    assert_eq!(
        fixture.refused("erase --thread missing --database-only --yes").await,
        "there is no thread missing"
    );
    // An import does not bring the thread back.
    let source = fixture_with_long_thread().await;
    source.export("a").await;
    let import = fixture.json(&format!("database import --file {}", source.path("a").display())).await;
    assert_eq!((&import["threads"], &import["messages"]), (&json!(0), &json!(0)), "{import}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_words_end_with_one_line() {
    let mut fixture = CommandFixture::new().await;
    fixture.serve(&[]).await;
    for (words, code, says) in [
        ("batches list a.b", 2, "invalid_id"),
        ("batches list t --limit 0", 2, "invalid_limit"),
        ("batches show t -5", 2, "unexpected argument '-5'"),
        ("batches list t --url nowhere", 2, "ANTIPHON_URL \"nowhere\" is no address"),
        ("batches list t --url http://127.0.0.1:9", 1, "is a gateway running"),
        ("database export", 2, "required arguments were not provided"),
        ("database import --from openai", 2, "--from openai needs --thread"),
        ("batches list none", 1, "partition_unavailable"),
        ("batches show none 7", 1, "unknown_batch"),
        ("database export none", 1, "there is no thread none"),
        ("database import --file /nonexistent", 1, "/nonexistent cannot be read"),
        ("database import", 1, "line 0: the file ends before its trailer"),
    ] {
        let done = fixture.invoke(words).await;
        assert_eq!(done.code, Some(code), "{words}: {}", done.stderr);
        assert!(done.stderr.contains(says), "{words}: {}", done.stderr);
        assert_eq!(done.stderr.lines().count(), 1, "{words}: {}", done.stderr);
        assert_eq!(done.stdout, "", "{words}");
    }
    let table = fixture.invoke("database export --all").await;
    assert!(table.stdout.starts_with("{\"antiphon_export\":2}\n{\"trailer\""), "{}", table.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn incidents_are_listed_until_acknowledged() {
    let mut fixture = CommandFixture::new().await;
    fixture.serve(&[]).await;
    assert_eq!(fixture.json("incidents list").await, json!({"incidents": [], "has_more": false}));
    fixture.execute(
        "INSERT INTO incidents (partition_id, incarnation, first_seq, kind, last_seq, detail, detected_at) VALUES
         (3, 's', 41, 'entries_gone', 57, 'gone', '2026-01-02T03:04:05Z'),
         (5, 's', 7, 'stream_parted', NULL, 'parted', '2026-01-01T00:00:00Z')",
    )
    .await;
    let listed = fixture.json("incidents list").await;
    let first = json!({"partition": 3, "kind": "entries_gone", "stream": "s", "first_seq": 41, "last_seq": 57, "detail": "gone",
                       "detected_at": "2026-01-02T03:04:05Z", "acknowledged_at": null, "acknowledged_by": null});
    assert_eq!(listed["incidents"][0], first);
    assert_eq!(listed["incidents"][1]["last_seq"], Value::Null);
    let table = fixture.invoke("incidents list").await.stdout;
    assert!(table.contains("3          entries_gone") && table.contains("stream_parted"), "{table}");
    assert_eq!(fixture.json("incidents acknowledge 4").await, json!({"acknowledged": 0}));
    assert_eq!(fixture.json("incidents acknowledge 3 --actor ann").await, json!({"acknowledged": 1}));
    let left = fixture.json("incidents list").await;
    assert_eq!(left["incidents"].as_array().unwrap().len(), 1);
    assert_eq!(fixture.json("incidents acknowledge all").await, json!({"acknowledged": 1}));
    assert_eq!(fixture.json("incidents list").await, json!({"incidents": [], "has_more": false}));
    let all = fixture.json("incidents list --all").await;
    assert_eq!(all["incidents"][0]["acknowledged_by"], "ann");
    assert_eq!(fixture.invoke("incidents acknowledge some").await.code, Some(2));
    let acts =
        fixture.rows("SELECT subject_id, actor, action, target, detail FROM audit_log ORDER BY target").await;
    let of_one = json!({"subject_id": "incidents+fleet", "actor": "ann", "action": "acknowledge_incidents", "target": "3",
                        "detail": "1 incidents"});
    assert_eq!((acts.len(), &acts[0]), (2, &of_one));
}
