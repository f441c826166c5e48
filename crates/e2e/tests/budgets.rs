//! A budget stops turns before a model is called: inputs are refused, and queued ones wait and
//! report until when.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{fleet::FleetOptions, manual_workflow::ManualWorkflow};

use crate::{api_client::SOON, fixture::Fixture};

/// Waiting turns check their budgets every 15 s.
const NEXT_LOOK: Duration = Duration::from_secs(30);

/// Answers the next request, whose input is `content`, and reports this usage.
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

    // Two turns begin while some of the budget is left; the second one exceeds the budget, and is
    // not cut off.
    api.say("talk", "one").await.unwrap();
    answer(&workflow, "one", 60).await;
    fixture.until_messages("talk", 2).await;
    let keyed = json!({"content": "two"});
    let accepted = api.say_with("talk", &keyed, &[("idempotency-key", "k2")]).await.unwrap();
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    // An input waits if it is accepted before the budget is spent and would begin after that.
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
    // The same input again is the same turn, which was accepted before.
    let again = api.say_with("talk", &keyed, &[("idempotency-key", "k2")]).await.unwrap();
    assert!(again.status < 300, "{} {}", again.status, again.text);

    // A task reports why and until when it waits, and so does the input; another agent works.
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
        // The times are equal up to the minute, because one is computed from the remaining time.
        assert_eq!(until[..16], shown["resets_at"].as_str().unwrap()[..16], "{until} {shown}");
    }
    fixture.no_request_comes(&workflow).await;
    fixture.until_tasks("ann", &["pending"]).await;
    assert_eq!(api.agent("ann").await.unwrap()["backoff_attempt_count"], 0, "it is no failure");

    // A raised budget releases the task and the input, once each.
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

/// Each token of the model `m` costs one crown.
fn with_prices(options: FleetOptions) -> FleetOptions {
    let path = std::env::temp_dir().join(format!("prices-{}.json", rand::random::<u64>()));
    let prices =
        json!({"currency": "SEK", "prices": [{"model": "m", "input": 1_000_000, "output": 1_000_000}]});
    std::fs::write(&path, prices.to_string()).unwrap();
    options.with_env("ANTIPHON_PRICES_FILE", path.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_of_a_user_and_of_all_costs_are_kept() {
    let fixture = Fixture::with(with_prices).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.settle("ann", json!({})).await;
    for user in ["una", "max"] {
        let thread = json!({"thread_id": user, "agent_id": "ann", "metadata": {"user_id": user}});
        api.call("POST", "/v1/threads", Some(&thread)).await.unwrap();
    }
    let budgets = [
        ("of-una", json!({"tokens": 100, "period": "day", "user_id": "una"})),
        ("of-all", json!({"cost": "500", "period": "month", "time_zone": "Europe/Stockholm"})),
    ];
    for (name, budget) in &budgets {
        api.call("PUT", &format!("/v1/budgets/{name}"), Some(budget)).await.unwrap();
    }
    let refusal = async |user: &str| {
        let refused = api.say_with(user, &json!({"content": "more"}), &[]).await.unwrap();
        assert_eq!(refused.status, 429, "{}", refused.text);
        let budget = refused.json().unwrap()["budget"].clone();
        ["name", "scope", "unit", "limit", "spent"].map(|field| budget[field].as_str().unwrap().to_owned())
    };

    // A user whose budget is spent is refused in each of the user's threads; another user of the
    // same agent is not.
    api.say("una", "one").await.unwrap();
    answer(&workflow, "one", 120).await;
    fixture.until_messages("una", 2).await;
    assert_eq!(refusal("una").await, ["of-una", "user", "tokens", "100", "120"]);
    let another = json!({"thread_id": "una-2", "agent_id": "ann", "metadata": {"user_id": "una"}});
    api.call("POST", "/v1/threads", Some(&another)).await.unwrap();
    assert_eq!(refusal("una-2").await[0], "of-una");
    api.say("max", "two").await.unwrap();
    answer(&workflow, "two", 390).await;
    fixture.until_messages("max", 2).await;

    // The total cost exceeds the other budget, and a task waits for that budget, too.
    assert_eq!(refusal("max").await, ["of-all", "tenant", "cost", "500", "510"]);
    api.send_task("ann", "k", "work").await.unwrap();
    fixture
        .until("the task says why it waits", SOON, async || {
            api.agent("ann").await.unwrap()["waiting"]["reason"] == "budget"
        })
        .await;
    fixture.no_request_comes(&workflow).await;
    let raised = json!({"cost": "1000", "period": "month", "time_zone": "Europe/Stockholm"});
    let shown = api.call("PUT", "/v1/budgets/of-all", Some(&raised)).await.unwrap();
    assert_eq!((&shown["remaining"], &shown["currency"]), (&json!("490"), &json!("SEK")));
    answer(&workflow, "work", 1).await;
    fixture.until_tasks("ann", &["completed"]).await;
    assert_eq!(refusal("una").await[0], "of-una", "the other is still over its own");

    // The metrics of the workers agree with the ledger.
    assert_eq!(fixture.metric("antiphon_worker_model_calls_total").await, 3.0);
    assert_eq!(fixture.metric("antiphon_worker_model_tokens_total").await, 511.0);
}
