//! Reasons for an agent not to write first: a person who has written or was refused, a spent
//! budget, and elapsed time.

use serde_json::{Value, json};

use super::{alone, armed};
use crate::{api_client::asked_for, fixture::Fixture};

impl Fixture {
    /// Status and reason of the follow-ups of the thread as people see them, newest first.
    async fn follow_ups_shown(&self) -> Vec<(String, Value)> {
        let page = self.api().call("GET", "/v1/threads/talk/follow-ups", None).await.unwrap();
        let shown = |one: &Value| (one["status"].as_str().unwrap().to_owned(), one["decided_by"].clone());
        page["follow_ups"].as_array().unwrap().iter().map(shown).collect()
    }

    /// Creates a budget of the agent that is fully spent.
    async fn spend_budget(&self) {
        let budget = json!({"tokens": 1, "period": "month", "agent_id": "talk"});
        self.api().call("PUT", "/v1/budgets/monthly", Some(&budget)).await.unwrap();
        let spent = "UPDATE budgets SET spent = 1";
        assert_eq!(sqlx::query(spent).execute(&self.pool).await.unwrap().rows_affected(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_cancels_a_follow_up_as_soon_as_it_is_accepted() {
    let fixture = Fixture::with(alone).await;
    let workflow = fixture.manual_workflow().await;
    let _follower = armed(&fixture, &workflow, json!({"enabled": true})).await;
    assert_eq!(fixture.follow_ups_shown().await[0].0, "pending");
    let turn = fixture.api().say("talk", "I am back").await.unwrap();
    assert_eq!(fixture.follow_ups_shown().await, [("cancelled".to_owned(), json!("message"))]);
    asked_for(&workflow, &turn).await.answer("welcome").await.unwrap();
    fixture.until_messages("talk", 4).await;
    assert_eq!(fixture.follow_ups_shown().await, [("cancelled".to_owned(), json!("message"))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spent_budget_refuses_a_follow_up_that_is_due() {
    let mut fixture = Fixture::with(alone).await;
    let workflow = fixture.manual_workflow().await;
    let _follower = armed(&fixture, &workflow, json!({"enabled": true})).await;
    fixture.spend_budget().await;
    fixture.restart_with_due("talk").await;
    let refused = fixture.until_timer("talk", "refused").await;
    assert_eq!((refused.ended_by.as_deref(), refused.fired_turn), (Some("budget"), None));
    fixture.no_request_comes(&workflow).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_refused_counts_as_written() {
    let mut fixture = Fixture::with(alone).await;
    let workflow = fixture.manual_workflow().await;
    let _follower = armed(&fixture, &workflow, json!({"enabled": true})).await;
    fixture.spend_budget().await;
    let refused = fixture.api().say_with("talk", &json!({"content": "are you there?"}), &[]).await.unwrap();
    assert_eq!(refused.status, 429, "{}", refused.text);
    assert_eq!(fixture.follow_ups_shown().await, [("cancelled".to_owned(), json!("message"))]);
    // The follow-up does not fire, even if the budget is raised before the follow-up's due time.
    let budget = json!({"tokens": 1_000, "period": "month", "agent_id": "talk"});
    fixture.api().call("PUT", "/v1/budgets/monthly", Some(&budget)).await.unwrap();
    fixture.fleet.workers[0].kill().await.unwrap();
    fixture.fleet.workers[0].spawn().unwrap();
    fixture.no_request_comes(&workflow).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follow_up_is_not_sent_an_hour_after_it_was_due() {
    let mut fixture = Fixture::with(alone).await;
    let workflow = fixture.manual_workflow().await;
    let _follower = armed(&fixture, &workflow, json!({"enabled": true})).await;
    fixture.fleet.workers[0].kill().await.unwrap();
    fixture.make_due("talk").await;
    let late = "UPDATE timers SET due_at = due_at - interval '61 minutes' WHERE thread_id = 'talk'";
    sqlx::query(late).execute(&fixture.pool).await.unwrap();
    fixture.fleet.workers[0].spawn().unwrap();
    let refused = fixture.until_timer("talk", "refused").await;
    assert_eq!((refused.ended_by.as_deref(), refused.fired_turn), (Some("too_late"), None));
    fixture.no_request_comes(&workflow).await;
}
