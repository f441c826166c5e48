//! If Postgres refuses a row of one tenant, only the operation on that row fails. Everything else
//! continues, and the worker stays ready.

use std::time::Duration;

use serde_json::json;
use sqlx::AssertSqlSafe;
use testkit::{db_snapshot, http};

use crate::{
    api_client::{SOON, alone, said, scripted},
    fixture::Fixture,
};

/// Makes Postgres refuse each statement that reads or writes a row of `table` for which `condition`
/// holds, with a permanent code (22012).
async fn refuse(fixture: &Fixture, table: &str, condition: &str) {
    let sql = format!(
        "CREATE OR REPLACE FUNCTION planted(is_bad boolean) RETURNS boolean LANGUAGE sql VOLATILE AS
         $$ SELECT CASE WHEN is_bad THEN 1 / (random() * 0)::integer = 0 ELSE true END $$;
         CREATE POLICY planted ON {table} AS RESTRICTIVE USING (planted({condition}))"
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&fixture.pool).await.unwrap();
}

async fn readiness(fixture: &Fixture) -> (u16, String) {
    let answer = http::get(fixture.fleet.workers[0].metrics_addr(), "/readyz").await.unwrap();
    (answer.status, answer.text)
}

/// Sends a message in several threads at once, and waits for their answers.
async fn all_are_answered(fixture: &Fixture, prefix: &str) {
    let threads: Vec<String> = (0..24).map(|number| format!("{prefix}-{number}")).collect();
    for thread in &threads {
        fixture.api().say(thread, "hello").await.unwrap();
    }
    for thread in &threads {
        let messages = fixture.until_messages(thread, 2).await;
        assert_eq!(said(&messages)[1], ("assistant", "You said: hello"), "{thread}");
    }
}

/// One worker, so that turns of several tenants begin in the same statement.
async fn fleet() -> Fixture {
    Fixture::with(|options| alone(scripted(options))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn absurd_counts_of_tokens_stop_no_other_turn() {
    let fixture = fleet().await;
    let api = fixture.api();
    for (name, budget) in [
        ("all", json!({"tokens": 1_000_000_000_000_u64, "period": "day"})),
        ("ann", json!({"tokens": 1_000_000_000_000_u64, "period": "month", "agent_id": "ann"})),
    ] {
        api.call("PUT", &format!("/v1/budgets/{name}"), Some(&budget)).await.unwrap();
    }
    // A workflow that reports more than a call may use: the chunk is refused, the turn fails, and
    // the ledger has nothing of it.
    fixture.settle("mallory", json!({})).await;
    api.put_agent("mallory", "absurd", json!({})).await.unwrap();
    let thread = json!({"thread_id": "poison", "agent_id": "mallory"});
    api.call("POST", "/v1/threads", Some(&thread)).await.unwrap();
    let workflow = fixture.manual_workflow_of("absurd", Duration::from_secs(30)).await;
    api.say("poison", "hello").await.unwrap();
    let mut asked = workflow.next(SOON).await.unwrap();
    let most = 9_007_199_254_740_991_u64;
    let call = json!({"input_tokens": most, "output_tokens": most});
    let calls = json!({"model_calls": vec![call; 64]});
    asked.say_with("", json!({"chunk_type": "metadata", "metadata": calls})).await.unwrap();
    fixture
        .until("the chunk is a dead letter", SOON, async || {
            fixture.metric("antiphon_worker_dead_letters_total").await >= 1.0
        })
        .await;
    // The total of an answer is not refused, and counts as 2^31.
    let usage = json!({"prompt_tokens": most, "completion_tokens": most});
    api.say("whole", "hello").await.unwrap();
    fixture.until_messages("whole", 2).await;
    let thread = json!({"thread_id": "summed", "agent_id": "mallory"});
    api.call("POST", "/v1/threads", Some(&thread)).await.unwrap();
    api.say("summed", "hello").await.unwrap();
    let mut asked = workflow.next(SOON).await.unwrap();
    asked.say_with("done", json!({"is_final": true, "metadata": {"usage": usage}})).await.unwrap();
    asked.ack().await.unwrap();
    fixture.until_messages("summed", 2).await;
    let counted: (i64, i64) =
        sqlx::query_as("SELECT input_tokens, output_tokens FROM usage WHERE thread_id = 'summed'")
            .fetch_one(&fixture.pool)
            .await
            .unwrap();
    assert_eq!(counted, (1 << 31, 1 << 31));
    // Rows as written by builds before the bound: together above 2^63, several times.
    sqlx::raw_sql(
        "INSERT INTO usage (bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens, is_partial)
         SELECT 1, of || 't', of || 'm' || n, 0, of || 'ann', 'turn', 'm', 9223372036854775807, 9223372036854775807, false
         FROM generate_series(1, 3) AS n, unnest(ARRAY['acme~', 'foo~']) AS of",
    )
    .execute(&fixture.pool)
    .await
    .unwrap();
    all_are_answered(&fixture, "talk").await;
    assert_eq!(readiness(&fixture).await.0, 200);
    assert_eq!(fixture.metric("antiphon_worker_refused_items_total").await, 0.0, "nothing is refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_cannot_be_read_fails_alone() {
    let fixture = fleet().await;
    let bad: Vec<String> = (0..3).map(|number| format!("bad-{number}")).collect();
    for thread in &bad {
        sqlx::query(
            "INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, summary, strategy, valid_from_position)
             VALUES ($1, $2, 1, 1, 's', 'summarise', 1)",
        )
        .bind(model::Bucket::of_key(thread).get() as i16)
        .bind(thread)
        .execute(&fixture.pool)
        .await
        .unwrap();
    }
    refuse(&fixture, "compactions", "starts_with(thread_id, 'bad-')").await;
    for thread in &bad {
        fixture.api().say(thread, "hello").await.unwrap();
    }
    all_are_answered(&fixture, "talk").await;
    for thread in &bad {
        assert_eq!(fixture.until_failed(thread, 1).await, [("rejected_by_database".to_owned(), 0)]);
    }
    assert_eq!(fixture.metric("antiphon_worker_refused_items_total").await, 3.0);
    assert_eq!(readiness(&fixture).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_cannot_be_looked_up_fails_alone() {
    let fixture = fleet().await;
    // The row that shows whether a task of that agent was accepted before.
    sqlx::query(
        "INSERT INTO task_ids (bucket, agent_id, task_id, position, digest) VALUES ($1, 'eve', 'k', 1, 1)",
    )
    .bind(model::Bucket::of_key("eve").get() as i16)
    .execute(&fixture.pool)
    .await
    .unwrap();
    refuse(&fixture, "task_ids", "agent_id = 'eve'").await;
    for agent in ["eve", "ann", "bob"] {
        fixture.send_tasks(agent, [("k".to_owned(), "work".to_owned())]).await;
    }
    for agent in ["ann", "bob"] {
        fixture.until_tasks(agent, &["completed"]).await;
    }
    all_are_answered(&fixture, "talk").await;
    fixture
        .until("the command is a dead letter", SOON, async || {
            let letters = db_snapshot::dead_letters(&fixture.pool).await.unwrap_or_default();
            letters.iter().any(|letter| letter.reason == "rejected_by_database")
        })
        .await;
    assert_eq!(readiness(&fixture).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timer_that_cannot_be_read_ends_alone() {
    let fixture = fleet().await;
    // The row of a follow-up has the thread's position as a number; the row of the previous
    // follow-up does not. The row of another thread is valid.
    sqlx::raw_sql(
        "INSERT INTO timers (bucket, timer_id, kind, thread_id, agent_bucket, agent_id, due_at, ended_at, body, state) VALUES
         (1, 'f0001-0', 'follow_up', 'bad', 1, 'bad', clock_timestamp(), clock_timestamp(), '{\"armed_position\": \"no number\"}', 'fired'),
         (1, 'f0001-1', 'follow_up', 'bad', 1, 'bad', clock_timestamp(), NULL, '{\"armed_position\": \"5\"}', 'pending'),
         (1, 'f0001-2', 'follow_up', 'good', 1, 'good', clock_timestamp(), NULL, '{\"armed_position\": \"5\"}', 'pending')",
    )
    .execute(&fixture.pool)
    .await
    .unwrap();
    all_are_answered(&fixture, "talk").await;
    // Owners read the timers again every minute.
    fixture
        .until("both timers have ended", Duration::from_secs(90), async || {
            let ends: Vec<Option<String>> = sqlx::query_scalar(
                "SELECT ended_by FROM timers WHERE timer_id > 'f0001-0' ORDER BY timer_id",
            )
            .fetch_all(&fixture.pool)
            .await
            .unwrap();
            ends == [Some("rejected_by_database".to_owned()), Some("disabled".to_owned())]
        })
        .await;
    assert_eq!(readiness(&fixture).await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn operation_without_culprit_makes_the_worker_unready() {
    let fixture = fleet().await;
    sqlx::raw_sql("ALTER TABLE compactions RENAME TO compactions_elsewhere")
        .execute(&fixture.pool)
        .await
        .unwrap();
    fixture.api().say("talk", "hello").await.unwrap();
    fixture
        .until("the worker says what is wrong", SOON, async || {
            let (status, body) = readiness(&fixture).await;
            status == 503
                && body.contains("refused by Postgres: 1 operations")
                && body.contains("compactions")
        })
        .await;
    assert_eq!(fixture.metric("antiphon_worker_refused_operations").await, 1.0);
    sqlx::raw_sql("ALTER TABLE compactions_elsewhere RENAME TO compactions")
        .execute(&fixture.pool)
        .await
        .unwrap();
    fixture.until_messages("talk", 2).await;
    fixture.until("the worker is ready", SOON, async || readiness(&fixture).await.0 == 200).await;
    assert_eq!(fixture.metric("antiphon_worker_refused_operations").await, 0.0);
}
