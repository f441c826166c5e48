//! A budget keeps turns from beginning before a model is called: inputs are refused, what is queued waits and says until when.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::manual_workflow::ManualWorkflow;

use crate::{api_client::SOON, fixture::Fixture};

/// Waiting turns look at their budgets every 15 s.
const NEXT_LOOK: Duration = Duration::from_secs(30);

/// Answers the next request, whose input is `content`, and says what it has used.
async fn answer(workflow: &ManualWorkflow, content: &str, tokens: u32) {
    let mut asked = workflow.next(NEXT_LOOK).await.unwrap();
    assert_eq!(asked.request.context.last().unwrap().content, content);
    let call = json!({"model": "m", "input_tokens": tokens - 1, "output_tokens": 1});
    asked.say_with("done", json!({"is_final": true, "metadata": {"model_calls": [call]}})).await.unwrap();
    asked.ack().await.unwrap();
}

fn ascending(moments: &[&Value]) -> bool {
    moments.is_sorted_by_key(|moment| moment.as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spent_budget_refuses_inputs_and_has_tasks_wait() {
    let fixture = Fixture::new().await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    for agent in ["ann", "bob"] {
        fixture.settle(agent, json!({})).await;
    }
    let path = "/v1/budgets/ann-daily";
    let budget = json!({"tokens": 100, "period": "day", "time_zone": "Europe/Berlin", "agent_id": "ann"});
    let put = api.send("PUT", path, Some(&budget), &[("x-antiphon-actor", "ada")]).await.unwrap();
    assert_eq!(put.status, 201, "{}", put.text);
    let thread = json!({"thread_id": "talk", "agent_id": "ann"});
    api.call("POST", "/v1/threads", Some(&thread)).await.unwrap();

    // Two turns begin while anything is left; the second uses more than that, and is not cut.
    api.say("talk", "one").await.unwrap();
    answer(&workflow, "one", 60).await;
    fixture.until_messages("talk", 2).await;
    let keyed = json!({"content": "two"});
    let accepted = api.say_with("talk", &keyed, &[("idempotency-key", "k2")]).await.unwrap();
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    // What was taken before the budget was spent waits behind it.
    api.say("talk", "three").await.unwrap();
    answer(&workflow, "two", 70).await;
    fixture.until_messages("talk", 4).await;
    let shown = api.call("GET", path, None).await.unwrap();
    let amounts = ["limit", "spent", "remaining"].map(|field| shown[field].as_str().unwrap().to_owned());
    assert_eq!(amounts, ["100", "130", "0"]);
    assert!(ascending(&[&shown["period_start"], &shown["created_at"], &shown["resets_at"]]), "{shown}");

    let refused = api.say_with("talk", &json!({"content": "four"}), &[]).await.unwrap();
    let problem = refused.json().unwrap();
    assert_eq!((refused.status, &problem["code"]), (429, &json!("budget_exceeded")));
    assert_eq!(
        problem["budget"],
        json!({"name": "ann-daily", "scope": "agent", "unit": "tokens", "limit": "100", "spent": "130", "until": shown["resets_at"]})
    );
    let seconds: u32 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=90_000).contains(&seconds), "{seconds}");
    // The same input again is the same turn, which was taken before.
    let again = api.say_with("talk", &keyed, &[("idempotency-key", "k2")]).await.unwrap();
    assert!(again.status < 300, "{} {}", again.status, again.text);

    // A task waits and says why and until when, and so does the input; another agent works.
    api.send_task("ann", "k", "work").await.unwrap();
    api.send_task("bob", "k", "other work").await.unwrap();
    answer(&workflow, "other work", 1_000).await;
    fixture.until_tasks("bob", &["completed"]).await;
    let waits = async |path: &str, place: &str| {
        let shown = api.call("GET", path, None).await.unwrap();
        shown.pointer(place).cloned().unwrap_or_default()
    };
    for (path, place) in [("/v1/agents/ann", "/waiting"), ("/v1/threads/talk", "/waiting_turns/0/waiting")] {
        fixture
            .until(&format!("{path} says why it waits"), SOON, async || {
                waits(path, place).await["reason"] == "budget"
            })
            .await;
        let until = waits(path, place).await["until"].as_str().unwrap().to_owned();
        // To the second, for it is reckoned from what is left.
        assert_eq!(until[..16], shown["resets_at"].as_str().unwrap()[..16], "{until} {shown}");
    }
    fixture.no_request_comes(&workflow).await;
    fixture.until_tasks("ann", &["pending"]).await;
    assert_eq!(api.agent("ann").await.unwrap()["backoff_attempt_count"], 0, "it is no failure");

    // Raised, it lets both go, once each.
    let more = json!({"tokens": 1_000, "period": "day", "time_zone": "Europe/Berlin", "agent_id": "ann"});
    let raised = api.call("PUT", path, Some(&more)).await.unwrap();
    assert_eq!((&raised["remaining"], &raised["version"]), (&json!("870"), &json!(2)));
    for _ in 0..2 {
        let asked = workflow.next(NEXT_LOOK).await.unwrap();
        assert!(["three", "work"].contains(&&*asked.request.context.last().unwrap().content));
        asked.answer("done").await.unwrap();
    }
    fixture.until_tasks("ann", &["completed"]).await;
    fixture.until_messages("talk", 6).await;
    fixture.no_request_comes(&workflow).await;

    let gone = api.send("DELETE", path, None, &[]).await.unwrap();
    assert_eq!(gone.status, 204, "{}", gone.text);
    let log = api.call("GET", &format!("{path}/audit"), None).await.unwrap();
    let acts: Vec<_> = log["entries"].as_array().unwrap().iter().map(|entry| &entry["action"]).collect();
    assert_eq!(acts, ["delete_budget", "put_budget", "put_budget"]);
    for bad in [
        json!({"tokens": 1, "cost": "1", "period": "day"}),
        json!({"period": "day"}),
        json!({"tokens": 1, "period": "week"}),
        json!({"tokens": 1, "period": "day", "time_zone": "Mars/Base"}),
        json!({"tokens": 1, "period": "day", "agent_id": "a", "user_id": "u"}),
        json!({"cost": "1.5", "period": "day"}),
    ] {
        let refused = api.send("PUT", path, Some(&bad), &[]).await.unwrap();
        let code = refused.json().unwrap()["code"].clone();
        assert_eq!((refused.status, code), (400, json!("invalid_budget")), "{bad}");
    }
}
