//! Agents that write first: shown when allowed, held back and withdrawn if a person writes, and
//! exactly once, whichever process dies.

mod hidden_inputs;
mod restraint;
mod returning_clients;

use std::time::Duration;

use serde_json::{Value, json};
use sqlx::Row;
use testkit::{manual_workflow::ManualWorkflow, sse::Follower};
use tokio::time::sleep;

use crate::{
    api_client::{SOON, alone, asked_for, said, scripted, text_seen, until_ended},
    fixture::Fixture,
};

/// Number of killed workers; the variable is for a long run.
const KILLS: usize = 10;
const KILLS_VARIABLE: &str = "ANTIPHON_FOLLOW_UP_KILLS";

/// The row of a follow-up.
#[derive(Debug, PartialEq)]
struct TimerRow {
    state: String,
    ended_by: Option<String>,
    fired_turn: Option<String>,
}

impl Fixture {
    /// The follow-ups of a thread, oldest first.
    async fn timers_of(&self, thread: &str) -> Vec<TimerRow> {
        let rows = sqlx::query(
            "SELECT state, ended_by, fired_turn FROM timers WHERE thread_id = $1 ORDER BY created_at",
        );
        let rows = rows.bind(thread).fetch_all(&self.pool).await.unwrap();
        let timer = |row: &sqlx::postgres::PgRow| TimerRow {
            state: row.get("state"),
            ended_by: row.get("ended_by"),
            fired_turn: row.get("fired_turn"),
        };
        rows.iter().map(timer).collect()
    }

    /// Makes the pending follow-up of a thread due, so that the next owner finds it due. The worker
    /// must not run.
    async fn make_due(&self, thread: &str) {
        let due = "UPDATE timers SET due_at = clock_timestamp(), created_at = created_at - interval '1 hour'
                   WHERE thread_id = $1 AND state = 'pending'";
        assert_eq!(sqlx::query(due).bind(thread).execute(&self.pool).await.unwrap().rows_affected(), 1);
        // No cooldown prevents the follow-up.
        let earlier = "UPDATE timers SET ended_at = ended_at - interval '1 hour' WHERE thread_id = $1 AND state = 'fired'";
        sqlx::query(earlier).bind(thread).execute(&self.pool).await.unwrap();
    }

    async fn restart_with_due(&mut self, thread: &str) {
        self.fleet.workers[0].kill().await.unwrap();
        self.make_due(thread).await;
        self.fleet.workers[0].spawn().unwrap();
    }

    /// The lowest and the highest epoch of the partitions.
    async fn epochs(&self) -> (i64, i64) {
        let row = sqlx::query("SELECT min(epoch) AS low, max(epoch) AS high FROM partitions");
        let row = row.fetch_one(&self.pool).await.unwrap();
        (row.get("low"), row.get("high"))
    }

    async fn until_timer(&self, thread: &str, state: &str) -> TimerRow {
        self.until(&format!("a timer of {thread} is {state}"), SOON, async || {
            self.timers_of(thread).await.iter().any(|timer| timer.state == state)
        })
        .await;
        self.timers_of(thread).await.into_iter().rfind(|timer| timer.state == state).unwrap()
    }
}

/// The metadata of a last chunk that asks for a follow-up.
fn with_hint() -> Value {
    let hint = json!({"trigger_type": "check_in", "after_seconds": 30, "reason": "it went quiet"});
    json!({"is_final": true, "metadata": {"follow_up": hint}})
}

/// A thread with an armed follow-up, and a follower.
async fn armed(fixture: &Fixture, manual_workflow: &ManualWorkflow, rules: Value) -> Follower {
    fixture.settle("talk", json!({ "follow_ups": rules })).await;
    let follower = fixture.following("talk").await;
    let turn = fixture.api().say("talk", "hi").await.unwrap();
    let mut asked = asked_for(manual_workflow, &turn).await;
    asked.say_with("hello", with_hint()).await.unwrap();
    asked.ack().await.unwrap();
    fixture.until_messages("talk", 2).await;
    fixture.until_timer("talk", "pending").await;
    follower
}

/// Checks that the batch of a follow-up does not include its input: neither in the preview, nor in
/// the count, nor among the messages.
async fn input_is_in_no_batch(fixture: &Fixture) {
    let api = fixture.api();
    let page = api.call("GET", "/v1/threads/talk/batches", None).await.unwrap();
    let shown = |at: usize| {
        let batch = &page["batches"][at];
        (batch["input"].clone(), batch["message_count"].clone())
    };
    assert_eq!([shown(0), shown(1)], [(Value::Null, json!(1)), (json!("hi"), json!(2))]);
    let path = format!("/v1/threads/talk/batches/{}", page["batches"][0]["batch_id"].as_str().unwrap());
    let whole = api.call("GET", &path, None).await.unwrap();
    let contents: Vec<_> =
        whole["messages"].as_array().unwrap().iter().map(|message| &message["content"]).collect();
    assert_eq!(contents, ["Are you there?"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn follow_up_hides_its_input_and_is_refused_at_the_cap() {
    let mut fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let follower = armed(&fixture, &manual_workflow, json!({"enabled": true, "max_in_a_row": 1})).await;
    fixture.restart_with_due("talk").await;
    let mut asked = manual_workflow.next(SOON).await.unwrap();
    let turn = fixture.until_timer("talk", "fired").await.fired_turn.unwrap();
    assert_eq!(asked.request.turn_id.as_str(), turn);
    let answer = asked.request.message_id.as_str().to_owned();
    asked.say_with("Are you there?", with_hint()).await.unwrap();
    asked.ack().await.unwrap();
    let messages = fixture.until_messages("talk", 4).await;
    until_ended(&follower, &answer).await;
    assert_eq!(text_seen(&follower, &answer), "Are you there?");
    let input = &messages[2];
    assert_eq!(input.content, "Continue our conversation naturally.");
    assert_eq!((&input.metadata["synthetic"], &*input.batch_type), (&json!(true), "system_trigger"));
    assert_eq!(input.metadata["trigger_reason"], "it went quiet");
    let history = fixture.api().history("talk").await.unwrap();
    let history: Vec<_> = history.iter().map(|message| message["content"].as_str().unwrap()).collect();
    assert_eq!(history, ["hi", "hello", "Are you there?"], "the input is not shown");
    input_is_in_no_batch(&fixture).await;

    // The answer has armed another follow-up, and the limit is one in a row.
    fixture.until_timer("talk", "pending").await;
    fixture.restart_with_due("talk").await;
    let refused = fixture.until_timer("talk", "refused").await;
    assert_eq!((refused.ended_by.as_deref(), refused.fired_turn), (Some("max_in_a_row"), None));
    fixture.no_request_comes(&manual_workflow).await;
    assert_eq!(fixture.messages_of("talk").await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_withdraws_the_follow_up_that_is_generated() {
    let mut fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let follower = armed(&fixture, &manual_workflow, json!({"enabled": true})).await;
    fixture.restart_with_due("talk").await;
    let mut asked = manual_workflow.next(SOON).await.unwrap();
    let answer = asked.request.message_id.as_str().to_owned();
    asked.say("Are you").await.unwrap();
    let turn = fixture.api().say("talk", "I am back").await.unwrap();
    let withdrawn = fixture.until_timer("talk", "withdrawn").await;
    assert_eq!(withdrawn.ended_by.as_deref(), Some("message"));
    // Later chunks of the withdrawn answer are ignored.
    asked.answer(" there?").await.unwrap();
    asked_for(&manual_workflow, &turn).await.answer("welcome").await.unwrap();
    until_ended(&follower, &turn.answer).await;
    let messages = fixture.until_messages("talk", 4).await;
    let expected = [("user", "hi"), ("assistant", "hello"), ("user", "I am back"), ("assistant", "welcome")];
    assert_eq!(said(&messages), expected);
    assert_eq!(text_seen(&follower, &answer), "", "nothing of it was sent");
    assert_eq!(fixture.api().failed_turns("talk").await.unwrap(), [] as [Value; 0]);
    fixture.no_request_comes(&manual_workflow).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn follow_ups_come_once_though_workers_are_killed_meanwhile() {
    let kills = std::env::var(KILLS_VARIABLE).ok().map_or(KILLS, |count| count.parse().unwrap());
    let mut fixture =
        Fixture::with(|options| scripted(options).with_env("ANTIPHON_LEASE_TTL_SECONDS", 2)).await;
    let threads: Vec<String> = (0..kills).map(|number| format!("kill-{number}")).collect();
    let rule = json!({"trigger_type": "check_in", "after_seconds": 3_600});
    for thread in &threads {
        let rules = json!({"enabled": true, "max_in_a_row": 1, "default": rule});
        fixture.settle(thread, json!({ "follow_ups": rules })).await;
        fixture.api().say(thread, "hi").await.unwrap();
    }
    for thread in &threads {
        fixture.until_messages(thread, 2).await;
    }
    fixture.fleet.workers[0].kill().await.unwrap();
    for (number, thread) in threads.iter().enumerate() {
        fixture.make_due(thread).await;
        let (_, before) = fixture.epochs().await;
        fixture.fleet.workers[0].spawn().unwrap();
        match number % 3 {
            // The worker is killed during the commit or just after it, before the output is
            // published or marked as published.
            0 => drop(fixture.until_timer(thread, "fired").await),
            _ => {
                let held = async || fixture.epochs().await.0 > before;
                fixture.until("the worker has its partitions anew", SOON, held).await;
                sleep(Duration::from_millis(number as u64 * 13 % 90)).await;
            }
        }
        fixture.fleet.workers[0].kill().await.unwrap();
    }
    fixture.fleet.workers[0].spawn().unwrap();
    for thread in &threads {
        let messages = fixture.until_messages(thread, 4).await;
        let timer = fixture.until_timer(thread, "fired").await;
        let (input, answer) = (&messages[2], &messages[3]);
        assert_eq!(Some(format!("{}-q", timer.fired_turn.unwrap())), Some(input.message_id.clone()));
        assert_eq!((&*answer.role, messages.len()), ("assistant", 4), "{messages:?}");
        let fired = fixture.timers_of(thread).await;
        let fired = fired.iter().filter(|timer| timer.state == "fired").count();
        assert_eq!(fired, 1, "the one that its answer has armed is not due");
    }
}
