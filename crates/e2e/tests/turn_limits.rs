//! Limits of workflows, models and tenants: all workers together keep them, and waiting turns
//! report them.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{fleet::FleetOptions, manual_workflow::DeliveredRequest};

use crate::{
    api_client::SOON,
    fixture::{self, Fixture},
};

const AGENTS: usize = 12;
const AT_ONCE: usize = 3;
/// A waiting turn retries about twice a second. If a worker has died, its partitions wait for its
/// lease to end.
const PLACE_AGAIN: Duration = Duration::from_secs(60);

/// Longer than the delay of a retry: one turn too many would begin within this time.
const TOO_MANY_COME_WITHIN: Duration = Duration::from_millis(800);

fn with_limits(options: FleetOptions, limits: &Value) -> FleetOptions {
    let path = std::env::temp_dir().join(format!("limits-{}.json", rand::random::<u64>()));
    std::fs::write(&path, json!({ "limits": limits }).to_string()).unwrap();
    options.with_env("ANTIPHON_LIMITS_FILE", path.display())
}

impl Fixture {
    async fn waits(&self, agent: &str) -> Value {
        self.api().agent(agent).await.unwrap()["waiting"].clone()
    }

    async fn until_limited(&self, agent: &str) -> i64 {
        // The turn waits for another reason while it retries.
        let mut waits = Value::Null;
        self.until(&format!("{agent} says that it is limited"), SOON, async || {
            waits = self.waits(agent).await;
            waits["reason"] == "limited"
        })
        .await;
        let until = waits["until"].as_str().unwrap().to_owned();
        let sql = "SELECT (extract(epoch FROM $1::text::timestamptz - clock_timestamp()) * 1000)::bigint";
        sqlx::query_scalar(sql).bind(until).fetch_one(&self.pool).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_of_a_model_run_as_many_as_may_in_the_whole_fleet() {
    let limits = json!([{"model": "m-1", "turns_at_once": AT_ONCE}]);
    let mut fixture = Fixture::with(|options| with_limits(options, &limits)).await;
    // A request in progress is not redelivered before the end.
    let workflow = fixture.manual_workflow_of("default", Duration::from_secs(300)).await;
    for agent in 0..AGENTS {
        fixture.settle(&format!("a{agent}"), json!({"model": "m-1"})).await;
        fixture.send_tasks(&format!("a{agent}"), [("k".to_owned(), "work".to_owned())]).await;
    }
    let mut in_hand: Vec<DeliveredRequest> = Vec::new();
    for _ in 0..AT_ONCE {
        in_hand.push(workflow.next(SOON).await.unwrap());
    }
    let waiting = (0..AGENTS).map(|agent| format!("a{agent}"));
    let waiting: Vec<_> =
        waiting.filter(|agent| in_hand.iter().all(|asked| asked.request.agent_id != *agent)).collect();
    for agent in &waiting {
        fixture.until_limited(agent).await;
    }
    assert!(workflow.next_within(2 * TOO_MANY_COME_WITHIN).await.unwrap().is_none(), "one too many");
    assert!(fixture.metric("antiphon_worker_limited_turns_total").await >= waiting.len() as f64);
    // Agents with other models do not wait for the limited ones.
    fixture.settle("free", json!({"model": "m-2"})).await;
    fixture.send_tasks("free", [("k".to_owned(), "work".to_owned())]).await;
    let free = workflow.next(SOON).await.unwrap();
    assert_eq!(free.request.agent_id, "free");
    free.answer("done").await.unwrap();

    for done in 0..AGENTS {
        // Each worker has turns in progress that another worker continues.
        if done == 2 {
            fixture.fleet.add_worker().unwrap();
            fixture.fleet.workers[2].spawn().unwrap();
            fixture.fleet.workers[2].ready(SOON).await.unwrap();
            fixture.fleet.workers[1].terminate();
            fixture.fleet.workers[1].ended(SOON).await.unwrap();
        }
        if done == 6 {
            fixture.fleet.workers[0].kill().await.unwrap();
            tokio::time::sleep(fixture::LEASE * 2).await;
        }
        in_hand.remove(0).answer("done").await.unwrap();
        if done + AT_ONCE < AGENTS {
            in_hand.push(workflow.next(PLACE_AGAIN).await.unwrap());
        }
        if let Some(more) = workflow.next_within(TOO_MANY_COME_WITHIN).await.unwrap() {
            let rows: Vec<(String, String)> =
                sqlx::query_as("SELECT turn_id, worker_id FROM turn_limit_turns")
                    .fetch_all(&fixture.pool)
                    .await
                    .unwrap();
            let in_hand: Vec<_> = in_hand.iter().map(|asked| &asked.request.turn_id).collect();
            panic!("{} is one too many after {done}: {in_hand:?} in hand, {rows:?}", more.request.turn_id);
        }
    }
    for agent in 0..AGENTS {
        fixture.until_tasks(&format!("a{agent}"), &["completed"]).await;
    }
    fixture
        .until("nothing is counted as running", SOON, async || {
            let sql = "SELECT count(*) FROM turn_limit_turns";
            sqlx::query_scalar::<_, i64>(sql).fetch_one(&fixture.pool).await.unwrap() == 0
        })
        .await;
    fixture.until_settled().await;
}

async fn asks(fixture: &Fixture, agent: &str) {
    fixture.settle(agent, json!({})).await;
    fixture.send_tasks(agent, [("k".to_owned(), "work".to_owned())]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rates_of_turns_are_kept() {
    let limits = json!([{"workflow": "default", "turns_per_minute": 3}]);
    let fixture = Fixture::with(|options| with_limits(options, &limits)).await;
    let workflow = fixture.manual_workflow().await;
    for agent in ["a", "b", "c"] {
        asks(&fixture, agent).await;
    }
    let mut in_hand = Vec::new();
    for _ in 0..3 {
        in_hand.push(workflow.next(SOON).await.unwrap());
    }
    asks(&fixture, "d").await;
    let for_ms = fixture.until_limited("d").await;
    assert!((1..=20_000).contains(&for_ms), "a third of a minute: {for_ms}");
    // The turn of this agent begins, although none of the others has ended.
    in_hand.push(workflow.next(PLACE_AGAIN).await.unwrap());
    assert_eq!(in_hand[3].request.agent_id, "d");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_a_turn_has_used_are_owed_by_its_tenant() {
    // The place of a turn is released together with its tokens, so that no other turn can begin in
    // between.
    let limits = json!([{"tenant": "*", "turns_at_once": 1, "tokens_per_minute": 1_000}]);
    let fixture = Fixture::with(|options| with_limits(options, &limits)).await;
    let workflow = fixture.manual_workflow().await;
    asks(&fixture, "a").await;
    let mut heavy = workflow.next(SOON).await.unwrap();
    asks(&fixture, "b").await;
    let call = json!({"model": "m", "input_tokens": 5_500, "output_tokens": 500});
    heavy.say_with("done", json!({"is_final": true, "metadata": {"model_calls": [call]}})).await.unwrap();
    heavy.ack().await.unwrap();
    let mut for_ms = 0;
    fixture
        .until("b waits for the tokens", PLACE_AGAIN, async || {
            for_ms = fixture.until_limited("b").await;
            for_ms > 100_000
        })
        .await;
    assert!(for_ms <= 360_000, "what is owed, at a thousand a minute: {for_ms}");
    fixture.no_request_comes(&workflow).await;
}
